"""Equations of code without an instruction of a kind: by loops, lines of arithmetic, branches."""

from collections import defaultdict

import numpy as np

from ..machine_code import predecessors
from .counts import PtxCounts
from .kinds import code_is_product, code_is_work, divides_integers, is_long, is_product, is_work
from .loops import Loops

LIGHT = 0.1  # weight of a branch, and of the steps of a loop that has loads and so on as anchors
_LIGHTER = 0.03  # ... of a branch around code that has anchors
_OF_DIVISION = 16  # machine instructions of one division of integers, about


def weak_anchors(
    segments, counted, anchored: np.ndarray, loops: Loops
) -> list[tuple[np.ndarray, float, float]]:
    """((segments,) machine instructions, executions, weight) of loops, and of divisions of
    integers, without an anchor. The steps of other loops, and branches, have little weight.

    ptxas makes one product of one product; where a loop has none, of all arithmetic of its lines
    about as many instructions.
    """
    anchors = {at for at in range(len(segments)) if anchored[at]}
    bare = [one for one in loops.machine if not anchors & (one.body - loops.inside[one.header])]
    light = loops.iterations([one for one in loops.machine if one not in bare])
    steps = loops.iterations(bare)
    stepped = {header for _, *headers in steps for header in headers}
    found: dict[tuple[int, ...], tuple[np.ndarray, float]] = {}  # by lines
    for loop in bare:
        if loop.header in stepped or anchors & loop.body:
            continue
        lines = {code.line for at in loop.body for code in segments[at].code} - {0}
        own = {line: [one for one in counted if one.line == line] for line in sorted(lines)}
        products = {}
        for line, rows in own.items():
            if not any(is_long(one.instruction) for one in rows):
                row, times = _joined(segments, {line}, rows, is_product, code_is_product)
                if times and row[list(loop.body)].any():
                    products[line,] = row, times
        rows = [one for of_line in own.values() for one in of_line]
        all_work = _joined(segments, lines, rows, is_work, code_is_work)
        found |= products or ({tuple(own): all_work} if all_work[1] else {})
    so_far = [*steps.values(), *found.values()]
    joined = anchored | (sum((row for row, _ in so_far), 0.0 * anchored) > 0)
    divided = {one.line for one in counted if divides_integers(one.instruction)}
    of_divisions = []
    for line in sorted(divided):
        of_line = [one for one in counted if one.line == line]
        divides = [one for one in of_line if divides_integers(one.instruction)]
        deepest = max(len(one.place.loops) for one in divides)
        rows = [one for one in of_line if len(one.place.loops) <= deepest]
        row, times = _joined(segments, {line}, rows, is_work, code_is_work)
        row = row * (np.array(loops.depth) <= deepest)  # not the steps of a loop that it is before
        if times and (row[~joined] >= _OF_DIVISION).any():
            of_divisions.append((row, times, LIGHT))
    weak = [(*one, 1.0) for one in [*steps.values(), *found.values()]]
    weak += [*of_divisions, *((*one, LIGHT) for one in light.values())]
    return weak + _branches(segments, anchors, counted)


def _branches(segments, anchors: set[int], counted) -> list[tuple[np.ndarray, float, float]]:
    """Rows of segments that a branch leads around: as large a share of the warps as in the PTX runs
    them, by the lines of the branch and behind it. Those that have an anchor have less weight.
    """
    blocks: defaultdict[int, list[PtxCounts]] = defaultdict(list)
    for one in counted:
        blocks[one.place.block].append(one)
    taken: defaultdict[tuple[int, int], list[float]] = defaultdict(lambda: [0.0, 0.0, 0])
    for own in blocks.values():
        before = blocks.get(own[0].place.before, [])
        first = next((one.line for one in own if is_work(one.instruction)), 0)
        if first and before and before[-1].instruction.opcode.startswith("bra"):
            both = taken[before[-1].line, first]
            both[0] += own[0].executions
            both[1] += before[-1].executions
            both[2] += 1
    warps = max((one.executions for one in counted if not one.place.loops), default=0)
    found, leading = [], predecessors(segments)
    for at, segment in enumerate(segments):
        called = any(code.name == "CALL" for code in segment.code)
        if called or len(leading[at]) != 1 or len(segment.follows) != 1:
            continue
        (before,) = leading[at]
        if {at, *segment.follows} != set(segments[before].follows):
            continue
        branch = segments[before].code[-1]
        lines = dict.fromkeys(code.line for code in segment.code if code_is_work(code))
        some = next((taken[branch.line, line] for line in lines if (branch.line, line) in taken), 0)
        if branch.name == "BRA" and some and some[1]:
            row = np.zeros(len(segments))
            row[at], row[before] = 1.0, -some[0] / some[1]
            weight = _LIGHTER if at in anchors else LIGHT
            found.append((row, 0.0, weight * warps * some[2] / some[1]))
    return found


def _joined(segments, lines, counted, in_ptx, in_code) -> tuple[np.ndarray, float]:
    """((segments,) instructions of some lines that are `in_code`, executions of those `in_ptx`)."""
    times = sum(
        one.executions * (_OF_DIVISION if is_long(one.instruction) else 1)
        for one in counted
        if in_ptx(one.instruction)
    )
    row = [sum(code.line in lines and in_code(code) for code in s.code) for s in segments]
    return np.array(row), float(times)
