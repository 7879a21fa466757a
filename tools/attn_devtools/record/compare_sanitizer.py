"""Compares the sanitizer with NVIDIA's compute-sanitizer, on a machine with a GPU and that tool.

`attn-course record sanitizer` runs it.

Every broken kernel at its case, and every clean one at ragged shapes, runs under memcheck,
racecheck, initcheck and synccheck, in the optimised and the debug build, and under ours on the
simulator. Both verdicts go to OUT/<gpu>/sanitizer.json, with a table on the screen. Exit status 1
where ours misses what the tool finds, either finds something in a clean kernel, or the two differ
for a reason that this file does not know. `--simulator-only` needs no GPU; `--earlier RECORD` runs
only kernels that are new or have changed since that record of the same GPU.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kernelscope.cli.tables import table as aligned
from kernelscope.differential.record import run_of

from attn_course.clinic import Case, examine
from attn_course.measure.records import (
    RESULTS_FOLDER,
    caption,
    gpu_identity,
    is_current,
    new_record,
    read_record,
)
from attn_devtools.defects import WRONG_RESULT, broken_kernels

from . import sanitizer_runs as runs
from .sanitizer_runs import (
    BUILDS,
    EXACT,
    TOOLS,
    Job,
    Report,
    Subject,
)
from .schema import write

SAME, OURS, TOOLS_ONLY, NEITHER, NOT_RUN = (
    "same",
    "only ours",
    "only the tool's",
    "neither",
    "not run",
)
# Clean kernels, by their numbers, that take a tool seconds: each has a process of its own.
LONG = ("10", "11", "12", "15", "18", "19", "20", "21", "23", "24", "25", "29")
NUMBERS = "same: neither, the numbers are wrong"
OTHER_MEANS = "other means"  # both see it, not as a finding at a line of the kernel

# Why a verdict is what it is; one that is not here is reported as not understood.
REASONS = {
    SAME: "",
    NOT_RUN: "",
    NUMBERS: "each access is in order; only the comparison with float64 tells",
}
_SILENT = "no tool finds anything, and the numbers came out right"
_HANGS = "the kernel hangs or fails under each of the tools, and none of them says why"
# Kernels with TMA or wgmma whose defect only the simulator names: what the tools did instead.
_OF_HOPPER = {
    _SILENT: "left_before_the_copy misaligned_tile missing_init_fence missing_proxy_fence "
    "missing_register_fence overwritten_while_copied released_too_early sums_before_wait",
    _HANGS: "part_of_a_warp_group too_many_arrivals_expected too_many_bytes_expected wrong_parity",
    "synccheck names the barriers that are never passed, no tool the tile that is used too early": (
        "unreleased_tiles"
    ),
}
REASONS_OF_FILES = {
    (f"broken/{name}.cu", OURS): reason
    for reason, names in _OF_HOPPER.items()
    for name in names.split()
} | {
    ("broken/lost_update.cu", OURS): "racecheck watches shared memory only; this race is in "
    "global memory",
    ("broken/partial_mask_shuffle.cu", OURS): "synccheck watches barriers, and no tool what a "
    "shuffle takes from lanes that do not take part",
    ("broken/missing_copy_wait.cu", OURS): "no tool follows which cp.async a thread has waited "
    "for, only which barrier it has passed",
    ("broken/register_tile_2048.cu", OTHER_MEANS): "initcheck sees it when the host copies the "
    "array, at no line; ours poisons the array, and the comparison counts what was never written",
    (EXACT, TOOLS_ONLY): "the PTX, which we run, reads up to three leftover weights, each behind a "
    "branch; ptxas joins them to one 16-byte load before the branches, past the end of m floats",
    (EXACT, NEITHER): "this ptxas did not join the leftover loads: nothing is read past the end",
}


# What initcheck says of kernels with wgmma, and of no others.
NOT_SEEN = (
    "when the host reads their outputs, at no line; the numbers are right, and the simulator sees "
    "every byte written. Why the tool does not is not isolated."
)

# Alarms of racecheck in sound kernels: at which lines, and why. A change ended each on an H200.
FALSE_ALARMS = {
    "29_split_tf32x3.cu": (
        {14, 32},
        "thread 0 inits an mbarrier and arrives at it. For the init ptxas makes one instruction of "
        "the warp, predicated, and racecheck seems to count it for each lane: behind a branch of "
        "thread 0 it finds nothing",
    ),
    "24_backward_mma.cu": (
        {22, 99},
        "racecheck takes no order from bar.arrive: with bar.sync in its place, which also waits, "
        "it finds nothing",
    ),
    "25_backward_wgmma.cu": (
        {19, 42, 53},
        "racecheck does not follow lanes through __syncwarp to the one that arrives at an "
        "mbarrier: where every lane arrives, it finds nothing",
    ),
}


# -- our side --------------------------------------------------------------------------------------
def simulate(subject: Subject) -> dict:
    """Our verdict: the findings' kinds with lines, and whether float64 agrees at every case."""
    kinds: dict[str, list[int]] = {}
    messages, right = [], []
    for case in subject.cases:
        if isinstance(case, Case):
            found = examine(subject.path, case)
            findings, comparison = found.findings, found.comparison
        else:
            findings, comparison = case.examine()
        for finding in findings:
            kind = finding.kind if finding.severity == "error" else f"{finding.kind} (warning)"
            if finding.line not in kinds.setdefault(kind, []):
                kinds[kind].append(finding.line)
        messages += [finding.message for finding in findings]
        if comparison is not None:
            right.append(comparison.agrees)
            messages += [] if right[-1] else [comparison.message]
    return {"kinds": kinds, "right": all(right) if right else None, "messages": messages[:4]}


