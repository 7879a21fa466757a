"""Which method suits a problem on a device: the rules behind ``method="auto"``."""

from functools import lru_cache

import numpy as np

from .backend import resolve_backend
from .shapes import LARGEST_D, Device, Problem
from .tuning import best_flash

CLUSTERS = (9, 0)  # compute capability from which blocks form clusters
ASYNC_COPIES = (8, 0)  # and from which cp.async copies past the registers
SPLIT_D = 8192  # head dim up to which a cluster's registers hold the output


def current_device(backend: str | None = None) -> Device:
    """The GPU in use, or the simulator."""
    if resolve_backend(backend) == "simulator":
        return Device()
    import cupy

    return _gpu(cupy.cuda.runtime.getDevice())


@lru_cache(maxsize=16)
def _gpu(number: int) -> Device:
    import cupy

    gpu = cupy.cuda.Device(number)
    name = cupy.cuda.runtime.getDeviceProperties(number)["name"]
    digits = gpu.compute_capability  # "90", "120": the last digit is the minor version
    return Device(name.decode(), (int(digits[:-1]), int(digits[-1])),
                  gpu.attributes["MultiProcessorCount"],
                  gpu.attributes["MaxSharedMemoryPerBlockOptin"])


def choose(problem: Problem, device: Device | None = None, dtype=np.float32) -> tuple[str, str]:
    """(method, reason) for a problem on a device; None: the current one.

    Raises:
        TypeError: no method takes the dtype.
    """
    device = device or current_device()
    if np.dtype(dtype) != np.float32:
        raise TypeError(f"no method takes {np.dtype(dtype)}: pass float32 arrays")
    if problem.d > SPLIT_D:
        return "rows_online", f"head dim {problem.d} is more than {SPLIT_D}: too long to split"
    if problem.d > LARGEST_D:
        if device.capability >= CLUSTERS:
            return "rows_split", (f"head dim {problem.d} is more than {LARGEST_D}: clusters of "
                                  f"{device.name} split it")
        return "rows_online", (f"head dim {problem.d} is more than {LARGEST_D}, and {device.name} "
                               "has no clusters to split it")
    if device.capability >= CLUSTERS:
        alone = best_flash(problem, device)
        together = best_flash(problem, device, clusters=True)
        if together[0] < alone[0]:
            return "flash_split", (f"head dim {problem.d} fits into tiles, and clusters of "
                                   f"{together[1]['CLUSTER']} blocks share the keys between more "
                                   f"of the {device.sm_count} SMs of {device.name}")
    if device.capability >= ASYNC_COPIES:
        return "flash_async", (f"head dim {problem.d} fits into tiles, and {device.name} copies "
                               "the next one while it computes")
    return "flash_fp32", (f"head dim {problem.d} fits into tiles, and {device.name} has no "
                          "asynchronous copies")
