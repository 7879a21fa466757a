"""Calls kept without their arrays, for requests of a form that was seen before.

On a GPU the kernel files are looked at again when the last look is LOOK_AGAIN_S old, so an edited
kernel is seen after at most that time.
"""

import logging
from collections.abc import Iterable
from dataclasses import replace
from threading import Lock
from time import monotonic

from kernelscope import array_module

from .call import Call

LOOK_AGAIN_S = 1.0
MOST_CACHED = 256  # forms of calls that are kept


def array_form(array) -> tuple:
    """What launches depend on of an array."""
    return type(array), array.shape, array.dtype, array.flags.c_contiguous


def tensor_form(tensor) -> tuple:
    """The same of a tensor of PyTorch."""
    form = type(tensor), tensor.shape, tensor.dtype, tensor.device
    return (*form, tensor.is_contiguous(), tensor.requires_grad)


def are_plain(given: Iterable) -> bool:
    """Whether all arrays but None are tensors on a GPU that need no check of their gradient."""
    return all(one.is_cuda and not one.requires_grad for one in given if one is not None)


class CachedCall:
    """The launches of a call, kept without its arrays for requests of the same form.

    log: says in every call what "auto" picked.
    """

    def __init__(self, call: Call, log: logging.Logger):
        self.call, self.log = replace(call, arrays={}), log
        self.xp = array_module(call.backend)
        self.steps = {launch.step.file: launch.step for launch in call.launches}.values()
        self.edited, self.looked = self._edited(), monotonic()

    def _edited(self) -> list[tuple]:
        return [step.edited for step in self.steps]

    def is_current(self) -> bool:
        """Whether the kernel files are as they were; on a GPU as of the last look."""
        now = monotonic()
        if self.call.backend == "gpu" and now - self.looked < LOOK_AGAIN_S:
            return True
        if self.edited != self._edited():
            return False
        self.looked = now
        return True

    def run(self, arrays: dict[str, object], stream: int | None = None) -> dict[str, object]:
        """Launch on these arrays, or on their addresses on a GPU, and return them.

        stream: as of StepLaunch.run().
        """
        if self.call.reason and self.log.isEnabledFor(logging.INFO):
            self.log.info("auto picks %s: %s", self.call.method, self.call.reason)
        self.call.add_scratch(arrays)
        return self.call.run_on(arrays, stream)


_cached: dict[tuple, CachedCall] = {}
_lock = Lock()


def kept_call(form: tuple) -> CachedCall | None:
    """Return the kept call of requests of a form."""
    return _cached.get(form)


def keep_call(form: tuple, call: CachedCall) -> None:
    """Keep a call for requests of a form."""
    with _lock:
        _keep(form, call)


def _keep(form: tuple, call: CachedCall) -> None:
    while len(_cached) >= MOST_CACHED:
        _cached.pop(next(iter(_cached)), None)  # the oldest
    _cached[form] = call
