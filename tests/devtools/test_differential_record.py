"""The recorded comparison of simulator and GPU, where there is one: complete, agreeing, current."""

import copy

import pytest
from record_harness import stamped

from attn_course.measure.records import RESULTS_FOLDER, is_current, kernel_hash, read_record

pytestmark = pytest.mark.system

PATHS = sorted(RESULTS_FOLDER.glob("*/differential.json"))
SECTIONS = {"opcodes": 1000, "random_kernels": 2000, "programs": 10, "functions": 100, "ladder": 40}


def complaints(record: dict) -> list[str]:
    """Everything that keeps a record from being evidence."""
    found = []
    if record["kind"] != "differential" or record["gpu"] in ("", "none"):
        found.append("not a comparison with a GPU")
    if record["all_agree"] is not True or record["differences"]:
        found.append(f"{len(record['differences'])} differences")
    for name, least in SECTIONS.items():
        if name in record["sections"]:
            found += section_complaints(name, record["sections"][name], least)
        else:
            found.append(f"no section {name}")
    if not is_current(record):
        found.append("a kernel has changed since")
    if {name[:2] for name in record["kernels"]} < {"01", "02", "03", "04", "05", "06"}:
        found.append("kernels 01 to 06 are not all there")
    return found


def section_complaints(name: str, section: dict, least: int) -> list[str]:
    found = []
    if not len(section["items"]) == section["count"] == section["agree"] >= least:
        found.append(f"{name}: {section['agree']} of {section['count']} agree, {least} are needed")
    if section["disagree"] or section["errors"] or section["all_agree"] is not True:
        found.append(f"{name}: not all agree")
    if any(item.get("mismatches") or "error" in item for item in section["items"]):
        found.append(f"{name}: an item disagrees")
    return found


@pytest.mark.skipif(not PATHS, reason="no comparison with a GPU has been recorded")
@pytest.mark.parametrize("path", PATHS or [None], ids=str)
def test_the_record_is_evidence(path):
    assert complaints(read_record(path)) == []


# --- what is not evidence -------------------------------------------------------------------------


def section(count):
    totals = {"count": count, "agree": count, "disagree": 0, "errors": 0, "all_agree": True}
    return totals | {"items": [{"seed": i} for i in range(count)]}


@pytest.fixture
def record():
    files = sorted(path.name for path in (RESULTS_FOLDER.parent / "kernels").glob("0[1-6]_*.cu"))
    kernels = {name: kernel_hash(name) for name in files}
    sections = {name: section(least) for name, least in SECTIONS.items()}
    fields = {"kernels": kernels, "sections": sections}
    return stamped("differential", all_agree=True, differences=[], **fields)


def test_a_complete_record_is_evidence(record):
    assert complaints(record) == []


def put(value, *path):
    """A change of a record: the value at a path of keys; None removes it."""

    def change(record):
        for key in path[:-1]:
            record = record[key]
        record[path[-1]] = value
        if value is None:
            del record[path[-1]]

    return change


@pytest.mark.parametrize(
    "change",
    [
        put(None, "sections", "ladder"),
        put(None, "kernels", "02_scores_tiled.cu"),
        put("none", "gpu"),
        put(False, "all_agree"),
        put([{"opcode": "add.u32"}], "differences"),
        put(section(49), "sections", "random_kernels"),
        put("0" * 64, "kernels", "01_scores_naive.cu"),
        put(1, "sections", "functions", "errors"),
        put({"seed": 3, "mismatches": 2}, "sections", "random_kernels", "items", 3),
        put({"seed": 3, "error": "broke"}, "sections", "programs", "items", 3),
        put(49, "sections", "random_kernels", "agree"),
    ],
)
def test_a_flaw_is_found(record, change):
    flawed = copy.deepcopy(record)
    change(flawed)
    assert complaints(flawed)
