"""`attn-course record`: one record, several in sequence, and the ways each can fail."""

import json
import sys
import time

import pytest
from record_harness import DEVICE, NOT_TIMED, stamped

from attn_course.cli import main
from attn_course.measure import records
from attn_devtools.record import command as record
from attn_devtools.record import tile_model


@pytest.fixture
def no_gpu(no_gpu, monkeypatch):
    monkeypatch.setattr(record, "gpu_count", lambda: 0)


def taken(monkeypatch, rows=({},)):
    """Let every record be made up; returns the calls' `quick`."""
    calls = []
    row = NOT_TIMED | {"shape": [1, 2, 3, 4], "candidates": {}}
    found = stamped("experiments", device=DEVICE, rows=[row | one for one in rows], tiles=row)
    monkeypatch.setattr(
        record,
        "measurement",
        lambda name, _: (lambda q: calls.append(q) or found, lambda r: "table"),
    )
    return calls


def test_a_record_is_shown_and_written(monkeypatch, tmp_path, capsys):
    calls = taken(monkeypatch)
    assert main.main(["record", "experiments", "--out", str(tmp_path), "--quick"]) == 0
    out = capsys.readouterr().out
    assert calls == [True] and "table" in out and "recorded 2026-01-02" in out
    assert records.newest_record("experiments", tmp_path)["gpu"] == "NVIDIA H200"


def test_a_wrong_candidate_is_a_fault_and_the_record_is_kept(monkeypatch, tmp_path, capsys):
    taken(monkeypatch, [{"wrong": {"a": "a: 3 of 9 elements are wrong"}}])
    assert main.main(["record", "experiments", "--out", str(tmp_path)]) == 1
    assert "WRONG: [1, 2, 3, 4]: a: 3 of 9" in capsys.readouterr().out
    assert (tmp_path / "h200" / "experiments.json").is_file()


@pytest.mark.parametrize("name", [n for n, one in record.KINDS.items() if not one.quick])
def test_every_name_leads_to_a_measurement_that_refuses_the_simulator(
    no_gpu, name, tmp_path, capsys, monkeypatch
):
    if name == "simulator_speed":
        monkeypatch.setattr(record.simulator_speed, "run", lambda repeats, path: repeats - 1)
        assert main.main(["record", name, "--quick", "--out", str(tmp_path)]) == 0
        return
    monkeypatch.setenv("PATH", "")  # no ncu
    assert main.main(["record", name, "--out", str(tmp_path)]) == 2
    missing = "ncu" if name == "profile" else "no GPU here"
    said = capsys.readouterr().err
    assert missing in said and "has no peers" not in said and not list(tmp_path.iterdir())
    take, report = record.measurement(name)
    assert callable(take) and callable(report)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tiles", "--quick"], "--out"),
        (["experiments", "--fit"], "tiles --fit"),
        (["tiles", "--fit", "--out", "{}"], "attn-course record tiles"),
        (["all", "--out", "{}"], "no GPU here for seeds_fp32"),
    ],
)
def test_a_call_that_cannot_run_says_why(no_gpu, arguments, words, tmp_path, capsys):
    assert main.main(["record", *(one.format(tmp_path) for one in arguments)]) == 2
    assert words in capsys.readouterr().err


def test_without_a_gpu_a_record_that_nobody_took_is_not_promised(no_gpu, monkeypatch):
    with pytest.raises(records.RecordError, match="`attn-course bench backward --recorded` shows"):
        record.take_suite("backward", True, ())
    monkeypatch.setattr(record, "newest_record", lambda kind: None)
    with pytest.raises(
        records.RecordError, match="no GPU here for backward; no record of it is kept"
    ):
        record.take_suite("backward", True, ())


def test_a_comparison_gets_the_folder_and_the_short_options(tmp_path, monkeypatch, capsys):
    told = []
    monkeypatch.setattr(record, "comparison", lambda name: lambda given: told.append(given) or 3)
    assert main.main(["record", "differential", "--quick", "--out", str(tmp_path)]) == 3
    assert main.main(["record", "counters", "--out", str(tmp_path)]) == 3
    folder = ["--out", str(tmp_path)]
    assert told == [[*folder, "--every", "40", "--kernels", "4"], folder]


