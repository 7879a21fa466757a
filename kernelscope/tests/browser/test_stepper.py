"""The stepper in Chromium: a page from disk, and the widget in JupyterLab."""

import os
import time
from pathlib import Path

import kernelscope
import nbformat
import numpy as np
import pytest
from chromium_harness import BROWSER, DRIVER, chromium
from kernelscope import RawModule, Tracer, observe
from kernelscope.watch.counters.traffic import Lanes, count_wavefronts
from lab_harness import jupyterlab, write_notebook

pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
from selenium.common.exceptions import WebDriverException  # noqa: E402
from selenium.webdriver.common.by import By  # noqa: E402
from selenium.webdriver.common.keys import Keys  # noqa: E402
from selenium.webdriver.support.ui import Select, WebDriverWait  # noqa: E402

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(not (BROWSER and DRIVER), reason="no Chromium with chromedriver here"),
    # The browser's own log sockets are closed by the garbage collector, after the test.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
KERNELS = Path(__file__).resolve().parents[1] / "kernels"
SHOTS = os.environ.get("KERNELSCOPE_SCREENSHOTS")  # a folder: keep what the tests saw


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


def trace_scores(block, keys=4):
    """4 queries of length 4 against keys whose rows are 1 1 1 1, 2 2 2 2, ...; TILE=2."""
    module = RawModule(
        path=KERNELS / "scores_tiled.cu",
        backend="simulator",
        options=("-DTILE=2", "-DK_TILE=0", "-DPAD=0"),
    )
    q = np.array([[1, 2, 3, 4], [5, 6, 7, 8], [2, 3, 4, 5], [6, 7, 8, 9]], np.float32)[None]
    k = np.repeat(np.arange(1, 5, dtype=np.float32)[:, None], 4, axis=1)[None, :keys]
    tracer = Tracer(block=block)
    with observe(tracer):
        module.get_function("scores_tiled")(
            (2, 2, 1),
            (2, 2),
            (q, np.ascontiguousarray(k), np.zeros((1, 4, 4), np.float32), *[np.int32(4)] * 3),
        )
    return tracer


def opened(browser, page):
    browser.get(page.as_uri())
    return WebDriverWait(browser, 20).until(
        lambda b: b.find_element(By.CSS_SELECTOR, ".acs[data-step]")
    )


def looked(browser, name):
    if SHOTS:
        Path(SHOTS).mkdir(parents=True, exist_ok=True)
        browser.save_screenshot(str(Path(SHOTS) / f"{name}.png"))


def texts(root, selector):
    return [element.text for element in root.find_elements(By.CSS_SELECTOR, selector)]


def column(root, name):
    """The thread table's column of a variable."""
    cells = root.find_elements(By.CSS_SELECTOR, "thead th")
    heads = [cell.get_attribute("textContent") for cell in cells]
    rows = root.find_elements(By.CSS_SELECTOR, "tbody tr")
    return [row.find_elements(By.CSS_SELECTOR, "th, td")[heads.index(name)].text for row in rows]


def grid(root, name):
    figure = next(f for f in root.find_elements(By.CSS_SELECTOR, "figure") if name in f.text)
    return texts(figure, ".acs-cell"), [
        cell.get_attribute("class") for cell in figure.find_elements(By.CSS_SELECTOR, ".acs-cell")
    ]


def errors(browser):
    return [
        entry["message"]
        for entry in browser.get_log("browser")
        if entry["level"] == "SEVERE" and "favicon" not in entry["message"]
    ]


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "trace.html"
    trace_scores([(0, 0, 0), (1, 0, 0)]).to_html(path)
    return path


def press(root, name):
    root.find_element(By.CSS_SELECTOR, f"button.acs-{name}").click()


