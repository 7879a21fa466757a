"""Every figure can be read at the width at which the site shows it: sizes of letters, names."""

import math

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from attn_course import figures
from attn_course.figures import Matrix
from attn_devtools.book import drawing

pytestmark = pytest.mark.system

SHOWN = 720  # pixels of the site's column on windows of 820 to 1,440; a figure is never enlarged
LEAST = 9  # pixels of the smallest letters there
RNG = np.random.default_rng(5)
LANES = np.arange(32)
SHAPES = ["1,1,128,64", "4,16,1024,128 causal", "2,12,196,64"]
METHODS = ["naive", "three_kernels", "tiled", "flash_fp32", "auto", "best peer"]
TIMES = {name: list(RNG.uniform(3, 900, len(SHAPES))) for name in METHODS}
MANY = ("07 rows_atomic", "08 rows_warp", "09 rows_online", "10 flash_rows", "11 flash_fp32")
SOURCE = "recorded 2026-11-22 on NVIDIA H200 (driver 580.159.04, CUDA 13.2, commit 01908edac9)"


def share(*shape):
    found = RNG.random(shape)
    return found / found.sum(-1, keepdims=True)


def wrong(rows, columns):
    return np.ones((rows, columns)), (RNG.random((rows, columns)) > 0.5) * 1.0


def block(scores, old, new):
    return dict(scores=scores, row_m=max(scores), rescale=0.135, old_l=old, row_l=new)


