"""Tiles of kernel 11: what stays on chip, what travels, what a causal mask lets it skip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attn_course.ladder.problem import ceil_div
from attn_course.ladder.steps import step
from attn_course.ladder.tiles import flash_shared_bytes

from .runs import counts


@dataclass(frozen=True)
class TileTraffic:
    """One tile of kernel 11: rows and keys a block, bytes that stay on chip, bytes loaded."""

    rows: int
    keys: int
    resident_bytes: int
    shared_bytes: int
    loaded: int
    formula: int
    read: int


def tile_extents(options: Sequence[str]) -> tuple[int, int]:
    """Query rows and keys of a block of kernel 11 under these compiler options."""
    c = step("flash_fp32").constants(options)
    return 4 * c["ROWS"] * c["ROW_WARPS"], 8 * c["KEYS"] * c["KEY_WARPS"]


def loaded_bytes(n: int, m: int, d: int, rows: int) -> int:
    """Bytes that kernel 11 loads for one head: q once, k and v once for each tile of rows."""
    return 4 * (n * d + ceil_div(n, rows) * 2 * m * d)


def tile_traffic(q, k, v, options: Sequence[str]) -> TileTraffic:
    """Run kernel 11 with a tile and count what it loads. q (1, n, d), k and v (1, m, d)."""
    rows, keys = tile_extents(options)
    (_, n, d), m = q.shape, k.shape[1]
    totals = counts("flash_fp32", q, k, v, options=options)
    return TileTraffic(
        rows,
        keys,
        2 * 4 * rows * d,
        flash_shared_bytes(step("flash_fp32").constants(options)),
        32 * totals["global_load_sectors"],
        loaded_bytes(n, m, d, rows),
        totals["unique_global_bytes_read"],
    )


def traffic_table(found: Sequence[TileTraffic]) -> str:
    """A line for each tile."""
    lines = [
        f"{'rows':>4} {'keys':>4}  {'shared memory':>13}  {'loaded':>12}  {'formula':>12}"
        f"  {'distinct':>9}"
    ]
    for one in found:
        lines.append(
            f"{one.rows:>4} {one.keys:>4}  {one.shared_bytes:>13,}  {one.loaded:>12,}  "
            f"{one.formula:>12,}  {one.read:>9,}"
        )
    return "\n".join(lines)


def visited(reads_of_k: np.ndarray, n: int, rows: int, keys: int) -> np.ndarray:
    """(row tiles, key tiles) bool: which tiles were computed, from reads of k (m, d).

    Row tiles skip from the right: a key tile that r of R row tiles have read was read by the last.
    """
    tiles, times = ceil_div(n, rows), reads_of_k[::keys, 0]
    return np.arange(tiles)[:, None] >= tiles - times[None, :]
