"""Which method suits a problem on a device: the rules behind ``method="auto"``."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache

from kernelscope import resolve_backend
from kernelscope.errors import InputError

from attn_course.reference.dtypes import HALVES

from .matrix_tiles import (
    decode_cluster_pays,
    decode_pays,
    matrix_candidates,
    matrix_config,
    matrix_rows,
)
from .problem import LARGEST_D, Device, Problem
from .tiles import best_tile
from .warpgroup_tiles import fp16x3_pays, wgmma_pays

ASYNC_COPIES = (8, 0)  # and from which cp.async copies past the registers
TENSOR_CORES = (8, 0)  # and from which they multiply bfloat16 and TF32
TF32_D = 128  # head dim up to which flash_tf32x3 and split_tf32x3 were timed
TF32_BLOCKS = 0.9  # full blocks a multiprocessor from which on flash_tf32x3 was the fastest
TF32_ROWS = 8  # queries a head up to which most of the 16 rows of a product would be empty
SPLIT_D = 8192  # head dim up to which tiles of rows_split were timed
ONLINE_BYTES = 512  # shared memory of rows_online beside a row of the output

_MODEL: ContextVar[Device | None] = ContextVar("model", default=None)


@contextmanager
def simulating(device: Device) -> Iterator[None]:
    """Let the simulator stand for a GPU in a block: methods, tiles and code are those for it."""
    token = _MODEL.set(device)
    try:
        yield
    finally:
        _MODEL.reset(token)


def simulated_gpu(backend: str) -> Device | None:
    """Return the GPU that the simulator stands for; None on a GPU, and where it is itself."""
    return _MODEL.get() if backend == "simulator" else None


def current_device(backend: str | None = None) -> Device:
    """Return the GPU in use, or the simulator."""
    backend = resolve_backend(backend)
    if backend == "simulator":
        return simulated_gpu(backend) or Device()
    return _gpu(device_number(backend))


def device_number(backend: str) -> int:
    """Return the number of the GPU in use; on the simulator that of what it stands for."""
    if backend == "simulator":
        return hash(simulated_gpu(backend))
    import cupy

    return cupy.cuda.runtime.getDevice()


@lru_cache(maxsize=16)
def _gpu(number: int) -> Device:
    import cupy

    gpu = cupy.cuda.Device(number)
    name = cupy.cuda.runtime.getDeviceProperties(number)["name"]
    digits = gpu.compute_capability  # "90", "120": the last digit is the minor version
    return Device(
        name.decode(),
        (int(digits[:-1]), int(digits[-1])),
        gpu.attributes["MultiProcessorCount"],
        gpu.attributes["MaxSharedMemoryPerBlockOptin"],
    )


def choose(problem: Problem, device: Device | None = None) -> tuple[str, str]:
    """(method, reason) for a problem, with its dtype, on a device; None: the current one.

    Raises:
        ValueError: no method takes the problem in its dtype.
    """
    device = device or current_device()
    if problem.dtype in HALVES:
        return _of_halves(problem, device)
    if problem.d <= LARGEST_D:
        return _of_tiles(problem, device)
    if problem.d > SPLIT_D:
        return _of_rows(problem, device, f"more than {SPLIT_D}: too long to split")
    if not device.has_clusters:
        return _of_rows(
            problem, device, f"more than {LARGEST_D}, and {device.name} has no clusters to split it"
        )
    if best_tile("rows_split", problem, device) is None:
        return _of_rows(
            problem,
            device,
            f"more than {LARGEST_D}, and {problem.n} queries fit no "
            f"tile of rows_split on {device.name}",
        )
    return "rows_split", (
        f"head dim {problem.d} is more than {LARGEST_D}: clusters of {device.name} split it"
    )


def _of_halves(problem: Problem, device: Device) -> tuple[str, str]:
    """For elements of 16 bits, which only the kernels of tensor cores take."""
    if problem.d > LARGEST_D:
        raise InputError(
            f"no method takes {problem.dtype} with head dim {problem.d}, more than {LARGEST_D}: "
            "pass float32 arrays"
        )
    if device.capability < TENSOR_CORES:
        raise InputError(
            f"the kernels that take {problem.dtype} need compute capability 8.0, {device.name} has "
            f"{device.capability[0]}.{device.capability[1]}: pass float32 arrays"
        )
    if decode_cluster_pays(problem, device):
        return "decode_cluster", "few queries and keys: a cluster a head joins its parts soonest"
    if decode_pays(problem, device):
        return "decode", f"few queries: blocks of {device.name} share {problem.m} keys evenly"
    if wgmma_pays(problem, device):
        return "flash_wgmma", f"warpgroups of {device.name} multiply {problem.dtype}"
    matrix_config("flash_mma", problem, device)  # refuses what fits no tile
    return "flash_mma", f"the tensor cores of {device.name} multiply {problem.dtype}"


def _of_tiles(problem: Problem, device: Device) -> tuple[str, str]:
    """For a head dim that tiles hold: the kernel that needs the fewest clocks by its model."""
    if fp16x3_pays(problem, device):
        return "flash_fp16x3", (
            f"head dim {problem.d} fits, and warpgroups of {device.name} multiply halves, three "
            "products for one: faster than TF32, and nearly as exact"
        )
    tensor_cores = device.capability >= TENSOR_CORES and problem.d <= TF32_D
    products = "three products of tensor cores are faster than one in float32, and nearly as exact"
    full = _full_blocks(problem, device) if tensor_cores else 0
    if full >= TF32_BLOCKS * device.sm_count:
        return "flash_tf32x3", (
            f"head dim {problem.d} is at most {TF32_D}, and {full} blocks are enough for the "
            f"{device.sm_count} SMs of {device.name}: {products}"
        )
    alone = "flash_async" if device.capability >= ASYNC_COPIES else "flash_fp32"
    able = [alone, *["flash_split"] * device.has_clusters]
    able += ["split_tf32x3"] * (tensor_cores and problem.n > TF32_ROWS)
    best = {name: found for name in able if (found := best_tile(name, problem, device))}
    if not best:
        return _of_rows(
            problem,
            device,
            f"at most {LARGEST_D}, but {problem.n} queries fit no tile on {device.name}",
        )
    method = min(best, key=lambda name: best[name][0])
    why = {
        "flash_fp32": f"{device.name} has no asynchronous copies",
        "flash_async": f"{device.name} copies the next one while it computes",
        "flash_split": f"clusters of {best[method][1].get('CLUSTER')} blocks share the keys "
        f"between more of the {device.sm_count} SMs of {device.name}",
        "split_tf32x3": f"warps share the keys on the {device.sm_count} SMs of {device.name}: "
        + products,
    }
    return method, f"head dim {problem.d} fits into tiles, and {why[method]}"


def _full_blocks(problem: Problem, device: Device) -> int:
    """Blocks of flash_tf32x3's first tile that have all their rows."""
    tiles = matrix_candidates("flash_tf32x3", problem, device)
    return problem.bh * (problem.n // matrix_rows(tiles[0])) if tiles else 0


def _of_rows(problem: Problem, device: Device, why: str) -> tuple[str, str]:
    """For a problem that no tile holds: a block a row, or the kernels that split everything."""
    if 4 * problem.d + ONLINE_BYTES > device.shared_bytes:
        return "tiled", (
            f"head dim {problem.d} is more than the {device.shared_bytes // 1024} KB "
            f"of shared memory of {device.name} hold as a row"
        )
    return "rows_online", f"head dim {problem.d} is {why}"
