"""attention_backward(): the gradients of attention() over the methods of the backward pass."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from inspect import signature
from typing import ClassVar

import msgspec
import numpy as np
from kernelscope import array_module, resolve_backend
from kernelscope.errors import InputError
from kernelscope.module import Interchange, is_foreign, takes_foreign, tensor_library

from attn_course.ladder.call import Call, call_steps
from attn_course.ladder.checks import check_arrays, check_bias, check_flags, check_floats
from attn_course.ladder.choose import current_device, device_number
from attn_course.ladder.kept import (
    CachedCall,
    are_plain,
    array_form,
    keep_call,
    kept_call,
    tensor_form,
)
from attn_course.ladder.methods import AUTO, Plan, problem_of, run_request

from .steps import check_method, choose_backward, method_of

_GRADIENTS = ("dq", "dk", "dv", "dbias")
_log = logging.getLogger("attn_course.backward")


class BackwardRequest(msgspec.Struct, frozen=True, eq=False):
    """What :func:`attention_backward` is asked for: its arguments by their names."""

    log: ClassVar[logging.Logger] = _log  # says what "auto" picks
    q: object
    k: object
    v: object
    out: object
    lse: object
    dout: object
    method: str = AUTO
    causal: bool = False
    scale: float | None = None
    backend: str | None = None
    bias: object = None
    return_dbias: bool = False
    deterministic: bool = False
    options: Sequence[str] = ()

    def inputs(self) -> dict[str, object]:
        """Return the arrays that are read, by their names in the kernels."""
        names = ("q", "k", "v", "out", "lse", "dout", "bias")
        return {n: getattr(self, n) for n in names if n != "bias" or self.bias is not None}

    def flags(self) -> dict[str, bool]:
        """Return the arguments that are True or False, by their names."""
        names = ("causal", "return_dbias", "deterministic")
        return {name: getattr(self, name) for name in names}

    def call(self) -> Call:
        """Check the arguments as attention_backward() does and return the call that it runs."""
        q, k, bias, backend = self.q, self.k, self.bias, resolve_backend(self.backend)
        xp = array_module(backend)
        if self.method != AUTO:
            method_of(self.method)
        check_flags(**self.flags())
        check_arrays(q, k, self.v, xp)
        for name, array in (("out", self.out), ("dout", self.dout), ("lse", self.lse)):
            dtype, shape = ("float32", q.shape[:3]) if name == "lse" else (q.dtype.name, q.shape)
            check_floats(name, array, xp, (dtype,))
            if array.shape != shape:
                raise InputError(f"{name} has shape {array.shape}, not {shape} as q says")
        strides = check_bias(bias, q, k, xp)
        problem = problem_of(q, k, self.causal, strides, biased=bias is not None)
        name, reason = self.method, ""
        if name == AUTO:
            name, reason = choose_backward(problem, current_device(backend), self.return_dbias)
            _log.info("auto picks %s: %s", name, reason)
        check_method(name, problem, self.return_dbias)
        method = method_of(name)
        scale = 1.0 / math.sqrt(problem.d) if self.scale is None else float(self.scale)
        options = (*self.options, *(method.deterministic if self.deterministic else ()))
        how = {"problem": problem, "backend": backend, "options": options}
        call = call_steps(method.steps, self.arrays(xp), scale, **how)
        call.method, call.reason = name, reason
        return call

    def arrays(self, xp, _: Callable | None = None) -> dict[str, object]:
        """Return the inputs, and the gradients to write, by their names in the kernels."""
        made = {f"d{name}": xp.empty_like(getattr(self, name)) for name in "qkv"}
        if self.return_dbias:  # keys that a row does not see stay zeros
            made["dbias"] = xp.zeros((*self.q.shape[:3], self.k.shape[2]), np.float32)
        return self.inputs() | made

    def cached(self, form_of=array_form) -> tuple[CachedCall | None, tuple | None]:
        """Return the kept call of such requests, if any, and their form; see Request.cached()."""
        try:
            scale = None if self.scale is None else float(self.scale)
            flags = tuple((type(one), one) for one in self.flags().values())
            form = ("backward", self.backend, device_number(self.backend), self.method, scale)
            form += (flags, tuple(self.options))
            form += tuple((name, form_of(array)) for name, array in self.inputs().items())
            return kept_call(form), form
        except (AttributeError, TypeError, ValueError):
            return None, None  # the checks say what is wrong


def attention_backward(
    q,
    k,
    v,
    out,
    lse,
    dout,
    method=AUTO,
    causal=False,
    scale=None,
    backend=None,
    *,
    bias=None,
    return_dbias=False,
    deterministic=False,
    options=(),
):
    """The gradients of the sum of dout * attention(q, k, v, ...) by q, k and v.

    >>> out, lse = attention(q, k, v, "auto", return_lse=True)  # doctest: +SKIP
    >>> dq, dk, dv = attention_backward(q, k, v, out, lse, dout)  # doctest: +SKIP

    ``attention_backward.plan`` takes the same arguments and returns a :class:`BackwardPlan`.

    Args:
        q, k, v, causal, scale, backend, bias: those of the call of attention().
        out, lse: what it returned: (B, H, n, d) like q, and (B, H, n) float32.
        dout: like q, the gradient of out.
        method: a key of attn_course.backward.METHODS, or "auto": :func:`choose_backward` picks;
            the logger "attn_course.backward" says what and why.
        return_dbias: also return the gradient of the biased scores, (B, H, n, m) float32; that of
            a bias is its sum over the axes along which the bias is broadcast.
        deterministic: ask for the same bits on every run, where a method does not give them anyway.
        options: compiler options for every step.

    Returns:
        dq, dk, dv, like q, k and v; with ``return_dbias`` dbias too. Arrays of q's library on its
        device. A row that sees no key gives zeros.

    Raises:
        UnknownMethod, UnsupportedOption: both are ValueErrors. UnsupportedDtype: a TypeError too.
        TypeError, ValueError: an argument's type, dtype, shape or extent, with the remedy.
    """
    exchange = Interchange(q) if is_foreign(q.__class__) else None
    place = resolve_backend(backend) if exchange is None else exchange.check_backend(backend)
    given = (q, k, v, out, lse, dout, method, causal, scale, place)
    request = BackwardRequest(*given, bias, return_dbias, deterministic, options)
    if exchange is not None:
        return _of_foreign(exchange, request)
    return gradients(run_request(request)[1])


def _of_foreign(exchange: Interchange, request: BackwardRequest):
    """attention_backward() on arrays of another library; on addresses of tensors once known."""
    with exchange.on_stream():
        inputs = request.inputs()
        plain = tensor_library(type(request.q)) is not None and are_plain(inputs.values())
        known = plain and not request.return_dbias
        cached, form = request.cached(tensor_form) if known else (None, None)
        if cached is not None and cached.is_current():
            return _on_addresses(cached, request)
        taken = {name: exchange.take(name, array) for name, array in inputs.items()}
        call, arrays = run_request(msgspec.structs.replace(request, **taken))
        if form is not None and call.takes_addresses:
            keep_call(form, CachedCall(call, request.log))
        return exchange.give(gradients(arrays))


def _on_addresses(cached: CachedCall, request: BackwardRequest) -> tuple:
    """Run a kept call on tensors of a GPU, whose addresses the kernels take, into new tensors."""
    tensors = request.arrays(tensor_library(type(request.q)))
    cached.run({name: one.data_ptr() for name, one in tensors.items()})
    return gradients(tensors)


def gradients(arrays: Mapping[str, object]) -> tuple:
    """Return the gradients among the arrays of a call: dq, dk, dv and, if asked for, dbias."""
    return tuple(arrays[name] for name in _GRADIENTS if name in arrays)


class BackwardPlan(Plan):
    """A call of attention_backward() that is ready to run; ``plan()`` runs it and returns ``out``.

    As :class:`Plan`, but ``plan.out`` is the tuple of the gradients.
    """

    def __init__(self, call: Call):
        super().__init__(call)
        self.out, self.lse = gradients(call.arrays), None


@takes_foreign
@wraps(attention_backward)
def plan(*arrays, **how) -> BackwardPlan:
    given = signature(attention_backward).bind(*arrays, **how).arguments
    return BackwardPlan(BackwardRequest(**given).call())


attention_backward.plan = plan
