"""How long a warp takes by itself: a walk through the machine code with its scoreboards.

The walk takes each branch as often as the segments' counts say, spread evenly. An instruction
issues when the stall of the one before it has passed and the scoreboards that it waits for are
free; time that a warp waits is counted for the line of the instruction that it waits for.
"""

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from functools import cache
from typing import NamedTuple

from .machine_code import Code, Segment

MOST_STEPS = 4_000  # instructions of a walk; what follows them is as what they had
MEETINGS = {  # the warp goes on after their latency: a constant of the GPU
    "BAR": "barrier_clocks",
    "MEMBAR": "fence_clocks",
    "UCGABAR_WAIT": "cluster_clocks",
}
# Clocks of a branch beyond its stall, (not taken, taken), where warps stay in so many instructions,
# and in longer code: an H200's loop with 4 branches, and with 16 or 64.
_NEAR, _BRANCH_NEAR, _BRANCH_FAR = 128, (3.0, 7.0), (9.0, 15.0)
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79)
_RATES = tuple(prime**0.5 % 1 for prime in _PRIMES)  # spread evenly, and each as if by itself
_OPERANDS_READ = 14  # clocks until a store has read its registers
_SETS = 6
BRANCHES = ("BRA", "BRX", "JMP", "JMX", "BREAK", "BSYNC")


class Latency(NamedTuple):
    """Clocks until a result. sure: always; waiting: share of the times in which it takes `more`
    besides; longer: ... in which it takes `most` besides both; in_step: the same times as others of
    the segment that wait as often, as loads of one place do that is moved along.
    """

    sure: float
    waiting: float = 0.0
    more: float = 0.0
    longer: float = 0.0
    most: float = 0.0
    in_step: bool = False

    def at(self, chance: float) -> float:
        """chance: 0 to 1, evenly spread."""
        if chance >= self.waiting:
            return self.sure
        return self.sure + self.more + (self.most if chance < self.longer else 0.0)


def walk(
    segments: tuple[Segment, ...],
    edges: dict[tuple[int, int], float],
    steps: list[list["WalkStep"]],
) -> list[dict[int, float]]:
    """Walk from the first segment to an end, again and again until every frequent one was seen.

    Return for each segment, of one run of it by a warp alone, the clocks that wait for, or are
    spent on, each line. steps: those of each segment.
    """
    follows = [segment.follows for segment in segments]
    chances = [[edges.get((at, to), 0.0) for to in after] for at, after in enumerate(follows)]
    taken: defaultdict[tuple[int, int], int] = defaultdict(int)
    visits = [0] * len(segments)
    by_line = [defaultdict(float) for _ in segments]
    left, at, warp = MOST_STEPS, 0, _Warp()
    ran = {0} | {to for (_, to), times in edges.items() if times > 0 and to >= 0}
    near = sum(len(segments[number].code) for number in ran) <= _NEAR
    branch = _BRANCH_NEAR if near else _BRANCH_FAR
    while left > 0:
        left -= len(steps[at])
        visits[at] += 1
        warp.run(steps[at], by_line[at], visits[at])
        total = sum(chances[at])
        if not total:
            if left < MOST_STEPS // 2:
                break
            at, warp = 0, _Warp()
            continue
        best, after = 0, follows[at]
        if len(after) > 1:
            visited = sum(taken[at, to] for to in after) + 1
            owed = [
                visited * chance / total - taken[at, to]
                for chance, to in zip(chances[at], after, strict=True)
            ]
            best = max(range(len(after)), key=owed.__getitem__)
            taken[at, after[best]] += 1
        if segments[at].code[-1].name in BRANCHES:
            warp.branch(branch[best > 0 or len(after) == 1], by_line[at])
        at = after[best]
    for number, visited in enumerate(visits):
        if not visited:
            _Warp().run(steps[number], by_line[number])
    return [
        {line: spent / max(visited, 1) for line, spent in found.items()}
        for found, visited in zip(by_line, visits, strict=True)
    ]


def steps_of(
    segments: tuple[Segment, ...],
    latency: Callable[[Code], Latency],
    passes: Callable[[Code], float],
) -> list[list["WalkStep"]]:
    """Return each segment's instructions as the walk needs them.

    latency: clocks until a result; passes: clocks of the memory pipe, in which requests queue.
    """
    rates, steps = itertools.cycle(_RATES), []
    for segment in segments:
        shared: dict[float, float] = {}  # of loads in step: how often they wait -> their rate
        steps.append(
            [WalkStep.of(one, latency(one), passes(one), rates, shared) for one in segment.code]
        )
    return steps


