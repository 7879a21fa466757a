"""Blocks and warps of unequal work: how much later the last one is done than with the mean's.

Blocks start in the order of their numbers, each on the SM that first has room. Between those that
were run, a block is taken to have the work of the nearest. Of a block's warps, those behind a
barrier wait for the longest of those before it.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

import numpy as np

from ...events import BarrierEvent, MachineView
from ..executions import PtxCounts
from ..machine_code import Segment

MOST_BLOCKS = 16384  # of more, unequal ones even out
_FAR_MORE = 4.0  # times the median of a segment's instructions
MOST_WAITING = 256  # groups of warps of which instructions are counted later
_OF_CHUNK = ("_first", "_shape", "_work", "_before", "_since", "_new")  # of LongestWarps
LEAST = 0.02  # standard deviation over mean: below, all are taken as equal


@dataclass(frozen=True)
class Unevenness:
    """Times over those of equal blocks. busy: where the blocks of an SM share its units; chain:
    where each takes as long as it does alone.
    """

    busy: float = 1.0
    chain: float = 1.0


def unevenness(
    numbers: np.ndarray, sums: np.ndarray, longest: np.ndarray, blocks: int, sms: int, resident: int
) -> Unevenness:
    """Return the unevenness of a grid.

    numbers: of the blocks that ran, ascending; sums, longest: work of each, of all of its warps and
    of the longest; blocks: of the grid; resident: of an SM, at a time.
    """
    if (
        blocks > MOST_BLOCKS
        or max(sums.std() / sums.mean(), longest.std() / longest.mean()) < LEAST
    ):
        return Unevenness()
    after = np.clip(np.searchsorted(numbers, np.arange(blocks)), 1, max(len(numbers) - 1, 1))
    before = after - 1
    after = np.minimum(after, len(numbers) - 1)
    nearer = np.arange(blocks) - numbers[before] <= numbers[after] - np.arange(blocks)
    nearest = np.where(nearer, before, after)
    most = -(-blocks // sms)
    rounds = -(-most // resident)
    shared = _shared_end((sums / sums.mean())[nearest], sms, resident)
    alone = _alone_end((longest / longest.mean())[nearest], sms * resident)
    return Unevenness(max(1.0, shared / most), max(1.0, alone / rounds))


def _alone_end(work: np.ndarray, places: int) -> float:
    """When the last block is done, if each takes its work."""
    ends = list(map(float, work[:places]))
    heapq.heapify(ends)
    last = max(ends)
    for one in work[places:]:
        end = ends[0] + float(one)
        heapq.heapreplace(ends, end)
        last = max(last, end)
    return last


def _shared_end(work: np.ndarray, sms: int, resident: int) -> float:
    """When the last block is done, if those of an SM get equal shares of it."""
    count = len(work)
    waiting = iter(range(min(count, sms * resident), count))
    served = [0.0] * sms  # work that each block of an SM has had
    goals = [[float(w) for w in work[sm : sms * resident : sms]] for sm in range(sms)]
    events = []
    for sm, own in enumerate(goals):
        heapq.heapify(own)
        if own:
            heapq.heappush(events, (own[0] * len(own), sm))
    now = 0.0
    while events:
        now, sm = heapq.heappop(events)
        own = goals[sm]
        served[sm] = heapq.heappop(own)
        following = next(waiting, None)
        if following is not None:
            heapq.heappush(own, served[sm] + float(work[following]))
        if own:
            heapq.heappush(events, (now + (own[0] - served[sm]) * len(own), sm))
    return now


# -- warps ----------------------------------------------------------------------------------------
class LongestWarps:
    """How often the warps of some blocks run each instruction, and those warps among them that have
    most instructions between two barriers: the others wait for these. Without those instructions
    that all warps run together. warps: of a block.
    """

    def __init__(self, warps: int):
        self._row: dict[int, int] = {}  # of an instruction, by its id
        self._of_warps, self._none = np.zeros((0, warps), np.int64), np.zeros(warps, np.int64)
        self._of_longest = np.zeros(0, np.int64)

    def shares(self, instruction: int, ran: int) -> tuple[np.ndarray, int]:
        """Return ((warps,) executions of an instruction, those by the longest warps), both summed
        over blocks. ran: the executions by all warps, those together too.
        """
        row = self._row.get(instruction)
        of_warps, longest = self._none, 0
        if row is not None:
            of_warps, longest = self._of_warps[row], int(self._of_longest[row])
            ran -= int(of_warps.sum())
        by_all = ran // of_warps.size  # by all warps together
        return of_warps + by_all, longest + by_all

    def begin(self, machine: MachineView) -> None:
        """A chunk of blocks."""
        self._first, self._shape = machine.first_block, (machine.block_count, -1)
        total = machine.block_count * machine.warps_per_block
        self._work = np.zeros(total, np.int64)
        self._before = np.zeros((machine.block_count, machine.warps_per_block), np.int64)
        self._since = np.zeros((len(self._of_longest), *self._before.shape), np.int64)  # the last
        self._new: set[int] = set()  # rows
        self._waiting: dict[int, tuple[np.ndarray, Counter[int]]] = {}
        self._last, self._ran = None, Counter()

    def chunk(self) -> dict:
        """Return what is of the chunk alone, for resume()."""
        self._add_waiting()
        return {name: self.__dict__[name] for name in _OF_CHUNK}

    def resume(self, chunk: dict) -> None:
        """A chunk that others came between."""
        self.__dict__.update(chunk)
        more = len(self._of_longest) - len(self._since)
        new = np.zeros((more, *self._before.shape), np.int64)
        self._since = np.concatenate([self._since, new])

    def ran(self, instruction: int, warps: np.ndarray) -> None:
        """Some warps, each once, have run an instruction."""
        if warps is not self._last:
            if len(self._waiting) >= MOST_WAITING:
                self._add_waiting()
            self._last, self._ran = self._waiting.setdefault(id(warps), (warps, Counter()))
        self._ran[instruction] += 1

    def work(self) -> np.ndarray:
        """(blocks, warps) instructions so far."""
        self._add_waiting()
        return self._work.reshape(self._shape)

    def meet(self, event: BarrierEvent, work: np.ndarray) -> None:
        """Blocks pass a barrier. work: (blocks, warps) of the chunk, instructions so far."""
        blocks = event.blocks - self._first
        running = event.machine.alive.reshape(self._shape)[blocks].sum()
        if sum(lanes.size for _, lanes in event.arrivals) > running - 32:  # no warp is missing
            self._add(blocks, work)
            if len(event.blocks) == len(work):
                self._new.clear()

    def end(self, work: np.ndarray) -> None:
        """All have ended."""
        self._add(np.arange(len(work)), work)

    def _add(self, blocks: np.ndarray, work: np.ndarray) -> None:
        self._add_waiting()
        before, self._before[blocks] = self._before[blocks], work[blocks]
        if not self._new:
            return
        longest = (work[blocks] - before).argmax(1)
        rows = np.array(sorted(self._new), np.int64)
        since = self._since[rows]
        own = since[:, blocks]
        self._of_longest[rows] += own[:, np.arange(len(blocks)), longest].sum(1)
        self._of_warps[rows] += own.sum(1)
        since[:, blocks] = 0
        self._since[rows] = since

    def _add_waiting(self) -> None:
        """Count what the same warps have run, one instruction after another."""
        for warps, ran in self._waiting.values():
            self._work[warps] += ran.total()
            rows = [self._row.setdefault(one, len(self._row)) for one in ran]
            self._make_room()
            since = self._since.reshape(len(self._since), self._work.size)
            since[np.array(rows)[:, None], warps] += np.array([*ran.values()])[:, None]
            self._new.update(rows)
        self._waiting.clear()
        self._last = None

    def _make_room(self) -> None:
        """For instructions that had none."""
        more = len(self._row) - len(self._of_longest)
        if more > 0:
            more += len(self._row)  # for those that follow
            self._of_longest = np.append(self._of_longest, np.zeros(more, np.int64))
            self._of_warps, self._since = (
                np.concatenate([of_rows, np.zeros((more, *of_rows.shape[1:]), np.int64)])
                for of_rows in (self._of_warps, self._since)
            )


class WarpShares:
    """How often each warp of a block runs each segment: as often as the PTX that it is made of.

    counted: the kernel's PTX instructions; without executions by each warp all warps are alike.
    """

    def __init__(self, segments: tuple[Segment, ...], counted: Iterable[PtxCounts]):
        known = [*{one.origin: one for one in counted if one.of_warps is not None}.values()]
        self._rows = {one.origin: row for row, one in enumerate(known)}
        if not known:
            return
        self._of_warps = np.array([one.of_warps for one in known])
        self._of_longest = [one.of_longest for one in known]
        self._totals = self._of_warps.sum(1).tolist()
        self._of_segments = [self._share(segment) for segment in segments]
        self._parts = _between_barriers(segments)

    def longest(
        self, chain: tuple[dict[int, float], ...]
    ) -> tuple[tuple[dict[int, float], ...], float]:
        """Return (the chain of the longest warps, the most instructions of a block's warp over the
        mean), by a warp's number in its block.

        chain: by segment, clocks of a mean warp by line. Between barriers it becomes that of the
        warp which takes longest there, or of those that are the longest in turns, if that is more.
        """
        if not self._rows:
            return chain, 1.0
        everything = self._of_warps.sum(0)
        times: defaultdict[int, float] = defaultdict(float)
        in_turns: defaultdict[int, float] = defaultdict(float)
        for by_line, (share, turns), part in zip(
            chain, self._of_segments, self._parts, strict=True
        ):
            clocks = sum(by_line.values())
            times[part] = times[part] + clocks * share
            in_turns[part] += clocks * turns
        found, most = [], everything.max()
        of_longest = sum(self._of_longest)
        for by_line, (share, turns), part in zip(
            chain, self._of_segments, self._parts, strict=True
        ):
            own = float(share[np.argmax(times[part])]) if np.ndim(share) else share
            if in_turns[part] > np.max(times[part]):
                own, most = turns, max(most, of_longest)
            found.append({line: own * clocks for line, clocks in by_line.items()})
        return tuple(found), float(most / everything.mean())

    def _share(self, segment: Segment) -> tuple[np.ndarray | float, float]:
        """(how often each warp runs a segment, how often those that are the longest in turns do),
        over the mean. What is guarded is issued by all warps; what runs far more often than others,
        ptxas has moved out of a loop.
        """
        own = [
            self._rows[code.origin]
            for code in segment.code
            if code.origin in self._rows and not (code.guarded or code.called)
        ]
        if not own:
            return 1.0, 1.0
        most = _FAR_MORE * median(self._totals[row] for row in own)
        own = [row for row in own if self._totals[row] <= most]
        total = self._of_warps[own].sum(0)
        if not total.any():
            return 1.0, 1.0
        return total / total.mean(), float(sum(self._of_longest[row] for row in own) / total.mean())


def _between_barriers(segments: tuple[Segment, ...]) -> list[int]:
    """A number for each segment, one for those that are connected without a barrier between."""
    above = list(range(len(segments)))

    def top(at: int) -> int:
        while above[at] != at:
            above[at] = at = above[above[at]]
        return at

    for at, segment in enumerate(segments):
        if segment.code and segment.code[-1].name != "BAR":
            for to in segment.follows:
                above[top(at)] = top(to)
    return [top(at) for at in range(len(segments))]
