"""Swin windows that shift: a bias by the offset of two tokens, and a mask between regions."""

from __future__ import annotations

import numpy as np

from attn_course.reference.inputs import WINDOW


def relative_position_bias(heads: int, seed: int = 0) -> np.ndarray:
    """(heads, 196, 196) float32 bias by the offset between two tokens of a window, from a table.

    Swin transformers (Liu et al., arXiv:2103.14030) learn a table of 27 x 27 offsets a head; this
    one is a seeded slope that falls with distance, steeper from head to head.
    """
    rng = np.random.default_rng(seed)
    row, column = np.divmod(np.arange(WINDOW * WINDOW), WINDOW)
    down, across = row[:, None] - row[None, :], column[:, None] - column[None, :]
    slope = np.linspace(0.05, 0.6, heads)[:, None, None]
    table = -slope * np.hypot(*np.mgrid[-WINDOW + 1 : WINDOW, -WINDOW + 1 : WINDOW])
    table = table + 0.1 * rng.standard_normal(table.shape)
    chosen = table[:, down + WINDOW - 1, across + WINDOW - 1]
    return np.ascontiguousarray(chosen, dtype=np.float32)


def shifted_regions(shift: int = WINDOW // 2) -> np.ndarray:
    """(14, 14) region numbers of the last window after a cyclic shift: only alike may meet."""
    side = (np.arange(WINDOW) >= WINDOW - shift).astype(int)
    return 2 * side[:, None] + side[None, :]


def shift_mask(regions: np.ndarray) -> np.ndarray:
    """(196, 196) float32, 0 where two tokens are of one region and -inf elsewhere."""
    flat = regions.reshape(-1)
    return np.where(flat[:, None] == flat[None, :], 0.0, -np.inf).astype(np.float32)