class WalkStep(NamedTuple):
    """An instruction as the walk needs it. waits, sets, frees: scoreboards, the latter two -1 for
    none.
    """

    code: Code
    latency: Latency
    passes: float
    waits: tuple[int, ...]
    sets: int
    frees: int
    spent: float  # clocks until the next instruction
    line: int
    copies: bool  # belongs to cp.async
    rate: float  # of its chances from one visit to the next

    @classmethod
    def of(
        cls,
        code: Code,
        latency: Latency,
        passes: float,
        rates: Iterator[float],
        shared: dict[float, float],
    ) -> "WalkStep":
        spent = code.spent + (latency.sure if code.name in MEETINGS else 0.0)
        sets = code.sets if code.sets < _SETS and code.name != "LDGDEPBAR" else -1
        frees = code.frees if code.frees < _SETS else -1
        copies = code.name in ("DEPBAR", "LDGDEPBAR", "LDGSTS")
        rate = next(rates) if latency.waiting else 0.0
        if latency.in_step and latency.waiting:
            rate = shared.setdefault(round(latency.waiting, 2), rate)
        waits = _boards(code.waits)
        return cls(code, latency, passes, waits, sets, frees, spent, code.line, copies, rate)


@cache
def _boards(mask: int) -> tuple[int, ...]:
    """The scoreboards of a mask."""
    return tuple(board for board in range(_SETS) if mask >> board & 1)


class _Warp:
    """One warp by itself: its clock and its scoreboards."""

    def __init__(self):
        self.now, self.line = 0.0, 0  # line: of the last instruction
        self.free = [0.0] * _SETS  # when each scoreboard is free
        self.owner = [0] * _SETS  # line that sets it last
        self.memory = 0.0  # when the memory pipe is free
        self.copies, self.groups = 0.0, deque(maxlen=16)  # of cp.async: when they have arrived

    def run(self, steps: list[WalkStep], by_line: dict[int, float], visit: int = 1) -> None:
        """Run a segment. visit: number of the times that it ran."""
        now = self.now
        free, owner, memory = self.free, self.owner, self.memory
        for code, latency, passes, waits, sets, frees, spent, line, copies, rate in steps:
            for board in waits:
                if free[board] > now:
                    by_line[owner[board]] += free[board] - now
                    now = free[board]
            clocks = latency.at((visit + 0.5) * rate % 1) if rate else latency.sure
            if copies:
                self.now, self.memory = now, memory
                self._copy(code, clocks, passes, by_line)
                now, memory = self.now, self.memory
            if sets >= 0:
                enters = now
                if passes:  # the pipe may be taken by requests before it
                    enters = max(now, memory)
                    memory = enters + passes
                if enters + clocks >= free[sets]:
                    free[sets], owner[sets] = enters + clocks, line
            if frees >= 0 and now + _OPERANDS_READ >= free[frees]:
                free[frees], owner[frees] = now + _OPERANDS_READ, line
            by_line[line] += spent
            now += spent
        self.now, self.memory, self.line = now, memory, line

    def branch(self, spent: float, by_line: dict[int, float]) -> None:
        """Spend clocks on the branch that was the last instruction."""
        by_line[self.line] += spent
        self.now += spent

    def _copy(self, code: Code, latency: float, passes: float, by_line: dict[int, float]) -> None:
        """cp.async: a copy, the end of a group, or a wait for one."""
        if code.name == "DEPBAR":
            self._wait_for_group(code, by_line)
        elif code.name == "LDGDEPBAR":
            self.groups.append(self.copies)
        else:
            enters = self.now
            if passes:  # as in run
                enters = max(enters, self.memory)
                self.memory = enters + passes
            self.copies = max(self.copies, enters + latency)

    def _wait_for_group(self, code: Code, by_line: dict[int, float]) -> None:
        newer = code.operands.rsplit(",", 1)[-1].strip()
        after = int(newer, 16) if newer.startswith("0x") else 0
        if len(self.groups) > after:
            ready = self.groups[-1 - after]
            if ready > self.now:
                by_line[code.line] += ready - self.now
                self.now = ready
