"""Attention in a ring: each rank keeps its queries, keys and values travel.

While a rank computes with the keys and values that it has, it sends them to the next rank and
receives those of the rank before, into the other of two buffers. What it finds with each is a part;
kernel 31 joins them. Zig-zag shards make causal work even: a rank's own keys are causal, of an
earlier rank's it sees the early chunk with all rows, of a later rank's both with its late rows.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import numpy as np
from kernelscope.ranks import StreamMarks, row_copy

from attn_course.ladder.call import step_launch
from attn_course.layers.steps import JOIN_PARTS, Rows

from .form import ParallelPlan

TYPES = {"float32": 0, "bfloat16": 1, "float16": 2}  # of kernel 31's constants


class RingPlan(ParallelPlan):
    """Attention in a ring; see ParallelPlan.

    Attributes:
        steps: of each step its launches, for a look at them: attention, then a join.
    """

    kind = "ring"

    def prepare(self) -> None:
        self.early = self.shards.sizes(self.rank.rank)[0]
        self.marks = StreamMarks(self.rank.stream is not None)
        most = max(map(self.shards.rows, range(self.rank.size)))
        self.buffers = [self._room(most) for _ in range(2 if self.rank.size > 1 else 0)]
        part = self.buffer(self.out.size) if self.rank.size > 1 else None
        exact = self.q.dtype == np.float32 or self.rank.size == 2
        self.sum = self.out if exact else self.xp.empty(self.out.shape, np.float32)
        self.moves: list[list[Callable]] = [[] for _ in range(self.rank.size)]
        if self.causal and self.rank.rank < self.rank.size - 1:  # copied during the first exchange
            late = self.q[:, :, self.early :]
            self.late = self.xp.empty(late.shape, late.dtype)
            self.moves[1].append(row_copy(self.late, late))
        self.steps = [self._step(number, part) for number in range(self.rank.size)]

    def run(self, exchange: bool = True, compute: bool = True) -> None:
        """Queue all work; or the exchanges alone, or what computes alone, to time it."""
        self.marks.set("start")
        for number, launches in enumerate(self.steps):
            if exchange and number < self.rank.size - 1:
                self._exchange(number)
            if exchange and number:
                self.marks.wait(f"arrived {number}")
            for launch in launches if compute else ():
                launch()
            self.marks.set(f"done {number}")

    def waited_us(self) -> float:
        """Return how long the last call stood still for keys, where `marks.timed` was set."""
        return sum(self.marks.waited_us(f"arrived {step}") for step in range(1, self.rank.size))

    # -- exchange ----------------------------------------------------------------------------------
    def _exchange(self, number: int) -> None:
        """Start what travels while step `number` computes; its buffer was that of the step before.

        On a GPU all is queued on the rank's own stream.
        """
        rank, size = self.rank.rank, self.rank.size
        with self.rank.stream or nullcontext():
            self.marks.wait(f"done {number - 1}" if number else "start")
            sends = [(array, (rank + 1) % size) for array in self._held(number)]
            receives = [(array, (rank - 1) % size) for array in self._held(number + 1)]
            self.rank.exchange(sends, receives)
            for move in self.moves[number + 1]:
                move()
            self.marks.set(f"arrived {number + 1}")

    def _room(self, rows: int) -> tuple:
        """Flat room for K and V of so many rows, and for their early chunks."""
        batch, heads, _, d = self.k.shape
        return tuple(self.buffer(batch * heads * rows * d) for _ in range(4 if self.causal else 2))

    def _held(self, number: int, early: bool = False) -> tuple:
        """K and V at a step, or room for their early chunks."""
        if number == 0:
            return self.k, self.v
        source = (self.rank.rank - number) % self.rank.size
        rows = self.shards.sizes(source)[0] if early else self.shards.rows(source)
        batch, heads, _, d = self.k.shape
        room = self.buffers[number % 2][2:] if early else self.buffers[number % 2][:2]
        return tuple(self.buffer(batch, heads, rows, d, like=one) for one in room)

    # -- one step ----------------------------------------------------------------------------------
    def _step(self, number: int, part) -> list[Callable]:
        """Return the launches of a step; part: room for the output of one."""
        exchanging = number < self.rank.size - 1
        if number == 0:
            run, self.lse = self.attend(self.q, self.k, self.v, self.out, self.causal, exchanging)
            return [run]
        q, first, (k, v) = self.q, 0, self._held(number)
        source = self.rank.rank - number
        if self.causal and source >= 0:  # an earlier rank's: its late chunk is seen by no row
            whole, (k, v) = (k, v), self._held(number, early=True)
            rows = k.shape[2]
            for to, one in zip((k, v), whole, strict=True):
                self.moves[number].append(row_copy(to, one[:, :, :rows]))
        elif self.causal:  # a later rank's: the early rows see none of it
            q, first = self.late, self.early
        found = self.buffer(*q.shape, like=part)
        run, lse = self.attend(q, k, v, found, False, exchanging)
        return [run, self._join(number, found, lse, first)]

    def _join(self, number: int, part, lse, first: int) -> Callable:
        """Return a launch of kernel 31: what was found so far and a part, into the sum or out."""
        before = self.out if number == 1 else self.sum
        after = self.out if number == self.rank.size - 1 else self.sum
        batch, heads, rows, d = self.out.shape
        arrays = {"a": before, "a_lse": self.lse, "b": part, "b_lse": lse}
        arrays |= {"out": after, "out_lse": self.lse}
        names = {"A_TYPE": before, "B_TYPE": part, "OUT_TYPE": after}
        options = [f"-D{name}={TYPES[one.dtype.name]}" for name, one in names.items()]
        written = batch * heads * (part.shape[2] if before is after else rows)
        numbers = {"heads": batch * heads, "rows": rows, "part": part.shape[2], "first": first}
        extents = Rows(batch * heads * rows, d, written=written)
        how = arrays, numbers | {"d": d}, options, self.rank.backend
        launch = step_launch(JOIN_PARTS, extents, *how)
        return partial(launch.run, arrays)


def ring_attention(rank, q, k, v, length: int, *, causal=False, scale=None):
    """Return out and log-sum-exp of this rank's rows; see RingPlan. Waits until they are there."""
    plan = RingPlan(rank, q, k, v, length, causal, scale, captured=False)
    plan()
    rank.wait()
    return plan.out, plan.lse
