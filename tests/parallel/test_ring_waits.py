"""How long a ring stands still for keys, on streams of a stub of CuPy that have a clock each."""

import sys
import types
from functools import partial

import numpy as np
import pytest

from attn_course.parallel import RingPlan

COMPUTES_MS, TRAVELS_MS = (5, 4, 1, 1), (8, 3, 6)  # of each step, of each exchange


class Stream:
    """A stream whose clock moves by the work that is queued there; as a context it is current."""

    current: list = []

    def __init__(self):
        self.now = 0.0

    def __enter__(self):
        self.current.append(self)

    def __exit__(self, *_):
        self.current.pop()

    def record(self, event):
        event.at = self.now
        return event

    def wait_event(self, event):
        self.now = max(self.now, event.at)


class Event:
    def __init__(self, disable_timing=False):
        self.at = None

    def record(self):
        Stream.current[-1].record(self)

    def synchronize(self):
        pass


def work(milliseconds):
    Stream.current[-1].now += milliseconds


@pytest.fixture
def plan(monkeypatch):
    """A ring of rank 1 of four, whose exchanges and launches take the times above."""
    of_streams = {"get_current_stream": lambda: Stream.current[-1], "Event": Event}
    cuda = types.SimpleNamespace(get_elapsed_time=lambda a, b: b.at - a.at, **of_streams)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(Stream, "current", [Stream()])
    monkeypatch.setattr(RingPlan, "_step", lambda _, step, part: [partial(work, COMPUTES_MS[step])])
    travels = iter(TRAVELS_MS)
    rank = types.SimpleNamespace(rank=1, size=4, xp=np, backend="simulator", stream=Stream())
    rank.agree = lambda *_: None
    rank.exchange = lambda sends, receives: work(next(travels))
    return RingPlan(rank, *np.zeros((3, 1, 1, 2, 8), np.float32), 8)


def test_a_ring_waits_for_the_keys_that_come_late(plan):
    """Keys arrive at 8, 11 and 18 (sent at 12, after step 1) ms; wanted at 5, 12 and 13 ms."""
    plan.marks.timed = True
    plan()
    assert plan.waited_us() == 1000.0 * (3 + 0 + 5)
    assert Stream.current[0].now == 19 and plan.rank.stream.now == 18


def test_waits_that_are_not_timed_are_none(plan):
    plan()
    assert plan.waited_us() == 0.0 and Stream.current[0].now == 19
