"""What METHOD of `run`, `count`, `check`, `trace` and `predict` names: launches ready to be made.

KINDS is the table of it: a method of attention() or attention_backward(), or a kernel file that the
course knows how to launch; any other file is launched as --grid, --block and --arg say.
"""

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from kernelscope import BackendError, array_module
from kernelscope.cli.options import CALL
from kernelscope.errors import InputError, MissingFileError, did_you_mean

from attn_course import reference
from attn_course.backward import METHODS as BACKWARD_METHODS
from attn_course.backward.verify import backward_call, backward_inputs
from attn_course.clinic import Case, ClinicError, clean_step, prepare, read_broken
from attn_course.ladder.call import Call, StepLaunch
from attn_course.ladder.headers import KERNEL_FOLDER
from attn_course.ladder.methods import METHODS, Request, method_names
from attn_course.ladder.problem import COUNTERS
from attn_course.ladder.steps import Problem
from attn_course.ladder.verify import warm_up, worst
from attn_course.layers.launches import Launches
from attn_course.layers.steps import LAYERS
from attn_course.layers.verify import layer_case, layer_name
from attn_course.reference.comparison import Comparison, compare
from attn_course.reference.dtypes import DTYPES
from attn_course.reference.inputs import seeded_qkv

from .arguments import workload

BROKEN = KERNEL_FOLDER / "broken"


@dataclass(frozen=True)
class NamedLaunch:
    """One launch: its name in a report, its arrays, and the names of those that hold nothing."""

    name: str
    launch: StepLaunch
    arrays: Mapping[str, object]
    empty: tuple[str, ...]

    def run(self) -> None:
        """Launch the kernel once. Raises what the launch raises."""
        self.launch.run(self.arrays)


@dataclass(frozen=True)
class NamedCall:
    """Launches in their order, and how their result is checked against float64.

    Attributes:
        name: of the method or file.
        title: the line that says what runs.
        backend: "gpu" or "simulator".
        judge: compares what was written; None where only a part of a problem ran.
        warm_up: runs the kernels on few elements: they are loaded and decoded here, untimed.
        facts: what was asked for, as plain data for JSON.
        picked: the method that "auto" picked and why; else empty.
    """

    name: str
    title: str
    backend: str
    parts: tuple[NamedLaunch, ...]
    judge: Callable[[], Comparison | None]
    warm_up: Callable[[], None]
    facts: dict[str, object]
    picked: str = ""

    def run(self) -> None:
        """Make all launches."""
        for part in self.parts:
            part.run()

    def record(self) -> dict:
        """What ran and where, as plain data for JSON."""
        return {**self.facts, "backend": self.backend}


def method_call(arguments: argparse.Namespace, _: Path | None, backend: str) -> NamedCall:
    """The launches of attention() by one method."""
    work, xp = workload(arguments), array_module(backend)
    q, k, v = work.inputs()
    given = [xp.asarray(array) for array in (q, k, v)]
    call = Request(*given, work.method, work.causal, backend=backend).call()

    def judge() -> Comparison:
        expected = reference.attention(q, k, v, causal=work.causal)
        return compare(call.arrays["out"], expected, relative=call.tolerance, name=work.method)

    picked = f"{call.method}: {call.reason}" if call.reason else ""
    line, warm = f"{work.title}, backend {backend}", partial(warm_up, call)
    parts = _named_launches(call, given)
    return NamedCall(work.method, line, backend, parts, judge, warm, asdict(work), picked)


def _named_launches(call: Call, given: Iterable) -> tuple[NamedLaunch, ...]:
    """The launches of a call on given arrays; others but COUNTERS hold nothing until written."""
    arrays, parts, written = call.arrays, [], set(map(id, given))
    for launch in call.launches:
        mine = [name for name in launch.step.arguments if name in arrays]
        empty = tuple(n for n in mine if n not in COUNTERS and id(arrays[n]) not in written)
        written |= {id(arrays[name]) for name in launch.step.writes if name in arrays}
        name, entry = launch.step.path.name, launch.geometry.entry
        entries = {one.geometry.entry for one in call.launches if one.step.path.name == name}
        parts.append(
            NamedLaunch(f"{name}: {entry}" if len(entries) > 1 else name, launch, arrays, empty)
        )
    return tuple(parts)


