// The stepper: walks through what the tracer recorded of a thread block. No library, no server;
// the same code runs as an anywidget and in a page of its own.

const SECTOR = 32, BANKS = 32, WORD = 4, CHECKPOINT = 64, TEXT_COLUMNS = 16, MAX_SECTORS = 128;
const ITEM = (dtype) => Number(dtype.slice(1)) || 1;

// -- data ---------------------------------------------------------------------------------------
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// The values of variables and shared arrays after any step, from the changes of the frames.
class History {
  constructor(recording) {
    this.recording = recording;
    this.threads = recording.block_shape.reduce((a, b) => a * b, 1);
    this.checkpoints = new Map();
    this.step = -1;
    this.reset();
  }

  reset() {
    this.variables = new Map();
    this.shared = new Map();
    for (const [name, array] of Object.entries(this.recording.arrays)) {
      if (array.space === "shared") {
        this.shared.set(name, new Array(Math.floor(array.size / ITEM(array.dtype))).fill(null));
      }
    }
    this.step = -1;
  }

  go(step) {
    if (step < this.step) {
      let start = Math.floor(step / CHECKPOINT) * CHECKPOINT;
      while (start > 0 && !this.checkpoints.has(start)) start -= CHECKPOINT;
      if (this.checkpoints.has(start)) this.restore(start);
      else this.reset();
    }
    while (this.step < step) this.apply(this.recording.frames[++this.step]);
  }

  restore(start) {
    const copy = (map) => new Map([...map].map(([name, row]) => [name, row.slice()]));
    const { variables, shared } = this.checkpoints.get(start);
    this.variables = copy(variables);
    this.shared = copy(shared);
    this.step = start;
  }

  apply(frame) {
    for (const [name, change] of Object.entries(frame.variables)) {
      if (!this.variables.has(name)) this.variables.set(name, new Array(this.threads).fill(null));
      const row = this.variables.get(name);
      change.threads.forEach((thread, i) => { row[thread] = change.values[i]; });
    }
    for (const access of frame.shared) {
      if (access.kind === "read" || !this.shared.has(access.array)) continue;
      const cells = this.shared.get(access.array);
      access.index.forEach((index, i) => { cells[index] = access.values[i]; });
    }
    if (frame.step % CHECKPOINT === 0 && !this.checkpoints.has(frame.step)) {
      const copy = (map) => new Map([...map].map(([name, row]) => [name, row.slice()]));
      this.checkpoints.set(frame.step,
        { variables: copy(this.variables), shared: copy(this.shared) });
    }
  }
}

// -- counting -----------------------------------------------------------------------------------
// A lane's first byte address; arrays start where the recording says, as sectors and banks see it.
function requests(access, array) {
  const item = ITEM(array.dtype);
  const each = Math.max(1, access.index.length / access.threads.length);
  return access.threads.map((thread, i) => ({
    thread,
    lane: thread % 32,
    index: access.index[i * each],
    address: array.start + access.index[i * each] * item,
  }));
}

// Distinct 32-byte pieces with the bytes that are wanted of each; sector 0 holds address 0.
function sectors(lanes, size) {
  const found = new Map();
  for (const lane of lanes) {
    for (let byte = lane.address; byte < lane.address + size; byte++) {
      const number = Math.floor(byte / SECTOR);
      if (!found.has(number)) found.set(number, { bytes: new Set(), lanes: new Set() });
      found.get(number).bytes.add(byte % SECTOR);
      found.get(number).lanes.add(lane.lane);
    }
  }
  return new Map([...found].sort((a, b) => a[0] - b[0]));
}

