"""Run a method of the backward pass and check the gradients against float64."""

from collections.abc import Mapping

import ml_dtypes
import numpy as np
from kernelscope import array_module

from attn_course import reference
from attn_course.ladder.call import Call
from attn_course.ladder.verify import Oracle, Verdict, verdict
from attn_course.reference.comparison import poisoned

from .methods import BackwardRequest

ROUNDINGS = 8  # of a gradient's terms: where they cancel, no less is left of a rounded input


def backward_inputs(q, k, v, seed: int = 0, **how) -> dict[str, np.ndarray]:
    """Return what attention_backward() reads: q, k, v, out, lse and a random dout.

    q: (B, H, n, d).  k, v: (B, H_kv, m, d). NumPy arrays of one dtype.  how: causal, scale, bias.
    out and lse are from float64 and rounded once: a method's error is not that of a forward pass.
    """
    out, lse = reference.attention(q, k, v, return_lse=True, **how)
    dout = np.random.default_rng(seed).normal(0.2, 1.0, q.shape)
    arrays = {"q": q, "k": k, "v": v, "out": out.astype(q.dtype)}
    return arrays | {"lse": lse.astype(np.float32), "dout": dout.astype(q.dtype)}


def backward_call(
    method: str, inputs: Mapping[str, np.ndarray], backend: str | None = None, **how
) -> tuple[Call, Oracle]:
    """Return a call of attention_backward() with poisoned gradients, and what it must write.

    inputs: as backward_inputs() returns them.  how: arguments of attention_backward().
    """
    xp = array_module(backend)
    bias = how.pop("bias", None)
    arrays = {name: xp.asarray(array) for name, array in inputs.items()}
    given = None if bias is None else xp.asarray(bias)
    call = BackwardRequest(**arrays, method=method, backend=backend, bias=given, **how).call()
    for name in ("dq", "dk", "dv"):
        call.arrays[name] = poisoned(call.arrays[name].shape, call.arrays[name].dtype, xp)
    masks = {name: how[name] for name in ("causal", "scale") if name in how}
    q, k, v, dout = (inputs[name] for name in ("q", "k", "v", "dout"))
    found = reference.attention_backward(q, k, v, dout, bias=bias, return_dbias=True, **masks)
    expected = dict(zip(("dq", "dk", "dv", "dbias"), found, strict=True))
    written = {name: call.arrays[name] for name in expected if name in call.arrays}
    unit = ROUNDINGS / 2 * float(ml_dtypes.finfo(q.dtype).eps)
    least = float(ml_dtypes.finfo(q.dtype).smallest_normal)
    sizes = term_sizes(q, k, v, dout, least, bias=bias, **masks)
    absolute = {name: unit * size for name, size in sizes.items()}
    return call, Oracle(written, expected, call.tolerance, f"{method}: {{}}", absolute)


def term_sizes(q, k, v, dout, least: float = 0.0, **how) -> dict[str, np.ndarray]:
    """Return, for dq, dk and dv, the roots of the sums of the squares of their elements' terms.

    Roundings that know nothing of each other add up so. In ds = p (dp - delta) dp and delta count
    apart, for they are sums too. Where there are few keys or few columns they nearly cancel. A
    query's delta, of a rounded out, is off by the same for all keys: in dq it meets their mean.
    q, dout: (B, H, n, d).  k, v: (B, H_kv, m, d).  how: as of reference.attention().
    least: the smallest normal number: below it roundings of p, ds and the gradients are those of
    it.
    """
    groups = q.shape[1] // k.shape[1]
    k, v = (np.repeat(np.asarray(one, np.float64), groups, axis=1) for one in (k, v))
    p = reference.softmax(reference.attention_scores(q, k, **how))
    scale = how.get("scale", q.shape[3] ** -0.5)
    of_out, of_k = (p @ v) ** 2, (p @ k) ** 2
    p, q, k, v, dout = (np.asarray(one, np.float64) ** 2 for one in (p, q, k, v, dout))
    delta = (dout * of_out).sum(axis=-1, keepdims=True)
    ds = p * (dout @ v.swapaxes(-1, -2) + delta)
    p, ds = p + least**2, scale**2 * (ds + least**2)
    of_keys = (ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ dout)
    dk, dv = (one.reshape(len(q), -1, groups, *one.shape[2:]).sum(axis=2) for one in of_keys)
    dq = ds @ k + scale**2 * delta * of_k
    return {n: np.sqrt(one + least**2) for n, one in (("dq", dq), ("dk", dk), ("dv", dv))}


def verify_backward(
    method: str, q, k, v, *, causal: bool = False, backend: str | None = None
) -> Verdict:
    """Run one method of attention_backward() and judge the gradients.

    Args:
        q: (B, H, n, d).  k, v: (B, H, m, d). NumPy arrays of a dtype the method takes.

    Raises:
        UnknownMethod, UnsupportedOption, TypeError, ValueError: as attention_backward() does.
        BackendError: a GPU is asked for where there is none.
    """
    inputs = backward_inputs(q, k, v, causal=causal)
    first = {name: array[:1, :, :1] for name, array in inputs.items()}
    backward_call(method, {n: a.copy() for n, a in first.items()}, backend)[0].run()  # untimed
    call, oracle = backward_call(method, inputs, backend, causal=causal)
    return verdict(method, call, oracle, dtype=call.problem.dtype)
