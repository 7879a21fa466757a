"""Which method suits a problem on a device: the rules behind ``method="auto"``."""

from functools import lru_cache

from attn_course.engine.backend import resolve_backend
from attn_course.reference.dtypes import HALVES

from .matrix_tiles import matrix_blocks, matrix_candidates
from .problem import LARGEST_D, Device, Problem
from .tiles import best_flash, best_split

CLUSTERS = (9, 0)  # compute capability from which blocks form clusters
ASYNC_COPIES = (8, 0)  # and from which cp.async copies past the registers
TENSOR_CORES = (8, 0)  # and from which they multiply bfloat16 and TF32
TF32_D = 128  # head dim up to which flash_tf32x3 was timed
TF32_SHARE = 0.45  # blocks a multiprocessor from which it was the fastest: docs/mma_log.md
BIASED_SHARE = 0.7  # from which it beat flash_split with a bias and a head dim up to SMALL_D, too
SMALL_D = 32
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
    if best_split(problem, device) is None:
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
        raise ValueError(
            f"no method takes {problem.dtype} with head dim {problem.d}, more than {LARGEST_D}: "
            "pass float32 arrays"
        )
    if device.capability < TENSOR_CORES:
        raise ValueError(
            f"the kernels that take {problem.dtype} need compute capability 8.0, {device.name} has "
            f"{device.capability[0]}.{device.capability[1]}: pass float32 arrays"
        )
    return "flash_mma", f"the tensor cores of {device.name} multiply {problem.dtype}"


def _of_tiles(problem: Problem, device: Device) -> tuple[str, str]:
    """For a head dim that tiles hold."""
    blocks = _large_blocks(problem, device)
    tensor_cores = blocks >= TF32_SHARE * device.sm_count
    # Where products are short, a bias is a larger part of the time.
    short = problem.biased and problem.d <= SMALL_D and blocks < BIASED_SHARE * device.sm_count
    alone = best_flash(problem, device)
    clusters = device.capability >= CLUSTERS
    together = best_flash(problem, device, clusters=True) if clusters else None
    if together and (alone is None or together[0] < alone[0]) and (short or not tensor_cores):
        return "flash_split", (
            f"head dim {problem.d} fits into tiles, and clusters of "
            f"{together[1]['CLUSTER']} blocks share the keys between more "
            f"of the {device.sm_count} SMs of {device.name}"
        )
    if tensor_cores:
        return "flash_tf32x3", (
            f"head dim {problem.d} is at most {TF32_D}, and large tiles make {blocks} blocks "
            f"for the {device.sm_count} SMs of {device.name}: three products of tensor cores "
            "are faster than one in float32, and nearly as exact"
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


def _large_blocks(problem: Problem, device: Device) -> int:
    """Blocks of the largest tile of flash_tf32x3; 0 where it does not suit."""
    if device.capability < TENSOR_CORES or problem.d > TF32_D:
        return 0
    large = matrix_candidates("flash_tf32x3", problem, device)[:1]
    return matrix_blocks(large[0], problem) if large else 0


def _of_rows(problem: Problem, device: Device, why: str) -> tuple[str, str]:
    """For a problem that no tile holds: a block a row, or the kernels that split everything."""
    if 4 * problem.d + ONLINE_BYTES > device.shared_bytes:
        return "tiled", (
            f"head dim {problem.d} is more than the {device.shared_bytes // 1024} KB "
            f"of shared memory of {device.name} hold as a row"
        )
    return "rows_online", f"head dim {problem.d} is {why}"
