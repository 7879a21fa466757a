"""What the tests of kernels 24, 25 and 30 share: inputs, a checked run, devices."""

import ml_dtypes
import numpy as np
import pytest
from kernelscope.backend import asnumpy

from attn_course.backward.verify import backward_call, backward_inputs
from attn_course.ladder import Device
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.agreement import assert_agrees

HALF, BFLOAT16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
RELATIVE = {BFLOAT16: 4e-3, HALF: 5e-4}  # weights, ds and the gradient are rounded once each
H200 = Device("NVIDIA H200", (9, 0), 132, 227 * 1024)
A100 = Device("A100", (8, 0), 108, 163 * 1024)
ARRAYS = ("q", "k", "v", "out", "dout", "dq", "dk", "dv")


def inputs(dtype=BFLOAT16, shape=(1, 2, 70, 64), m=None, kv_heads=None, factor=1.0, **how):
    """What attention_backward() reads, on the host, rounded to the dtype."""
    q, k, v = seeded_qkv(shape, m, kv_heads=kv_heads)
    given = [one.astype(dtype) for one in (factor * q, k, v)]
    return backward_inputs(*given, **how)


def run(method, arrays, **how):
    """Run a method on inputs, judge each gradient, and return them on the host."""
    call, oracle = backward_call(method, arrays, **how)
    call.run()
    for name, array in oracle.written.items():
        limit = RELATIVE[arrays["q"].dtype]
        # An element may be a difference of larger ones, in rows that see few keys above all.
        assert_agrees(array, oracle.expected[name], name=name, relative=limit, absolute=5 * limit)
    assert not asnumpy(call.arrays["turns"]).any()
    return {name: asnumpy(array) for name, array in oracle.written.items()}


def run_with_one_moved(call, name):
    """Run a call with one array where no vector load fits; nothing beside the array is written."""
    if call.backend == "gpu":
        pytest.skip("arrays of the host")
    array = call.arrays[name]
    block = np.full(array.size + 10, np.nan, array.dtype)
    call.arrays[name] = block[5:-5].reshape(array.shape)
    call.arrays[name][...] = array
    call.run()
    assert np.isnan(block[:5]).all() and np.isnan(block[-5:]).all()


def scores_far_below_zero(method):
    """Past the last key K is zeros, and exp(0 - lse) would overflow: inf * 0 in dq."""
    arrays = inputs(shape=(1, 1, 20, 16), m=20)
    q, k = np.full_like(arrays["q"], 8.0), np.full_like(arrays["k"], -8.0)
    k += np.random.default_rng(1).normal(0.0, 0.1, k.shape).astype(k.dtype)
    call, oracle = backward_call(method, backward_inputs(q, k, arrays["v"]))
    call.run()
    assert all(np.isfinite(asnumpy(call.arrays[name]).astype(float)).all() for name in ("dq", "dk"))
    assert_agrees(call.arrays["dv"], oracle.expected["dv"], name="dv", relative=4e-3)
