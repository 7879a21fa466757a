"""Counts of lesson 06, checked against the kernels' own text."""

import numpy as np
import pytest

from attn_course import RawModule, Tracer, observe
from attn_course.ladder.headers import kernel_path
from attn_course.ladder.steps import Problem
from attn_course.lessons import lesson06_reductions

RNG = np.random.default_rng(3)


RISING = ("int offset = 16; offset > 0; offset /= 2", "int offset = 1; offset < 32; offset *= 2")


def traced_softmax(rows=3, keys=77, warp=0, edit=("", "")):
    """(scores, recording) of kernel 05, its text edited, on ragged rows."""
    scores = RNG.standard_normal((1, rows, keys)).astype(np.float32)
    text = kernel_path("05_softmax_warp").read_text(encoding="utf-8").replace(*edit)
    module = RawModule(code=text, backend="simulator")
    arguments = (scores, np.empty_like(scores), np.int32(rows), np.int32(keys), np.float32(0.5))
    with observe(Tracer(warp=warp)) as trace:
        module.get_function("softmax_warp")((1,), (32, 4), arguments)
    return scores[0], trace.recording


@pytest.mark.parametrize(
    ("edit", "offsets"), [(("", ""), (16, 8, 4, 2, 1)), (RISING, (1, 2, 4, 8, 16))]
)
def test_an_exchange_is_the_butterfly_of_the_row(edit, offsets):
    scores, recording = traced_softmax(edit=edit)
    found = lesson06_reductions.exchange(recording, "warp_max")
    padded = np.full(96, -np.inf, np.float32)
    padded[:77] = scores[0] * np.float32(0.5)
    lanes = padded.reshape(3, 32).max(axis=0)
    np.testing.assert_array_equal(found.values[0], lanes)
    for row, offset in enumerate(found.offsets):
        lanes = np.maximum(lanes, lanes[np.arange(32) ^ offset])
        np.testing.assert_array_equal(found.values[row + 1], lanes)
    assert found.offsets == offsets


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
    with pytest.raises(ValueError, match="no such text"):
        found.on_lines("04_softmax_output_serial", "no such text", "s", "instructions")
