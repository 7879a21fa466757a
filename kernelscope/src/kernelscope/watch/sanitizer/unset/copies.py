"""Values that a kernel copies out of shared memory before anything has written them.

Planes that roll through shared memory (`p[0][t] = p[1][t]; p[1][t] = p[2][t]; p[2][t] = x;`) are
copied before the last one is filled, and overwritten before they are used. So a load whose value
only goes to stores is judged there: what it stores to shared or local memory counts as not written,
and what it stores to global memory is reported.
"""

import numpy as np
from kernelscope.ptx.syntax import Instruction

from ..elements import Element
from ..values import Values


class Copies:
    """The loads of one chunk that found nothing written and are not judged yet."""

    def __init__(self, values: Values):
        self.values = values
        # Loads by their ids: each with the lanes of the chunk that lack a value, and the element.
        self.loads: dict[int, tuple[Instruction, np.ndarray, Element]] = {}
        self.sources: dict[int, set[int]] = {}  # id of a store -> ids of the loads that feed it

    def put_off(self, load: Instruction, lanes: np.ndarray, where: Element) -> bool:
        """Lanes load what is not written. Return whether that is judged at the stores."""
        stores = self.values.stores_of(load)
        if not stores:
            return False
        known = self.loads.get(id(load))
        if known is not None:
            lanes = np.union1d(lanes, known[1])
        self.loads[id(load)] = load, np.unique(lanes), where
        for store in stores:
            self.sources.setdefault(id(store), set()).add(id(load))
        return True

    def load(self, load: Instruction, lanes: np.ndarray) -> None:
        """Lanes load again; what they lacked before is of no interest any more."""
        known = self.loads.get(id(load))
        if known is not None:
            self.loads[id(load)] = load, np.setdiff1d(known[1], lanes), known[2]

    def lacking(self, store: Instruction, lanes: np.ndarray) -> tuple[np.ndarray, Element] | None:
        """((lanes,) bool: which store a value that was never written, its element) or None."""
        for source in self.sources.get(id(store), ()):
            _, missing, where = self.loads[source]
            wrong = np.isin(lanes, missing)
            if wrong.any():
                return wrong, where
        return None
