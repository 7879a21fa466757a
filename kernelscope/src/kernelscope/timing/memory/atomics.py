"""Atomics that wait for each other: on lines of L2, and in loops of ATOMS.CAS in shared memory."""

import numpy as np

from ...events import Access, InstructionEvent, MachineView
from ...watch.counters.traffic import starts_of
from .caches import LINE_SECTORS, SECTOR_BYTES

MOST_PARTS = 256  # until they are merged
SLICED_LINES = 8  # of two slices of L2, by turns
# Atomics that are done side by side: of as many sectors, or lines where lanes of a warp share an
# address, this power. On an H200 4 million lanes in turn on 1 to 264 lines took 3.1 ms to 78 us.
SIDE_BY_SIDE = 0.68
MOST_GROUPS = 16  # of neighbouring blocks whose reach is looked at
PLACES = 32  # of the words of shared memory, of which a warp's ATOMS.CAS has one for a lane
# Share of the updates of other warps, meanwhile, that make a lane try again; instructions from one
# such atomic to the next, beyond which warps that do more between meet less often.
MEETING, CLOSE = 0.5, 16
_MOST_WORDS = 1 << 40  # of shared memory: more than there are
SWAP_PASSES = 2  # of the memory pipe, for each 32 bits


class HotLines:
    """Atomics, or stores, of a launch that meet in L2. first_block: number of the chunk's first;
    group: so many blocks are neighbours; others that meet stand for all.

    What warps ask of a sector is done one after another: an operation, or more where lanes want one
    address. The lines of a stretch of memory go to two slices of L2 by turns, and a slice takes
    operation_ns for an operation; sums of floats on one sector wait float_ns for the one before.
    """

    def __init__(self, operation_ns: float, float_ns: float, group: int = 1):
        self.operation_ns, self.float_ns, self.group = operation_ns, float_ns, group
        self.first_block = 0
        # (sector, operations, of floats, of one lane each, first, last block)
        self._parts: list[np.ndarray] = []

    def add(self, lanes: np.ndarray, address: np.ndarray, block_lanes: int, floats: bool) -> None:
        """Accesses of one instruction. lanes: (lanes,) of the chunk; address: of each."""
        address, warp = address.astype(np.int64), lanes.astype(np.int64) // 32
        order = np.lexsort((address, warp))
        address, warp = address[order], warp[order]
        first = starts_of(address, warp)
        meeting = np.diff(first, append=address.size)
        sector, warp = address[first] // SECTOR_BYTES, warp[first]
        first = starts_of(sector, warp)
        operations = np.maximum.reduceat(meeting, first)
        block = self.first_block + 32 * warp[first] // block_lanes
        kinds = operations, operations * floats, operations == 1
        self._parts.append(np.stack([sector[first], *kinds, block, block]))
        if len(self._parts) > MOST_PARTS:
            self._parts = [self._merged()]

    def _merged(self) -> np.ndarray:
        sector, *sums, first, last = np.concatenate(self._parts, axis=1)
        order = np.argsort(sector, kind="stable")
        start = starts_of(sector[order])
        return np.stack(
            [
                sector[order][start],
                *(np.add.reduceat(one[order], start) for one in sums),
                np.minimum.reduceat(first[order], start),
                np.maximum.reduceat(last[order], start),
            ]
        )

    def most(self, scale: float, slices: int, together: float | None = None) -> tuple[float, float]:
        """Return (nanoseconds of the slice or sector that takes longest, stretches that each are in
        one slice of L2): (0, infinity) if there are none.

        scale: to all, of those that blocks share which are no neighbours; slices: of L2, over
        which the others are spread; together: share of the blocks that are under way at a time;
        they are taken to move on through memory, so that only these meet. None: leave this out.
        """
        if not self._parts:
            return 0.0, np.inf
        sector, operations, of_floats, single, first, last = self._merged()
        near = self.group if last.max() - first.min() >= self.group else 1
        meet = last - first >= near
        times = np.where(meet, scale, 1.0)
        line = sector // LINE_SECTORS
        stretch = (line - line.min()) // SLICED_LINES
        halves, at = np.unique(2 * stretch + line % 2, return_inverse=True)
        of_half = np.bincount(at, times * operations, len(halves))
        count = np.bincount(at, np.where(meet, 1.0, scale) / np.bincount(at)[at]).sum()
        hottest = of_half.max() + (of_half.sum() - of_half.max()) / slices
        in_turn = times * (self.operation_ns * operations)
        in_turn = np.where(of_floats > 0, times * (self.float_ns * of_floats), in_turn)
        passing = 0.0
        if together is not None:
            reach = _reach(sector, first, last, self.group, together)
            apart = np.clip([reach, reach / LINE_SECTORS], 1.0, None) ** SIDE_BY_SIDE
            own = np.array([single.sum(), (operations - single).sum()])
            passing = scale * max(
                self.operation_ns * (own / np.minimum(apart, slices)).sum(),
                self.float_ns * of_floats.sum() / apart[0],
            )
        return float(max(self.operation_ns * hottest, in_turn.max(), passing)), float(count)


