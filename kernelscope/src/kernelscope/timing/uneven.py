"""Blocks of unequal work: how much later the last one is done than if all had the mean's.

Blocks start in the order of their numbers, each on the SM that first has room. Between those that
were run, a block is taken to have the work of the nearest.
"""

import heapq
from dataclasses import dataclass

import numpy as np

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
