"""Which lines L1 looks up for a load, and in how many clocks: by banks of tags and of data."""

from math import gcd

import numpy as np

from ...watch.counters.traffic import Lanes

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
    return found


_BANK_OF = (0, _banks(_OF_BIT[:11])), (11, _banks(_OF_BIT[11:]))  # of a number shifted by as much
OFTEN = 64  # loads of an instruction whose lines are looked up, each
LOOKED_UP = 32  # warps of a load, of all that do it together, whose lines are looked up


def some_warps(
    lanes: np.ndarray, address: np.ndarray, warps: int, of_block: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the lanes of about LOOKED_UP of so many warps, of all places in a block of as many:
    of every one, every third and so on.
    """
    every = warps // LOOKED_UP | 1
    while gcd(every, of_block) > 1:
        every += 2
    chosen = lanes // 32 % every == 0
    return (lanes[chosen], address[chosen]) if every > 1 and chosen.any() else (lanes, address)


class Lookups:
    """Lines that L1 looks up for a load, one after another. warps: of a block.

    Of an instruction's first OFTEN loads, of all blocks of a chunk, and of each fourth one; those
    between are taken to need as many.
    """

    def __init__(self, warps: int):
        self._of_block = warps
        self._of_load: dict[int, tuple[int, float]] = {}

    def of_load(
        self, key: int, size: int, address: np.ndarray, lanes: np.ndarray, warps: int
    ) -> float:
        """Return the clocks of a request. key: of the instruction; size: bytes of a lane; address,
        lanes: (lanes,) of so many warps.
        """
        times, found = self._of_load.get(key, (0, 0.0))
        if times < OFTEN or times % 4 == 0:
            some, where = some_warps(lanes, address, warps, self._of_block)
            rows = Lanes(some).rows(where, 32)
            found = lookups_of(rows, size) / len(rows)
        self._of_load[key] = times + 1, found
        return found


def lookups_of(rows: np.ndarray, size: int) -> int:
    """Return the clocks in which L1 looks up the lines of a load and reads its words: those of the
    fullest bank of tags, or of data.

    rows: (warps, 32) uint64 addresses; size: bytes of a lane. More than 4 are read in several parts
    of a warp, and count elsewhere.
    """
    line, new = _distinct(rows >> np.uint64(7))
    low, high = (table[line >> shift & table.size - 1] for shift, table in _BANK_OF)
    clocks = _fullest(low ^ high, new, _TAG_BANKS)
    if size <= 4:
        word, new = _distinct(rows >> np.uint64(2))
        clocks = np.maximum(clocks, _fullest(word % 32, new, 32))
    return int(clocks.sum())


def _distinct(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """((warps, 32) numbers, each row ascending; which of them are the first of their value)."""
    rows = np.sort(rows, axis=1).astype(np.int64)
    new = np.ones(rows.shape, bool)
    new[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return rows, new


def _fullest(bank: np.ndarray, new: np.ndarray, banks: int) -> np.ndarray:
    """(warps,) how many of a warp are in the bank that has most."""
    place = np.arange(len(bank))[:, None] * banks + bank
    return np.bincount(place[new], minlength=len(bank) * banks).reshape(-1, banks).max(1)
