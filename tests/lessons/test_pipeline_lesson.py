"""Amdahl's law, the floors and the counts of lesson 07, and its times from any record."""

import json
import math

import numpy as np
import pytest

from attn_course.figures import pipelines
from attn_course.ladder.steps import Problem
from attn_course.lessons import lesson07_pipeline
from attn_course.lessons.lesson06_reductions import count
from attn_course.measure import pipeline_times, records
from attn_course.measure.pipeline_times import CHAINS, KERNELS, SHAPES, times
from attn_course.measure.records import RecordError

STAMP = {
    "gpu": "NVIDIA H200",
    "driver": "1",
    "cuda": "12.9",
    "date": "2026-01-02",
    "commit": "a",
    "kernels": {},
}
LAUNCH = {"timings": {"graph": {"median_us": 0.7}}}
CLOCKS = {"sm_mhz": [1900.0, 1950.0, 1980.0]}


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setenv("ATTN_COURSE_BACKEND", "simulator")


def timed(names, start=10.0):
    return {
        name: {"median_us": start + at, "p20_us": start, "p80_us": start + 9}
        for at, name in enumerate(names)
    }


def write(root, name, kind, **fields):
    path = root / "h200" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"kind": kind, **STAMP, **fields}))


def own_record(shape=(1, 1, 2048, 64)):
    row = {
        "shape": list(shape),
        "pipelines": timed([*CHAINS, "auto", "torch_eager"]),
        "kernels": timed(KERNELS),
        "tiled_over_naive": {"value": 1.1, "low": 1.0, "high": 1.2},
    }
    return {"rows": [row], "clocks": CLOCKS, "empty_launch": LAUNCH}


# -- Amdahl ----------------------------------------------------------------------------------------
def test_amdahl():
    assert lesson07_pipeline.amdahl(0.5, 2) == pytest.approx(4 / 3)
    assert lesson07_pipeline.amdahl(0.75, math.inf) == 4 and lesson07_pipeline.amdahl(0, 100) == 1
    assert (
        lesson07_pipeline.amdahl(1, 7) == pytest.approx(7)
        and lesson07_pipeline.amdahl(1, math.inf) == math.inf
    )
    assert lesson07_pipeline.amdahl(0.3, 0.5) < 1, "a part that got slower slows the whole"
    parts, factor = np.array([3.0, 5.0, 2.0]), 4
    after = parts[0] / factor + parts[1:].sum()
    assert lesson07_pipeline.amdahl(parts[0] / parts.sum(), factor) == pytest.approx(
        parts.sum() / after
    )


@pytest.mark.parametrize(("share", "factor"), [(-0.1, 2), (1.1, 2), (0.5, 0), (math.nan, 2)])
def test_amdahl_refuses_what_is_no_share_and_no_factor(share, factor):
    with pytest.raises(ValueError):
        lesson07_pipeline.amdahl(share, factor)


# -- counts and floors -----------------------------------------------------------------------------
def test_lookups_of_the_serial_kernel():
    """A lane a line for every score: 3 reads of the softmax, 2 writes, d reads; V once a warp."""
    per_score = lesson07_pipeline.serial_lookups(64, d=8)
    assert 2 + 2 + 8 < per_score < 3 + 2 + 8 + 8 / 32 + 1
    assert lesson07_pipeline.serial_lookups(128, d=8) == pytest.approx(per_score, rel=0.02)


def test_the_longest_warp_adds_up_over_the_kernels_of_a_method():
    shape = (1, 1, 32, 8)
    whole = lesson07_pipeline.longest_warp("tiled", shape)
    q, k, v = (np.ones((1, 32, 8), np.float32),) * 3
    parts = 0
    for number in (2, 5, 6):
        inputs = {"q": q, "k": k, "v": v, "s": np.ones((1, 32, 32), np.float32)}
        inputs["p"] = inputs["s"]
        found = count([number], inputs, 1.0, problem=Problem(1, 32, 32, 8))
        parts += found.tally.longest_warp
    assert whole == parts > 0


