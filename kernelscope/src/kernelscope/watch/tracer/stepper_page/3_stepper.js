// The stepper: walks through a trace. No library and no server: the same code runs as an anywidget
// and in a page of its own, after the other files of this folder.

class Stepper {
  // recording, step: what it opens with; at a finding it says so.
  constructor(recordings, { step = 0, recording = 0, onMove = () => {} } = {}) {
    this.recordings = recordings;
    this.onMove = onMove; // (step, number of the recording)
    this.root = make("div", "acs");
    this.root.tabIndex = 0;
    this.root.setAttribute("role", "group");
    this.root.setAttribute("aria-label", "Kernel stepper");
    this.root.dataset.lmSuppressShortcuts = "true"; // arrow keys are ours, not JupyterLab's
    this.pinned = null;
    this.buildFrame();
    this.choose(recording, step);
    const opened = this.recording.frames[this.step];
    if (opened?.finding) {
      this.opened = opened;
      this.meet(opened);
      this.drawBanner(opened);
    }
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
    this.block = this.chooser("Block", () => this.turnTo(Number(this.block.value), 0));
    this.warp = this.chooser("Warp", () => {
      this.warpNumber = Number(this.warp.value);
      this.build();
    });
    this.playButton = button("play", "Play or pause (space)", () => this.toggle());
    this.findingButton = button("finding", "Next finding (f)", () => this.jump("finding", 1));
    this.findingButton.append(make("span", "", "finding"));
    this.barrierButton = button("barrier", "Next barrier (b, or shift + right arrow)", () =>
      this.jump("barrier", 1),
    );
    this.barrierButton.append(make("span", "", "barrier"));
    this.slider = make("input", "acs-slider");
    this.slider.type = "range";
    this.slider.min = 0;
    this.slider.setAttribute("aria-label", "Step");
    this.slider.addEventListener("input", () => {
      this.pause();
      this.go(Number(this.slider.value));
    });
    this.marks = make("div", "acs-marks");
    this.counter = make("output", "acs-counter");
    const controls = make(
      "div",
      "acs-controls",
      button("first", "First step (Home)", () => {
        this.pause();
        this.go(0);
      }),
      button("back", "Step back (left arrow)", () => {
        this.pause();
        this.go(this.step - 1);
      }),
      this.playButton,
      button("step", "Step (right arrow)", () => {
        this.pause();
        this.go(this.step + 1);
      }),
      this.barrierButton,
      this.findingButton,
      make("div", "acs-track", this.slider, this.marks),
      this.counter,
    );
    this.banner = make("div", "acs-banner");
    this.banner.setAttribute("role", "status");
    this.source = make("div", "acs-source");
    this.uniform = make("div", "acs-uniform");
    this.table = make("table", "acs-table");
    this.arrays = make("div", "acs-arrays");
    this.globals = make("div", "acs-arrays");
    this.strips = make("div", "acs-strips");
    this.products = make("div");
    this.engines = make("div");
    this.note = make("div", "acs-note");
    const panel = (name, title, ...content) =>
      make("section", `acs-panel acs-${name}`, make("h4", "", title), ...content);
    this.root.append(
      make(
        "header",
        "acs-header",
        this.title,
        make("div", "acs-choosers", this.block.parentNode, this.warp.parentNode),
      ),
      controls,
      this.banner,
      make(
        "div",
        "acs-main",
        panel("engines", "Warps, tiles and mbarriers over the steps", this.engines),
        make(
          "div",
          "acs-left",
          panel("listing", "Source", this.source),
          panel("access", "Memory access of this step", this.strips),
        ),
        make(
          "div",
          "acs-right",
          panel("variables", "Variables", this.uniform, make("div", "acs-scroll", this.table)),
          panel("shared", "Shared memory", this.legend(), this.arrays),
          panel("global", "Global memory, as far as this block has used it", this.globals),
        ),
        panel("product", "Matrix product of this step", this.products),
      ),
      this.note,
    );
  }

  chooser(label, action) {
    const select = make("select");
    select.addEventListener("change", action);
    make("label", "acs-chooser", label, select);
    return select;
  }

  legend() {
    const key = (kind, text) => make("span", "acs-key", make("i", `acs-swatch acs-${kind}`), text);
    return make(
      "div",
      "acs-legend",
      key("write", "written now"),
      key("read", "read now"),
      key("both", "both"),
      key("empty", "never written (global memory: not used by this block)"),
      key("never", "read, but never written"),
    );
  }

