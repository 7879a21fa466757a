"""No method depends on the order in which warps and blocks run, beyond rounding."""

import numpy as np
import pytest
from kernelscope.machine import launch

from attn_course.ladder.methods import METHODS, attention, dtypes_of
from attn_course.reference.dtypes import DTYPES
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.shares import crossed

pytestmark = pytest.mark.system

SHAPE, KEYS = (1, 2, 19, 24), 29
ADDS_IN_ANY_ORDER = {"rows_atomic"}  # floating-point atomicAdd: the rounding depends on the order


@pytest.fixture(autouse=True)
def on_the_simulator(monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")


@pytest.mark.turns(37)
@pytest.mark.parametrize(("method", "seed"), crossed(list(METHODS), [1, 2]))
def test_methods_in_random_warp_order(method, seed, monkeypatch):
    dtype = DTYPES[dtypes_of(method)[0]]
    q, k, v = (array.astype(dtype) for array in seeded_qkv(SHAPE, kv_length=KEYS, seed=4))
    expected = attention(q, k, v, method=method)
    monkeypatch.setenv(launch.WARP_ORDER, str(seed))
    monkeypatch.setattr(launch, "LANES_PER_CHUNK", 512 * seed)
    out = attention(q, k, v, method=method)
    if method in ADDS_IN_ANY_ORDER:
        assert np.allclose(out, expected, rtol=1e-5, atol=1e-6)
    else:
        assert np.array_equal(out, expected)
