"""Run steps and methods on one backend and check every array that they write against float64.

The result is a :class:`Verdict`: the launches, the error to float64 and the time of the calls. The
command line, the notebooks and the tests read the same records.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from kernelscope import array_module, asnumpy, resolve_backend

from attn_course import reference
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


# -- what a launch must write ----------------------------------------------------------------------
@dataclass(frozen=True)
class Oracle:
    """What a call must write, in float64.

    Attributes:
        written: the arrays that it writes, on its backend, by their names in the kernels.
        expected: the same in float64.
        relative: the relative error that is allowed.
        label: what messages call an array; {} stands for its name.
        absolute: by name, the error of each element that is allowed besides.
    """

    written: Mapping[str, object]
    expected: Arrays
    relative: float
    label: str = "{}"
    absolute: Arrays = field(default_factory=dict)

    def judge(self) -> Comparison:
        """Compare the arrays as they are now; return the worst comparison."""
        return worst(
            compare(
                array,
                self.expected[name],
                name=self.label.format(name),
                relative=self.relative,
                absolute=self.absolute.get(name, 0.0),
            )
            for name, array in self.written.items()
        )


def _softmax(scores, scale: float) -> np.ndarray:
    return reference.softmax(np.asarray(scores, np.float64) * scale)


def _product(p, v) -> np.ndarray:
    return np.asarray(p, np.float64) @ np.asarray(v, np.float64)


def _attention(b: Arrays, scale: float, causal: bool) -> np.ndarray:
    q, k, v = b["q"], b["k"], b["v"]  # a head of k and v serves several heads of q in a row:
    k, v = (np.repeat(array, len(q) // len(array), axis=0) for array in (k, v))
    how = {"causal": causal, "scale": scale, "bias": b.get("bias")}
    return reference.attention(q[None], k[None], v[None], **how)[0]


@dataclass(frozen=True)
class Formula:
    """What a kernel computes from the arrays that it reads.

    outputs: by the name of the array that is written, (arrays, scale, causal) -> it, in float64.
    adds: the kernel adds to these arrays, which start as zeros.
    """

    reads: tuple[str, ...]
    outputs: Mapping[str, Callable[[Arrays, float, bool], np.ndarray]]
    adds: bool = False

    def compute(self, arrays: Arrays, scale: float, causal: bool = False) -> dict[str, np.ndarray]:
        """Return the arrays that are written, in float64."""
        return {name: output(arrays, scale, causal) for name, output in self.outputs.items()}


# By the formula of the step.
FORMULAS = {
    "s = q k^T": Formula(
        ("q", "k"), {"s": lambda b, *_: _product(b["q"], np.swapaxes(b["k"], -1, -2))}
    ),
    "s = softmax(scale s), out = s v": Formula(
        ("s", "v"),
        {
            "s": lambda b, scale, _: _softmax(b["s"], scale),
            "out": lambda b, scale, _: _product(_softmax(b["s"], scale), b["v"]),
        },
    ),
    "p = softmax(scale s)": Formula(("s",), {"p": lambda b, scale, _: _softmax(b["s"], scale)}),
    "out = p v": Formula(("p", "v"), {"out": lambda b, *_: _product(b["p"], b["v"])}),
    FUSED: Formula(("q", "k", "v"), {"out": _attention}),
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


def step_call(
    step: Step,
    q,
    k,
    v,
    *,
    scale: float | None = None,
    backend: str | None = None,
    options: tuple[str, ...] = (),
) -> tuple[Call, Oracle]:
    """Return a call of one step of the ladder on inputs of its own, and what it must write.

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
    xp, scale = array_module(backend), 1 / math.sqrt(q.shape[2]) if scale is None else scale
    problem = step.taken(Problem(len(q), q.shape[1], k.shape[1], q.shape[2], dtype=q.dtype.name))
    inputs, formula = step_inputs(q, k, v, scale, problem), FORMULAS[step.computes]
    arrays = {name: xp.asarray(inputs[name].copy()) for name in formula.reads}
    for name in step.writes:  # poisoned where the step only writes
        arrays.setdefault(name, poisoned(problem.shape(name), problem.dtype_of(name), xp))
    call = call_steps([step], arrays, scale, problem=problem, backend=backend, options=options)
    written, expected = {n: arrays[n] for n in step.writes}, formula.compute(inputs, scale)
    return call, Oracle(written, expected, step.tolerance(problem.dtype), f"{step.file}: {{}}")


def verify_step(step: Step, q, k, v, *, options: tuple[str, ...] = (), **how) -> Verdict:
    """Run one step of the ladder on inputs of its own and judge every array it writes.

    The arguments and errors are those of :func:`step_call`.
    """
    call, oracle = step_call(step, q, k, v, options=options, **how)
    warm_up(call, options)
    return verdict(step.file, call, oracle, dtype=call.problem.dtype)


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
    warm_up(call)
    expected = {"out": reference.attention(q, k, v, causal=causal, scale=scale)}
    oracle = Oracle({"out": call.arrays["out"]}, expected, call.tolerance, method)
    picked = f"{call.method}: {call.reason}" if call.reason else ""
    return verdict(method, call, oracle, picked=picked, dtype=call.problem.dtype)


def verdict(name: str, call, oracle: Oracle, **more) -> Verdict:
    """Run a call once and return what it wrote, how long it took, and whether it agrees.

    call: a Call, or other launches with `run()`, `launches` and `backend`.
    more: `picked` and `dtype` of the verdict.
    """
    seconds = timed(call)
    outputs = {name: asnumpy(array) for name, array in oracle.written.items()}
    records = tuple(map(launch_record, call.launches))
    comparison = replace(oracle, written=outputs).judge()
    return Verdict(name, call.backend, records, comparison, seconds, outputs, **more)


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


def warm_up(call: Call, options: tuple[str, ...] = ()) -> None:
    """Run the call's kernels on a single query and key: they are loaded and decoded here, untimed.

    With one column, or with the 16 bytes that a tensor map takes at least.
    """
    xp = array_module(call.backend)
    for launch in call.launches:
        problem = Problem(1, 1, 1, 8 if launch.step.maps else 1, dtype=call.problem.dtype)
        names = ("q", "k", "v", "s", "p", "out")
        arrays = {name: xp.ones(problem.shape(name), problem.dtype_of(name)) for name in names}
        chosen = launch.geometry.options(options)
        tiny = call_steps(
            [launch.step], arrays, 1.0, problem=problem, backend=call.backend, options=chosen
        )
        if tiny.launches[-1].geometry.entry == launch.geometry.entry:  # large problems may differ
            tiny.run()


def launch_record(launch: StepLaunch) -> LaunchRecord:
    """Return the facts of a launch."""
    step = launch.step
    return LaunchRecord(
        step.place.stem if step.place else step.file,
        launch.geometry.entry,
        launch.geometry.grid,
        launch.geometry.block,
        launch.kernel.shared_size_bytes + launch.geometry.shared_bytes,
    )


def worst(comparisons: Iterable[Comparison]) -> Comparison:
    """Return the comparison that disagrees, else the one with the largest relative error."""
    return max(comparisons, key=lambda found: (not found.agrees, found.relative_error))
