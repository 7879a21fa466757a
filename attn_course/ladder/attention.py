"""attention(q, k, v) over the steps of the ladder.

A method is a sequence of steps that share their buffers: the scores that one kernel writes are
the scores that the next one reads. From ``rows_atomic`` on a single kernel does it all.

A call with new arrays of a form that was seen before (types, shapes, dtypes, options) finds its
launches ready: it makes the output and launches. On a GPU the kernel files are looked at again
when the last look is LOOK_AGAIN_S old, so an edited kernel is seen after at most that time.
"""

import logging
import math
from dataclasses import replace
from difflib import get_close_matches
from time import monotonic

import numpy as np
from kernelscope import ShownBriefly, array_module, capture_graph, resolve_backend

from .call import Call, StepLaunch, call_steps
from .checks import check_arrays, check_bias, check_output, check_overlap
from .choose import choose, current_device, device_number
from .problem import Problem
from .steps import EXPERIMENTS, Step, step

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
    "flash_split": (19,),
    "rows_split": (20,),
}
AUTO = "auto"  # the method that choose() names
DEFAULT = "tiled"
LOOK_AGAIN_S = 1.0
MOST_READY = 256  # forms of calls that are kept
# What a method can be asked for beyond q, k and v, by the kernel parameter that does it.
OPTIONS = {
    "causal": "a causal mask",
    "bias": "a bias",
    "lse": "a log-sum-exp output",
    "kv_heads": "grouped heads (k and v with fewer heads than q)",
}

_log = logging.getLogger(__name__)


class UnknownMethod(ShownBriefly, ValueError):
    """A method that attention() does not have; the message lists those it has."""


class UnsupportedOption(ShownBriefly, ValueError):
    """An option that the chosen method's kernels do not implement."""


class UnsupportedDtype(UnsupportedOption, TypeError):
    """A dtype that the chosen method's kernels do not take."""


def steps_of(method: str) -> tuple[Step, ...]:
    """Return the ladder steps of a method in the order in which they run; an experiment's one step.

    Raises:
        UnknownMethod: names the methods there are.
    """
    if method in METHODS:
        return tuple(step(number) for number in METHODS[method])
    if any(method == row.entry for row in EXPERIMENTS):
        return (step(method),)
    known = (*METHODS, AUTO, *(row.entry for row in EXPERIMENTS))
    of = [name for name, numbers in METHODS.items() if method in (step(n).file for n in numbers)]
    near = [] if of else get_close_matches(str(method), known, 1)
    meant = f" (did you mean {near[0]!r}?)" if near else ""
    meant = f" (this kernel is a step of: {', '.join(of)})" if of else meant
    raise UnknownMethod(
        f"no method {method!r}{meant}; choose one of: {', '.join(METHODS)}, {AUTO}, or of the "
        f"experiments: {', '.join(row.entry for row in EXPERIMENTS)}"
    )


def supports(method: str, option: str) -> bool:
    """Whether a method's kernels implement an option, a key of OPTIONS."""
    return any(option in row.arguments for row in steps_of(method))