def examples():
    """A figure of each function, as large as in the lessons, the tour and the book."""
    step = {name: np.arange(4.0).reshape(2, 2) for name in ("tile_query", "tile_key", "score")}
    square = np.arange(16.0).reshape(4, 4)
    lanes = np.arange(256).reshape(16, 16) % 32
    work = {"device memory": 4800, "L2": 7240}
    yield (
        "attention_over_slice",
        figures.attention_over_slice(
            np.ones((64, 64)), np.array([(3, 5), (30, 36)]), share(6, 196, 196), title="t"
        ),
    )
    three = np.arange(9.0).reshape(3, 3)
    yield (
        "worked_example",
        figures.worked_example(
            three[:, :2], three[:, :2], three, three / 9, three[:, :2], three[:, :2], row=1
        ),
    )
    yield "matrix_lines", figures.matrix_lines([[Matrix(square, "a", "4 × 4"), "=", "mask\n→"]])
    yield "tile_steps", figures.tile_steps(square, square, [step] * 2, row=0, column=0, tile=2)
    yield "tile_grid", figures.tile_grid(square, 2, highlight=(0, 1), title="t")
    yield "tile_grid", figures.tile_grid(RNG.random((196, 196)), 32, title="t", unit="score")
    yield (
        "fragment_maps",
        figures.fragment_maps(
            {
                "A": (lanes, lanes % 4),
                "B: two of a column": (lanes[:, :8], lanes[:, :8] % 2),
                "C": (lanes[:, :8], lanes[:, :8] % 4),
            },
            lane=5,
        ),
    )
    yield "bars", figures.bars(SHAPES, [1.0, 20.5, 16896.0], unit="us")
    x = np.arange(9.0)
    yield "curves", figures.curves(x, {"one": x, "two": x**2}, labels=("x", "y"))
    yield "error_profile", figures.error_profile(METHODS, list(RNG.random((6, 99)) / 1e6))
    ours = dict(list(TIMES.items())[:5])
    yield "ratios", drawing.ratios(SHAPES, ours, to="the best peer", source="a", title="t")
    yield "rates", drawing.rates(SHAPES, {"GFLOP/s": TIMES, "GB/s": TIMES}, source="a", title="t")
    yield (
        "scaling",
        drawing.scaling(
            {"batch": ((1, 4, 8), TIMES), "tokens": ((128, 256, 512), TIMES)}, source="a"
        ),
    )
    yield "summary", drawing.summary(["shape", "us"], [["1,1,128,64", "2.0"]], source="a")
    times = {"add n=1": 3.0, "sum n=2": 80.0, "scan n=3": 900.0}
    yield (
        "predictions",
        figures.predictions(
            times,
            {name: us / 2 for name, us in times.items()},
            named={"scan n=3": "scan"},
            band=0.3,
            source=SOURCE,
            title="t",
        ),
    )
    yield "times_by_shape", figures.times_by_shape(SHAPES, TIMES, source="a", title="t")
    yield (
        "bank_maps",
        figures.bank_maps(
            {"PAD 0": (LANES, 128 * LANES, 4), "PAD 1": (LANES, 132 * LANES, 4)}, title="t"
        ),
    )
    eight = LANES[:8]
    yield (
        "bank_maps",
        figures.bank_maps(
            {
                name: (eight, row * eight, 16, row)
                for name, row in (("a", 128), ("b", 144), ("c", 128))
            }
        ),
    )
    yield "bank_maps", figures.bank_maps({"16 bytes a lane": (LANES, 128 * LANES, 16)})
    yield (
        "latency_by_size",
        figures.latency_by_size(
            [4096, 32768, 1 << 20], [30, 40, 300], shared_clocks=20, marks={"size of L2": 1 << 19}
        ),
    )
    yield (
        "passes_and_times",
        figures.passes_and_times(
            ["02 TILE=32 K_TILE=1 PAD=0", "03"],
            {"shared wavefronts": [3, 1], "lines looked up": [2, 1]},
            [108, 9.15],
            passes_unit="millions",
            source="a",
        ),
    )
    sectors = (RNG.random((32, 8)) > 0.5) * 32
    yield (
        "sector_maps",
        figures.sector_maps(
            {f"K_TILE {n}": sectors for n in range(3)}, rows="row of K (key)", columns="sector"
        ),
    )
    yield "symptoms", figures.symptoms({"A": wrong(36, 37), "B": wrong(36, 37)})
    strips = {f"out was {n}": wrong(3, 70) for n in ("0", "1e+30", "inf")}
    yield "symptoms", figures.symptoms(strips)
    yield "symptoms", figures.symptoms({"G": wrong(1, 24)})
    yield (
        "calls_in_order",
        figures.calls_in_order(
            {name: [[900.0, 9.0]] * 7 for name in ("tiled", "torch")},
            ["1,1,128,64"] * 7,
            source=SOURCE,
        ),
    )
    yield "spread", figures.spread({"events": [1.0, 2.0, 9.0], "graph": [4.0, 4.1]}, source=SOURCE)
    yield (
        "under_load",
        figures.under_load(
            [0, 1, 2], [1717.5, 1722.8, 1720], [1980, 1980], [132, 535], source=SOURCE
        ),
    )
    steps = np.repeat(RNG.uniform(0, 4, (1, 32)), 6, 0) ** [[1], [2], [1], [1], [1], [1]]
    yield "butterfly", figures.butterfly((16, 8, 4, 2, 1), steps, lane=5, title="t")
    yield "float_orders", figures.float_orders([1.0, -1.0], {"a": LANES[:2], "b": LANES[:2]})
    yield "amdahl", figures.amdahl({"scores": 0.085, "softmax": 0.915}, {"report": (2.9, 1.06)})
    yield (
        "roofline",
        figures.roofline(
            {"04 softmax and output": (15.0, 0.03)}
            | {name: (254.0, 2.0 + n / 10) for n, name in enumerate(MANY)}
            | {"13 flash_wmma": (2000, 280), "14 flash_mma": (2000, 370), "16 layer_norm": (1, 4)},
            tflops=67,
            gbps=work,
            others={"16-bit tensor cores": (989, ["13 flash_wmma", "14 flash_mma"])},
            source="a",
        ),
    )
    parts = {"01 scores": 7.0, "04 softmax and output": 93.0}
    yield "shares", figures.shares({"01 + 04": parts, "02": parts}, title="t", source="a")
    yield (
        "time_by_work",
        figures.time_by_work(
            {"tiled": [(4, 12), (900, 90)], "auto": [(4, 3)]}, floors={"f": 0.1}, launches={"l": 2}
        ),
    )
    yield "flights", figures.flights({"kernel 11": ([(200, 500)], np.arange(600, 900), 999)})
    spans = {"on its way": [(200, 500), (600, 900)], "read": [(500, 560)]}
    yield "timeline", figures.timeline({"stages: 1": {"stage 0": spans}})
    first, second = block((1, 3, 2, 0), 0, 1.553), block((2, 5, 4, 1), 1.553, 1.646)
    yield "running_softmax", figures.running_softmax([first, second])
    yield (
        "shared_budget",
        figures.shared_budget([64, 128], {"rows twice": [70000, 140000]}, {"sm_90": 232448}),
    )
    yield (
        "traffic_by_tile",
        figures.traffic_by_tile(
            [2048, 4096], [9e6, 4e6], [9e6, 4e6], labels=["4 rows", "8 rows"], least=2e5, scores=3e6
        ),
    )
    yield (
        "visited_tiles",
        figures.visited_tiles(
            np.tril(np.ones((64, 64), bool)), np.tril(np.ones((2, 2), bool)), (32, 32)
        ),
    )
    bias, maps = -RNG.random((14, 14)), {"no bias": share(14, 14), "bias, mask": share(14, 14)}
    yield "window_bias", figures.window_bias(bias, bias // 0.5, maps, query=(6, 8))
    worth = {"lanes": (1.1, 1.0, 1.2), "heads": (21.1, 20, 22)}
    yield (
        "worth_of_ideas",
        figures.worth_of_ideas({"no mask": worth, "causal": worth}, title="t", source=SOURCE),
    )
    yield "count_ratios", figures.count_ratios({"shared_atomic_conflicts": ([1, 2], [1, 3])})
    kernels = ["01_scores_naive", "02_scores_tiled K_TILE=1 PAD=0"]
    yield (
        "percentages",
        figures.percentages(
            kernels, {name: [6, 98] for name in ("SM", "L1", "L2", "DRAM\n% of elapsed")}, title="t"
        ),
    )
    yield "stacked", figures.stacked(kernels, [{"barrier": 3.0, "wait": 2.0}] * 2, unit="clocks")


def drawn():
    found = []
    for name, figure in examples():
        FigureCanvasAgg(figure).draw()
        ticks = {
            label
            for axes in figure.axes
            if not axes.axison
            for label in (*axes.get_xticklabels(), *axes.get_yticklabels())
        }  # not drawn
        texts = [
            text
            for text in figure.findobj(Text)
            if text.get_visible() and text.get_text() and text not in ticks
        ]
        found.append((name, figure, texts))
    return found


def every_figure_has_an_example(drawn):
    others = {"Matrix", "described", "table", "wrong_elements"}
    of_the_book = {"rates", "ratios", "scaling", "summary"}
    functions = set(figures.__all__) - others | of_the_book
    assert {name for name, *_ in drawn} == functions


def the_smallest_letters_can_be_read_on_the_site(drawn):
    small = {}
    for name, figure, texts in drawn:
        inches = figure.get_tightbbox().width + 0.2  # as `described` and `savefig` cut it
        scale = min(1, SHOWN / (inches * figure.dpi))
        pixels = min(text.get_fontsize() for text in texts) * figure.dpi / 72 * scale
        if pixels < LEAST:
            small[name] = round(pixels, 1), round(inches, 1)
    assert not small


def no_title_runs_into_another_and_none_is_cut(drawn):
    for name, figure, _ in drawn:
        titles = [axes.title for axes in figure.axes] + [axes._left_title for axes in figure.axes]
        boxes = [one.get_window_extent() for one in titles if one.get_text()]
        for number, box in enumerate(boxes):
            assert box.x1 <= figure.bbox.x1 + 1 and box.x0 >= -1, name
            assert not any(box.overlaps(other) for other in boxes[number + 1 :]), name


def numbers_of_lanes_stay_in_their_cells(drawn):
    for name, figure, _ in drawn:
        if name not in ("bank_maps", "fragment_maps", "sector_maps", "butterfly"):
            continue
        for axes in figure.axes:
            boxes = [text.get_window_extent() for text in axes.texts]
            for number, box in enumerate(boxes):
                assert not any(box.overlaps(other) for other in boxes[number + 1 :]), name


def named(axes):
    """The names that a panel gives to lines and points: of its legend, beside them and of rows."""
    legend = axes.get_legend()
    found = [text.get_text() for text in axes.texts]
    found += [label.get_text() for label in axes.get_yticklabels()]
    return found + ([text.get_text() for text in legend.get_texts()] if legend else [])


def each_of_many_runs_has_its_name(drawn):
    for wanted, names in (("roofline", MANY), ("error_profile", METHODS), ("ratios", METHODS[:5])):
        (figure,) = (figure for name, figure, _ in drawn if name == wanted)
        said = named(figure.axes[0])
        for one in names:
            assert sum(text == one or text.startswith(f"{one}:") for text in said) == 1, one


def names_beside_the_points_of_a_roofline_do_not_overlap(drawn):
    (figure,) = (figure for name, figure, _ in drawn if name == "roofline")
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    boxes.append(figure.axes[0].get_legend().get_window_extent())
    for number, box in enumerate(boxes):
        assert box.x1 <= figure.bbox.x1
        assert not any(box.overlaps(other) for other in boxes[number + 1 :])


def test_a_swizzled_tile_and_a_padded_one_differ():
    rows = LANES[:8]
    given = {"padded": (rows, 144 * rows, 16, 144), "swizzled": (rows, 144 * rows, 16, 128)}
    marks = []
    for axes in figures.bank_maps(given).axes:
        bars = [p for p in axes.patches if math.isclose(p.get_width(), 0.4)]
        marks.append([(bar.get_x(), bar.get_y()) for bar in bars])
    assert marks[0] == [(36 * row % 32, 36 * row // 32) for row in range(8)]
    assert marks[1] == [(0, row) for row in range(8)]


def test_a_clock_that_does_not_move_is_a_flat_line_on_a_scale_of_a_percent():
    figure = figures.under_load([0, 1], [1717.5, 1722.8], [1980, 1980], [132, 535])
    top = figure.axes[0]
    time, clock = (line.get_ydata() for line in top.lines)
    assert list(clock) == [0, 0] and np.ptp(time) == pytest.approx(100 * 5.3 / 1720.15, rel=1e-3)
    low, high = top.get_ylim()
    assert low <= -1 and 1 <= high < 2


@pytest.mark.turns(37)
def test_figures_can_be_read():
    """One test: they are drawn once, in one process."""
    found = drawn()
    for check in (
        every_figure_has_an_example,
        the_smallest_letters_can_be_read_on_the_site,
        no_title_runs_into_another_and_none_is_cut,
        numbers_of_lanes_stay_in_their_cells,
        each_of_many_runs_has_its_name,
        names_beside_the_points_of_a_roofline_do_not_overlap,
    ):
        check(found)
