"""What traces say of the running maximum m and sum l, block of keys by block of keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np


def key_blocks(trace) -> list[dict]:
    """What a trace of kernel 09 says of each block of keys.

    One dict a block: key0, scores (keys,), old_m and new_m, rescale, old_l and row_l, all under
    the kernel's names, and o (d,), the undivided output after it.
    """
    recording = trace.recording
    starts = [(at, value) for at, value in recording.history("key0")]
    found, old_m, old_l = [], -np.inf, 0.0
    for (begin, key0), (end, _) in zip(starts, starts[1:], strict=False):
        here = {name: _last(recording, name, begin, end) for name in ("new_m", "rescale", "row_l")}
        shared = recording.shared_at(end)
        count = int(_last(recording, "count", begin, end))
        found.append(
            {
                "key0": int(key0),
                "scores": np.asarray(shared["score"])[:count],
                "old_m": old_m,
                "old_l": old_l,
                **here,
                "o": np.asarray(shared["o"]),
            }
        )
        old_m, old_l = here["new_m"], here["row_l"]
    return found


def block_table(blocks: Sequence[Mapping]) -> str:
    """A line for each block of keys of :func:`key_blocks`."""
    lines = [
        f"{'keys':>7}  {'scores':<18} {'row_m':>6}  {'rescale':>8}  {'row_l before':>12}"
        f"  {'row_l after':>11}"
    ]
    for block in blocks:
        keys = f"{block['key0']}-{block['key0'] + len(block['scores']) - 1}"
        scores = " ".join(f"{score:g}" for score in block["scores"])
        lines.append(
            f"{keys:>7}  {scores:<18} {block['new_m']:>6g}  {block['rescale']:>8.4f}  "
            f"{block['old_l']:>12.4f}  {block['row_l']:>11.4f}"
        )
    return "\n".join(lines)


def row_states(trace, row: int) -> list[dict]:
    """What a trace of kernel 11 with ROWS = 1 says of one row, tile by tile.

    One dict a tile: key0, new_m (row_m after the tile), rescale (the factor exp(old - new) between
    two of these), and row_l (8,), the parts of the sum that the row's eight lanes have; they are
    joined at the end.
    """
    recording = trace.recording
    lanes = [lane for lane in range(32) if recording.history("ty", lane)[0][1] == row]
    starts = recording.history("key0", lanes[0])
    found, old_m = [], -np.inf
    for (_, key0), (end, _) in zip(starts, starts[1:], strict=False):
        here = recording.variables_at(end)
        new_m = float(np.ravel(here["row_m"])[lanes[0]])
        found.append(
            {
                "key0": int(key0),
                "new_m": new_m,
                "rescale": float(np.exp(old_m - new_m)),
                "row_l": np.ravel(here["row_l"])[lanes],
            }
        )
        old_m = new_m
    return found


def _last(recording, name: str, begin: int, end: int, thread: int = 0) -> float:
    """The value that a variable of a thread was last given between two steps."""
    values = [value for at, value in recording.history(name, thread) if begin <= at < end]
    return float(np.ravel(values[-1])[0])
