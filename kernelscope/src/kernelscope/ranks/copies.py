"""Work beside NCCL's: copies of parts of arrays, and marks at which one stream waits for another.

On the simulator a copy is NumPy's, and a mark has nothing to wait for: all runs in sequence.
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from ..backend import is_device_array


class StreamMarks:
    """Events by name on the streams of one rank; active: False on the simulator.

    Attributes:
        timed: whether waits are timed, for waited_us().
    """

    def __init__(self, active: bool):
        self._active, self._events, self._waits, self.timed = active, {}, {}, False

    def set(self, name: str) -> None:
        """Put a mark on CuPy's current stream, behind what is queued there."""
        if self._active:
            from cupy.cuda import Event

            if name not in self._events:
                self._events[name] = Event(disable_timing=True)
            self._events[name].record()

    def wait(self, name: str) -> None:
        """Let CuPy's current stream wait until work has passed the mark."""
        if self._active:
            from cupy.cuda import Event, get_current_stream

            stream = get_current_stream()
            before = stream.record(Event()) if self.timed else None
            stream.wait_event(self._events[name])
            if self.timed:
                self._waits[name] = before, stream.record(Event())

    def waited_us(self, name: str) -> float:
        """Return how long a stream stood still at its last timed wait for a mark; waits for it."""
        if name not in self._waits:
            return 0.0
        from cupy.cuda import get_elapsed_time

        before, after = self._waits[name]
        after.synchronize()
        return 1e3 * get_elapsed_time(before, after)


def row_copy(target, source) -> Callable[[], object]:
    """Return a copy between rows of arrays with more of them, as a call on CuPy's current stream.

    target, source: (B, H, rows, ...) of one shape and dtype, where the rows of a head are
    contiguous.
    """
    if not is_device_array(source):
        return partial(np.copyto, target, source)
    from cupy.cuda import get_current_stream, runtime

    wide = source.shape[2] * source.strides[2]
    moves = [
        (to.data.ptr, to.strides[0], one.data.ptr, one.strides[0], wide, one.shape[0])
        for to, one in zip(target, source, strict=True)
    ]

    def copy() -> None:
        stream = get_current_stream().ptr
        for move in moves:
            runtime.memcpy2DAsync(*move, runtime.memcpyDeviceToDevice, stream)

    return copy
