"""The figures of the engine's README that stand in records of the course."""

import json
from pathlib import Path

import measured_tables
import readme_tables

PROSE = " ".join((readme_tables.ROOT / "kernelscope" / "README.md").read_text("utf-8").split())


def read(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))


def test_counters():
    record = read(measured_tables.GPU_RECORDS / "counters.json")
    cases = [*record["cases"], *record["probes"]]
    verdicts = [both["verdict"] for case in cases for both in case["counters"].values()]
    equal, count = verdicts.count("equal"), len(verdicts)
    assert not record["missed"]
    assert f"{equal:,} of {count:,} counts equal Nsight Compute's" in PROSE
    assert f"the other {count - equal} differ for a reason" in PROSE


def test_sanitizer():
    record = read(measured_tables.GPU_RECORDS / "sanitizer.json")
    verdicts = [one["verdict"] for one in record["broken"]]
    neither = verdicts.count("same: neither, the numbers are wrong")
    assert f"over {len(verdicts)} broken kernels, {verdicts.count('same')} have the same" in PROSE
    assert f"{verdicts.count('other means')} shows by other means" in PROSE
    assert f"{verdicts.count('only ours')} are found here alone, and {neither} are wrong" in PROSE
    assert f"{len(record['alarms'])} false alarms over {len(record['clean'])} clean" in PROSE


def test_speed():
    numba = read(measured_tables.ENGINE_RECORDS / "cpu" / "numba_simulator.json")
    ours = read(readme_tables.SPEED_RECORD)
    assert ours["machine"].startswith(numba["machine"])
    rates = [case["lane_instructions_per_second"] / 1e6 for case in ours["cases"]]
    assert f"{min(rates):,.0f} to {max(rates):,.0f} million lane-instructions" in PROSE
    (same,) = [case for case in ours["cases"] if case["shape"] == [1, 128, 64]]
    assert f"{same['seconds']:.3f} s where Numba's took {numba['seconds']:.3g} s" in PROSE


def test_times():
    """Of the judgements that came before anybody looked, not of what was corrected after them."""
    records = {
        name: read(measured_tables.ENGINE_RECORDS / name / "time_model.json")
        for name in ("h200", "h100")
    }
    newest = records["h200"]["nineteenth"]
    found, kernels = newest["summary"], {row["label"].split()[0] for row in newest["rows"]}
    within = f"{found['within_30_percent']:.0%} of {found['count']} within 30%"
    errors = f"{found['median']:.1%} median error, {found['worst']:.0%} at worst, {within}"
    assert f"{errors} on an H200: {len(kernels)} new kernels, [first" in PROSE
    assert not {"seventeenth", "eighteenth", "nineteenth"} & {*records["h100"]}
    before = [
        records["h200"]["eighteenth"],
        records["h200"]["seventeenth"],
        records["h100"]["third"],
    ]
    of_each = [
        f"{one['count'] // 2} kernels, {one['median']:.1%}, {one['worst']:.0%}, "
        f"{one['within_30_percent']:.0%}"
        for one in (judged["summary"] for judged in before)
    ]
    assert f"Sets before: {'; '.join(of_each)} on an H100." in PROSE
