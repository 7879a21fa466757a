"""attention(q, k, v) over the steps of the ladder.

A method is a sequence of steps that share their buffers: the scores that one kernel writes are
the scores that the next one reads. From ``rows_atomic`` on a single kernel does it all.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache

import numpy as np

from attn_course.engine.backend import array_module, resolve_backend
from attn_course.engine.compile import file_stamp
from attn_course.engine.module import RawModule

from .choose import choose, current_device
from .problem import MAX_GRID_YZ
from .steps import EXPERIMENTS, Launch, Problem, Step, step

METHODS: dict[str, tuple[int, ...]] = {
    "naive": (1, 4),
    "three_kernels": (1, 5, 6),
    "tiled": (2, 5, 6),
    "rows_atomic": (7,),
    "rows_warp": (8,),
    "rows_online": (9,),
    "flash_rows": (10,),
    "flash_fp32": (11,),
    "flash_async": (12,),
    "flash_split": (19,),
    "rows_split": (20,),
}
AUTO = "auto"  # the method that choose() names
# What a method can be asked for beyond q, k and v, by the kernel parameter that does it.
OPTIONS = {
    "causal": "a causal mask",
    "bias": "a bias",
    "lse": "a log-sum-exp output",
    "kv_heads": "grouped heads (k and v with fewer heads than q)",
}
NULL = {"bias", "lse"}  # pointers that may be null
MAX_ROWS = 2**31 - 1  # the row count is an int in the kernels

_log = logging.getLogger(__name__)


class UnknownMethod(ValueError):
    """A method that attention() does not have; the message lists those it has."""


class UnsupportedOption(ValueError):
    """An option that the chosen method's kernels do not implement."""