  turnTo(number, step) {
    if (number === this.number) return;
    this.choose(number, step);
    this.onMove(this.step, number);
  }

  choose(number, step) {
    this.pause();
    this.number = number;
    this.recording = this.recordings[number];
    this.history = new History(this.recording);
    this.pinned = null;
    const { recording } = this;
    fill(
      this.block,
      this.recordings.map((r, i) => [i, `${r.kernel} (${r.block})`]),
      number,
    );
    const count = Math.ceil(this.history.threads / 32);
    const warps = recording.warp === null ? [...Array(count).keys()] : [recording.warp];
    this.warpNumber = warps[0];
    fill(
      this.warp,
      warps.map((w) => [w, `${w}`]),
      this.warpNumber,
    );
    this.warp.disabled = warps.length < 2;
    this.block.disabled = this.recordings.length < 2;
    this.title.replaceChildren(
      make("strong", "", recording.kernel),
      make(
        "span",
        "",
        `grid (${recording.grid.join(", ")}) · block (${recording.block_shape.join(", ")})` +
          ` · ${recording.source_name.split("/").pop()}` +
          (recording.kept ? ` · variables of ${plural(recording.kept.length, "thread")}` : ""),
      ),
    );
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
    this.marks.replaceChildren(
      ...recording.frames
        .filter((frame) => frame.finding || frame.barrier !== null)
        .map((frame) => {
          const mark = make("i", frame.finding ? "acs-mark-finding" : "acs-mark-barrier");
          mark.style.left = `${last ? (100 * frame.step) / last : 0}%`;
          return mark;
        }),
    );
    this.note.textContent = recording.truncated;
    this.findSame();
    this.buildSource();
    this.buildTable();
    this.buildArrays();
    this.productView = new ProductView(recording, (lane) =>
      this.point(lane === null ? null : 32 * this.warpNumber + lane),
    );
    this.products.replaceChildren(this.productView.root);
    this.enginesView = new EnginesView(recording, (step) => {
      this.pause();
      this.go(step);
    });
    this.engines.replaceChildren(this.enginesView.root);
    this.engines.closest(".acs-panel").hidden = !this.enginesView.present;
    if (recording.frames.length) this.draw();
    else this.banner.textContent = "This block made no step.";
  }

  myThreads() {
    const first = 32 * this.warpNumber;
    const count = Math.min(32, this.history.threads - first);
    const all = Array.from({ length: count }, (_, i) => first + i);
    const { kept } = this.recording;
    return kept ? all.filter((thread) => kept.includes(thread)) : all;
  }

