"""attention(q, k, v) over the steps of the ladder.

A method is a sequence of steps that share their buffers: the scores that one kernel writes are
the scores that the next one reads. From ``rows_atomic`` on a single kernel does it all.

A call with new arrays of a form that was seen before (types, shapes, dtypes, options) finds its
launches ready, see kept.py: it makes the output and launches.
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from inspect import Parameter, signature
from typing import ClassVar

import msgspec
import numpy as np
from kernelscope import array_module, capture_graph, resolve_backend
from kernelscope.errors import Advice, UserError, did_you_mean
from kernelscope.module import (
    Interchange,
    is_foreign,
    stream_address,
    takes_foreign,
    tensor_library,
)

from .call import Call, StepLaunch, call_steps
from .checks import (
    check_arrays,
    check_bias,
    check_cache,
    check_flags,
    check_output,
    check_overlap,
    check_range,
)
from .choose import choose, current_device, device_number
from .kept import CachedCall, are_plain, array_form, keep_call, kept_call, tensor_form
from .problem import Problem
from .steps import EXPERIMENTS, Step, launched, step

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
    "flash_wmma": (13,),
    "flash_mma": (14,),
    "flash_tf32x3": (15,),
    "flash_wgmma": (18,),
    "flash_split": (19,),
    "rows_split": (20,),
    "decode": (23,),
    "decode_cluster": (34,),
    "split_tf32x3": (29,),
    "flash_fp16x3": (33,),
}
AUTO = "auto"  # the method that choose() names
DEFAULT = "tiled"
# What a method can be asked for beyond q, k and v, by the kernel parameter that does it.
OPTIONS = {
    "causal": "a causal mask",
    "bias": "a bias",
    "lse": "a log-sum-exp output",
    "kv_heads": "grouped heads (k and v with fewer heads than q)",
    "lengths": "lengths of sequences",
    "page_table": "a page table",
    "key_stride": "kv_layout NHD",
}

_INPUTS = ("q", "k", "v", "bias", "lengths", "page_table")  # arrays of a request
_log = logging.getLogger("attn_course.ladder.attention")


class UnknownMethod(UserError, ValueError):
    """A method that attention() does not have; the message lists those it has."""


class UnsupportedOption(UserError, ValueError):
    """An option that the chosen method's kernels do not implement."""


class UnsupportedDtype(UnsupportedOption, TypeError):
    """A dtype that the chosen method's kernels do not take."""


def method_names() -> tuple[str, ...]:
    """Return every name that `method` takes: of METHODS, "auto", the experiments."""
    return (*METHODS, AUTO, *(row.entry for row in EXPERIMENTS))


def steps_of(method: str) -> tuple[Step, ...]:
    """Return the ladder steps of a method in the order in which they run; an experiment's one step.

    Raises:
        UnknownMethod: names the methods there are.
    """
    if method in METHODS:
        return tuple(step(number) for number in METHODS[method])
    if any(method == row.entry for row in EXPERIMENTS):
        return (step(method),)
    known = method_names()
    of = [name for name, numbers in METHODS.items() if method in (step(n).file for n in numbers)]
    step_of = f" (this kernel is a step of: {', '.join(of)})" if of else ""
    meant = step_of or did_you_mean(str(method), known)
    raise UnknownMethod(
        f"no method {method!r}{meant}; choose one of: {', '.join(METHODS)}, {AUTO}, or of the "
        f"experiments: {', '.join(row.entry for row in EXPERIMENTS)}"
    )


def files_of(*methods: str) -> tuple[str, ...]:
    """Return the kernel files of methods, without folder and ending, in the order of launches."""
    steps = launched(step for method in methods for step in steps_of(method))
    return tuple(dict.fromkeys(step.file for step in steps))


def supports(method: str, option: str) -> bool:
    """Whether a method's kernels implement an option, a key of OPTIONS."""
    return any(option in row.arguments for row in steps_of(method))


def dtypes_of(method: str) -> tuple[str, ...]:
    """Return the dtypes that a method takes, names in DTYPES, the usual one first."""
    first, *others = steps_of(method)
    return tuple(one for one in first.dtypes if all(one in row.dtypes for row in others))