def test_barrier_by_barrier_the_worked_example(browser, page):
    root = opened(browser, page)
    seen = []
    for _ in range(4):
        press(root, "barrier")
        seen.append((column(root, "score"), grid(root, "tile_query")[0]))
    assert [score for score, _ in seen] == [
        ["0", "0", "0", "0"],
        ["3", "6", "11", "22"],
        ["3", "6", "11", "22"],
        ["10", "20", "26", "52"],
    ]
    assert seen[0][1] == ["1", "2", "5", "6"] and seen[2][1] == ["3", "4", "7", "8"]
    assert "passes this barrier" in root.find_element(By.CSS_SELECTOR, ".acs-banner").text
    looked(browser, "page-barrier")
    assert not errors(browser)


@pytest.mark.turns(23)
def test_a_matrix_product_shows_who_holds_what(browser, tmp_path):
    from traced_product import traced  # not above: notebooks import this module

    tracer, *_ = traced()
    tracer.to_html(tmp_path / "product.html")
    root = opened(browser, tmp_path / "product.html")
    panel = root.find_element(By.CSS_SELECTOR, ".acs-panel.acs-product")
    assert not panel.is_displayed()
    step = next(frame["step"] for frame in tracer.frames if frame["products"])
    root.send_keys(Keys.ARROW_RIGHT * step)
    assert panel.is_displayed() and "16 × 8 f32" in panel.text
    row = root.find_elements(By.CSS_SELECTOR, "tbody tr")[5]
    browser.execute_script("arguments[0].click()", row)  # pins thread 5
    own = panel.find_elements(By.CSS_SELECTOR, ".acs-matrix-A .acs-pointed")
    assert [cell.text for cell in own] == ["5"] * 8
    places = [cell.get_attribute("title").split(" = ")[0] for cell in own]
    assert places[:4] == ["A[1][2]", "A[1][3]", "A[1][10]", "A[1][11]"]
    looked(browser, "page-product-lanes")
    panel.find_element(By.CSS_SELECTOR, "input").click()
    cells = texts(panel, ".acs-matrix-D .acs-matrix-cell")
    expected = tracer.products_at(step)[0]["D"].ravel()
    assert [float(cell) for cell in cells] == expected.tolist()
    looked(browser, "page-product-values")
    assert not errors(browser)


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """Pages of a ring of two stages and of two warp groups that take turns; their traces."""
    from traced_ring import traced_products, traced_ring  # not above: notebooks import this module

    folder = tmp_path_factory.mktemp("engines")
    traces = {
        "ring": traced_ring(),
        "products": traced_products(
            threads=(0, 128), names={"A": (0, 2048), "B": (2048, 2048), "full": (4096, 8)}
        ),
    }
    for name, trace in traces.items():
        trace.to_html(folder / f"{name}.html")
    return folder, traces


def lanes(root):
    """Row of the timeline -> its text at this step."""
    heads = root.find_elements(By.CSS_SELECTOR, ".acs-lane-head")
    return {head.find_element(By.TAG_NAME, "b").text: head.text for head in heads}


def go(browser, root, step):
    slider = root.find_element(By.CSS_SELECTOR, ".acs-slider")
    browser.execute_script(
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))",
        slider,
        step,
    )


@pytest.mark.turns(23)
def test_a_ring_shows_its_mbarriers_its_tiles_and_who_waits(browser, engines):
    folder, traces = engines
    root = opened(browser, folder / "ring.html")
    (wait,) = traces["ring"].timeline()["warp 0"]["waits at an mbarrier"]
    go(browser, root, wait[1])
    assert "waits at full[0], parity 1" in lanes(root)["warp 0"]
    assert "copy in flight" in lanes(root)["tiles[0]"] and "free again" in lanes(root)["tiles[1]"]
    rows = texts(root, ".acs-mbarriers tbody tr")
    assert rows[0] == "full[0] 1 1 0 of 1 2,048 warps 0, 1, 2, 3 for parity 1"
    assert rows[1] == "empty[0] 1 1 4 of 4 0"
    press(root, "step")
    assert "landed" in lanes(root)["tiles[0]"]
    assert texts(root, ".acs-mbarriers tbody tr")[0] == "full[0] 2 0 1 of 1 0"
    assert len(root.find_elements(By.CSS_SELECTOR, ".acs-mbarriers .acs-changed")) == 4
    names = [f.text.split("[")[0] for f in root.find_elements(By.CSS_SELECTOR, "figure.acs-grid")]
    assert "tiles" in names and "full" not in names  # mbarriers have their table
    looked(browser, "page-ring")
    assert not errors(browser)


