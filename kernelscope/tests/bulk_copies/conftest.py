"""Every test of the machine that takes a build or an order runs with each of them."""

import pytest
from machine_harness import BUILDS


@pytest.fixture(params=BUILDS)
def build(request):
    return request.param


@pytest.fixture(params=[None, 1], ids=["lockstep", "random"])
def order(request):
    """Seed of the order in which warps run; None is lockstep."""
    return request.param
