"""Blocks and warps of unequal work: how much later the last one is done than with the mean's.

Blocks start in the order of their numbers, each on the SM that first has room. Between those that
were run, a block is taken to have the work of the nearest. Of a block's warps, those behind a
barrier wait for the longest of those before it.
"""

import heapq
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..events import BarrierEvent, MachineView
from .executions import PtxCounts
from .machine_code import Segment

MOST_BLOCKS = 16384  # of more, unequal ones even out
_FAR_MORE = 4.0  # times the median of a segment's instructions
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
    """Instructions of each block of a chunk, from barrier to barrier those of the warp that has
    most.
    """

    def __init__(self, machine: MachineView):
        self._first, self._warps = machine.first_block, machine.warps_per_block
        self._before = np.zeros((machine.block_count, machine.warps_per_block), np.int64)
        self._sums = np.zeros(machine.block_count, np.int64)

    def meet(self, event: BarrierEvent, work: np.ndarray) -> None:
        """Blocks pass a barrier. work: (blocks, warps) of the chunk, instructions so far."""
        arrived = sum(lanes.size for _, lanes in event.arrivals)
        if arrived > 32 * (self._warps - 1) * len(event.blocks):  # of no part of a block's warps
            self._add(event.blocks - self._first, work)

    def end(self, work: np.ndarray) -> np.ndarray:
        """(blocks,) when all have ended."""
        self._add(slice(None), work)
        return self._sums

    def _add(self, blocks, work: np.ndarray) -> None:
        self._sums[blocks] += (work[blocks] - self._before[blocks]).max(1)
        self._before[blocks] = work[blocks]


def longest_warps(
    segments: tuple[Segment, ...],
    chain: tuple[dict[int, float], ...],
    counted: Iterable[PtxCounts],
) -> tuple[tuple[dict[int, float], ...], float]:
    """Return (the chain of the longest warps, the most instructions of a block's warp over the
    mean), by a warp's number in its block.

    chain: by segment, clocks of a mean warp by line. Between barriers it becomes that of the warp
    which takes longest there: each runs a segment as often as the PTX that it is made of.
    """
    of_warps = {one.origin: one.of_warps for one in counted if one.of_warps is not None}
    if not of_warps:
        return chain, 1.0
    everything = sum(of_warps.values())
    parts = _between_barriers(segments)
    times: defaultdict[int, float] = defaultdict(float)
    shares = [_share(segment, of_warps) for segment in segments]
    for by_line, share, part in zip(chain, shares, parts, strict=True):
        times[part] = times[part] + sum(by_line.values()) * share
    longest = {part: np.argmax(clocks) if np.ndim(clocks) else 0 for part, clocks in times.items()}
    found = []
    for by_line, share, part in zip(chain, shares, parts, strict=True):
        own = float(share[longest[part]]) if np.ndim(share) else share
        found.append({line: own * clocks for line, clocks in by_line.items()})
    return tuple(found), float(everything.max() / everything.mean())


def _share(segment: Segment, of_warps: dict[int, np.ndarray]) -> np.ndarray | float:
    """How often each warp runs a segment, over the mean. What is guarded is issued by all warps;
    what runs far more often than others, ptxas has moved out of a loop.
    """
    own = [
        of_warps[code.origin]
        for code in segment.code
        if code.origin in of_warps and not (code.guarded or code.called)
    ]
    most = _FAR_MORE * np.median([one.sum() for one in own]) if own else 0.0
    total = sum(one for one in own if one.sum() <= most)
    return total / total.mean() if np.any(total) else 1.0


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