def steps_of(method: str) -> tuple[Step, ...]:
    """The ladder steps of a method in the order in which they run; an experiment's one step.

    Raises:
        UnknownMethod: names the methods there are.
    """
    if method in METHODS:
        return tuple(step(number) for number in METHODS[method])
    if any(method == row.entry for row in EXPERIMENTS):
        return (step(method),)
    known = (*METHODS, AUTO, *(row.entry for row in EXPERIMENTS))
    near = get_close_matches(str(method), known, 1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    raise UnknownMethod(
        f"no method {method!r}{meant}; choose one of: {', '.join(METHODS)}, {AUTO}, or of the "
        f"experiments: {', '.join(row.entry for row in EXPERIMENTS)}"
    )


def supports(method: str, option: str) -> bool:
    """Whether a method's kernels implement an option, a key of OPTIONS."""
    return any(option in row.arguments for row in steps_of(method))


def attention(
    q,
    k,
    v,
    method="tiled",
    causal=False,
    scale=None,
    backend=None,
    *,
    bias=None,
    return_lse=False,
    out=None,
    options=(),
):
    """softmax(q k^T * scale + bias) v in float32, computed by the kernels of ``method``.

    Args:
        q: (B, H, n, d).  k, v: (B, H_kv, m, d), H a multiple of H_kv: a head of k and v serves
            H / H_kv heads of q in a row. float32, C-contiguous; NumPy arrays on the simulator,
            CuPy arrays on a GPU.
        method: a key of METHODS, or "auto": :func:`choose` picks by shape, dtype and device, and
            the logger "attn_course.attention" says what and why.
        causal: query i sees key j only where j <= i + (m - n); the last one sees all.
        scale: defaults to 1/sqrt(d).
        backend: "gpu", "simulator" or None, as for RawModule.
        bias: float32, added to the scaled scores; (n, m), (H, n, m) or (B, H, n, m) where B and H
            may be 1; -inf masks a key. A row that sees no key gives zeros.
        return_lse: also return the logarithm of each row's sum of exponentials, (B, H, n), -inf
            for a row that sees no key.
        out: the array to write, like q; made here when None.
        options: compiler options for every step, for example ("-DTILE=16",).

    Returns:
        (B, H, n, d) float32, an array of the backend's module; with ``return_lse`` a pair.

    Raises:
        UnknownMethod, UnsupportedOption: both are ValueErrors.
        TypeError, ValueError: an argument's type, dtype, shape or extent, with the remedy.
    """
    backend = resolve_backend(backend)
    xp = array_module(backend)
    if method != AUTO:
        steps_of(method)  # an unknown method is named before any argument
    check_arrays(q, k, v, xp)
    bias_strides = check_bias(bias, q, k, xp)
    problem = problem_of(q, k, causal, bias_strides)
    method = pick(method, problem, backend)
    check_options(method, problem, bias, return_lse)
    scale = 1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    buffers = {"q": q, "k": k, "v": v}
    buffers["out"] = _output(out, buffers | {"bias": bias}, xp)
    flat = {name: _flat_heads(array) for name, array in buffers.items()}
    if return_lse:
        buffers["lse"] = flat["lse"] = xp.empty(q.shape[:3], dtype=np.float32)
    if bias is not None:
        flat["bias"] = bias
    _run_method(steps_of(method), flat, problem, scale, backend=backend, options=options)
    return (buffers["out"], buffers["lse"]) if return_lse else buffers["out"]


def pick(method: str, problem: Problem, backend: str | None = None) -> str:
    """The method itself, or what "auto" means for this problem; the logger says which and why."""
    if method != AUTO:
        return method
    method, reason = choose(problem, current_device(backend))
    _log.info("auto picks %s: %s", method, reason)
    return method


def problem_of(q, k, causal: bool = False, bias_strides: tuple[int, int] = (0, 0)) -> Problem:
    """The extents of a call on q (B, H, n, d) and k (B, H_kv, m, d)."""
    batch, heads, n, d = q.shape
    return Problem(batch * heads, n, k.shape[2], d, heads, k.shape[1], bool(causal), bias_strides)


def check_options(method: str, problem: Problem, bias=None, return_lse: bool = False) -> None:
    """Refuse what the method's kernels do not implement.

    Raises:
        UnsupportedOption: names the methods that do.
    """
    wanted = {
        "causal": problem.causal,
        "bias": bias is not None,
        "lse": return_lse,
        "kv_heads": problem.kv_heads != problem.heads,
    }
    for option, words in OPTIONS.items():
        if wanted[option] and not supports(method, option):
            able = ", ".join(name for name in METHODS if supports(name, option))
            raise UnsupportedOption(
                f"method {method!r} has no {words.removeprefix('a ')}; methods that do: {able}. "
                "attn_course.reference.attention computes it in float64"
            )


def _run_method(chosen, flat: dict, problem: Problem, scale: float, *, backend, options) -> None:
    """Run a method; one that puts heads on grid z, in slices of as many heads as that holds."""
    if "heads" in chosen[0].arguments:  # a single kernel with all rows on grid x
        run_steps(chosen, flat, scale, backend=backend, options=options, problem=problem)
        return
    for start in range(0, problem.bh, MAX_GRID_YZ):
        part = {name: array[start : start + MAX_GRID_YZ] for name, array in flat.items()}
        run_steps(chosen, part, scale, backend=backend, options=options)


def run_steps(
    chosen: Sequence[Step],
    buffers: dict,
    scale: float,
    *,
    backend=None,
    options=(),
    problem=None,
):
    """Launch steps over flat heads. Returns the buffers with what the steps wrote.

    buffers holds what the steps read, for whole methods q (BH, n, d), k and v (BH, m, d). The
    scores s (BH, n, m) and out (BH, n, d) are made here unless the caller brings them; so are the
    softmax weights p, which replace s in place. A bias and lse are used where they are given.
    problem: the extents, where q and k do not say them all.
    """
    if problem is None:
        (bh, n, d), m = buffers["q"].shape, buffers["k"].shape[1]
        problem = Problem(bh, n, m, d)
    if problem.bh * problem.n > MAX_ROWS:
        raise ValueError(
            f"{problem.bh} heads of {problem.n} queries: the kernels count {MAX_ROWS} rows at most"
        )
    xp, device = array_module(backend), current_device(backend)
    buffers = dict(buffers)
    used = {name for row in chosen for name in row.arguments}
    for name in ("s", "out"):
        if name in used and name not in buffers:
            buffers[name] = xp.empty(problem.shape(name), dtype=np.float32)
    if "p" in used and "p" not in buffers:
        buffers["p"] = buffers["s"]
    for row in chosen:
        launch = row.launch(problem, options, device)
        kernel = prepared(row, launch, options, backend)
        arguments = step_arguments(row, problem, buffers, scale)
        kernel(launch.grid, launch.block, arguments, shared_mem=launch.shared_bytes)
    return buffers


def step_arguments(row: Step, problem: Problem, buffers: Mapping, scale: float) -> tuple:
    """Kernel arguments in the kernel's order: arrays, integer extents, the float32 scale.

    A bias or lse that is not among the buffers becomes a null pointer.
    """
    values = problem.scalars() | {"scale": np.float32(scale)}
    values |= {name: None for name in NULL if name not in buffers}
    return tuple(values[name] if name in values else buffers[name] for name in row.arguments)


def prepared(row: Step, launch: Launch, options: Sequence[str] = (), backend: str | None = None):
    """The step's kernel compiled for a launch, with leave to use its shared memory."""
    given = {option.partition("=")[0] for option in options}
    tuned = (option for option in launch.options if option.partition("=")[0] not in given)
    kernel = compiled(row.path, (*tuned, *options), entry=launch.entry, backend=backend)
    if launch.shared_bytes > kernel.max_dynamic_shared_size_bytes:
        kernel.max_dynamic_shared_size_bytes = launch.shared_bytes
    return kernel


def compiled(path, options=(), *, entry: str, backend: str | None = None):
    """The kernel ``entry`` of a file, compiled once for each set of options and backend."""
    # None may mean another backend later, and an edited file another kernel: both are in the key.
    stamp = file_stamp(path)
    return _module(path, stamp, tuple(options), resolve_backend(backend)).get_function(entry)


@lru_cache(maxsize=64)
def _module(path, stamp, options, backend):
    return RawModule(path=str(path), options=options, backend=backend)


def _flat_heads(array):
    """(B, H, L, D) -> (B*H, L, D), a view."""
    return array.reshape(-1, *array.shape[2:])


def _output(out, inputs: dict, xp):
    q = inputs["q"]
    if out is None:
        return xp.empty(q.shape, dtype=np.float32)
    _check_array("out", out, xp)
    if out.shape != q.shape:
        raise ValueError(f"out has shape {out.shape}, q {q.shape}: they must be equal")
    start, end = _extent(out)
    for name, array in inputs.items():
        if array is not None and start < _extent(array)[1] and _extent(array)[0] < end:
            raise ValueError(
                f"out shares memory with {name}: the kernels would overwrite what they still "
                f"read; pass an array of its own, such as {xp.__name__}.empty_like(q)"
            )
    return out


def _extent(array) -> tuple[int, int]:
    """First address of a contiguous array, and the one past its end."""
    data = array.data
    start = data.ptr if hasattr(data, "ptr") else array.__array_interface__["data"][0]
    return start, start + array.nbytes


def check_arrays(q, k, v, xp=np) -> None:
    """Refuse what the kernels cannot read, naming the argument and the remedy.

    Raises:
        TypeError: not an array of ``xp``, or not float32.
        ValueError: not four-dimensional, empty, not C-contiguous, or shapes that do not match.
    """
    for name, array in zip("qkv", (q, k, v), strict=True):
        _check_array(name, array, xp)
    for name, array in (("k", k), ("v", v)):
        if array.shape[0] != q.shape[0] or array.shape[3] != q.shape[3]:
            raise ValueError(
                f"{name} has shape {array.shape}, q {q.shape}: batch and head dimension must be "
                "equal; cut or pad the arrays to match"
            )
        if q.shape[1] % array.shape[1]:
            raise ValueError(
                f"{name} has shape {array.shape}, q {q.shape}: the heads of q must be a multiple "
                f"of those of {name}; repeat or cut the heads"
            )
    if k.shape[1] != v.shape[1]:
        raise ValueError(f"k has {k.shape[1]} heads, v {v.shape[1]}: make them equal")
    if k.shape[2] != v.shape[2]:
        raise ValueError(f"k has {k.shape[2]} keys, v {v.shape[2]} values: make them equal")


def check_bias(bias, q, k, xp=np) -> tuple[int, int]:
    """Floats from one element of the batch, and from one head, to the next in the bias.

    Raises:
        TypeError, ValueError: as :func:`check_arrays`; a shape that does not fit.
    """
    if bias is None:
        return (0, 0)
    _check_array("bias", bias, xp, dimensions=(2, 3, 4))
    (batch, heads, n), m = q.shape[:3], k.shape[2]
    extents = (1,) * (4 - bias.ndim) + bias.shape
    if extents[0] not in (1, batch) or extents[1] not in (1, heads) or extents[2:] != (n, m):
        raise ValueError(
            f"bias has shape {bias.shape}, the scores {(batch, heads, n, m)}: its last two extents "
            "must be those, batch and heads those or 1; for others pass a copy of "
            f"{xp.__name__}.broadcast_to(bias, {(batch, heads, n, m)})"
        )
    return (extents[1] * n * m if extents[0] > 1 else 0, n * m if extents[1] > 1 else 0)


def _check_array(name, array, xp, dimensions=(4,)):
    if not isinstance(array, xp.ndarray):
        convert = "cupy.asnumpy" if hasattr(array, "get") else f"{xp.__name__}.asarray"
        raise TypeError(
            f"{name} is {type(array).__module__}.{type(array).__name__}, this backend takes "
            f"{xp.__name__} arrays: pass {convert}({name})"
        )
    if array.dtype != np.float32:
        raise TypeError(f"{name} is {array.dtype}, not float32: pass {name}.astype(numpy.float32)")
    if array.ndim not in dimensions:
        form = "(B, H, L, D)" if dimensions == (4,) else "(n, m), (H, n, m) or (B, H, n, m)"
        raise ValueError(f"{name} has shape {array.shape}, not {form}: reshape it")
    if 0 in array.shape:
        raise ValueError(f"{name} has shape {array.shape}: every extent must be at least 1")
    if not array.flags.c_contiguous:
        raise ValueError(
            f"{name} is not C-contiguous: pass {xp.__name__}.ascontiguousarray({name})"
        )
