"""Launches of the clinic's kernels: run, checked against float64 and by the sanitizer."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from kernelscope import (
    RawModule,
    Sanitizer,
    array_module,
    asnumpy,
    observe,
    resolve_backend,
    with_headers,
)
from kernelscope.watch import Finding

from attn_course import reference
from attn_course.ladder.call import compiled, numbers_of
from attn_course.ladder.headers import checked_options, chosen_constants, read_constants
from attn_course.ladder.steps import Device, Geometry, Problem
from attn_course.reference.comparison import Comparison, compare, poisoned
from attn_course.reference.dtypes import TOLERANCES

from .families import Arrays, Family, family
from .notes import Case, read_broken


@dataclass(frozen=True)
class Trial:
    """One launch of a kernel file, ready to be made: `run()` does it, `judge()` compares."""

    kernel: object
    launch: Geometry
    arguments: tuple
    family: Family
    inputs: Arrays
    outputs: Mapping[str, object]
    case: Case
    scale: float

    def run(self) -> None:
        """Launch the kernel once; raises what the launch raises."""
        launch = self.launch
        self.kernel(launch.grid, launch.block, self.arguments, shared_mem=launch.shared_bytes)

    def judge(self) -> Comparison | None:
        """Compare the outputs with float64; return the worst array's, None for a partial launch."""
        if self.case.is_partial:
            return None
        expected = self.family.expected(self.inputs, self.scale, self.case.causal)
        found = [
            compare(
                asnumpy(self.outputs[name]),
                expected[name],
                relative=TOLERANCES[self.family.dtype],
                name=name,
            )
            for name in self.family.writes
        ]
        return max(found, key=lambda one: (not one.agrees, one.relative_error))


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

    path: as `family` takes it; code: its text, where it is not the one on disk. Arrays are of the
    family's dtype, or float32: Gaussian inputs, and outputs poisoned, or with `poison` off just
    allocated.
    Raises CompileError, ClinicError; and ValueError for a launch that no grid can hold.
    """
    backend, how = resolve_backend(backend), family(path, code)
    case = replace(case, problem=replace(case.problem, dtype=how.dtype))
    text = path.read_text(encoding="utf-8") if code is None else code
    options = checked_options(options, read_constants(text))
    launch = _launch(how, case, read_constants(text), options)
    options = launch.options(options)
    scale = 1 / math.sqrt(case.problem.d)
    inputs = _make_inputs(how, case, seed)
    arrays = _on_device(how, case, inputs, poison, array_module(backend))
    if code is None:
        kernel = compiled(path, options, entry=launch.entry, backend=backend)
    else:
        whole = with_headers(code, path.parent)
        module = RawModule(code=whole, options=options, backend=backend, strict=True)
        kernel = module.get_function(launch.entry)
    if how.tune and launch.shared_bytes > kernel.max_dynamic_shared_size_bytes:
        kernel.max_dynamic_shared_size_bytes = launch.shared_bytes
    values = numbers_of(replace(case.problem, causal=case.causal), scale) | arrays
    arguments = tuple(values[name] for name in how.arguments)
    outputs = {name: arrays[name] for name in how.writes}
    return Trial(kernel, launch, arguments, how, inputs, outputs, case, scale)


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

    @property
    def is_clean(self) -> bool:
        """No error found, and the result is right where it can be compared."""
        right = self.comparison is None or self.comparison.agrees
        return right and not self.errors


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
    with observe(Sanitizer(trial.family.uninitialised)) as report:
        trial.run()
    return Examination(case, report.findings, trial.judge())


# -- what a launch needs ---------------------------------------------------------------------------
def _on_device(how: Family, case: Case, inputs: Arrays, poison: bool, xp) -> dict[str, object]:
    """Copies of the inputs, and the outputs, in the memory of the backend's arrays."""
    arrays = {name: xp.asarray(array.copy()) for name, array in inputs.items()}
    for name in how.writes:
        shape = (case.lengths[name],) if name in case.lengths else _shape(name, case.problem)
        if name not in arrays:
            arrays[name] = _output(shape, case.problem.dtype_of(name), how.adds, poison, xp)
    return arrays


def _launch(how: Family, case: Case, defaults: Mapping[str, int], options) -> Geometry:
    """The geometry for a case; its constants are the family's tuning and the options over it."""
    tuned = how.tune(case.problem, Device()) if how.tune else {}
    chosen = chosen_constants(defaults, tuned, options)
    launch = how.geometry(how.entry, case.problem, defaults | chosen)
    grid = launch.grid if case.grid is None else case.grid
    shared_bytes = launch.shared_bytes if case.shared_bytes is None else case.shared_bytes
    return replace(launch, grid=grid, shared_bytes=shared_bytes, constants=chosen)


def _output(shape: tuple[int, ...], dtype: np.dtype, zeros: bool, poison: bool, xp):
    if zeros:
        return xp.zeros(shape, dtype)
    return poisoned(shape, dtype, xp) if poison else xp.empty(shape, dtype)


def _shape(name: str, problem: Problem) -> tuple[int, ...]:
    if name in ("gamma", "beta"):
        return (problem.d,)
    if name in ("x", "y"):
        return (problem.bh, problem.n, problem.d)
    return problem.shape(name)


def _make_inputs(how: Family, case: Case, seed: int) -> dict[str, np.ndarray]:
    """The arrays a kernel reads, asymmetric so that no two heads or rows agree."""
    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.normal(0.3, 1.0, _shape(name, case.problem)).astype(case.problem.dtype_of(name))
        for name in dict.fromkeys((*how.reads, *(("q", "k") if "s" in how.reads else ())))
    }
    if case.problem.biased:
        arrays["bias"] = rng.normal(0, 2, case.problem.shape("s")).astype(np.float32)
    if case.negative:
        arrays["q"], arrays["k"] = -np.abs(arrays["q"]), np.abs(arrays["k"])
    if "s" in how.reads:
        q, k = (arrays.pop(name).astype(np.float64) for name in "qk")
        arrays["s"] = (q @ k.swapaxes(-1, -2)).astype(np.float32)
    if "p" in how.reads:
        arrays["p"] = reference.softmax(arrays["p"].astype(np.float64)).astype(np.float32)
    return arrays
