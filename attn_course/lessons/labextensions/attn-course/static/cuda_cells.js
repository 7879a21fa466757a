// A JupyterLab extension without a build: code cells that begin with %%cuda are coloured as C++.
// JupyterLab loads this file, and asks the object under the extension's name for "./extension".

const CUDA = "text/x-c++src",
  PYTHON = "text/x-ipython";

// Keep a cell's language in step with its text; the notebook sets it to Python again when the
// kernel has told its language.
function follow(cell) {
  const update = () => {
    const isCuda = cell.sharedModel.getSource().startsWith("%%cuda");
    if (isCuda) cell.mimeType = CUDA;
    else if (cell.mimeType === CUDA) cell.mimeType = PYTHON;
  };
  cell.sharedModel.changed.connect(update);
  cell.mimeTypeChanged.connect(update);
  update();
}

const plugin = {
  id: "attn-course:cuda-cells",
  autoStart: true,
  activate: (app) => {
    app.docRegistry.addWidgetExtension("Notebook", {
      createNew: (panel, context) => {
        const known = new WeakSet();
        const look = () => {
          for (const cell of context.model.cells) {
            if (cell.type !== "code" || known.has(cell)) continue;
            known.add(cell);
            follow(cell);
          }
        };
        context.model.cells.changed.connect(look);
        context.ready.then(look);
      },
    });
  },
};

(window._JUPYTERLAB ??= {})["attn-course"] = {
  init() {},
  get: async () => () => ({ __esModule: true, default: plugin }),
};