def test_every_comparison_is_there():
    names = [name for name, one in record.KINDS.items() if one.quick]
    assert names == ["counters", "sanitizer", "differential"]
    assert all(callable(record.comparison(name)) for name in names)
    assert set(record.KINDS) - set(record.ON_A_GPU) == {"simulator_speed", "parallel"}


# -- several ---------------------------------------------------------------------------------------
def test_a_failing_record_is_named_and_the_next_one_starts(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(record, "gpu_count", lambda: 1)
    asked = []

    def alone(name, out, quick, seconds, log, without):
        asked.append((name, quick, *without))
        return "FAILED with exit status 2\n  no luck" if name == "memory" else "taken"

    monkeypatch.setattr(record, "run_alone", alone)
    call = ["record", "tiles", "memory", "timing", "memory", "--quick", "--out", str(tmp_path)]
    assert main.main(call) == 1
    out = capsys.readouterr().out
    assert asked == [("tiles", True), ("memory", True), ("timing", True)]
    assert "2 of 3 records taken" in out and out.endswith("with faults: memory\n")
    assert "no luck" in out
    asked.clear()
    assert main.main(["record", "all", "--out", str(tmp_path)]) == 1
    assert [name for name, _ in asked] == list(record.ON_A_GPU)
    asked.clear()
    left = "torch_flex", "torch", "torch_context_parallel"
    without = [word for peer in left for word in ("--without", peer)]
    assert main.main(["record", "mlp", "parallel", "--out", str(tmp_path), *without]) == 0
    assert asked == [(name, False, *left) for name in ("mlp", "parallel")]
    assert main.main(["record", "mlp", "--out", str(tmp_path), "--without", "torch_flox"]) == 2
    assert "no peer 'torch_flox' (did you mean 'torch_flex'?)" in capsys.readouterr().err


def test_records_that_no_time_is_left_for_are_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(record, "gpu_count", lambda: 1)
    now = [0.0]
    monkeypatch.setattr(record.time, "monotonic", lambda: now[0])

    def alone(name, out, quick, seconds, log, without):
        now[0] += 70
        return "taken"

    monkeypatch.setattr(record, "run_alone", alone)
    call = ["record", "tiles", "memory", "timing", "--seconds", "100", "--out", str(tmp_path)]
    assert main.main(call) == 1
    out = capsys.readouterr().out
    assert "memory: taken" in out and "timing: left out: no time left" in out


@pytest.mark.turns(23)
@pytest.mark.system
def test_each_runs_in_a_process_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")
    log = tmp_path / "log.txt"
    said = record.run_alone("experiments", tmp_path, False, 60, log)
    assert said.startswith("FAILED with exit status 2") and "no GPU here" in said
    monkeypatch.setattr(sys, "executable", "/bin/sleep")  # sleep: "-m" is no number, ends at once
    assert record.run_alone("tiles", tmp_path, False, 60, log).startswith("FAILED")


def test_what_a_tool_says_in_another_encoding_is_shown(tmp_path, monkeypatch):
    tool = tmp_path / "tool"
    tool.write_bytes(b"#!/bin/sh\necho 'ge\xe7ersiz'\nexit 1\n")  # Latin-5, as in a Turkish locale
    tool.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tool))
    said = record.run_alone("tiles", tmp_path, False, 60, tmp_path / "log.txt")
    assert said == "FAILED with exit status 1\n  ge\ufffdersiz"


def test_a_record_that_takes_too_long_is_ended(tmp_path, monkeypatch):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\necho started\nsleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    start = time.monotonic()
    said = record.run_alone("tiles", tmp_path, False, 0.5, tmp_path / "log.txt")
    assert said == "ended at the time limit\n  started" and time.monotonic() - start < 30


def test_prices_are_fitted_to_the_record(monkeypatch, tmp_path, capsys):
    row = NOT_TIMED | {"shape": [1, 2, 3, 4], "candidates": {}, "keys": None}
    found = stamped("tiles", device=DEVICE, rows=[row])
    (tmp_path / "h200").mkdir()
    (tmp_path / "h200" / "tiles.json").write_text(json.dumps(found))
    monkeypatch.setattr(tile_model, "fit", lambda found: tile_model.PRICES)
    monkeypatch.setattr(tile_model, "report", lambda found, prices: f"picks of {found['gpu']}")
    assert main.main(["record", "tiles", "--fit", "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "picks of NVIDIA H200" in out and "Prices(block=" in out