// Passes over the banks: a full warp at 4 bytes a lane, half a warp at 8, a quarter at 16.
function wavefronts(lanes, size) {
  const words = Math.max(1, size / WORD), width = 32 / words;
  const groups = new Map();
  for (const lane of lanes) {
    const group = Math.floor(lane.lane / width);
    if (!groups.has(group)) groups.set(group, Array.from({ length: BANKS }, () => new Set()));
    for (let word = 0; word < words; word++) {
      const number = Math.floor(lane.address / WORD) + word;
      groups.get(group)[number % BANKS].add(number);
    }
  }
  let passes = 0;
  for (const banks of groups.values()) passes += Math.max(...banks.map((bank) => bank.size));
  return { passes, least: groups.size, groups: [...groups.values()] };
}

// -- text ---------------------------------------------------------------------------------------
function shown(value, digits = 6) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value)) return value.map((v) => shown(v, 4)).join(value.some(Array.isArray) ? " | " : " ");
  if (typeof value === "number" && !Number.isInteger(value)) return String(Number(value.toPrecision(digits)));
  return String(value);
}

const plural = (count, word) => `${count.toLocaleString("en")} ${word}${count === 1 ? "" : "s"}`;
const PAST = { read: "reads", write: "writes", update: "updates" };

function place(index, shape) {
  const parts = [];
  for (const extent of [...shape].reverse()) {
    parts.unshift(index % extent);
    index = Math.floor(index / extent);
  }
  return parts.map((part) => `[${part}]`).join("");
}

const KEYWORDS = new RegExp("\\b(?:__global__|__device__|__shared__|__launch_bounds__|__restrict__|"
  + "__forceinline__|__syncthreads|__syncwarp|extern|const|constexpr|float[24]?|double|int|void|bool|"
  + "unsigned|size_t|char|short|long|half2?|struct|template|typename|for|if|else|while|do|return|"
  + "break|continue|static|true|false)\\b");
const TOKEN = new RegExp(`(//.*$|/\\*.*?\\*/)|(^\\s*#\\s*\\w+)|(${KEYWORDS.source})|("[^"]*")`, "g");

function highlight(text) {
  const parts = [];
  let last = 0;
  for (const match of text.matchAll(TOKEN)) {
    parts.push(text.slice(last, match.index));
    const kind = match[1] ? "comment" : match[2] ? "directive" : match[3] ? "keyword" : "string";
    parts.push(make("span", `acs-${kind}`, match[0]));
    last = match.index + match[0].length;
  }
  parts.push(text.slice(last));
  return parts;
}

