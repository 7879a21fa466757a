"""Launches that a call has checked, made again on other arrays without the checks."""

from collections.abc import Sequence
from ctypes import addressof, c_uint64, c_void_p, memmove
from threading import Lock

import numpy as np
from kernelscope.events import active_observers

SLOT = 16  # words of 8 bytes for a parameter: the largest is a tensor map


class Repeat:
    """A launch on a GPU whose parameters stay in memory: a call writes addresses and launches.

    CuPy makes an object of each argument in every launch; this leaves the driver's own time. It is
    for the device on which it was made.
    """

    def __init__(self, kernel, grid, block, values: Sequence, shared_mem: int, arrays: Sequence):
        """As :meth:`Kernel.repeat`; the values are as :meth:`Kernel.bind` returned them."""
        from cupy.cuda import Device, driver, get_current_stream

        self._driver, self._current_stream, self._device = driver, get_current_stream, Device
        self._kernel, self._lock = kernel, Lock()
        self._words = (c_uint64 * (SLOT * len(values)))()
        slots = [addressof(self._words) + 8 * SLOT * place for place in range(len(values))]
        self._pointers = (c_void_p * len(values))(*slots)
        self._block = addressof(self._pointers)
        self._arrays = [(SLOT * place, slots[place]) for place in arrays]
        for slot, value in zip(slots, values, strict=True):
            if isinstance(value, (np.generic, np.ndarray)):
                memmove(slot, value.tobytes(), value.nbytes)
        sizes = [*grid, *(1,) * (3 - len(grid)), *block, *(1,) * (3 - len(block))]
        self._geometry = kernel.raw.kernel.ptr, *sizes, shared_mem

    def __call__(self, arrays: Sequence, stream: int | None = None) -> None:
        """Launch.

        arrays: in the order of the places: CuPy's arrays, addresses, or NumPy's, such as a tensor
        map's, that are passed by value.  stream: its address; None: CuPy's current stream.
        """
        if active_observers():
            self._kernel._check_observers(active_observers())
        if not self._driver.ctxGetCurrent():  # in a new thread
            self._device().use()
        if stream is None:
            stream = self._current_stream().ptr
        with self._lock:
            for (word, slot), array in zip(self._arrays, arrays, strict=True):
                if array.__class__ is int:
                    self._words[word] = array
                elif array.__class__ is np.ndarray:
                    memmove(slot, array.ctypes.data, array.nbytes)
                else:
                    self._words[word] = array.data.ptr
            self._driver.launchKernel(*self._geometry, stream, self._block, 0)


def can_repeat(kernel, values: Sequence, arrays: Sequence[int]) -> bool:
    """Return whether all parameters but the arrays are null pointers or known byte for byte, and
    have room, and no block waits for all others of the grid."""
    fixed = [v for place, v in enumerate(values) if place not in arrays and v is not None]
    by_value = all(isinstance(one, (np.generic, np.ndarray)) for one in fixed)
    sizes = [one.nbytes for one in values if isinstance(one, (np.generic, np.ndarray))]
    return by_value and max(sizes, default=0) <= 8 * SLOT and not kernel.enable_cooperative_groups
