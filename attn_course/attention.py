"""attention(q, k, v) over the steps of the ladder.

A method is a sequence of steps that share their buffers: the scores that one kernel writes are
the scores that the next one reads.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from .backend import array_module, resolve_backend
from .ladder import MAX_GRID_YZ, Problem, Step, step
from .module import RawModule

METHODS: dict[str, tuple[int, ...]] = {
    "naive": (1, 4),
    "three_kernels": (1, 5, 6),
    "tiled": (2, 5, 6),
}
CAUSAL_METHODS: frozenset[str] = frozenset()  # methods whose kernels apply the causal mask
MAX_ROWS = 2**31 - 1  # the row count is an int in the kernels


class UnknownMethod(ValueError):
    """A method that attention() does not have; the message lists those it has."""


class UnsupportedOption(ValueError):
    """An option that the chosen method's kernels do not implement."""


def steps(method: str) -> tuple[Step, ...]:
    """The ladder steps of a method, in the order in which they run.

    Raises:
        UnknownMethod: names the methods there are.
    """
    if method not in METHODS:
        raise UnknownMethod(f"no method {method!r}; choose one of: {', '.join(METHODS)}")
    return tuple(step(number) for number in METHODS[method])


def attention(
    q, k, v, method="tiled", causal=False, scale=None, backend=None, *, out=None, options=()
):
    """softmax(q k^T * scale) v in float32, computed by the kernels of ``method``.

    Args:
        q: (B, H, Lq, D).  k, v: (B, H, Lk, D). float32, C-contiguous; NumPy arrays on the
            simulator, CuPy arrays on a GPU.
        method: a key of METHODS.
        causal: refused by methods that do not implement it.
        scale: defaults to 1/sqrt(D).
        backend: "gpu", "simulator" or None, as for RawModule.
        out: the array to write, like q; made here when None.
        options: compiler options for every step, for example ("-DTILE=16",).

    Returns:
        (B, H, Lq, D) float32, an array of the backend's module.

    Raises:
        UnknownMethod, UnsupportedOption: both are ValueErrors.
        TypeError, ValueError: an argument's type, dtype or shape, with the remedy.
    """
    chosen = steps(method)
    if causal and method not in CAUSAL_METHODS:
        able = ", ".join(sorted(CAUSAL_METHODS)) or "none of them does yet"
        raise UnsupportedOption(
            f"method {method!r} has no causal mask; methods that do: {able}. "
            "attn_course.reference.attention(..., causal=True) computes it in float64"
        )
    backend = resolve_backend(backend)
    xp = array_module(backend)
    check_arrays(q, k, v, xp)
    scale = 1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    if out is None:
        out = xp.empty(q.shape, dtype=np.float32)
    _check_array("out", out, xp)
    if out.shape != q.shape:
        raise ValueError(f"out has shape {out.shape}, q {q.shape}: they must be equal")
    heads = {name: _flat_heads(array) for name, array in zip("qkv", (q, k, v), strict=True)}
    heads["out"] = _flat_heads(out)
    for start in range(0, heads["q"].shape[0], MAX_GRID_YZ):  # grid z holds no more heads
        part = {name: array[start : start + MAX_GRID_YZ] for name, array in heads.items()}
        run_steps(chosen, part, scale, backend=backend, options=options)
    return out


def run_steps(chosen: Sequence[Step], buffers: dict, scale: float, *, backend=None, options=()):
    """Launch steps over flat heads. Returns the buffers with what the steps wrote.

    buffers holds what the steps read, for whole methods q (BH, n, d), k and v (BH, m, d). The
    scores s (BH, n, m) and out (BH, n, d) are made here unless the caller brings them; so are the
    softmax weights p, which replace s in place.
    """
    (bh, n, d), m = buffers["q"].shape, buffers["k"].shape[1]
    problem = Problem(bh, n, m, d)
    if bh * n > MAX_ROWS:
        raise ValueError(f"{bh} heads of {n} queries: the kernels count {MAX_ROWS} rows at most")
    xp = array_module(backend)
    buffers = dict(buffers)
    for name in ("s", "out"):
        if name not in buffers:
            buffers[name] = xp.empty(problem.shape(name), dtype=np.float32)
    buffers.setdefault("p", buffers["s"])
    for row in chosen:
        launch = row.launch(problem, options)
        kernel = compiled(row.path, options, backend=backend, entry=launch.entry)
        arguments = step_arguments(row, problem, buffers, scale)
        kernel(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes)
    return buffers


def step_arguments(row: Step, problem: Problem, buffers: dict, scale: float) -> tuple:
    """Kernel arguments in the kernel's order: arrays, int32 extents, the float32 scale."""
    extents = {"rows": problem.bh * problem.n, "n": problem.n, "m": problem.m, "d": problem.d}
    scalars = {name: np.int32(value) for name, value in extents.items()}
    scalars["scale"] = np.float32(scale)
    return tuple(scalars[name] if name in scalars else buffers[name] for name in row.arguments)


def compiled(path, options=(), *, entry: str, backend: str | None = None):
    """The kernel ``entry`` of a file, compiled once for each set of options and backend."""
    # None may mean another backend later, and an edited file another kernel: both are in the key.
    modified = path.stat().st_mtime_ns
    return _module(path, modified, tuple(options), resolve_backend(backend)).get_function(entry)


@lru_cache(maxsize=64)
def _module(path, modified, options, backend):
    return RawModule(path=str(path), options=options, backend=backend)


def _flat_heads(array):
    """(B, H, L, D) -> (B*H, L, D), a view."""
    return array.reshape(-1, *array.shape[2:])


def check_arrays(q, k, v, xp=np) -> None:
    """Refuse what the kernels cannot read, naming the argument and the remedy.

    Raises:
        TypeError: not an array of ``xp``, or not float32.
        ValueError: not four-dimensional, empty, not C-contiguous, or shapes that do not match.
    """
    for name, array in zip("qkv", (q, k, v), strict=True):
        _check_array(name, array, xp)
    for name, array in (("k", k), ("v", v)):
        if array.shape[:2] != q.shape[:2] or array.shape[3] != q.shape[3]:
            raise ValueError(
                f"{name} has shape {array.shape}, q {q.shape}: batch, heads and head dimension "
                "must be equal; repeat grouped heads, or cut the arrays to match"
            )
    if k.shape[2] != v.shape[2]:
        raise ValueError(f"k has {k.shape[2]} keys, v {v.shape[2]} values: make them equal")


def _check_array(name, array, xp):
    if not isinstance(array, xp.ndarray):
        convert = "cupy.asnumpy" if hasattr(array, "get") else f"{xp.__name__}.asarray"
        raise TypeError(
            f"{name} is {type(array).__module__}.{type(array).__name__}, this backend takes "
            f"{xp.__name__} arrays: pass {convert}({name})"
        )
    if array.dtype != np.float32:
        raise TypeError(f"{name} is {array.dtype}, not float32: pass {name}.astype(numpy.float32)")
    if array.ndim != 4:
        raise ValueError(f"{name} has shape {array.shape}, not (B, H, L, D): reshape it")
    if 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}: every extent must be at least 1")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{name} is not C-contiguous: pass {xp.__name__}.ascontiguousarray({name})"
        )
