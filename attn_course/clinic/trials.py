"""Launches of the clinic's kernels: made ready, run, held against float64 and the sanitizer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attn_course import reference
from attn_course.engine.backend import array_module, asnumpy, resolve_backend
from attn_course.engine.compile import with_headers
from attn_course.engine.events import observe
from attn_course.engine.module import RawModule
from attn_course.engine.watch import Sanitizer
from attn_course.engine.watch.sanitizer.findings import Finding
from attn_course.ladder.attention import NULL
from attn_course.ladder.headers import read_constants
from attn_course.ladder.steps import Device, Launch, Problem
from attn_course.reference.comparison import Comparison, compare, poisoned

from .families import Arrays, Family, family
from .notes import Case, read_broken


@dataclass(frozen=True)
class Trial:
    """One launch of a kernel file, ready to be made: `run()` does it, `judge()` compares."""

    kernel: object
    launch: Launch
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
        """What was written against float64, the worst array; None for a partial launch."""
        if self.case.is_partial:
            return None
        expected = self.family.expected(self.inputs, self.scale, self.case.causal)
        found = [
            compare(asnumpy(self.outputs[name]), expected[name], name=name)
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

    path: as `family` takes it; code: its text, where it is not the one on disk. Arrays are
    float32: Gaussian inputs, and outputs poisoned, or with `poison` off just allocated.
    Raises CompileError, ClinicError; and ValueError for a launch that no grid can hold.
    """
    backend, how = resolve_backend(backend), family(path, code)
    text = path.read_text(encoding="utf-8") if code is None else code
    options = _with_tuning(how, case.problem, options)
    launch = _launch(how, case, _constants(text, options))
    scale = 1 / math.sqrt(case.problem.d)
    inputs = _make_inputs(how, case, seed)
    arrays = _on_device(how, case, inputs, poison, array_module(backend))
    source = {"path": str(path)}
    if code is not None:
        source = {"code": with_headers(code, path.parent)}
    kernel = RawModule(**source, options=options, backend=backend).get_function(launch.entry)
    if how.tune and launch.shared_bytes > kernel.max_dynamic_shared_size_bytes:
        kernel.max_dynamic_shared_size_bytes = launch.shared_bytes
    arguments = tuple(_argument(name, arrays, case, scale) for name in how.arguments)
    outputs = {name: arrays[name] for name in how.writes}
    return Trial(kernel, launch, arguments, how, inputs, outputs, case, scale)


# -- examining -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Examination:
    """What the sanitizer and float64 say of one launch; comparison is None for a partial one."""

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
    """Run a kernel file under the sanitizer, on the simulator, and hold it against float64.

    case: by default the one in the file's notes. code: text to run in the file's place, such as
    a mended version of it. Raises as `prepare` does.
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
            arrays[name] = _output(shape, how.adds, poison, xp)
    return arrays


def _launch(how: Family, case: Case, constants: Mapping[str, int]) -> Launch:
    launch = how.geometry(how.entry, case.problem, constants)
    if case.grid is not None:
        launch = replace(launch, grid=case.grid)
    if case.shared_bytes is not None:
        launch = replace(launch, shared_bytes=case.shared_bytes)
    return launch


def _with_tuning(how: Family, problem: Problem, options) -> tuple[str, ...]:
    """The compiler options, and before them those of the family's tuning that they leave open."""
    tuned = how.tune(problem, Device()) if how.tune else {}
    given = {option.partition("=")[0] for option in options}
    return (
        *(f"-D{name}={value}" for name, value in tuned.items() if f"-D{name}" not in given),
        *options,
    )


def _output(shape: tuple[int, ...], zeros: bool, poison: bool, xp):
    if zeros:
        return xp.zeros(shape, np.float32)
    return poisoned(shape, xp=xp) if poison else xp.empty(shape, np.float32)


def _constants(text: str, options) -> dict[str, int]:
    values = read_constants(text)
    for option in options:
        name, _, value = option.removeprefix("-D").partition("=")
        if name in values:
            values[name] = int(value)
    return values


def _argument(name: str, arrays: Mapping[str, object], case: Case, scale: float):
    scalars = replace(case.problem, causal=case.causal).scalars() | {"scale": np.float32(scale)}
    if name in scalars:
        return scalars[name]
    return None if name in NULL else arrays[name]  # no bias is given, no lse asked for


def _shape(name: str, problem: Problem) -> tuple[int, ...]:
    if name in ("gamma", "beta"):
        return (problem.d,)
    if name in ("x", "y"):
        return (problem.bh, problem.n, problem.d)
    return problem.shape(name)


def _make_inputs(how: Family, case: Case, seed: int) -> dict[str, np.ndarray]:
    """The arrays a kernel reads, float32, asymmetric so that no two heads or rows agree."""
    rng = np.random.default_rng(seed)
    arrays = {
        name: rng.normal(0.3, 1.0, _shape(name, case.problem)).astype(np.float32)
        for name in dict.fromkeys((*how.reads, *(("q", "k") if "s" in how.reads else ())))
    }
    if case.negative:
        arrays["q"], arrays["k"] = -np.abs(arrays["q"]), np.abs(arrays["k"])
    if "s" in how.reads:
        q, k = (arrays.pop(name).astype(np.float64) for name in "qk")
        arrays["s"] = (q @ k.swapaxes(-1, -2)).astype(np.float32)
    if "p" in how.reads:
        arrays["p"] = reference.softmax(arrays["p"].astype(np.float64)).astype(np.float32)
    return arrays
