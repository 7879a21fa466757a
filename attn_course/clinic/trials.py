"""Launches of the clinic's kernels: run, checked against float64 and by the sanitizer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from kernelscope import Sanitizer, allow_shared, array_module, observe, resolve_backend
from kernelscope.watch import Finding

from attn_course import reference
from attn_course.ladder.call import StepLaunch, kernel_of, numbers_of, run_steps, scratch_arrays
from attn_course.ladder.choose import simulated_gpu
from attn_course.ladder.headers import checked_options
from attn_course.ladder.steps import Device, Problem, Step
from attn_course.ladder.verify import Arrays, Formula, Oracle
from attn_course.reference.comparison import Comparison, poisoned
from attn_course.reference.dtypes import TOLERANCES

from .families import CLINIC_FORMULAS, clean_step
from .notes import Case, read_broken


@dataclass(frozen=True)
class Trial:
    """One launch of a kernel file, ready to be made: `run()` does it, `judge()` compares.

    inputs: what it reads, on the host.  arrays: all that it is given, on the backend.
    """

    launch: StepLaunch
    inputs: Arrays
    arrays: Mapping[str, object]
    case: Case
    scale: float

    @property
    def formula(self) -> Formula:
        """What the kernel computes."""
        return CLINIC_FORMULAS[self.launch.step.computes]

    @property
    def uninitialised(self) -> tuple[str, ...]:
        """Arrays that hold nothing before the launch."""
        return () if self.formula.adds else tuple(n for n in self.outputs if n not in self.inputs)

    @property
    def outputs(self) -> dict[str, object]:
        """The arrays that the kernel writes, on the backend."""
        return {name: self.arrays[name] for name in self.launch.step.writes}

    def run(self) -> None:
        """Launch the kernel once; raises what the launch raises."""
        self.launch.run(self.arrays)

    def judge(self) -> Comparison | None:
        """Compare the outputs with float64; return the worst array's, None for a partial launch."""
        if self.case.is_partial:
            return None
        expected = self.formula.compute(self.inputs, self.scale, self.case.causal)
        return Oracle(self.outputs, expected, TOLERANCES[self.case.problem.dtype]).judge()


def prepare(
    path: Path,
    case: Case,
    *,
    code: str | None = None,
    backend: str | None = None,
    options=(),
    seed: int = 0,
    poison: bool = True,
) -> Trial:
    """Compile a kernel file and make its arguments.

    path: as `clean_step` takes it; code: its text, where it is not the one on disk. The constants
    are those of the simulator's device everywhere, or of what it stands for, so that both sides of
    a comparison run the same launch. Arrays are of the step's usual dtype, or float32: Gaussian
    inputs, and outputs poisoned, or with `poison` off just allocated.
    Raises CompileError, ClinicError; and ValueError for a launch that no grid can hold.
    """
    backend = resolve_backend(backend)
    step = replace(clean_step(path, code), place=path, text=code)
    problem = replace(case.problem, dtype=step.dtypes[0])
    case, options = replace(case, problem=problem), checked_options(options, step.constants())
    geometry = step.launch(problem, options, simulated_gpu(backend) or Device())
    grid = geometry.grid if case.grid is None else case.grid
    shared_bytes = geometry.shared_bytes if case.shared_bytes is None else case.shared_bytes
    geometry = replace(geometry, grid=grid, shared_bytes=shared_bytes)
    kernel = kernel_of(step, geometry.entry, geometry.options(options), backend)
    if step.tune:  # others get no leave to use more than 48 KB: that may be the defect
        allow_shared(kernel, geometry.shared_bytes)
    scale = 1 / math.sqrt(problem.d)
    numbers = numbers_of(replace(problem, causal=case.causal), scale)
    inputs = _make_inputs(step, case, seed)
    xp = array_module(backend)
    arrays = _on_device(step, case, inputs, poison, xp)
    if step.scratch:
        arrays |= scratch_arrays(step.scratch(geometry, problem), problem, xp)
    if before := step.before:
        own = tuple(f"-D{n}={c}" for n, c in geometry.constants.items() if n in before.constants())
        how = {"problem": problem, "backend": backend, "options": own}
        arrays |= run_steps([before], arrays, scale, **how)
    return Trial(StepLaunch(step, geometry, kernel, numbers), inputs, arrays, case, scale)


# -- examining -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Examination:
    """Findings and comparison with float64 of one launch; no comparison of a partial one."""

    case: Case
    findings: list[Finding]
    comparison: Comparison | None

    @property
    def errors(self) -> list[Finding]:
        """The findings that are errors, not warnings."""
        return [finding for finding in self.findings if finding.severity == "error"]


def examine(
    path: Path, case: Case | None = None, *, code: str | None = None, options=(), seed: int = 0
) -> Examination:
    """Run a kernel file under the sanitizer, on the simulator, and check it against float64.

    case: by default the one in the file's notes. code: text to run in the file's place, such as
    a fixed version of it. Raises as `prepare` does.
    """
    if case is None:
        case = read_broken(path, code).case
    trial = prepare(path, case, code=code, backend="simulator", options=options, seed=seed)
    with observe(Sanitizer(trial.uninitialised)) as report:
        trial.run()
    return Examination(case, report.findings, trial.judge())


# -- what a launch needs ---------------------------------------------------------------------------
def _on_device(step: Step, case: Case, inputs: Arrays, poison: bool, xp) -> dict[str, object]:
    """Copies of the inputs, and the outputs, in the memory of the backend's arrays."""
    fill = partial(poisoned, xp=xp) if poison else xp.empty
    make = xp.zeros if CLINIC_FORMULAS[step.computes].adds else fill
    arrays = {name: xp.asarray(array.copy()) for name, array in inputs.items()}
    for name in step.writes:
        shape = (case.lengths[name],) if name in case.lengths else _shape(name, case.problem)
        if name not in arrays:
            arrays[name] = make(shape, case.problem.dtype_of(name))
    return arrays


def _shape(name: str, problem: Problem) -> tuple[int, ...]:
    if name in ("gamma", "beta"):
        return (problem.d,)
    if name in ("x", "y"):
        return (problem.bh, problem.n, problem.d)
    return problem.shape(name)


def _make_inputs(step: Step, case: Case, seed: int) -> dict[str, np.ndarray]:
    """The arrays a kernel reads, asymmetric so that no two heads or rows agree."""
    reads = CLINIC_FORMULAS[step.computes].reads
    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.normal(0.3, 1.0, _shape(name, case.problem)).astype(case.problem.dtype_of(name))
        for name in dict.fromkeys((*reads, *(("q", "k") if "s" in reads else ())))
    }
    if case.problem.biased:
        arrays["bias"] = rng.normal(0, 2, case.problem.shape("s")).astype(np.float32)
    if case.negative:
        arrays["q"], arrays["k"] = -np.abs(arrays["q"]), np.abs(arrays["k"])
    if "s" in reads:
        q, k = (arrays.pop(name).astype(np.float64) for name in "qk")
        arrays["s"] = (q @ k.swapaxes(-1, -2)).astype(np.float32)
    if "p" in reads:
        arrays["p"] = reference.softmax(arrays["p"].astype(np.float64)).astype(np.float32)
    return arrays
