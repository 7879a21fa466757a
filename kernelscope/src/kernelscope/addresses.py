"""Simulated addresses: where each space starts, and what an address of a cluster holds.

Addresses are byte offsets within one space. A generic address names its space by its window.
"""

import numpy as np

CLUSTER_SHIFT = 24  # in a shared address of a cluster, the bits from here on name the block
SHARED_WINDOW = 1 << 56  # generic addresses of shared memory start here
LOCAL_WINDOW = 1 << 57  # generic addresses of local memory start here
FUNCTION_WINDOW = 1 << 58  # the address of a function is its number from here on
WINDOWS = {"global": 0, "shared": SHARED_WINDOW, "local": LOCAL_WINDOW}
_BELOW = 1 << 40  # an index below 0 stays in the space of its array, so that messages can name it
RANGES = {
    "shared": (SHARED_WINDOW - _BELOW, LOCAL_WINDOW - _BELOW),
    "local": (LOCAL_WINDOW - _BELOW, FUNCTION_WINDOW - _BELOW),
}
_PAGE = 1 << 16


def aligned(size: int, to: int = 16) -> int:
    """Return the next multiple of `to`."""
    return -(-size // to) * to


class Packed:
    """Stretches of addresses as positions one after another, without the gaps between them.

    stretches: (first, end) addresses; they may overlap. size: one past the highest position.
    A position keeps the address modulo 16. An address in no stretch adds one of its own.
    """

    def __init__(self, stretches):
        self.size, self._recent = 0, 0
        merged: list[list[int]] = []
        for first, end in sorted(stretches):
            if merged and first <= merged[-1][1]:
                merged[-1][1] = max(end, merged[-1][1])
            elif end > first:
                merged.append([first // 16 * 16, end])
        self._starts = np.array([first for first, _ in merged], np.int64)
        self._ends = np.array([end for _, end in merged], np.int64)
        self._places = np.zeros(len(merged), np.int64)  # positions of the starts
        for i, (first, end) in enumerate(merged):
            self._places[i] = self.size
            self.size = aligned(self.size + end - first)

    def positions(self, address: np.ndarray) -> np.ndarray:
        """Return (n,) int64 positions of (n,) int64 addresses."""
        if not address.size:
            return address
        if self._starts.size:
            first, end = self._starts[self._recent], self._ends[self._recent]
            if first <= address.min() and address.max() < end:
                return address - (first - self._places[self._recent])
        slot = self._slots(address)
        known = slot >= 0
        known[known] = address[known] < self._ends[slot[known]]
        if not known.all():
            for page in np.unique(address[~known] // _PAGE).tolist():
                self._add_page(page * _PAGE, (page + 1) * _PAGE)
            slot = self._slots(address)
        self._recent = int(slot[0])
        return address - (self._starts - self._places)[slot]

    def _slots(self, address: np.ndarray) -> np.ndarray:
        return np.searchsorted(self._starts, address, side="right") - 1

    def _add_page(self, first: int, end: int) -> None:
        """Add the parts of a page that are in no stretch yet."""
        for start, stop in zip(self._starts.tolist(), self._ends.tolist(), strict=True):
            if stop > first and start < end:
                self._add(first, start)
                first = aligned(stop)
        self._add(first, end)

    def _add(self, first: int, end: int) -> None:
        if first >= end:
            return
        at = int(np.searchsorted(self._starts, first))
        self._starts = np.insert(self._starts, at, first)
        self._ends = np.insert(self._ends, at, end)
        self._places = np.insert(self._places, at, self.size)
        self.size = aligned(self.size + end - first)

    def stretches(self) -> list[tuple[int, int, int]]:
        """Return (first address, position, bytes) of every stretch, multiples of 16."""
        sizes = (aligned(int(size)) for size in self._ends - self._starts)
        return list(zip(self._starts.tolist(), self._places.tolist(), sizes, strict=True))

    def address(self, position):
        """Return the address at a position, an int or an array of them."""
        order = np.argsort(self._places)
        slot = order[np.searchsorted(self._places[order], position, side="right") - 1]
        return position + (self._starts - self._places)[slot]
