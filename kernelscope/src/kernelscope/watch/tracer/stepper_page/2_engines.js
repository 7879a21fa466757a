// What works beside the threads: mbarriers, tiles of bulk copies and products of warp groups; and
// the groups' turns, as a timeline over the steps.

const STEP_PIXELS = 2; // a step of the timeline has at least so many
const OPEN = "products open";
const CLASS_OF = {
  "waits at an mbarrier": "wait-mbarrier",
  "waits at a barrier": "wait-barrier",
  "orders products": "orders",
  "orders a copy": "copies",
  exponentials: "exponentials",
  "other work": "other",
  [OPEN]: "open",
  "in flight": "flight",
  landed: "landed",
  read: "used",
  free: "free",
};
const MEANING = {
  "in flight": "copy in flight",
  landed: "landed",
  read: "being read",
  free: "free again",
};

// The stretches of steps in which something stays the same: {first, last, kind, detail} of each.
class Stretches {
  constructor(name) {
    this.name = name;
    this.list = [];
  }

  turn(step, kind, detail = "") {
    this.end(step);
    this.list.push({ first: step, last: step, kind, detail });
  }

  end(step) {
    const { list } = this;
    if (list.length) list[list.length - 1].last = step - 1;
  }

  at(step) {
    return this.list.findLast((one) => one.first <= step && step <= one.last);
  }
}

class EnginesView {
  // go: called with a step that was clicked
  constructor(recording, go) {
    this.recording = recording;
    this.steps = recording.frames.length;
    this.collect();
    this.present = this.work.length > 0;
    this.lanes = make("div", "acs-lanes-inner");
    this.lanes.style.minWidth = `${STEP_PIXELS * this.steps}px`;
    this.lanes.addEventListener("click", (event) => {
      const box = this.lanes.getBoundingClientRect();
      go(Math.floor((this.steps * (event.clientX - box.left)) / box.width));
    });
    this.cursor = make("div", "acs-cursor");
    this.drawLanes();
    this.scroll = make("div", "acs-lanes", this.lanes);
    this.table = make("table", "acs-table acs-mbarriers");
    this.products = new GroupProductView(recording);
    const tables = make("div", "acs-scroll", this.table);
    tables.hidden = !this.mbarriers.length;
    this.root = make(
      "div",
      "",
      this.legend(),
      this.scroll,
      make("div", "acs-engines-below", tables, this.products.root),
    );
  }

  collect() {
    const { recording } = this;
    const named = (list) => (list ?? []).map((one) => new Stretches(one.name));
    this.work = named(recording.groups);
    this.open = named(recording.groups);
    this.tiles = named(recording.destinations);
    this.mbarriers = named(recording.mbarriers);
    const phase = this.mbarriers.map(() => 0);
    for (const { step, engines } of recording.frames) {
      for (const [i, kind, detail] of engines?.work ?? []) this.work[i].turn(step, kind, detail);
      for (const [i, count] of engines?.open ?? [])
        this.open[i].turn(step, count ? OPEN : "", count);
      for (const [i, state] of engines?.tiles ?? []) this.tiles[i].turn(step, state);
      for (const [i, ...values] of engines?.mbarriers ?? []) {
        const before = this.mbarriers[i].list.at(-1)?.detail;
        if (before && before.parity !== values[3]) phase[i] += 1;
        const [arrivals, expected, bytes, parity] = values;
        const detail = { arrivals, expected, bytes, parity, phase: phase[i] };
        this.mbarriers[i].turn(step, "", detail);
      }
    }
    for (const one of [...this.work, ...this.open, ...this.tiles, ...this.mbarriers])
      one.end(this.steps);
  }

  drawLanes() {
    this.heads = new Map();
    const places = this.recording.destinations ?? [];
    const order = places.map((_, i) => i).sort((a, b) => places[a].start - places[b].start);
    const row = (...parts) => {
      const head = make("div", "acs-lane-head");
      this.heads.set(parts[0], head);
      const bands = parts.map((part) => this.band(part));
      return make("div", "acs-lane-row", head, ...bands);
    };
    const used = (part) => part.list.some((one) => one.kind);
    const groups = this.work.map((one, i) => {
      const open = this.open[i];
      return used(open) ? row(one, open) : row(one);
    });
    this.lanes.replaceChildren(this.cursor, ...groups, ...order.map((i) => row(this.tiles[i])));
  }

  band(part) {
    const band = make("div", `acs-lane${this.open.includes(part) ? " acs-lane-open" : ""}`);
    for (const { first, last, kind, detail } of part.list) {
      if (!CLASS_OF[kind]) continue;
      const piece = make("i", `acs-do-${CLASS_OF[kind]}`);
      piece.style.left = `${(100 * first) / this.steps}%`;
      piece.style.width = `${(100 * (last + 1 - first)) / this.steps}%`;
      const steps = first === last ? `step ${first}` : `steps ${first} to ${last}`;
      const what = kind.startsWith("waits") ? waitText({ kind, detail }) : (MEANING[kind] ?? kind);
      piece.title = `${part.name}: ${what}, ${steps}`;
      band.append(piece);
    }
    return band;
  }

