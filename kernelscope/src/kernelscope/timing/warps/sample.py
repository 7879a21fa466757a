"""Which blocks of a large grid are run, and stand for all."""

import itertools
from bisect import bisect
from functools import lru_cache

import numpy as np

GROUPS = 16  # of neighbouring blocks
MORE = 4  # times as many where their work differs
GOLDEN = (0.754878, 0.569840)  # multiples of both are spread evenly over a square
MOST_PLACES = 1 << 10  # of a group, of which one is chosen


def sampled_blocks(row: int, total: int, x: int, most: int) -> tuple[range, ...]:
    """Return groups of blocks, about `most` in the first GROUPS of them, then those of MORE.

    row: blocks of a row of the grid; total: of the grid; x: of a cluster.
    """
    size = max(1, most // GROUPS // x)  # of a group, in clusters
    groups = max(1, min(GROUPS, most // (size * x)))
    chosen = list(_spread_blocks(row, total, x, size, groups))
    if groups == GROUPS and total > MORE * most:
        taken = sorted(chosen, key=lambda part: part.start)
        for part in _spread_blocks(row, total, x, size, (MORE - 1) * GROUPS):
            at = bisect(taken, part.start, key=lambda one: one.start)
            near = taken[max(at - 1, 0) : at + 1]
            if all(part.stop <= one.start or one.stop <= part.start for one in near):
                chosen.append(part)
    return tuple(chosen)


@lru_cache(maxsize=64)
def _spread_blocks(row: int, total: int, x: int, size: int, groups: int) -> tuple[range, ...]:
    """Groups of `size` clusters of x blocks, one in each of so many equal parts of a grid of
    `total` blocks, each at another place of its part and of its row. Any few lie far apart.
    """
    edges = np.linspace(0, total // x, groups + 1).astype(int)
    starts = {}
    for number, (first, end) in enumerate(itertools.pairwise(edges)):
        places = np.arange(first, max(end - size, first) + 1)
        places = places[np.linspace(0, len(places) - 1, MOST_PLACES).astype(int)]
        of_row, of_part = (np.array(GOLDEN) * number + 0.5) % 1
        far = abs(np.linspace(0, 1, len(places)) - of_part)  # an image may end with each part
        if (end - first) * x > row:
            far += abs(places * x % row / row - of_row)
        starts[number] = x * int(places[far.argmin()])
    order = sorted(starts, key=lambda number: GOLDEN[0] * number % 1)
    return tuple(range(starts[at], starts[at] + size * x) for at in order)
