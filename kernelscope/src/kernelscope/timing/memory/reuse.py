"""What a launch reads and writes again, from the pieces of memory that its blocks have touched."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..gpus import GpuConstants
from .caches import PIECE_BYTES, SectorStreams
from .stores import Stores, refilled_bytes
from .traffic import Reuse, kept_bytes, reused_bytes

ANY_TIME = 0.2  # of a block, as a standard difference: of two times without an order it is 0.41
EVEN = 2.0  # times that chance: below, what is more comes from pieces that many blocks load


@dataclass(frozen=True)
class Grid:
    """How a launch's blocks run. scale: all of them over those that were run; resident: on all SMs
    at a time.
    """

    blocks: int
    scale: float
    resident: int


def reuse_of(
    gpu: GpuConstants,
    pieces: list[list[tuple[int, int, int, int]]],
    streams: SectorStreams,
    stores: Stores,
    grid: Grid,
) -> Reuse:
    """Return what a launch reads and writes, but for its atomics and the stores that meet.

    pieces: as bytes_of_buffers takes them; streams, stores: of some blocks.
    """
    (read, lone), (written, lone_written) = bytes_of_buffers(gpu, pieces, grid.scale)
    stretches = [buffer[:2] for buffer in pieces[0]]
    as_run = PIECE_BYTES * np.array([buffer[2] for buffer in pieces[0]], np.float64)
    touched = np.where(streams.common(stretches), as_run, read + lone)
    both = written + lone_written
    others = lone_written + (touched if touched.size == both.size else 0.0)
    written, lone_read, lone_written = (float(each.sum()) for each in (written, lone, lone_written))
    again, refilled, rounds = 0.0, 0.0, max(1.0, grid.blocks / grid.resident)
    if read.sum() + written + lone_read + lone_written > kept_bytes(gpu):
        in_part = stores.in_part([first for first, *_ in pieces[1]])
        at_a_time = min(grid.blocks, grid.resident)
        refilled = refilled_bytes(gpu, in_part, both, others, grid.blocks, at_a_time)
    if read.sum() + written + lone_read > kept_bytes(gpu) and read.size:
        shared = streams.shared(stretches)
        read, again = shared_by_blocks(gpu, read, lone, written, shared, grid.blocks, rounds)
    return Reuse(
        read.sum() * (1 - streams.own_share),
        written,
        lone_read=lone_read,
        lone_written=lone_written,
        again=again,
        refilled=refilled,
        of_buffers=tuple((read + lone).tolist()),
        touched=tuple(touched.tolist()),
    )


def bytes_of_buffers(
    gpu: GpuConstants, pieces: list[list[tuple[int, int, int, int]]], scale: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return ((buffers,) bytes near each other, of pieces by themselves), read and written.

    pieces: of what is read and written, [(first byte, bytes, pieces touched, of them by
    themselves), ...] of each buffer; scale: to all blocks, which touch no more of a buffer than it
    has. By itself is no piece that others touch before L2 loses it.
    """
    piece, found = scale * PIECE_BYTES, []
    moved = sum(min(piece * n, size) for part in pieces for _, size, n, _ in part)
    kept = min(1.0, reused_bytes(gpu) / max(moved, 1.0))
    for part in pieces:
        _, sizes, counts, lone = np.array(part, np.float64).reshape(-1, 4).T
        lone = np.where(piece * lone * kept < sizes, lone, 0.0)
        found.append((np.minimum(piece * (counts - lone), sizes), piece * lone))
    return found


def alone_in_buffers(
    buffers: dict[int, int], read: Sequence[float], touched: dict[int, float]
) -> dict[int, float]:
    """Return instruction key -> of what all blocks touch first of its buffer, the share that no
    other block has.

    buffers: key -> number of its buffer; read: distinct bytes read of each; touched: key -> bytes
    that blocks touch first, each for itself.
    """
    of_buffer: Counter[int] = Counter()
    for key, size in touched.items():
        if key in buffers:
            of_buffer[buffers[key]] += size
    return {
        key: min(1.0, read[buffers[key]] / of_buffer[buffers[key]])
        for key in touched
        if key in buffers and of_buffer[buffers[key]]
    }


def shared_by_blocks(
    gpu: GpuConstants,
    read: np.ndarray,
    lone: np.ndarray,
    written: float,
    shared: list[tuple[float, float, float, float]],
    blocks: int,
    rounds: float,
) -> tuple[np.ndarray, float]:
    """Return ((buffers,) distinct bytes read, bytes that blocks load when L2 has lost them since
    others did).

    read, lone: (buffers,) bytes, the former at most; shared: of each buffer, as
    SectorStreams.shared. Blocks that load a piece at one time of theirs find what the others of
    their round do; where the times have no order, one touch of a piece comes as long after another
    as any, but not longer than the blocks take that lie between.
    """
    loaded, chance, apart, reach = np.array(shared).T
    anywhere = loaded / np.maximum(read, 1.0)  # the chance if all pieces have the same
    chance = np.where(chance < EVEN * anywhere, np.minimum(chance, anywhere), chance)
    loads, meeting = blocks * loaded, chance * (blocks - 1)
    alone = np.where(meeting > 0, -np.expm1(-meeting) / np.maximum(meeting, 1e-9), 1.0)
    read = read - np.maximum(0.0, np.minimum(read, loads) - alone * loads)
    others = np.minimum(meeting, np.maximum(0.0, loads / np.maximum(read, 1.0) - 1))
    others = np.where(apart > ANY_TIME, others, np.minimum(others, max(rounds - 1, 0.0)))
    between = written / (1 + others)  # bytes that come in between two touches of a piece
    between += (read * np.minimum(1.0, (1 + others) / (1 + others[:, None]))).sum(1)
    between = np.minimum(between, np.minimum(1.0, reach / blocks) * (written + loads.sum()))
    missed = np.maximum(0.0, 1 - kept_bytes(gpu) / np.maximum(between, 1.0))
    again = missed * np.maximum(0.0, (1 + others) * read - lone) - read
    return read, float(np.maximum(0.0, again).sum())