def _reach(sector, first, last, group: int, together: float) -> float:
    """Return how far apart the sectors are, at most, that blocks touch at a time: a share of all,
    or what the blocks of a group touch that others touch before and after.

    sector, first, last: (sectors,) numbers, and of the blocks that touch them; infinite where one
    group was run alone.
    """
    starts = np.unique(first)
    starts = starts[np.diff(starts, prepend=-np.inf) >= group][:MOST_GROUPS]
    if starts.size < 2:
        return np.inf
    spans = []
    for start in starts:
        here = sector[(first < start + group) & (last >= start)]
        spans.append(np.ptp(here) + 1)
    return max(together * (np.ptp(sector) + 1), float(np.median(spans)))


class SharedSwaps:
    """Atomics on shared memory that are loops of a load, its new value and ATOMS.CAS.

    Of the lanes of a warp whose words have one place among PLACES one succeeds at a time. A minimum
    or a maximum is done without ATOMS.CAS where it changes nothing. What other warps of the block
    change meanwhile is tried again.
    """

    def __init__(self, machine: MachineView):
        self.machine = machine
        self._seen = np.zeros(machine.memory("shared").size, np.uint8)  # as atomics left it
        self._last = np.inf

    def count(self, event: InstructionEvent, access: Access, now: int = 0) -> tuple[float, float]:
        """Return (how often warps execute the ATOMS.CAS, passes of the memory pipe that these take,
        with what their loads take beyond one), summed over the warps.

        now: instructions of the launch so far, of warps in step.
        """
        meeting = MEETING * min(1.0, CLOSE / max(1.0, now - self._last))
        self._last = now
        kept = slice(None) if access.valid is None else access.valid
        lanes = access.lanes.astype(np.int64)[kept]
        own = lanes // (32 * self.machine.warps_per_block)
        block = own if access.block is None else access.block[kept]
        stride = self._seen.size // self.machine.block_count
        word = (block * stride + access.address.astype(np.int64)[kept]) // access.size
        changed = self._changed(word, access.size)
        if {"min", "max"} & {*event.instruction.opcode.split(".")}:
            lanes, word = lanes[changed], word[changed]
        if not word.size:
            return 0.0, 0.0
        warp = lanes // 32 - lanes[0] // 32
        rounds = _fullest_place(warp, word)
        distinct = _fullest_place(*np.divmod(np.unique(_of_warp(warp, word)), _MOST_WORDS))
        again = 1 + meeting * _meeting(warp, word) * np.count_nonzero(rounds) / rounds.sum()
        parts = max(1, access.size // 4)
        passes = SWAP_PASSES * rounds.sum() * again + (distinct * (distinct - 1) // 2).sum()
        return float(rounds.sum() * again), float(parts * passes)

    def _changed(self, word: np.ndarray, size: int) -> np.ndarray:
        """Numbers of the lanes, ascending, each the first one of a word that has changed since."""
        now, seen = (m.view(f"u{size}") for m in (self.machine.memory("shared"), self._seen))
        words, first = np.unique(word, return_index=True)
        changed = now[words] != seen[words]
        seen[words] = now[words]
        return np.sort(first[changed])


def _of_warp(warp: np.ndarray, word: np.ndarray) -> np.ndarray:
    """A number for each warp and word."""
    return warp * _MOST_WORDS + word


def _fullest_place(warp: np.ndarray, word: np.ndarray) -> np.ndarray:
    """(warps,) the most words of a warp that have one place."""
    found = np.bincount(PLACES * warp + word % PLACES, minlength=PLACES * (warp.max() + 1))
    return found.reshape(-1, PLACES).max(1)


def _meeting(warp: np.ndarray, word: np.ndarray) -> float:
    """Return how many lanes of other warps ask for a lane's word, on average."""
    _, of_all = np.unique(word, return_counts=True)
    _, of_warp = np.unique(_of_warp(warp, word), return_counts=True)
    return float((of_all**2).sum() - (of_warp**2).sum()) / word.size
