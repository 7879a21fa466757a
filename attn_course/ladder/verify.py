"""Run steps and methods on one backend and check every array that they write against float64.

The result is a :class:`Verdict`: the launches, the error to float64 and the time of the calls. The
command line, the notebooks and the tests read the same records.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from attn_course import reference
from attn_course.engine.backend import array_module, asnumpy, resolve_backend
from attn_course.reference.comparison import Comparison, compare, poisoned

from .call import Call, StepLaunch, call_steps
from .methods import Request
from .steps import FUSED, Problem, Step

Arrays = Mapping[str, np.ndarray]


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
    """The result of a step or method on one backend, checked against float64.

    Attributes:
        name: the method, or the step's file name.
        backend: "gpu" or "simulator".
        launches: in the order in which they ran.
        comparison: of the output, or of the worst of the arrays the step wrote.
        seconds: wall-clock time of the calls, compilation excluded. On the simulator this is the
            time of simulating and says nothing of a GPU.
        outputs: the arrays that were written, on the host, by their names in the kernels.
        picked: the method that "auto" picked and why, "flash_fp32: ..."; else empty.
        dtype: of the inputs and the output.
    """

    name: str
    backend: str
    launches: tuple[LaunchRecord, ...]
    comparison: Comparison
    seconds: float
    outputs: Arrays
    picked: str = ""
    dtype: str = "float32"

    @property
    def agrees(self) -> bool:
        return self.comparison.agrees


def _softmax(b: Arrays, scale: float) -> np.ndarray:
    return reference.softmax(np.asarray(b["s"], np.float64) * scale)


def _product(p, v) -> np.ndarray:
    return np.asarray(p, np.float64) @ np.asarray(v, np.float64)


def _scores(b: Arrays, scale: float) -> dict[str, np.ndarray]:
    return {"s": _product(b["q"], np.swapaxes(b["k"], -1, -2))}


def _attention(b: Arrays, scale: float) -> dict[str, np.ndarray]:
    return {"out": reference.attention(*(b[name][None] for name in "qkv"), scale=scale)[0]}


def _softmax_and_output(b: Arrays, scale: float) -> dict[str, np.ndarray]:
    return {"s": _softmax(b, scale), "out": _product(_softmax(b, scale), b["v"])}


@dataclass(frozen=True)
class Oracle:
    """The arrays that a step reads; (inputs, scale) -> the arrays that it writes, in float64."""

    reads: tuple[str, ...]
    compute: Callable[[Arrays, float], dict[str, np.ndarray]]


# By the formula of the step.
ORACLES = {
    "s = q k^T": Oracle(("q", "k"), _scores),
    "s = softmax(scale s), out = s v": Oracle(("s", "v"), _softmax_and_output),
    "p = softmax(scale s)": Oracle(("s",), lambda b, scale: {"p": _softmax(b, scale)}),
    "out = p v": Oracle(("p", "v"), lambda b, scale: {"out": _product(b["p"], b["v"])}),
    FUSED: Oracle(("q", "k", "v"), _attention),
}


def step_inputs(q, k, v, scale: float, problem: Problem) -> dict[str, np.ndarray]:
    """Return every array that a step may read, from float64 and rounded once to its dtype.

    q (BH, n, d), k and v (BH, m, d), s (BH, n, m) unscaled scores, p (BH, n, m) softmax weights.
    A step is judged on inputs of its own, so that one step's error is not the next one's.
    """
    scores = _product(q, np.swapaxes(k, -1, -2))
    weights = reference.softmax(scores * scale)
    arrays = {"q": q, "k": k, "v": v, "s": scores, "p": weights}
    return {
        name: np.ascontiguousarray(array).astype(problem.dtype_of(name))
        for name, array in arrays.items()
    }


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
        q: (BH, n, d).  k, v: (BH, m, d). NumPy arrays; rounded to the step's usual dtype where it
            does not take theirs.
        scale: of the scores; defaults to 1/sqrt(d).
        options: compiler options such as ("-DTILE=16",).

    Raises:
        BackendError: a GPU is asked for where there is none.
        CompileError, ValueError: the options or the launch do not fit the kernel.
    """
    backend = resolve_backend(backend)
    scale = 1 / math.sqrt(q.shape[2]) if scale is None else scale
    problem = step.taken(Problem(len(q), q.shape[1], k.shape[1], q.shape[2], dtype=q.dtype.name))
    inputs = step_inputs(q, k, v, scale, problem)
    expected = ORACLES[step.computes].compute(inputs, scale)
    arrays = _device_arrays(step, problem, inputs, array_module(backend))
    call = call_steps([step], arrays, scale, problem=problem, backend=backend, options=options)
    _warm_up(call, options)
    seconds = timed(call)
    outputs = {name: asnumpy(arrays[name]) for name in step.writes}
    found = [
        compare(
            outputs[name],
            expected[name],
            name=f"{step.file}: {name}",
            relative=step.tolerance(problem.dtype),
        )
        for name in step.writes
    ]
    return Verdict(
        step.file, backend, _records(call), worst(found), seconds, outputs, dtype=problem.dtype
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
    device = [array_module(backend).asarray(array) for array in (q, k, v)]
    call = Request(*device, method, causal, scale, backend).call()
    _warm_up(call)
    seconds = timed(call)
    out = asnumpy(call.arrays["out"])
    expected = reference.attention(q, k, v, causal=causal, scale=scale)
    comparison = compare(out, expected, name=method, relative=call.tolerance)
    picked = f"{call.method}: {call.reason}" if call.reason else ""
    found = (method, call.backend, _records(call), comparison, seconds, {"out": out})
    return Verdict(*found, picked, call.problem.dtype)


def _warm_up(call: Call, options: tuple[str, ...] = ()) -> None:
    """Run the call's kernels on a single element: they are loaded and decoded here, untimed."""
    xp, problem = array_module(call.backend), Problem(1, 1, 1, 1, dtype=call.problem.dtype)
    for launch in call.launches:
        names = ("q", "k", "v", "s", "p", "out")
        arrays = {name: xp.ones(problem.shape(name), problem.dtype_of(name)) for name in names}
        chosen = launch.geometry.options(options)
        tiny = call_steps(
            [launch.step], arrays, 1.0, problem=problem, backend=call.backend, options=chosen
        )
        if tiny.launches[0].geometry.entry == launch.geometry.entry:  # large problems may differ
            tiny.run()


def _device_arrays(step: Step, problem: Problem, inputs: Arrays, xp) -> dict:
    """The step's arrays on its backend: copies of what it reads, poison where it only writes."""
    reads = ORACLES[step.computes].reads
    arrays = {name: xp.asarray(inputs[name].copy()) for name in reads}
    for name in step.writes:
        arrays.setdefault(name, poisoned(problem.shape(name), problem.dtype_of(name), xp))
    return arrays


def _records(call: Call) -> tuple[LaunchRecord, ...]:
    return tuple(launch_record(launch) for launch in call.launches)


def launch_record(launch: StepLaunch) -> LaunchRecord:
    """Return the facts of a launch."""
    return LaunchRecord(
        launch.step.file,
        launch.geometry.entry,
        launch.geometry.grid,
        launch.geometry.block,
        launch.kernel.shared_size_bytes + launch.geometry.shared_bytes,
    )


def worst(comparisons: Iterable[Comparison]) -> Comparison:
    """Return the comparison that disagrees, else the one with the largest relative error."""
    return max(comparisons, key=lambda found: (not found.agrees, found.relative_error))


def timed(call) -> float:
    """Return wall-clock seconds of `call.run()`, with the GPU idle before and after it.

    call: a Call, or another sequence of launches with a `backend`.
    """
    xp = array_module(call.backend)
    synchronize = xp.cuda.Device().synchronize if call.backend == "gpu" else (lambda: None)
    synchronize()
    start = time.perf_counter()
    call.run()
    synchronize()
    return time.perf_counter() - start
