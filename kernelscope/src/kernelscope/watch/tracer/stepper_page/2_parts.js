// The pieces of the page: elements, grids of shared arrays, strips of sectors and banks.

// -- document -----------------------------------------------------------------------------------
function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  first: "M5 4v16M19 5l-10 7 10 7z",
  back: "M16 5l-10 7 10 7z",
  play: "M7 4l13 8-13 8z",
  pause: "M7 5h4v14H7zM14 5h4v14h-4z",
  step: "M8 5l10 7-10 7z",
  barrier: "M4 5l8 7-8 7zM13 5l8 7-8 7z",
  finding: "M12 3l10 18H2zM12 10v5M12 17.5v.6",
};

function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

function isDark() {
  const body = document.body;
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false";
  if (body.dataset.vscodeThemeKind) return /dark|high-contrast$/.test(body.dataset.vscodeThemeKind);
  return matchMedia("(prefers-color-scheme: dark)").matches;
}

function fill(select, options, chosen) {
  select.replaceChildren(
    ...options.map(([value, text]) => {
      const option = make("option", "", text);
      option.value = value;
      return option;
    }),
  );
  select.value = chosen;
}

// -- shared arrays ------------------------------------------------------------------------------
// Rows of cells; with text where it fits, else as small squares on a canvas.
class Grid {
  constructor(name, array) {
    this.name = name;
    this.array = array;
    this.unknown = array.space === "shared" ? "never written" : "not used by this block yet";
    this.count = Math.floor(array.size / ITEM(array.dtype));
    const shape = array.shape.length ? array.shape : [this.count];
    this.columns = shape.length === 1 ? Math.min(shape[0], 32) : shape[shape.length - 1];
    this.caption = make(
      "figcaption",
      "",
      make("b", "", name),
      make("span", "", shape.map((n) => `[${n}]`).join("")),
      make("output", "acs-hover"),
    );
    this.root = make("figure", "acs-grid", this.caption);
    this.small = this.columns > TEXT_COLUMNS || this.count > 1024;
    if (this.small) this.buildCanvas();
    else this.buildCells();
  }

  buildCells() {
    this.body = make("div", "acs-cells");
    this.body.style.setProperty("--columns", this.columns);
    this.cells = Array.from({ length: this.count }, () => make("span", "acs-cell"));
    this.body.append(...this.cells);
    this.root.append(make("div", "acs-scroll", this.body));
  }

  buildCanvas() {
    this.rows = Math.ceil(this.count / this.columns);
    this.side = Math.max(5, Math.min(12, Math.floor(240 / this.columns)));
    this.canvas = make("canvas", "acs-canvas");
    this.canvas.style.width = `${this.columns * this.side}px`;
    this.canvas.style.height = `${this.rows * this.side}px`;
    this.root.append(make("div", "acs-scroll", this.canvas));
    this.canvas.addEventListener("mousemove", (event) => {
      const column = Math.floor(event.offsetX / this.side),
        row = Math.floor(event.offsetY / this.side);
      const index = row * this.columns + column;
      if (column < this.columns && index < this.count) this.hover(index);
    });
    this.canvas.addEventListener("mouseleave", () => {
      this.caption.lastChild.textContent = "";
    });
  }

  hover(index) {
    const value = this.values?.[index];
    const where = place(index, this.array.shape.length ? this.array.shape : [this.count]);
    const text = value === null || value === undefined ? this.unknown : shown(value);
    this.caption.lastChild.textContent = `${where} = ${text}`;
  }

  draw(values, frame) {
    this.values = values;
    this.written = new Set();
    this.readNow = new Set();
    for (const access of frame[this.array.space]) {
      if (access.array !== this.name) continue;
      if (access.kind !== "read") access.index.forEach((index) => this.written.add(index));
      if (access.kind !== "write") access.index.forEach((index) => this.readNow.add(index));
    }
    if (this.small) this.paint(new Set());
    else this.cells.forEach((cell, i) => this.drawCell(cell, i, values[i]));
  }

  kind(index) {
    const read = this.readNow.has(index),
      written = this.written.has(index);
    return read && written
      ? "both"
      : read
        ? "read"
        : written
          ? "write"
          : this.isUnknown(index)
            ? "empty"
            : "";
  }

  isUnknown(index) {
    return this.values[index] === null || this.values[index] === undefined;
  }

  drawCell(cell, index, value) {
    const kind = this.kind(index),
      never = this.isUnknown(index);
    const text = never && kind !== "empty" ? "?" : shown(value, 4);
    if (cell.textContent !== text) cell.textContent = text;
    const mark = never && kind !== "empty" ? " acs-never" : "";
    cell.className = `acs-cell${kind ? ` acs-${kind}` : ""}${mark}`;
    const state = never ? `, ${this.unknown}` : ` = ${value}`;
    cell.title = `${this.name}${place(index, this.array.shape)}${state}`;
  }

