"""Times of pipelines and their kernels, measured or from any record."""

import json

import pytest
from record_harness import NOT_TIMED, stamped, timing

from attn_course.ladder.steps import Problem
from attn_course.measure import pipeline_times, records
from attn_course.measure.pipeline_times import CHAINS, KERNELS, SHAPES, times
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
    with pytest.raises(RecordError, match="attn-course record pipeline"):
        times((1, 1, 7, 7), tmp_path)


def test_a_suites_record_serves_as_well(no_gpu, tmp_path):
    first, second, last = "scores_naive+serial", "scores_tiled+serial", "scores_tiled+warp+tiled"
    kernels = {
        first: {"01_scores_naive": 5.0, "04_softmax_output_serial": 60},
        second: {"02_scores_tiled": 3.0, "04_softmax_output_serial": 61},
        last: {"02_scores_tiled": 2.0, "05_softmax_warp": 1.0, "06_output_tiled": 4.0},
    }
    row = {
        **NOT_TIMED,
        **dict.fromkeys(("best_peer", "best_backend", "best_method")),
        "label": "1,1,2048,64",
        "shape": [1, 1, 2048, 64],
        "causal": False,
        "auto_picks": "flash_split",
        "timings": timed([first, second, "three_kernels", last, "auto"]),
        "kernels": {
            name: [timing(us, file) for file, us in parts.items()]
            for name, parts in kernels.items()
        },
    }
    suite = {"suite": "seeds_fp32", "about": "small", "torch": "2.9", "rows": [row]}
    write(tmp_path, "bench_seeds_fp32", "bench_seeds_fp32", clocks=CLOCKS, **suite)
    experiments = {"empty_launch": LAUNCH}
    write(tmp_path, "timing_lesson", "timing_lesson", torch="2.9", experiments=experiments)
    t = times((1, 1, 2048, 64), tmp_path)
    assert set(CHAINS) <= set(t.pipelines) and t.pipelines["01 + 05 + 06"] == 12
    assert t.kernels["02 scores, K tile [tx][ty]"] == 3 and t.kernels["02 scores"] == 2
    assert t.parts("02 + 05 + 06") == {"02 scores": 2, "05 softmax": 1, "06 output": 4}
    assert (t.nothing_us, t.interval) == (0.7, None)
    found, source = pipeline_times.by_size(tmp_path)
    assert found[0]["nothing_us"] == 0.7 and "2026-01-02" in source
    write(tmp_path, "pipeline", "pipeline", **own_record())
    assert times((1, 1, 2048, 64), tmp_path).interval, "its own record comes first"


def test_without_any_record(no_gpu, tmp_path):
    with pytest.raises(RecordError, match="attn-course record pipeline"):
        times(SHAPES[0], tmp_path)
    with pytest.raises(RecordError, match="attn-course record seeds_fp32"):
        pipeline_times.by_size(tmp_path)


def test_on_a_gpu_the_times_are_measured_once(monkeypatch, tmp_path):
    calls = []
    live = stamped("pipeline", **own_record())
    for module in (pipeline_times, records):
        monkeypatch.setattr(module, "resolve_backend", lambda: "gpu")
    monkeypatch.setattr(records, "_measured_now", {})
    monkeypatch.setattr(pipeline_times, "record", lambda **_: calls.append(1) or live)
    for _ in range(2):
        found = times((1, 1, 2048, 64), tmp_path)
    assert found.source == "measured now on NVIDIA H200" and len(calls) == 1
    with pytest.raises(RecordError):
        times((9, 9, 9, 9), tmp_path)  # not among those that are measured


def test_chains_are_made_of_timed_kernels():
    assert all(set(parts) <= set(KERNELS) for parts in CHAINS.values())
    assert set(pipeline_times._BENCH_CHAINS.values()) == set(CHAINS)
