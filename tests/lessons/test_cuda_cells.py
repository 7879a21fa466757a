"""Cells of CUDA C in JupyterLab, coloured by the course's extension."""

import pytest
from chromium_harness import BROWSER, DRIVER, chromium
from lab_harness import jupyterlab, write_notebook

from attn_course.cli.course.lessons import lab_command

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.webdriver.support.ui import WebDriverWait  # noqa: E402

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium with chromedriver here"),
    # The browser's own log sockets are closed by the garbage collector, after the test.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
CUDA_CELLS = [
    "%%cuda add_ten\nvoid f(float* x) { // a comment of C\n}",
    "before = 1 // 2",
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a notebook in JupyterLab; `?reset` forgets what was open before."""
    folder = tmp_path_factory.mktemp("lab")
    write_notebook(folder / "cuda.ipynb", CUDA_CELLS)
    extensions = [flag for flag in lab_command(folder, "cuda") if "labextensions" in flag]
    with jupyterlab(folder, "--LabApp.expose_app_in_browser=True", *extensions) as address:
        yield f"{address}/lab/tree/cuda.ipynb?reset"


# In one script, since the notebook may draw its cells again at any time.
COMMENTS = """
const isComment = (span) => /^[/][/]./.test(span.textContent);
return [...document.querySelectorAll(".jp-Notebook .jp-CodeCell")].map((cell) =>
    [...cell.querySelectorAll(".cm-line span")].some(isComment))"""


def comments(browser):
    """For each cell of the open notebook, whether its text is coloured as a comment anywhere."""
    return browser.execute_script(COMMENTS)


@pytest.mark.turns(41)
def test_cuda_cells_are_coloured_as_cpp(browser, lab):
    browser.get(lab)
    WebDriverWait(browser, 60).until(lambda b: comments(b) == [True, False])
    plugins = "return jupyterapp.hasPlugin('@jupyterlab/apputils-extension:announcements')"
    assert not browser.execute_script(plugins)  # nobody is asked about Jupyter's news
    names = "return jupyterapp.listPlugins().filter((name) => name.includes('nbgrader'))"
    assert not browser.execute_script(names)  # a learner sees no tools for teachers
    cells = "jupyterapp.shell.currentWidget.content.model.cells"
    change = f"{cells}.get(arguments[0]).sharedModel.setSource(arguments[1])"
    browser.execute_script(change, 0, "before = 1 // 2")
    browser.execute_script(change, 1, "%%cuda two\nint i; // a comment of C")
    WebDriverWait(browser, 20).until(lambda b: comments(b) == [False, True])