def test_work_and_blocks_of_a_kernel():
    problem = Problem(1, 2048, 2048, 64)
    work = lesson07_pipeline.kernel_work("01 scores", problem)
    assert work.operations == 2 * 2048 * 2048 * 64 and work.bytes_written == 4 * 2048 * 2048
    assert lesson07_pipeline.blocks_of("04 softmax and output", problem) == (16, 128)
    assert lesson07_pipeline.blocks_of("04 softmax and output, 32 threads a block", problem) == (
        64,
        32,
    )


# -- records ---------------------------------------------------------------------------------------
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
    kernels = {
        "scores_naive+serial": [("01_scores_naive", 5.0), ("04_softmax_output_serial", 60)],
        "scores_tiled+serial": [("02_scores_tiled", 3.0), ("04_softmax_output_serial", 61)],
        "scores_tiled+warp+tiled": [
            ("02_scores_tiled", 2.0),
            ("05_softmax_warp", 1.0),
            ("06_output_tiled", 4.0),
        ],
    }
    row = {
        "shape": [1, 1, 2048, 64],
        "causal": False,
        "timings": timed(
            [
                "scores_naive+serial",
                "scores_tiled+serial",
                "three_kernels",
                "scores_tiled+warp+tiled",
                "auto",
            ]
        ),
        "kernels": {
            name: [{"name": file, "median_us": us} for file, us in parts]
            for name, parts in kernels.items()
        },
    }
    write(tmp_path, "bench_seeds_fp32", "bench_seeds_fp32", rows=[row], clocks=CLOCKS)
    write(tmp_path, "timing_lesson", "timing_lesson", experiments={"empty_launch": LAUNCH})
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
    live = {**STAMP, **own_record()}
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


# -- figures ---------------------------------------------------------------------------------------
def test_amdahls_curves_start_at_one_and_stay_below_their_limit():
    figure = pipelines.amdahl({"a": 0.1, "b": 0.9}, {"seen": (3, 1.07)}, most=50)
    axes = figure.axes[0]
    curves = [line for line in axes.lines if len(line.get_xdata()) > 100]
    for line, share in zip(curves, (0.1, 0.9), strict=True):
        assert line.get_ydata()[0] == pytest.approx(1)
        assert line.get_ydata()[-1] == pytest.approx(lesson07_pipeline.amdahl(share, 50))
    assert "limit 10" in [text.get_text() for text in axes.texts]
    with pytest.raises(ValueError):
        pipelines.amdahl({"all": 1.0})


def test_shares_add_up():
    chains = {"p": {"x": 1.0, "y": 3.0}, "q": {"y": 3.0}}
    axes = pipelines.shares(chains).axes[0]
    assert sorted(bar.get_width() for bar in axes.patches) == [25, 75, 100]
    colours = [bar.get_facecolor() for bar in axes.patches]
    assert colours[1] == colours[2] != colours[0], "a part keeps its colour"
    assert "4.0 us" in [text.get_text() for text in axes.texts]
    with pytest.raises(ValueError):
        pipelines.shares({"p": {}})


def test_a_roofline_says_how_far_below_a_point_is():
    figure = pipelines.roofline({"k": (1, 0.1), "far": (1000, 10)}, tflops=20, gbps=1000)
    said = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert said == ["k: 10 % of its roof", "far: 50 % of its roof"]
    with pytest.raises(ValueError):
        pipelines.roofline({"k": (0, 1)}, tflops=20, gbps=1000)


def test_time_by_work_draws_every_dot_and_both_floors():
    series = {"one": {1.0: 5.0, 100.0: 6.0}}
    axes = pipelines.time_by_work(series, floors={"arithmetic": 0.1}, launch=0.7).axes[0]
    dots, floor, launch = axes.lines
    assert list(dots.get_xdata()) == [1, 100] and list(dots.get_ydata()) == [5, 6]
    assert floor.get_ydata()[0] == pytest.approx(0.1 * floor.get_xdata()[0])
    assert set(launch.get_ydata()) == {0.7}
    with pytest.raises(ValueError):
        pipelines.time_by_work({"one": {}}, floors={})
