"""Loops, segments that go back to one that dominates them, and dominators."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from .code import Segment, codes


@dataclass(frozen=True)
class NaturalLoop:
    """header: the segment by which it is entered; body: all of its segments; above: those that
    every path to the header passes, the nearest first.
    """

    header: int
    body: frozenset[int]
    above: tuple[int, ...]


def loops_of(segments: tuple[Segment, ...]) -> list[NaturalLoop]:
    """Return the natural loops, those of one header as one."""
    before = predecessors(segments)
    nearest = _dominators(segments, before)
    bodies: defaultdict[int, set[int]] = defaultdict(set)
    for header in range(len(segments)):
        for tail in before[header]:
            if header == tail or header in _above(tail, nearest):
                bodies[header] |= _body(header, tail, before)
    return [
        NaturalLoop(h, frozenset(body), tuple(_above(h, nearest))) for h, body in bodies.items()
    ]


def yielding(segments: tuple[Segment, ...]) -> set[int]:
    """Return the origins of the branches back of each loop in which ptxas lets lanes yield.

    It does where lanes may wait for others of their warp, as by reading volatile memory: those that
    leave the loop then do not wait at its end.
    """
    loops, found = sorted(loops_of(segments), key=lambda one: len(one.body)), set()
    for at, one in codes(segments) if loops else ():
        if one.name == "YIELD":
            for loop in [loop for loop in loops if at in loop.body][:1]:
                tails = (tail for tail in loop.body if loop.header in segments[tail].follows)
                found |= {segments[tail].code[-1].origin for tail in tails}
    return found


def reached(
    segments: Sequence[Segment], first: int, ends: Collection[int] = frozenset()
) -> set[int]:
    """Return the segments that a path from the first one reaches before any of the ends."""
    seen, todo = set(), [first]
    while todo:
        at = todo.pop()
        if at not in ends and at not in seen:
            seen.add(at)
            todo += segments[at].follows
    return seen


def predecessors(segments: tuple[Segment, ...]) -> list[list[int]]:
    """Return for each segment those that it may follow, ascending."""
    before: list[list[int]] = [[] for _ in segments]
    for at, segment in enumerate(segments):
        for after in dict.fromkeys(segment.follows):
            before[after].append(at)
    return before


def dominators(segments: tuple[Segment, ...]) -> list[list[int]]:
    """Return for each segment those that every path to it passes, the nearest first."""
    nearest = _dominators(segments, predecessors(segments))
    return [_above(at, nearest) for at in range(len(segments))]


def _above(at: int, nearest: dict[int, int]) -> list[int]:
    """The dominators of a segment, the nearest first."""
    found = []
    while at in nearest and nearest[at] != at:
        at = nearest[at]
        found.append(at)
    return found


def _body(header: int, tail: int, before) -> set[int]:
    """Segments from which the tail is reached without passing the header."""
    body, todo = {header, tail}, [tail] if tail != header else []
    while todo:
        for earlier in before[todo.pop()]:
            if earlier not in body:
                body.add(earlier)
                todo.append(earlier)
    return body


def _dominators(segments, before) -> dict[int, int]:
    """Segment -> its nearest dominator (Cooper, Harvey and Kennedy's iteration)."""
    order, seen, todo = [], {0}, [(0, iter(segments[0].follows))]
    while todo:
        at, rest = todo[-1]
        after = next((one for one in rest if one not in seen), None)
        if after is None:
            order.append(at)
            todo.pop()
        else:
            seen.add(after)
            todo.append((after, iter(segments[after].follows)))
    rank = {at: place for place, at in enumerate(order)}
    nearest, changed = {0: 0}, True
    while changed:
        changed = False
        for at in reversed(order[:-1]):
            known = [one for one in before[at] if one in nearest]
            found = known[0]
            for other in known[1:]:
                found = _common(found, other, nearest, rank)
            if nearest.get(at) != found:
                nearest[at], changed = found, True
    return nearest


def _common(first: int, second: int, nearest: dict[int, int], rank: dict[int, int]) -> int:
    while first != second:
        while rank[first] < rank[second]:
            first = nearest[first]
        while rank[second] < rank[first]:
            second = nearest[second]
    return first