def gradient_call(arguments: argparse.Namespace, path: Path, backend: str) -> NamedCall:
    """The launches of attention_backward() by the method of a kernel file."""
    name = next(name for name, one in BACKWARD_METHODS.items() if one.steps[-1].path == path)
    shape, causal = arguments.shape or arguments.usual_shape, arguments.causal
    dtype = arguments.dtype or BACKWARD_METHODS[name].dtypes[0]

    def made(shape, kv_length):
        qkv = seeded_qkv(shape, kv_length, arguments.seed)
        inputs = backward_inputs(*(one.astype(DTYPES[dtype]) for one in qkv), causal=causal)
        return inputs, *backward_call(name, inputs, backend, causal=causal)

    inputs, call, oracle = made(shape, arguments.kv_length)
    given = [call.arrays[name] for name in inputs]
    facts = {"shape": shape, "kv_length": arguments.kv_length, "causal": causal, "dtype": dtype}
    keys = f", {arguments.kv_length} keys" if arguments.kv_length else ""
    return _of_file(
        arguments,
        path,
        f"(B, H, L, D) = {shape}{keys}{', causal' * causal}, {dtype}",
        facts,
        backend=backend,
        parts=_named_launches(call, given),
        judge=oracle.judge,
        warm_up=lambda: made((1, 1, 1, shape[3]), 1)[1].run(),
    )


def kernel_call(arguments: argparse.Namespace, path: Path, backend: str) -> NamedCall:
    """A kernel on inputs of its own; one with notes of a defect at their case without --shape."""
    own = _is_read_by(read_broken, path) and not arguments.shape
    if own and (arguments.causal or arguments.kv_length):
        raise InputError(
            "--causal and --kv-length need --shape here: without it a broken kernel "
            f"runs at its own case, {read_broken(path).case.problem}"
        )
    if arguments.causal and "causal" not in clean_step(path).arguments:
        raise InputError(f"{path.name} has no causal mask: leave --causal")
    batch, heads, tokens, d = arguments.shape or arguments.usual_shape
    problem = Problem(batch * heads, tokens, arguments.kv_length or tokens, d)
    case = read_broken(path).case if own else Case(problem, causal=arguments.causal)
    trial = prepare(path, case, backend=backend, seed=arguments.seed)
    built, p = trial.launch.geometry.options(), trial.case.problem
    tiny = Case(Problem(1, 1, 1, 1))
    part = NamedLaunch(path.name, trial.launch, trial.arrays, trial.uninitialised)
    facts = {"problem": (p.bh, p.n, p.m, p.d), "causal": case.causal}
    line = f"(BH, n, m, d) = {facts['problem']}{', causal' * case.causal}, {p.dtype}"
    return _of_file(
        arguments,
        path,
        line,
        facts,
        backend=backend,
        parts=(part,),
        judge=trial.judge,
        warm_up=lambda: prepare(path, tiny, backend=backend, options=built).run(),
    )


def layer_call(arguments: argparse.Namespace, path: Path, backend: str) -> NamedCall:
    """Each kernel of a file of the layers, on B x L tokens of width H * D."""
    shape = batch, heads, length, d = arguments.shape or arguments.usual_shape
    rng = np.random.default_rng(arguments.seed)
    tokens = rng.standard_normal((batch, length, heads * d)).astype(np.float32)
    parts, oracles, tiny = [], [], Launches(backend)
    for step in (one for one in LAYERS if one.path == path):
        layer_case(step, tokens[:1, :1], heads).append(step, tiny)
        launches = Launches(backend)
        oracles.append(layer_case(step, tokens, heads).append(step, launches))
        (launch,), ((_, run),) = launches.launches, launches.calls
        empty = tuple(oracles[-1].written)
        parts.append(NamedLaunch(layer_name(step), launch, run.args[0], empty))
    return _of_file(
        arguments,
        path,
        f"(B, H, L, D) = {shape}",
        {"shape": shape},
        backend=backend,
        parts=tuple(parts),
        judge=lambda: worst(oracle.judge() for oracle in oracles),
        warm_up=tiny.run,
    )


def _of_file(arguments, path: Path, line: str, facts: dict, *, backend: str, **how) -> NamedCall:
    """A call of a kernel file; line and facts: the extents, in words and as data."""
    line = f"{path.name}, {line}, seed {arguments.seed}, backend {backend}"
    facts = {"method": arguments.method, "file": path.name, **facts, "seed": arguments.seed}
    return NamedCall(path.name, line, backend, facts=facts, **how)


