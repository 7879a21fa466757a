"""Settings and fixtures of all tests."""

import gc

import pytest

from attn_course.engine import backend

# Parsed kernels are many small objects, and searching them all for cycles took an eighth of the
# time: collect a thirtieth as often.
gc.set_threshold(20_000, 10, 10)


@pytest.fixture
def no_gpu(monkeypatch):
    """Choose the simulator, whatever GPU the machine has."""
    monkeypatch.setenv(backend.ENVIRONMENT_VARIABLE, "simulator")
