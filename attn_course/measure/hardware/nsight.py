"""What Nsight Compute is asked about the ladder's kernels: launches, and the names of metrics.

Hardware counters are not open to everyone on a rented GPU, so profiles are kept under results/ (see
:mod:`attn_course.measure.records`); `attn-course profile` runs ncu and shows them.
"""

import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import ClassVar

import numpy as np
from kernelscope import Counters, array_module, observe

from attn_course.ladder.call import call_steps, compiled
from attn_course.ladder.headers import kernel_path, read_constants
from attn_course.ladder.problem import ceil_div
from attn_course.ladder.steps import Geometry, Problem, launched, step

_METRICS = tomllib.loads(Path(__file__).with_name("metrics.toml").read_text(encoding="utf-8"))
COUNTER_METRICS, SPEED_METRICS = _METRICS["counters"], _METRICS["speed"]
LAUNCH_METRICS, STALL_METRICS = _METRICS["launch"], _METRICS["stalls"]
TIME = "gpu__time_duration.sum"  # ns
PROFILING = (TIME, *(metric for table in _METRICS.values() for metric in table.values()))


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
        self.ready(backend)()

    def counts(self) -> dict[str, int]:
        """Return the simulator's counts of the kernel alone."""
        run = self.ready("simulator")
        with observe(Counters()) as seen:
            run()
        return seen.totals

    def ready(self, backend: str) -> Callable[[], None]:
        """Return what launches the kernel alone: what is launched before it has run."""
        row = step(self.step)
        problem = row.taken(Problem(*self.problem))
        xp, rng = array_module(backend), np.random.default_rng(0)
        arrays = {
            name: xp.asarray(
                rng.standard_normal(problem.shape(name), np.float32).astype(problem.dtype_of(name))
            )
            for name in dict.fromkeys(chain.from_iterable(one.arguments for one in launched([row])))
            if name in ("q", "k", "v", "s", "p", "out")
        }
        options = self.launch.options(self.options)  # the same tiles on either backend
        how = {"problem": problem, "backend": backend, "options": options}
        return call_steps([row], arrays, problem.d**-0.5, **how).up_to_last()


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
