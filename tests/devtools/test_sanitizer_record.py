"""The recorded comparison with compute-sanitizer, where there is one: complete, and no alarms."""

import copy

import pytest

from attn_course.backward import BACKWARD
from attn_course.ladder.steps import LADDER
from attn_course.measure.records import RESULTS_FOLDER, caption, is_current, read_record
from attn_devtools.defects import WRONG_RESULT, broken_kernels
from attn_devtools.record import compare_sanitizer as tool
from attn_devtools.record import sanitizer_runs as runs

PATHS = sorted(RESULTS_FOLDER.glob("*/sanitizer.json"))
NEW = [row.path for row in (*LADDER, *BACKWARD)] + [
    one.path for one in broken_kernels()
]  # may be younger
EVERY_RUN = {(name, build) for name in runs.TOOLS for build in runs.BUILDS}


def complaints(record: dict) -> list[str]:
    """Everything that keeps a record from being evidence."""
    found = []
    rows = {row["file"]: row for row in record["broken"]}
    for one in broken_kernels():
        name = runs.name_of(one.path)
        found += broken_complaints(name, one, rows[name]) if name in rows else [f"no {name}"]
    clean = {row["file"]: row for row in record["clean"]}
    found += [f"no {name}" for name in runs.clean_subjects() if name not in clean]
    for name, row in clean.items():
        if {(t["tool"], t["build"]) for t in row["tools"]} != EVERY_RUN:
            found.append(f"{name}: not every tool ran in every build")
    found += tool.alarms(record["clean"])
    found += [f"{name} is not hashed" for name in (*rows, *clean) if name not in record["kernels"]]
    return found


def broken_complaints(name: str, broken, row: dict) -> list[str]:
    found = []
    if {(t["tool"], t["build"]) for t in row["tools"]} != EVERY_RUN:
        found.append(f"{name}: not every tool ran in every build")
    if broken.kind == WRONG_RESULT:
        if row["ours"]["kinds"] or row["ours"]["right"] is not False:
            found.append(f"{name}: only float64 should see it")
    elif broken.kind not in row["ours"]["kinds"]:
        found.append(f"{name}: our {broken.kind} is not there")
    verdict = tool.judge(broken.kind, row["ours"], row["tools"])
    if verdict != row["verdict"] or verdict in (tool.TOOLS_ONLY, tool.NEITHER, tool.NOT_RUN):
        found.append(f"{name}: {verdict}, recorded as {row['verdict']}")
    if row["why"] is None:
        found.append(f"{name}: nothing explains the verdict")
    return found


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.parent.name)
def test_record(path):
    record = read_record(path)
    if not is_current(record):
        pytest.skip(caption(record))
    new = {runs.name_of(path) for path in NEW if runs.name_of(path) not in record["kernels"]}
    if new:
        pytest.skip(f"taken before {sorted(new)}: `attn-course record sanitizer` takes it again")
    assert complaints(record) == []
    assert record["alarms"] == record["missed"] == record["unexplained"] == []
    (exact,) = record["machine_code"]
    assert exact["ours"]["kinds"] == {} and exact["why"]
    assert record["gpu"] in caption(record)


# -- the test of the test --------------------------------------------------------------------------
def perfect() -> dict:
    """What a record would be if both sides found each defect and nothing else."""

    def reports(kinds=(), outcome="right"):
        return [
            runs.Report(name, build, {kind: [1] for kind in kinds}, len(kinds), outcome)
            for name, build in sorted(EVERY_RUN)
        ]

    broken = []
    for one in broken_kernels():
        kinds = [] if one.kind == WRONG_RESULT else [one.kind]
        ours = {"kinds": {kind: [one.found_line] for kind in kinds}, "right": False, "messages": []}
        broken.append(
            tool.row_of(
                runs.name_of(one.path), one.kind, one.found_line, ours, reports(kinds, "wrong")
            )
        )
    fine = {"kinds": {}, "right": True, "messages": []}
    clean = [tool.clean_row(name, fine, reports()) for name in runs.clean_subjects()]
    hashes = {row["file"]: "" for row in broken + clean}
    return {"kernels": hashes, "broken": broken, "clean": clean}


def test_a_perfect_record_passes():
    assert complaints(perfect()) == []


@pytest.mark.turns(11)
@pytest.mark.system
@pytest.mark.parametrize(
    "spoil",
    [
        lambda r: r["broken"].pop(3),
        lambda r: r["clean"].pop(),
        lambda r: r["broken"][1].update(why=None),
        lambda r: r["broken"][1]["ours"].update(kinds={}),
        lambda r: r["broken"][0]["ours"].update(right=True),
        lambda r: r["broken"][2]["tools"].pop(),
        lambda r: r["clean"][0]["tools"][0].update(kinds={"race": [7]}),
        lambda r: r["clean"][5]["tools"][2].update(outcome="error: unspecified launch failure"),
        lambda r: r["clean"][2]["ours"].update(right=False),
        lambda r: r["kernels"].pop("01_scores_naive.cu"),
    ],
)
def test_a_spoilt_record_does_not(spoil):
    record = copy.deepcopy(perfect())
    spoil(record)
    assert complaints(record)