class Request(msgspec.Struct, frozen=True, eq=False):
    """What :func:`attention` is asked for: its arguments by their names."""

    log: ClassVar[logging.Logger] = _log  # says what "auto" picks
    q: object
    k: object
    v: object
    method: str = DEFAULT
    causal: bool = False
    scale: float | None = None
    backend: str | None = None
    bias: object = None
    return_lse: bool = False
    out: object = None
    options: Sequence[str] = ()
    lengths: object = None
    page_table: object = None
    kv_layout: str = "HND"

    def call(self) -> Call:
        """Check the arguments as attention() does and return the call that it runs."""
        q, k, v, bias, backend = self.q, self.k, self.v, self.bias, resolve_backend(self.backend)
        xp = array_module(backend)
        if self.method != AUTO:
            steps_of(self.method)  # an unknown method is named before any argument
        check_flags(causal=self.causal, return_lse=self.return_lse)
        check_arrays(q, k, v, xp, paged=self.page_table is not None, kv_layout=self.kv_layout)
        page = k.shape[1 + self.kv_layout.index("N")]
        check_cache(self.lengths, self.page_table, q.shape[0], page, xp)
        strides = check_bias(bias, q, k, xp)
        problem = self.problem(strides)
        method, reason = _pick(self.method, problem, backend)
        check_options(method, problem, self.return_lse)
        arrays = self.arrays(xp, check_output)
        scale = 1.0 / math.sqrt(problem.d) if self.scale is None else float(self.scale)
        how = {"problem": problem, "backend": backend, "options": self.options}
        call = call_steps(steps_of(method), arrays, scale, **how)
        call.method, call.reason = method, reason
        return call

    def problem(self, bias_strides: tuple[int, int] = (0, 0)) -> Problem:
        """Return the extents of the call."""
        how = {"causal": bool(self.causal), "bias_strides": bias_strides}
        how |= {"biased": self.bias is not None, "ragged": self.lengths is not None}
        heads_last = self.kv_layout == "NHD"
        k = self.k.transpose(0, 2, 1, 3) if heads_last else self.k  # (.., kv_heads, m, d)
        found = replace(problem_of(self.q, k), heads_last=heads_last, **how)
        if self.page_table is None:
            return found
        return replace(found, page=found.m, m=found.m * self.page_table.shape[1])

    def arrays(self, xp, check: Callable) -> dict[str, object]:
        """Return the arrays by their names in the kernels; outputs that are not given are made.

        check: (out, inputs, xp) refuses an output that is given.
        """
        arrays = {"q": self.q, "k": self.k, "v": self.v}
        if self.bias is not None:
            arrays["bias"] = self.bias
        if self.page_table is not None:
            arrays["page_table"] = self.page_table
        if self.lengths is not None:
            arrays["lengths"] = self.lengths
        if "page_table" in arrays or "lengths" in arrays:
            check_range(self.lengths, self.page_table, self.problem(), len(self.k))
        if self.out is not None:
            check(self.out, arrays, xp)
        arrays["out"] = xp.empty(self.q.shape, self.q.dtype) if self.out is None else self.out
        if self.return_lse:
            arrays["lse"] = xp.empty(self.q.shape[:3], np.float32)
        return arrays

    def cached(self, form_of=None) -> tuple[CachedCall | None, tuple | None]:
        """Return the kept call of such requests, if any, and the form that they share.

        The form is all that the checks and launches depend on but addresses; None: a request
        that is not kept, since something is wrong with it. form_of: of an array.
        """
        form_of = form_of or array_form
        try:
            form = (
                self.backend,
                device_number(self.backend),
                self.method,
                type(self.causal),  # 1.0 equals True, and is refused
                self.causal,
                None if self.scale is None else float(self.scale),
                type(self.return_lse),
                self.return_lse,
                tuple(self.options),
                *(form_of(self.q), form_of(self.k), form_of(self.v)),
                self.kv_layout,
                None if self.bias is None else form_of(self.bias),
                None if self.out is None else form_of(self.out),
                None if self.lengths is None else form_of(self.lengths),
                None if self.page_table is None else form_of(self.page_table),
            )
            return kept_call(form), form
        except (AttributeError, TypeError, ValueError):
            return None, None  # the checks say what is wrong


