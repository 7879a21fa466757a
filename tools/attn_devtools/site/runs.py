"""What the kernels' pages show of a run: counters and the steps of a block, on an MRI window.

A run is kept in the folder of compiled code (KERNELSCOPE_COMPILED), where that is set, until the
kernel, a header of it, the compiler or the package changes.
"""

import hashlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import numpy as np
from kernelscope import Counters, Tracer, observe
from kernelscope.compile import include_closure, keep, kept_path, read_kept
from kernelscope.watch import Recording, fragment

from attn_course.backward import METHODS as BACKWARD_METHODS
from attn_course.backward.verify import backward_call, backward_inputs
from attn_course.folders import ENGINE, PACKAGE
from attn_course.ladder.headers import kernel_path
from attn_course.ladder.problem import Geometry
from attn_course.ladder.steps import LADDER, Step
from attn_course.ladder.verify import Oracle, step_call
from attn_course.layers.launches import Launches
from attn_course.layers.steps import LAYERS
from attn_course.layers.verify import layer_case
from attn_course.lessons.show import machine_facts
from attn_course.reference.dtypes import DTYPES
from attn_course.reference.inputs import mri_windows

HEAD_DIM = 16
HEADS = 6  # of a token, in the layers' kernels
# Queries and keys of the steppers: the first row, and five rows, of the window's tokens; where that
# takes more than MOST_STEPS, fewer.
TRACED_TOKENS = ((14, 70), (8, 20))
MOST_STEPS = 800
_DEPENDS_ON = (ENGINE, *(PACKAGE / room for room in ("ladder", "backward", "layers", "reference")))


@dataclass(frozen=True)
class KernelRun:
    """A run of one kernel: what was counted, and one block's steps as HTML.

    shape: of the problem, in words; launch: grid and block of the entry that is shown; totals:
    counter -> count, without zeros; lines: the counts beside the source, as HTML; verdict: the
    comparison with float64; traced: what the stepper shows; stepper: its HTML.
    """

    entry: str
    shape: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    totals: dict[str, int]
    lines: str
    verdict: str
    traced: str
    stepper: str

    @property
    def agrees(self) -> bool:
        """Whether the result agrees with float64."""
        return self.verdict.startswith("agrees")


@dataclass(frozen=True)
class _Run:
    """A kernel that can be run: `call` runs it once; `oracle` judges its result."""

    geometry: Geometry
    shape: str
    call: Callable[[], object]
    oracle: Oracle


def shown_steps() -> tuple[Step, ...]:
    """Return the kernels that get a page with a run: one entry a file, in the course's order."""
    first = {}
    for step in (*LADDER, *LAYERS, *(method.steps[-1] for method in BACKWARD_METHODS.values())):
        first.setdefault(step.file, step)
    return tuple(sorted(first.values(), key=lambda step: step.number))


def kernel_run(file: str) -> KernelRun:
    """Return the run of a kernel of the course by its file, "01_scores_naive"; kept or made."""
    step = next(one for one in shown_steps() if one.file == file)
    path = kept_path(f"run-{_key(step)}")
    if (found := read_kept(path)) is not None:
        return KernelRun(**found[0], stepper=found[1].decode())
    run = _made(step)
    facts = asdict(run)
    keep(path, facts, facts.pop("stepper").encode())
    return run


def _key(step: Step) -> str:
    """A hash of all that the step's run depends on."""
    path = kernel_path(step.file)
    text = path.read_text(encoding="utf-8")
    parts = [step.file, text, *map(repr, include_closure(text, path.parent)), _package_hash()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@cache
def _package_hash() -> str:
    found = hashlib.sha256(machine_facts("simulator")["CUDA compiler"].encode())
    for folder in _DEPENDS_ON:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".py", ".js", ".css"):
                found.update(path.read_bytes())
    found.update(Path(__file__).read_bytes())
    return found.hexdigest()


