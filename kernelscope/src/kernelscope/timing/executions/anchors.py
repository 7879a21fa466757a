"""Equations of the instructions that the PTX and machine code both have, by line and kind."""

from collections import Counter, defaultdict
from dataclasses import dataclass

import numpy as np

from ..machine_code import codes
from .counts import PtxCounts, may_fuse, of_several
from .kinds import KINDS, has_slow_path
from .loops import Loops
from .weak_anchors import LIGHT, weak_anchors

ONCE = 1.02  # times the steps of a loop: more often no instruction of it runs


@dataclass(frozen=True)
class Anchors:
    """rows: (anchors, segments) machine instructions, or runs of a segment less a share of those of
    another; wanted: (anchors,) executions of these.

    least: (anchors,) bool, there may be more: a guarded instruction is issued whenever its segment
    runs, where the PTX jumps over it, and a sum may be part of a multiply-add or not; weight:
    (anchors,) of each, 1 or less.
    """

    rows: np.ndarray
    wanted: np.ndarray
    least: np.ndarray
    weight: np.ndarray


def anchors_of(segments, counted: list[PtxCounts], loops: Loops) -> Anchors:
    """Join the PTX and the machine code by instructions of one line and kind.

    Where these would have to run more often than the loop that they are in, ptxas has left out
    some that the PTX does twice: they have little weight.
    """
    members: defaultdict[tuple[int, str], dict[int, list[float]]] = defaultdict(dict)
    several, fused = of_several(counted), may_fuse(counted)
    for one in counted:
        known = one.kind and not one.merged and id(one) not in fused and not one.is_of_wmma
        if known and (one.line, one.kind) not in several:
            of_block = members[one.line, one.kind].setdefault(one.place.block, [])
            of_block.append(one.machine_instructions)
    loop_of = {one.place.block: (*one.place.loops, 0)[0] for one in counted}
    depth_of = {one.place.block: len(one.place.loops) for one in counted}
    nest_of = {one.place.block: one.place.loops for one in counted}
    steps: defaultdict[tuple[int, ...], float] = defaultdict(float)  # of each nest of loops
    for one in counted:
        steps[one.place.loops] = max(steps[one.place.loops], one.executions)
    keys, rows, wanted, weights = [], [], [], []
    for key, blocks in members.items():
        most = max(steps[nest_of[block]] for block in blocks)
        # A sum that ptxas computes again in each step of a loop inside is not the PTX's.
        deepest = max(depth_of[block] for block in blocks)
        again = key[1] in ("float32", "float64")
        own = {at for at, n in enumerate(loops.depth) if n <= deepest or not again}
        for row, times in _of_one_kind(own, key, blocks, loop_of, loops):
            keys.append(key)
            rows.append(row)
            wanted.append(times)
            left_out = times > ONCE * most * row.sum() and key[1] != "shared atomic"
            weights.append(LIGHT if left_out else 1.0)
    weak = weak_anchors(segments, counted, sum(rows, np.zeros(len(segments))) > 0, loops)
    weak += [(*one, 1.0) for one in _slow_paths(segments, counted)]
    more = {(c.line, KINDS.get(c.name, "")) for _, c in codes(segments) if c.guarded}
    more |= set(fused.values())
    return Anchors(
        np.array(rows + [row for row, _, _ in weak]).reshape(-1, len(segments)),
        np.array(wanted + [times for _, times, _ in weak]),
        np.array([key in more for key in keys] + [False] * len(weak), bool),
        np.array(weights + [weight for _, _, weight in weak]),
    )


def _of_one_kind(
    own: set[int], key: tuple[int, str], blocks: dict[int, list[float]], loop_of, loops: Loops
) -> list[tuple[np.ndarray, float]]:
    """((segments,) machine instructions of a line and kind, their executions) of each anchor.

    own: numbers of the segments that count; blocks: of the PTX -> executions of each such
    instruction there. An anchor is those of a block. The compiler's loop of four steps may be one
    of 16 in machine code, but not of three: a segment's instructions belong to the largest block
    that divides them. Where not every block is found so, an anchor is those of a loop of the PTX
    and its copies, or all of them.
    """
    size, copies = len(loops.segments), loops.copies
    rows: defaultdict[int | None, np.ndarray] = defaultdict(lambda: np.zeros(size))
    for at, has in enumerate(loops.has):
        count = has[key]
        if count and at in own:
            fits = [block for block, each in blocks.items() if count % len(each) == 0]
            rows[max(fits, key=lambda b: len(blocks[b])) if fits else None][at] += count
    if not rows:
        return []
    if set(rows) == set(blocks):
        return [(row, sum(blocks[block])) for block, row in rows.items()]
    all_of_them, heads = sum(rows.values()), {head for head, _ in copies.values()}
    parts, twins = [], {block: loops.twin.get(loop_of[block], 0) for block in blocks}
    for head in {twins[block] * (twins[block] in heads) for block in blocks}:
        home = [copies.get(at, (0, 0.0))[0] == head for at in range(size)]
        inside = [b for b in blocks if twins[b] * (twins[b] in heads) == head]
        parts.append((all_of_them * home, sum(sum(blocks[block]) for block in inside)))
    complete = sum(row for row, _ in parts).sum() == all_of_them.sum()
    if complete and all(row.any() for row, _ in parts):
        return parts
    return [(all_of_them, sum(map(sum, blocks.values())))]


def _slow_paths(segments, counted: list[PtxCounts]) -> list[tuple[np.ndarray, float]]:
    """((segments,) calls of slow paths, how often warps call them) of each line that has any."""
    times: Counter[int] = Counter()
    for one in counted:
        if has_slow_path(one.instruction.opcode):
            times[one.line] += one.counts["slow_paths"]
    found = []
    for line, wanted in sorted(times.items()):
        calls = [sum(c.name == "CALL" and c.line == line for c in s.code) for s in segments]
        if any(calls):
            found.append((np.array(calls), float(wanted)))
    return found


def by_line(count: int, anchors: Anchors, warps: int) -> np.ndarray:
    """Executions of code with very many segments: each by its own anchors, else once a warp.

    Rows that compare two segments, such as those of branches, count nothing.
    """
    own = (anchors.rows >= 0).all(1) & anchors.rows.any(1)
    rows, wanted = anchors.rows[own], anchors.wanted[own]
    if not len(rows):
        return np.full(count, float(warps))
    each = wanted / rows.sum(1)
    share = rows.sum(0)
    return np.where(share > 0, (rows * each[:, None]).sum(0) / np.maximum(share, 1), warps)
