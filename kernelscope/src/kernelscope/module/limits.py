"""The limits of a device on a launch, and the check of a launch against them."""

import operator
import re
from dataclasses import dataclass

from ..errors import Advice, LaunchError

KIB = 1024
# Shared memory in KB that a block may have after opting in: CUDA C++ Programming Guide, table
# "Technical Specifications per Compute Capability". A row holds up to the next one's capability.
# The limit without opting in is 48 KB everywhere.
OPT_IN_SHARED_KIB = {50: 48, 70: 96, 75: 64, 80: 163, 86: 99, 87: 163, 89: 99, 90: 227, 120: 99}
DEFAULT_SHARED_BYTES = 48 * KIB
_BLOCKS_OF_256 = Advice("grid ((n + 255) // 256,), block (256,)", "--block 256 and a larger --grid")


@dataclass(frozen=True)
class Limits:
    """A device's limits on one launch; sizes in bytes, `name` as shown in messages."""

    name: str
    opt_in_shared_bytes: int
    threads: int = 1024
    block: tuple[int, int, int] = (1024, 1024, 64)
    grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)


def simulated_limits(arch: str) -> Limits:
    """The limits of the architecture a kernel is compiled for, such as "compute_80"."""
    number = int(re.sub(r"\D", "", arch) or 80)
    known = max((n for n in OPT_IN_SHARED_KIB if n <= number), default=80)
    return Limits(f"sm_{number}", OPT_IN_SHARED_KIB[known] * KIB)


def check_geometry(
    kernel: str,
    grid,
    block,
    limits: Limits,
    max_threads: int | None = None,
    required_block: tuple[int, int, int] | None = None,
    cluster: tuple[int, int, int] = (1, 1, 1),
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Grid and block as three ints each; LaunchError when the device would refuse them.

    `max_threads`, `required_block` and `cluster` (in blocks) come from the kernel itself.
    """
    grid = _three(kernel, "grid", grid, limits.grid, limits)
    block = _three(kernel, "block", block, limits.block, limits)
    threads = block[0] * block[1] * block[2]
    if threads > limits.threads:
        raise LaunchError(
            f"{kernel}: block {block} has {threads} threads; a block has at most "
            f"{limits.threads}. Use a smaller block and more blocks in the grid"
        )
    if max_threads is not None and threads > max_threads:
        raise LaunchError(
            f"{kernel}: block {block} has {threads} threads; this kernel runs with at most "
            f"{max_threads} (its __launch_bounds__, or its registers). Use a smaller block"
        )
    if required_block is not None and block != tuple(required_block):
        raise LaunchError(
            f"{kernel}: block is {block}; the kernel is compiled for blocks of {required_block}"
        )
    if any(g % c for g, c in zip(grid, cluster, strict=True)):
        raise LaunchError(
            f"{kernel}: grid {grid} does not hold whole clusters of {cluster} blocks; make each "
            f"size of the grid a multiple"
        )
    return grid, block


def _three(kernel, what, sizes, largest, limits) -> tuple[int, int, int]:
    if not isinstance(sizes, tuple) or not 1 <= len(sizes) <= 3:
        example = f", such as ({sizes},)" if isinstance(sizes, int) else ""
        text = f"{what} is {sizes!r}; it must be a tuple of one to three integers{example}"
        raise LaunchError(f"{kernel}: {text}")
    found = tuple(_size(kernel, what, sizes, value) for value in sizes) + (1, 1)
    for axis, value, limit in zip("xyz", found, largest, strict=False):
        if value > limit:
            hint = "Put the larger number in x"
            if axis == "x":
                hint = (
                    "Use more blocks, e.g. " + _BLOCKS_OF_256
                    if what == "block"
                    else "Let each block do more, or launch several times"
                )
            raise LaunchError(
                f"{kernel}: {what} {sizes} has {value} in {axis}; at most {limit} is allowed "
                f"there on {limits.name}. " + hint
            )
    return found[:3]


def _size(kernel, what, sizes, value) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise LaunchError(
            f"{kernel}: {what} {sizes} holds {value!r}, which is no integer; divide with // "
            f"and round up: (n + TILE - 1) // TILE"
        ) from None
    if number < 1:
        raise LaunchError(
            f"{kernel}: {what} {sizes} holds {number}; every size must be at least 1. "
            f"For an empty array, do not launch the kernel"
        )
    return number


def check_shared(
    kernel: str, dynamic: int, static: int, allowed_dynamic: int, limits: Limits
) -> int:
    """The dynamic shared memory of a launch in bytes; LaunchError when there is not as much.

    `allowed_dynamic` is the kernel's max_dynamic_shared_size_bytes.
    """
    try:
        dynamic = operator.index(dynamic)
    except TypeError:
        raise LaunchError(
            f"{kernel}: shared_mem is {dynamic!r}; it must be a number of bytes"
        ) from None
    if dynamic < 0:
        raise LaunchError(f"{kernel}: shared_mem is {dynamic}; it must be a number of bytes >= 0")
    check_total_shared(kernel, dynamic, static, limits)
    if dynamic > allowed_dynamic:
        raise LaunchError(
            f"{kernel}: {_sum(dynamic, static)} of shared memory is more than a kernel gets "
            f"without asking (48 KB). Before the launch set "
            f"kernel.max_dynamic_shared_size_bytes = {dynamic}"
        )
    return dynamic


def check_total_shared(kernel: str, dynamic: int, static: int, limits: Limits) -> None:
    """LaunchError when static and dynamic shared memory exceed what a block can ever have."""
    if dynamic + static > limits.opt_in_shared_bytes:
        raise LaunchError(
            f"{kernel}: {_sum(dynamic, static)} of shared memory is more than a block can have on "
            f"{limits.name}: {limits.opt_in_shared_bytes} bytes "
            f"({limits.opt_in_shared_bytes // KIB} KB). Use smaller tiles"
        )


def _sum(dynamic: int, static: int) -> str:
    return f"{dynamic} bytes (dynamic)" + (f" + {static} bytes (static)" if static else "")
