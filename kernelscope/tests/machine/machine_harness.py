"""Runs small CUDA C kernels on the simulator, for the tests of the machine."""

from functools import cache

import numpy as np
from kernelscope import RawModule
from kernelscope.events import Observer, observe

BUILDS = ("optimised", "debug")


class Listener(Observer):
    """Asks for a build and keeps what it hears."""

    def __init__(self, build="optimised", keeps_going=False):
        self.build, self.keeps_going = build, keeps_going
        self.events, self.barriers, self.faults, self.warp_barriers = [], [], [], []

    def instruction(self, event):
        self.events.append(event)

    def barrier(self, event):
        self.barriers.append(event)

    def warp_barrier(self, event):
        self.warp_barriers.append(event)

    def fault(self, event):
        self.faults.append(event)


class DebugBuild(Observer):
    """Only asks for the debug build."""

    build = "debug"

    def __init__(self):
        pass


@cache
def module(code: str, names: tuple = ()) -> RawModule:
    """The code is compiled once however many tests use it."""
    return RawModule(code=code, backend="simulator", name_expressions=names or None)


def run(
    code, name, grid, block, *arguments, build="optimised", shared=0, names=(), warp_order=None
):
    """Call one kernel of the code; grid and block are ints or tuples. Returns its arguments."""
    kernel = module(*([code, names] if names else [code])).get_function(name)
    grid, block = (size if isinstance(size, tuple) else (size,) for size in (grid, block))
    kernel.warp_order = warp_order
    try:
        if build == "debug":
            with observe(DebugBuild()):
                kernel(grid, block, arguments, shared_mem=shared)
        else:
            kernel(grid, block, arguments, shared_mem=shared)
    finally:
        kernel.warp_order = None
    return arguments


def listen(code, name, grid, block, *arguments, build="optimised", keeps_going=True, shared=0):
    """Call a kernel with a Listener attached and return the Listener."""
    kernel = module(code).get_function(name)
    grid, block = (size if isinstance(size, tuple) else (size,) for size in (grid, block))
    with observe(Listener(build, keeps_going)) as listener:
        kernel(grid, block, arguments, shared_mem=shared)
    return listener


def zeros(count, dtype=np.int32):
    return np.zeros(count, dtype)


def integers(n, low=0, high=50, seed=0, dtype=np.int32):
    return np.random.default_rng(seed).integers(low, high, n).astype(dtype)
