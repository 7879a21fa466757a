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

from .executions import KINDS, PtxCounts
from .machine_code import Segment

MOST_BLOCKS = 16384  # of more, unequal ones even out
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
def longest_warps(
    segments: tuple[Segment, ...],
    chain: tuple[dict[int, float], ...],
    counted: Iterable[PtxCounts],
) -> tuple[tuple[dict[int, float], ...], float]:
    """Return (the chain of the longest warps, the most instructions of a block's warp over the
    mean), by a warp's number in its block.

    chain: by segment, clocks of a mean warp by line. Between barriers it becomes that of the warp
    which takes longest there: a segment runs as often as the PTX that has its loads, products and
    so on, or its lines.
    """
    of_kind: defaultdict[tuple[int, str], float] = defaultdict(float)
    of_line: defaultdict[int, float] = defaultdict(float)
    for one in counted:
        if one.of_warps is not None:
            of_line[one.line] = of_line[one.line] + one.of_warps
            if one.kind and not one.merged:
                of_kind[one.line, one.kind] = of_kind[one.line, one.kind] + one.of_warps
    if not of_line:
        return chain, 1.0
    everything = sum(of_line.values())
    shares = [_shares(segment, of_kind) for segment in segments]
    times: defaultdict[int, float] = defaultdict(float)
    parts = _between_barriers(segments)
    scaled = []
    for by_line, share, part in zip(chain, shares, parts, strict=True):
        scaled.append({})
        for line, clocks in by_line.items():
            own = share if share is not None else _over_mean(of_line.get(line))
            scaled[-1][line] = clocks * own
            times[part] = times[part] + clocks * own
    longest = {part: np.argmax(clocks) if np.ndim(clocks) else 0 for part, clocks in times.items()}
    found = tuple(
        {
            line: float(clocks[longest[part]]) if np.ndim(clocks) else float(clocks)
            for line, clocks in by_line.items()
        }
        for by_line, part in zip(scaled, parts, strict=True)
    )
    return found, float(everything.max() / everything.mean())


def _over_mean(of_warps) -> np.ndarray | float:
    if of_warps is None or not np.any(of_warps):
        return 1.0
    return of_warps / of_warps.mean()


def _shares(segment: Segment, of_kind: dict) -> np.ndarray | float | None:
    """How often each warp runs a segment, over the mean; None: nothing in it tells.

    What is guarded is issued by all warps.
    """
    known = [c for c in segment.code if (c.line, KINDS.get(c.name, "")) in of_kind]
    if not known:
        return None
    free = {(c.line, KINDS[c.name]) for c in known if not c.guarded}
    return _over_mean(sum(of_kind[key] for key in free)) if free else 1.0


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
