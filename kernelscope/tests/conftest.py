"""Settings and fixtures of all tests."""

import gc
import os

import pytest
from kernelscope import backend

# Parsed kernels are many small objects, and searching them all for cycles took an eighth of the
# time: collect a three-hundredth as often.
gc.set_threshold(200_000, 10, 10)

# Tables of the commands fit the terminal: here a terminal of one width, whoever runs the tests.
os.environ["COLUMNS"] = "120"


@pytest.fixture
def no_gpu(monkeypatch):
    """Choose the simulator, whatever GPU the machine has."""
    monkeypatch.setenv(backend.ENVIRONMENT_VARIABLE, "simulator")
