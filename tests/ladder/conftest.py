"""A GPU that is not there: CuPy's arrays without values, and kernels that log their launches."""

import itertools
import types
from ctypes import c_void_p, string_at
from typing import ClassVar, NamedTuple

import cupy
import numpy as np
import pytest
from kernelscope import backend
from kernelscope.module.cupy_side import CupyModules

from attn_course.ladder import call

LIMITS = {"MultiProcessorCount": 132, "MaxThreadsPerBlock": 1024, "MaxGridDimX": 2**31 - 1}
LIMITS |= {"MaxBlockDimX": 1024, "MaxBlockDimY": 1024, "MaxBlockDimZ": 64, "MaxGridDimY": 65535}
LIMITS |= {"MaxGridDimZ": 65535, "MaxSharedMemoryPerBlockOptin": 227 * 1024}
ADDRESSES = itertools.count(1 << 40, 1 << 20)


class Array:
    """An array of a GPU: shape, dtype, flags and address, no values."""

    __cuda_array_interface__ = {"version": 3}

    def __init__(self, shape, dtype=np.float32, c_contiguous=True, pointer=None):
        self.shape, self.dtype, self.ndim = tuple(shape), np.dtype(dtype), len(shape)
        self.flags = types.SimpleNamespace(c_contiguous=c_contiguous)
        self.nbytes = int(np.prod(shape)) * self.dtype.itemsize
        self.data = types.SimpleNamespace(ptr=next(ADDRESSES) if pointer is None else pointer)


Array.__module__ = "cupy"


class Launched(NamedTuple):
    grid: tuple
    block: tuple
    args: tuple
    shared_mem: int
    kernel: object
    stream: int | None = None


class FakeKernel:
    """Logs each launch instead of running it; `made` has those whose parameters are known."""

    made: ClassVar[dict] = {}
    enable_cooperative_groups = False

    max_dynamic_shared_size_bytes = 48 * 1024
    shared_size_bytes = 0
    max_threads_per_block = 1024

    def __init__(self, log):
        self.log, self.kernel = log, types.SimpleNamespace(ptr=id(self))

    def __call__(self, grid, block, args, shared_mem=0):
        self.arrays = [not isinstance(value, np.generic) for value in args]
        self.sizes = [one.nbytes if isinstance(one, np.ndarray) else 8 for one in args]
        self.made[self.kernel.ptr] = self, [getattr(value, "dtype", None) for value in args]
        self.log.append(Launched(grid, block, args, shared_mem, self))

    @classmethod
    def launch(cls, function, *launch) -> None:
        """As cuLaunchKernel: numbers of their types, addresses, None for a null pointer."""
        *sizes, shared_mem, stream, parameters, _ = launch
        kernel, dtypes = cls.made[function]
        slots = (c_void_p * len(dtypes)).from_address(parameters)
        words = [string_at(slot, size) for slot, size in zip(slots, kernel.sizes, strict=True)]
        args = [
            int.from_bytes(word, "little") or None
            if array
            else np.frombuffer(word, dtype, count=1)[0]
            for word, dtype, array in zip(words, dtypes, kernel.arrays, strict=True)
        ]
        kernel.log.append(
            Launched(*map(tuple, (sizes[:3], sizes[3:], args)), shared_mem, kernel, stream)
        )


class FakeStream:
    """Captures what is launched between begin_capture and end_capture."""

    def __init__(self, log):
        self.log = log

    def __enter__(self):
        self.synchronize = lambda: None
        return self

    def __exit__(self, *_):
        return None

    def begin_capture(self):
        self.start = len(self.log)

    def end_capture(self):
        captured = self.log[self.start :]
        del self.log[self.start :]
        return types.SimpleNamespace(launch=lambda: self.log.append(("graph", captured)))


class FakeGpu:
    """The number of the current device, and the log of launches."""

    def __init__(self):
        self.device, self.log = 0, []

    array = Array


@pytest.fixture
def gpu(monkeypatch):
    """A GPU of capability 9.0 with 132 multiprocessors."""
    gpu = FakeGpu()
    log = gpu.log
    device = types.SimpleNamespace(
        attributes=LIMITS, compute_capability="90", synchronize=lambda: None
    )
    monkeypatch.delenv(backend.ENVIRONMENT_VARIABLE, raising=False)
    monkeypatch.setattr(backend, "gpu_count", lambda: 1)
    monkeypatch.setattr(cupy, "ndarray", Array)
    monkeypatch.setattr(cupy, "empty", Array)
    monkeypatch.setattr(cupy, "empty_like", lambda array: Array(array.shape, array.dtype))
    monkeypatch.setattr(cupy.cuda, "Device", lambda *_: device)
    monkeypatch.setattr(cupy.cuda, "Stream", lambda non_blocking: FakeStream(log))
    monkeypatch.setattr(cupy.cuda.runtime, "getDevice", lambda: gpu.device)
    monkeypatch.setattr(
        cupy.cuda.runtime, "getDeviceProperties", lambda number: {"name": b"a fake GPU"}
    )
    monkeypatch.setattr(CupyModules, "function", lambda self, name: FakeKernel(log))
    monkeypatch.setattr(cupy.cuda.driver, "launchKernel", FakeKernel.launch)
    monkeypatch.setattr(cupy.cuda.driver, "ctxGetCurrent", lambda: 1)
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: types.SimpleNamespace(ptr=0))
    call._module.cache_clear()
    yield gpu
    FakeKernel.made.clear()
    call._module.cache_clear()
