"""Kernels under NVIDIA's compute-sanitizer: which of them at which extents, and what it says.

A kernel runs in a process of its own under one tool, since a fault ends the CUDA context; kernels
that should pass share a process, and get one each only where something was found.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from kernelscope import Sanitizer, observe
from kernelscope.errors import InputError
from kernelscope.module import bind

from attn_course import clinic
from attn_course.backward import METHODS as BACKWARD_METHODS
from attn_course.backward.verify import backward_call, backward_inputs
from attn_course.clinic import Case
from attn_course.clinic.families import clean_step
from attn_course.folders import child_environment
from attn_course.ladder.call import Call
from attn_course.ladder.headers import KERNEL_FOLDER
from attn_course.ladder.steps import FUSED, LADDER, Problem, Step
from attn_course.ladder.verify import FORMULAS, Oracle
from attn_course.layers import LAYERS
from attn_course.layers.launches import Launches
from attn_course.layers.verify import layer_case
from attn_course.reference.comparison import Comparison
from attn_course.reference.dtypes import DTYPES
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.defects import broken_kernels, clean_kernels

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
BUILDS = {"optimised": "-lineinfo", "debug": "-G"}
TIMEOUT_S = 90  # of several kernels in a process
ALONE_S = 45  # of one broken kernel: a divergent barrier may hang for good
CLEAN_S = 300  # of one clean kernel: racecheck slows a kernel with many accesses a thousandfold
RAGGED = Case(Problem(2, 33, 37, 35))
BULK = Case(Problem(2, 33, 36, 40))  # rows that bulk copies take
# Of the kernels that do all of attention: rows that no vector load fits, several tiles of keys and
# grouped heads under the causal mask, more queries than keys, so that some rows see none, and a
# bias of each head, of which pairs are loaded. The 16-byte copies of 16-bit elements need a head
# dim that is a multiple of 8.
ATTENTION = (
    RAGGED,
    Case(Problem(4, 13, 150, 36, heads=2), causal=True),
    Case(Problem(8, 26, 19, 36, heads=4, kv_heads=2), causal=True),
    Case(Problem(4, 70, 300, 64, heads=4, kv_heads=2), causal=True),
    Case(Problem(3, 20, 150, 40, heads=3, bias_strides=(0, 20 * 150), biased=True)),
)
# The same where rows are copied as boxes of a tensor map, without a bias.
BOXES = (
    Case(Problem(4, 70, 300, 64, heads=4, kv_heads=2), causal=True),
    Case(Problem(2, 130, 70, 200, heads=2)),
)
# (B, n, width) and heads for kernels of the layers: rows that no vector load fits, and long rows.
TOKENS = (((2, 5, 37), 1), ((2, 7, 48), 3), ((1, 3, 2052), 1))
# (B, H, n, d), keys, heads of k and v, causal, for the backward pass; d a multiple of 8, as above.
GRADIENTS = (
    ((2, 4, 26, 40), 19, 2, True),
    ((1, 2, 70, 64), 150, 1, True),
    ((1, 3, 33, 24), 37, 3, False),
)
# A clean kernel with exactly the m * 4 bytes of shared memory that its PTX reads; ptxas reads more.
EXACT = "broken/clean/rows_atomic.cu@148-bytes"

# What the tools write, and the kinds of finding that stands for; the first that fits.
MEANINGS = (
    ("misaligned", re.compile(r"misaligned", re.I)),
    ("out-of-bounds", re.compile(r"Invalid __\w+__ (?:read|write|atomic)|out of bounds", re.I)),
    ("race", re.compile(r"\b(?:Error|Warning): .*(?:Race|hazard)", re.I)),
    ("uninitialised-read", re.compile(r"Uninitialized", re.I)),
    (
        "divergent-barrier",
        re.compile(r"Barrier error|Divergent thread|Invalid arguments? for", re.I),
    ),
    ("bad-launch", re.compile(r"API call to \w*Launch", re.I)),
)
_PLACE = re.compile(r"\bin \S*?:(\d+)\b|\.cu:(\d+)")
_SUMMARY = re.compile(r"(?:ERROR SUMMARY: (\d+) error|RACECHECK SUMMARY: (\d+) hazard)")
_OUTCOME = re.compile(r"^outcome (\S+): (.*)$", re.MULTILINE)


# -- what is run -----------------------------------------------------------------------------------
@dataclass(frozen=True)
class LayerRun:
    """A launch of a kernel of the layers on random tokens."""

    step: Step
    shape: tuple[int, int, int]
    heads: int

    def run(self, backend: str, options: tuple[str, ...] = ()) -> Comparison:
        """Launch it, and compare what it wrote with float64."""
        tokens = np.random.default_rng(0).standard_normal(self.shape).astype(np.float32)
        launches = Launches(backend)
        oracle = layer_case(self.step, tokens, self.heads).append(self.step, launches, options)
        launches.run()
        return oracle.judge()

    def examine(self) -> tuple[list, Comparison]:
        """Run it on the simulator; return the findings and the comparison."""
        with observe(Sanitizer(self.step.writes)) as watch:
            comparison = self.run("simulator")
        return watch.findings, comparison


@dataclass(frozen=True)
class BackwardRun:
    """The launches of a method of attention_backward() on random inputs."""

    method: str
    shape: tuple[int, int, int, int]
    keys: int
    kv_heads: int
    causal: bool

    def _call(self, backend: str, options: tuple[str, ...] = ()) -> tuple[Call, Oracle]:
        dtype = DTYPES[BACKWARD_METHODS[self.method].dtypes[0]]
        qkv = seeded_qkv(self.shape, self.keys, kv_heads=self.kv_heads)
        inputs = backward_inputs(*(one.astype(dtype) for one in qkv), causal=self.causal)
        return backward_call(self.method, inputs, backend, causal=self.causal, options=options)

    def run(self, backend: str, options: tuple[str, ...] = ()) -> Comparison:
        """Launch them, and compare what they wrote with float64."""
        call, oracle = self._call(backend, options)
        call.run()
        return oracle.judge()

    def examine(self) -> tuple[list, Comparison]:
        """Run them on the simulator; return the findings and the comparison."""
        (call, oracle), findings = self._call("simulator"), []
        for launch in call.launches:
            written = [name for name in launch.step.writes if name in call.arrays]
            with observe(Sanitizer(written)) as watch:
                launch.run(call.arrays)
            findings += watch.findings
        return findings, oracle.judge()


@dataclass(frozen=True)
class Subject:
    """A kernel file and the launches it is examined at."""

    path: Path
    cases: tuple[Case | LayerRun | BackwardRun, ...]


def broken_subjects() -> dict[str, Subject]:
    """Every broken kernel at its own case, by file name under kernels/."""
    return {name_of(one.path): Subject(one.path, (one.case,)) for one in broken_kernels()}


def clean_subjects() -> dict[str, Subject]:
    """The ladder, the layers, the backward pass, twins of broken ones: both sides find nothing."""
    steps = {step.path: step for step in LADDER if step.computes in FORMULAS}
    paths = sorted({*clean_kernels(), *steps}, key=name_of)
    cases = {
        path: tuple(c for c in (BOXES if step.maps else ATTENTION) if takes(step, c.problem))
        for path, step in steps.items()
        if step.computes == FUSED
    }
    found = {name_of(path): Subject(path, cases.get(path, (case_of(path),))) for path in paths}
    for path in dict.fromkeys(step.path for step in LAYERS):
        steps_here = [step for step in LAYERS if step.path == path]
        launches = tuple(LayerRun(step, *tokens) for step in steps_here for tokens in TOKENS)
        found[name_of(path)] = Subject(path, launches)
    for name, method in BACKWARD_METHODS.items():
        path = method.steps[-1].path
        found[name_of(path)] = Subject(path, tuple(BackwardRun(name, *one) for one in GRADIENTS))
    return found


def takes(step: Step, problem: Problem) -> bool:
    """Whether a kernel has the bias that a problem has, and tiles for its head dim."""
    if problem.biased and "bias" not in step.arguments:
        return False
    try:
        step.launch(problem)
    except InputError:
        return False
    return True


def case_of(path: Path) -> Case:
    """The case of a clean kernel that does a part of attention."""
    return BULK if clean_step(path).flags else RAGGED


def exact_subject() -> dict[str, Subject]:
    """The launch of EXACT."""
    path, size = EXACT.split("@")
    case = Case(RAGGED.problem, shared_bytes=int(size.removesuffix("-bytes")))
    return {EXACT: Subject(KERNEL_FOLDER / path, (case,))}


def all_subjects() -> dict[str, Subject]:
    return broken_subjects() | clean_subjects() | exact_subject()


def name_of(path: Path) -> str:
    return path.relative_to(KERNEL_FOLDER).as_posix()


# -- what the tools write --------------------------------------------------------------------------
@dataclass
class Report:
    """The report of one tool on a process: kind -> source lines, and its own count of errors.

    outcome: what the kernel did: "right", "wrong", "not compared", "hangs" or "error: ...".
    """

    tool: str
    build: str
    kinds: dict[str, list[int]] = field(default_factory=dict)
    errors: int = 0
    outcome: str = ""
    lines: list[str] = field(default_factory=list)

    @property
    def is_silent(self) -> bool:
        return not self.kinds and not self.errors


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


# -- one tool, one process -------------------------------------------------------------------------
@dataclass(frozen=True)
class Job:
    """A tool, a build, and the names of subjects that share a process as long as all is well."""

    tool: str
    build: str
    names: tuple[str, ...]


def run_job(job: Job, executable: str) -> dict[str, Report]:
    """A report for each name. A group in which anything is found is run again one by one."""
    text = run_process(job, executable)
    report, outcomes = parse(text, job.tool, job.build), dict(_OUTCOME.findall(text))
    if len(job.names) == 1:
        report.outcome = outcomes.get(job.names[0]) or f"error: {text.strip()[-120:]}"
        return {job.names[0]: report}
    if report.is_silent and all(outcomes.get(name) in ("right", "wrong") for name in job.names):
        return {name: Report(job.tool, job.build, outcome=outcomes[name]) for name in job.names}
    found = {}
    for name in job.names:
        found |= run_job(Job(job.tool, job.build, (name,)), executable)
    return found


def seconds_for(names: Collection[str]) -> int:
    """Return how long a process with these kernels may take."""
    if len(names) > 1:
        return TIMEOUT_S
    return ALONE_S if next(iter(names)).startswith("broken/") else CLEAN_S


def run_process(job: Job, executable: str) -> str:
    """Return the output of tool and kernels; "outcome NAME: hangs" after the time limit."""
    options = ["--tool", job.tool, "--print-limit", "30"]
    if job.tool == "memcheck":
        options += ["--report-api-errors", "explicit"]
    if job.tool == "racecheck":
        options += ["--racecheck-report", "analysis"]
    program = [sys.executable, "-m", __spec__.name, job.build, *job.names]
    process = subprocess.Popen(
        [executable, *options, *program],
        env=child_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        return process.communicate(timeout=seconds_for(job.names))[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text = process.communicate()[0]
        done = dict(_OUTCOME.findall(text))
        return text + "".join(f"\noutcome {n}: hangs" for n in job.names if n not in done)


# -- inside that process ---------------------------------------------------------------------------
def launch(build: str, names: list[str]) -> None:
    """Run subjects on the GPU; prints a line `outcome NAME: ...` for each."""
    import cupy

    cupy.cuda.set_allocator(None)  # plain cudaMalloc, so that the tool sees each array's ends
    subjects = all_subjects()
    for name in names:
        print(f"outcome {name}: {outcome(subjects[name], build)}", flush=True)


def outcome(subject: Subject, build: str) -> str:
    """The first outcome of its launches that is not "right"."""
    try:
        found = [judged(subject.path, case, build) for case in subject.cases]
    except Exception as error:
        return f"error: {str(error).splitlines()[0][:120]}"
    return next((one for one in found if one != "right"), "right")


def judged(path: Path, case: Case | LayerRun | BackwardRun, build: str) -> str:
    import cupy

    if not isinstance(case, Case):
        return "right" if case.run("gpu", (BUILDS[build],)).agrees else "wrong"
    trial = clinic.prepare(path, case, backend="gpu", options=(BUILDS[build],), poison=False)
    start, kernel = trial.launch.geometry, trial.launch.kernel
    values = tuple(bind(kernel.name, kernel.entry, trial.launch.arguments(trial.arrays), "gpu"))
    # Past our own check of the launch: the driver shall refuse it.
    kernel.raw(start.grid, start.block, values, shared_mem=start.shared_bytes)
    cupy.cuda.Device().synchronize()
    found = trial.judge()
    return "not compared" if found is None else "right" if found.agrees else "wrong"


if __name__ == "__main__":
    launch(sys.argv[1], sys.argv[2:])
