// A matrix product of the tensor cores: which lane holds which element of A, B and D.

// One matrix as a table of cells. Without `values` a cell shows the lane that holds it.
class MatrixView {
  constructor(name, fragment, onLane) {
    this.name = name;
    this.fragment = fragment;
    const [rows, columns] = fragment.shape;
    this.holders = Array.from({ length: rows * columns }, () => []);
    fragment.row.forEach((places, lane) =>
      places.forEach((row, i) => {
        this.holders[row * columns + fragment.column[lane][i]].push({ lane, i });
      }),
    );
    const body = make("div", "acs-matrix-cells");
    body.style.setProperty("--columns", columns);
    this.cells = this.holders.map((holders) => {
      const cell = make("span", `acs-matrix-cell acs-group-${(holders[0].lane >> 2) % 2}`);
      cell.dataset.lanes = [...new Set(holders.map(({ lane }) => lane))].join(" ");
      cell.addEventListener("mouseenter", () => onLane(holders[0].lane));
      cell.addEventListener("mouseleave", () => onLane(null));
      return cell;
    });
    body.append(...this.cells);
    this.root = make(
      "figure",
      `acs-matrix acs-matrix-${name}`,
      make(
        "figcaption",
        "",
        make("b", "", name),
        make("span", "acs-quiet", ` ${rows} × ${columns} ${fragment.kind}`),
      ),
      body,
    );
  }

  draw(values, showValues, before) {
    const columns = this.fragment.shape[1];
    this.cells.forEach((cell, at) => {
      const { lane, i } = this.holders[at][0];
      const value = values[lane][i];
      const text = showValues ? shown(value, 2) : String(lane);
      if (cell.textContent !== text) cell.textContent = text;
      const where = `${this.name}[${Math.floor(at / columns)}][${at % columns}] = ${shown(value)}`;
      const was = before ? ` (C: ${shown(before[lane][i])})` : "";
      const register = `${this.name.toLowerCase()}${this.fragment.register[i]}`;
      cell.title = `${where}${was}: lane ${lane}, register ${register}`;
    });
  }
}

// A to the left of D and B above it, so that a row and a column meet in their sum.
class ProductView {
  constructor(recording, onLane) {
    this.recording = recording;
    this.onLane = onLane;
    this.showValues = false;
    this.root = make("div", "acs-fragments");
    this.text = make("div", "acs-product-text");
    const choice = make("input");
    choice.type = "checkbox";
    choice.addEventListener("change", () => {
      this.showValues = choice.checked;
      this.redraw();
    });
    this.choice = make("label", "acs-chooser", choice, "values instead of lanes");
  }

  // Draws the products of one warp; returns whether there are any. The last one is shown.
  draw(frame, warp) {
    const mine = frame.products.filter((product) => product.warp === warp);
    this.product = mine[mine.length - 1];
    if (!this.product) return false;
    const { opcode } = this.product;
    if (opcode !== this.opcode) this.build(opcode);
    this.text.replaceChildren(
      make("span", "acs-code", opcode),
      make(
        "span",
        "acs-quiet",
        mine.length > 1 ? `the last of ${mine.length} products of this step` : "D = A · B + C",
      ),
      this.choice,
    );
    this.redraw();
    return true;
  }

  build(opcode) {
    this.opcode = opcode;
    const fragments = this.recording.fragments[opcode];
    this.views = ["A", "B", "D"].map((name) => new MatrixView(name, fragments[name], this.onLane));
    const [a, b, d] = this.views.map((view) => view.root);
    this.root.replaceChildren(this.text, make("div", "acs-product-grid", b, a, d));
  }

  redraw() {
    if (!this.product) return;
    const { values } = this.product;
    // C and D have the same layout unless their types differ
    const same = values.C[0].length === values.D[0].length;
    for (const view of this.views) {
      const before = view.name === "D" && same ? values.C : null;
      view.draw(values[view.name], this.showValues, before);
    }
    this.root.classList.toggle("acs-with-values", this.showValues);
  }
}
