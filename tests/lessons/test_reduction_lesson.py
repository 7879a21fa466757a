"""What lesson 06 counts and draws, against what the kernels must do by their own text."""

import numpy as np
import pytest

from attn_course import RawModule, Tracer, observe
from attn_course.figures import reductions
from attn_course.ladder.steps import Problem
from attn_course.lessons import lesson06_reductions

RNG = np.random.default_rng(3)


def traced_softmax(rows=3, keys=77, warp=0):
    """(scores, recording) of kernel 05 on ragged rows."""
    scores = RNG.standard_normal((1, rows, keys)).astype(np.float32)
    module = RawModule(path="kernels/05_softmax_warp.cu", backend="simulator")
    arguments = (scores, np.empty_like(scores), np.int32(rows), np.int32(keys), np.float32(0.5))
    with observe(Tracer(warp=warp)) as trace:
        module.get_function("softmax_warp")((1,), (32, 4), arguments)
    return scores[0], trace.recording


def test_an_exchange_is_the_butterfly_of_the_row():
    scores, recording = traced_softmax()
    found = lesson06_reductions.exchange(recording, "warp_max")
    padded = np.full(96, -np.inf, np.float32)
    padded[:77] = scores[0] * np.float32(0.5)
    lanes = padded.reshape(3, 32).max(axis=0)
    np.testing.assert_array_equal(found.values[0], lanes)
    for row, offset in enumerate(found.offsets):
        lanes = np.maximum(lanes, lanes[np.arange(32) ^ offset])
        np.testing.assert_array_equal(found.values[row + 1], lanes)
    assert found.offsets == (16, 8, 4, 2, 1) and found.holders == (1, 2, 4, 8, 16, 32)


def test_an_exchange_of_sums_ends_equal_in_all_lanes():
    scores, recording = traced_softmax()
    found = lesson06_reductions.exchange(recording, "warp_sum")
    assert len(np.unique(found.values[-1])) == 1
    scaled = scores[0].astype(np.float64) / 2
    assert found.values[-1, 0] == pytest.approx(np.exp(scaled - scaled.max()).sum(), rel=1e-5)
    assert found.values[0].astype(np.float64).sum() == pytest.approx(found.values[-1, 0], rel=1e-5)


def test_a_trace_without_the_call_is_refused():
    _, recording = traced_softmax(rows=1, warp=3)  # a warp without a row leaves at once
    with pytest.raises(ValueError, match="no whole call of warp_max"):
        lesson06_reductions.exchange(recording, "warp_max")


def test_what_a_lane_knows_doubles():
    known = lesson06_reductions.known_after((16, 8, 4, 2, 1), lane=5)
    assert known[:3] == [{5}, {5, 21}, {5, 13, 21, 29}]
    assert [len(one) for one in known] == [1, 2, 4, 8, 16, 32]
    assert lesson06_reductions.known_after((1, 2), lane=0)[-1] == {0, 1, 2, 3}


@pytest.mark.parametrize("keys", [30, 100])
def test_counts_follow_from_the_kernels_text(keys):
    size = Problem(bh=1, n=5, m=keys, d=8)
    q, k, v = (RNG.standard_normal((1, n, 8)).astype(np.float32) for n in (5, keys, keys))
    inputs = {"q": q, "k": k, "v": v, "s": q @ k.swapaxes(1, 2)}
    softmax = lesson06_reductions.count([5], inputs, 1.0, problem=size)
    assert softmax.tally.warps["shuffles"] == 5 * 10  # a row: 5 for the maximum, 5 for the sum
    assert softmax.tally.lanes["shuffles"] == 32 * 50 and softmax.tally.warps["barriers"] == 0
    np.testing.assert_allclose(softmax.buffers["p"].sum(axis=2), 1, rtol=1e-5)
    assert not np.shares_memory(softmax.buffers["p"], inputs["s"]), "the caller's scores survive"
    queue = lesson06_reductions.count([7], inputs, 1.0, problem=size)
    assert queue.tally.lanes["atomics"] == 5 * 2 * keys
    assert queue.tally.warps["atomics"] == queue.seen.totals["atomic_requests"]
    assert queue.tally.warps["barriers"] == queue.seen.totals["barriers"] == 5 * 8 * 3
    tree = lesson06_reductions.count([8], inputs, 1.0, problem=size)
    assert tree.tally.warps["atomics"] == 0
    assert tree.tally.warps["shuffles"] == 5 * 8 * 20