// -- document -----------------------------------------------------------------------------------
function make(tag, className = "", ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

const SVG = "http://www.w3.org/2000/svg";
const ICONS = {
  first: "M5 4v16M19 5l-10 7 10 7z", back: "M16 5l-10 7 10 7z", play: "M7 4l13 8-13 8z",
  pause: "M7 5h4v14H7zM14 5h4v14h-4z", step: "M8 5l10 7-10 7z",
  barrier: "M4 5l8 7-8 7zM13 5l8 7-8 7z", finding: "M12 3l10 18H2zM12 10v5M12 17.5v.6",
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

class Stepper {
  constructor(recordings, { step = 0, onStep = () => {} } = {}) {
    this.recordings = recordings;
    this.onStep = onStep;
    this.root = make("div", "acs");
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", "Kernel stepper");
    this.root.dataset.lmSuppressShortcuts = "true"; // arrow keys are ours, not JupyterLab's
    this.pinned = null;
    this.buildFrame();
    this.choose(0, step);
    this.root.addEventListener("keydown", (event) => this.key(event));
    const follow = () => this.root.classList.toggle("acs-dark", isDark());
    follow();
    this.themes = new MutationObserver(follow);
    this.themes.observe(document.body, { attributes: true });
    this.media = matchMedia("(prefers-color-scheme: dark)");
    this.media.addEventListener("change", follow);
    this.follow = follow;
  }

  destroy() {
    this.pause();
    this.themes.disconnect();
    this.media.removeEventListener("change", this.follow);
  }

  // Everything that stays from step to step.
  buildFrame() {
    const button = (name, title, action) => {
      const element = make("button", `acs-button acs-${name}`, icon(name));
      element.type = "button";
      element.title = title;
      element.setAttribute("aria-label", title);
      element.addEventListener("click", action);
      return element;
    };
    this.title = make("div", "acs-title");
    this.block = this.chooser("Block", () => this.choose(Number(this.block.value), 0));
    this.warp = this.chooser("Warp", () => { this.warpNumber = Number(this.warp.value); this.build(); });
    this.playButton = button("play", "Play or pause (space)", () => this.toggle());
    this.findingButton = button("finding", "Next finding (f)", () => this.jump("finding", 1));
    this.findingButton.append(make("span", "", "finding"));
    this.barrierButton = button("barrier", "Next barrier (b, or shift + right arrow)", () => this.jump("barrier", 1));
    this.barrierButton.append(make("span", "", "barrier"));
    this.slider = make("input", "acs-slider");
    this.slider.type = "range";
    this.slider.min = 0;
    this.slider.setAttribute("aria-label", "Step");
    this.slider.addEventListener("input", () => { this.pause(); this.go(Number(this.slider.value)); });
    this.marks = make("div", "acs-marks");
    this.counter = make("output", "acs-counter");
    const controls = make("div", "acs-controls",
      button("first", "First step (Home)", () => { this.pause(); this.go(0); }),
      button("back", "Step back (left arrow)", () => { this.pause(); this.go(this.step - 1); }),
      this.playButton,
      button("step", "Step (right arrow)", () => { this.pause(); this.go(this.step + 1); }),
      this.barrierButton, this.findingButton,
      make("div", "acs-track", this.slider, this.marks), this.counter);
    this.banner = make("div", "acs-banner");
    this.banner.setAttribute("role", "status");
    this.source = make("div", "acs-source");
    this.uniform = make("div", "acs-uniform");
    this.table = make("table", "acs-table");
    this.arrays = make("div", "acs-arrays");
    this.strips = make("div", "acs-strips");
    this.note = make("div", "acs-note");
    const panel = (name, title, ...content) =>
      make("section", `acs-panel acs-${name}`, make("h4", "", title), ...content);
    this.root.append(
      make("header", "acs-header", this.title, make("div", "acs-choosers", this.block.parentNode, this.warp.parentNode)),
      controls, this.banner,
      make("div", "acs-main",
        make("div", "acs-left", panel("code", "Source", this.source), panel("access", "Memory access of this step", this.strips)),
        make("div", "acs-right",
          panel("variables", "Variables", this.uniform, make("div", "acs-scroll", this.table)),
          panel("shared", "Shared memory", this.legend(), this.arrays))),
      this.note);
  }

  chooser(label, action) {
    const select = make("select");
    select.addEventListener("change", action);
    make("label", "acs-chooser", label, select);
    return select;
  }

  legend() {
    const key = (kind, text) => make("span", "acs-key", make("i", `acs-swatch acs-${kind}`), text);
    return make("div", "acs-legend", key("write", "written now"), key("read", "read now"),
      key("both", "both"), key("empty", "never written"));
  }

  choose(number, step) {
    this.pause();
    this.recording = this.recordings[number];
    this.history = new History(this.recording);
    this.pinned = null;
    const { recording } = this;
    fill(this.block, this.recordings.map((r, i) => [i, `${r.kernel} (${r.block})`]), number);
    const count = Math.ceil(this.history.threads / 32);
    const warps = recording.warp === null ? [...Array(count).keys()] : [recording.warp];
    this.warpNumber = warps[0];
    fill(this.warp, warps.map((w) => [w, `${w}`]), this.warpNumber);
    this.warp.disabled = warps.length < 2;
    this.block.disabled = this.recordings.length < 2;
    this.title.replaceChildren(make("strong", "", recording.kernel),
      make("span", "", `grid (${recording.grid.join(", ")}) · block (${recording.block_shape.join(", ")})`
        + ` · ${recording.source_name.split("/").pop()}`));
    this.step = Math.max(0, Math.min(step, recording.frames.length - 1));
    this.build();
  }

  // Everything that depends on the block and the warp.
  build() {
    const { recording } = this;
    const last = Math.max(0, recording.frames.length - 1);
    this.slider.max = last;
    this.findingButton.disabled = !recording.frames.some((frame) => frame.finding);
    this.barrierButton.disabled = !recording.frames.some((frame) => frame.barrier !== null);
    this.marks.replaceChildren(...recording.frames
      .filter((frame) => frame.finding || frame.barrier !== null)
      .map((frame) => {
        const mark = make("i", frame.finding ? "acs-mark-finding" : "acs-mark-barrier");
        mark.style.left = `${last ? (100 * frame.step) / last : 0}%`;
        return mark;
      }));
    this.note.textContent = recording.truncated;
    this.findSame();
    this.buildSource();
    this.buildTable();
    this.buildArrays();
    if (recording.frames.length) this.draw();
    else this.banner.textContent = "This block made no step.";
  }

  myThreads() {
    const first = 32 * this.warpNumber;
    const count = Math.min(32, this.history.threads - first);
    return Array.from({ length: count }, (_, i) => first + i);
  }

  // Variables on which all threads of the warp agree at every step are listed once, not 32 times.
  findSame() {
    const mine = new Set(this.myThreads());
    this.same = new Set(Object.keys(this.recording.variables));
    const history = new History(this.recording);
    for (const frame of this.recording.frames) {
      history.go(frame.step);
      const active = frame.threads.filter((thread) => mine.has(thread));
      for (const name of Object.keys(frame.variables)) {
        if (!this.same.has(name) || !active.length) continue;
        const row = history.variables.get(name);
        const first = JSON.stringify(row[active[0]]);
        if (active.some((thread) => JSON.stringify(row[thread]) !== first)) this.same.delete(name);
      }
    }
    this.history = history;
  }

  buildSource() {
    const reached = new Set(this.recording.frames.map((frame) => frame.line));
    this.lines = this.recording.lines.map((text, i) => {
      const row = make("div", "acs-line", make("span", "acs-number", String(i + 1)),
        make("code", "", ...highlight(text), "\n"));
      if (reached.has(i + 1)) {
        row.classList.add("acs-reached");
        row.title = "Go to the next step on this line";
        row.addEventListener("click", () => this.toLine(i + 1));
      }
      return row;
    });
    this.source.replaceChildren(...this.lines);
  }

  buildTable() {
    const names = Object.keys(this.recording.variables).filter((name) => !this.same.has(name));
    const [x, y, z] = this.recording.block_shape;
    const axes = [x, y, z].reduce((last, extent, i) => (extent > 1 ? i : last), 0) + 1;
    const label = (thread) =>
      [thread % x, Math.floor(thread / x) % y, Math.floor(thread / (x * y))].slice(0, axes).join(", ");
    this.cells = new Map();
    this.rows = new Map();
    const head = make("tr", "", make("th", "", axes > 1 ? `thread (${"xyz".slice(0, axes).split("").join(", ")})` : "thread"));
    this.heads = names.map((name) => {
      const cell = make("th", "", name);
      const { type, line } = this.recording.variables[name];
      cell.title = `${type} ${name}, line ${line}`;
      head.append(cell);
      return cell;
    });
    const body = this.myThreads().map((thread) => {
      const row = make("tr", "", make("th", "", label(thread)));
      row.title = `thread ${thread}, lane ${thread % 32}; click to pin`;
      this.cells.set(thread, names.map(() => {
        const cell = make("td");
        row.append(cell);
        return cell;
      }));
      this.rows.set(thread, row);
      row.addEventListener("mouseenter", () => this.point(thread));
      row.addEventListener("mouseleave", () => this.point(null));
      row.addEventListener("click", () => {
        this.pinned = this.pinned === thread ? null : thread;
        this.point(this.pinned);
      });
      return row;
    });
    this.names = names;
    this.table.replaceChildren(make("thead", "", head), make("tbody", "", ...body));
  }

  buildArrays() {
    this.grids = Object.entries(this.recording.arrays)
      .filter(([, array]) => array.space === "shared")
      .map(([name, array]) => new Grid(name, array));
    this.arrays.replaceChildren(...this.grids.map((grid) => grid.root));
    this.arrays.closest(".acs-panel").hidden = !this.grids.length;
  }

  // -- moving -----------------------------------------------------------------------------------
  go(step) {
    const last = this.recording.frames.length - 1;
    const next = Math.max(0, Math.min(step, last));
    if (next === this.step) return;
    this.step = next;
    this.draw();
    this.onStep(next);
  }

  jump(kind, direction) {
    this.pause();
    const { frames } = this.recording;
    const hit = (frame) => (kind === "finding" ? frame.finding : frame.barrier !== null);
    for (let step = this.step + direction; step >= 0 && step < frames.length; step += direction) {
      if (hit(frames[step])) { this.go(step); this.meet(frames[step]); return; }
    }
  }

  // Show a warp that takes part in this step.
  meet(frame) {
    const warps = frame.threads.map((thread) => Math.floor(thread / 32));
    if (!warps.length || warps.includes(this.warpNumber) || this.recording.warp !== null) return;
    this.warpNumber = warps[0];
    this.warp.value = warps[0];
    this.build();
  }

  toLine(line) {
    this.pause();
    const { frames } = this.recording;
    for (let i = 1; i <= frames.length; i++) {
      const step = (this.step + i) % frames.length;
      if (frames[step].line === line) { this.go(step); return; }
    }
  }

  toggle() {
    if (this.timer) { this.pause(); return; }
    if (this.step >= this.recording.frames.length - 1) this.go(0);
    this.timer = setInterval(() => {
      this.go(this.step + 1);
      if (this.step >= this.recording.frames.length - 1) this.pause();
    }, 450);
    this.playButton.replaceChildren(icon("pause"));
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.playButton.replaceChildren(icon("play"));
  }

  key(event) {
    if (["SELECT", "INPUT"].includes(event.target.tagName) && event.target !== this.slider) return;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowRight: () => (event.shiftKey ? this.jump("barrier", 1) : this.go(this.step + 1)),
      ArrowLeft: () => (event.shiftKey ? this.jump("barrier", -1) : this.go(this.step - 1)),
      " ": () => this.toggle(), b: () => this.jump("barrier", 1), B: () => this.jump("barrier", -1),
      f: () => this.jump("finding", 1), F: () => this.jump("finding", -1),
      Home: () => this.go(0), End: () => this.go(this.recording.frames.length - 1),
    };
    if (event.key === " " && event.target.tagName === "BUTTON") return;
    if (!actions[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    if (event.key !== " ") this.pause();
    actions[event.key]();
  }

  // -- drawing ----------------------------------------------------------------------------------
  draw() {
    const frame = this.recording.frames[this.step];
    this.history.go(this.step);
    this.slider.value = this.step;
    this.counter.textContent = `${this.step + 1} / ${this.recording.frames.length}`;
    this.root.dataset.step = this.step;
    this.drawBanner(frame);
    this.drawSource(frame);
    this.drawVariables(frame);
    for (const grid of this.grids) grid.draw(this.history.shared.get(grid.name), frame);
    this.drawStrips(frame);
    this.point(this.pinned);
  }

  drawBanner(frame) {
    const { threads } = this.history;
    const active = frame.threads.length;
    const who = frame.finding?.stops ? "the run stops here"
      : active === threads ? `all ${plural(threads, "thread")} active`
        : `${active} of ${plural(threads, "thread")} active`;
    const parts = [`line ${frame.line}`, who];
    if (frame.function && frame.function !== this.recording.kernel) parts.splice(1, 0, `in ${frame.function}()`);
    if (frame.barrier !== null) parts.push("the whole block passes this barrier");
    this.banner.replaceChildren(make("span", "", parts.join(" · ")));
    if (frame.barrier !== null) this.banner.lastChild.classList.add("acs-barrier-text");
    if (frame.finding) {
      this.banner.append(make("div", "acs-finding-text", icon("finding"),
        make("strong", "", frame.finding.kind), make("span", "", frame.finding.message)));
    }
  }

  drawSource(frame) {
    this.source.querySelectorAll(".acs-current").forEach((row) => row.classList.remove("acs-current", "acs-bad"));
    const row = this.lines[frame.line - 1];
    if (!row) return;
    row.classList.add("acs-current");
    row.classList.toggle("acs-bad", Boolean(frame.finding));
    const top = row.offsetTop, height = this.source.clientHeight;
    if (top < this.source.scrollTop + 40 || top > this.source.scrollTop + height - 60) {
      this.source.scrollTop = top - height / 2;
    }
  }

  drawVariables(frame) {
    const active = new Set(frame.threads);
    const changed = (name, thread) => frame.variables[name]?.threads.includes(thread);
    const chips = [];
    const mine = this.myThreads();
    for (const name of this.same) {
      const row = this.history.variables.get(name);
      const holder = row && mine.find((thread) => row[thread] !== null && row[thread] !== undefined
        && (active.has(thread) || frame.threads.every((t) => !mine.includes(t))));
      if (holder === undefined || row === undefined) continue;
      const chip = make("span", "acs-chip", make("b", "", name), ` = ${shown(row[holder])}`);
      chip.title = `${this.recording.variables[name].type} ${name}, the same in all threads here`;
      if (mine.some((thread) => changed(name, thread))) chip.classList.add("acs-changed");
      chips.push(chip);
    }
    this.uniform.replaceChildren(...chips);
    for (const [thread, cells] of this.cells) {
      this.rows.get(thread).classList.toggle("acs-idle", !active.has(thread));
      cells.forEach((cell, i) => {
        const value = this.history.variables.get(this.names[i])?.[thread];
        const text = shown(value);
        if (cell.textContent !== text) cell.textContent = text;
        cell.title = Array.isArray(value) ? JSON.stringify(value) : "";
      });
    }
    const present = this.names.map((name) => this.history.variables.get(name)
      ?.some((value, thread) => value !== null && this.cells.has(thread)) ?? false);
    this.names.forEach((name, i) => {
      const marked = new Set(frame.variables[name]?.threads ?? []);
      this.heads[i].hidden = !present[i];
      for (const [thread, cells] of this.cells) {
        cells[i].hidden = !present[i];
        cells[i].classList.toggle("acs-changed", marked.has(thread) && cells[i].textContent !== "");
      }
    });
  }

  drawStrips(frame) {
    const drawn = [];
    for (const space of ["global", "shared"]) {
      for (const access of frame[space]) {
        if (access.elsewhere) continue;
        const array = this.recording.arrays[access.array];
        const lanes = requests(access, array).filter((r) => Math.floor(r.thread / 32) === this.warpNumber);
        if (lanes.length) drawn.push(space === "global" ? sectorStrip(access, array, lanes) : bankStrip(access, array, lanes));
      }
    }
    const idle = make("p", "acs-quiet", `Warp ${this.warpNumber} touches no global or shared memory in this step.`);
    this.strips.replaceChildren(...(drawn.length ? drawn : [idle]));
  }

  // Shows one thread's own cells everywhere.
  point(thread) {
    const shownThread = thread ?? this.pinned;
    this.root.querySelectorAll(".acs-pointed").forEach((element) => element.classList.remove("acs-pointed"));
    for (const grid of this.grids ?? []) grid.point(null);
    if (shownThread === null || shownThread === undefined) return;
    this.rows.get(shownThread)?.classList.add("acs-pointed");
    const frame = this.recording.frames[this.step];
    for (const grid of this.grids) grid.point(shownThread, frame);
    const lane = shownThread % 32;
    this.strips.querySelectorAll("[data-lanes]").forEach((element) => {
      if (element.dataset.lanes.split(" ").includes(String(lane))) element.classList.add("acs-pointed");
    });
  }
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, text]) => {
    const option = make("option", "", text);
    option.value = value;
    return option;
  }));
  select.value = chosen;
}