# -- what a name means -----------------------------------------------------------------------------
@dataclass(frozen=True)
class Kind:
    """One kind of thing that METHOD names.

    words: for a message.  holds: whether a name, and its file if it has one, is of this kind.
    takes: the options that belong to it.  ready: makes the call; None: the engine's command does.
    """

    words: str
    holds: Callable[[Path | None], bool]
    takes: tuple[str, ...]
    ready: Callable[[argparse.Namespace, Path | None, str], NamedCall] | None


def _is_read_by(reader: Callable[[Path], object], path: Path) -> bool:
    try:
        return bool(reader(path))
    except (ClinicError, UnicodeDecodeError):
        return False


def _is_backward(path: Path) -> bool:
    return any(path == one.steps[-1].path for one in BACKWARD_METHODS.values())


OPTIONS = ("shape", "kv_length", "causal", "dtype")
OWN = Kind("a kernel file of your own", lambda path: True, CALL, None)
KINDS = (  # the first that holds
    Kind("a method of attention()", lambda path: path is None, OPTIONS, method_call),
    Kind("a method of attention_backward()", _is_backward, OPTIONS, gradient_call),
    Kind(
        "a kernel of the layers", {one.path for one in LAYERS}.__contains__, ("shape",), layer_call
    ),
    Kind("a kernel of attention", partial(_is_read_by, clean_step), OPTIONS[:3], kernel_call),
    OWN,
)


def kernel_file(name: str) -> Path | None:
    """The kernel file that a name means, or None where it is a method's.

    Raises:
        FileNotFoundError: a name or path that leads to neither.
    """
    if name in BACKWARD_METHODS:
        return BACKWARD_METHODS[name].steps[-1].path
    is_path = name.endswith(".cu") or "/" in name
    stem = name if name.endswith(".cu") else f"{name}.cu"
    course = (KERNEL_FOLDER / stem, BROKEN / stem)
    places = (Path(name), Path(stem), *course, KERNEL_FOLDER.parent / stem) if is_path else course
    if name not in METHODS:
        for path in places:
            if path.is_file():
                return path.resolve()
    if name in method_names():
        return None
    files = [str(file.relative_to(KERNEL_FOLDER))[:-3] for file in KERNEL_FOLDER.rglob("*.cu")]
    files += [file.removeprefix("broken/") for file in files]
    near = did_you_mean(name, (*method_names(), *files, *map(str, Path(name).parent.glob("*.cu"))))
    what = "kernel file" if is_path else "method or kernel"
    methods = "" if is_path else f"a method ({', '.join(method_names())}), "
    raise MissingFileError(
        f"no {what} {name!r}{near}; name {methods}a kernel of {KERNEL_FOLDER}, or a file of your "
        "own by its path"
    )


def named_call(
    arguments: argparse.Namespace, backend: str, filters: tuple[str, ...] = ()
) -> NamedCall | None:
    """Return the call that METHOD names; None: a file that `arguments.file` names for the engine.

    filters: options of a call of an own file that all kinds take.

    Raises:
        ValueError: an option of another kind, or a call that its kind cannot make.
        FileNotFoundError: a path that leads to no file.
    """
    path = kernel_file(arguments.method)
    given = [name for name in (*OPTIONS, *CALL) if getattr(arguments, name) not in (None, False)]
    given = [name for name in given if name not in filters]
    own = path is not None and any(name in CALL for name in given)
    kind = OWN if own else next(kind for kind in KINDS if kind.holds(path))
    if wrong := [name for name in given if name not in kind.takes]:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in wrong)
        takers = " or ".join(one.words for one in KINDS if wrong[0] in one.takes)
        raise InputError(f"{options}: only for {takers}; {arguments.method!r} is none")
    if kind.ready is None:
        own = Path(arguments.method).is_file()
        arguments.file = arguments.method if own else str(path)
        return None
    return kind.ready(arguments, path, backend)


def simulated_call(
    arguments: argparse.Namespace, refusal: str, filters: tuple[str, ...] = ()
) -> NamedCall | None:
    """As :func:`named_call`, of a command that observes the simulator.

    Raises:
        BackendError: --backend gpu; with the message of the command.
    """
    if arguments.backend == "gpu":
        raise BackendError(refusal)
    return named_call(arguments, "simulator", filters)


def message_of(found: Comparison | None) -> str:
    """The comparison for people."""
    return "a part of the problem: no result to compare" if found is None else found.message
