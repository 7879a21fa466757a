"""The driver of benchmarks: who takes part, who is checked and dropped, and how many turns."""

import types

import numpy as np
import pytest
from kernelscope.contest import Replay, TimingError

from attn_course import reference
from attn_course.measure import benchmarks, candidates
from attn_course.measure.benchmarks import Entrants, float64_attention, run_benchmark
from attn_course.measure.candidates import BaselineRefuses, Kernels, Part
from attn_course.reference.inputs import seeded_qkv

EXPECTED = np.random.default_rng(3).standard_normal((1, 2, 5, 4))


class FakeCandidate:
    """A candidate whose graph writes `result` into its output, or leaves the poison there."""

    relative = 1e-5

    def __init__(self, result):
        self.result = result
        self.written = EXPECTED.astype(np.float32)

    def poison(self):
        self.written = np.full_like(self.written, np.nan)

    def launch(self):
        if self.result is not None:
            self.written = np.array(self.result, np.float32)

    def output(self):
        return self.written

    def try_call(self):
        self.launch()

    def capture(self, calls):
        return Replay(self.launch, calls)


class Clock:
    def __init__(self):
        self.waits = 0

    def synchronize(self):
        self.waits += 1

    def time_us(self, launch):
        launch()
        return 1.0


@pytest.mark.parametrize(
    ("sample_us", "iterations", "turns"),
    [(10.0, 60, 60), (1e5, 60, 30), (1e6, 60, 10), (1e6, 4, 4), (0.0, 60, 60)],
)
def test_slow_rows_take_fewer_turns(sample_us, iterations, turns):
    assert benchmarks.turns_for({"a": sample_us / 2, "b": sample_us / 2}, iterations) == turns


def test_a_graph_that_writes_nothing_or_rubbish_is_not_timed():
    close = EXPECTED * (1 + 1e-7)
    makers = {"right": close, "silent": None, "off": EXPECTED + 1e-3}
    found = Entrants(
        {name: FakeCandidate(result) for name, result in makers.items()},
        call_us=dict.fromkeys(makers, 1.0),
    )
    replays = {name: Replay(one.launch, 1) for name, one in found.candidates.items()}
    clock = Clock()
    errors = benchmarks.check(found, replays, EXPECTED, clock)
    assert list(found.candidates) == ["right"] and set(found.wrong) == {"silent", "off"}
    assert "NaN" in found.wrong["silent"] and errors["right"].relative_error < 1e-6
    assert clock.waits == 3  # the poison is written before the graph runs


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_of_a_row_is_the_reference(causal):
    q, k, v = seeded_qkv((2, 3, 9, 4))
    expected = reference.attention(q, k, v, causal=causal)
    found = float64_attention(q, k, v, causal=causal)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_gather_says_why_a_candidate_does_not_take_part():
    def refuses(error):
        def make(q, k, v):
            raise error

        return make

    calls = []
    one = types.SimpleNamespace(try_call=lambda: calls.append(1))
    makers = {
        "tiled": lambda q, k, v: one,
        "flash_fp32": refuses(ValueError("head dim 512, but it takes at most 256")),
        "torch_flash": refuses(BaselineRefuses("no float32")),
    }
    found = benchmarks.gather(makers, (None, None, None))
    assert found.candidates == {"tiled": one} and calls == [1]
    assert found.refused == {
        "flash_fp32": "head dim 512, but it takes at most 256",
        "torch_flash": "no float32",
    }


def test_an_estimate_is_the_shortest_of_some_graphs_of_one():
    times = iter([90.0, 30.0, 31.0])
    asked = []
    one = types.SimpleNamespace(capture=lambda calls: asked.append(calls) or Replay(print, calls))
    clock = types.SimpleNamespace(time_us=lambda launch: next(times))
    assert benchmarks.estimate_us(clock, one.capture) == 30.0 and asked == [1]


# -- a contest -------------------------------------------------------------------------------------
SHAPE = (1, 2, 5, 4)


def contest_of(**results):
    makers = {name: lambda q, k, v, r=result: FakeCandidate(r) for name, result in results.items()}
    return run_benchmark(
        seeded_qkv(SHAPE),
        makers,
        iterations=4,
        expected=lambda q, k, v: EXPECTED,
        leave_out=lambda entrants: entrants.drop("slow", entrants.skipped, "too slow"),
        backend="simulator",
        clock=Clock(),
    )


def test_a_contest_times_all_that_are_right():
    result = contest_of(right=EXPECTED, wrong=EXPECTED + 1, slow=EXPECTED, other=EXPECTED)
    assert list(result.records()) == ["right", "other"]
    assert result.entrants.skipped == {"slow": "too slow"} and list(result.entrants.wrong) == [
        "wrong"
    ]
    one = result.records()["right"]
    assert one["samples"] == result.turns == 4 and one["relative_error"] < 1e-6
    with pytest.raises(TimingError, match="no candidate is left: slow: too slow; wrong: "):
        contest_of(wrong=EXPECTED + 1, slow=EXPECTED)


# -- kernels of the course -------------------------------------------------------------------------
CHAINS = [
    [Part(1), Part(4, ("-DTHREADS=32",))],
    [Part("02_scores_tiled", ("-DTILE=16",)), Part(5), Part("output_tiled")],
    [Part("experiments/register_tile")],
    [Part("rows_warp")],
]


@pytest.mark.parametrize("parts", CHAINS, ids=lambda parts: str(parts[0].step))
@pytest.mark.parametrize("keys", [9, 13])
def test_kernels_compute_attention(parts, keys):
    q, k, v = seeded_qkv((2, 2, 9, 8), kv_length=keys)
    one = Kernels("one", parts, q, k, v, backend="simulator")
    assert np.isnan(one.output()).all()
    one.call()
    np.testing.assert_allclose(one.output(), float64_attention(q, k, v), atol=1e-5)
    one.poison()
    assert np.isnan(one.output()).all()
    facts = one.facts()
    assert facts["blocks"] > 0 and facts["threads"] >= 32 and "waves" not in facts


def test_scores_are_the_output_of_a_score_kernel():
    q, k, v = seeded_qkv((1, 2, 9, 8), kv_length=13)
    one = Kernels("scores", [Part(2, ("-DTILE=16",))], q, k, v, backend="simulator")
    one.call()
    np.testing.assert_allclose(
        one.output(), reference.attention_scores(q, k, scale=1), rtol=1e-4, atol=1e-5
    )


def test_given_options_win_over_the_tuning():
    problem = candidates.problem_of(*seeded_qkv((1, 1, 40, 64))[:2])
    tuned = Part("flash_async").launch(problem)
    given = Part("flash_async", ("-DROWS=3",)).launch(problem)
    assert given.constants["ROWS"] == 3 != tuned.constants["ROWS"]
    assert sum(option.startswith("-DROWS=") for option in given.options(("-DROWS=3",))) == 1
    assert len(given.constants) == len(tuned.constants)
