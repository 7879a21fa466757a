"""Equations that join PTX and machine code: each machine instruction's PTX instruction is known."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import median_low

import numpy as np

from ..machine_code import Code, Segment, dominators
from .counts import PtxCounts
from .kinds import KINDS, has_slow_path, has_two_halves, is_long

LIGHT = 0.3  # weight of arithmetic, of which ptxas leaves out, moves and repeats some
FIRM = 0.5  # ... of many alike that are one machine instruction each
_ENOUGH = 4  # instructions that one row of arithmetic has its full weight from
_MOST_TRIPS = 1.5  # times the mean of a loop's trips: longer variants of it are left out
_ALIKE, _MOST = 0.98, 0.6
_FLOW = frozenset("BRA BRX JMP JMX BREAK BSSY BSYNC BMOV EXIT RET CALL NOP WARPSYNC BAR".split())


@dataclass(frozen=True)
class Anchors:
    """rows: (anchors, segments) machine instructions; wanted: (anchors,) executions of these.

    least: (anchors,) bool, there may be more: a guarded instruction is issued whenever its segment
    runs, where the PTX jumps over it; weight: (anchors,) of each, 1 or less.
    """

    rows: np.ndarray
    wanted: np.ndarray
    least: np.ndarray
    weight: np.ndarray


class Copies:
    """How often each segment has the machine code of each PTX instruction.

    of: (segments) dicts of a PTX instruction's number -> copies; home: (segments) loops of the PTX,
    the innermost first, in which most of a segment's instructions stand; steps: (segments) copies of
    the instructions from there; of_block: (segments) dicts of a block of the PTX -> its copies.
    """

    def __init__(
        self, segments: Sequence[Segment], counted: Iterable[PtxCounts], depth: Sequence[int]
    ):
        self.depth, self.above = depth, dominators(segments)
        self.known = {one.origin: one for one in counted if one.origin >= 0}
        self.runs: defaultdict[int, float] = defaultdict(float)  # of the PTX's blocks
        above: dict[int, int] = {}
        for one in self.known.values():
            place = one.place
            self.runs[place.block] = max(self.runs[place.block], one.executions)
            if place.above:
                above[place.block] = place.above
        self.trips = {
            head: self.runs[head] / max(self.runs[up], 1e-9) for head, up in above.items()
        }
        self.guarded = [
            {code.origin for code in segment.code if code.guarded} for segment in segments
        ]
        self.of = [self._of(segment.code) for segment in segments]
        self.of_block = [self._of_block(own) for own in self.of]
        self.parts: defaultdict[tuple[int, int], set[int]] = defaultdict(set)
        for at, own in enumerate(self.of):
            for number in own:
                self.parts[self.known[number].place.block, at].add(number)
        sizes = [Counter(self.known[number].place.block for number in own) for own in self.of]
        self.largest = Counter()  # block of the PTX -> most of its instructions in one segment
        for of_segment in sizes:
            self.largest |= of_segment
        homes = [self._home(*each) for each in zip(self.of, sizes, depth, strict=True)]
        self.home, self.steps = [home for home, _ in homes], [steps for _, steps in homes]

    def _of(self, code: Sequence[Code]) -> dict[int, int]:
        """An instruction that became several has each of these once in a copy."""
        made: defaultdict[int, Counter] = defaultdict(Counter)
        for one in code:
            if one.origin in self.known and one.name not in _FLOW and not one.called:
                made[one.origin][one.name, one.parts] += 1
        found = {}
        for number, several in made.items():
            if self.known[number].kind == "tensor" or self.known[number].is_of_wmma:
                continue  # as many as the tile needs
            halves = 2 if has_two_halves(self.known[number].instruction) else 1
            found[number] = max(1, min(several.values()) // halves)
        return found

    def _of_block(self, own: dict[int, int]) -> dict[int, int]:
        """Block of the PTX -> copies that a segment has of most of its instructions."""
        found: defaultdict[int, list[int]] = defaultdict(list)
        for number, copies in own.items():
            found[self.known[number].place.block].append(copies)
        return {block: median_low(copies) for block, copies in found.items()}

    def _home(
        self, own: dict[int, int], sizes: Counter[int], depth: int
    ) -> tuple[tuple[int, ...] | None, int]:
        """(Loops, copies) of the PTX at home in a segment, within `depth` loops of machine code.

        Of a loop that machine code does not have there all steps are there, or most of one block:
        the rest of a loop that ptxas has repeated. Else it is what ptxas has moved out. What stands
        in fewer loops is computed again in each step.
        """
        nests: defaultdict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, copies in own.items():
            nests[self.known[number].place.loops].append(copies)
        whole = {self.known[n].place.loops for n in own if self._is_whole(n, sizes)}
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

    def _is_whole(self, number: int, sizes: Counter[int]) -> bool:
        block = self.known[number].place.block
        return sizes[block] >= _MOST * self.largest[block]

    def are_alike(self, block: int, first: int, other: int) -> bool:
        """Have two segments the same of a block of the PTX? Else each is a part of it.

        What is the same before a loop and in it is there to make its first step ready.
        """
        for outside, inside in ((first, other), (other, first)):
            if self.depth[outside] < self.depth[inside] and outside in self.above[inside]:
                return False
        some, others = self.parts[block, first], self.parts[block, other]
        return len(some & others) >= _MOST * len(some | others)

    def too_long(self) -> list[int]:
        """Segments with more steps of a loop of the PTX than it takes each time."""
        return [
            at
            for at, (home, steps) in enumerate(zip(self.home, self.steps, strict=True))
            if home and steps > max(1.0, _MOST_TRIPS * self.trips.get(home[0], 1.0))
        ]

    def lesser(self, at: int) -> set[int]:
        """Blocks of the PTX at a segment's home that run less often than others of it: ptxas has
        made branches around them selections.
        """
        at_home = {
            self.known[number].place.block
            for number in self.of[at]
            if self.known[number].place.loops == self.home[at]
        }
        runs = {block: self.runs[block] / self.of_block[at][block] for block in at_home}
        return {block for block, n in runs.items() if n < _ALIKE * max(runs.values())}


def anchors_of(segments: Sequence[Segment], copies: Copies) -> Anchors:
    """Return the equations of a kernel.

    Loads, stores, multiply-adds and others that are one machine instruction count as they are. Of
    arithmetic those rows of a segment's home count that several instructions have.
    """
    rows = _kinds(segments, copies) + _arithmetic(len(segments), copies)
    rows += [(row, times, False, 1.0) for row, times in _slow_paths(segments, copies)]
    return Anchors(
        np.array([row for row, *_ in rows]).reshape(-1, len(segments)),
        np.array([wanted for _, wanted, _, _ in rows]),
        np.array([least for _, _, least, _ in rows], bool),
        np.array([weight for *_, weight in rows]),
    )


def _kinds(segments, copies: Copies) -> list[tuple[np.ndarray, float, bool, float]]:
    """Rows of the instructions that have a kind. Of one block of the PTX those alike are one row;
    where it has as many copies of most others, what has more or fewer of them has little weight.
    """
    rows: defaultdict[int, Counter] = defaultdict(Counter)
    for at, segment in enumerate(segments):
        for code in segment.code:
            one = copies.known.get(code.origin)
            if one is not None and joins(one, code):
                rows[code.origin][at] += 1
    alike: Counter = Counter()
    for number, of_segments in rows.items():
        one = copies.known[number]
        if not any(_foreign(one, copies, at) for at in of_segments):
            least = any(number in copies.guarded[at] for at in of_segments)
            usual = all(
                count == copies.of_block[at].get(one.place.block, count)
                for at, count in of_segments.items()
            )
            weight = 1.0 if usual and " " in one.kind else LIGHT
            alike[tuple(of_segments.items()), float(one.machine_instructions), least, weight] += 1
    found = []
    for (own, times, least, weight), count in alike.items():
        row = np.zeros(len(segments))
        row[[at for at, _ in own]] = [n for _, n in own]
        found.append((row, times, least, max(weight, min(FIRM, weight * count))))
    return found


def joins(one: PtxCounts, code: Code) -> bool:
    """Is a machine instruction run as often as its PTX instruction, once for each copy?"""
    if not one.kind or one.merged or one.is_of_wmma or KINDS.get(code.name) != one.kind:
        return False
    if is_long(one.instruction) and not has_slow_path(one.instruction.opcode):
        return False
    fused = code.name in ("FFMA", "DFMA") and not one.instruction.opcode.startswith("fma")
    return not fused


def _foreign(one: PtxCounts, copies: Copies, at: int) -> bool:
    """Has ptxas moved it out of a loop that it stands in, or into one that it does not?"""
    home = copies.home[at]
    if home is None or home == one.place.loops:
        return False
    inner, outer = sorted((home, one.place.loops), key=len, reverse=True)
    return inner[len(inner) - len(outer) :] == outer


def _arithmetic(size: int, copies: Copies) -> list[tuple[np.ndarray, float, bool, float]]:
    """Rows of what stands in one block of the PTX and in the same segments as often."""
    lesser = [copies.lesser(at) if copies.home[at] is not None else set() for at in range(size)]
    places: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for at, own in enumerate(copies.of):
        for number, count in own.items():
            places[number][at] = count
    alike: Counter = Counter()
    for number, own in places.items():
        one = copies.known[number]
        block = one.place.block
        if any(copies.home[at] != one.place.loops for at in own):
            continue
        if any(count != copies.steps[at] for at, count in own.items()):
            continue
        if not all(copies.are_alike(block, *two) for two in combinations(own, 2)):
            continue
        least = any(block in lesser[at] or number in copies.guarded[at] for at in own)
        alike[tuple(own.items()), copies.runs[block], least] += 1
    found = []
    for (own, times, least), count in alike.items():
        row = np.zeros(size)
        row[[at for at, _ in own]] = [n for _, n in own]
        found.append((row, float(times), least, LIGHT * min(1.0, count / _ENOUGH)))
    return found


def _slow_paths(segments, copies: Copies) -> list[tuple[np.ndarray, float]]:
    """((segments,) calls of slow paths, how often warps call them) of each instruction."""
    found = []
    for number, one in copies.known.items():
        if has_slow_path(one.instruction.opcode):
            calls = [sum(c.name == "CALL" and c.origin == number for c in s.code) for s in segments]
            if any(calls):
                found.append((np.array(calls), float(one.counts["slow_paths"])))
    return found


def by_line(count: int, anchors: Anchors, warps: int) -> np.ndarray:
    """Executions of code with very many segments: each by its own anchors, else once a warp."""
    rows, wanted = anchors.rows, anchors.wanted
    if not len(rows):
        return np.full(count, float(warps))
    each = wanted / np.maximum(rows.sum(1), 1)
    share = rows.sum(0)
    return np.where(share > 0, (rows * each[:, None]).sum(0) / np.maximum(share, 1), warps)
