"""The lesson's experiments: from a record without a GPU, never from the simulator."""

import subprocess
import types

import pytest
from kernelscope.contest import HOW, TimingError
from kernelscope.contest import turns as timing
from record_harness import stamped
from record_harness import timing as timing_record

from attn_course.figures import timing as timing_figures
from attn_course.lessons import lesson05_timing
from attn_course.lessons.lesson05_timing import EXPERIMENTS, REPORT_SHAPES, measured
from attn_course.measure import records
from attn_course.measure.records import RecordError


def test_without_a_gpu_an_experiment_is_read_from_its_newest_record(no_gpu, tmp_path):
    launch = {"calls": 500, "timings": {}}
    noise = {"shape": [1, 2, 3, 4], "samples_us": {"graph": [5.0]}}
    for folder, date, us in (("old", "2026-01-01", 1.0), ("new", "2026-03-01", 2.0)):
        noise["samples_us"]["graph"] = [us]
        experiments = {"empty_launch": launch, "noise": noise}
        record = stamped("timing_lesson", date=date, torch="", experiments=experiments)
        path = tmp_path / folder / "first_calls.json"
        path.parent.mkdir()
        path.write_text(__import__("json").dumps(record))
    found = measured("noise", tmp_path)
    assert found.data["samples_us"]["graph"] == [2.0]
    assert found.caption.startswith("recorded 2026-03-01 on NVIDIA H200")
    with pytest.raises(RecordError, match="no record of it yet.*`attn-course record timing`"):
        measured("ways", tmp_path)


@pytest.fixture
def made_up_gpu(monkeypatch):
    monkeypatch.setattr(records, "resolve_backend", lambda: "gpu")
    monkeypatch.setattr(records, "_measured_now", {})
    monkeypatch.setattr(records, "gpu_identity", lambda: {"gpu": "NVIDIA H200"})
    monkeypatch.setattr(lesson05_timing, "require_gpu", lambda: None)


def test_on_a_gpu_each_experiment_runs_once_when_it_is_asked_for(made_up_gpu, monkeypatch):
    runs = []
    for name in ("noise", "same"):
        monkeypatch.setitem(EXPERIMENTS, name, lambda name=name: runs.append(name) or {"of": name})
    for name in ("noise", "same", "noise"):
        found = measured(name)
        assert found.data == {"of": name} and found.caption == "measured now on NVIDIA H200"
    assert runs == ["noise", "same"]
    with pytest.raises(KeyError, match="abacus"):
        measured("abacus")


def test_a_quick_record_is_of_the_empty_launch(made_up_gpu, monkeypatch):
    launch = {"calls": 500, "timings": {"graph": timing_record(0.7)}}
    monkeypatch.setitem(EXPERIMENTS, "empty_launch", lambda: launch)
    found = lesson05_timing.record(quick=True)
    assert found["experiments"] == {"empty_launch": launch} and found["kind"] == "timing_lesson"
    assert set(found["kernels"]) == {f"{file}.cu" for file in lesson05_timing.FILES}


def test_a_candidate_is_timed_in_every_way(monkeypatch):
    """Ours and a baseline take the same path: graphs of their own, and calls from Python."""
    captured, flushed = [], []

    def contest(replays, iterations, warmup, flush_l2):
        flushed.append(flush_l2)
        return timing.Contest({name: timing.Timing(name, "graph", (2.0,)) for name in replays})

    def by_python(call, warmup, iterations):
        call()
        return (5.0,) * iterations

    monkeypatch.setattr(timing, "contest", contest)
    monkeypatch.setattr(timing, "require_gpu", lambda: None)
    monkeypatch.setattr(timing, "_WAYS", dict.fromkeys(timing._WAYS, by_python))
    one, calls = types.SimpleNamespace(capture=captured.append), []
    found = lesson05_timing._in_every_way("tiled", one, lambda: calls.append(1), 3)
    assert list(found) == list(HOW) and [one["how"] for one in found.values()] == list(HOW)
    assert captured == [timing.GRAPH_CALLS, 1, 1] and flushed == [False, False, True]
    assert len(calls) == 3 and (found["wall"]["median_us"], found["cold"]["median_us"]) == (5, 2)


def test_a_failed_process_of_its_own_says_why(monkeypatch):
    monkeypatch.setattr(lesson05_timing, "require_gpu", lambda: None)
    failed = types.SimpleNamespace(returncode=1, stdout="", stderr="...\nValueError: no luck\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(TimingError, match="no luck"):
        lesson05_timing.first_calls_in_a_process(3)


def test_the_stored_record_holds_every_experiment():
    found = records.records("timing_lesson")
    assert found, "results/ holds no record of the lesson"
    for record in found:
        data = record["experiments"]
        assert set(data) == set(EXPERIMENTS)
        assert tuple(map(tuple, data["first_calls"]["shapes"])) == REPORT_SHAPES
        for calls in data["first_calls"]["calls"].values():
            assert [len(one) for one in calls] == [20] * len(REPORT_SHAPES)
            assert min(map(min, calls)) > 0
        for timings in data["ways"]["timings"].values():
            assert set(timings) == set(HOW)
            assert all(
                one["p20_us"] <= one["median_us"] <= one["p80_us"] for one in timings.values()
            )
        for ratio in data["same"]["ratios"].values():
            assert ratio["low"] <= ratio["value"] <= ratio["high"]


# -- figures ---------------------------------------------------------------------------------------
def test_first_calls_are_ringed():
    figure = timing_figures.calls_in_order(
        {"a": [[9, 1, 1], [5, 1]], "b": [[8, 2, 2], [4, 2]]}, ["one", "two"], source="recorded"
    )
    (axes,) = figure.axes
    dots, rings = axes.lines[0], axes.lines[1]
    assert list(dots.get_ydata()) == [9, 1, 1, 5, 1] and list(rings.get_ydata()) == [9, 5]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["one", "two"]
    for series in ({"a": [[1]]}, {"a": [[1], []]}, {"a": [[1], [0]]}):
        with pytest.raises(ValueError):
            timing_figures.calls_in_order(series, ["one", "two"])