@pytest.mark.turns(23)
def test_turns_and_products_with_their_tiles(browser, engines):
    folder, traces = engines
    root = opened(browser, folder / "products.html")
    timeline = traces["products"].timeline()
    first, last = timeline["warpgroup 0"]["products open"][0]
    go(browser, root, first)
    assert "orders products · 1 product open" in lanes(root)["warpgroup 0"]
    assert "being read" in lanes(root)["A[0]"]
    product = root.find_element(By.CSS_SELECTOR, ".acs-group-products")
    assert "wgmma m64n8k16" in product.text
    captions = texts(product, "figcaption")
    assert captions == ["B 16 × 8 f16 B[0]", "A 64 × 16 f16 A[0]", "D 64 × 8 f32 registers"]
    go(browser, root, last + 1)
    assert "open" not in lanes(root)["warpgroup 0"]
    assert "No product is ordered" in product.text
    waits = timeline["warpgroup 1"]["waits at a barrier"][0]
    go(browser, root, waits[0])
    assert "waits at barrier 1" in lanes(root)["warpgroup 1"]
    band = root.find_element(By.CSS_SELECTOR, ".acs-lanes-inner")
    browser.execute_script(
        """const box = arguments[0].getBoundingClientRect();
        arguments[0].dispatchEvent(new MouseEvent("click",
          {clientX: box.left + (arguments[1] + 0.5) * box.width / arguments[2]}));""",
        band,
        first,
        len(traces["products"].frames),
    )
    assert root.get_attribute("data-step") == str(first)
    looked(browser, "page-turns")
    assert not errors(browser)