  paint(pointed) {
    const scale = window.devicePixelRatio || 1,
      side = this.side * scale;
    this.canvas.width = this.columns * side;
    this.canvas.height = this.rows * side;
    const context = this.canvas.getContext("2d"),
      style = getComputedStyle(this.root);
    const colour = (name) => style.getPropertyValue(`--acs-${name}`).trim() || "#999";
    const palette = {
      "": colour("cell"),
      empty: colour("empty"),
      write: colour("write"),
      read: colour("read"),
      both: colour("both"),
    };
    const gap = Math.max(1, Math.round(scale));
    for (let i = 0; i < this.count; i++) {
      const x = (i % this.columns) * side,
        y = Math.floor(i / this.columns) * side;
      const kind = this.kind(i);
      context.fillStyle = palette[kind];
      context.fillRect(x, y, side - gap, side - gap);
      if (this.isUnknown(i)) {
        // a hollow square, as the hatching of larger cells
        context.strokeStyle = colour("hatch");
        context.lineWidth = scale;
        context.strokeRect(x + scale / 2, y + scale / 2, side - gap - scale, side - gap - scale);
      }
      if (pointed.has(i)) {
        context.strokeStyle = colour("ink");
        context.lineWidth = 2 * scale;
        context.strokeRect(x + scale, y + scale, side - gap - 2 * scale, side - gap - 2 * scale);
      }
    }
  }

  point(thread, frame) {
    const own = new Set();
    for (const access of thread === null || !frame ? [] : frame[this.array.space]) {
      if (access.array !== this.name) continue;
      const each = Math.max(1, access.index.length / access.threads.length);
      access.index.forEach((index, i) => {
        if (access.threads[Math.floor(i / each)] === thread) own.add(index);
      });
    }
    if (this.small) {
      if (own.size || this.hadOwn) this.paint(own);
      this.hadOwn = own.size > 0;
      return;
    }
    for (const index of own) this.cells[index]?.classList.add("acs-pointed");
  }
}

// -- accesses -----------------------------------------------------------------------------------
function stripHead(access, array, lanes, result, good) {
  const first = `${access.array}${place(lanes[0].index, array.shape)}`;
  const last =
    lanes.length > 1
      ? ` … ${access.array}${place(lanes[lanes.length - 1].index, array.shape)}`
      : "";
  return make(
    "div",
    "acs-strip-head",
    make(
      "span",
      `acs-tag acs-${access.kind === "read" ? "read" : access.kind === "write" ? "write" : "both"}`,
      PAST[access.kind],
    ),
    make("span", "acs-code", first + last),
    make("span", "acs-quiet", `${access.size} bytes × ${plural(lanes.length, "lane")}`),
    make("strong", good ? "acs-good" : "acs-poor", result),
  );
}

// One box a sector, eight words wide; a filled word was asked for by a lane.
function sectorStrip(access, array, lanes) {
  const found = sectors(lanes, access.size);
  const used = [...found.values()].reduce((sum, { bytes }) => sum + bytes.size, 0);
  const least = Math.ceil(used / SECTOR);
  const boxes = [];
  let before = null;
  for (const [number, { bytes, lanes: who }] of [...found].slice(0, MAX_SECTORS)) {
    if (before !== null && number !== before + 1) boxes.push(make("span", "acs-gap"));
    before = number;
    const box = make("span", "acs-sector");
    box.dataset.lanes = [...who].join(" ");
    for (let word = 0; word < SECTOR / WORD; word++) {
      const wanted = [0, 1, 2, 3].some((byte) => bytes.has(WORD * word + byte));
      box.append(make("i", wanted ? `acs-${access.kind === "read" ? "read" : "write"}` : ""));
    }
    const asking = plural(who.size, "lane");
    box.title = `32-byte sector ${number}: ${bytes.size} bytes asked for by ${asking}`;
    boxes.push(box);
  }
  if (found.size > MAX_SECTORS)
    boxes.push(make("span", "acs-quiet", ` and ${found.size - MAX_SECTORS} more`));
  const result = `${plural(found.size, "sector")}, ${used} of ${found.size * SECTOR} bytes used`;
  return make(
    "div",
    "acs-strip",
    stripHead(access, array, lanes, result, found.size <= least),
    make("div", "acs-sectors", ...boxes),
  );
}

// One column a bank; a column's height is how many different words are asked of that bank.
function bankStrip(access, array, lanes) {
  const { passes, least, groups } = wavefronts(lanes, access.size, access.kind);
  const who = new Map();
  for (const lane of lanes) {
    for (let word = 0; word < Math.max(1, access.size / WORD); word++) {
      const bank = (Math.floor(lane.address / WORD) + word) % BANKS;
      who.set(bank, [...(who.get(bank) ?? []), lane.lane]);
    }
  }
  const heights = Array.from({ length: BANKS }, (_, bank) =>
    Math.max(...groups.map((group) => group[bank].size)),
  );
  const tallest = Math.max(...heights),
    tall = Math.min(48, 13 * tallest); // pixels
  const columns = heights.map((height, bank) => {
    const column = make("span", "acs-bank");
    column.dataset.lanes = (who.get(bank) ?? []).join(" ");
    const bar = make("i", height ? `acs-${access.kind === "read" ? "read" : "write"}` : "");
    bar.style.height = `${height && Math.max(6, Math.round((tall * height) / tallest))}px`;
    if (height > 1) bar.append(make("b", "", String(height)));
    column.append(bar, make("small", "", bank % 4 === 0 ? String(bank) : ""));
    const asking = plural(new Set(who.get(bank)).size, "lane");
    column.title = height
      ? `bank ${bank}: ${plural(height, "different word")} for ${asking}`
      : `bank ${bank}: not used`;
    return column;
  });
  const result = plural(passes, "wavefront") + (passes > least ? `, ${least} would do` : "");
  return make(
    "div",
    "acs-strip",
    stripHead(access, array, lanes, result, passes <= least),
    withHeight(make("div", "acs-banks", ...columns), tall + 14),
  );
}

function withHeight(element, pixels) {
  element.style.height = `${pixels}px`;
  return element;
}
