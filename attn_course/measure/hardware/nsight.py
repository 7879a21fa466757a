"""Nsight Compute for the ladder's kernels: run where it is, read from records where it is not.

`collect` runs ncu once over a small Python process that launches every target once, and gives back
its metrics target by target. Hardware counters are not open to everyone on a rented GPU, so
profiles are kept under results/ (see :mod:`attn_course.measure.records`).
"""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from kernelscope import array_module
from kernelscope.errors import UserError

from attn_course.folders import IMPORT_ROOT, child_environment
from attn_course.ladder.call import call_steps, compiled
from attn_course.ladder.headers import kernel_path, read_constants
from attn_course.ladder.problem import ceil_div
from attn_course.ladder.steps import Geometry, Problem, step

_METRICS = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text(encoding="utf-8"))
COUNTER_METRICS, SPEED_METRICS = _METRICS["counters"], _METRICS["speed"]
LAUNCH_METRICS, STALL_METRICS = _METRICS["launch"], _METRICS["stalls"]
TIME = "gpu__time_duration.sum"  # ns
COUNTING = tuple(COUNTER_METRICS.values())
PROFILING = (TIME, *(metric for table in _METRICS.values() for metric in table.values()))
_NCU_PLACES = ("/usr/local/cuda*/bin/ncu", "/opt/nvidia/nsight-compute/*/ncu")
_RETRIES = 8


class ProfilerError(UserError, RuntimeError):
    """ncu is missing, not allowed to read the counters, or did not profile what was asked."""


@dataclass(frozen=True)
class Target:
    """One launch to profile: a ladder step, its compiler options, and (BH, n, m, d)."""

    step: int
    problem: tuple[int, int, int, int]
    options: tuple[str, ...] = ()

    @property
    def file(self) -> str:
        return step(self.step).file

    @property
    def launch(self) -> Geometry:
        return step(self.step).launch(Problem(*self.problem), self.options)

    @property
    def label(self) -> str:
        return " ".join([self.file, *(option.removeprefix("-D") for option in self.options)])

    def run(self, backend: str) -> None:
        """Launch the kernel once, on seeded random inputs."""
        row = step(self.step)
        problem = row.taken(Problem(*self.problem))
        xp, rng = array_module(backend), np.random.default_rng(0)
        arrays = {
            name: xp.asarray(
                rng.standard_normal(problem.shape(name), np.float32).astype(problem.dtype_of(name))
            )
            for name in row.arguments
            if name in ("q", "k", "v", "s", "p", "out")
        }
        options = self.launch.options(self.options)  # the same tiles on either backend
        how = {"problem": problem, "backend": backend, "options": options}
        call_steps([row], arrays, problem.d**-0.5, **how).run()


@dataclass(frozen=True)
class CopyTarget:
    """One launch to profile: `count` float4 are read and written once (kernels/probes/copy.cu)."""

    count: int
    file: ClassVar[str] = "probes/copy"
    options: ClassVar[tuple[str, ...]] = ()

    @property
    def problem(self) -> tuple[int]:
        return (self.count,)

    @property
    def launch(self) -> Geometry:
        threads = read_constants(kernel_path(self.file))["THREADS"]
        return Geometry("copy", (ceil_div(self.count, threads), 1, 1), (threads, 1, 1))

    @property
    def label(self) -> str:
        return self.file

    def run(self, backend: str) -> tuple:
        """Launch the kernel once; return x and out, both (4*count,) float32."""
        xp, launch = array_module(backend), self.launch
        x = xp.arange(4 * self.count, dtype=np.float32)
        out = xp.zeros_like(x)
        kernel = compiled(kernel_path(self.file), entry=launch.entry, backend=backend)
        kernel(launch.grid, launch.block, (x, out, np.int32(self.count)))
        return x, out


@dataclass(frozen=True)
class Profile:
    """Metrics of one launch from ncu; those that it could not measure are left out."""

    kernel: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    metrics: dict[str, float]

    def case(self, target: Target | CopyTarget) -> dict:
        """Return the profile as a record's case, with what was launched."""
        return {
            "file": f"{target.file}.cu",
            "kernel": self.kernel,
            "problem": target.problem,
            "options": target.options,
            "grid": self.grid,
            "block": self.block,
            "metrics": self.metrics,
        }


