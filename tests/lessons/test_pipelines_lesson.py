"""Times of pipelines and their kernels, measured or from any record."""

import json

import pytest
from record_harness import NOT_TIMED, stamped, timing

from attn_course.ladder.steps import Problem
from attn_course.lessons import lesson07_pipelines
from attn_course.lessons.lesson07_pipelines import CHAINS, KERNELS, SHAPES, times
from attn_course.measure import records
from attn_course.measure.records import RecordError

LAUNCH = {"calls": 500, "timings": {"graph": timing(0.7)}}
CLOCKS = {"sm_mhz": [1900.0, 1950.0, 1980.0]}


def timed(names, start=10.0):
    return {
        name: timing(start + at, name, p20_us=start, p80_us=start + 9)
        for at, name in enumerate(names)
    }


def write(root, name, kind, **fields):
    path = root / "h200" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(stamped(kind, **fields)))


def own_record(shape=(1, 1, 2048, 64)):
    row = {
        "shape": list(shape),
        "pipelines": timed([*CHAINS, "auto", "torch_eager"]),
        "kernels": timed(KERNELS),
        "tiled_over_naive": {"name": "a", "peer": "b", "value": 1.1, "low": 1.0, "high": 1.2},
        **NOT_TIMED,
    }
    return {"torch": "2.9", "rows": [row], "clocks": CLOCKS, "empty_launch": LAUNCH}


def test_times_of_its_own_record(no_gpu, tmp_path):
    write(tmp_path, "pipeline", "pipeline", **own_record())
    t = times((1, 1, 2048, 64), tmp_path)
    assert t.pipelines["01 + 04"] == 10 and t.kernels["01 scores"] == 10
    assert (t.sm_mhz, t.nothing_us, t.interval) == (1950, 0.7, (1.0, 1.2))
    assert t.source.startswith("recorded 2026-01-02") and t.short == "NVIDIA H200, 2026-01-02"
    assert t.parts("01 + 04") == {"01 scores": 10, "04 softmax and output": 13}
    assert t.best_peer() == "torch_eager" and t.problem == Problem(1, 2048, 2048, 64)
    with pytest.raises(KeyError, match="no row of shape"):
        times((1, 1, 7, 7), tmp_path)


def test_times_without_readings_of_the_clock(no_gpu, tmp_path):
    write(tmp_path, "pipeline", "pipeline", **own_record() | {"clocks": {}})
    assert times((1, 1, 2048, 64), tmp_path).sm_mhz is None


def test_rows_by_size_are_of_both_suites_without_a_mask(no_gpu, tmp_path):
    for name, shape in (
        ("bench_seeds_fp32", [1, 1, 2048, 64]),
        ("bench_long_fp32", [4, 16, 9, 64]),
    ):
        rows = [{"shape": shape, "causal": causal} for causal in (True, False)]
        write(tmp_path, name, name, rows=rows)
    found, source = lesson07_pipelines.by_size(tmp_path)
    assert [row["shape"] for row in found] == [[1, 1, 2048, 64], [4, 16, 9, 64]]
    assert found[0]["gpu"] == "NVIDIA H200" and source.count("2026-01-02") == 1


def test_an_empty_kernels_time_is_of_the_same_gpu(no_gpu, tmp_path):
    experiments = {"empty_launch": LAUNCH}
    write(tmp_path, "timing_lesson", "timing_lesson", torch="2.9", experiments=experiments)
    assert lesson07_pipelines.nothing_us("NVIDIA H200", tmp_path) == 0.7
    with pytest.raises(RecordError, match="attn-course record timing"):
        lesson07_pipelines.nothing_us("another", tmp_path)


def test_without_any_record(no_gpu, tmp_path):
    with pytest.raises(RecordError, match="attn-course record pipeline"):
        times(SHAPES[0], tmp_path)
    with pytest.raises(RecordError, match="attn-course record seeds_fp32"):
        lesson07_pipelines.by_size(tmp_path)


def test_on_a_gpu_the_times_are_measured_once(monkeypatch, tmp_path):
    calls = []
    live = stamped("pipeline", **own_record())
    monkeypatch.setattr(records, "resolve_backend", lambda: "gpu")
    monkeypatch.setattr(records, "_measured_now", {})
    monkeypatch.setattr(lesson07_pipelines, "record", lambda **_: calls.append(1) or live)
    for _ in range(2):
        found = times((1, 1, 2048, 64), tmp_path)
    assert found.source == "measured now on NVIDIA H200" and len(calls) == 1
    with pytest.raises(KeyError):
        times((9, 9, 9, 9), tmp_path)  # not among those that are measured


def test_chains_are_made_of_timed_kernels():
    assert all(set(parts) <= set(KERNELS) for parts in CHAINS.values())
