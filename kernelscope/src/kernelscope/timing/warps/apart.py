"""Lanes of a warp that run the same code one after another, where the simulator has them together.

In the simulator lanes that leave a loop in different steps wait for each other. On a GPU they do
not where they leave it by an exit of its own, until they come to code where those of other exits go
too. And ptxas lets lanes yield (`YIELD`) in a loop whose lanes may wait for others of their warp,
as one that reads volatile memory: those that leave it go on, and what yields takes turns with them.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from ...events import Access, InstructionEvent
from ...watch.counters.traffic import Lanes, starts_of
from ..executions import NOWHERE, Places

TURNS = 2  # steps in which lanes yield, of which those in one go on together
MOST_EXITS = 62  # that are followed, of a module


class Apart:
    """The lanes of a chunk of blocks: when each left a loop, and how often it has yielded.

    steps: ids of the instructions that begin a step of a loop in which lanes yield. Those that
    have yielded as often, or nearly, come to an instruction together. exits: ids of branches that
    may leave a loop. any: may some lanes of a warp be apart now?
    """

    def __init__(self, places: Places, steps: Collection[int] = ()):
        exits = list(places.exits.items())[:MOST_EXITS]
        self.exits = {branch: (one, 1 << at) for at, (branch, one) in enumerate(exits)}
        self._blocks, self.steps = places.blocks, steps
        self._stays = cache(self._stays_in)
        self.begin(0)

    def begin(self, lanes: int) -> None:
        """A chunk of so many lanes."""
        self._left = np.zeros(lanes, np.int64)  # when, 0: it has not, or is together with others
        self._behind = np.zeros(lanes, np.int64)  # a bit for each exit that it is behind
        self._yielded = np.zeros(lanes, np.int64)
        self._group = np.zeros(lanes, np.int64)
        self._now, self.any = 0, False
        self._known: _Groups | None = None  # of the last instruction

    def leave(self, event: InstructionEvent) -> None:
        """Lanes leave a loop by one of the exits."""
        leaving, bit = self.exits[id(event.instruction)]
        gone = event.lanes[np.broadcast_to(event.taken == leaving.taken, event.lanes.shape)]
        gone = gone[np.bincount(gone >> 5)[gone >> 5] < 32] if gone.size else gone  # no whole warps
        if gone.size:
            _, group = np.unique(self._left[gone], return_inverse=True)
            self._left[gone] = self._now + 1 + group  # those that were apart stay apart
            self._now += 1 + int(group.max())
            self._behind[gone] |= bit
            self.any, self._known = True, None

    def parts(self, event: InstructionEvent) -> Iterator[tuple[InstructionEvent, Lanes | None]]:
        """The event of one of the steps, or while any may be apart, in parts where lanes of a warp
        are: one of each warp in each part, with its lanes; None for the event as it is.
        """
        if id(event.instruction) in self.steps:
            self._yielded[event.lanes] += 1
            self.any, self._known = True, None
        place = self._blocks.get(id(event.instruction), NOWHERE)
        known = self._known
        if known is None or known.block != place.block or known.lanes is not event.lanes:
            self._meet(event, place.block)
            known = self._known = _Groups(place.block, event.lanes, self._groups(event.lanes))
        elif _brings_together(event):
            self._meet(event, place.block)
            known = self._known = None
        if known is None or not known.parts:
            yield event, None
        else:
            for number, (own, lanes) in enumerate(known.parts):
                yield self._part(event, own, lanes.lanes, number), lanes

    def _groups(self, lanes: np.ndarray) -> list[tuple[np.ndarray, Lanes]]:
        """[((lanes,) bool, those lanes) of each part], none where no lanes of a warp are apart."""
        left, yielded, warp = self._left[lanes], self._yielded[lanes] // TURNS, lanes >> 5
        if not (left.any() or yielded.any()):
            return []
        order = np.lexsort((yielded, left, warp))
        first = starts_of(warp[order], left[order], yielded[order])
        if first.size == starts_of(warp).size:
            return []
        of_warp = starts_of(warp[order][first])
        turn = np.arange(first.size) - np.repeat(of_warp, np.diff(of_warp, append=first.size))
        group = np.empty(order.size, np.int64)
        group[order] = np.repeat(turn, np.diff(first, append=order.size))
        self._group[lanes] = group
        each = (group == number for number in range(int(turn.max()) + 1))
        return [(own, Lanes(lanes[own])) for own in each]

    def _meet(self, event: InstructionEvent, block: int) -> None:
        """Lanes have met that are synchronised, or at the end of the code behind their exits."""
        lanes = event.lanes
        if _brings_together(event):
            self._left[lanes] = self._behind[lanes] = self._yielded[lanes] = 0
        else:
            behind = self._behind[lanes] & self._stays(block)
            met = lanes[(behind == 0) & (self._left[lanes] > 0)]
            self._behind[lanes] = behind
            if not met.size:
                return
            self._left[met] = 0
        self.any = bool(self._left.any() or self._yielded.any())

    def _stays_in(self, block: int) -> int:
        """Bits of the exits behind which lanes stay apart in a block, or in what it calls."""
        return sum(
            bit
            for one, bit in self.exits.values()
            if block in one.blocks or block not in one.function
        )

    def _part(
        self, event: InstructionEvent, own: np.ndarray, lanes: np.ndarray, number: int
    ) -> InstructionEvent:
        accesses = (self._part_of(one, number) for one in event.accesses)
        return InstructionEvent(
            event.instruction,
            event.line,
            lanes,
            tuple(one for one in accesses if one.lanes.size),
            event.machine,
            _of_lanes(event.taken, own),
            event.members,
        )

    def _part_of(self, access: Access, number: int) -> Access:
        own = self._group[access.lanes] == number
        return replace(
            access,
            address=np.broadcast_to(access.address, own.shape)[own],
            lanes=access.lanes[own],
            valid=_of_lanes(access.valid, own),
            block=_of_lanes(access.block, own),
        )


class _Groups(NamedTuple):
    """How the lanes of an instruction go apart: those beside it in its block of code do so too.

    parts: of each, (lanes,) bool and these lanes; none where all go together.
    """

    block: int
    lanes: np.ndarray
    parts: list[tuple[np.ndarray, Lanes]]


def _brings_together(event: InstructionEvent) -> bool:
    """Do all lanes wait for each other there?"""
    opcode = event.instruction.opcode
    waits = opcode.startswith(("bar.", "barrier.")) and "arrive" not in opcode
    return waits or event.members is not None


def _of_lanes(values, own: np.ndarray):
    """Values of some lanes: of each one, or one for all."""
    return values if np.ndim(values) == 0 else values[own]
