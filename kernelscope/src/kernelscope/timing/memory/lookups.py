"""Which lines L1 looks up for a load, and in how many clocks: by banks of tags and of data."""

from collections import Counter, defaultdict
from dataclasses import dataclass
from math import gcd
from weakref import WeakKeyDictionary

import numpy as np

from ...watch.counters.patterns import Pattern
from ...watch.counters.traffic import LINE_BYTES, are_new, ascending

# L1 looks up lines in four banks at a time. By the bits of a line's number, the lowest first, the
# bank that each adds (exclusive or): what 32 lines took on an H200, in 22 choices of them, and for
# each bit from the ninth on in four.
_OF_BIT = (1, 2, 1, 2, 3, 1, 2, 3, 2, 1, 2, 1, 3, 1, 3, 2, 1, 3, 2, 3, 1)
_TAG_BANKS = 4


def _banks(of_bit: tuple[int, ...]) -> np.ndarray:
    """The bank of each number of so many bits."""
    found = np.zeros(1, np.int64)
    for adds in of_bit:
        found = np.concatenate([found, found ^ adds])
    return found.astype(np.int8)


_BANK_OF = (0, _banks(_OF_BIT[:11])), (11, _banks(_OF_BIT[11:]))  # of a number shifted by as much
OFTEN = 64  # loads of an instruction whose lines are looked up, each
MOST_WAITING = 1 << 18  # lines that wait to be looked up
LOOKED_UP = 32  # warps of a load, of all that do it together, whose lines are looked up


def some_warps(warps: np.ndarray, of_block: int) -> np.ndarray | slice:
    """Return the places of about LOOKED_UP of some warps, of all places in a block of as many: of
    every one, every third and so on. warps: (warps,) their numbers.
    """
    every = warps.size // LOOKED_UP | 1
    while gcd(every, of_block) > 1:
        every += 2
    chosen = warps % every == 0
    return chosen if every > 1 and chosen.any() else slice(None)


class Lookups:
    """In how many clocks L1 looks up the lines of loads. warps: of a block.

    Of an instruction's first OFTEN loads, of all blocks of a chunk, and of each fourth one; those
    between are taken to need as many. Loads of one form are looked up together, later.
    """

    def __init__(self, warps: int):
        self._of_block = warps
        self._totals: defaultdict[int, float] = defaultdict(float)
        self._loads: Counter[int] = Counter()
        self._last: dict[int, _Load] = {}
        self._known: WeakKeyDictionary[Pattern, dict] = WeakKeyDictionary()
        self._waiting: defaultdict[_Request, list[_Load]] = defaultdict(list)
        self._lines = 0  # of those that wait

    def add(self, key: int, size: int, pattern: Pattern, delta: int, requests: int) -> None:
        """Add a load. key: of the instruction; size: bytes of a lane; pattern, delta: addresses,
        moved along by so many bytes.
        """
        times = self._loads[key]
        self._loads[key] = times + 1
        if times < OFTEN or times % 4 == 0:
            lines, rest = divmod(delta, LINE_BYTES)
            known = self._known.setdefault(pattern, {})
            form = rest, min(size, 8)
            if form not in known:
                some = some_warps(pattern.lanes.numbers, self._of_block)
                known[form] = _Request(pattern.rows[some] + np.uint64(rest), size)
            one = self._last[key] = _Load(key, lines)
            self._waiting[known[form]].append(one)
            self._lines += known[form].size
        last = self._last[key]
        if last.clocks is None:
            last.requests += requests
        else:
            self._totals[key] += last.clocks * requests
        if self._lines > MOST_WAITING:
            self._look_up()

    def totals(self) -> dict[int, float]:
        """Return the clocks of each instruction's requests."""
        self._look_up()
        return dict(self._totals)

    def _look_up(self) -> None:
        for request, loads in self._waiting.items():
            found = request.clocks(np.array([one.lines for one in loads]))
            for one, clocks in zip(loads, found.tolist(), strict=True):
                one.clocks = clocks / request.warps
                self._totals[one.key] += one.clocks * one.requests
        self._waiting.clear()
        self._lines = 0


@dataclass(slots=True)
class _Load:
    """A load that is looked up, and those behind it that are taken to be as it. lines: by how many
    its form is moved along; requests: of all of them, until they are counted.
    """

    key: int
    lines: int
    requests: int = 0
    clocks: float | None = None  # of a request


def lookups_of(rows: np.ndarray, size: int) -> int:
    """Return the clocks in which L1 looks up the lines of a load and reads its words: those of the
    fullest bank of tags, or of data.

    rows: (warps, 32) uint64 addresses; size: bytes of a lane. More than 4 are read in several parts
    of a warp, and count elsewhere.
    """
    return int(_Request(ascending(rows), size).clocks(np.zeros(1, np.int64))[0])


class _Request:
    """A load as lookups_of takes it, each row ascending. warps: so many; size: lines of them."""

    def __init__(self, rows: np.ndarray, size: int):
        self.warps = len(rows)
        self._lines, whose = _distinct(rows >> np.uint64(7))
        self.size = self._lines.size
        self._first = _TAG_BANKS * whose  # place of its warp's first bank
        self._of_words = np.int64(0)
        if size <= 4:
            word, whose = _distinct(rows >> np.uint64(2))
            self._of_words = _fullest(32 * whose + (word & 31), 32, self.warps)

    def clocks(self, lines: np.ndarray) -> np.ndarray:
        """(n,) clocks of its warps together, if it is moved along by each of n numbers of lines."""
        line = lines[:, None] + self._lines
        low, high = (table[line >> shift & table.size - 1] for shift, table in _BANK_OF)
        count = lines.size * self.warps
        first = _TAG_BANKS * self.warps * np.arange(lines.size)[:, None] + self._first
        of_lines = _fullest((first + (low ^ high)).ravel(), _TAG_BANKS, count)
        return np.maximum(of_lines.reshape(lines.size, -1), self._of_words).sum(1)


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((n,) the distinct numbers of each row, the row of each). rows: (warps, 32), ascending."""
    at = np.flatnonzero(are_new(rows))
    return rows.ravel()[at].astype(np.int64), at >> 5


def _fullest(place: np.ndarray, banks: int, warps: int) -> np.ndarray:
    """(warps,) how many of a warp are in the bank that has most. place: warp * banks + bank."""
    return np.bincount(place, minlength=warps * banks).reshape(-1, banks).max(1)
