"""The last atomic and volatile accesses: they tell where a fence was forgotten, for the remedy."""

from collections import deque

import numpy as np

_KEPT = 64  # events
_WIDEST = 2048  # lanes of an event that is kept


class Handshakes:
    """Which threads have lately used the same flags, tickets and locks."""

    def __init__(self):
        self.events: deque[tuple[int, np.ndarray, np.ndarray]] = deque(maxlen=_KEPT)

    def note(self, lanes: np.ndarray, address: np.ndarray, time: int) -> None:
        """Atomic or volatile accesses by lanes of the grid, of any memory."""
        if lanes.size <= _WIDEST:
            self.events.append((time, lanes, address))

    def between(self, time: int, earlier: int, later: int, team: int) -> bool:
        """Has a lane near `earlier` used an element since `time`, and then one near `later`?

        Near are lanes that have the same number when it is divided by `team`.
        """
        told: list[np.ndarray] = []
        for at, lanes, address in self.events:
            if at <= time:
                continue
            told.append(address[lanes // team == earlier // team])
            taken = address[lanes // team == later // team]
            if taken.size and np.isin(taken, np.concatenate(told)).any():
                return True
        return False
