"""Times for claims that no other record holds: reductions alone, and a cuBLAS handle a call.

Both are measured on a GPU; the probes' results are checked against float64 first.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
from kernelscope import array_module, asnumpy, resolve_backend
from kernelscope.contest import (
    Timing,
    TimingError,
    capture,
    contest,
    first_calls,
    require_gpu,
)

from attn_course.ladder.call import compiled
from attn_course.ladder.headers import kernel_path
from attn_course.measure import candidates
from attn_course.measure.records import new_record
from attn_course.reference.comparison import compare

KIND = "claims_lesson"
PROBES = "probes/reductions"
THREADS = 256  # numbers that a block reduces to one
ROUNDS = 200  # reductions of a launch, each waiting for the one before
BLOCKS = (1, 132 * 8)  # a block alone, and a grid that fills every SM of an H200
REDUCTIONS = ("sum_atomic", "sum_shuffle", "max_atomic", "max_shuffle")
# (tokens, hidden, feed-forward) of a report's two MLPs.
MLPS = ((4 * 128, 512, 2048), (8 * 256, 512, 2048))


def record(quick: bool = False) -> dict:
    """Return a record of both experiments; quick: in few turns.

    Raises:
        TimingError: no GPU, or a reduction that is wrong.
    """
    require_gpu()
    iterations = 5 if quick else 40
    found = {
        "reductions": [reductions(blocks, iterations) for blocks in BLOCKS],
        "handles": [handles(*shape, iterations) for shape in MLPS],
    }
    return new_record(KIND, (PROBES,), torch=candidates.torch_version(), **found)


# -- reductions ------------------------------------------------------------------------------------
def expected(x: np.ndarray, what: str, rounds: int) -> np.ndarray:
    """Return the totals of kernels/probes/reductions.cu in float64; x: (blocks, THREADS)."""
    total, join = np.zeros(len(x)), np.sum if what == "sum" else np.max
    for _ in range(rounds):
        total = join(x + total[:, None] / 1024, axis=1)
    return total


def reduction(entry: str, x, out, rounds: int, backend: str | None = None) -> Callable[[], None]:
    """Return a call of one probe. x: (blocks, THREADS), out: (blocks,), float32."""
    kernel = compiled(kernel_path(PROBES), entry=entry, backend=backend)
    arguments = (x, out, np.int32(rounds))
    return partial(kernel, (len(x), 1, 1), (THREADS, 1, 1), arguments)


def check_reduction(entry: str, blocks: int, rounds: int, backend: str | None = None) -> None:
    """Run one probe once. TimingError: its totals are not those of float64."""
    xp = array_module(resolve_backend(backend))
    x = np.random.default_rng(0).random((blocks, THREADS), dtype=np.float32)
    out = xp.full(blocks, np.nan, np.float32)
    reduction(entry, xp.asarray(x), out, rounds, backend)()
    found = compare(asnumpy(out), expected(x, entry[:3], rounds))
    if not found.agrees:
        raise TimingError(f"{entry}: wrong totals, relative error {found.relative_error:.1e}")


def reductions(blocks: int, iterations: int) -> dict:
    """Time every probe in turns, as graph replays of one launch of ROUNDS reductions."""
    import cupy

    replays = {}
    x = cupy.random.default_rng(0).random((blocks, THREADS), dtype=np.float32)
    for entry in REDUCTIONS:
        check_reduction(entry, blocks, ROUNDS)
        out = cupy.empty(blocks, np.float32)
        replays[entry] = capture(reduction(entry, x, out, ROUNDS), 1)
    taken = contest(replays, iterations=iterations)
    return {"blocks": blocks, "rounds": ROUNDS, "timings": _records(taken.timings.values())}


# -- a cuBLAS handle -------------------------------------------------------------------------------
def handles(tokens: int, hidden: int, ff: int, iterations: int) -> dict:
    """Time an MLP's two matrix products by the host's clock, handle kept and made in each call.

    With PyTorch: its linear, GELU, linear of the same sizes as well.
    """
    import cupy
    from cupy.cuda import cublas, device

    x, w1, inner, w2, out = (
        cupy.ones(shape, np.float32)
        for shape in ((tokens, hidden), (hidden, ff), (tokens, ff), (ff, hidden), (tokens, hidden))
    )
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)

    def product(handle, a, b, c) -> None:
        """c = a b, row-major: to cuBLAS, which is column-major, c^T = b^T a^T."""
        (rows, depth), cols = a.shape, b.shape[1]
        sizes = (cols, rows, depth)
        places = (b.data.ptr, cols, a.data.ptr, depth)
        cublas.sgemm(
            handle, 0, 0, *sizes, one.ctypes.data, *places, zero.ctypes.data, c.data.ptr, cols
        )

    def kept() -> None:
        handle = device.get_cublas_handle()
        product(handle, x, w1, inner)
        product(handle, inner, w2, out)

    def made() -> None:
        handle = cublas.create()
        product(handle, x, w1, inner)
        product(handle, inner, w2, out)
        cublas.destroy(handle)

    calls = {"handle kept": kept, "handle made": made}
    if candidates.available():
        calls["torch"] = _torch_mlp(tokens, hidden, ff)
    timings = []
    for name, call in calls.items():
        samples = first_calls(call, 10 + iterations)[10:]
        timings.append(Timing(name, "wall", tuple(samples)))
    if not bool((out == hidden * ff).all()):
        raise TimingError("the products of ones are not what they must be")
    return {"shape": [tokens, hidden, ff], "timings": _records(timings)}


def _torch_mlp(tokens: int, hidden: int, ff: int) -> Callable[[], None]:
    import torch

    layers = torch.nn.Sequential(
        torch.nn.Linear(hidden, ff), torch.nn.GELU(), torch.nn.Linear(ff, hidden)
    ).cuda()
    x = torch.ones(tokens, hidden, device="cuda")

    def call() -> None:
        with torch.inference_mode():
            layers(x)
        torch.cuda.synchronize()

    return call


def _records(timings) -> dict[str, dict]:
    return {timing.name: timing.record() for timing in timings}
