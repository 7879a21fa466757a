"""Which lines L1 looks up for a load, and in how many clocks: by banks of tags and of data."""

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
    """Lines that L1 looks up for a load, one after another. warps: of a block.

    Of an instruction's first OFTEN loads, of all blocks of a chunk, and of each fourth one; those
    between are taken to need as many.
    """

    def __init__(self, warps: int):
        self._of_block = warps
        self._of_load: dict[int, tuple[int, float]] = {}
        self._known: WeakKeyDictionary[Pattern, dict] = WeakKeyDictionary()

    def of_load(self, key: int, size: int, pattern: Pattern, delta: int) -> float:
        """Return the clocks of a request. key: of the instruction; size: bytes of a lane; pattern,
        delta: addresses, moved along by so many bytes.
        """
        times, found = self._of_load.get(key, (0, 0.0))
        if times < OFTEN or times % 4 == 0:
            lines, rest = divmod(delta, LINE_BYTES)
            known = self._known.setdefault(pattern, {})
            form = rest, min(size, 8)
            if form not in known:
                some = some_warps(pattern.lanes.numbers, self._of_block)
                known[form] = _Request(pattern.rows[some] + np.uint64(rest), size)
            found = known[form].clocks(lines) / known[form].warps
        self._of_load[key] = times + 1, found
        return found


def lookups_of(rows: np.ndarray, size: int) -> int:
    """Return the clocks in which L1 looks up the lines of a load and reads its words: those of the
    fullest bank of tags, or of data.

    rows: (warps, 32) uint64 addresses; size: bytes of a lane. More than 4 are read in several parts
    of a warp, and count elsewhere.
    """
    return _Request(ascending(rows), size).clocks()


class _Request:
    """A load as lookups_of takes it, each row ascending. warps: so many."""

    def __init__(self, rows: np.ndarray, size: int):
        self.warps = len(rows)
        self._lines, whose = _distinct(rows >> np.uint64(7))
        self._first = _TAG_BANKS * whose  # place of its warp's first bank
        self._of_words = np.int64(0)
        if size <= 4:
            word, whose = _distinct(rows >> np.uint64(2))
            self._of_words = _fullest(32 * whose + word % 32, 32, self.warps)

    def clocks(self, lines: int = 0) -> int:
        """Return those of its warps together, if it is moved along by so many lines."""
        line = self._lines + lines
        low, high = (table[line >> shift & table.size - 1] for shift, table in _BANK_OF)
        of_lines = _fullest(self._first + (low ^ high), _TAG_BANKS, self.warps)
        return int(np.maximum(of_lines, self._of_words).sum())


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((n,) the distinct numbers of each row, the row of each). rows: each ascending."""
    new = are_new(rows)
    return rows[new].astype(np.int64), np.nonzero(new)[0]


def _fullest(place: np.ndarray, banks: int, warps: int) -> np.ndarray:
    """(warps,) how many of a warp are in the bank that has most. place: warp * banks + bank."""
    return np.bincount(place, minlength=warps * banks).reshape(-1, banks).max(1)
