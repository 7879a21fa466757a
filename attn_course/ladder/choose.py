"""Which method suits a problem on a device: the rules behind ``method="auto"``."""

from functools import lru_cache

from kernelscope import resolve_backend
from kernelscope.errors import InputError

from attn_course.reference.dtypes import HALVES

from .matrix_tiles import (
    best_joined,
    decode_pays,
    matrix_blocks,
    matrix_candidates,
    matrix_config,
)
from .problem import LARGEST_D, Device, Problem
from .tiles import best_tile
from .warpgroup_tiles import wgmma_pays

CLUSTERS = (9, 0)  # compute capability from which blocks form clusters
ASYNC_COPIES = (8, 0)  # and from which cp.async copies past the registers
TENSOR_CORES = (8, 0)  # and from which they multiply bfloat16 and TF32
TF32_D = 128  # head dim up to which flash_tf32x3 and split_tf32x3 were timed
TF32_BLOCKS = 1.5  # large blocks a multiprocessor from which on flash_tf32x3 needs no shared keys
TF32_ROWS = 8  # queries a head up to which most of the 16 rows of a product would be empty
SPLIT_D = 8192  # head dim up to which tiles of rows_split were timed
ONLINE_BYTES = 512  # shared memory of rows_online beside a row of the output


def current_device(backend: str | None = None) -> Device:
    """Return the GPU in use, or the simulator."""
    backend = resolve_backend(backend)
    return Device() if backend == "simulator" else _gpu(device_number(backend))


def device_number(backend: str) -> int:
    """Return the number of the GPU in use; 0 on the simulator."""
    if backend == "simulator":
        return 0
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
    if device.capability < CLUSTERS:
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
    if decode_pays(problem, device):
        return "decode", f"few queries: blocks of {device.name} share {problem.m} keys evenly"
    if wgmma_pays(problem, device):
        return "flash_wgmma", f"warpgroups of {device.name} multiply {problem.dtype}"
    matrix_config("flash_mma", problem, device)  # refuses what fits no tile
    return "flash_mma", f"the tensor cores of {device.name} multiply {problem.dtype}"


def _of_tiles(problem: Problem, device: Device) -> tuple[str, str]:
    """For a head dim that tiles hold."""
    if found := _of_three_products(problem, device):
        method, why = found
        return method, (
            f"head dim {problem.d} is at most {TF32_D}: three products of tensor cores are faster "
            f"than one in float32, and nearly as exact; {why} the {device.sm_count} SMs of "
            f"{device.name}"
        )
    alone = best_tile("flash_async", problem, device)
    clusters = device.capability >= CLUSTERS
    together = best_tile("flash_split", problem, device) if clusters else None
    if together and (alone is None or together[0] < alone[0]):
        return "flash_split", (
            f"head dim {problem.d} fits into tiles, and clusters of "
            f"{together[1]['CLUSTER']} blocks share the keys between more "
            f"of the {device.sm_count} SMs of {device.name}"
        )
    if alone is None:
        return _of_rows(
            problem,
            device,
            f"at most {LARGEST_D}, but {problem.n} queries fit no tile on {device.name}",
        )
    if device.capability >= ASYNC_COPIES:
        return "flash_async", (
            f"head dim {problem.d} fits into tiles, and {device.name} copies "
            "the next one while it computes"
        )
    return "flash_fp32", (
        f"head dim {problem.d} fits into tiles, and {device.name} has no asynchronous copies"
    )


def _of_three_products(problem: Problem, device: Device) -> tuple[str, str] | None:
    """(method, reason) where three TF32 products serve a float32 problem best; None: they do not.

    flash_tf32x3 where its large blocks are enough for all multiprocessors, else split_tf32x3, whose
    warps and clusters share the keys.
    """
    if device.capability < TENSOR_CORES or problem.d > TF32_D:
        return None
    tiles = matrix_candidates("flash_tf32x3", problem, device)
    blocks = matrix_blocks(tiles[0], problem) if tiles else 0
    if blocks >= TF32_BLOCKS * device.sm_count:
        return "flash_tf32x3", f"{blocks} blocks are enough for"
    if problem.n <= TF32_ROWS or best_joined(problem, device) is None:
        return None
    return "split_tf32x3", "warps and clusters that share the keys have work for"


def _of_rows(problem: Problem, device: Device, why: str) -> tuple[str, str]:
    """For a problem that no tile holds: a block a row, or the kernels that split everything."""
    if 4 * problem.d + ONLINE_BYTES > device.shared_bytes:
        return "tiled", (
            f"head dim {problem.d} is more than the {device.shared_bytes // 1024} KB "
            f"of shared memory of {device.name} hold as a row"
        )
    return "rows_online", f"head dim {problem.d} is {why}"
