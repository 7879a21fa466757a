"""Loops of machine code and of the PTX, paired by their lines and instructions."""

from collections import Counter, defaultdict
from collections.abc import Iterable

import numpy as np

from ..machine_code import NaturalLoop, Segment, codes, loops_of
from .counts import PtxCounts
from .kinds import KINDS, code_is_work, is_work
from .loads import bits_of, bits_of_code

_MOST_TRIPS = 1.5  # times the mean of a loop's trips: longer variants of it are left out
_ALIKE = 0.7  # share of their lines that two loops have in common, if they are one


class _PtxLoop:
    """A loop of the PTX. members: its instructions, those of loops inside among them."""

    def __init__(self, head: int, members: list[PtxCounts], of_block: dict[int, float]):
        self.steps = of_block[head]
        self.outer = any(one.place.loops[0] != head for one in members)
        above = next((one.place.above for one in members if one.place.block == head), 0)
        self.entries = of_block.get(above, self.steps)
        self.own = [one for one in members if one.place.loops[0] == head]
        self.work = sum(is_work(one.instruction) for one in self.own)
        self.lines = {one.line for one in members if one.kind or is_work(one.instruction)}
        self.of_step: Counter[tuple[int, str]] = Counter()  # machine instructions
        for one in self.own:
            if one.kind and not one.is_of_wmma:
                tensor = one.kind == "tensor" and one.executions
                each = one.machine_instructions / one.executions if tensor else 1
                self.of_step[one.line, one.kind] += each

    @property
    def trips(self) -> float:
        """Steps of the loop each time that it is entered."""
        return self.steps / max(self.entries, 1e-9)