# -- both sides ------------------------------------------------------------------------------------
def chosen_subjects(every: int, earlier: dict | None = None) -> dict[str, Subject]:
    """Every n-th of all subjects, by name; the one for machine code is among them.

    earlier: of a record's subjects only those whose files have changed since, and new ones.
    """
    subjects = runs.all_subjects()
    chosen = [name for name in subjects if earlier is None or not is_current(earlier, name)]
    names = {*chosen[::every], EXACT}
    return {name: subject for name, subject in subjects.items() if name in names}


def plan(chosen: Collection[str]) -> list[Job]:
    """The processes that the chosen subjects need, the longest first."""
    clean = list(runs.clean_subjects())
    tuned = [name for name in clean if name[:2] in LONG]
    whole = [name for name in clean if name[:2] in ("07", "08", "09")]
    rest = [name for name in clean if name not in (*tuned, *whole)]
    numbers = [runs.name_of(b.path) for b in broken_kernels() if b.kind == WRONG_RESULT]
    alone = [name for name in runs.broken_subjects() if name not in numbers]
    groups = [*([name] for name in tuned), rest, whole, numbers, *([name] for name in alone)]
    kept = [tuple(name for name in group if name in chosen) for group in groups]
    jobs = [
        Job(tool, build, group) for group in kept if group for build in BUILDS for tool in TOOLS
    ]
    return jobs + [Job("memcheck", build, (EXACT,)) for build in BUILDS]


def compare(
    executable: str | None, workers: int, subjects: dict[str, Subject]
) -> dict[str, list[dict]]:
    """Rows by section, "broken", "clean" and "machine_code", each row with both sides."""
    jobs = plan(subjects) if executable else []
    reports: dict[str, list[Report]] = {name: [] for name in subjects}
    with ThreadPoolExecutor(workers) as pool:
        pending = pool.map(lambda job: runs.run_job(job, executable), jobs)
        ours = {name: simulate(subject) for name, subject in subjects.items()}
        for found in pending:
            for name, report in found.items():
                reports[name].append(report)
    broken = {runs.name_of(one.path): one for one in broken_kernels()}
    return {
        "broken": [
            row_of(name, one.kind, one.found_line, ours[name], reports[name])
            for name, one in broken.items()
            if name in subjects
        ],
        "clean": [
            clean_row(name, ours[name], reports[name])
            for name in runs.clean_subjects()
            if name in subjects
        ],
        "machine_code": [row_of(EXACT, "out-of-bounds", 0, ours[EXACT], reports[EXACT])],
    }


def row_of(name: str, defect: str, line: int, ours: dict, reports: list[Report]) -> dict:
    tools = [as_record(report) for report in reports]
    verdict = judge(defect, ours, tools)
    why = REASONS.get(verdict, REASONS_OF_FILES.get((name, verdict)))
    return {
        "file": name,
        "defect": defect,
        "line": line,
        "ours": ours,
        "tools": tools,
        "verdict": verdict,
        "why": why,
    }