def stalls(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    """Return the reasons for which a warp's next instruction waited, the longest first."""
    waits = {name: metrics.get(metric) for name, metric in STALL_METRICS.items()}
    found = [(n, cycles) for n, cycles in waits.items() if cycles is not None and n != "selected"]
    return sorted(found, key=lambda one: -one[1])


# -- running ncu -----------------------------------------------------------------------------------
def find_ncu() -> Path | None:
    """The ncu on the PATH or in the places where the toolkit puts it, the newest; else None."""
    if found := shutil.which("ncu"):
        return Path(found)
    places = [p for pattern in _NCU_PLACES for p in Path("/").glob(pattern.lstrip("/"))]
    return max(places, default=None)


def required_ncu() -> Path:
    """Return find_ncu(). ProfilerError: there is none."""
    if ncu := find_ncu():
        return ncu
    raise ProfilerError("ncu (Nsight Compute) is not on the PATH nor in the CUDA toolkit")


def ncu_command(
    ncu: Path, kernels: Sequence[str], metrics: Sequence[str], program, more: Sequence[str] = ()
) -> list[str]:
    """The command line that profiles the named kernels of a program and prints CSV.

    more: options of ncu besides.
    """
    how = "--clock-control none --target-processes all --kernel-name-base function"
    wanted = ["--kernel-name", f"regex:^({'|'.join(sorted(set(kernels)))})$"]
    shown = ["--metrics", ",".join(metrics), *"--csv --page raw --print-units base".split()]
    return [str(ncu), *how.split(), *more, *wanted, *shown, *program]


def collect(
    targets: Sequence[Target | CopyTarget], metrics: Sequence[str] = PROFILING
) -> list[Profile]:
    """Profile each target once, in one ncu run. ProfilerError where that is not possible."""
    with tempfile.TemporaryDirectory() as folder:
        plan = Path(folder) / "plan.json"
        plan.write_text(plan_of(targets))
        program = [sys.executable, "-m", "attn_course.measure.hardware.nsight", str(plan)]
        launches = [target.launch for target in targets]
        return run_ncu(program, launches, metrics)


def run_ncu(
    program: Sequence[str], launches: Sequence[Geometry], metrics, more: Sequence[str] = ()
) -> list[Profile]:
    """Profiles of a program that makes exactly these launches, in this order.

    Metrics that this ncu does not know are left out. more: options of ncu besides.
    """
    ncu, metrics = required_ncu(), list(metrics)
    for _ in range(_RETRIES):
        command = ncu_command(ncu, [one.entry for one in launches], metrics, program, more)
        done = subprocess.run(
            command,
            cwd=IMPORT_ROOT,
            env=child_environment(),
            capture_output=True,
            text=True,
            timeout=600,
        )
        output = done.stdout + done.stderr
        unknown = unknown_metrics(output, metrics)
        if not unknown:
            break
        metrics = [metric for metric in metrics if metric not in unknown]
    if "ERR_NVGPUCTRPERM" in output:
        raise ProfilerError(
            "this GPU's driver lets only its administrator read hardware counters "
            "(ERR_NVGPUCTRPERM); the recorded profiles need none"
        )
    try:
        return match(parse_csv(done.stdout), launches)
    except ProfilerError as error:
        last = "\n".join(output.strip().splitlines()[-15:])
        raise ProfilerError(f"{error}\nncu's last lines:\n{last}") from None


def unknown_metrics(output: str, metrics: Sequence[str]) -> list[str]:
    """Metrics that ncu complains of not knowing."""
    complaint = re.compile(r"(failed to find|unknown|invalid|unsupported).*metric", re.IGNORECASE)
    text = "\n".join(line for line in output.splitlines() if complaint.search(line))
    return [metric for metric in metrics if re.search(rf"(?<![\w.]){re.escape(metric)}", text)]


# -- reading ncu's output --------------------------------------------------------------------------
def parse_csv(text: str) -> list[Profile]:
    """The rows of `ncu --csv --page raw`: a line of names, a line of units, a line a launch."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        raise ProfilerError("ncu printed no table")
    body = [line for line in lines[start:] if line.startswith('"')]
    table = csv.DictReader(io.StringIO("\n".join(body)))
    return [_profile(row) for row in table if row["ID"].strip()]  # the units' row has no ID


def _profile(row: dict[str, str]) -> Profile:
    metrics = {}
    for name, text in row.items():
        value = _number(text) if name and "__" in name else None
        if value is not None:
            metrics[name] = value
    kernel = row["Kernel Name"].split("(")[0].split("<")[0].split()[-1]
    return Profile(kernel, _extents(row.get("Grid Size")), _extents(row.get("Block Size")), metrics)


def _number(text: str | None) -> float | None:
    """'1,234' -> 1234; None for 'n/a' and the like. Whole numbers stay ints."""
    try:
        value = float((text or "").replace(",", ""))
    except ValueError:
        return None
    return int(value) if value.is_integer() else value


def _extents(text: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text or ""))


def match(profiles: list[Profile], launches: Sequence[Geometry]) -> list[Profile]:
    """The profiles, checked to be of these launches in this order."""
    names, expected = [p.kernel for p in profiles], [launch.entry for launch in launches]
    if names != expected:
        raise ProfilerError(f"ncu profiled {names}, expected were {expected}")
    for profile, launch in zip(profiles, launches, strict=True):
        for got, asked in ((profile.grid, launch.grid), (profile.block, launch.block)):
            if got and got != asked:
                raise ProfilerError(f"{profile.kernel} ran with {got}, asked for was {asked}")
    return profiles


def main(arguments: Sequence[str] | None = None) -> None:
    """Launch every target of a plan file once on the GPU, for ncu to profile."""
    import cupy

    plan = Path((sys.argv[1:] if arguments is None else arguments)[0])
    for target in planned(plan.read_text()):
        target.run("gpu")
    cupy.cuda.Device().synchronize()


def plan_of(targets: Sequence[Target | CopyTarget]) -> str:
    """Return the text of a plan file with these targets."""
    return json.dumps([asdict(target) for target in targets])


def planned(text: str) -> list[Target | CopyTarget]:
    """Return the targets of a plan file's text."""
    return [
        CopyTarget(**item)
        if "count" in item
        else Target(item["step"], tuple(item["problem"]), tuple(item["options"]))
        for item in json.loads(text)
    ]


if __name__ == "__main__":
    main()
