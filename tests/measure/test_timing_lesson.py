"""The lesson's experiments: from a record without a GPU, never from the simulator."""

import subprocess
import types

import pytest
from record_harness import stamped

from attn_course.figures import timing
from attn_course.measure import first_calls, records
from attn_course.measure.first_calls import EXPERIMENTS, REPORT_SHAPES, measured
from attn_course.measure.records import RecordError
from attn_course.measure.timing import HOW, TimingError


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
    assert (found.data["samples_us"]["graph"], found.live) == ([2.0], False)
    assert found.caption.startswith("recorded 2026-03-01 on NVIDIA H200")
    with pytest.raises(RecordError, match="no record of 'ways'.*attn-course record timing"):
        measured("ways", tmp_path)
    with pytest.raises(KeyError):
        measured("abacus", tmp_path)


def test_on_a_gpu_an_experiment_runs(monkeypatch):
    monkeypatch.setattr(first_calls, "resolve_backend", lambda: "gpu")
    monkeypatch.setattr(records, "gpu_identity", lambda: {"gpu": "NVIDIA H200"})
    monkeypatch.setitem(EXPERIMENTS, "noise", lambda: {"fresh": True})
    found = measured("noise")
    assert found.live and found.data == {"fresh": True}
    assert found.caption == "measured now on NVIDIA H200"


def test_a_failed_process_of_its_own_says_why(monkeypatch):
    monkeypatch.setattr(first_calls, "require_gpu", lambda: None)
    failed = types.SimpleNamespace(returncode=1, stdout="", stderr="...\nValueError: no luck\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(TimingError, match="no luck"):
        first_calls.first_calls_in_a_process(3)


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
    figure = timing.calls_in_order(
        {"a": [[9, 1, 1], [5, 1]], "b": [[8, 2, 2], [4, 2]]}, ["one", "two"], source="recorded"
    )
    (axes,) = figure.axes
    dots, rings = axes.lines[0], axes.lines[1]
    assert list(dots.get_ydata()) == [9, 1, 1, 5, 1] and list(rings.get_ydata()) == [9, 5]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["one", "two"]
    for series in ({"a": [[1]]}, {"a": [[1], []]}, {"a": [[1], [0]]}):
        with pytest.raises(ValueError):
            timing.calls_in_order(series, ["one", "two"])