// -- shared arrays ------------------------------------------------------------------------------
// Rows of cells; with text where it fits, else as small squares on a canvas.
class Grid {
  constructor(name, array) {
    this.name = name;
    this.array = array;
    this.count = Math.floor(array.size / ITEM(array.dtype));
    const shape = array.shape.length ? array.shape : [this.count];
    this.columns = shape.length === 1 ? Math.min(shape[0], 32) : shape[shape.length - 1];
    this.caption = make("figcaption", "", make("b", "", name), make("span", "", shape.map((n) => `[${n}]`).join("")),
      make("output", "acs-hover"));
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
      const column = Math.floor(event.offsetX / this.side), row = Math.floor(event.offsetY / this.side);
      const index = row * this.columns + column;
      if (column < this.columns && index < this.count) this.hover(index);
    });
    this.canvas.addEventListener("mouseleave", () => { this.caption.lastChild.textContent = ""; });
  }

  hover(index) {
    const value = this.values?.[index];
    const where = place(index, this.array.shape.length ? this.array.shape : [this.count]);
    this.caption.lastChild.textContent = `${where} = ${value === null || value === undefined ? "never written" : shown(value)}`;
  }

  draw(values, frame) {
    this.values = values;
    this.written = new Set();
    this.readNow = new Set();
    for (const access of frame.shared) {
      if (access.array !== this.name) continue;
      if (access.kind !== "read") access.index.forEach((index) => this.written.add(index));
      if (access.kind !== "write") access.index.forEach((index) => this.readNow.add(index));
    }
    if (this.small) this.paint(new Set());
    else this.cells.forEach((cell, i) => this.drawCell(cell, i, values[i]));
  }

  kind(index) {
    const read = this.readNow.has(index), written = this.written.has(index);
    return read && written ? "both" : read ? "read" : written ? "write"
      : this.values[index] === null || this.values[index] === undefined ? "empty" : "";
  }

  drawCell(cell, index, value) {
    const text = shown(value, 4);
    if (cell.textContent !== text) cell.textContent = text;
    const kind = this.kind(index);
    cell.className = `acs-cell${kind ? ` acs-${kind}` : ""}`;
    cell.title = `${this.name}${place(index, this.array.shape)}${kind === "empty" ? ", never written" : ` = ${value}`}`;
  }

  paint(pointed) {
    const scale = window.devicePixelRatio || 1, side = this.side * scale;
    this.canvas.width = this.columns * side;
    this.canvas.height = this.rows * side;
    const context = this.canvas.getContext("2d"), style = getComputedStyle(this.root);
    const colour = (name) => style.getPropertyValue(`--acs-${name}`).trim() || "#999";
    const palette = { "": colour("cell"), empty: colour("empty"), write: colour("write"), read: colour("read"), both: colour("both") };
    const gap = Math.max(1, Math.round(scale));
    for (let i = 0; i < this.count; i++) {
      const x = (i % this.columns) * side, y = Math.floor(i / this.columns) * side;
      const kind = this.kind(i);
      context.fillStyle = palette[kind];
      context.fillRect(x, y, side - gap, side - gap);
      if (kind === "empty") { // a hollow square, as the hatching of larger cells
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
    for (const access of thread === null || !frame ? [] : frame.shared) {
      if (access.array !== this.name) continue;
      const each = Math.max(1, access.index.length / access.threads.length);
      access.index.forEach((index, i) => { if (access.threads[Math.floor(i / each)] === thread) own.add(index); });
    }
    if (this.small) { if (own.size || this.hadOwn) this.paint(own); this.hadOwn = own.size > 0; return; }
    for (const index of own) this.cells[index]?.classList.add("acs-pointed");
  }
}

// -- accesses -----------------------------------------------------------------------------------
function stripHead(access, array, lanes, result, good) {
  const first = `${access.array}${place(lanes[0].index, array.shape)}`;
  const last = lanes.length > 1 ? ` … ${access.array}${place(lanes[lanes.length - 1].index, array.shape)}` : "";
  return make("div", "acs-strip-head",
    make("span", `acs-tag acs-${access.kind === "read" ? "read" : access.kind === "write" ? "write" : "both"}`, PAST[access.kind]),
    make("code", "", first + last),
    make("span", "acs-quiet", `${access.size} bytes × ${plural(lanes.length, "lane")}`),
    make("strong", good ? "acs-good" : "acs-poor", result));
}

// One box a sector, eight words wide; filled words are those that a lane asked for.
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
    box.title = `32-byte sector ${number}: ${bytes.size} bytes asked for by ${plural(who.size, "lane")}`;
    boxes.push(box);
  }
  if (found.size > MAX_SECTORS) boxes.push(make("span", "acs-quiet", ` and ${found.size - MAX_SECTORS} more`));
  const result = `${plural(found.size, "sector")}, ${used} of ${found.size * SECTOR} bytes used`;
  return make("div", "acs-strip", stripHead(access, array, lanes, result, found.size <= least),
    make("div", "acs-sectors", ...boxes));
}

