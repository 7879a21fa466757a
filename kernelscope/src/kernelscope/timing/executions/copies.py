"""How often each segment of machine code has what ptxas made of each PTX instruction."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from statistics import median_low

import numpy as np

from ..machine_code import Code, Segment
from .counts import PtxCounts
from .kinds import has_two_halves

_MOST_TRIPS = 1.5  # times the mean of a loop's trips that machine code may have beside no loop
_ALIKE = 0.98  # of the runs of a block: as many
_MOST = 0.6  # share of a block's instructions
_FLOW = frozenset("BRA BRX JMP JMX BREAK BSSY BSYNC BMOV EXIT RET CALL NOP WARPSYNC BAR".split())


class SegmentCopies:
    """How often each segment has the machine code of each PTX instruction.

    known: a PTX instruction's number -> its counts; parts: (segments) block of the PTX -> number of
    an instruction -> copies; home: (segments) loops of the PTX, the innermost first, in which most
    of a segment's instructions stand, None for none; steps: (segments) copies of those; guarded:
    (segments) numbers of instructions that have a predicate.
    """

    def __init__(
        self, segments: Sequence[Segment], counted: Iterable[PtxCounts], depth: Sequence[int]
    ):
        self.known = {one.origin: one for one in counted if one.origin >= 0}
        self.runs: defaultdict[int, float] = defaultdict(float)  # of the PTX's blocks
        for one in self.known.values():
            self.runs[one.place.block] = max(self.runs[one.place.block], one.executions)
        self.trips = {  # of the loop that a block heads
            place.block: self.runs[place.block] / max(self.runs[place.above], 1e-9)
            for place in (one.place for one in self.known.values())
            if place.above
        }
        self.guarded = [{code.origin for code in s.code if code.guarded} for s in segments]
        self.parts = [self._parts(segment.code) for segment in segments]
        self._largest: Counter[int] = Counter()  # block -> most of its instructions in a segment
        for part in self.parts:
            self._largest |= Counter({block: len(own) for block, own in part.items()})
        homes = [self._home(*each) for each in zip(self.parts, depth, strict=True)]
        self.home, self.steps = [home for home, _ in homes], [steps for _, steps in homes]

    def of(self, at: int) -> dict[int, int]:
        """Return number of a PTX instruction -> copies in a segment."""
        return {number: n for own in self.parts[at].values() for number, n in own.items()}

    def of_block(self, at: int, block: int) -> int:
        """Return the copies that a segment has of most of a block's instructions, 0 if of none."""
        return median_low(self.parts[at][block].values()) if block in self.parts[at] else 0

    def _parts(self, code: Sequence[Code]) -> dict[int, dict[int, int]]:
        """An instruction that became several has each of these once in a copy."""
        made: defaultdict[int, Counter] = defaultdict(Counter)
        for one in code:
            if one.origin in self.known and one.name not in _FLOW and not one.called:
                made[one.origin][one.name, one.parts] += 1
        found: defaultdict[int, dict[int, int]] = defaultdict(dict)
        for number, several in made.items():
            one = self.known[number]
            if one.kind != "tensor" and not one.is_of_wmma:  # of these as many as a tile needs
                halves = 2 if has_two_halves(one.instruction) else 1
                found[one.place.block][number] = max(1, min(several.values()) // halves)
        return dict(found)

    def _home(
        self, part: dict[int, dict[int, int]], depth: int
    ) -> tuple[tuple[int, ...] | None, int]:
        """(Loops, copies) of the PTX at home in a segment, within `depth` loops of machine code.

        Of a loop that machine code does not have there all steps are there, or most of one block:
        the rest of a loop that ptxas has repeated. Else it is what ptxas has moved out. What stands
        in fewer loops is computed again in each step.
        """
        nests: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        whole = set()
        for block, own in part.items():
            nest = self.known[next(iter(own))].place.loops
            nests[nest] += own.values()
            if len(own) >= _MOST * self._largest[block]:
                whole.add(nest)
        fit = {}
        for nest, copies in nests.items():
            left, steps = nest[: max(0, len(nest) - depth)], median_low(copies)
            trips = np.prod([max(self.trips.get(head, 1.0), 1.0) for head in left])
            if len(nest) >= depth and (trips <= _MOST_TRIPS * steps or nest in whole):
                fit[nest] = len(copies), steps
        if not fit:
            return None, 1
        home = max(fit, key=lambda nest: (fit[nest][0], -len(nest)))
        return home, fit[home][1]

    @cached_property
    def having(self) -> dict[int, set[int]]:
        """Block of the PTX -> the segments at home in its loops that have most of it."""
        found: defaultdict[int, set[int]] = defaultdict(set)
        for at, part in enumerate(self.parts):
            for block, own in part.items():
                at_home = self.known[next(iter(own))].place.loops == self.home[at]
                if at_home and len(own) >= _MOST * self._largest[block]:
                    found[block].add(at)
        return found

    def are_alike(self, block: int, first: int, other: int) -> bool:
        """Have two segments the same of a block of the PTX? Else each is a part of it."""
        some, others = (set(self.parts[at].get(block, ())) for at in (first, other))
        return len(some & others) >= _MOST * len(some | others)

    def lesser(self, at: int) -> set[int]:
        """Blocks of the PTX at a segment's home that run less often than others of it: ptxas has
        made branches around them selections.
        """
        runs = {
            block: self.runs[block] / self.of_block(at, block)
            for block, own in self.parts[at].items()
            if self.known[next(iter(own))].place.loops == self.home[at]
        }
        return {block for block, n in runs.items() if n < _ALIKE * max(runs.values())}
