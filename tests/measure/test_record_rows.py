"""The rows of every record, measured on the simulator with a made-up clock: all that a GPU run does
but the time.
"""

import cupy
import numpy as np
import pytest
from kernelscope.contest import Replay
from kernelscope.contest import turns as timing

from attn_course.ladder.methods import METHODS, dtypes_of
from attn_course.ladder.steps import Device
from attn_course.lessons import fused, lesson05_timing, lesson07_pipelines
from attn_course.lessons import lesson03_memory as memory_levels
from attn_course.measure import (
    benchmarks,
    candidates,
    records,
)
from attn_devtools.bench import attention
from attn_devtools.bench.attention import PIPELINES, AttentionSuite, SuiteRow
from attn_devtools.record import ablation_times, schema, tile_model
from attn_devtools.record.report import report

pytestmark = pytest.mark.system

SHAPE = (1, 2, 5, 16)


class Clock:
    def synchronize(self):
        pass

    def time_us(self, launch):
        launch()
        return 5.0


@pytest.fixture
def made_up_gpu(monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")
    monkeypatch.setattr(candidates, "capture", lambda call, calls: Replay(call, calls))
    monkeypatch.setattr(candidates, "available", lambda: False)
    for name, value in {
        "array_module": lambda backend: np,
        "GpuClock": Clock,
        "calls_for": lambda call_us: 1,
        "ESTIMATES": 1,
    }.items():
        monkeypatch.setattr(benchmarks, name, value)
    for module in (benchmarks, timing, memory_levels):
        monkeypatch.setattr(module, "require_gpu", lambda: None)
    monkeypatch.setattr(timing, "clocks", lambda: {})
    monkeypatch.setattr(
        candidates, "pick", lambda method, p, backend: METHODS_OF.get(method, method)
    )
    monkeypatch.setattr(attention, "pick", lambda *_: "rows_online")
    monkeypatch.setattr(cupy, "asarray", np.asarray)


METHODS_OF = {"auto": "rows_online"}


@pytest.mark.turns(29)
def test_a_row_of_a_suite(made_up_gpu):
    row = SuiteRow(SHAPE, pipelines=True)
    suite = AttentionSuite("small", "", (row,), all_methods=True)
    found = suite.run_row(row, suite.candidates(), iterations=1, warmup=0)
    methods = {method for method in METHODS if "float32" in dtypes_of(method)}
    assert set(found["timings"]) == {*methods, "auto", *PIPELINES} and not found["wrong"]
    assert {name: len(parts) for name, parts in found["kernels"].items()} == {
        name: len(parts) for name, parts in PIPELINES.items()
    }
    assert found["kernels"]["scores_naive+serial"][1]["name"] == "04_softmax_output_serial"
    names = ("naive", "rows_online")
    causal = suite.run_row(SuiteRow(SHAPE, True), names, iterations=2)
    assert (
        list(causal["timings"]) == ["rows_online"] and "causal mask" in causal["refused"]["naive"]
    )


@pytest.mark.turns(29)
def test_a_row_of_a_suite_in_bfloat16(made_up_gpu, monkeypatch):
    """Half of the queries are compared, and an output with a NaN in another one is wrong."""
    suite = AttentionSuite("halves", "", (), dtype="bfloat16", sampled=True)
    row = SuiteRow((1, 2, 140, 24), causal=True)
    monkeypatch.setattr(attention, "pick", lambda *_: "flash_mma")
    monkeypatch.setitem(METHODS_OF, "auto", "flash_mma")
    found = suite.run_row(row, suite.candidates(), iterations=2, warmup=0)
    own = {"flash_wmma", "flash_mma", "flash_wgmma", "decode", "decode_cluster", "auto"}
    assert set(found["timings"]) == own and not found["wrong"]
    errors = [one["relative_error"] for one in found["timings"].values()]
    assert all(1e-4 < error < 2**-8 for error in errors) and found["dtype"] == "bfloat16"
    assert found["bytes"] == 2 * 4 * 2 * 140 * 24
    compared = attention.compared_queries(140)
    unseen = next(query for query in range(140) if query not in compared)

    def spoilt(self):
        out = np.array(self.out)
        out[0, 0, unseen] = np.nan
        return out

    monkeypatch.setattr(candidates.Kernels, "output", spoilt)
    with pytest.raises(timing.TimingError, match="flash_wmma, elements that are finite: 24 of"):
        suite.run_row(row, ("flash_wmma",), iterations=2, warmup=0)


@pytest.mark.turns(29)
def test_a_row_of_experiments(made_up_gpu, monkeypatch):
    found = fused.measure_shape(SHAPE, fused.VARIANTS, iterations=1)
    timed = found["candidates"]
    assert {*timed, *found["refused"]} == set(fused.VARIANTS) and not found["wrong"]
    assert {"rows_atomic", "multi_query", "half2_tiles"} <= set(timed)
    shown = {name: one | {"resident_blocks": 1} for name, one in timed.items()}
    record = {"rows": [found | {"candidates": shown}], "tiles": found | {"candidates": shown}}
    assert report(record).count("rows_atomic") == 2


@pytest.mark.turns(23)
def test_a_row_of_tiles(made_up_gpu):
    wanted = tile_model.variants(SHAPE, 33, Device())
    few = dict(list(wanted.items())[-3:])
    found = fused.measure_shape(SHAPE, few, keys=33, iterations=2)
    assert list(found["candidates"]) == list(few) and not found["wrong"]


@pytest.mark.turns(41)
def test_a_row_of_pipelines(made_up_gpu):
    found = lesson07_pipelines.measure_shape(SHAPE, 2)
    names = {*lesson07_pipelines.CHAINS, *lesson07_pipelines.METHOD_NAMES}
    assert set(found["pipelines"]) == names and list(found["kernels"]) == list(
        lesson07_pipelines.KERNELS
    )
    assert "05 softmax" in report({"rows": [found]})


@pytest.mark.turns(23)
def test_times_of_the_score_kernels(made_up_gpu, monkeypatch):
    monkeypatch.setattr(memory_levels, "SHAPE", SHAPE)
    found = memory_levels.score_times(2)
    assert [one["name"] for one in found["timings"]] == list(memory_levels.score_variants())
    wrong = np.zeros((1, 2, 5, 5))
    monkeypatch.setattr(memory_levels, "_expected_scores", lambda q, k, v: wrong)
    with pytest.raises(RuntimeError, match="elements are wrong"):
        memory_levels.score_times(2)


# -- whole records ---------------------------------------------------------------------------------
def stored_rows(module) -> dict:
    """Return name of a function of the module -> its result, as a stored record has it."""
    stored = records.newest_record(module.KIND)
    if module is memory_levels:
        parts = {"score_times": "scores", "latencies": "latencies", "bandwidths": "bandwidths"}
        sizes = {name: stored[name] for name in ("multiprocessors", "l2_bytes")}
        return {"device_sizes": sizes} | {name: stored[part] for name, part in parts.items()}
    row = stored["rows"][0]
    return {"measure_shape": row, "measure": row, "compile_parts": 0}


@pytest.mark.turns(11)
@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize(
    "module",
    [fused, memory_levels, lesson07_pipelines, ablation_times],
    ids=lambda module: module.KIND,
)
def test_a_record_of_stored_rows_fits_its_schema(module, quick, made_up_gpu, monkeypatch):
    identity = {"gpu": "NVIDIA H200", "driver": "1", "cuda": "12.9"}
    launch = records.newest_record("timing_lesson")["experiments"]["empty_launch"]
    monkeypatch.setattr(records, "gpu_identity", lambda: identity)
    monkeypatch.setattr(lesson05_timing, "empty_launch", lambda repeats: launch)
    known = {"require_gpu": None, "current_device": Device("H200", (9, 0), 132, 232448)}
    for name, value in (known | stored_rows(module)).items():
        if hasattr(module, name):
            monkeypatch.setattr(module, name, lambda *_, value=value, **__: value)
    if module is ablation_times:
        row = stored_rows(module)["measure"]
        monkeypatch.setattr(ablation_times.Trials, "measure", lambda *_: row)
    found = getattr(module, "FLASH", module).record(quick=quick)
    schema.check(found)
    assert found["kind"] == module.KIND and found["gpu"] == "NVIDIA H200" and found["kernels"]
    assert " us" in report(found) and not records.stale_kernels(found)