// One column a bank; a column's height is how many different words are asked of that bank.
function bankStrip(access, array, lanes) {
  const { passes, least, groups } = wavefronts(lanes, access.size);
  const who = new Map();
  for (const lane of lanes) {
    for (let word = 0; word < Math.max(1, access.size / WORD); word++) {
      const bank = (Math.floor(lane.address / WORD) + word) % BANKS;
      who.set(bank, [...(who.get(bank) ?? []), lane.lane]);
    }
  }
  const heights = Array.from({ length: BANKS }, (_, bank) => Math.max(...groups.map((group) => group[bank].size)));
  const tallest = Math.max(...heights), tall = Math.min(48, 13 * tallest); // pixels
  const columns = heights.map((height, bank) => {
    const column = make("span", "acs-bank");
    column.dataset.lanes = (who.get(bank) ?? []).join(" ");
    const bar = make("i", height ? `acs-${access.kind === "read" ? "read" : "write"}` : "");
    bar.style.height = `${height && Math.max(6, Math.round((tall * height) / tallest))}px`;
    if (height > 1) bar.append(make("b", "", String(height)));
    column.append(bar, make("small", "", bank % 4 === 0 ? String(bank) : ""));
    column.title = height ? `bank ${bank}: ${plural(height, "different word")} for ${plural(new Set(who.get(bank)).size, "lane")}` : `bank ${bank}: not used`;
    return column;
  });
  const result = plural(passes, "wavefront") + (passes > least ? `, ${least} would do` : "");
  return make("div", "acs-strip", stripHead(access, array, lanes, result, passes <= least),
    withHeight(make("div", "acs-banks", ...columns), tall + 14));
}

function withHeight(element, pixels) {
  element.style.height = `${pixels}px`;
  return element;
}

// -- entry points -------------------------------------------------------------------------------
export async function mount(element, packed, options = {}) {
  const stepper = new Stepper(await unpack(packed), options);
  element.replaceChildren(stepper.root);
  stepper.draw(); // heights are known only now that it is in the page
  return stepper;
}

async function render({ model, el }) {
  const stepper = await mount(el, model.get("trace"), {
    step: model.get("step"),
    onStep: (step) => { model.set("step", step); model.save_changes(); },
  });
  const follow = () => stepper.go(model.get("step"));
  model.on("change:step", follow);
  return () => { model.off("change:step", follow); stepper.destroy(); };
}

export default { render };
