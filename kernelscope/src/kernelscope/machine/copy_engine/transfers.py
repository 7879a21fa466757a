"""Bulk copies that are under way: issued, and not yet in place."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from kernelscope.events import AsyncOperation
from kernelscope.ptx.syntax import Instruction

from ...isa.atomics import Reduction
from .boxes import Box
from .places import PLAIN, RowLayout, SharedPlaces


@dataclass
class Arrival:
    """Copies of one instruction into shared memory, (n,) each: an mbarrier learns of their end.

    lanes: ids of the threads that issued them; to: where they go; phase: where their mbarriers are;
    data: (rows, size) uint8, of which row `row[i]` is copied; None: it is read at `source` when it
    arrives. told: the events of each copy, where somebody observes.
    """

    lanes: np.ndarray
    to: SharedPlaces
    phase: SharedPlaces
    size: int
    layout: RowLayout
    instruction: Instruction
    data: np.ndarray | None = None
    row: np.ndarray | None = None
    source: SharedPlaces | None = None
    reduction: Reduction | None = None
    told: list[AsyncOperation] | None = None

    @property
    def mbarrier(self) -> np.ndarray:
        """(n,) words of shared memory."""
        return self.phase.address + self.phase.base >> 3

    def part(self, chosen: np.ndarray) -> Arrival:
        return replace(
            self,
            lanes=self.lanes[chosen],
            to=self.to.part(chosen),
            phase=self.phase.part(chosen),
            row=None if self.row is None else self.row[chosen],
            source=None if self.source is None else self.source.part(chosen),
            told=chosen_of(self.told, chosen),
        )


@dataclass(frozen=True)
class GlobalPlaces:
    """Where copies go in global memory: boxes of a map at (n, axes) coordinates, or addresses."""

    box: Box | None
    first: np.ndarray  # coordinates, or (n,) addresses

    @property
    def layout(self) -> RowLayout:
        """Of the same bytes in shared memory."""
        box = self.box
        return PLAIN if box is None else RowLayout(box.swizzle, box.counts[0] * box.item)

    def part(self, chosen: np.ndarray) -> GlobalPlaces:
        return GlobalPlaces(self.box, self.first[chosen])


@dataclass
class Departure:
    """Copies of one instruction out of shared memory, (n,) each: a bulk group learns of their end.

    places: of the threads that issued them; group: the number of each one's bulk group; data:
    (n, size) uint8, None until the source is read.
    """

    places: np.ndarray
    group: np.ndarray
    source: SharedPlaces
    size: int
    target: GlobalPlaces
    data: np.ndarray | None
    reduction: Reduction | None
    instruction: Instruction
    told: list[AsyncOperation] | None

    def part(self, chosen: np.ndarray) -> Departure:
        return replace(
            self,
            places=self.places[chosen],
            group=self.group[chosen],
            source=self.source.part(chosen),
            target=self.target.part(chosen),
            data=None if self.data is None else self.data[chosen],
            told=chosen_of(self.told, chosen),
        )


def chosen_of(items: list | None, chosen: np.ndarray) -> list | None:
    """The chosen items, by number or by a mask."""
    if items is None:
        return None
    places = np.nonzero(chosen)[0] if chosen.dtype == bool else chosen
    return [items[place] for place in places.tolist()]