def attention(
    q,
    k,
    v,
    method=DEFAULT,
    causal=False,
    scale=None,
    backend=None,
    *,
    bias=None,
    return_lse=False,
    out=None,
    options=(),
    lengths=None,
    page_table=None,
    kv_layout="HND",
):
    """softmax(q k^T * scale + bias) v, computed by the kernels of ``method``.

    Args:
        q: (B, H, n, d).  k, v: (B, H_kv, m, d), H a multiple of H_kv: a head of k and v serves
            H / H_kv heads of q in a row. Of one dtype, which the method takes: float32, or for
            flash_wmma and flash_mma float16 or ml_dtypes.bfloat16. C-contiguous; NumPy arrays on
            the simulator, CuPy arrays on a GPU, or arrays of one other library with DLPack or
            __cuda_array_interface__ (PyTorch, JAX, Numba) on either: they are not copied.
        method: a key of METHODS, or "auto": :func:`choose` picks by shape, dtype, device and
            whether there is a bias; the logger "attn_course.ladder.attention" says what and why.
        causal: query i sees key j only where j <= i + (m - n); the last one sees all.
        scale: defaults to 1/sqrt(d).
        backend: "gpu", "simulator" or None, as for RawModule.
        bias: float32, added to the scaled scores; (n, m), (H, n, m) or (B, H, n, m) where B and H
            may be 1; -inf masks a key. A row that sees no key gives zeros. In a row of nothing
            but finite numbers below -2e38, such as float32's smallest, the log-sum-exp, and with it
            the gradients, are not defined: use -inf.
        return_lse: also return the logarithm of each row's sum of exponentials, (B, H, n) float32,
            -inf for a row that sees no key.
        out: the array to write, like q; made here when None.
        options: compiler options for every step, for example ("-DTILE=16",).
        lengths: int32 (B,), the keys of each sequence, 0 to m; what k and v hold past them is not
            used, and causal counts from them: query i of n sees j <= i + (length - n). None: m.
        page_table: int32 (B, P): k and v are pages of a cache, (pages, H_kv, page, d), of a
            multiple of 16 keys, and keys i * page on of sequence b are in page page_table[b, i];
            m is P * page. The numbers are not checked on a GPU.
        kv_layout: "NHD": k and v are (B or pages, m or page, H_kv, d).

    Returns:
        (B, H, n, d) of q's dtype, an array of q's library on its device; with ``return_lse`` a
        pair.

    Raises:
        UnknownMethod, UnsupportedOption: both are ValueErrors. UnsupportedDtype: a TypeError too.
        TypeError, ValueError: an argument's type, dtype, shape or extent, with the remedy.
    """
    exchange = Interchange(q) if is_foreign(q.__class__) else None
    place = resolve_backend(backend) if exchange is None else exchange.check_backend(backend)
    request = Request(
        *(q, k, v, method, causal, scale, place, bias, return_lse, out),
        *(options, lengths, page_table, kv_layout),
    )
    if exchange is not None:
        return _of_foreign(exchange, request)
    _, arrays = run_request(request)
    return (arrays["out"], arrays["lse"]) if return_lse else arrays["out"]


def run_request(request: Request) -> tuple[Call, dict[str, object]]:
    """Run the call of a request, or the kept one of its form; return that call and the arrays.

    The call has the arrays only when it is not a kept one.

    request: a Request, or another with its `cached()`, `arrays()`, `call()` and `log`.
    """
    cached, form = request.cached()
    if cached is not None and cached.is_current():
        return cached.call, cached.run(request.arrays(cached.xp, check_overlap))
    call = request.call()
    arrays = call.run()
    if form is not None:
        keep_call(form, CachedCall(call, request.log))
    return call, arrays


def _of_foreign(exchange: Interchange, request: Request):
    """attention() on arrays of another library. Kernels on a GPU get addresses of known tensors."""
    stream = stream_address(request.q)
    known, _ = request.cached(tensor_form) if stream is not None else (None, None)
    if known is not None and known.is_current() and not known.call.scratch:
        return _on_addresses(known, request, stream)
    with exchange.on_stream():
        cached, form = request.cached(tensor_form) if request.out is None else (None, None)
        if cached is not None and cached.is_current():
            return _on_addresses(cached, request)
        names = (*_INPUTS, "out")
        taken = {name: exchange.take(name, getattr(request, name)) for name in names}
        call, arrays = run_request(msgspec.structs.replace(request, **taken))
        given = [getattr(request, name) for name in _INPUTS]
        if form is not None and call.takes_addresses and are_plain(given):
            keep_call(form, CachedCall(call, request.log))
        found = arrays["out"], arrays.get("lse")
        return exchange.give(found if request.return_lse else found[0])


def _on_addresses(cached: CachedCall, request: Request, stream: int | None = None):
    """Run a kept call on tensors of a GPU, whose addresses the kernels take, into new tensors.

    stream: its address; None: CuPy's current one, which is also the one that scratch belongs to.
    """
    q, torch = request.q, tensor_library(type(request.q))
    out = torch.empty_like(q)
    tensors = {"out": out} | {name: getattr(request, name) for name in _INPUTS}
    if request.return_lse:
        tensors["lse"] = lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    arrays = {name: one.data_ptr() for name, one in tensors.items() if one is not None}
    cached.run(arrays, stream)
    return (out, lse) if request.return_lse else out


