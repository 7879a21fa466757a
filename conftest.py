"""Settings and fixtures of all tests."""

import gc
import os
import sys

import pytest
from kernelscope import backend

from attn_devtools import shares

# Parsed kernels are many small objects, and searching them all for cycles took an eighth of the
# time: collect a three-hundredth as often.
gc.set_threshold(200_000, 10, 10)

# Tables of the commands fit the terminal: here a terminal of one width, whoever runs the tests.
os.environ["COLUMNS"] = "120"

pytest_plugins = ["attn_devtools.without_grammar"]


def pytest_collection_modifyitems(config, items):
    """Leave out the slow tests whose turn it is not."""
    if "hypothesis" in sys.modules:
        # Hypothesis would search every module of ours for numbers and texts to try, which takes
        # each worker seconds; the tests draw from ranges and lists of their own.
        from hypothesis.internal.conjecture import providers

        providers.is_local_module_file = lambda path: False
    waiting = set(shares.waiting(items))
    config.hook.pytest_deselected(items=[item for item in items if item in waiting])
    items[:] = [item for item in items if item not in waiting]


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


def pytest_terminal_summary(terminalreporter):
    """Say in which modes the sandbox was tested, and why not in others."""
    reports = [report for kind in terminalreporter.stats.values() for report in kind]
    told = {}
    for report in reports:
        told |= {value[0]: value[1] for name, value in _properties(report) if name == "sandbox"}
    if told:
        tested = ", ".join(label for label, why in told.items() if not why)
        missing = "; ".join(f"{label}: {why}" for label, why in told.items() if why)
        terminalreporter.write_line(f"sandbox: tested {tested or 'in no mode'}")
        terminalreporter.write_line(f"sandbox: not on this machine: {missing or 'none'}")


def _properties(report):
    return getattr(report, "user_properties", ())