def test_the_busiest_warp_is_one_of_all():
    """Rows of equal length: every warp executes the same, and the launch is warps times that."""
    size = Problem(bh=1, n=8, m=64, d=4)
    scores = RNG.standard_normal((1, 8, 64)).astype(np.float32)
    found = lesson06_reductions.count([5], {"s": scores}, 1.0, problem=size)
    assert 8 * found.tally.longest_warp == found.seen.totals["instructions"]


def test_lines_are_found_by_their_text():
    size = Problem(bh=1, n=32, m=16, d=4)
    inputs = {
        "s": RNG.standard_normal((1, 32, 16)).astype(np.float32),
        "v": RNG.standard_normal((1, 16, 4)).astype(np.float32),
    }
    found = lesson06_reductions.count([4], inputs, 1.0, problem=size)
    line = ("04_softmax_output_serial", "maximum = fmaxf", "maximum = fmaxf")
    assert found.on_lines(*line, "global_load_requests") == 16
    assert found.on_lines(*line, "global_load_sectors") == 16 * 32
    whole = found.on_lines(
        "04_softmax_output_serial", "float maximum", "out_row[c]", "global_load_requests"
    )
    assert whole == found.seen.totals["global_load_requests"]
    with pytest.raises(StopIteration):
        found.on_lines("04_softmax_output_serial", "no such text", "s", "instructions")


def test_floats_in_the_order_of_ints():
    values = np.sort(RNG.standard_normal(100).astype(np.float32))
    values = np.concatenate([np.float32([-np.inf]), values, np.float32([np.inf])])
    assert (np.diff(lesson06_reductions.ordered(values).astype(np.int64)) > 0).all()
    negative = lesson06_reductions.float_bits(values[values < 0]).astype(np.int64)
    assert (np.diff(negative) < 0).all(), "bare bits fall where negative floats rise"
    assert lesson06_reductions.float_bits(1.0) == 0x3F800000


def test_relative_error():
    assert lesson06_reductions.relative_error([1.0, 1.0], [1.0, 2.0]) == pytest.approx(
        1 / np.sqrt(5)
    )


# -- figures ---------------------------------------------------------------------------------------
def labels(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_a_butterfly_shows_every_value_and_marks_the_way():
    _, recording = traced_softmax()
    found = lesson06_reductions.exchange(recording, "warp_max")
    shown = labels(reductions.butterfly(found.offsets, found.values))
    assert shown.count(f"{found.values[-1, 0]:.1f}") >= 32 and "offset 16" in shown
    assert [text for text in shown if text in ("1", "2", "4", "8", "16", "32")][:6] == [
        "1",
        "2",
        "4",
        "8",
        "16",
        "32",
    ]  # how many lanes are marked, row by row
    sums = lesson06_reductions.exchange(recording, "warp_sum")
    shown = labels(reductions.butterfly(sums.offsets, sums.values, lane=5))
    assert [text for text in shown if text in ("1", "2", "4", "8", "16", "32")][:6] == [
        "32",
        "16",
        "8",
        "4",
        "2",
        "1",
    ]


def test_figures_refuse_what_does_not_fit():
    with pytest.raises(ValueError, match="need 3 rows"):
        reductions.butterfly((16, 8), np.zeros((2, 32)))
    with pytest.raises(ValueError, match="two floats are equal"):
        reductions.float_orders([1, 1], {"x": np.array([1, 2])})
    with pytest.raises(ValueError, match="2 different integers"):
        reductions.float_orders([1, 2], {"x": np.array([1, 1])})


def test_a_float_that_moves_is_red():
    values = np.float32([-2, -1, 3])
    figure = reductions.float_orders(
        values,
        {
            "bits": lesson06_reductions.float_bits(values),
            "ordered": lesson06_reductions.ordered(values),
        },
    )
    colours = [[line.get_color() for line in axes.lines] for axes in figure.axes]
    assert colours[0][0] == colours[0][1] == reductions.RED != colours[0][2]
    assert reductions.RED not in colours[1]
