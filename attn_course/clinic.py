"""The bug clinic: broken kernels, the clean kernels they were made from, and how both are run.

A file of kernels/broken says in its second comment what is wrong with it: the clean twin, the
kind of the defect, its symptom, its story, and a case (extents and what else the launch needs)
at which it shows. `// <- defect` stands on the wrong line; `// <- found here` on the line where
it is found, when that is another one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from . import reference
from .attention import NULL
from .backend import array_module, asnumpy, resolve_backend
from .compare import Comparison, compare, poisoned
from .events import observe
from .ladder import FUSED, LADDER, Device, Launch, Problem, Tuning, ceil_div
from .module import RawModule
from .observers import Sanitizer
from .observers.findings import Finding
from .source import KERNEL_FOLDER, read_constants
from .verify import ORACLES

BROKEN_FOLDER = KERNEL_FOLDER / "broken"
WRONG_RESULT = "wrong-result"  # a defect that only a comparison with float64 finds
_NOTE = re.compile(r"^// (Clean|Defect|Symptom|Story|Case):\s+(\S.*)$", re.MULTILINE)
_EXTENTS = {"BH": "bh", "n": "n", "m": "m", "d": "d"}
_HEADS = ("heads", "kv_heads")  # of one element of the batch; 1 where a case does not say

Arrays = Mapping[str, np.ndarray]


class ClinicError(ValueError):
    """A kernel file that the clinic cannot run; the message says what is missing."""


@dataclass(frozen=True)
class Case:
    """What a launch is made of besides the kernel.

    Attributes:
        problem: the extents.
        causal: the kernel's mask is on.
        negative: every score is negative.
        grid: the grid, where it is not the one that the problem asks for.
        shared_bytes: dynamic shared memory, where it is not what the problem asks for.
        lengths: elements of an array that is given shorter than the problem asks for.
    """

    problem: Problem
    causal: bool = False
    negative: bool = False
    grid: tuple[int, int, int] | None = None
    shared_bytes: int | None = None
    lengths: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_partial(self) -> bool:
        """Only a part of the problem is run, so no result can be compared."""
        return self.grid is not None or bool(self.lengths)


@dataclass(frozen=True)
class Family:
    """A clean kernel: its arguments in order, what it reads and writes, its launch, its oracle.

    `expected` takes the arrays read, the scale and whether a causal mask is on, and gives the
    arrays written in float64. `adds`: the arrays written are added to, and start as zeros.
    `tune`: how a step's constants follow from the problem; those of the simulator's device are
    taken everywhere, so that both sides of a comparison run the same launch.
    """

    entry: str
    arguments: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    geometry: Callable[[str, Problem, Mapping[str, int]], Launch] = field(repr=False)
    expected: Callable[[Arrays, float, bool], Arrays] = field(repr=False)
    adds: bool = False
    tune: Tuning | None = field(default=None, repr=False)

    @property
    def uninitialised(self) -> tuple[str, ...]:
        """Arrays that hold nothing before the launch."""
        return () if self.adds else tuple(w for w in self.writes if w not in self.reads)


@dataclass(frozen=True)
class Broken:
    """A file of kernels/broken: its notes, and the lines of its marks (0: no such mark)."""

    name: str
    path: Path
    clean: Path
    kind: str
    symptom: str
    story: str
    case: Case
    defect_line: int
    found_line: int


# -- clean kernels ---------------------------------------------------------------------------------
def _attention(b: Arrays, scale: float, causal: bool) -> Arrays:
    q, k, v = b["q"], b["k"], b["v"]  # a head of k and v serves so many of q in a row:
    k, v = (np.repeat(array, q.shape[0] // k.shape[0], axis=0) for array in (k, v))
    return {"out": reference.attention(q[None], k[None], v[None], causal=causal, scale=scale)[0]}


def _weighted(b: Arrays, scale: float, causal: bool) -> Arrays:
    return {"out": b["p"].astype(np.float64) @ b["v"].astype(np.float64)}


def _normalised(b: Arrays, scale: float, causal: bool) -> Arrays:
    x = b["x"].astype(np.float64)
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return {"y": centred / deviation * b["gamma"] + b["beta"]}


def _block_a_row(shared: Callable[[Problem, Mapping[str, int]], int] = lambda p, c: 0):
    def geometry(entry: str, p: Problem, c: Mapping[str, int]) -> Launch:
        return Launch(entry, (p.n, p.bh, 1), (c["THREADS"], 1, 1), shared(p, c))

    return geometry


def _thread_a_row(entry: str, p: Problem, c: Mapping[str, int]) -> Launch:
    return Launch(entry, (ceil_div(p.n, c["THREADS"]), p.bh, 1), (c["THREADS"], 1, 1))


def _scores_of_a_row(problem: Problem, constants: Mapping[str, int]) -> int:
    """Bytes of m scores, rounded up to 16: ptxas may read the last four of them at once."""
    return 16 * ceil_div(problem.m, 4)


def _blocks_of_keys(entry: str, p: Problem, c: Mapping[str, int]) -> Launch:
    return Launch(entry, (ceil_div(p.m, c["KEYS"]), p.n, p.bh), (c["THREADS"], 1, 1))


def _warps_a_row(entry: str, p: Problem, c: Mapping[str, int]) -> Launch:
    return Launch(entry, (p.bh * p.n, 1, 1), (32, c["WARPS"], 1))


_QKV = ("q", "k", "v")
_PV = ("p", "v", "out", "n", "m", "d")
_FAMILIES = {
    "rows_online": Family(
        "rows_online", (*_QKV, "out", "n", "m", "d", "scale", "causal"), _QKV, ("out",),
        _block_a_row(), _attention),
    "rows_atomic": Family(
        "rows_atomic", (*_QKV, "out", "n", "m", "d", "scale"), _QKV, ("out",),
        _block_a_row(_scores_of_a_row), _attention),
    "rows_buffered": Family(
        "rows_buffered", _PV, ("p", "v"), ("out",),
        _block_a_row(lambda p, c: 8 * c["KEYS"] * p.d), _weighted),
    "rows_copied": Family(
        "rows_copied", _PV, ("p", "v"), ("out",),
        _block_a_row(lambda p, c: 8 * c["KEYS"] * p.d), _weighted),
    "output_register_tile": Family(
        "output_register_tile", _PV, ("p", "v"), ("out",), _block_a_row(), _weighted),
    "output_register_array": Family(
        "output_register_array", _PV, ("p", "v"), ("out",), _thread_a_row, _weighted),
    "output_split": Family(
        "output_split", _PV, ("p", "v"), ("out",), _blocks_of_keys, _weighted, adds=True),
    "layernorm": Family(
        "layernorm", ("x", "gamma", "beta", "y", "rows", "d"), ("x", "gamma", "beta"), ("y",),
        _warps_a_row, _normalised),
}  # fmt: skip


def family(path: Path, text: str | None = None) -> Family:
    """How a kernel file is run: a step of the ladder, a clean twin, or one with notes.

    text: the file's text, where it is not the one on disk.
    Raises:
        ClinicError: a file that is none of these.
    """
    text = path.read_text(encoding="utf-8") if text is None else text
    if dict(_NOTE.findall(text)).get("Clean"):
        return family(read_broken(path, text).clean)
    if path.parent == BROKEN_FOLDER / "clean" and path.stem in _FAMILIES:
        return _FAMILIES[path.stem]
    for step in LADDER:
        if step.path == path and step.computes in ORACLES:
            return _family_of_step(step)
    raise ClinicError(
        f"{path.name}: how to launch this file is not known; give a kernel of the ladder or of "
        "kernels/broken, or one with the '// Clean: ...' notes of those"
    )


def _family_of_step(step) -> Family:
    oracle = ORACLES[step.computes]
    expected = _attention if step.computes == FUSED else (
        lambda b, scale, causal: oracle.compute(b, scale))
    return Family(step.entry, step.arguments, oracle.reads, step.writes, step.geometry, expected,
                  tune=step.tune)


# -- broken kernels --------------------------------------------------------------------------------
def broken_kernels() -> tuple[Broken, ...]:
    """All broken kernels, by name."""
    return tuple(read_broken(path) for path in sorted(BROKEN_FOLDER.glob("*.cu")))


def clean_kernels() -> tuple[Path, ...]:
    """The clean files that broken ones were made from, each once."""
    return tuple(sorted({broken.clean for broken in broken_kernels()}))


def read_broken(path: Path, text: str | None = None) -> Broken:
    """The notes of a broken kernel. ClinicError names the note that is missing."""
    text = path.read_text(encoding="utf-8") if text is None else text
    notes = dict(_NOTE.findall(text))
    missing = [n for n in ("Clean", "Defect", "Symptom", "Story", "Case") if n not in notes]
    if missing:
        raise ClinicError(f"{path.name}: needs a comment line '// {missing[0]}: ...'")
    clean = notes["Clean"]
    folder = KERNEL_FOLDER if (KERNEL_FOLDER / clean).is_file() else BROKEN_FOLDER
    defect, found = (_marked(text, mark) for mark in ("defect", "found here"))
    return Broken(path.stem, path, folder / clean, notes["Defect"], notes["Symptom"],
                  notes["Story"], read_case(notes["Case"]), defect, found or defect)


def _marked(text: str, mark: str) -> int:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.endswith(f"// <- {mark}"):
            return number
    return 0


def read_case(text: str) -> Case:
    """'BH=2, n=3, m=5, d=7, heads=2, causal, grid=1x1x2, s=99' -> Case."""
    words = [word.strip() for word in text.split(",")]
    flags = {word: True for word in words if "=" not in word}
    values = dict(word.split("=") for word in words if "=" in word)
    grid = values.pop("grid", None)
    extents = {_EXTENTS[name]: int(values.pop(name)) for name in _EXTENTS}
    heads = {name: int(values.pop(name, 1)) for name in _HEADS}
    return Case(
        Problem(**extents, **heads), **flags,
        grid=tuple(int(part) for part in grid.split("x")) if grid else None,
        lengths={name: int(count) for name, count in values.items()},
    )  # fmt: skip


# -- examining -------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Examination:
    """What the sanitizer and float64 say of one launch; comparison is None for a partial one."""

    case: Case
    findings: list[Finding]
    comparison: Comparison | None

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def is_clean(self) -> bool:
        """No error found, and the result is right where it can be compared."""
        right = self.comparison is None or self.comparison.agrees
        return right and not self.errors


def examine(path: Path, case: Case | None = None, *, code: str | None = None, options=(),
            seed: int = 0) -> Examination:
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


# -- running ---------------------------------------------------------------------------------------
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
        launch = self.launch
        self.kernel(launch.grid, launch.block, self.arguments, shared_mem=launch.shared_bytes)

    def judge(self) -> Comparison | None:
        """What was written against float64, the worst array; None for a partial launch."""
        if self.case.is_partial:
            return None
        expected = self.family.expected(self.inputs, self.scale, self.case.causal)
        found = [compare(asnumpy(self.outputs[name]), expected[name], name=name)
                 for name in self.family.writes]
        return max(found, key=lambda one: (not one.agrees, one.relative_error))


def prepare(path: Path, case: Case, *, code: str | None = None, backend: str | None = None,
            options=(), seed: int = 0, poison: bool = True) -> Trial:
    """Compile a kernel file and make its arguments.

    path: as `family` takes it; code: its text, where it is not the one on disk. Arrays are
    float32: Gaussian inputs, and outputs poisoned, or with `poison` off just allocated.
    Raises CompileError, ClinicError; and ValueError for a launch that no grid can hold.
    """
    backend = resolve_backend(backend)
    xp, how, problem = array_module(backend), family(path, code), case.problem
    text = path.read_text(encoding="utf-8") if code is None else code
    options = _with_tuning(how, problem, options)
    launch = _launch(how, case, _constants(text, options))
    scale = 1 / math.sqrt(problem.d)
    inputs = make_inputs(how, case, scale, seed)
    arrays = {name: xp.asarray(array.copy()) for name, array in inputs.items()}
    for name in how.writes:
        shape = (case.lengths[name],) if name in case.lengths else _shape(name, problem)
        if name not in arrays:
            arrays[name] = _output(shape, how.adds, poison, xp)
    source = {"path": str(path)} if code is None else {"code": code}
    kernel = RawModule(**source, options=options, backend=backend).get_function(launch.entry)
    if how.tune and launch.shared_bytes > kernel.max_dynamic_shared_size_bytes:
        kernel.max_dynamic_shared_size_bytes = launch.shared_bytes
    return Trial(kernel, launch,
                 tuple(_argument(name, arrays, case, scale) for name in how.arguments), how,
                 inputs, {name: arrays[name] for name in how.writes}, case, scale)


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
    return (*(f"-D{name}={value}" for name, value in tuned.items() if f"-D{name}" not in given),
            *options)


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


def make_inputs(how: Family, case: Case, scale: float, seed: int) -> dict[str, np.ndarray]:
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
