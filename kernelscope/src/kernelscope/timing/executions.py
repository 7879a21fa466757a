"""How often each segment of machine code ran, from what the simulator counted of its PTX.

The two are joined by what both have: loads, stores, multiply-adds, barriers of a source line. The
counts of the segments are the numbers >= 0 that execute these as often as the simulator counted,
by which as many warps enter a segment as leave it, and which need the fewest instructions. Loops
that have none of these run as often as the loop of the PTX that has their lines; others are joined
by integer products, or else by all arithmetic of a line.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..ptx.syntax import Address, Instruction
from .machine_code import Code, NaturalLoop, Segment, dominators, loops_of

KINDS = {
    **dict.fromkeys(("LDG", "LD"), "global load"),
    "LDGSTS": "async copy",
    **dict.fromkeys(("STG", "ST"), "global store"),
    **dict.fromkeys(("LDS", "LDSM"), "shared load"),
    **dict.fromkeys(("STS", "STSM"), "shared store"),
    **dict.fromkeys(("ATOM", "ATOMG", "RED", "REDG"), "global atomic"),
    **dict.fromkeys(("ATOMS",), "shared atomic"),
    "LDL": "local load",
    "STL": "local store",
    **dict.fromkeys(("FFMA", "FMUL", "FADD"), "float32"),
    **dict.fromkeys(("DFMA", "DMUL", "DADD"), "float64"),
    **dict.fromkeys(("HMMA", "IMMA", "DMMA", "HGMMA", "QGMMA", "IGMMA"), "tensor"),
    "MUFU": "mufu",
    "BAR": "barrier",
    "SHFL": "shuffle",
    "POPC": "popc",
    "FCHK": "division",
}
_FLOW_WEIGHT, _LENGTH_WEIGHT = 0.5, 1e-3
_PASSES, _SETTLED = 5, 1e-4
_PATIENCE = 3
MOST_UNKNOWNS = 600
OUT = -2  # where an edge ends that leaves the kernel: what a guarded EXIT lets end
MOST_PIVOTS = 60  # exchanges of sides; where rounding keeps variables changing, no more helps
MOST_SUSPECTS = 12
_WAYS = {"ld": "load", "st": "store", "atom": "atomic", "red": "atomic"}
_NO_WORK = frozenset(  # neither in PTX nor in machine code: the two need not have as many
    "mov cvta ld st pragma bra brx ret exit bar barrier NOP MOV BRA BRX EXIT BAR BSSY BSYNC".split()
)
_LIGHT = 0.1  # weight of a branch, and of the steps of a loop that has loads and so on as anchors
_LIGHTER = 0.03  # ... of a branch around code that has anchors
_MOST_TRIPS = 1.5  # times the mean of a loop's trips: longer variants of it are left out
_NOISE = 5e-3  # of the warps: what is left of a way that none takes
_HARDLY, _SURE = 1e-2, 0.1  # how much worse the anchors may fit without segments
_ALIKE = 0.7  # share of their lines that two loops have in common, if they are one
_OF_DIVISION = 16  # machine instructions of one division of integers, about
_FUNCTIONS = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "tanh")
_NO_PRODUCT = ("MOV", "SHL", "IADD", "X")  # parts of an IMAD that moves, shifts or adds


@dataclass(frozen=True)
class BlockPlace:
    """Where a PTX instruction stands. block: number of its basic block, from 1; loops: the blocks
    that head the loops around it, the innermost first; above: of a block that heads a loop, the
    nearest block outside that every way to it passes, 0 for none; before: the only block that leads
    to it, 0 for none or several.
    """

    block: int = 0
    loops: tuple[int, ...] = ()
    above: int = 0
    before: int = 0


@dataclass(frozen=True)
class PtxCounts:
    """One PTX instruction: its line, how often warps executed it, and the counts of Counters.

    l1_missing: share of the sectors that it loads which L1 does not have; l1_waiting: share of its
    requests that wait for any; first_bytes: of the pieces of DRAM that it touches before any other,
    None: not followed; touching: share of its requests that do; lost_bytes: that it loads again
    when L2 has lost them; losing: share of its requests that do; of_warps: (warps of a block,)
    executions, summed over blocks.
    """

    instruction: Instruction
    line: int
    executions: int
    counts: Counter
    merged: bool  # into another shared access
    place: BlockPlace = BlockPlace()
    l1_missing: float = 1.0
    l1_waiting: float = 1.0
    first_bytes: float | None = None
    touching: float = 1.0
    lost_bytes: float = 0.0
    losing: float = 0.0
    of_warps: np.ndarray | None = None

    @cached_property
    def kind(self) -> str:
        """As of KINDS; "" where machine code has no single instruction for it."""
        parts = self.instruction.opcode.split(".")
        if self.counts["tensor_instructions"]:
            return "tensor"
        if self.counts["async_copy_requests"]:
            return "async copy"
        if self.counts["constant_load_passes"] > self.executions:  # addresses of a warp differ
            return "constant load"
        if self.counts["far_atomic_sectors"]:  # ATOM does it, as of global memory
            return "global atomic"
        for space in ("global", "shared", "local"):
            for way in ("load", "store", "atomic"):
                if self.counts[f"{space}_{way}_requests"]:
                    return f"{space} {way}"
        if not self.executions and parts[0] in _WAYS:  # it never ran
            space = next((part for part in parts if part in ("global", "shared", "local")), "")
            return f"{space} {_WAYS[parts[0]]}" if space else ""
        if has_slow_path(self.instruction.opcode):
            return {"div": "division", "sqrt": "mufu"}.get(parts[0], "")
        if parts[0] in ("fma", "mul", "add", "sub") and parts[-1] in ("f32", "f64"):
            return "float32" if parts[-1] == "f32" else "float64"
        if parts[0] in ("ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt"):
            return "mufu" if "approx" in parts else ""
        if parts == ["popc", "b32"]:
            return "popc"
        return {"bar": "barrier", "barrier": "barrier", "shfl": "shuffle"}.get(parts[0], "")

    @property
    def is_of_wmma(self) -> bool:
        """Does it load or store a tile, which is several instructions of machine code?"""
        return self.instruction.opcode.startswith(("wmma.load", "wmma.store"))

    @property
    def machine_instructions(self) -> int:
        """How often warps execute such instructions of machine code for it."""
        if self.kind == "tensor":
            return self.counts["tensor_instructions"]
        return self.counts["shared_atomic_wavefronts"] if self.swaps else self.executions

    @property
    def swaps(self) -> bool:
        """Is it a loop of ATOMS.CAS in machine code? Lanes that want one address take turns."""
        is_float = self.instruction.opcode.rsplit(".", 1)[-1].startswith(("f", "bf"))
        return is_float and self.kind == "shared atomic"


def has_slow_path(opcode: str) -> bool:
    """Is it an operation on floats, rounded to nearest, for which ptxas may call a function?"""
    root, *parts = opcode.split(".")
    return root in ("div", "rcp", "sqrt") and "rn" in parts and parts[-1] == "f32"


def of_several(counted: Iterable[PtxCounts]) -> set[tuple[int, str]]:
    """(line, kind) of machine instructions that belong to more than the PTX of that kind: ptxas
    makes products and sums of divisions, of roots, and to scale the arguments of functions.
    """
    found = {
        (one.line, kind)
        for one in counted
        if _is_long(one.instruction)
        for kind in ("float32", "float64", "mufu")
        if kind != one.kind  # a root rounded to nearest has one MUFU.RSQ on all its ways
    }
    # ptxas counts the lanes of a warp that add to one address, and lets one of them add.
    return found | {(one.line, "popc") for one in counted if one.kind.endswith("atomic")}


def _is_long(instruction: Instruction) -> bool:
    root, *parts = instruction.opcode.split(".")
    if root in ("div", "rem", "sin", "cos"):
        return True
    return root in _FUNCTIONS and not {"approx", "ftz"} <= {*parts}


def may_fuse(counted: Iterable[PtxCounts]) -> dict[int, tuple[int, str]]:
    """Sums of floats, by their ids, of which ptxas may make one multiply-add with a product of the
    same line and basic block -> (line, kind).
    """
    products: Counter = Counter()
    sums: defaultdict[tuple, list[PtxCounts]] = defaultdict(list)
    for one in counted:
        root, *parts = one.instruction.opcode.split(".")
        if one.kind in ("float32", "float64") and "rn" not in parts:
            key = one.line, one.kind, one.place.block
            if root == "mul":
                products[key] += 1
            elif root in ("add", "sub"):
                sums[key].append(one)
    return {id(one): key[:2] for key, own in sums.items() for one in own[: products[key]]}


def executions(
    segments: tuple[Segment, ...], counted: Iterable[PtxCounts], warps: int
) -> tuple[np.ndarray, dict[tuple[int, int], float]]:
    """Return ((segments,) executions, summed over warps; the same of each edge between two)."""
    counted = list(counted)
    edges = [(-1, 0)] + [(at, to) for at, s in enumerate(segments) for to in s.follows]
    edges += [(at, OUT) for at, s in enumerate(segments) if s.follows and s.code[-1].name == "EXIT"]
    loops = _Loops(segments, counted)
    anchors = _anchors(segments, counted, loops)
    if len(edges) > MOST_UNKNOWNS:
        return _by_line(len(segments), anchors, warps), {}
    system = _System(segments, edges, anchors, loops.machine, warps)
    found = system.without(loops.too_long(), system.solve(), _SURE)
    for suspect in system.suspects(found)[:MOST_SUSPECTS]:
        found = system.without([suspect], found)
    edge_counts = {edge: float(count) for edge, count in zip(edges, found, strict=True)}
    return system.entered @ found, edge_counts


class _System:
    """The equations for the edges' counts. allowed: (edges,) bool, those that may be taken."""

    def __init__(
        self, segments, edges: list, anchors: "_Anchors", loops: list[NaturalLoop], warps: int
    ):
        self.segments, self.edges, self.loops, self.warps = segments, edges, loops, warps
        rows, wanted = anchors.rows, anchors.wanted
        self.entered = np.zeros((len(segments), len(edges)))
        self.left = np.zeros_like(self.entered)
        for number, (start, end) in enumerate(edges):
            if end != OUT:
                self.entered[end, number] = 1
            if start >= 0:
                self.left[start, number] = 1
        scale = np.where(wanted >= 1, wanted, warps)  # what never runs is no heavier than others
        self.matrix = rows @ self.entered / scale[:, None] * anchors.weight[:, None]
        self.goal = np.minimum(wanted, 1.0) * anchors.weight
        self.more = -np.eye(len(wanted))[:, anchors.least]  # how far beyond a least one may be
        self.length = np.array([len(s.code) for s in segments]) @ self.entered
        self.flowing = [at for at, s in enumerate(segments) if s.follows]
        self.allowed = np.ones(len(edges), bool)

    def error(self, found: np.ndarray) -> float:
        """How far off the anchors are, relative, summed."""
        beyond = self.matrix @ found - self.goal
        beyond[self.more.any(1)] = np.minimum(beyond[self.more.any(1)], 0.0)
        return float(np.abs(beyond).sum())

    def solve(self, guess: np.ndarray | None = None) -> np.ndarray:
        """(edges,) counts. guess: those of a system that is nearly the same."""
        first = np.zeros((1, len(self.edges)))
        first[0, 0] = 10.0 / self.warps
        size = np.full(len(self.segments), float(self.warps))
        found = np.zeros(len(self.edges))
        kept, slack = int(self.allowed.sum()), self.more.shape[1]
        positive = (
            None if guess is None else np.append(guess[self.allowed] > 0, np.zeros(slack, bool))
        )
        for number in range(_PASSES):
            weight = _FLOW_WEIGHT / size[self.flowing]
            flow = (self.entered - self.left)[self.flowing] * weight[:, None]
            total = max(float(self.length @ found), self.warps * self.length.max())
            short = _LENGTH_WEIGHT * self.length[None] / total
            enters, times = self._entries(self.entered @ found if number else None)
            system = np.concatenate([self.matrix, first, flow, short, enters])
            right = np.concatenate([self.goal, [10.0], np.zeros(len(flow) + 1), times])
            before, found = found, np.zeros(len(self.edges))
            more = np.zeros((len(right), slack))
            more[: len(self.more)] = self.more
            system = np.hstack([system[:, self.allowed] * self.warps, more])
            part = nonnegative(system, right, positive)
            positive = part > 0
            found[self.allowed] = self.warps * part[:kept]
            if number > 1 and np.abs(found - before).max() < _SETTLED * self.warps:
                break
            size = np.maximum(self.entered @ found, 1e-3 * self.warps)
        return found

    def without(self, left_out: list[int], found: np.ndarray, worse: float = _HARDLY) -> np.ndarray:
        """Return the counts with some segments never entered, or `found` if these fit worse."""
        if not left_out:
            return found
        allowed = self.allowed.copy()
        self.allowed[[end in left_out for _, end in self.edges]] = False
        other = self.solve(found)
        if self.error(other) > self.error(found) + worse:
            self.allowed = allowed
            return found
        return other

    def suspects(self, found: np.ndarray) -> list[int]:
        """Segments that fewer warps enter than pass above them: there ptxas may have left several
        ways for one loop, of which the warps took another.
        """
        counts, above = self.entered @ found, dominators(self.segments)
        heads = {loop.header for loop in self.loops}
        named = [at for at in range(1, len(counts)) if at in heads or self.matrix_uses(at)]
        most = {at: 0.98 * max((counts[up] for up in above[at]), default=0.0) for at in named}
        found = [at for at in named if 1e-3 * self.warps < counts[at] < most[at]]
        return sorted(found, key=lambda at: -len(self.segments[at].code))

    def matrix_uses(self, at: int) -> bool:
        """Has a segment anchors?"""
        return bool(self.matrix[:, self.entered[at] > 0].any())

    def _entries(self, counts: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Rows that let warps enter the loops that run: without them a loop may feed itself.

        A loop is entered as often as the nearest segment above it that runs.
        """
        rows, times = [], []
        for loop in self.loops if counts is not None else ():
            runs = float(counts[loop.header])
            few = 1e-3 * self.warps
            above = next((counts[at] for at in loop.above if counts[at] > _NOISE * self.warps), 0.0)
            wanted = min(runs, float(above))
            if wanted > few:
                into = [end == loop.header and start not in loop.body for start, end in self.edges]
                rows.append(np.array(into) / wanted)
                times.append(1.0)
        return np.array(rows).reshape(-1, len(self.edges)), np.array(times)


@dataclass(frozen=True)
class _Anchors:
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


def _anchors(segments, counted: list[PtxCounts], loops: "_Loops") -> _Anchors:
    """Join the PTX and the machine code by instructions of one line and kind."""
    members: defaultdict[tuple[int, str], dict[int, list[float]]] = defaultdict(dict)
    several, fused = of_several(counted), may_fuse(counted)
    for one in counted:
        known = one.kind and not one.merged and id(one) not in fused and not one.is_of_wmma
        if known and (one.line, one.kind) not in several:
            of_block = members[one.line, one.kind].setdefault(one.place.block, [])
            of_block.append(one.machine_instructions)
    loop_of = {one.place.block: (*one.place.loops, 0)[0] for one in counted}
    depth_of = {one.place.block: len(one.place.loops) for one in counted}
    keys, rows, wanted = [], [], []
    for key, blocks in members.items():
        # A sum that ptxas computes again in each step of a loop inside is not the PTX's.
        deepest = max(depth_of[block] for block in blocks)
        again = key[1] in ("float32", "float64")
        own = {at for at, n in enumerate(loops.depth) if n <= deepest or not again}
        for row, times in _of_one_kind(own, key, blocks, loop_of, loops):
            keys.append(key)
            rows.append(row)
            wanted.append(times)
    weak = _weak_anchors(segments, counted, sum(rows, np.zeros(len(segments))) > 0, loops)
    weak += [(*one, 1.0) for one in _slow_paths(segments, counted)]
    more = {(c.line, KINDS.get(c.name, "")) for _, c in codes(segments) if c.guarded}
    more |= set(fused.values())
    return _Anchors(
        np.array(rows + [row for row, _, _ in weak]).reshape(-1, len(segments)),
        np.array(wanted + [times for _, times, _ in weak]),
        np.array([key in more for key in keys] + [False] * len(weak), bool),
        np.array([1.0] * len(rows) + [weight for _, _, weight in weak]),
    )


def _of_one_kind(
    own: set[int], key: tuple[int, str], blocks: dict[int, list[float]], loop_of, loops: "_Loops"
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


def _weak_anchors(
    segments, counted, anchored: np.ndarray, loops: "_Loops"
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
            if not any(_is_long(one.instruction) for one in rows):
                row, times = _joined(segments, {line}, rows, _is_product, _code_is_product)
                if times and row[list(loop.body)].any():
                    products[line,] = row, times
        rows = [one for of_line in own.values() for one in of_line]
        all_work = _joined(segments, lines, rows, _is_work, _code_is_work)
        found |= products or ({tuple(own): all_work} if all_work[1] else {})
    so_far = [*steps.values(), *found.values()]
    joined = anchored | (sum((row for row, _ in so_far), 0.0 * anchored) > 0)
    divided = {one.line for one in counted if _divides_integers(one.instruction)}
    of_divisions = []
    for line in sorted(divided):
        of_line = [one for one in counted if one.line == line]
        divides = [one for one in of_line if _divides_integers(one.instruction)]
        deepest = max(len(one.place.loops) for one in divides)
        rows = [one for one in of_line if len(one.place.loops) <= deepest]
        row, times = _joined(segments, {line}, rows, _is_work, _code_is_work)
        row = row * (np.array(loops.depth) <= deepest)  # not the steps of a loop that it is before
        if times and (row[~joined] >= _OF_DIVISION).any():
            of_divisions.append((row, times, _LIGHT))
    weak = [(*one, 1.0) for one in [*steps.values(), *found.values()]]
    weak += [*of_divisions, *((*one, _LIGHT) for one in light.values())]
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
        first = next((one.line for one in own if _is_work(one.instruction)), 0)
        if first and before and before[-1].instruction.opcode.startswith("bra"):
            both = taken[before[-1].line, first]
            both[0] += own[0].executions
            both[1] += before[-1].executions
            both[2] += 1
    warps = max((one.executions for one in counted if not one.place.loops), default=0)
    found = []
    for at, segment in enumerate(segments):
        before = [up for up, other in enumerate(segments) if at in other.follows]
        called = any(code.name == "CALL" for code in segment.code)
        if called or len(before) != 1 or len(segment.follows) != 1:
            continue
        if {at, *segment.follows} != set(segments[before[0]].follows):
            continue
        branch = segments[before[0]].code[-1]
        lines = dict.fromkeys(code.line for code in segment.code if _code_is_work(code))
        some = next((taken[branch.line, line] for line in lines if (branch.line, line) in taken), 0)
        if branch.name == "BRA" and some and some[1]:
            row = np.zeros(len(segments))
            row[at], row[before[0]] = 1.0, -some[0] / some[1]
            weight = _LIGHTER if at in anchors else _LIGHT
            found.append((row, 0.0, weight * warps * some[2] / some[1]))
    return found


class _PtxLoop:
    """A loop of the PTX. members: its instructions, those of loops inside among them."""

    def __init__(self, head: int, members: list[PtxCounts], of_block: dict[int, float]):
        self.steps = of_block[head]
        self.outer = any(one.place.loops[0] != head for one in members)
        above = next((one.place.above for one in members if one.place.block == head), 0)
        self.entries = of_block.get(above, self.steps)
        self.own = [one for one in members if one.place.loops[0] == head]
        self.work = sum(_is_work(one.instruction) for one in self.own)
        self.lines = {one.line for one in members if one.kind or _is_work(one.instruction)}
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


class _Loops:
    """The loops of machine code and of the PTX, and which are alike.

    has: (segments) how many instructions of a (line, kind) each has; depth: (segments) loops around
    each; ptx: block that heads a loop -> the loop, of those that ran; inside: header of a loop of
    machine code -> segments of the loops inside it; copies: segment -> (block that heads a loop of
    the PTX, steps of it that the segment has), of segments in loops, and of those that ptxas has
    put beside them; twin: block that heads a loop -> of the first loop that has the same.
    """

    def __init__(self, segments: tuple[Segment, ...], counted: list[PtxCounts]):
        self.segments, self.machine = segments, loops_of(segments)
        self.has = [
            Counter((code.line, KINDS.get(code.name, "")) for code in segment.code)
            for segment in segments
        ]
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
            own = {code.line for code in segment.code if _code_is_work(code)} - {0}
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
            work = [c for at in loop.body for c in self.segments[at].code if _code_is_work(c)]
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

    def _steps_of(self, loop: NaturalLoop, ptx: "_PtxLoop", work: int) -> float:
        """How many steps of a loop of the PTX a run of one of machine code has: by its loads and so
        on, or else by all of its work.
        """
        has = sum((self.has[at] for at in loop.body - self.inside[loop.header]), Counter())
        shares = [has[key] / count for key, count in ptx.of_step.items() if has[key]]
        return float(np.median(shares)) if shares else work / max(1, ptx.work)


def _common(some: set[int], others: set[int]) -> float:
    """The share of all lines that both have."""
    return len(some & others) / max(len(some | others), 1)


def _divides_integers(instruction: Instruction) -> bool:
    root, *parts = instruction.opcode.split(".")
    return root in ("div", "rem") and parts[-1][0] in "us"


def _joined(segments, lines, counted, in_ptx, in_code) -> tuple[np.ndarray, float]:
    """((segments,) instructions of some lines that are `in_code`, executions of those `in_ptx`)."""
    times = sum(
        one.executions * (_OF_DIVISION if _is_long(one.instruction) else 1)
        for one in counted
        if in_ptx(one.instruction)
    )
    row = [sum(code.line in lines and in_code(code) for code in s.code) for s in segments]
    return np.array(row), float(times)


def _is_product(instruction: Instruction) -> bool:
    root, *parts = instruction.opcode.split(".")
    return root in ("mul", "mad") and parts[-1][0] in "us"


def _code_is_product(code: Code) -> bool:
    return code.name == "IMAD" and not any(part in _NO_PRODUCT for part in code.parts)


def _is_work(instruction: Instruction) -> bool:
    return instruction.opcode.split(".")[0] not in _NO_WORK


def _code_is_work(code: Code) -> bool:
    return not code.called and code.name not in _NO_WORK and code.parts[:1] != ("MOV",)


def _by_line(count: int, anchors: _Anchors, warps: int) -> np.ndarray:
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


def nonnegative(
    matrix: np.ndarray, right: np.ndarray, positive: np.ndarray | None = None
) -> np.ndarray:
    """Return x >= 0 with the least |matrix x - right|, by block principal pivoting.

    positive: (variables,) bool, a guess which of them are.

    Kim and Park, "Fast nonnegative matrix factorization", SIAM J. Sci. Comput. 33 (2011): all
    variables that break a condition change sides at once; where that does not help for long, one.
    """
    count = matrix.shape[1]
    length = np.maximum(np.sqrt((matrix**2).sum(0)), 1e-300)  # columns are made alike in size
    matrix = matrix / length
    square, linear = matrix.T @ matrix, matrix.T @ right
    square[np.diag_indices(count)] += 1e-11
    positive = np.ones(count, bool) if positive is None else positive.copy()
    fewest, patience = count + 1, _PATIENCE
    x = np.zeros(count)
    for _ in range(MOST_PIVOTS):
        x[:] = 0
        at = np.flatnonzero(positive)
        x[at] = np.linalg.solve(square[np.ix_(at, at)], linear[at])
        gain = linear - square @ x
        wrong = positive & (x < -1e-12) | ~positive & (gain > 1e-9)
        if not wrong.any():
            break
        if wrong.sum() < fewest:
            fewest, patience = int(wrong.sum()), _PATIENCE
        elif patience:
            patience -= 1
        else:
            wrong[: np.flatnonzero(wrong)[-1]] = False
        positive ^= wrong
    return np.maximum(x, 0.0) / length


def codes(segments: tuple[Segment, ...]) -> Iterable[tuple[int, Code]]:
    """Every instruction with the number of its segment."""
    for at, segment in enumerate(segments):
        for code in segment.code:
            yield at, code


# -- loads ----------------------------------------------------------------------------------------
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}


def loads_of(segments: tuple[Segment, ...], counted: list[PtxCounts]) -> dict[int, PtxCounts]:
    """Machine loads of global memory, by their ids -> the load of the PTX that each is."""
    lines: defaultdict[tuple[int, str], _Loads] = defaultdict(_Loads)
    for one in counted:
        if one.executions and one.kind in ("global load", "async copy") and not one.merged:
            lines[one.line, one.kind].blocks[one.place.block].append(one)
    found = {}
    for segment in segments:
        own: defaultdict[tuple[int, str], list[Code]] = defaultdict(list)
        for code in segment.code:
            key = code.line, KINDS.get(code.name, "")
            if key in lines:
                own[key].append(code)
        for key, several in own.items():
            found |= lines[key].of(several)
    return found


class _Loads:
    """The PTX's loads of a line. blocks: by basic block."""

    def __init__(self):
        self.blocks: defaultdict[int, list[PtxCounts]] = defaultdict(list)
        self._left: list[PtxCounts] = []  # that no segment has yet

    def of(self, several: list[Code]) -> dict[int, PtxCounts]:
        """A segment's loads, by their ids -> those of the PTX, each the first that is most alike.

        They are those of a basic block or a loop, once or repeated, or else the next of the line.
        """
        self._left = self._left or [one for own in self.blocks.values() for one in own]
        way = self._way(len(several))
        found, left = {}, []
        for code in several:
            left = left or list(way)
            found[id(code)] = left.pop(_most_alike(code, left))
        taken = {*map(id, found.values())}
        self._left = [one for one in self._left if id(one) not in taken]
        return found

    def _way(self, count: int) -> list[PtxCounts]:
        together: defaultdict[tuple[int, ...], list[PtxCounts]] = defaultdict(list)
        for own in self.blocks.values():
            together[own[0].place.loops] += own
        fits = []
        for way in (*self.blocks.values(), *together.values()):
            times, rest = divmod(count, len(way))
            repeated = way[0].place.loops and not rest and times & (times - 1) == 0
            if times == 1 and not rest or repeated:
                fits.append(way)
        return max(fits, key=lambda way: (len(way), way[0] in self._left), default=self._left)


def _most_alike(code: Code, loads: list[PtxCounts]) -> int:
    """The place of the load that is as wide as one of machine code, and has its offset."""
    bits, offset = bits_of_code(code), _offset_of_code(code)
    alike = [(bits_of(o.instruction) != bits, _offset_of(o) != offset) for o in loads]
    return min(range(len(loads)), key=alike.__getitem__)


def bits_of(instruction: Instruction) -> int:
    """Return how many bits a lane's load or store has."""
    *parts, kind = instruction.opcode.split(".")
    several = next((int(part[1:]) for part in parts if part in ("v2", "v4", "v8")), 1)
    bits = int(kind[1:]) if kind[1:].isdigit() else 32
    return several * bits


def bits_of_code(code: Code) -> int:
    return next((_WIDTHS[part] for part in code.parts if part in _WIDTHS), 32)


def _offset_of(one: PtxCounts) -> int:
    return next((o.offset for o in one.instruction.operands if isinstance(o, Address)), 0)


def _offset_of_code(code: Code) -> int:
    found = re.search(r"\+(-?0x[0-9a-f]+)\]", code.operands)
    return int(found[1], 16) if found else 0