  // Variables on which all threads of the warp agree at every step are listed once, not 32 times;
  // those that a thread assigns more than once are "changing".
  findSame() {
    const mine = new Set(this.myThreads());
    this.same = new Set(Object.keys(this.recording.variables));
    this.changing = new Set();
    const history = new History(this.recording),
      assigned = new Map();
    for (const frame of this.recording.frames) {
      history.go(frame.step);
      const active = frame.threads.filter((thread) => mine.has(thread));
      for (const name of Object.keys(frame.variables)) {
        if (!assigned.has(name)) assigned.set(name, new Uint8Array(history.threads));
        const before = assigned.get(name);
        frame.variables[name].threads.forEach((thread, i) => {
          if (frame.variables[name].values[i] === null) return; // the thread has left its scope
          if (before[thread]) this.changing.add(name);
          before[thread] = 1;
        });
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
      const row = make(
        "div",
        "acs-line",
        make("span", "acs-number", String(i + 1)),
        make("span", "acs-code", ...highlight(text, this.recording.source_name), "\n"),
      );
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
    const all = Object.keys(this.recording.variables).filter((name) => !this.same.has(name));
    const [moving, fixed] = [true, false].map((wanted) =>
      all.filter((name) => this.changing.has(name) === wanted),
    );
    const names = [...moving, ...fixed]; // a column that never changes may be out of sight
    const [x, y, z] = this.recording.block_shape;
    const axes = [x, y, z].reduce((last, extent, i) => (extent > 1 ? i : last), 0) + 1;
    const label = (thread) =>
      [thread % x, Math.floor(thread / x) % y, Math.floor(thread / (x * y))]
        .slice(0, axes)
        .join(", ");
    this.cells = new Map();
    this.rows = new Map();
    const head = make(
      "tr",
      "",
      make("th", "", axes > 1 ? `thread (${"xyz".slice(0, axes).split("").join(", ")})` : "thread"),
    );
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
      this.cells.set(
        thread,
        names.map(() => {
          const cell = make("td");
          row.append(cell);
          return cell;
        }),
      );
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
    this.grids = drawnArrays(this.recording).map(([name, array]) => new Grid(name, array));
    for (const [space, box] of [
      ["shared", this.arrays],
      ["global", this.globals],
    ]) {
      const own = this.grids.filter((grid) => grid.array.space === space);
      box.replaceChildren(...own.map((grid) => grid.root));
      box.closest(".acs-panel").hidden = !own.length;
    }
  }

  // -- moving -----------------------------------------------------------------------------------
  go(step) {
    const last = this.recording.frames.length - 1;
    const next = Math.max(0, Math.min(step, last));
    if (next === this.step) return;
    this.step = next;
    this.draw();
    this.onMove(next, this.number);
  }

  jump(kind, direction) {
    this.pause();
    const { frames } = this.recording;
    const hit = (frame) => (kind === "finding" ? frame.finding : frame.barrier !== null);
    for (let step = this.step + direction; step >= 0 && step < frames.length; step += direction) {
      if (hit(frames[step])) {
        this.go(step);
        this.meet(frames[step]);
        return;
      }
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
      if (frames[step].line === line) {
        this.go(step);
        return;
      }
    }
  }

  toggle() {
    if (this.timer) {
      this.pause();
      return;
    }
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
      " ": () => this.toggle(),
      b: () => this.jump("barrier", 1),
      B: () => this.jump("barrier", -1),
      f: () => this.jump("finding", 1),
      F: () => this.jump("finding", -1),
      Home: () => this.go(0),
      End: () => this.go(this.recording.frames.length - 1),
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
    this.counter.textContent = `step ${this.step} / ${this.recording.frames.length - 1}`;
    this.root.dataset.step = this.step;
    this.drawBanner(frame);
    this.drawSource(frame);
    this.drawVariables(frame);
    for (const grid of this.grids) grid.draw(this.history.elements.get(grid.name), frame);
    this.drawStrips(frame);
    const product = this.productView.draw(frame, this.warpNumber);
    this.products.closest(".acs-panel").hidden = !product;
    if (this.enginesView.present) this.enginesView.draw(this.step);
    this.point(this.pinned);
  }

  drawBanner(frame) {
    const { threads } = this.history;
    const active = frame.threads.length;
    const who = frame.finding?.stops
      ? "the run stops here"
      : active === threads
        ? `all ${plural(threads, "thread")} active`
        : `${active} of ${plural(threads, "thread")} active`;
    const parts = [`line ${frame.line}`, who];
    if (frame.function && frame.function !== this.recording.kernel)
      parts.splice(1, 0, `in ${frame.function}()${called(frame)}`);
    if (frame.barrier !== null) parts.push("the whole block passes this barrier");
    if (frame === this.opened) parts.push("opened at the finding, go back to see what led to it");
    this.banner.replaceChildren(make("span", "", parts.join(" · ")));
    if (frame.barrier !== null) this.banner.lastChild.classList.add("acs-barrier-text");
    if (frame.finding) {
      this.banner.append(
        make(
          "div",
          "acs-finding-text",
          icon("finding"),
          make("strong", "", frame.finding.kind),
          make("span", "", frame.finding.message),
        ),
      );
    }
  }

  drawSource(frame) {
    this.source
      .querySelectorAll(".acs-current")
      .forEach((row) => row.classList.remove("acs-current", "acs-bad"));
    const row = this.lines[frame.line - 1];
    if (!row) return;
    row.classList.add("acs-current");
    row.classList.toggle("acs-bad", Boolean(frame.finding));
    const top = row.offsetTop,
      height = this.source.clientHeight;
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
      const holder =
        row &&
        mine.find(
          (thread) =>
            row[thread] !== null &&
            row[thread] !== undefined &&
            (active.has(thread) || frame.threads.every((t) => !mine.includes(t))),
        );
      if (holder === undefined || row === undefined) continue;
      const chip = make("span", "acs-chip", make("b", "", name), ` = ${shown(row[holder])}`);
      chip.title = `${this.recording.variables[name].type} ${name}, the same in all threads here`;
      if (mine.some((thread) => changed(name, thread))) chip.classList.add("acs-changed");
      chips.push(chip);
    }
    for (const [thread, cells] of this.cells) {
      this.rows.get(thread).classList.toggle("acs-idle", !active.has(thread));
      cells.forEach((cell, i) => {
        const value = this.history.variables.get(this.names[i])?.[thread];
        const text = shown(value);
        if (cell.textContent !== text) cell.textContent = text;
        cell.title = Array.isArray(value) ? JSON.stringify(value) : "";
      });
    }
    const present = this.names.map(
      (name) =>
        this.history.variables
          .get(name)
          ?.some((value, thread) => value !== null && this.cells.has(thread)) ?? false,
    );
    this.names.forEach((name, i) => {
      const marked = new Set(frame.variables[name]?.threads ?? []);
      this.heads[i].hidden = !present[i];
      for (const [thread, cells] of this.cells) {
        cells[i].hidden = !present[i];
        cells[i].classList.toggle("acs-changed", marked.has(thread) && cells[i].textContent !== "");
      }
    });
    const why = mine.length
      ? "None has a value yet; each appears when it is set."
      : "No thread of this warp is recorded.";
    const none = make("span", "acs-quiet", why);
    const empty = !chips.length && !present.some(Boolean);
    this.uniform.replaceChildren(...(empty ? [none] : chips));
    this.table.parentNode.hidden = !present.some(Boolean);
    this.reveal(this.table.querySelector("td.acs-changed:not([hidden])"));
  }

  // Scroll the table to a cell that has changed, where it is out of sight: below the names of the
  // variables and beside those of the threads, which stay.
  reveal(cell) {
    if (!cell) return;
    const box = this.table.parentNode;
    const view = box.getBoundingClientRect();
    const corner = this.table.querySelector("th").getBoundingClientRect();
    const { left, right, top, bottom } = cell.getBoundingClientRect();
    const free = {
      left: view.left + corner.width,
      right: view.left + box.clientWidth,
      top: view.top + corner.height,
      bottom: view.top + box.clientHeight,
    };
    if (left < free.left) box.scrollLeft -= free.left - left;
    else if (right > free.right)
      box.scrollLeft += Math.min(right - free.right, left - free.left);
    if (top < free.top) box.scrollTop -= free.top - top;
    else if (bottom > free.bottom) box.scrollTop += bottom - free.bottom;
  }

  drawStrips(frame) {
    const drawn = [];
    for (const space of ["global", "shared"]) {
      for (const access of frame[space]) {
        if (access.elsewhere) continue;
        const array = this.recording.arrays[access.array];
        const lanes = requests(access, array).filter(
          (r) => Math.floor(r.thread / 32) === this.warpNumber,
        );
        if (lanes.length)
          drawn.push(
            space === "global"
              ? sectorStrip(access, array, lanes)
              : bankStrip(access, array, lanes),
          );
      }
    }
    const idle = make(
      "p",
      "acs-quiet",
      `Warp ${this.warpNumber} touches no global or shared memory in this step.`,
    );
    this.strips.replaceChildren(...(drawn.length ? drawn : [idle]));
  }

  // Shows one thread's own cells everywhere.
  point(thread) {
    const shownThread = thread ?? this.pinned;
    this.root
      .querySelectorAll(".acs-pointed")
      .forEach((element) => element.classList.remove("acs-pointed"));
    for (const grid of this.grids ?? []) grid.point(null);
    if (shownThread === null || shownThread === undefined) return;
    this.rows.get(shownThread)?.classList.add("acs-pointed");
    const frame = this.recording.frames[this.step];
    for (const grid of this.grids) grid.point(shownThread, frame);
    const lane = shownThread % 32;
    for (const box of [this.strips, this.products]) {
      box.querySelectorAll("[data-lanes]").forEach((element) => {
        if (element.dataset.lanes.split(" ").includes(String(lane)))
          element.classList.add("acs-pointed");
      });
    }
  }
}

function called(frame) {
  const lines = (frame.callers ?? []).filter((line) => line && line !== frame.line);
  return lines.length ? `, called from line ${lines.reverse().join(", from line ")}` : "";
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
    recording: model.get("recording"),
    onMove: (step, number) => {
      model.set("recording", number);
      model.set("step", step);
      model.save_changes();
    },
  });
  const follow = () => stepper.go(model.get("step"));
  const turn = () => stepper.turnTo(model.get("recording"), model.get("step"));
  model.on("change:step", follow);
  model.on("change:recording", turn);
  return () => {
    model.off("change:step", follow);
    model.off("change:recording", turn);
    stepper.destroy();
  };
}

export default { render };
