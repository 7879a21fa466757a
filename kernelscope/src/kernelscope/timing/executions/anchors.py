"""Equations that join PTX and machine code: each machine instruction's PTX instruction is known."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from ..machine_code import Code, Segment, codes
from .copies import SegmentCopies
from .counts import PtxCounts
from .kinds import KINDS, has_slow_path, is_long

# Weights: of arithmetic, of which ptxas leaves out, moves and repeats some, from so many
# instructions on; of two and more alike that are one machine instruction each; of loads, stores
# and atomics 1.
LIGHT, _ENOUGH, FIRM = 0.3, 4, 0.5


_Row = tuple[np.ndarray, float, bool, float]  # of Anchors: rows, wanted, least, weight


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


def anchors_of(segments: Sequence[Segment], copies: SegmentCopies) -> Anchors:
    """Return the equations of a kernel.

    Loads, stores and atomics count most, then what else is one machine instruction. Of arithmetic,
    of which these are too, those rows of a segment's home count more that several have.
    """
    rows = _kinds(segments, copies) + _arithmetic(len(segments), copies)
    rows += [(row, times, False, 1.0) for row, times in _slow_paths(segments, copies)]
    return Anchors(
        np.array([row for row, *_ in rows]).reshape(-1, len(segments)),
        np.array([wanted for _, wanted, _, _ in rows]),
        np.array([least for _, _, least, _ in rows], bool),
        np.array([weight for *_, weight in rows]),
    )


def _kinds(segments, copies: SegmentCopies) -> list[_Row]:
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
                copies.of_block(at, one.place.block) in (0, count)
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


def _foreign(one: PtxCounts, copies: SegmentCopies, at: int) -> bool:
    """Has ptxas moved it out of a loop that it stands in, or into one that it does not?"""
    home = copies.home[at]
    if home is None or home == one.place.loops:
        return False
    inner, outer = sorted((home, one.place.loops), key=len, reverse=True)
    return inner[len(inner) - len(outer) :] == outer


def _arithmetic(size: int, copies: SegmentCopies) -> list[_Row]:
    """Rows of what stands in one block of the PTX and in the same segments as often."""
    lesser = [copies.lesser(at) for at in range(size)]
    places: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for at in range(size):
        for number, count in copies.of(at).items():
            places[number][at] = count
    alike_in = {
        (block, own): all(copies.are_alike(block, *two) for two in combinations(own, 2))
        for block, own in {(copies.known[n].place.block, tuple(own)) for n, own in places.items()}
    }
    alike: Counter = Counter()
    for number, own in places.items():
        one = copies.known[number]
        block = one.place.block
        if any(copies.home[at] != one.place.loops for at in own):
            continue
        if any(count != copies.steps[at] for at, count in own.items()):
            continue
        if not copies.having[block] <= own.keys():  # ptxas has left it out of a copy
            continue
        if not alike_in[block, tuple(own)]:
            continue
        least = any(block in lesser[at] or number in copies.guarded[at] for at in own)
        alike[tuple(own.items()), copies.runs[block], least] += 1
    found = []
    for (own, times, least), count in alike.items():
        row = np.zeros(size)
        row[[at for at, _ in own]] = [n for _, n in own]
        found.append((row, float(times), least, LIGHT * min(1.0, count / _ENOUGH)))
    return found


def _slow_paths(segments, copies: SegmentCopies) -> list[tuple[np.ndarray, float]]:
    """((segments,) calls of slow paths, how often warps call them) of each instruction."""
    calls: defaultdict[int, np.ndarray] = defaultdict(lambda: np.zeros(len(segments)))
    for at, code in codes(segments):
        one = copies.known.get(code.origin)
        if code.name == "CALL" and one is not None and has_slow_path(one.instruction.opcode):
            calls[code.origin][at] += 1
    return [(row, float(copies.known[n].counts["slow_paths"])) for n, row in calls.items()]


def by_own_anchors(count: int, anchors: Anchors, warps: int) -> np.ndarray:
    """Executions of code with very many segments: each by its own anchors, else once a warp."""
    if not len(anchors.rows):
        return np.full(count, float(warps))
    each = anchors.wanted / np.maximum(anchors.rows.sum(1), 1)
    rows = anchors.rows * anchors.weight[:, None]
    share = rows.sum(0)
    return np.where(share > 0, (rows * each[:, None]).sum(0) / np.maximum(share, 1e-9), warps)
