"""What a block of a fused kernel needs of a multiprocessor, and what architectures grant it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attn_course.engine.module.limits import OPT_IN_SHARED_KIB
from attn_course.ladder.call import compiled
from attn_course.ladder.problem import Device, ceil_div
from attn_course.ladder.steps import Problem, step
from attn_course.ladder.tiles import FLASH_TILES, flash_shared_bytes
from attn_course.measure.experiments import VARIANTS, placement, tile_options
from attn_course.measure.hardware.devices import MULTIPROCESSORS
from attn_course.measure.hardware.occupancy import compiled_registers, occupancy

from .tiles import tile_extents

# Architectures that the lessons compare, and what a block of each may have: bytes.
BUDGETS = {f"sm_{number}": 1024 * OPT_IN_SHARED_KIB[number] for number in (80, 86, 89, 90)}


def shared_need(which: str, d: int, options: Sequence[str] = (), n: int = 64) -> int:
    """Shared memory in bytes of a block of a fused kernel at a head dim: static and dynamic."""
    row = step(which)
    kernel = compiled(row.path, tuple(options), entry=row.entry, backend="simulator")
    return row.launch(Problem(1, n, n, d), options).shared_bytes + kernel.shared_size_bytes


def largest_dim(which: str, budget: int, options: Sequence[str] = (), step_of: int = 4) -> int:
    """The largest head dim, a multiple of step_of, at which a kernel's block fits a budget."""
    low, high = 0, 1 << 16
    while high - low > step_of:
        middle = (low + high) // 2 // step_of * step_of
        fits = shared_need(which, middle, options) <= budget
        low, high = (middle, high) if fits else (low, middle)
    return low


def budget_table(rows: Mapping[str, tuple[str, Sequence[str]]]) -> str:
    """The largest head dim of each kernel by architecture. rows: label -> (kernel, options)."""
    width = max(map(len, rows)) + 2
    lines = [
        " " * width
        + "".join(f"{f'{arch} {size // 1024} KB':>16}" for arch, size in BUDGETS.items())
    ]
    for label, (which, options) in rows.items():
        cells = (largest_dim(which, size, options) for size in BUDGETS.values())
        lines.append(label.ljust(width) + "".join(f"{cell:>16,}" for cell in cells))
    return "\n".join(lines)


def tile_fits(d: int) -> str:
    """Which of kernel 11's tiles for a head dim fit each architecture, and the blocks an SM holds.

    Blocks by shared memory and warps alone: registers depend on the compiler.
    """
    tiles = FLASH_TILES[next(limit for limit in FLASH_TILES if d <= limit)]
    lines = [f"{'rows x keys':<12}{'bytes':>9}" + "".join(f"{arch:>8}" for arch in BUDGETS)]
    for tile in tiles:
        options = tile_options(tile, 32 * ceil_div(d, 32))
        rows, keys = tile_extents(options)
        need = flash_shared_bytes(step("flash_fp32").constants(options))
        threads = 32 * tile[2] * tile[3]
        held = (
            occupancy(threads, 0, need, MULTIPROCESSORS[arch]).blocks if need <= size else None
            for arch, size in BUDGETS.items()
        )
        lines.append(
            f"{f'{rows} x {keys}':<12}{need:>9,}"
            + "".join(f"{'-' if blocks is None else blocks:>8}" for blocks in held)
        )
    return "\n".join(lines)


def placement_table(name: str, shapes, device: Device) -> str:
    """Blocks, busy multiprocessors and threads of a contestant's launches."""
    lines = [f"{'(B, H, L, D)':<18} {'blocks':>6}  {'SMs with a block':>16}  {'idle SMs':>8}"]
    for shape in shapes:
        at = placement(name, shape, device)
        lines.append(f"{shape!s:<18} {at.blocks:>6}  {at.busy_sms:>16}  {at.sms - at.busy_sms:>8}")
    return "\n".join(lines)


def registers_table(names: Sequence[str], arch: str = "sm_90") -> str:
    """Registers a thread that ptxas gives each contestant, without a GPU."""
    lines = [f"{'':<24} {'registers':>9}  {'warps an SM can hold':>20}"]
    for name in names:
        file, options = VARIANTS[name]
        found = compiled_registers(file, step(file).entry, options, arch)
        at = placement(name, (1, 4, 64, 512))
        held = occupancy(at.threads, found, at.shared_bytes)
        lines.append(f"{name:<24} {found:>9}  {held.blocks * held.warps_a_block:>20}")
    return "\n".join(lines)
