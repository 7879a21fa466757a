"""Marks and timed waits, on streams of a stub of CuPy that have a clock each."""

import sys
import types

import numpy as np
import pytest
from kernelscope.ranks import StreamMarks, row_copy


class Stream:
    """A stream whose work takes what `now` is moved by, in milliseconds."""

    current = None

    def __init__(self):
        self.now = 0.0

    def record(self, event):
        event.record(self)
        return event

    def wait_event(self, event):
        self.now = max(self.now, event.at)


class Event:
    def __init__(self, disable_timing=False):
        self.timed, self.at, self.waited_for = not disable_timing, None, False

    def record(self, stream=None):
        self.at = (stream or Stream.current).now

    def synchronize(self):
        self.waited_for = True


def elapsed_ms(start, end):
    """As CUDA: of events that keep a time, once the later one is past."""
    assert start.timed and end.timed and end.waited_for
    return end.at - start.at


@pytest.fixture
def streams(monkeypatch):
    """Two streams, the first one current."""
    found = Stream(), Stream()
    current = {"get_current_stream": lambda: Stream.current, "get_elapsed_time": elapsed_ms}
    cuda = types.SimpleNamespace(Event=Event, **current)
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "cupy.cuda", cuda)
    monkeypatch.setattr(Stream, "current", found[0])
    return found


def keys_arrive_at(marks, streams, at_ms):
    """Set a mark on the second stream."""
    streams[1].now, Stream.current = at_ms, streams[1]
    marks.set("keys")
    Stream.current = streams[0]


def test_a_stream_stands_still_until_the_other_has_passed_the_mark(streams):
    marks = StreamMarks(True)
    keys_arrive_at(marks, streams, 5.0)
    streams[0].now = 2.0
    marks.wait("keys")
    assert streams[0].now == 5.0 and marks.waited_us("keys") == 0.0  # it is not timed


def test_a_timed_wait_lasts_from_the_work_before_it_to_the_mark(streams):
    marks = StreamMarks(True)
    marks.timed = True
    for arrives, comes, waited_us in ((5.0, 2.0, 3000.0), (6.0, 9.0, 0.0), (12.0, 11.5, 500.0)):
        keys_arrive_at(marks, streams, arrives)
        streams[0].now = comes
        marks.wait("keys")
        assert streams[0].now == max(arrives, comes)
        assert marks.waited_us("keys") == waited_us  # of the last wait
    assert marks.waited_us("others") == 0.0


def test_marks_of_the_simulator_wait_for_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy.cuda", None)
    marks = StreamMarks(False)
    marks.timed = True
    marks.set("keys")
    marks.wait("keys")
    assert marks.waited_us("keys") == 0.0


def test_a_copy_between_rows_reads_what_is_there_when_it_is_called():
    source, target = np.zeros((2, 3, 5, 4), np.float32), np.full((2, 3, 2, 4), np.nan, np.float32)
    copy = row_copy(target, source[:, :, 3:])
    source[...] = np.arange(source.size).reshape(source.shape)
    copy()
    assert (target == source[:, :, 3:]).all()
