"""The addresses of one warp's loads and stores, and the cache lines that a launch looks up.

`Footprints` keeps addresses for pictures of sectors and banks. `LineLookups` counts the work of L1
for global memory: it looks up one 128-byte line at a time, so a request that touches 32 lines
takes 32 turns, like a shared request with 32 wavefronts.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
from kernelscope.events import InstructionEvent, Launch, Observer

from ..errors import UnknownNameError
from .counters.merging import merges_of
from .counters.patterns import Pattern
from .counters.traffic import BANKS, LINE_BYTES, SECTOR_BYTES, WORD_BYTES, Lanes


@dataclass(frozen=True)
class Footprint:
    """One memory instruction of one warp.

    line: source line; space: "global" or "shared"; kind: "load" or "store"; lanes: (lanes,) places
    in the warp; address: (lanes,) byte addresses in the space; size: bytes a lane, of a merged
    shared load those of the joined one.
    """

    line: int
    space: str
    kind: str
    lanes: np.ndarray
    address: np.ndarray
    size: int

    @property
    def is_broadcast(self) -> bool:
        """Do all lanes access the same address?"""
        return bool((self.address == self.address[0]).all())

    @property
    def bytes_asked(self) -> int:
        """Number of distinct bytes that the lanes access."""
        offsets = np.arange(self.size)
        return np.unique(self.address[:, None].astype(np.int64) + offsets).size

    def units(self, width: int) -> np.ndarray:
        """Return the sorted numbers of the aligned `width`-byte units that the lanes touch."""
        offsets = np.arange(0, self.size, min(self.size, WORD_BYTES))
        return np.unique((self.address[:, None].astype(np.int64) + offsets) // width)

    @property
    def sectors(self) -> np.ndarray:
        """Numbers of the sectors touched: byte address / 32."""
        return self.units(SECTOR_BYTES)

    @property
    def words(self) -> np.ndarray:
        """Numbers of the 4-byte words touched; a word's bank is its remainder by 32."""
        return self.units(WORD_BYTES)

    def bank_load(self) -> np.ndarray:
        """Return (32,) distinct words that the lanes access in each bank."""
        return np.bincount(self.words % BANKS, minlength=BANKS)

    def by_sector(self, start: int, shape: tuple[int, int]) -> np.ndarray:
        """Return (rows, sectors) bytes accessed in each sector of an array.

        start: the array's address, at the beginning of a sector.  shape: its rows, and the bytes
        of a row, whole sectors. Bytes outside are left out.
        """
        offsets = np.arange(self.size)
        asked = np.unique(self.address[:, None].astype(np.int64) + offsets) - start
        rows, row_bytes = shape
        asked = asked[(asked >= 0) & (asked < rows * row_bytes)]
        found = np.bincount(asked // SECTOR_BYTES, minlength=rows * row_bytes // SECTOR_BYTES)
        return found.reshape(rows, row_bytes // SECTOR_BYTES)

    def first(self, count: int) -> Footprint:
        """Return the same access by only the lanes in the first `count` places of the warp."""
        keep = self.lanes < count
        return Footprint(
            self.line, self.space, self.kind, self.lanes[keep], self.address[keep], self.size
        )


class Footprints(Observer):
    """Keeps the first time that each instruction of one warp goes to memory.

    with observe(Footprints(block=0, warp=0)) as seen:
        kernel(grid, block, args)
    seen.of(56, "global")      # the Footprint of line 56's global access

    block: linear number of the block; warp: place in the block.
    """

    def __init__(self, block: int = 0, warp: int = 0):
        super().__init__()
        self.block, self.warp = block, warp
        self.found: list[Footprint] = []
        self.arrays: dict[str, int] = {}  # name of an array argument -> its address
        self._seen: set[int] = set()
        self._merges: dict = {}

    def launch_started(self, launch: Launch) -> None:
        self._merges = merges_of(launch)
        self.arrays = {b.name: b.start for b in launch.buffers if b.space == "global"}
        self._seen.clear()

    def of(self, line: int, space: str, kind: str = "load") -> Footprint:
        """Return the first access of a line that is no broadcast; else the first.

        Raises:
            KeyError: the warp made no such access; the message lists its accesses.
        """
        here = [f for f in self.found if (f.line, f.space, f.kind) == (line, space, kind)]
        if here:
            return next((one for one in here if not one.is_broadcast), here[0])
        made = sorted({(one.line, one.space, one.kind) for one in self.found})
        raise UnknownNameError(f"no {space} {kind} on line {line}; there are: {made}")

    def concerns(self, instruction) -> bool:
        return False

    def instruction(self, event: InstructionEvent) -> None:
        key = id(event.instruction)
        if not event.accesses or key in self._seen:
            return
        first = event.machine.lane_of(self.block, self.warp)
        for access in event.accesses:
            mine = (access.lanes >= first) & (access.lanes < first + 32)
            if access.valid is not None:
                mine &= access.valid
            if access.space in ("global", "shared") and mine.any():
                self._seen.add(key)
                self._keep(event, access, mine, first)

    def _keep(self, event: InstructionEvent, access, mine: np.ndarray, first: int) -> None:
        address = np.broadcast_to(access.address, access.lanes.shape)[mine].astype(np.int64)
        size, merge = access.size, None
        if access.space == "shared" and access.kind == "load":
            if id(event.instruction) in self._merges:
                merge = self._merges[id(event.instruction)]
                if merge is None:  # part of another load
                    return
        if merge is not None:
            address, size = address + merge.start, merge.size
        lanes = access.lanes[mine] - first
        self.found.append(Footprint(event.line, access.space, access.kind, lanes, address, size))


class LineLookups(Observer):
    """Counts the distinct 128-byte lines of every global request and adds them up.

    with observe(LineLookups()) as lookups:
        kernel(grid, block, args)
    lookups.total; lookups.by_line[56]
    """

    def __init__(self):
        super().__init__()
        self.by_line: Counter[int] = Counter()
        self._patterns: dict[int, tuple[object, Pattern]] = {}  # by id of the instruction

    @property
    def total(self) -> int:
        return sum(self.by_line.values())

    def concerns(self, instruction) -> bool:
        return False

    def instruction(self, event: InstructionEvent) -> None:
        for access in event.accesses:
            if access.space != "global" or not access.lanes.size:
                continue
            address, lanes = np.broadcast_to(access.address, access.lanes.shape), access.lanes
            if access.valid is not None:
                address, lanes = address[access.valid], lanes[access.valid]
            if lanes.size:
                pattern, delta = self._pattern(event.instruction, lanes, address)
                self.by_line[event.line] += pattern.pieces(delta, LINE_BYTES)

    def _pattern(self, instruction, lanes: np.ndarray, address: np.ndarray) -> tuple[Pattern, int]:
        """Return the pattern of an access, and by how many bytes it is moved along."""
        _, pattern = self._patterns.get(id(instruction), (None, None))
        delta = pattern.delta(lanes, address) if pattern is not None else None
        if delta is None:
            pattern, delta = Pattern(Lanes(lanes), address), 0
            self._patterns[id(instruction)] = instruction, pattern
        return pattern, delta
