"""No result of a race-free kernel depends on the order in which warps and blocks run."""

import numpy as np
import pytest

from attn_course.attention import METHODS, attention
from attn_course.data import seeded_qkv
from attn_course.simulator import launches

SHAPE, KEYS = (1, 2, 37, 24), 45
ADDS_IN_ANY_ORDER = {"rows_atomic"}  # floating-point atomicAdd: the rounding depends on the order


@pytest.fixture(autouse=True)
def on_the_simulator(monkeypatch):
    monkeypatch.setenv("ATTN_COURSE_BACKEND", "simulator")


@pytest.mark.parametrize("method", METHODS)
def test_methods_in_random_warp_order(method, monkeypatch):
    q, k, v = seeded_qkv(SHAPE, kv_length=KEYS, seed=4)
    expected = attention(q, k, v, method=method)
    for seed in (1, 2):
        monkeypatch.setenv(launches.WARP_ORDER, str(seed))
        monkeypatch.setattr(launches, "LANES_PER_CHUNK", 512 * seed)
        out = attention(q, k, v, method=method)
        if method in ADDS_IN_ANY_ORDER:
            assert np.allclose(out, expected, rtol=1e-5, atol=1e-6)
        else:
            assert np.array_equal(out, expected)
