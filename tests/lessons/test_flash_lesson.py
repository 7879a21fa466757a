"""What the lessons count, held against sums done by hand, and the figures they draw."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from attn_course import Tracer, reference
from attn_course.engine.watch.counters.counters import Counters
from attn_course.engine.watch.reads import ReadCounts
from attn_course.engine.watch.warp_streams import InFlight, WarpWork
from attn_course.figures import attention
from attn_course.figures import flash as flash_plots
from attn_course.lessons import flash as flash_lesson
from attn_course.measure.experiments import REPORT_SHAPES, TILES, RecordedTimes, tile_options
from attn_course.reference.comparison import compare
from attn_course.reference.inputs import seeded_qkv


def inputs(n, m, d, heads=1, kv_heads=1):
    q = seeded_qkv((1, heads, n, d))[0][0]
    _, k, v = seeded_qkv((1, kv_heads, n, d), kv_length=m)
    return q, k[0], v[0]


@pytest.fixture(scope="module")
def traced():
    """Kernel 09 on one query and 21 keys in blocks of 8."""
    q, k, v = inputs(1, 21, 12)
    trace = Tracer(block=(0, 0, 0))
    flash_lesson.run(9, q, k, v, trace, options=("-DKEYS=8", "-DWARPS=1"))
    return flash_lesson.key_blocks(trace), (q @ k.swapaxes(1, 2))[0, 0] / 12**0.5, v[0]


def test_key_blocks_hold_the_running_maximum_sum_and_output(traced):
    blocks, scores, v = traced
    assert [block["key0"] for block in blocks] == [0, 8, 16]
    assert [len(block["scores"]) for block in blocks] == [8, 8, 5]
    for block in blocks:
        seen = scores[: block["key0"] + len(block["scores"])]
        np.testing.assert_allclose(block["new_m"], seen.max(), rtol=1e-5)
        weights = np.exp(seen - seen.max())
        np.testing.assert_allclose(block["row_l"], weights.sum(), rtol=1e-5)
        np.testing.assert_allclose(block["o"], weights @ v[: len(seen)], rtol=1e-4, atol=1e-5)
        rescale = np.exp(block["old_m"] - block["new_m"])
        np.testing.assert_allclose(block["rescale"], rescale, rtol=1e-5)
    assert len(flash_lesson.block_table(blocks).splitlines()) == 4


def test_kernel_11_has_the_row_in_eight_lanes(traced):
    q, k, v = inputs(3, 21, 12)
    trace, alone = Tracer(block=(0, 0, 0)), Tracer(block=(2, 0, 0))
    flash_lesson.run(11, q, k, v, trace, options=tile_options((1, 1, 1, 1), 32))
    flash_lesson.run(9, q, k, v, alone, options=("-DKEYS=8", "-DWARPS=1"))
    states, blocks = flash_lesson.row_states(trace, 2), flash_lesson.key_blocks(alone)
    assert len(states) == 3
    for state, block in zip(states, blocks, strict=True):
        np.testing.assert_allclose(state["new_m"], block["new_m"], rtol=1e-6)
        np.testing.assert_allclose(state["row_l"].sum(), block["row_l"], rtol=1e-5)


@pytest.mark.parametrize("tile", [TILES[2], TILES[4]])
@pytest.mark.parametrize(("n", "m"), [(40, 24), (33, 96)])
def test_loaded_bytes_are_the_formula(tile, n, m):
    one = flash_lesson.tile_traffic(*inputs(n, m, 64), tile_options(tile))
    assert one.loaded == one.formula
    assert one.read == 4 * 64 * (n + 2 * m)
    assert (one.rows, one.keys) == (4 * tile[0] * tile[2], 8 * tile[1] * tile[3])


def test_visited_tiles_are_those_the_mask_touches():
    q, k, v = inputs(64, 96, 64)
    reads = ReadCounts()
    options = tile_options((4, 2, 1, 1))  # 16 rows, 16 keys
    flash_lesson.run(11, q, k, v, reads, options=options, causal=True)
    found = flash_lesson.visited(reads.of("k")[0], 64, 16, 16)
    mask = reference.causal_mask(64, 96)
    np.testing.assert_array_equal(found, mask.reshape(4, 16, 6, 16).any(axis=(1, 3)))


def test_grouped_heads_and_a_masked_bias():
    q, k, v = inputs(196, 196, 64, heads=2)
    bias = flash_lesson.relative_position_bias(2)
    regions = flash_lesson.shifted_regions()
    masked = bias + flash_lesson.shift_mask(regions)
    out = flash_lesson.run(11, q, k, v, heads=2, bias=masked)
    expected = reference.attention(q[None], k[None], v[None], bias=masked[None])[0]
    assert compare(out, expected)
    assert np.isneginf(masked[0, 0, 195]) and np.isfinite(masked[0, 0, 1])
    np.testing.assert_array_equal(bias[0, 0, 1], bias[0, 14, 15])  # by the offset alone
    assert sorted(np.unique(regions, return_counts=True)[1]) == [49, 49, 49, 49]


def test_warp_work_finds_the_busiest_warp():
    work, seen = WarpWork(), Counters()
    q, k, v = inputs(3, 5, 256)
    flash_lesson.run(8, q, k, v, work)
    flash_lesson.run(8, q, k, v, seen)
    assert work.instructions.shape == (3, 8)
    assert work.instructions.sum() == seen.totals["instructions"]
    assert work.loads.sum() == seen.totals["global_load_requests"]
    assert (work.loads[:, 0] > work.loads[:, 1]).all() and work.busiest == work.instructions.max()


def test_only_the_asynchronous_kernel_multiplies_while_data_travels():
    q, k, v = inputs(32, 96, 64)
    followed = {}
    for number in (11, 12):
        followed[number] = InFlight(warp=1)
        flash_lesson.run(number, q, k, v, followed[number], options=tile_options((4, 4, 2, 1)))
    eleven, twelve = followed[11], followed[12]
    assert eleven.products_under_way == 0 and all(one.products == 0 for one in eleven.flights)
    assert 0 < twelve.products_under_way < twelve.products.size
    assert eleven.products.size == twelve.products.size
    assert len(twelve.flights) == 1 + 2 * 3  # Q, and K and V of three tiles


def test_a_budget_is_used_up_and_not_exceeded():
    for which, options in (("double_buffer_rows", ()), ("double_buffer_slices", ())):
        for size in flash_lesson.BUDGETS.values():
            d = flash_lesson.largest_dim(which, size, options)
            assert flash_lesson.shared_need(which, d, options) <= size
            assert flash_lesson.shared_need(which, d + 4, options) > size
    assert flash_lesson.BUDGETS["sm_90"] == 227 * 1024
    # Two tiles of 32 rows of 132 floats, 64 floats of scores and weights, 64 of output.
    assert flash_lesson.shared_need("double_buffer_slices", 64) == 4 * (2 * 32 * 132 + 64 + 64)


def test_tensor_core_instructions_are_counted_by_their_names():
    found = flash_lesson.ptx_counts("half2_tiles", ("mma", "wmma", "cvt"))
    assert found["mma"] == found["wmma"] == 0 and found["cvt"] > 0


def test_sentences_follow_the_record():
    shape = REPORT_SHAPES[0]
    table = flash_lesson.time_table(
        {shape: RecordedTimes({"a": 2.0, "b": 1.0}, "there")}, ("a", "c")
    )
    assert "2.0" in table and table.endswith("there") and "-" in table
    assert flash_lesson.time_table({}, ("a",)) == flash_lesson.NO_RECORD
    assert "2.00" in flash_lesson.gains({shape: RecordedTimes({"a": 2.0, "b": 1.0}, "")}, "a", "b")
    other = {shape: RecordedTimes({"a": 2.0}, ""), REPORT_SHAPES[1]: None}
    assert flash_lesson.medians(other, ("a", "b")) == {"a": [2.0, None], "b": [None, None]}
    assert flash_lesson.outcome_table(None) == flash_lesson.NO_RECORD
    assert "0.04" in flash_lesson.report_table()


def test_unrelated_shapes_are_not_joined_and_equal_times_hide_nothing():
    figure = flash_plots.times_by_shape(
        ["x", "y"], {"a": [1.0, None], "b": [1.0, 5.0]}, source="s", title="t"
    )
    (axes,) = figure.axes
    assert not [line for line in axes.lines if len(line.get_xdata()) > 2]
    places = [dots.get_offsets() for dots in axes.collections]
    np.testing.assert_allclose([dots[:, 0] for dots in places], [[1, np.nan], [1, 5]])
    assert places[0][0, 1] != places[1][0, 1]
    assert abs(places[0][0, 1]) < 0.5 and all(abs(places[1][n, 1] - n) < 0.5 for n in (0, 1))
    marks = [
        (tuple(dots.get_facecolor()[0]), len(dots.get_paths()[0].vertices))
        for dots in axes.collections
    ]
    assert len(set(marks)) == 2


def test_times_have_ticks_that_can_be_read():
    figure = flash_plots.times_by_shape(["x"], {"a": [40.0], "b": [5000.0]}, source="s", title="t")
    figure.canvas.draw()
    (axes,) = figure.axes
    low, high = axes.get_xlim()
    ticks = axes.get_xticks()
    shown = {
        label.get_text()
        for label, at in zip(axes.get_xticklabels(), ticks, strict=True)
        if low <= at <= high
    }
    assert {"50", "100", "200", "500", "1,000", "2,000", "5,000"} <= shown
    assert axes.get_title(loc="left") + axes.get_title() == "t (lower is better)"


def test_bars_of_thousands_are_written_out():
    figure = attention.bars(["a", "b"], [16896, 1.5], unit="loads")
    assert [text.get_text() for text in figure.axes[0].texts] == ["16,896", "1.5"]


def test_colours_of_a_window_have_units():
    bias = np.array([[0.5, -np.inf], [0.1, 0.0]])
    figure = flash_plots.window_bias(
        bias, np.eye(2), {"a": np.eye(2) / 2, "b": np.eye(2)}, query=(0, 0)
    )
    labels = [axes.get_ylabel() for axes in figure.axes[4:]]
    assert "score" in labels[0] and "weight" in labels[1] and len(labels) == 2
    first, second = (axes.images[0].norm for axes in figure.axes[2:4])
    assert (first.vmax, second.vmax) == (1.0, 1.0)  # one colour bar holds for both


def test_figures(traced):
    blocks, _, _ = traced
    size = {"rows": [1.0, 2.0]}
    figures = [
        flash_plots.running_softmax(blocks),
        flash_plots.times_by_shape(["x", "y"], {"a": [1.0, None]}, source="s"),
        flash_plots.traffic_by_tile([1, 2], [8, 4], [8, 4], labels=["a", "b"], least=2, scores=9),
        flash_plots.visited_tiles(np.tri(6, dtype=bool), np.tri(3, dtype=bool), (2, 2)),
        flash_plots.flights({"k": ([(0, 5), (2, 9)], np.arange(9), 10)}),
        flash_plots.window_bias(
            np.array([[0.0, -np.inf]]), np.eye(1, 2), {"w": np.eye(1, 2)}, query=(0, 0)
        ),
        flash_plots.shared_budget([64, 128], size, {"sm_90": 1.5}),
    ]
    for figure in figures:
        assert isinstance(figure, Figure)
        figure.canvas.draw()
    with pytest.raises(ValueError, match="each shape"):
        flash_plots.times_by_shape(["x"], {"a": [1.0, 2.0]}, source="s")
    with pytest.raises(ValueError, match="fit the tiles"):
        flash_plots.visited_tiles(np.tri(6, dtype=bool), np.tri(2, dtype=bool), (2, 2))