def clean_row(name: str, ours: dict, reports: list[Report]) -> dict:
    return {"file": name, "ours": ours, "tools": [as_record(report) for report in reports]}


def as_record(report: Report) -> dict:
    return {
        "tool": report.tool,
        "build": report.build,
        "errors": report.errors,
        "kinds": report.kinds,
        "outcome": report.outcome,
        "lines": report.lines,
    }


def judge(defect: str, ours: dict, tools: list[dict]) -> str:
    """Who found a defect of a kind."""
    if not tools:
        return NOT_RUN
    theirs = theirs_of(tools)
    if defect != WRONG_RESULT:
        verdicts = {(True, True): SAME, (True, False): OURS, (False, True): TOOLS_ONLY}
        return verdicts.get((defect in ours["kinds"], defect in theirs), NEITHER)
    if ours["kinds"] or ours["right"]:
        return NEITHER  # not the defect that the file's notes tell of
    if not theirs:
        return NUMBERS
    return OTHER_MEANS if theirs == {"uninitialised-read": set()} else TOOLS_ONLY


def theirs_of(tools: list[dict]) -> dict[str, set[int]]:
    """Return the findings of all tools in both builds: kind -> lines."""
    found: dict[str, set[int]] = {}
    for tool in tools:
        for kind, lines in tool["kinds"].items():
            found.setdefault(kind, set()).update(lines)
    return found


def alarms(clean: list[dict]) -> list[str]:
    """Findings in clean kernels, on either side, and launches that did not end right."""
    found = []
    for row in clean:
        if row["ours"]["kinds"] or not row["ours"]["right"]:
            found.append(f"ours: {row['file']}: {places(row['ours']['kinds'])}")
        for tool in row["tools"]:
            if is_unseen(row["file"], tool) or is_false(row["file"], tool):
                continue
            if tool["kinds"] or tool["errors"] or tool["outcome"] != "right":
                found.append(
                    f"{tool['tool']} ({tool['build']}): {row['file']}: "
                    f"{places(tool['kinds'])}, {tool['outcome']}"
                )
    return found


def is_unseen(name: str, tool: dict) -> bool:
    """Whether initcheck only says that bytes of an output were not written, as of wgmma kernels."""
    said = tool["tool"], tool["kinds"], tool["outcome"]
    if said != ("initcheck", {"uninitialised-read": []}, "right"):
        return False
    return "wgmma" in (runs.KERNEL_FOLDER / name).read_text(encoding="utf-8")


def is_false(name: str, tool: dict) -> bool:
    """Whether racecheck reports what it is known not to follow, and nothing else."""
    said = tool["tool"], list(tool["kinds"]), tool["outcome"]
    if name not in FALSE_ALARMS or said != ("racecheck", ["race"], "right"):
        return False
    return set(tool["kinds"]["race"]) <= FALSE_ALARMS[name][0]


def false_alarms(clean: list[dict]) -> dict[str, str]:
    """The clean kernels of which racecheck says so, with the reason."""
    return {
        row["file"]: FALSE_ALARMS[row["file"]][1]
        for row in clean
        if any(is_false(row["file"], tool) for tool in row["tools"])
    }


def unseen(clean: list[dict]) -> list[str]:
    """The clean kernels of which initcheck says so."""
    return [
        row["file"] for row in clean if any(is_unseen(row["file"], tool) for tool in row["tools"])
    ]


# -- showing ---------------------------------------------------------------------------------------
def table(rows: list[dict]) -> str:
    cells = []
    for row in rows:
        builds = {
            build: theirs_of([t for t in row["tools"] if t["build"] == build]) for build in BUILDS
        }
        their = {
            f"{kind} [{build[0]}]": lines
            for build, kinds in builds.items()
            for kind, lines in kinds.items()
        }
        cells.append(
            (
                row["file"].removeprefix("broken/"),
                f"{row['defect']}@{row['line'] or '?'}",
                places(row["ours"]["kinds"]),
                places(their),
                row["verdict"],
            )
        )
    heads = ("broken kernel", "defect", "ours", "compute-sanitizer (o, d: build)", "verdict")
    return aligned(heads, cells)


