"""What is known of an access besides its addresses: its lanes, its time, its instruction."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..traits import InstructionTraits
from ..unset.copies import Copies
from .ordering import ChunkOrder


@dataclass(frozen=True)
class LaneStamps:
    """The lanes of an event: counted through the chunk, and as stamps of the whole grid."""

    lane: np.ndarray  # (n,) int64
    bits: np.ndarray  # (n,) int64, lane through the grid << 1
    holder: np.ndarray | None = None  # (n,) the block whose shared memory it is; None: its own


@dataclass(slots=True)
class Context:
    """Properties of the event of an access: line, time, chunk order and stored values."""

    line: int
    time: int
    order: ChunkOrder
    lanes: LaneStamps
    strong: bool
    traits: InstructionTraits
    values: Callable  # () -> (lanes, bytes) uint8 that a store wrote, or None
    copies: Copies
