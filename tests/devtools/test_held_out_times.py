"""Times and counters of the held-out kernels, with a made-up GPU."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from kernelscope import RawModule

from attn_devtools import held_out_times
from attn_devtools.held_out_times import held_out

FOLDERS = sys.modules[held_out.__module__].FOLDERS  # beside the engine's tests, in no package

GPU = {"gpu": "made up", "driver": "1", "cuda": "1"}


NAMES = {  # set -> those of its kernels that are tried
    "held_out_second": ("igemm_warp", "batched_16", "rms_norm"),
    "held_out_third": ("dropout_philox", "dot_int8", "bf16_tile"),
    "held_out_twelfth": ("over_composite_rgba", "gcn_scatter_add", "pair_hmm_warp"),
    "held_out_thirteenth": ("murmur3_strings", "sddmm_warp", "farthest_points"),
    "held_out_fourteenth": ("adagrad_embedding_rows", "spmv_bsr_4x4", "ray_triangles_nearest"),
    "held_out_fifteenth": ("geglu_erf_half2", "minhash_128", "cahn_hilliard_double"),
    "held_out_sixteenth": ("modulate_layer_norm_half", "siphash_24_words", "kepler_newton_double"),
    "held_out_seventeenth": ("gemv_q8_blocks_dp4a", "radix_select_rows", "points_in_polygon"),
    "held_out_eighteenth": ("dgemm_64_tile", "merge_sort_2048", "fir_64_decimate_8"),
    "held_out_nineteenth": ("max_unpool_2x2", "adler32_chunks_4096", "kalman_plane_tracks"),
}


@pytest.fixture
def few(request, monkeypatch):
    """Three small cases of a set; kernels run on the simulator and take 20 microseconds."""
    folder = getattr(request, "param", "held_out_second")

    def with_arrays(cases):
        for case in cases:
            yield case, case.values(np)

    monkeypatch.setattr(held_out_times, "with_arrays", with_arrays)
    monkeypatch.setattr(held_out_times, "gpu_identity", lambda: GPU)

    def replay_times(call, calls, samples):
        call()
        return [20.0] * samples

    monkeypatch.setattr(held_out_times, "replay_times", replay_times)
    cases = [c for c in held_out(folder) if c.name in NAMES[folder]][1::2]
    small = [c.__class__(**vars(c) | {"grid": (1,)}) for c in cases]
    monkeypatch.setattr(
        held_out_times.HeldOut,
        "kernel",
        lambda self, _: RawModule(
            path=str(FOLDERS[self.folder] / self.file), backend="simulator"
        ).get_function(self.name),
    )
    return small


@pytest.mark.turns(17)
@pytest.mark.parametrize("few", NAMES, indirect=True)
def test_every_case_gets_a_time_and_metrics(few, tmp_path, monkeypatch):
    asked = []

    def run_ncu(program, launches, metrics, more):
        labels = program[program.index("--launch") + 1 :]
        asked.append((labels, [one.entry for one in launches], set(metrics)))
        assert "off" in more and "none" in more
        if "lts__throughput.avg.pct_of_peak_sustained_elapsed" in metrics:
            raise held_out_times.ProfilerError("ncu failed, and does not say at what")
        known = [name for name in metrics if "imma" not in name] + ["nvlink__dev0type"]
        return [SimpleNamespace(metrics=dict.fromkeys(known, 50.0)) for _ in launches]

    monkeypatch.setattr(held_out_times, "run_ncu", run_ncu)
    path = tmp_path / "times.json"
    held_out_times.measure(few, path, time.monotonic() + 60)
    record = json.loads(path.read_text())
    every = {metric for unit in held_out_times.NCU_UNITS.values() for metric in unit}
    wanted = {name for name in every if "imma" not in name and "lts__throughput" not in name}
    assert record["folder"] == few[0].folder and record["gpu"] == "made up"
    assert [row["label"] for row in record["rows"]] == [one.label for one in few]
    assert all(row["median_us"] == 20.0 and row["calls_a_sample"] == 50 for row in record["rows"])
    assert asked[-1] == ([one.label for one in few], [one.name for one in few], wanted)
    assert all(wanted == set(row["ncu"]) for row in record["rows"])


def test_a_failing_kernel_and_a_missing_ncu_leave_the_others(few, tmp_path, monkeypatch, capsys):
    real = held_out_times.timed

    def timed(case, values):
        if case.name == "batched_16":
            raise RuntimeError("no such kernel")
        return real(case, values)

    monkeypatch.setattr(held_out_times, "timed", timed)
    monkeypatch.setattr(held_out_times, "run_ncu", missing)
    path = tmp_path / "times.json"
    held_out_times.measure(few, path, time.monotonic() + 60)
    record = json.loads(path.read_text())
    assert [row["label"].split()[0] for row in record["rows"]] == ["rms_norm", "igemm_warp"]
    said = capsys.readouterr().out
    assert "no such kernel" in said and "no ncu here" in said


def missing(*_):
    raise held_out_times.ProfilerError("no ncu here")


def test_no_other_tool_reads_the_sets():
    """The fit of the model's constants, and what records times for it, are such tools."""
    tools = Path(held_out_times.__file__).parent
    reading = {p.name for p in tools.rglob("*.py") if "held_out" in p.read_text(encoding="utf-8")}
    assert (tools / "time_fit.py").is_file() and reading == {"held_out_times.py"}


def test_a_python_without_the_sets_says_how_it_is_called():
    command = [sys.executable, "-m", "attn_devtools.held_out_times"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and "usage" in done.stderr