def places(kinds: dict) -> str:
    return (
        "; ".join(
            f"{kind}@{','.join(map(str, sorted(lines)[:4])) or '?'}"
            for kind, lines in kinds.items()
        )
        or "-"
    )


def reasons(rows: list[dict]) -> str:
    """One line a verdict that needs a word."""
    words = {None: "NOT UNDERSTOOD: say why in compare_sanitizer.py"}
    return "\n".join(
        f"  {row['file'].removeprefix('broken/')}: {row['verdict']}: "
        f"{words.get(row['why'], row['why'])}"
        for row in rows
        if row["why"] != ""
    )


def record_of(sections: dict[str, list[dict]], seconds: float) -> dict:
    """The record of a comparison, as attn_course.measure.records reads it."""
    files = [row["file"] for name in ("broken", "clean") for row in sections[name]]
    judged = sections["broken"] + sections["machine_code"]
    return new_record(
        "sanitizer",
        files,
        **sections,
        alarms=alarms(sections["clean"]),
        unseen=unseen(sections["clean"]),
        false_alarms=false_alarms(sections["clean"]),
        missed=[row["file"] for row in sections["broken"] if row["verdict"] == TOOLS_ONLY],
        unexplained=[row["file"] for row in judged if row["why"] is None],
        seconds=round(seconds),
    )


def with_earlier_rows(sections: dict[str, list[dict]], earlier: dict) -> dict[str, list[dict]]:
    """Return the sections with an earlier record's rows of the files that were not run again.

    Each row that is kept says when, and at which commit, it was run. Raises InputError for another
    GPU.
    """
    run = run_of(earlier, gpu_identity()["gpu"])
    subjects = runs.all_subjects()
    found = {}
    for name, rows in sections.items():
        fresh = {row["file"]: row for row in rows}
        kept = {
            row["file"]: {"run": run, **row} for row in earlier[name] if row["file"] in subjects
        }
        found[name] = list((kept | fresh).values())
    return found


def show(sections: dict[str, list[dict]]) -> None:
    judged = sections["broken"] + sections["machine_code"]
    print(f"{table(judged)}\n\n{reasons(judged)}")
    wrong = alarms(sections["clean"])
    print(f"\nclean kernels: {len(sections['clean'])}, alarms: {len(wrong)}")
    for line in wrong:
        print(f"  {line}")
    for name in unseen(sections["clean"]):
        print(f"  initcheck calls bytes of {name} unwritten {NOT_SEEN}")
    for name, reason in false_alarms(sections["clean"]).items():
        print(f"  {name}: {reason}")


def find_tool() -> str:
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(found).exists():
        raise SystemExit("compute-sanitizer is not on PATH; it comes with the CUDA toolkit")
    return found


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=RESULTS_FOLDER, help="folder of records")
    parser.add_argument(
        "--workers",
        type=int,
        default=max(4, (os.cpu_count() or 4) - 2),
        help="processes at a time (default: CPU cores less two)",
    )
    parser.add_argument("--simulator-only", action="store_true", help="no GPU: one side only")
    parser.add_argument("--every", type=int, default=1, help="take every n-th kernel only")
    parser.add_argument(
        "--earlier", type=Path, metavar="RECORD", help="keep its rows of unchanged kernels"
    )
    parsed = parser.parse_args(arguments)
    start = time.monotonic()
    executable = None if parsed.simulator_only else find_tool()
    earlier = read_record(parsed.earlier) if parsed.earlier else None
    sections = compare(executable, parsed.workers, chosen_subjects(parsed.every, earlier))
    if earlier and executable:
        sections = with_earlier_rows(sections, earlier)
    show(sections)
    failed = alarms(sections["clean"])
    if executable:
        record = record_of(sections, time.monotonic() - start)
        target = write(record, "sanitizer", parsed.out)
        print(f"{caption(record)}\nwritten to {target}")
        failed += record["missed"] + record["unexplained"]
    verdicts = [row["verdict"] for row in sections["broken"]]
    counts = ", ".join(f"{verdicts.count(one)} {one}" for one in dict.fromkeys(verdicts))
    print(f"sanitizer: {len(verdicts)} broken kernels ({counts}), {time.monotonic() - start:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
