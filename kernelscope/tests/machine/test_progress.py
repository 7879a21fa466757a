"""What a launch that takes long says of itself, and how Ctrl-C ends it."""

import signal
import sys
import time
from types import SimpleNamespace

import numpy as np
import pytest
from kernelscope import RawModule, budget, progress
from kernelscope.errors import Hang, Interrupted, OutOfTime

SOURCE = r"""
extern "C" __global__ void count(volatile float* x, unsigned n) {
    for (unsigned i = 0; i < n; i++) {
        x[threadIdx.x] += 1.0f;
    }
}
"""


@pytest.fixture(scope="module")
def count():
    kernel = RawModule(code=SOURCE, backend="simulator").get_function("count")
    kernel((1,), (32,), (np.zeros(32, np.float32), 1))
    return kernel


@pytest.fixture
def eager(monkeypatch):
    """A launch tells of itself at once and at every look."""
    monkeypatch.setattr(progress, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(progress, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(budget, "LOOK_SECONDS", 0.0)


def test_a_long_launch_says_how_far_it_is(count, eager, monkeypatch, capsys):
    monkeypatch.setenv(progress.PROGRESS, "1")
    count((64,), (1024,), (np.zeros(1024, np.float32), 2))
    shown = capsys.readouterr().err
    assert "count: 0 of 64 thread blocks done after 0 s; now at kernel.cu:" in shown
    assert "count: 32 of 64 thread blocks done after 0 s, about 0 s left; now at" in shown
    assert shown.endswith("\r") and not shown.rstrip("\r").rsplit("\r", 1)[1].strip()


def test_in_a_front_end_the_line_leaves_no_red_ground(count, eager, monkeypatch, capsys):
    monkeypatch.setattr(progress, "in_front_end", lambda: True)
    monkeypatch.delenv(progress.PROGRESS, raising=False)
    count((64,), (1024,), (np.zeros(1024, np.float32), 2))
    shown = capsys.readouterr()
    assert shown.err == "" and "32 of 64 thread blocks" in shown.out and shown.out.endswith("\r")


@pytest.mark.parametrize("asked", ["0", ""])
def test_nothing_is_said_unasked_where_nobody_looks(count, eager, monkeypatch, capsys, asked):
    monkeypatch.setenv(progress.PROGRESS, asked)
    count((64,), (1024,), (np.zeros(1024, np.float32), 2))
    assert capsys.readouterr().err == ""


def test_the_estimate():
    line = progress.Progress("k", 100)
    assert line.text(4, "a.cu:3") == "k: 0 of 100 thread blocks done after 4 s; now at a.cu:3"
    line.done = 25
    assert "25 of 100 thread blocks done after 4 s, about 12 s left" in line.text(4, "a.cu:3")


@pytest.mark.parametrize(("metadata", "shown"), [({"cellId": "a"}, True), ({}, False)])
def test_a_front_end_is_told_from_a_program_that_runs_notebooks(monkeypatch, metadata, shown):
    kernel = SimpleNamespace(get_parent=lambda channel: {"metadata": metadata})
    shell = SimpleNamespace(kernel=kernel)
    ipython = SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert progress.in_front_end() is shown
    shell = None
    assert progress.in_front_end() is False


def test_ctrl_c_names_the_line_that_was_running(count):
    x = np.zeros(64, np.float32)
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt) as stop:
            count((1,), (64,), (x, 2**32 - 1))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert isinstance(stop.value, Interrupted) and stop.value.__suppress_context__
    assert "count was interrupted at kernel.cu:" in str(stop.value)
    assert "0 of 1 thread blocks done" in str(stop.value)
    assert (x > 0).any()  # what it had written until then
    shown = "\n".join(stop.value._render_traceback_())
    assert "interrupted" in shown and "scheduler.py" not in shown


def test_ctrl_c_while_a_kernel_is_compiled(monkeypatch):
    module = RawModule(code=SOURCE, backend="simulator")
    kernel = module.get_function("count")

    def stopped(build):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "program", stopped)
    with pytest.raises(Interrupted, match="count was interrupted before its launch"):
        kernel((1,), (32,), (np.zeros(32, np.float32), 1))


def test_a_limit_of_seconds_and_the_line(count):
    start = time.monotonic()
    with pytest.raises(OutOfTime, match="ran longer than 0.2 s.*Does its loop end.$") as late:
        with budget.call_budget(0.2):
            count((1,), (32,), (np.zeros(32, np.float32), 2**32 - 1))
    assert late.value.line in (3, 4) and isinstance(late.value, Hang)
    assert time.monotonic() - start < 5


def test_a_limit_of_seconds_is_one_of_the_processor(count):
    with budget.call_budget(0.3) as limits:
        time.sleep(0.4)  # as on a machine that is busy with something else
        limits.check("count", lambda: "its end")
        count((1,), (32,), (np.zeros(32, np.float32), 1))