class Loops:
    """The loops of machine code and of the PTX, and which are alike.

    has: (segments) how many instructions of a (line, kind) each has; depth: (segments) loops around
    each; ptx: block that heads a loop -> the loop, of those that ran; inside: header of a loop of
    machine code -> segments of the loops inside it; copies: segment -> (block that heads a loop of
    the PTX, steps of it that the segment has), of segments in loops, and of those that ptxas has
    put beside them; twin: block that heads a loop -> of the first loop that has the same.
    """

    def __init__(self, segments: tuple[Segment, ...], counted: list[PtxCounts]):
        self.segments, self.machine = segments, loops_of(segments)
        self.has = _kinds_of(segments, counted)
        self.depth = [sum(at in loop.body for loop in self.machine) for at in range(len(segments))]
        self.inside = {
            loop.header: {
                at
                for other in self.machine
                if other.header in loop.body and other != loop
                for at in other.body
            }
            for loop in self.machine
        }
        members: defaultdict[int, list[PtxCounts]] = defaultdict(list)
        of_block: defaultdict[int, float] = defaultdict(float)
        for one in counted:
            of_block[one.place.block] = max(of_block[one.place.block], one.executions)
            for head in one.place.loops:
                members[head].append(one)
        ran = {head: own for head, own in members.items() if of_block[head]}
        self.ptx = {head: _PtxLoop(head, own, of_block) for head, own in ran.items()}
        first: dict[tuple, int] = {}  # of loops that have the same, such as of a function inlined
        self.twin = {
            head: first.setdefault((frozenset(loop.of_step.items()), frozenset(loop.lines)), head)
            for head, loop in self.ptx.items()
        }
        self.copies = dict(self._find_copies())

    def _find_copies(self) -> Iterable[tuple[int, tuple[int, float]]]:
        inner = [(head, loop) for head, loop in self.ptx.items() if not loop.outer]
        inner.sort(key=lambda one: len(one[1].own))  # the one with the longest steps is taken
        for at, segment in enumerate(self.segments):
            has = self.has[at]
            own = {code.line for code in segment.code if code_is_work(code)} - {0}
            for head, loop in inner:
                shared = [has[key] / n for key, n in loop.of_step.items() if has[key]]
                steps = min(shared, default=0.0)
                if own <= loop.lines and steps >= 1:
                    yield at, (self.twin[head], steps)

    def too_long(self) -> list[int]:
        """Segments with more steps of a loop of the PTX than it takes each time."""
        most: defaultdict[int, float] = defaultdict(lambda: 1.0)
        for head, loop in self.ptx.items():
            most[self.twin[head]] = max(most[self.twin[head]], _MOST_TRIPS * loop.trips)
        return [at for at, (head, steps) in self.copies.items() if steps > most[head]]

    def iterations(self, of_these: list[NaturalLoop]) -> dict[tuple, tuple[np.ndarray, float]]:
        """(block, headers) -> ((segments,) steps of a loop of the PTX that a run of a segment
        takes, steps that it took), of those loops that have the lines of the PTX's, or nearly.

        ptxas merges instructions, and repeats a short body a power of two times. What has less than
        half of the PTX's work is for the rest of such a loop: it gets no steps. A loop with another
        inside is taken as it stands in the PTX.
        """
        # heads of the PTX's loops of the same lines -> (work, header) of the loops that have them
        alike: defaultdict[frozenset[int], list[tuple[float, int]]] = defaultdict(list)
        for loop in of_these:
            work = [c for at in loop.body for c in self.segments[at].code if code_is_work(c)]
            own, outer = {code.line for code in work} - {0}, bool(self.inside[loop.header])
            common = {
                h: _common(own, one.lines) for h, one in self.ptx.items() if one.outer == outer
            }
            # Of the same lines may be two, of four steps and of the rest: the nearest in size.
            steps = {h: self._steps_of(loop, self.ptx[h], len(work)) for h in common}
            head = max(common, key=lambda h: (common[h], -abs(np.log(steps[h] or 1e-9))), default=0)
            if head and common[head] >= _ALIKE:
                of_step = steps[head]
                twin = self.ptx[head].lines, self.ptx[head].work
                same = [h for h in common if (self.ptx[h].lines, self.ptx[h].work) == twin]
                alike[frozenset(same)].append((1.0 if outer else of_step, loop.header))
        paired: dict[tuple[int, ...], list[tuple[float, int]]] = {}
        for heads, own in alike.items():
            count, rest = divmod(len(own), len(heads))  # loops of one line, again and again
            own.sort(key=lambda one: one[1])
            if rest:
                paired[tuple(sorted(heads))] = own
            else:
                for number, head in enumerate(sorted(heads)):
                    paired[head,] = own[number * count : (number + 1) * count]
        found = {}
        for heads, own in paired.items():
            whole = [work for work, _ in own if work >= 0.5]
            row = np.zeros(len(self.segments))
            for work, header in own:
                times = work / min(1.0, min(whole)) if work >= 0.5 else 0.0
                row[header] = 2 ** round(np.log2(times)) if times else 0.0
                if self.copies.get(header, (0, 0.0))[0] == self.twin[heads[0]]:
                    row[header] = self.copies[header][1]
            if whole:
                steps = sum(self.ptx[head].steps for head in heads)
                found[heads[0], *(header for _, header in own)] = row, steps
        return found

    def _steps_of(self, loop: NaturalLoop, ptx: _PtxLoop, work: int) -> float:
        """How many steps of a loop of the PTX a run of one of machine code has: by its loads and so
        on, or else by all of its work.
        """
        has = sum((self.has[at] for at in loop.body - self.inside[loop.header]), Counter())
        shares = [has[key] / count for key, count in ptx.of_step.items() if has[key]]
        return float(np.median(shares)) if shares else work / max(1, ptx.work)


def _common(some: set[int], others: set[int]) -> float:
    """The share of all lines that both have."""
    return len(some & others) / max(len(some | others), 1)


def _kinds_of(segments: tuple[Segment, ...], counted: list[PtxCounts]) -> list[Counter]:
    """(segments,) how many instructions of the PTX's, by line and kind, each has: a load that ptxas
    has made of several counts as these.
    """
    bits: defaultdict[tuple[int, str], set[int]] = defaultdict(set)
    wide = {one.line for one in counted if one.merged}  # the simulator has made one of several
    for one in counted:
        plain = one.instruction.opcode.startswith("ld.") and one.line not in wide
        bits[one.line, one.kind].add(bits_of(one.instruction) if plain else 0)
    found = [Counter() for _ in segments]
    for at, code in codes(segments):
        key = code.line, KINDS.get(code.name, "")
        each = min(bits[key]) if len(bits[key]) == 1 else 0
        several = bits_of_code(code) // each if each and code.name in ("LD", "LDG", "LDS") else 1
        found[at][key] += max(1, several)
    return found