def dtypes_of(method: str) -> tuple[str, ...]:
    """Return the dtypes that a method takes, names in DTYPES, the usual one first."""
    first, *others = steps_of(method)
    return tuple(one for one in first.dtypes if all(one in row.dtypes for row in others))


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
):
    """softmax(q k^T * scale + bias) v, computed by the kernels of ``method``.

    Args:
        q: (B, H, n, d).  k, v: (B, H_kv, m, d), H a multiple of H_kv: a head of k and v serves
            H / H_kv heads of q in a row. Of one dtype, which the method takes: float32, or for
            flash_wmma and flash_mma float16 or ml_dtypes.bfloat16. C-contiguous; NumPy arrays on
            the simulator, CuPy arrays on a GPU.
        method: a key of METHODS, or "auto": :func:`choose` picks by shape, dtype, device and
            whether there is a bias; the logger "attn_course.ladder.attention" says what and why.
        causal: query i sees key j only where j <= i + (m - n); the last one sees all.
        scale: defaults to 1/sqrt(d).
        backend: "gpu", "simulator" or None, as for RawModule.
        bias: float32, added to the scaled scores; (n, m), (H, n, m) or (B, H, n, m) where B and H
            may be 1; -inf masks a key. A row that sees no key gives zeros. A row of nothing but
            finite numbers below -2e38, such as float32's smallest, is outside the kernels' range:
            use -inf.
        return_lse: also return the logarithm of each row's sum of exponentials, (B, H, n) float32,
            -inf for a row that sees no key.
        out: the array to write, like q; made here when None.
        options: compiler options for every step, for example ("-DTILE=16",).

    Returns:
        (B, H, n, d) of q's dtype, an array of the backend's module; with ``return_lse`` a pair.

    Raises:
        UnknownMethod, UnsupportedOption: both are ValueErrors. UnsupportedDtype: a TypeError too.
        TypeError, ValueError: an argument's type, dtype, shape or extent, with the remedy.
    """
    backend = resolve_backend(backend)
    asked = (q, k, v, method, causal, scale, backend, bias, return_lse, out, options)
    form = _form(*asked)
    ready = _ready.get(form)
    if ready is not None and ready.is_current():
        call = ready.call_on(q, k, v, bias, return_lse, out)
        call.run()
    else:
        call = call_method(*asked)
        call.run()
        if form is not None:
            _keep(form, Ready(call))
    arrays = call.arrays
    return (arrays["out"], arrays["lse"]) if return_lse else arrays["out"]


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
    """

    def __init__(self, call: Call):
        self.method = call.method
        self.problem: Problem = call.problem
        self.launches: tuple[StepLaunch, ...] = call.launches
        self.out, self.lse = call.arrays["out"], call.arrays.get("lse")
        self._run = capture_graph(call.run) if call.backend == "gpu" else call.run

    def __call__(self):
        self._run()
        return self.out


def plan(
    q,
    k,
    v,
    *,
    method=DEFAULT,
    causal=False,
    scale=None,
    backend=None,
    bias=None,
    return_lse=False,
    out=None,
    options=(),
) -> Plan:
    """Prepare a call of :func:`attention` on these arrays; also ``attention.plan``.

    The arguments are those of attention(), and so are the errors. Each ``plan()`` reads q, k, v
    and bias again from the same memory and writes ``plan.out``: fill the arrays in place between
    calls. On a GPU the launches are captured into a CUDA graph, and ``plan()`` replays it.

    >>> step = attention.plan(q, k, v, method="auto")  # doctest: +SKIP
    >>> q[...] = new_q; out = step()  # doctest: +SKIP
    """
    return Plan(
        call_method(q, k, v, method, causal, scale, backend, bias, return_lse, out, options)
    )


attention.plan = plan


def call_method(
    q,
    k,
    v,
    method=DEFAULT,
    causal=False,
    scale=None,
    backend=None,
    bias=None,
    return_lse=False,
    out=None,
    options=(),
) -> Call:
    """Check the arguments of :func:`attention` and return the call that it runs."""
    backend = resolve_backend(backend)
    xp = array_module(backend)
    if method != AUTO:
        steps_of(method)  # an unknown method is named before any argument
    check_arrays(q, k, v, xp)
    strides = check_bias(bias, q, k, xp)
    problem = problem_of(q, k, causal, strides, biased=bias is not None)
    method, reason = _pick(method, problem, backend)
    check_options(method, problem, return_lse)
    arrays = {"q": q, "k": k, "v": v}
    if bias is not None:
        arrays["bias"] = bias
    if out is not None:
        check_output(out, arrays, xp)
    _add_outputs(arrays, out, return_lse, xp)
    scale = 1.0 / math.sqrt(problem.d) if scale is None else float(scale)
    call = call_steps(
        steps_of(method), arrays, scale, problem=problem, backend=backend, options=options
    )
    call.method, call.reason = method, reason
    return call


def _add_outputs(arrays: dict, out, return_lse: bool, xp) -> None:
    """The output like q, made here where None, and the log-sum-exp where it is asked for."""
    shape = arrays["q"].shape
    arrays["out"] = xp.empty(shape, arrays["q"].dtype) if out is None else out
    if return_lse:
        arrays["lse"] = xp.empty(shape[:3], np.float32)


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
    }
    for option, words in OPTIONS.items():
        if wanted[option] and not supports(method, option):
            able = ", ".join(name for name in METHODS if supports(name, option))
            raise UnsupportedOption(
                f"method {method!r} has no {words.removeprefix('a ')}; methods that do: {able}. "
                "attn_course.reference.attention computes it in float64"
            )


def check_dtype(method: str, dtype: str) -> None:
    """Refuse a dtype that a method does not take.

    Raises:
        UnsupportedDtype: names the methods that do.
    """
    taken = dtypes_of(method)
    if dtype not in taken:
        able = [name for name in METHODS if dtype in dtypes_of(name)]
        default = ", the default," if method == DEFAULT else ""
        module = "ml_dtypes" if taken[0] == "bfloat16" else "numpy"
        raise UnsupportedDtype(
            f"method {method!r}{default} takes {' or '.join(taken)}, not {dtype}: pass "
            f'method="{AUTO}"; methods that take {dtype}: {", ".join(able)}. '
            f"Or pass .astype({module}.{taken[0]})"
        )


# -- calls of a form seen before -------------------------------------------------------------------
class Ready:
    """The launches of a call, kept without its arrays for calls of the same form."""

    def __init__(self, call: Call):
        self.call = replace(call, arrays={})
        self.xp = array_module(call.backend)
        self.steps = {launch.step.file: launch.step for launch in call.launches}.values()
        self.edited = self._edited()
        self.looked = monotonic()

    def _edited(self) -> list[tuple]:
        return [step.edited for step in self.steps]

    def is_current(self) -> bool:
        """Whether the kernel files are as they were; on a GPU as of the last look."""
        now = monotonic()
        if self.call.backend == "gpu" and now - self.looked < LOOK_AGAIN_S:
            return True
        self.looked = now
        return self.edited == self._edited()

    def call_on(self, q, k, v, bias, return_lse, out) -> Call:
        """Return the call on arrays of its form."""
        arrays = {"q": q, "k": k, "v": v}
        if bias is not None:
            arrays["bias"] = bias
        if out is not None:
            check_overlap(out, arrays, self.xp)
        _add_outputs(arrays, out, return_lse, self.xp)
        call = self.call.on(arrays)
        if call.reason:
            _log.info("auto picks %s: %s", call.method, call.reason)
        return call


_ready: dict[tuple, Ready] = {}


def _keep(form: tuple, ready: Ready) -> None:
    while len(_ready) >= MOST_READY:
        _ready.pop(next(iter(_ready)), None)  # the oldest
    _ready[form] = ready


def _form(q, k, v, method, causal, scale, backend, bias, return_lse, out, options) -> tuple | None:
    """All that the checks and the launches depend on, except addresses; None: not to be kept."""
    try:
        form = (
            backend,
            device_number(backend),
            method,
            bool(causal),
            None if scale is None else float(scale),
            bool(return_lse),
            tuple(options),
            *_array_form(q),
            *_array_form(k),
            *_array_form(v),
            None if bias is None else _array_form(bias),
            None if out is None else _array_form(out),
        )
        hash(form)
    except (AttributeError, TypeError, ValueError):
        return None  # the checks say what is wrong
    return form


def _array_form(array) -> tuple:
    return type(array), array.shape, array.dtype, array.flags.c_contiguous
