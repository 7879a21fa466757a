"""The equations for how often each edge between segments was taken, from anchors and from flow."""

from collections.abc import Iterable

import numpy as np

from ..machine_code import NaturalLoop, Segment, dominators, loops_of
from .anchors import Anchors, anchors_of, by_own_anchors
from .copies import SegmentCopies
from .counts import PtxCounts
from .least_squares import nonnegative

_FLOW_WEIGHT, _LENGTH_WEIGHT = 0.05, 1e-3
_PASSES, _SETTLED = 8, 1e-4
_CLOSE = 0.02  # how far off, relative, an anchor is that fits
MOST_UNKNOWNS = 600
OUT = -2  # where an edge ends that leaves the kernel: what a guarded EXIT lets end
MOST_SUSPECTS = 12
_NOISE = 5e-3  # of the warps: what is left of a way that none takes
_HARDLY = 1e-2  # how much worse the anchors may fit without a segment


def executions(
    segments: tuple[Segment, ...], counted: Iterable[PtxCounts], warps: int
) -> tuple[np.ndarray, dict[tuple[int, int], float]]:
    """Return ((segments,) executions, summed over warps; the same of each edge between two)."""
    edges = [(-1, 0)] + [(at, to) for at, s in enumerate(segments) for to in s.follows]
    edges += [(at, OUT) for at, s in enumerate(segments) if s.follows and s.code[-1].name == "EXIT"]
    loops = loops_of(segments)
    depth = [sum(at in loop.body for loop in loops) for at in range(len(segments))]
    copies = SegmentCopies(segments, counted, depth)
    anchors = anchors_of(segments, copies)
    if len(edges) > MOST_UNKNOWNS:
        return by_own_anchors(len(segments), anchors, warps), {}
    system = _System(segments, edges, anchors, loops, warps)
    found = system.solve()
    for suspect in system.suspects(found)[:MOST_SUSPECTS]:
        found = system.without(suspect, found)
    edge_counts = {edge: float(count) for edge, count in zip(edges, found, strict=True)}
    return system.entered @ found, edge_counts


def _trust(off: np.ndarray) -> np.ndarray:
    """Factors of the weights of equations, by which those that do not fit count in proportion to
    how far off they are, and not to its square.
    """
    return np.sqrt(_CLOSE / np.maximum(off, _CLOSE)) / np.maximum(off, 1.0)


class _System:
    """The equations for the edges' counts. allowed: (edges,) bool, those that may be taken."""

    def __init__(
        self, segments, edges: list, anchors: Anchors, loops: list[NaturalLoop], warps: int
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
        self.weight = anchors.weight
        self.more = -np.eye(len(wanted))[:, anchors.least]  # how far beyond a least one may be
        self.length = np.array([len(s.code) for s in segments]) @ self.entered
        self.flowing = [at for at, s in enumerate(segments) if s.follows]
        self.kept = (self.entered - self.left)[self.flowing]  # what comes in less what goes on
        self.allowed = np.ones(len(edges), bool)
        self.into = {  # a loop's header -> (edges,) bool, those by which it is entered
            loop.header: np.array([b == loop.header and a not in loop.body for a, b in edges])
            for loop in loops
        }

    def _off(self, found: np.ndarray) -> np.ndarray:
        beyond = self.matrix @ found - self.goal
        beyond[self.more.any(1)] = np.minimum(beyond[self.more.any(1)], 0.0)
        return np.abs(beyond)

    def error(self, found: np.ndarray) -> float:
        """How far off the anchors are, relative, summed."""
        runs = self.entered @ found
        lost = (
            np.abs(runs - self.left @ found)[self.flowing]
            / np.maximum(runs, self.warps)[self.flowing]
        )
        return float(self._off(found).sum() + _FLOW_WEIGHT * lost.sum())

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
            lost = np.abs(self.kept @ found) / size[self.flowing]
            weight = _FLOW_WEIGHT / size[self.flowing] * _trust(lost)
            flow = self.kept * weight[:, None]
            total = max(float(self.length @ found), self.warps * self.length.max())
            short = _LENGTH_WEIGHT * self.length[None] / total
            enters, times = self._entries(self.entered @ found if number else None)
            trust = _trust(self._off(found) / self.weight) if number else np.ones(len(self.goal))
            joined = self.matrix * trust[:, None]
            system = np.concatenate([joined, first, flow, short, enters])
            right = np.concatenate([self.goal * trust, [10.0], np.zeros(len(flow) + 1), times])
            before, found = found, np.zeros(len(self.edges))
            more = np.zeros((len(right), slack))
            more[: len(self.more)] = self.more * trust[:, None]
            system = np.hstack([system[:, self.allowed] * self.warps, more])
            part = nonnegative(system, right, positive)
            positive = part > 0
            found[self.allowed] = self.warps * part[:kept]
            if number > 1 and np.abs(found - before).max() < _SETTLED * self.warps:
                break
            size = np.maximum(self.entered @ found, 1e-3 * self.warps)
        return found

    def without(self, segment: int, found: np.ndarray) -> np.ndarray:
        """Return the counts with a segment never entered, or `found` if these fit worse."""
        allowed = self.allowed.copy()
        self.allowed[[end == segment for _, end in self.edges]] = False
        other = self.solve(found)
        if self.error(other) > self.error(found) + _HARDLY:
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
                rows.append(self.into[loop.header] / wanted)
                times.append(1.0)
        return np.array(rows).reshape(-1, len(self.edges)), np.array(times)
