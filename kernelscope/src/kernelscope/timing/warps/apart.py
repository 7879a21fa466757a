"""Lanes of a warp that run the same code one after another, where the simulator has them together.

In the simulator lanes that leave a loop in different steps wait for each other. On a GPU they do
not where they leave it by an exit of its own, until they come to code where those of other exits go
too. And ptxas lets lanes yield (`YIELD`) in a loop whose lanes may wait for others of their warp,
as one that reads volatile memory: those that leave it go on, and what yields takes turns with them.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cache

import numpy as np

from ...events import Access, InstructionEvent
from ...ptx.syntax import Instruction
from ..caches import starts_of
from ..executions import BlockPlace, Places

TURNS = 2  # lanes that come to an instruction within so many go on together


class Apart:
    """The lanes of a chunk of blocks: when each left a loop, and how often it has yielded.

    steps: ids of the instructions that begin a step of a loop in which lanes yield. Those that
    have yielded as often, or nearly, come to an instruction together.
    """

    def __init__(self, places: Places, steps: Collection[int] = ()):
        self._exits, self._blocks, self._steps = places.exits, places.blocks, steps
        numbers = {branch: number + 1 for number, branch in enumerate(places.exits)}
        self._number = numbers
        self._behind = [frozenset(), *(one.blocks for one in places.exits.values())]
        self._stays = cache(self._stays_in)
        self.begin(0)

    def begin(self, lanes: int) -> None:
        """A chunk of so many lanes."""
        self._left = np.zeros(lanes, np.int64)  # when, 0: it has not, or is together with others
        self._exit = np.zeros(lanes, np.int64)  # its number, by which it left
        self._yielded = np.zeros(lanes, np.int64)
        self._group = np.zeros(lanes, np.int64)
        self._now, self._any = 0, False

    def concerns(self, instruction: Instruction) -> bool:
        """Return whether an instruction may come in parts."""
        return self._any or id(instruction) in self._steps

    def leave(self, event: InstructionEvent) -> None:
        """Lanes leave a loop, if the event is a branch that does."""
        leaving = self._exits.get(id(event.instruction))
        if leaving is None:
            return
        gone = event.lanes[np.broadcast_to(event.taken == leaving.taken, event.lanes.shape)]
        if gone.size:
            self._now += 1
            self._left[gone], self._exit[gone] = self._now, self._number[id(event.instruction)]
            self._any = True

    def parts(self, event: InstructionEvent) -> Iterator[InstructionEvent]:
        """The event of an instruction that it concerns, in parts where lanes of a warp are apart:
        one of each warp in each part.
        """
        if id(event.instruction) in self._steps:
            self._yielded[event.lanes] += 1
            self._any = True
        self._meet(event)
        lanes = event.lanes
        left, yielded, warp = self._left[lanes], self._yielded[lanes] // TURNS, lanes >> 5
        order = np.lexsort((yielded, left, warp))
        first = starts_of(warp[order], left[order], yielded[order])
        if first.size == starts_of(warp).size:
            yield event
            return
        of_warp = starts_of(warp[order][first])
        turn = np.arange(first.size) - np.repeat(of_warp, np.diff(of_warp, append=first.size))
        group = np.empty(order.size, np.int64)
        group[order] = np.repeat(turn, np.diff(first, append=order.size))
        self._group[lanes] = group
        for number in range(int(turn.max()) + 1):
            yield self._part(event, group == number, number)

    def _meet(self, event: InstructionEvent) -> None:
        """Lanes have met that are synchronised, or at the end of the code behind their exit."""
        lanes = event.lanes
        if event.instruction.opcode.startswith(("bar.", "barrier.")) or event.members is not None:
            self._left[lanes] = self._yielded[lanes] = 0
            self._any = bool(self._left.any() or self._yielded.any())
        else:
            place = self._blocks.get(id(event.instruction), BlockPlace())
            self._left[lanes[~self._stays(place.block)[self._exit[lanes]]]] = 0

    def _stays_in(self, block: int) -> np.ndarray:
        """(exits,) Do lanes stay apart in a basic block?"""
        return np.array([block in behind for behind in self._behind])

    def _part(self, event: InstructionEvent, own: np.ndarray, number: int) -> InstructionEvent:
        accesses = (self._part_of(one, number) for one in event.accesses)
        return replace(
            event,
            lanes=event.lanes[own],
            accesses=tuple(one for one in accesses if one.lanes.size),
            taken=_of_lanes(event.taken, own),
            members=_of_lanes(event.members, own),
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


def _of_lanes(values, own: np.ndarray):
    """Values of some lanes: of each one, or one for all."""
    return values if np.ndim(values) == 0 else values[own]