class Plan:
    """A call of attention() that is ready to run; ``plan()`` runs it and returns ``plan.out``.

    The arrays stay the same: fill them in place before ``plan()``. On a GPU a plan is a CUDA
    graph, replayed on CuPy's current stream; making it runs the call once. On the simulator
    ``plan()`` runs the kernels again.

    Attributes:
        out: (B, H, n, d) of q's dtype, the output.
        lse: (B, H, n) float32, or None where it was not asked for.
        method: the method that runs, also where "auto" was asked for.
        problem: the extents.
        launches: one :class:`StepLaunch` for each kernel launch, in their order.
        run: what ``plan()`` calls.
    """

    def __init__(self, call: Call):
        self.method = call.method
        self.problem: Problem = call.problem
        self.launches: tuple[StepLaunch, ...] = call.launches
        self.out, self.lse = call.arrays["out"], call.arrays.get("lse")
        self.run = capture_graph(call.run) if call.backend == "gpu" else call.run

    def __call__(self):
        self.run()
        return self.out


@takes_foreign
def plan(q, k, v, **how) -> Plan:
    """Prepare a call of :func:`attention` on these arrays; also ``attention.plan``.

    The arguments are those of attention(), and so are the errors. Each ``plan()`` reads q, k, v
    and bias again from the same memory and writes ``plan.out``: fill the arrays in place between
    calls. On a GPU the launches are captured into a CUDA graph, and ``plan()`` replays it.

    >>> step = attention.plan(q, k, v, method="auto")  # doctest: +SKIP
    >>> q[...] = new_q; out = step()  # doctest: +SKIP
    """
    return Plan(Request(**signature(plan).bind(q, k, v, **how).arguments).call())


def _as_keyword(parameter: Parameter) -> Parameter:
    return parameter if parameter.name in "qkv" else parameter.replace(kind=Parameter.KEYWORD_ONLY)


plan.__signature__ = signature(attention).replace(
    parameters=map(_as_keyword, signature(attention).parameters.values()), return_annotation=Plan
)
attention.plan = plan


def pick(method: str, problem: Problem, backend: str | None = None) -> str:
    """Return the method, or what "auto" means for this problem; the logger says which and why."""
    return _pick(method, problem, backend)[0]


def _pick(method: str, problem: Problem, backend: str | None) -> tuple[str, str]:
    """The method that runs, and why "auto" picks it."""
    if method != AUTO:
        return method, ""
    method, reason = choose(problem, current_device(backend))
    _log.info("auto picks %s: %s", method, reason)
    return method, reason


def problem_of(
    q, k, causal: bool = False, bias_strides: tuple[int, int] = (0, 0), *, biased: bool = False
) -> Problem:
    """Return the extents of a call on q (B, H, n, d) and k (B, H_kv, m, d)."""
    batch, heads, n, d = q.shape
    extents = (batch * heads, n, k.shape[2], d, heads, k.shape[1])
    return Problem(*extents, bool(causal), bias_strides, q.dtype.name, biased)


def check_options(method: str, problem: Problem, return_lse: bool = False) -> None:
    """Refuse what the method's kernels do not implement.

    Raises:
        UnsupportedOption: names the methods that do.  UnsupportedDtype: the same for the dtype.
    """
    check_dtype(method, problem.dtype)
    wanted = {
        "causal": problem.causal,
        "bias": problem.biased,
        "lse": return_lse,
        "kv_heads": problem.kv_heads != problem.heads,
        "lengths": problem.ragged,
        "page_table": problem.page > 0,
        "key_stride": problem.heads_last,
    }
    for option, words in OPTIONS.items():
        if wanted[option] and not supports(method, option):
            able = ", ".join(name for name in METHODS if supports(name, option))
            raise UnsupportedOption(
                f"method {method!r} has no {words.removeprefix('a ')}; methods that do: {able}"
                + Advice('; "auto" picks one. attn_course.reference.attention is in float64', "")
            )


def check_dtype(method: str, dtype: str) -> None:
    """Refuse a dtype that a method does not take.

    Raises:
        UnsupportedDtype: names the methods that do.
    """
    taken = dtypes_of(method)
    if dtype not in taken:
        able = [name for name in METHODS if dtype in dtypes_of(name)]
        default = Advice(", the default," if method == DEFAULT else "", "")
        module = "ml_dtypes" if taken[0] == "bfloat16" else "numpy"
        raise UnsupportedDtype(
            f"method {method!r}"
            + default
            + f" takes {' or '.join(taken)}, not {dtype}: "
            + Advice(f'pass method="{AUTO}"', f"name {AUTO} in its place")
            + f"; methods that take {dtype}: {', '.join(able)}. Or "
            + Advice(f"pass .astype({module}.{taken[0]})", f"give --dtype {taken[0]}")
        )
