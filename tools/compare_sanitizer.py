"""Holds the sanitizer against NVIDIA's compute-sanitizer, on a machine with a GPU and that tool.

    PYTHONPATH=. python3 tools/compare_sanitizer.py --out FOLDER

Every broken kernel at its case, and every clean one at a ragged shape, runs under memcheck,
racecheck, initcheck and synccheck, in the optimised and the debug build, and under ours on the
simulator. Both verdicts go to FOLDER/sanitizer.json, with a table on the screen. Exit status 1
where ours misses what the tool finds, or either finds something in a clean kernel.
`--simulator-only` needs no GPU.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from attn_course import clinic
from attn_course.clinic import Case, broken_kernels, clean_kernels, examine, family
from attn_course.commands import common
from attn_course.ladder import LADDER, Problem
from attn_course.results import caption, new_record
from attn_course.source import KERNEL_FOLDER

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
BUILDS = {"optimised": "-lineinfo", "debug": "-G"}
RAGGED = Case(Problem(2, 33, 37, 35))
TIMEOUT_S = 60  # a divergent barrier may hang for good
# What the tools write, and the kinds of finding that stands for; the first that fits.
MEANINGS = (
    ("misaligned", re.compile(r"misaligned", re.I)),
    ("out-of-bounds", re.compile(r"Invalid __\w+__ (?:read|write|atomic)|out of bounds", re.I)),
    ("race", re.compile(r"\b(?:Error|Warning): .*(?:Race|hazard)", re.I)),
    ("uninitialised-read", re.compile(r"Uninitialized", re.I)),
    ("divergent-barrier", re.compile(
        r"Barrier error|Divergent thread|Invalid arguments? for", re.I)),
    ("bad-launch", re.compile(r"API call to \w*Launch", re.I)),
)
_PLACE = re.compile(r"\bin \S*?:(\d+)\b|\.cu:(\d+)")
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")


@dataclass
class Report:
    """What one tool said of one process: kind -> source lines, and its own count of errors."""

    tool: str
    build: str
    kinds: dict[str, list[int]] = field(default_factory=dict)
    errors: int = 0
    outcome: str = ""  # what the kernel did: "right", "wrong", "launch refused", "error: ..."
    lines: list[str] = field(default_factory=list)


def parse(text: str, tool: str, build: str) -> Report:
    """The findings in a tool's output. A place belongs to the finding above it."""
    report, kind = Report(tool, build), None
    for raw in text.splitlines():
        if not raw.startswith("========="):
            continue
        line = raw.removeprefix("=========").strip()
        found = next((name for name, pattern in MEANINGS if pattern.search(line)), None)
        if found:
            kind = found
            report.kinds.setdefault(kind, [])
        inside = kind and "Host Frame" not in line and ".py" not in line
        place = [int(one or other) for one, other in _PLACE.findall(line)] if inside else []
        for number in place:
            if number not in report.kinds[kind]:
                report.kinds[kind].append(number)
        if (summary := _SUMMARY.search(line)) is not None:
            report.errors = int(summary.group(1) or summary.group(2))
        if (found or place) and len(report.lines) < 6:
            report.lines.append(line[:160])
    return report


# -- one launch, in a process of its own -----------------------------------------------------------
def launch(files: list[str], build: str) -> None:
    """Run kernel files on the GPU; prints a line `outcome FILE: ...` for each."""
    import cupy

    cupy.cuda.set_allocator(None)  # plain cudaMalloc, so that the tool sees each array's ends
    for name in files:
        path = KERNEL_FOLDER / name
        print(f"outcome {name}: {outcome(path, build)}", flush=True)


def outcome(path: Path, build: str) -> str:
    import cupy

    try:
        case = clinic.read_broken(path).case if is_broken(path) else RAGGED
        trial = clinic.prepare(path, case, backend="gpu", options=(BUILDS[build],), poison=False)
        start = trial.launch
        # Past our own check of the launch: the driver shall refuse it.
        trial.kernel.raw(start.grid, start.block, trial.arguments, shared_mem=start.shared_bytes)
        cupy.cuda.Device().synchronize()
        judged = trial.judge()
    except Exception as error:
        return f"error: {str(error).splitlines()[0][:120]}"
    return "not compared" if judged is None else "right" if judged.agrees else "wrong"


