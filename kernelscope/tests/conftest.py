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


def pytest_collection_finish():
    """Leave the collected tests and the imported modules of a worker out of all later searches.

    Not of a process alone: Hypothesis, imported at its end, searches for what refers to an object.
    """
    _leave_out()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """So too what the tests of a file leave, such as kernels that are kept: once, at its end."""
    if nextitem is None or nextitem.path != item.path:
        _leave_out()


def _leave_out():
    if os.environ.get("PYTEST_XDIST_WORKER"):
        gc.collect()
        gc.freeze()


@pytest.fixture
def no_gpu(monkeypatch):
    """Choose the simulator, whatever GPU the machine has."""
    monkeypatch.setenv(backend.ENVIRONMENT_VARIABLE, "simulator")
