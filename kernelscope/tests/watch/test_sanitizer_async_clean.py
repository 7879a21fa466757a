"""Correct kernels with bulk copies and products have no findings, in any order of their warps."""

from functools import cache

import numpy as np
import pytest
from async_kernels import CLUSTERED, KERNELS
from async_source import HEAD, check, kernels_of

pytestmark = pytest.mark.system


@cache
def compiled():
    return kernels_of(tuple(KERNELS[name][0] for name in KERNELS if name not in CLUSTERED))


@cache
def clustered():
    bodies = tuple(KERNELS[name][0] for name in CLUSTERED)
    return kernels_of(bodies, HEAD, "__cluster_dims__(2) ")


@pytest.mark.turns(79)
@pytest.mark.parametrize("order", [None, 1, 2], ids=["lockstep", "random", "another"])
@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_found(name, order):
    body, block, grid = KERNELS[name]
    kernel = (clustered() if name in CLUSTERED else compiled())[body]
    x = np.zeros(4096, np.int32)
    assert check(kernel, block=block, grid=grid, order=order, x=x) == []


def test_there_are_enough():
    assert len(KERNELS) >= 20