def is_broken(path: Path) -> bool:
    return path.parent == KERNEL_FOLDER / "broken"


def run_tool(job: tuple[str, str, list[str]], executable: str) -> tuple[Report, dict[str, str]]:
    """One tool over one process that runs the files; (report, file -> outcome)."""
    tool, build, files = job
    options = ["--tool", tool, "--print-limit", "30"]
    if tool == "memcheck":
        options += ["--report-api-errors", "explicit"]
    if tool == "racecheck":
        options += ["--racecheck-report", "analysis"]
    script = [sys.executable, str(Path(__file__).resolve()), "--launch", build, *files]
    process = subprocess.Popen(
        [executable, *options, *script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text = process.communicate()[0] + "\noutcome " + files[-1] + ": hangs"
    report = parse(text, tool, build)
    outcomes = dict(re.findall(r"^outcome (\S+): (.*)$", text, re.MULTILINE))
    if not outcomes:
        report.lines = text.splitlines()[-6:]
    return report, outcomes


# -- both sides ------------------------------------------------------------------------------------
def simulate(path: Path) -> dict:
    """Our verdict on a file: the findings' kinds with lines, and whether float64 agrees."""
    found = examine(path, None if is_broken(path) else RAGGED)
    kinds: dict[str, list[int]] = {}
    for finding in found.findings:
        kind = finding.kind if finding.severity == "error" else f"{finding.kind} (warning)"
        if finding.line not in kinds.setdefault(kind, []):
            kinds[kind].append(finding.line)
    right = None if found.comparison is None else found.comparison.agrees
    return {"kinds": kinds, "right": right, "messages": [f.message for f in found.findings][:4]}


def clean_files() -> list[str]:
    paths = {*clean_kernels(), *(step.path for step in LADDER if step.number <= 6)}
    return sorted(str(path.relative_to(KERNEL_FOLDER)) for path in paths if family(path))


def hardware(jobs: list, executable: str, workers: int) -> list:
    with ThreadPoolExecutor(workers) as pool:
        return list(pool.map(lambda job: run_tool(job, executable), jobs))


def compare(executable: str | None, workers: int) -> tuple[list[dict], list[dict]]:
    """(a row a broken kernel, a row a clean kernel), each with both sides."""
    broken = {f"broken/{b.name}.cu": b for b in broken_kernels()}
    clean = clean_files()
    jobs = [(tool, build, [name]) for name in broken for build in BUILDS for tool in TOOLS]
    jobs += [(tool, build, clean) for build in BUILDS for tool in TOOLS]
    reports = hardware(jobs, executable, workers) if executable else []
    results = list(zip(jobs, reports, strict=True)) if executable else []
    rows = [row_of(name, one, [report for job, report in results if job[2] == [name]])
            for name, one in broken.items()]  # fmt: skip
    tools = [as_record(*report) for job, report in results if job[2] is clean]
    ours = {name: simulate(KERNEL_FOLDER / name) for name in clean}
    return rows, [{"files": clean, "tools": tools, "ours": ours}]


def row_of(name: str, broken, reports: list) -> dict:
    ours = simulate(broken.path)
    tools = [as_record(*report) for report in reports]
    kinds = sorted({kind for tool in tools for kind in tool["kinds"]})
    seen, theirs = broken.kind in ours["kinds"], broken.kind in kinds
    wrong = broken.kind == clinic.WRONG_RESULT
    verdict = "only ours" if seen else "only the tool's"
    if seen and theirs:
        verdict = "same"
    elif wrong and not kinds and not ours["kinds"]:
        verdict = "same: neither, the numbers are wrong"
    elif not seen and not theirs:
        verdict = "neither"
    return {"file": name, "defect": broken.kind, "line": broken.found_line, "ours": ours,
            "tools": tools, "verdict": verdict if reports else "not run"}


def as_record(report: Report, outcomes: dict[str, str]) -> dict:
    return {"tool": report.tool, "build": report.build, "errors": report.errors,
            "kinds": report.kinds, "outcomes": outcomes, "lines": report.lines}


# -- showing ---------------------------------------------------------------------------------------
def table(rows: list[dict]) -> str:
    cells = []
    for row in rows:
        their = {}
        for tool in row["tools"]:
            for kind, lines in tool["kinds"].items():
                their.setdefault(f"{kind} [{tool['build'][0]}]", set()).update(lines)
        cells.append((
            row["file"].removeprefix("broken/"), f"{row['defect']}@{row['line']}",
            places(row["ours"]["kinds"]), places(their), row["verdict"],
        ))  # fmt: skip
    heads = ("broken kernel", "defect", "ours", "compute-sanitizer (o, d: build)", "verdict")
    return common.table(heads, cells)


def places(kinds: dict) -> str:
    return "; ".join(f"{kind}@{','.join(map(str, sorted(lines)[:4])) or '?'}"
                     for kind, lines in kinds.items()) or "-"  # fmt: skip


def alarms(clean: list[dict]) -> list[str]:
    """Findings in clean kernels, on either side."""
    found = []
    for group in clean:
        found += [f"ours: {name}: {places(one['kinds'])}" for name, one in group["ours"].items()
                  if one["kinds"] or not one["right"]]  # fmt: skip
        for tool in group["tools"]:
            label = f"{tool['tool']} ({tool['build']})"
            if tool["kinds"] or tool["errors"]:
                found.append(f"{label}: {places(tool['kinds'])}, {tool['errors']} errors")
            found += [f"{label}: {name}: {what}" for name, what in tool["outcomes"].items()
                      if what != "right"]
            missing = set(group["files"]) - set(tool["outcomes"])
            found += [f"{label}: {name} did not run" for name in sorted(missing)]
    return found


def hashes(names: list[str]) -> dict[str, str]:
    return {name: hashlib.sha256((KERNEL_FOLDER / name).read_bytes()).hexdigest()
            for name in names}  # fmt: skip


def find_tool() -> str:
    found = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not Path(found).exists():
        raise SystemExit("compute-sanitizer is not on PATH; it comes with the CUDA toolkit")
    return found


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for sanitizer.json")
    parser.add_argument("--workers", type=int, default=8, help="processes at a time (default 8)")
    parser.add_argument("--simulator-only", action="store_true", help="no GPU: one side only")
    parser.add_argument("--launch", nargs="+", metavar="BUILD FILE", help="not for people")
    parsed = parser.parse_args(arguments)
    if parsed.launch:
        launch(parsed.launch[1:], parsed.launch[0])
        return 0
    start = time.monotonic()
    executable = None if parsed.simulator_only else find_tool()
    rows, clean = compare(executable, parsed.workers)
    print(table(rows))
    wrong = alarms(clean)
    missed = [row["file"] for row in rows if row["verdict"] == "only the tool's"]
    counts = {v: sum(row["verdict"] == v for row in rows) for v in {r["verdict"] for r in rows}}
    print(f"\nclean kernels: {len(clean[0]['files'])}, alarms: {len(wrong)}")
    for line in wrong:
        print(f"  {line}")
    if executable:
        files = [row["file"] for row in rows] + clean[0]["files"]
        record = new_record("sanitizer", [], broken=rows, clean=clean, alarms=wrong, missed=missed)
        record["kernels"] = hashes(files)
        parsed.out.mkdir(parents=True, exist_ok=True)
        target = parsed.out / "sanitizer.json"
        target.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        print(f"{caption(record)}\nwritten to {target}")
    print(f"sanitizer: {len(rows)} broken kernels, {counts}, {time.monotonic() - start:.0f} s")
    return 1 if wrong or missed else 0


if __name__ == "__main__":
    sys.exit(main())
