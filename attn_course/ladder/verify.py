"""Runs steps and whole methods on one backend and holds every array they write against float64.

The unit is a :class:`Verdict`: what ran, how it was launched, how far it is from float64 and how
long the calls took. The command line, the notebooks and the tests read the same records.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from attn_course import reference
from attn_course.engine.backend import array_module, asnumpy, resolve_backend
from attn_course.reference.comparison import Comparison, compare, poisoned

from .attention import AUTO, attention, prepared, problem_of, step_arguments, steps_of
from .choose import choose, current_device
from .steps import FUSED, Device, Launch, Problem, Step

Buffers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class LaunchRecord:
    """One kernel launch: the file and entry, grid and block, shared memory in bytes."""

    file: str
    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int  # static and dynamic together


@dataclass(frozen=True)
class Verdict:
    """What a step or method gave on one backend, held against float64.

    Attributes:
        name: the method, or the step's file name.
        backend: "gpu" or "simulator".
        launches: in the order in which they ran.
        comparison: of the output, or of the worst of the arrays the step wrote.
        seconds: wall-clock time of the calls, compilation excluded. On the simulator this is the
            time of simulating and says nothing of a GPU.
        outputs: the arrays that were written, on the host, by their names in the kernels.
        picked: what "auto" stood for and why, "flash_fp32: ..."; else empty.
    """

    name: str
    backend: str
    launches: tuple[LaunchRecord, ...]
    comparison: Comparison
    seconds: float
    outputs: Buffers
    picked: str = ""

    @property
    def agrees(self) -> bool:
        return self.comparison.agrees


def _softmax(b: Buffers, scale: float) -> np.ndarray:
    return reference.softmax(np.asarray(b["s"], np.float64) * scale)


def _product(p, v) -> np.ndarray:
    return np.asarray(p, np.float64) @ np.asarray(v, np.float64)


def _scores(b: Buffers, scale: float) -> dict[str, np.ndarray]:
    return {"s": _product(b["q"], np.swapaxes(b["k"], -1, -2))}


def _attention(b: Buffers, scale: float) -> dict[str, np.ndarray]:
    return {"out": reference.attention(*(b[name][None] for name in "qkv"), scale=scale)[0]}


def _softmax_and_output(b: Buffers, scale: float) -> dict[str, np.ndarray]:
    return {"s": _softmax(b, scale), "out": _product(_softmax(b, scale), b["v"])}


@dataclass(frozen=True)
class Oracle:
    """What a step reads, and its float64 result: (inputs, scale) -> the arrays it writes."""

    reads: tuple[str, ...]
    compute: Callable[[Buffers, float], dict[str, np.ndarray]]


# By what a step computes, in the ladder's words.
ORACLES = {
    "s = q k^T": Oracle(("q", "k"), _scores),
    "s = softmax(scale s), out = s v": Oracle(("s", "v"), _softmax_and_output),
    "p = softmax(scale s)": Oracle(("s",), lambda b, scale: {"p": _softmax(b, scale)}),
    "out = p v": Oracle(("p", "v"), lambda b, scale: {"out": _product(b["p"], b["v"])}),
    FUSED: Oracle(("q", "k", "v"), _attention),
}


def step_inputs(q, k, v, scale: float) -> dict[str, np.ndarray]:
    """Every array that a step may read, from float64 and rounded once to float32.

    q (BH, n, d), k and v (BH, m, d), s (BH, n, m) unscaled scores, p (BH, n, m) softmax weights.
    A step is judged on inputs of its own, so that one step's error is not the next one's.
    """
    scores = _product(q, np.swapaxes(k, -1, -2))
    weights = reference.softmax(scores * scale)
    arrays = {"q": q, "k": k, "v": v, "s": scores, "p": weights}
    return {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}


def verify_step(
    step: Step,
    q,
    k,
    v,
    *,
    scale: float | None = None,
    backend: str | None = None,
    options: tuple[str, ...] = (),
) -> Verdict:
    """Run one step of the ladder on inputs of its own and judge every array it writes.

    Args:
        q: (BH, n, d).  k, v: (BH, m, d). NumPy float32.
        scale: of the scores; defaults to 1/sqrt(d).
        options: compiler options such as ("-DTILE=16",).

    Raises:
        BackendError: a GPU is asked for where there is none.
        CompileError, ValueError: the options or the launch do not fit the kernel.
    """
    backend = resolve_backend(backend)
    xp = array_module(backend)
    bh, n, d = q.shape
    problem = Problem(bh, n, k.shape[1], d)
    scale = 1 / math.sqrt(d) if scale is None else scale
    inputs = step_inputs(q, k, v, scale)
    expected = ORACLES[step.computes].compute(inputs, scale)

    device = current_device(backend)
    launch = step.launch(problem, options, device)
    kernel = prepared(step, launch, options, backend)
    _warm_up(step, kernel, launch, (*launch.options, *options), device, xp)
    buffers = _device_buffers(step, problem, inputs, xp)
    arguments = step_arguments(step, problem, buffers, scale)
    seconds = _timed(
        lambda: kernel(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes), xp
    )
    outputs = {name: asnumpy(buffers[name]) for name in step.writes}
    found = [
        compare(outputs[name], expected[name], name=f"{step.file}: {name}", relative=step.relative)
        for name in step.writes
    ]
    return Verdict(
        step.file, backend, (_record(step, launch, kernel),), _worst(found), seconds, outputs
    )


def verify_method(
    method: str,
    q,
    k,
    v,
    *,
    causal: bool = False,
    scale: float | None = None,
    backend: str | None = None,
) -> Verdict:
    """Run :func:`attention` by one method and judge its output.

    Args:
        q: (B, H, n, d).  k, v: (B, H, m, d). NumPy arrays of a dtype the method takes.

    Raises:
        UnknownMethod, UnsupportedOption, TypeError, ValueError: as ``attention`` does.
        BackendError: a GPU is asked for where there is none.
    """
    backend = resolve_backend(backend)
    xp, here = array_module(backend), current_device(backend)
    problem = problem_of(q, k, causal)
    name, picked = method, ""
    if method == AUTO:
        name, reason = choose(problem, here, q.dtype)
        picked = f"{name}: {reason}"
    chosen = steps_of(name)
    launches = [step.launch(problem, device=here) for step in chosen]
    options = tuple(option for launch in launches for option in launch.options)
    device = [xp.asarray(array) for array in (q, k, v)]
    call = {"method": name, "causal": causal, "scale": scale, "backend": backend}
    warm = [xp.ones((1, 1, 1, 1), dtype=q.dtype) for _ in "qkv"]
    attention(*warm, **call, options=options)  # compiles and loads, so the timed call only runs
    result = {}
    seconds = _timed(lambda: result.update(out=attention(*device, **call)), xp)
    out = asnumpy(result["out"])
    expected = reference.attention(q, k, v, causal=causal, scale=scale)
    records = tuple(
        _record(step, launch, prepared(step, launch, backend=backend))
        for step, launch in zip(chosen, launches, strict=True)
    )
    comparison = compare(out, expected, name=method, relative=max(step.relative for step in chosen))
    return Verdict(method, backend, records, comparison, seconds, {"out": out}, picked)


def _warm_up(
    step: Step, kernel, launch: Launch, options: tuple[str, ...], device: Device, xp
) -> None:
    """One launch of the kernel on a single element: loading and decoding happen here, untimed."""
    problem = Problem(1, 1, 1, 1)
    tiny = step.launch(problem, options, device)
    names = {*ORACLES[step.computes].reads, *step.writes}
    buffers = {name: xp.ones(problem.shape(name), dtype=np.float32) for name in names}
    if tiny.entry == launch.entry:  # a step may use another kernel for large problems
        arguments = step_arguments(step, problem, buffers, 1.0)
        kernel(tiny.grid, tiny.block, arguments, shared_mem=tiny.shared_bytes)


def _device_buffers(step: Step, problem: Problem, inputs: Buffers, xp) -> dict:
    """The step's arrays on its backend: copies of what it reads, poison where it only writes."""
    reads = ORACLES[step.computes].reads
    buffers = {name: xp.asarray(inputs[name].copy()) for name in reads}
    for name in step.writes:
        buffers.setdefault(name, poisoned(problem.shape(name), xp=xp))
    return buffers


def _record(step: Step, launch: Launch, kernel) -> LaunchRecord:
    shared_bytes = kernel.shared_size_bytes + launch.shared_bytes
    return LaunchRecord(step.file, launch.entry, launch.grid, launch.block, shared_bytes)


def _worst(comparisons: list[Comparison]) -> Comparison:
    """The comparison that disagrees, if one does; else the one with the largest relative error."""
    return max(comparisons, key=lambda found: (not found.agrees, found.relative_error))


def _timed(call: Callable[[], object], xp) -> float:
    """Wall-clock seconds of a call, with the GPU idle before and after it."""
    synchronize = xp.cuda.Device().synchronize if hasattr(xp, "cuda") else (lambda: None)
    synchronize()
    start = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - start