def _made(step: Step) -> KernelRun:
    counted = _prepared(step, None)
    with observe(Counters()) as seen:
        counted.call()
    recording, traced, stepper = _traced(step)
    return KernelRun(
        entry=counted.geometry.entry,
        shape=counted.shape,
        grid=counted.geometry.grid,
        block=counted.geometry.block,
        totals={name: count for name, count in seen.totals.items() if count},
        lines=seen.by_line._repr_html_(),
        verdict=_verdict(counted.oracle),
        traced=f"The {len(recording.frames)} steps of block (0, 0, 0), {traced}",
        stepper=stepper,
    )


def _traced(step: Step) -> tuple[Recording, str, str]:
    """All steps of the first block, the shape, the stepper.

    Raises:
        RuntimeError: the block takes too many steps for a page.
    """
    for tokens in TRACED_TOKENS:
        run = _prepared(step, tokens)
        most = MOST_STEPS * (2 if tokens is TRACED_TOKENS[-1] else 1)
        tracer = Tracer((0, 0, 0), kernel=run.geometry.entry, limit=most)
        with observe(tracer):
            run.call()
        (recording,) = tracer.recordings
        if not recording.truncated:
            return recording, run.shape, fragment([recording])
    raise RuntimeError(f"{step.file}: a block takes more than {most} steps even of {tokens} tokens")


def _prepared(step: Step, tokens: tuple[int, int] | None) -> _Run:
    """A run over the window's first tokens, (queries, keys); None: over all."""
    queries, keys = tokens or (None, None)
    if step in LADDER:
        return _attention_run(step, slice(queries), slice(keys))
    if step in LAYERS:
        return _layer_run(step, slice(queries))
    return _backward_run(step, slice(queries), slice(keys))


def _attention_run(step: Step, queries: slice, keys: slice) -> _Run:
    """A kernel of the ladder on one head of the window."""
    window = mri_windows(windows=1, heads=1, head_dim=HEAD_DIM)
    q, k, v = window.q[0, :, queries], window.k[0, :, keys], window.v[0, :, keys]
    call, oracle = step_call(step, q, k, v, backend="simulator")
    problem = call.problem
    shape = (
        f"one window of the MRI slice: {problem.n} queries, {problem.m} keys, one head of "
        f"{problem.d} numbers, {problem.dtype}"
    )
    return _Run(call.launches[-1].geometry, shape, call.up_to_last(), oracle)


def _backward_run(step: Step, queries: slice, keys: slice) -> _Run:
    """The method of the backward pass that ends with a kernel, on one head of the window."""
    name = next(name for name, one in BACKWARD_METHODS.items() if one.steps[-1] == step)
    window = mri_windows(windows=1, heads=1, head_dim=HEAD_DIM)
    dtype = DTYPES[step.dtypes[0]]
    q, k, v = (one.astype(dtype) for one in (window.q, window.k, window.v))
    inputs = backward_inputs(q[:, :, queries], k[:, :, keys], v[:, :, keys])
    call, oracle = backward_call(name, inputs, "simulator")
    problem = call.problem
    shape = (
        f"one window of the MRI slice: {problem.n} queries, {problem.m} keys, one head of "
        f"{problem.d} numbers, {problem.dtype}"
    )
    return _Run(call.launches[-1].geometry, shape, call.run, oracle)


def _layer_run(step: Step, rows: slice) -> _Run:
    """A kernel of the layers on the tokens of the window, (tokens, channels)."""
    window = mri_windows(windows=1, heads=HEADS, head_dim=HEAD_DIM)
    x = np.concatenate(window.q[0], axis=-1)[rows]  # (tokens, 96)
    tokens, width = x.shape
    launches = Launches("simulator")
    oracle = layer_case(step, x[None], HEADS).append(step, launches)
    shape = f"one window of the MRI slice: {tokens} tokens of {width} channels, float32"
    geometry = launches.launches[0].geometry
    return _Run(geometry, shape, launches.run, oracle)


def _verdict(oracle: Oracle) -> str:
    """The comparison of arrays with float64, in words; of several the worst."""
    worst = oracle.judge()
    agrees = "agrees" if worst.agrees else "DISAGREES"
    return f"{agrees} with float64, relative error {worst.relative_error:.1e}"
