"""The suite of the backward pass on the simulator with a made-up clock: all but the time."""

import types

import numpy as np
import pytest
from fixed_clock import FixedClock
from kernelscope.contest import Contest, Timing
from kernelscope.contest import turns as timing
from record_harness import stamped

from attn_course.cli import main
from attn_course.measure import candidates, records
from attn_course.measure.benchmarks import BenchmarkResult, Entrants
from attn_devtools.bench import BACKWARD_SUITES, backward
from attn_devtools.bench import command as bench
from attn_devtools.bench.backward import BackwardRow, BackwardSuite
from attn_devtools.bench.peers import BACKWARD
from attn_devtools.record import schema

SUITE = BACKWARD_SUITES["backward"]
SMALL = BackwardRow((1, 4, 40, 16), causal=True)
OURS = ("backward_mma", "backward_mma_deterministic")


def run_row(names=OURS, row=SMALL) -> dict:
    small = BackwardSuite("backward", "small ones", (row,))
    return small.run_row(row, names, iterations=2, warmup=0, clock=FixedClock())


# -- who takes part --------------------------------------------------------------------------------
def test_every_method_and_every_peer_takes_part(monkeypatch):
    monkeypatch.setattr(candidates, "available", lambda: True)
    names = SUITE.candidates()
    methods = {"backward_rows", "backward_mma", "backward_wgmma", "backward_wgmma_deterministic"}
    assert methods < set(names) and set(BACKWARD) < set(names)
    assert SUITE.peers(SUITE.rows[0], names) == list(BACKWARD)
    monkeypatch.setattr(candidates, "available", lambda: False)
    assert not set(BACKWARD) & set(SUITE.candidates())
    chosen = ["torch_math_backward", "backward_mma", "backward_mma"]
    assert SUITE.candidates(chosen) == ("torch_math_backward", "backward_mma")
    with pytest.raises(ValueError, match="torch_math'.*; there are: backward_wgmma"):
        SUITE.candidates(["torch_math"])


def test_a_record_names_the_files_its_candidates_are_made_of():
    assert SUITE.files(["backward_wgmma_deterministic", "torch_math_backward"]) == [
        "25_backward_wgmma"
    ]
    assert SUITE.files(["backward_rows", "backward_mma"]) == [
        "21_backward_rows",
        "24_backward_mma",
    ]


def test_rows():
    assert SUITE.rows[1].label == "4,16,4096,128 causal bfloat16"
    assert [row.dtype for row in SUITE.rows].count("float32") == 2
    operations = backward.operations_of(SUITE.rows[0])
    assert operations == 10 * 64 * 4096 * 4096 * 128
    assert backward.operations_of(SUITE.rows[1]) < 0.51 * operations
    assert backward.heads_checked((4, 16, 8, 8)) == (0, 32, 63)
    assert backward.heads_checked((1, 1, 8, 8)) == (0,)


# -- a row -----------------------------------------------------------------------------------------
@pytest.mark.turns(23)
@pytest.mark.system
def test_a_row(made_up_gpu, tmp_path, capsys):
    found = run_row((*OURS, "backward_rows"))
    assert set(found["timings"]) == set(OURS) and found["wrong"] == {}
    assert "float32" in found["refused"]["backward_rows"] and found["best_peer"] is None
    for one in found["timings"].values():
        assert set(one["errors"]) == {"dq", "dk", "dv"}
        assert all(0 < error < 2**-7 for error in one["errors"].values())
        assert one["tflops"] == pytest.approx(found["operations"] / 5e6, abs=1e-3)
    fields = {"suite": "backward", "about": "all", "torch": "", "clocks": {}}
    record = stamped("bench_backward", rows=[found], **fields)
    schema.write(record, "bench_backward", tmp_path)
    assert main.main(["bench", "backward", "--recorded", "--results", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    errors = found["timings"]["backward_mma_deterministic"]["errors"]
    assert "1,4,40,16 causal bfloat16" in said and f"{errors['dk']:.1e}" in said
    found["timings"]["backward_mma"].pop("errors")
    with pytest.raises(records.RecordError, match="errors"):
        schema.write(record, "bench_backward", tmp_path)


@pytest.mark.turns(47)
@pytest.mark.system
@pytest.mark.parametrize("gradient", [0, 1, 2])
def test_a_wrong_gradient_is_not_timed(made_up_gpu, monkeypatch, gradient):
    output = backward.OurGradients.output

    def spoilt(self):
        found = output(self)
        found[gradient] *= 1.1
        return found

    monkeypatch.setattr(backward.OurGradients, "output", spoilt)
    with pytest.raises(timing.TimingError, match="no candidate is left: backward_mma.*are wrong"):
        run_row()


@pytest.mark.system
def test_a_nan_in_a_head_that_is_not_compared_shows(made_up_gpu, monkeypatch):
    call = backward.OurGradients.try_call
    assert backward.heads_checked(SMALL.shape) == (0, 2, 3)

    def spoil(self):
        call(self)
        run = self.call

        def spoilt():
            run()
            self.gradients[1][0, 1, 5, 3] = np.nan

        self.call = spoilt

    monkeypatch.setattr(backward.OurGradients, "try_call", spoil)
    with pytest.raises(timing.TimingError, match="are NaN: never written"):
        run_row()


def test_ours_against_the_best_peer(monkeypatch):
    medians = {"backward_mma": 20.0, "torch_math_backward": 90.0, "torch_flash_backward": 30.0}
    exact = backward.exact(SMALL)
    same = types.SimpleNamespace(output=lambda: exact, relative_error=0.0)
    timings = {name: Timing(name, "graph", (us,) * 9, 20) for name, us in medians.items()}
    entrants = Entrants(candidates=dict.fromkeys(medians, same))
    result = BenchmarkResult(entrants, Contest(timings), dict.fromkeys(medians, same), 9)
    found = SUITE.standing(SMALL, result)
    assert (found["best_peer"], found["best_method"]) == ("torch_flash_backward", "backward_mma")
    assert found["ratios"]["backward_mma"]["value"] == 1.5 and len(found["ratios"]) == 1
    assert found["timings"]["torch_math_backward"]["errors"] == {"dq": 0.0, "dk": 0.0, "dv": 0.0}


def test_recorded_suites_hold_what_is_claimed_of_them():
    """Each stored record: all rows, every timed output checked, a peer in each row."""
    for record in records.records("bench_backward"):
        assert [row["label"] for row in record["rows"]] == [row.label for row in SUITE.rows]
        assert bench.problems(record) == []
        for row in record["rows"]:
            assert row["best_peer"] and row["ratios"]
            bound = backward.SLACK * backward.TOLERANCES[row["dtype"]]
            assert all(one["relative_error"] < bound for one in row["timings"].values())