  legend() {
    const parts = [...this.work, ...this.open, ...this.tiles];
    const shownKinds = new Set(parts.flatMap((part) => part.list.map((one) => one.kind)));
    const keys = Object.keys(CLASS_OF).filter((kind) => shownKinds.has(kind));
    const key = (kind) =>
      make(
        "span",
        "acs-key",
        make("i", `acs-swatch acs-do-${CLASS_OF[kind]}`),
        kind in MEANING ? `tile: ${MEANING[kind]}` : kind,
      );
    return make("div", "acs-legend", ...keys.map(key));
  }

  draw(step) {
    this.cursor.style.left = `${(100 * step) / this.steps}%`;
    this.cursor.style.width = `${100 / this.steps}%`;
    for (const [part, head] of this.heads) head.replaceChildren(...this.now(part, step));
    this.drawMbarriers(step);
    this.products.draw(this.recording.frames[step]);
    this.follow(step);
  }

  // A row's name and its state at a step.
  now(part, step) {
    const at = part.at(step);
    let text = at ? (MEANING[at.kind] ?? at.kind) : "";
    const group = this.work.indexOf(part);
    if (group >= 0) {
      text = text || "does not run in this step";
      const open = this.open[group].at(step)?.detail;
      if (at?.detail) text = waitText(at);
      if (open) text += ` · ${plural(open, "product")} open`;
    } else text = text || "no copy yet";
    return [make("b", "", part.name), make("span", "", text)];
  }

  drawMbarriers(step) {
    const heads = ["mbarrier", "phase", "parity", "arrivals left", "bytes left", "waiting"];
    const rows = this.mbarriers.map((part) => {
      const at = part.at(step);
      const name = make("th", "", part.name);
      if (!at) {
        const none = make("td", "", "not initialised");
        none.colSpan = heads.length - 1;
        return make("tr", "acs-idle", name, none);
      }
      const { arrivals, expected, bytes, parity, phase } = at.detail;
      const values = [phase, parity, `${arrivals} of ${expected}`, bytes.toLocaleString("en")];
      const cells = [...values, this.waiting(part.name, step)].map((text, i) =>
        make("td", i < 4 && at.first === step ? "acs-changed" : "", String(text)),
      );
      return make("tr", "", name, ...cells);
    });
    const head = make("tr", "", ...heads.map((text) => make("th", "", text)));
    this.table.replaceChildren(make("thead", "", head), make("tbody", "", ...rows));
  }

  // The groups that wait at an mbarrier, by the parity of the phase whose end they wait for.
  waiting(name, step) {
    const found = new Map();
    for (const part of this.work) {
      const at = part.at(step);
      const [where, parity] = (at?.detail ?? "").split(", parity ");
      if (at?.kind !== "waits at an mbarrier" || where !== name) continue;
      const [what, number] = part.name.split(" ");
      found.set(parity, [...(found.get(parity) ?? []), number]);
      this.what = what;
    }
    const texts = [...found].map(
      ([parity, numbers]) =>
        `${this.what}${numbers.length > 1 ? "s" : ""} ${numbers.join(", ")} for parity ${parity}`,
    );
    return texts.join("; ");
  }

  // Keep the present step in sight where the timeline is wider than its box.
  follow(step) {
    const box = this.scroll,
      x = (this.lanes.offsetWidth * step) / this.steps;
    if (x < box.scrollLeft + 20 || x > box.scrollLeft + box.clientWidth - 40)
      box.scrollLeft = x - box.clientWidth / 3;
  }
}

const waitText = ({ kind, detail }) =>
  `waits at ${kind === "waits at a barrier" ? "barrier " : ""}${detail}`;

// The products of warp groups that a step orders: the operands' tiles, drawn to scale.
class GroupProductView {
  constructor(recording) {
    this.recording = recording;
    this.root = make("div", "acs-group-products");
    this.root.hidden = !recording.frames.some((frame) => frame.engines?.products);
  }

  draw(frame) {
    const alike = new Map();
    for (const product of frame.engines?.products ?? []) {
      const key = JSON.stringify([product.group, product.shape, product.A, product.B]);
      alike.set(key, [...(alike.get(key) ?? []), product]);
    }
    const none = make("p", "acs-quiet", "No product is ordered in this step.");
    const figures = [...alike.values()].map((same) => this.figure(same));
    this.root.replaceChildren(...(figures.length ? figures : [none]));
  }

  figure(same) {
    const { group, shape, kinds, A, B } = same[0];
    const [m, n, k] = shape,
      [d, a, b] = kinds;
    const name = this.recording.groups[group].name;
    const head = make(
      "div",
      "acs-product-text",
      make("b", "", `${name} orders ${plural(same.length, "product")}`),
      make("span", "acs-code", `wgmma m${m}n${n}k${k}`),
      make("span", "acs-quiet", "D = A · B, or D + A · B; done when the group has waited for it"),
    );
    return make(
      "div",
      "",
      head,
      make(
        "div",
        "acs-product-grid",
        box("B", k, n, b, B),
        box("A", m, k, a, A),
        box("D", m, n, d, "registers"),
      ),
    );
  }
}

// A matrix at one pixel an element.
function box(name, rows, columns, kind, where) {
  const shape = make("div", `acs-box acs-box-${name}`);
  shape.style.width = `${columns}px`;
  shape.style.height = `${rows}px`;
  const caption = make(
    "figcaption",
    "",
    make("b", "", name),
    make("span", "acs-quiet", ` ${rows} × ${columns} ${kind} `),
    make("span", "acs-code", where),
  );
  return make("figure", `acs-matrix acs-matrix-${name}`, caption, shape);
}