@pytest.mark.turns(23)
@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("name", ["ring", "products"])
def test_the_timeline_fits_any_width_and_has_contrast(browser, engines, any_width, name, width):
    any_width(width)
    root = opened(browser, engines[0] / f"{name}.html")
    go(browser, root, len(engines[1][name].frames) // 2)
    page = browser.execute_script("return document.documentElement.scrollWidth")
    assert page <= width
    assert browser.execute_script(FAINT) == []
    looked(browser, f"page-{name}-{width}")


def test_a_kernel_without_engines_has_no_such_panel(browser, page):
    root = opened(browser, page)
    assert not root.find_element(By.CSS_SELECTOR, ".acs-engines").is_displayed()


@pytest.mark.turns(11)
def test_keys_buttons_and_slider_move(browser, page):
    root = opened(browser, page)
    root.send_keys(Keys.ARROW_RIGHT * 3)
    assert root.get_attribute("data-step") == "3"
    root.send_keys(Keys.ARROW_LEFT)
    press(root, "back")
    assert root.get_attribute("data-step") == "1"
    press(root, "step")
    assert root.get_attribute("data-step") == "2"
    root.send_keys(Keys.END)
    last = int(root.get_attribute("data-step"))
    assert texts(root, ".acs-counter") == [f"step {last} / {last}"]
    press(root, "first")
    assert root.get_attribute("data-step") == "0"
    slider = root.find_element(By.CSS_SELECTOR, ".acs-slider")
    slider.send_keys(Keys.ARROW_RIGHT)
    assert root.get_attribute("data-step") == "1"


@pytest.mark.turns(23)
def test_back_and_forth_show_the_same(browser, page):
    root = opened(browser, page)

    def picture():
        return (
            column(root, "score"),
            grid(root, "tile_key"),
            texts(root, ".acs-chip"),
            root.find_element(By.CSS_SELECTOR, ".acs-current").text,
        )

    root.send_keys(Keys.ARROW_RIGHT * 17)
    there = picture()
    root.send_keys(Keys.END)
    assert picture() != there
    press(root, "back")
    root.send_keys(Keys.ARROW_LEFT * (int(root.get_attribute("data-step")) - 17))
    assert root.get_attribute("data-step") == "17" and picture() == there


@pytest.mark.turns(11)
def test_the_current_line_and_its_accesses(browser, page):
    root = opened(browser, page)
    line = next(
        row
        for row in root.find_elements(By.CSS_SELECTOR, ".acs-reached")
        if "tile_query[ty][tx] =" in row.text
    )
    browser.execute_script("arguments[0].click()", line)
    assert "tile_query[ty][tx] =" in root.find_element(By.CSS_SELECTOR, ".acs-current").text
    heads = texts(root, ".acs-strip-head")
    assert len(heads) == 2
    assert "reads" in heads[0] and "1 sector, 16 of 32 bytes used" in heads[0]
    assert "writes" in heads[1] and "1 wavefront" in heads[1]
    assert len(root.find_elements(By.CSS_SELECTOR, ".acs-sector .acs-read")) == 4  # words
    assert len(root.find_elements(By.CSS_SELECTOR, ".acs-bank .acs-write")) == 4  # banks
    assert all("acs-write" in kind for kind in grid(root, "tile_query")[1])
    assert all("acs-empty" in kind for kind in grid(root, "tile_key")[1])
    looked(browser, "page-access")


def test_columns_that_change_come_first_and_long_lines_are_broken(browser, page):
    root = opened(browser, page)
    root.send_keys(Keys.END)
    heads = root.find_elements(By.CSS_SELECTOR, "thead th")
    names = [head.get_attribute("textContent") for head in heads[1:]]
    assert names[:2] == ["score", "element"] and set(names) > {"tx", "ty", "q_row", "k_row"}
    source = root.find_element(By.CSS_SELECTOR, ".acs-source")
    assert source.get_property("scrollWidth") <= source.get_property("clientWidth")


# Left, right, upper and lower distance from the first changed cell to the edges of its box, inside
# the names that stay; null where no cell has changed.
DISTANCES = """
const cell = document.querySelector(".acs-table td.acs-changed:not([hidden])");
if (!cell) return null;
const box = cell.closest(".acs-scroll"), view = box.getBoundingClientRect();
const corner = box.querySelector("th").getBoundingClientRect(), r = cell.getBoundingClientRect();
return [r.left - view.left - corner.width, view.left + box.clientWidth - r.right,
        r.top - view.top - corner.height, view.top + box.clientHeight - r.bottom];
"""
# Text whose colour has too little contrast to what is behind it, as WCAG 2.1 measures contrast.
FAINT = """
const channels = (text) => text.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => [r, g, b].map((v) => v / 255)
  .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
  .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
const behind = (e) => {
  for (; e; e = e.parentElement) {
    const colour = channels(getComputedStyle(e).backgroundColor);
    if (colour.length < 4 || colour[3] === 1) return colour;
  }
  return [255, 255, 255];
};
const found = [];
for (const e of document.querySelectorAll(".acs *")) {
  const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
  if (!own || !e.checkVisibility() || e.closest(":disabled")) continue;
  let faded = 1;
  for (let up = e; up; up = up.parentElement) faded *= getComputedStyle(up).opacity;
  const [one, other] = [channels(getComputedStyle(e).color), behind(e)].map(luminance);
  const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (contrast < 4.5 || faded < 1) found.push([e.className, e.textContent.slice(0, 20), contrast]);
}
return found;
"""


def narrowed(browser, width):
    """Give the page a width in pixels, as a telephone, a tablet or a screen has it."""
    size = {"width": width, "height": 420, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


@pytest.fixture
def any_width(browser):
    yield lambda width: narrowed(browser, width)
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


@pytest.fixture(scope="module")
def many_variables(tmp_path_factory):
    """A page whose table of variables is wider than its box, and changes at its far end."""
    names = [f"variable_{letter}" for letter in "abcdefghijkl"]
    lines = [f"  float {name} = x[threadIdx.x] * {i}.5f;" for i, name in enumerate(names)]
    code = "\n".join(
        [
            'extern "C" __global__ void wide(float* x) {',
            *lines,
            "  if (threadIdx.x == 29) variable_l += 1.0f;",
            f"  x[threadIdx.x] = {' + '.join(names)};",
            "}",
        ]
    )
    tracer = Tracer(block=(0, 0, 0))
    with observe(tracer):
        RawModule(code, backend="simulator").get_function("wide")(
            (1,), (32,), (np.arange(1, 33, dtype=np.float32),)
        )
    path = tmp_path_factory.mktemp("wide") / "wide.html"
    tracer.to_html(path)
    return path


@pytest.mark.turns(23)
@pytest.mark.parametrize("width", [390, 820, 1440])
def test_what_changes_is_in_sight_at_every_step(browser, many_variables, any_width, width):
    any_width(width)
    root = opened(browser, many_variables)
    seen = []
    for _ in range(int(root.find_element(By.CSS_SELECTOR, ".acs-slider").get_attribute("max"))):
        root.send_keys(Keys.ARROW_RIGHT)
        seen.append(browser.execute_script(DISTANCES))
    measured = [one for one in seen if one]
    assert len(measured) >= 12
    assert min(min(one) for one in measured) > -1
    controls = root.find_element(By.CSS_SELECTOR, ".acs-controls")
    browser.execute_script("document.querySelector('.acs-note').scrollIntoView()")
    assert 0 <= controls.rect["y"] - browser.execute_script("return scrollY") < 60
    looked(browser, f"wide-{width}")


@pytest.mark.turns(17)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_all_text_has_contrast(browser, page, theme):
    feature = {"name": "prefers-color-scheme", "value": theme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    root = opened(browser, page)
    try:
        for _ in range(6):
            assert browser.execute_script(FAINT) == []
            press(root, "step")
            press(root, "step")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})


@pytest.mark.turns(23)
def test_small_arrays_in_global_memory_fill_as_they_are_used(browser, page):
    root = opened(browser, page)
    assert all("acs-empty" in kind for kind in grid(root, "q[1][4][4]")[1])
    root.send_keys(Keys.END)
    assert grid(root, "q[1][4][4]")[0] == [*"12345678", *[""] * 8]
    assert grid(root, "s[1][4][4]")[0][:6] == ["10", "20", "", "", "26", "52"]


HALF_WRITTEN = """
extern "C" __global__ void half_written(float* out) {
    __shared__ float tile[4];
    if (threadIdx.x < 2) tile[threadIdx.x] = 7.0f;
    out[threadIdx.x] = tile[threadIdx.x];
}
"""


def test_a_cell_that_is_read_but_never_written_keeps_a_mark(browser, tmp_path):
    with observe(Tracer()) as trace:
        RawModule(code=HALF_WRITTEN, backend="simulator").get_function("half_written")(
            (1,), (4,), (np.zeros(4, np.float32),)
        )
    trace.to_html(tmp_path / "trace.html")
    root = opened(browser, tmp_path / "trace.html")
    line = next(
        row for row in root.find_elements(By.CSS_SELECTOR, ".acs-reached") if "= tile[" in row.text
    )
    browser.execute_script("arguments[0].click()", line)
    cells, kinds = grid(root, "tile[4]")
    assert cells == ["7", "7", "?", "?"]
    assert ["acs-never" in kind for kind in kinds] == [False, False, True, True]
    assert all("acs-read" in kind for kind in kinds)
    looked(browser, "page-read-but-never-written")


@pytest.mark.turns(11)
def test_another_block_can_be_chosen(browser, page):
    root = opened(browser, page)
    Select(root.find_element(By.CSS_SELECTOR, ".acs-chooser select")).select_by_visible_text(
        "scores_tiled (1,0,0)"
    )
    root.send_keys(Keys.END)
    assert column(root, "col") == ["2", "3", "2", "3"]
    assert column(root, "score") == ["30", "40", "78", "104"]


@pytest.mark.turns(11)
def test_it_plays_to_the_end_and_stops(browser, page):
    root = opened(browser, page)
    root.send_keys(Keys.END)
    last = root.get_attribute("data-step")
    for _ in range(3):
        press(root, "back")
    press(root, "play")
    WebDriverWait(browser, 10).until(lambda _: root.get_attribute("data-step") == last)
    assert root.find_element(By.CSS_SELECTOR, ".acs-play").is_enabled()


@pytest.mark.turns(11)
def test_a_finding_is_shown_where_it_happened(browser, tmp_path):
    tracer = Tracer(block=(1, 0, 0))
    source = """extern "C" __global__ void k(const float* q, float* out) {
        float mine = q[64 * blockIdx.x + threadIdx.x];
        out[threadIdx.x] = mine;
    }"""
    kernel = RawModule(code=source, backend="simulator").get_function("k")
    with pytest.raises(RuntimeError, match="valid elements"), observe(tracer):
        kernel((2,), (64,), (np.zeros(100, np.float32), np.zeros(64, np.float32)))
    tracer.to_html(tmp_path / "fault.html")
    root = opened(browser, tmp_path / "fault.html")
    assert "opened at the finding" in root.find_element(By.CSS_SELECTOR, ".acs-banner").text
    assert "out-of-bounds" in root.find_element(By.CSS_SELECTOR, ".acs-finding-text").text
    assert "float mine" in root.find_element(By.CSS_SELECTOR, ".acs-current.acs-bad").text
    warp = Select(root.find_elements(By.CSS_SELECTOR, ".acs-chooser select")[1])
    assert warp.first_selected_option.text == "1"  # thread 36 is the first to go too far
    looked(browser, "page-finding")
    press(root, "first")
    assert root.get_attribute("data-step") == "0"
    press(root, "finding")
    assert "float mine" in root.find_element(By.CSS_SELECTOR, ".acs-current.acs-bad").text


def test_bank_conflicts_and_scattered_sectors_are_counted(browser, tmp_path):
    source = """extern "C" __global__ void k(const float* q, float* out) {
        __shared__ float tile[32][32];
        tile[threadIdx.x][0] = q[8 * threadIdx.x];
        out[threadIdx.x] = tile[threadIdx.x][0];
    }"""
    with observe(Tracer()) as trace:
        RawModule(code=source, backend="simulator").get_function("k")(
            (1,), (32,), (np.zeros(256, np.float32), np.zeros(32, np.float32))
        )
    trace.to_html(tmp_path / "banks.html")
    root = opened(browser, tmp_path / "banks.html")
    while not root.find_elements(By.CSS_SELECTOR, ".acs-bank"):
        press(root, "step")
    text = " ".join(texts(root, ".acs-strip-head"))
    assert "32 sectors, 128 of 1024 bytes used" in text
    assert "32 wavefronts, 1 would do" in text
    assert texts(root, ".acs-bank b") == ["32"]


@pytest.mark.turns(11)
def test_a_wide_load_whose_neighbours_want_the_same_takes_half_the_passes(browser, tmp_path):
    # Rows of 68 words, two lanes each, as a tile of keys is read; each lane stores a float4.
    source = """extern "C" __global__ void k(const float4* k, float4* out) {
        __shared__ float4 tile[8 * 17];
        int row = threadIdx.x / 2 % 8;
        tile[row * 17] = k[threadIdx.x];
        out[threadIdx.x] = tile[row * 17];
    }"""
    with observe(Tracer()) as trace:
        RawModule(code=source, backend="simulator").get_function("k")(
            (1,), (32,), (np.zeros(128, np.float32), np.zeros(128, np.float32))
        )
    trace.to_html(tmp_path / "wide.html")
    root = opened(browser, tmp_path / "wide.html")
    heads = set()
    for _ in trace.frames:
        heads |= {text for text in texts(root, ".acs-strip-head") if "wavefront" in text}
        press(root, "step")
    said = {kind: [text for text in heads if kind in text] for kind in ("reads", "writes")}
    assert [text.endswith("2 wavefronts") for text in said["reads"]] == [True], heads
    assert [text.endswith("4 wavefronts") for text in said["writes"]] == [True], heads
    assert not errors(browser)


LANE = np.arange(32)
PATTERNS = {  # which item each lane of a warp asks for
    "one": 0 * LANE,
    "in a row": LANE,
    "t^1": LANE // 2,
    "t^2": LANE // 4 * 2 + LANE % 2,
    "t^4": LANE // 8 * 4 + LANE % 4,
    "first half alike": np.where(LANE < 16, 0, LANE),
    "first quarter alike": np.where(LANE < 8, 0, LANE),
    "t^1, then t^2": np.where(LANE < 4, LANE // 2, LANE // 4 * 2 + LANE % 2),
    "rows of 32 words": LANE // 2 * 8,
    "rows of K": LANE // 2 % 8 * 17,
    "rows of Q": (LANE // 16 * 2 + LANE % 2) * 17,
    "down a column": LANE * 32,
}


def warp_accesses():
    """(lanes, byte addresses, bytes a lane): the patterns and random ones, whole and in part."""
    rng = np.random.default_rng(7)
    items = list(PATTERNS.values())
    for _ in range(20):
        shared = rng.choice([1, 2, 4])
        items.append(LANE // shared * rng.integers(0, 40) + rng.integers(0, 40))
        items.append(rng.integers(0, rng.choice([2, 8, 40, 4000]), 32))
        items.append(rng.integers(0, 60, 32)[LANE & ~rng.choice([1, 2, 3, 4])])
    for item in items:
        some = [
            LANE,
            LANE[: rng.integers(1, 32)],
            LANE[rng.random(32) < 0.5],
            LANE[LANE % 2 == rng.integers(2)],
        ]
        for lanes in some:
            for size in (1, 2, 4, 8, 16):
                if lanes.size:
                    yield lanes, item[lanes] * size, size


@pytest.mark.turns(23)
def test_wavefronts_are_counted_as_the_counters_count_them(browser):
    page = Path(kernelscope.__file__).parent / "watch" / "tracer" / "stepper_page"
    source = (page / "1_data.js").read_text(encoding="utf-8")
    asked, expected = [], []
    for lanes, address, size in warp_accesses():
        pairs = zip(lanes.tolist(), address.tolist(), strict=True)
        warp = [{"lane": lane, "address": at} for lane, at in pairs]
        for kind, name in (("load", "read"), ("store", "write")):
            asked.append([warp, size, name])
            expected.append(count_wavefronts(Lanes(lanes), address.astype(np.uint64), size, kind))
    browser.get("about:blank")
    found = browser.execute_script(
        source
        + """
        return arguments[0].map(([lanes, size, kind]) => {
          const { passes, least, groups } = wavefronts(lanes, size, kind);
          return [passes, least, groups.length];
        });""",
        asked,
    )
    wrong = [
        (request, tuple(answer), right)
        for request, answer, right in zip(asked, found, expected, strict=True)
        if tuple(answer) != (*right, right[1])
    ]
    assert not wrong, f"{len(wrong)} of {len(asked)}: {wrong[0]}"
    loads, stores = expected[::2], expected[1::2]
    joined = sum(load < store for load, store in zip(loads, stores, strict=True))
    assert 40 < joined < len(loads) // 2  # both sides of the rule are met


def test_without_scripts_the_table_is_readable(browser, page, tmp_path):
    text = page.read_text(encoding="utf-8")
    start = text.index('<script type="module">')
    plain = tmp_path / "plain.html"
    plain.write_text(text[:start] + text[text.index("</script>", start) + 9 :], encoding="utf-8")
    browser.get(plain.as_uri())
    rows = browser.find_elements(By.CSS_SELECTOR, "tbody tr")
    assert len(rows) > 30
    assert any("score = 3" in row.text and "fmaf" in row.text for row in rows)


# -- notebooks -----------------------------------------------------------------------------
CELLS = [
    f"import sys\nsys.path[:0] = [{str(Path(__file__).parent)!r}]\n"
    "from test_stepper import trace_scores\n"
    "view = trace_scores([(0, 0, 0), (1, 0, 0)]).show()\nview",
    "print('Python sees step', view.step)",
    "view.recording = 1\nprint('Python asks for recording', view.recording)",
    "print('Python sees recording', view.recording, 'and step', view.step)",
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """The address of a notebook in JupyterLab; `?reset` forgets what was open before."""
    folder = tmp_path_factory.mktemp("lab")
    write_notebook(folder / "trace.ipynb", CELLS)
    with jupyterlab(folder, "--LabApp.expose_app_in_browser=True") as address:
        yield f"{address}/lab/tree/trace.ipynb?reset"


def run_cell(browser, number, selector):
    """Run a code cell and wait for an element. A notebook that is not ready yet ignores the first
    commands and may draw its cells again, so a cell that still has not run is run again."""
    given = [0.0]

    def attempt(_):
        cell = browser.find_elements(By.CSS_SELECTOR, ".jp-Notebook .jp-CodeCell")[number]
        prompt = cell.find_element(By.CSS_SELECTOR, ".jp-InputPrompt")
        if prompt.text == "[ ]:" and time.monotonic() - given[0] > 4:
            prompt.click()
            browser.execute_script(
                "window.jupyterapp.commands.execute('notebook:run-cell-and-select-next')"
            )
            given[0] = time.monotonic()
        found = cell.find_elements(By.CSS_SELECTOR, selector)
        return found[0] if found and found[0].text else None

    patience = WebDriverWait(browser, 200, ignored_exceptions=[WebDriverException, IndexError])
    return patience.until(attempt)


@pytest.mark.turns(37)
@pytest.mark.timeout(280)
def test_the_widget_in_jupyterlab(browser, lab):
    browser.get(lab)
    wait = WebDriverWait(browser, 90)
    wait.until(lambda b: b.execute_script("return Boolean(window.jupyterapp)"))
    wait.until(lambda b: b.find_elements(By.CSS_SELECTOR, ".jp-Notebook .jp-CodeCell"))
    root = run_cell(browser, 0, ".acs[data-step]")
    press(root, "barrier")
    press(root, "barrier")
    assert column(root, "score") == ["3", "6", "11", "22"]
    root.send_keys(Keys.ARROW_RIGHT)  # JupyterLab's own shortcuts leave it alone
    step = root.get_attribute("data-step")
    assert column(root, "score") == ["3", "6", "11", "22"] and int(step) > 20
    looked(browser, "lab")
    output = ".jp-OutputArea-output"
    assert run_cell(browser, 1, output).text == f"Python sees step {step}"
    block = Select(root.find_element(By.CSS_SELECTOR, ".acs-chooser select"))
    assert block.first_selected_option.text == "scores_tiled (0,0,0)"
    run_cell(browser, 2, output)
    wait.until(lambda _: block.first_selected_option.text == "scores_tiled (1,0,0)")
    assert root.get_attribute("data-step") == step
    block.select_by_visible_text("scores_tiled (0,0,0)")
    assert run_cell(browser, 3, output).text == "Python sees recording 0 and step 0"


def test_an_exported_notebook_works_offline(browser, tmp_path):
    """show(static=True) in a notebook that nbconvert has made into HTML."""
    from IPython.core.formatters import DisplayFormatter
    from nbconvert import HTMLExporter

    write_notebook(tmp_path / "static.ipynb", ["view"])
    content = nbformat.read(tmp_path / "static.ipynb", as_version=4)
    shown, more = DisplayFormatter().format(trace_scores((0, 0, 0)).show(static=True))
    output = nbformat.v4.new_output("display_data", data=shown, metadata=more)
    content.cells[0].outputs = [output]
    text, _ = HTMLExporter().from_notebook_node(content)
    (tmp_path / "static.html").write_text(text, encoding="utf-8")
    root = opened(browser, tmp_path / "static.html")
    for _ in range(2):
        press(root, "barrier")
    assert column(root, "score") == ["3", "6", "11", "22"]
    browser.execute_script("arguments[0].scrollIntoView()", root)
    looked(browser, "export")
