"""The memory consistency model of PTX for programs of a few operations, by enumeration.

From the chapter "Memory Consistency Model" of the PTX ISA: executions are choices of what each read
reads from, of the coherence order of the writes to each location, and of the Fence-SC order; the
axioms discard some. No-Thin-Air excludes nothing here: what is written is a constant, or one more
than an atomic reads, whose cycles Atomicity excludes. A program is racy when an execution that is
left has two conflicting accesses that are not morally strong and not in causality order.

A program is text: threads separated by `|`, operations by `;`. `W x` writes 1 and `W x=2` writes 2,
`R x` reads, `A x` waits until it reads 1 (`A x=2`: 2), `U x` adds 1, `F` is a fence, `B` a barrier
of the block. After the letter come the semantics and the scope: `W.rel.gpu x`, `F.sc.cta`. Without
them an access is weak.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations, product

SCOPES = ("cta", "gpu", "sys")
FENCES = ("acq_rel", "sc")


@dataclass(frozen=True)
class Operation:
    """kind: one of W R A U F B; semantics: "" (weak), rlx, acq, rel, acq_rel, vol or sc."""

    kind: str
    semantics: str
    scope: str
    place: str
    value: int

    @property
    def strong(self) -> bool:
        return bool(self.semantics)

    @property
    def reads(self) -> bool:
        return self.kind in "RAU"

    @property
    def writes(self) -> bool:
        return self.kind in "WU"

    @classmethod
    def of(cls, text: str) -> "Operation":
        what, _, where = text.strip().partition(" ")
        kind, *more = what.split(".")
        place, _, value = where.partition("=")
        semantics, scope = (*more, "", "")[:2]
        return cls(kind, semantics, "sys" if semantics == "vol" else scope, place, int(value or 1))


def parse(program: str) -> list[list[Operation]]:
    """Return the operations of each thread."""
    return [
        [Operation.of(one) for one in thread.split(";") if one.strip()]
        for thread in program.split("|")
    ]


class Executions:
    """The executions of a program whose threads are in given blocks."""

    def __init__(self, program: str, block_of_thread: tuple[int, ...]):
        self.operations: list[Operation] = []
        self.thread: list[int] = []
        for number, thread in enumerate(parse(program)):
            self.operations += thread
            self.thread += [number] * len(thread)
        self.count, self.block = len(self.operations), block_of_thread
        self.all = range(self.count)
        places = sorted({one.place for one in self.operations if one.place})
        self.writes = {
            place: [i for i in self.all if self.is_at(i, place) and self.operations[i].writes]
            for place in places
        }
        self.reads = [i for i in self.all if self.operations[i].reads]
        self.fences = [i for i in self.all if self.operations[i].semantics == "sc"]
        self.program_order = self.barriers() | {
            (i, j) for i in self.all for j in self.all if i < j and self.thread[i] == self.thread[j]
        }

    def is_at(self, i: int, place: str) -> bool:
        return self.operations[i].place == place

    def barriers(self) -> set[tuple[int, int]]:
        """Pairs that a barrier of the block orders: the n-th of each thread is one barrier."""
        passed = []  # of each operation: how many barriers its thread has passed before it
        for i in self.all:
            earlier = [j for j in range(i) if self.thread[j] == self.thread[i]]
            passed.append(sum(self.operations[j].kind == "B" for j in earlier))
        return {
            (i, j)
            for i in self.all
            for j in self.all
            if self.block[self.thread[i]] == self.block[self.thread[j]] and passed[i] < passed[j]
        }

    def morally_strong(self, i: int, j: int) -> bool:
        if self.thread[i] == self.thread[j]:
            return True
        one, other = self.operations[i], self.operations[j]
        together = self.block[self.thread[i]] == self.block[self.thread[j]]
        return one.strong and other.strong and (together or "cta" not in (one.scope, other.scope))

    # -- patterns -------------------------------------------------------------------------------
    def releases(self) -> Iterator[tuple[int, int]]:
        """Yield (first operation, write) of each release pattern."""
        for write in self.all:
            one = self.operations[write]
            if not (one.writes and one.strong):
                continue
            if one.semantics in ("rel", "acq_rel"):
                yield write, write
            for first in range(write):
                before = self.operations[first]
                if self.thread[first] == self.thread[write]:
                    again = before.writes and before.semantics in ("rel", "acq_rel")
                    if before.kind == "F" or again and before.place == one.place:
                        yield first, write

    def acquires(self) -> Iterator[tuple[int, int]]:
        """Yield (read, last operation) of each acquire pattern."""
        for read in self.reads:
            one = self.operations[read]
            if not one.strong:
                continue
            if one.semantics in ("acq", "acq_rel"):
                yield read, read
            for last in range(read + 1, self.count):
                after = self.operations[last]
                if self.thread[last] == self.thread[read]:
                    again = after.reads and after.semantics in ("acq", "acq_rel")
                    if after.kind == "F" or again and after.place == one.place:
                        yield read, last

    # -- executions -----------------------------------------------------------------------------
    def candidates(self):
        """Yield (read -> write or None for the initial value, place -> order, Fence-SC order)."""
        sources = [[None, *self.writes[self.operations[read].place]] for read in self.reads]
        orders = [list(permutations(writes)) for writes in self.writes.values()]
        for source in product(*sources):
            from_ = dict(zip(self.reads, source, strict=True))
            if not self.waits_end(from_):
                continue
            for order in product(*orders):
                coherence = dict(zip(self.writes, order, strict=True))
                for fences in permutations(self.fences):
                    yield from_, coherence, fences

    def waits_end(self, from_: dict) -> bool:
        """Has each wait read its value? No read has read its own write."""
        for read, write in from_.items():
            if write == read:
                return False
            one = self.operations[read]
            if one.kind == "A" and self.value(write, from_, 0) != one.value:
                return False
        return True

    def value(self, write: int | None, from_: dict, depth: int) -> int:
        if write is None or depth > self.count:
            return 0
        one = self.operations[write]
        return one.value if one.kind == "W" else 1 + self.value(from_[write], from_, depth + 1)

    def causality(self, from_: dict, fences: tuple) -> list[int]:
        """(operations,) bit masks: what each precedes in causality order."""
        observed = {
            (write, read)
            for read, write in from_.items()
            if write is not None and self.morally_strong(write, read)
        }
        while True:  # on through atomics
            more = {
                (first, last)
                for first, middle in observed
                for other, last in observed
                if middle == other and self.operations[middle].kind == "U"
            }
            if more <= observed:
                break
            observed |= more
        edges = set(self.program_order)
        for first, write in self.releases():
            for read, last in self.acquires():
                if (write, read) in observed and self.morally_strong(first, last):
                    edges.add((first, last))
        for at, fence in enumerate(fences):
            edges |= {(fence, later) for later in fences[at + 1 :] if self.scoped(fence, later)}
        base = self.closure(edges)
        return [base[i] | _union(base[j] for first, j in observed if first == i) for i in self.all]

    def scoped(self, i: int, j: int) -> bool:
        return self.thread[i] != self.thread[j] and self.morally_strong(i, j)

    def closure(self, edges) -> list[int]:
        after = [0] * self.count
        for i, j in edges:
            after[i] |= 1 << j
        for middle in self.all:
            for i in self.all:
                if after[i] >> middle & 1:
                    after[i] |= after[middle]
        return after

    def holds(self, from_: dict, coherence: dict, fences: tuple, after: list[int]) -> bool:
        """Do the axioms hold?"""
        place_of = {w: at for order in coherence.values() for at, w in enumerate(order)}
        if any(after[i] >> i & 1 for i in self.all):
            return False
        for order in (*coherence.values(), fences):  # coherence and Fence-SC follow causality
            for at, later in enumerate(order):
                if any(after[later] >> earlier & 1 for earlier in order[:at]):
                    return False
        for read, write in from_.items():
            source = -1 if write is None else place_of[write]
            if write is not None and after[read] >> write & 1:  # causality
                return False
            for other in self.writes[self.operations[read].place]:
                if other != read and after[other] >> read & 1 and place_of[other] > source:
                    return False
            if self.operations[read].kind == "U" and place_of[read] != source + 1:  # atomicity
                between = self.writes[self.operations[read].place]
                if (
                    any(
                        source < place_of[w] < place_of[read] and self.morally_strong(w, read)
                        for w in between
                    )
                    or place_of[read] < source
                ):
                    return False
        return self.is_coherent(from_, place_of)

    def is_coherent(self, from_: dict, place_of: dict) -> bool:
        """SC per location, among accesses that are morally strong with each other."""
        edges = set()
        for i in self.all:
            for j in self.all:
                one, other = self.operations[i], self.operations[j]
                if i == j or not one.place or one.place != other.place:
                    continue
                if not self.morally_strong(i, j):
                    continue
                if self.thread[i] == self.thread[j] and i < j or from_.get(j, -1) == i:
                    edges.add((i, j))
                if one.writes and other.writes and place_of[i] < place_of[j]:
                    edges.add((i, j))
                if i in from_ and other.writes:  # i reads what j overwrites
                    source = -1 if from_[i] is None else place_of[from_[i]]
                    if source < place_of[j]:
                        edges.add((i, j))
        after = self.closure(edges)
        return not any(after[i] >> i & 1 for i in self.all)

    def racing(self, after: list[int]) -> bool:
        for i in self.all:
            for j in range(i):
                one, other = self.operations[i], self.operations[j]
                if not one.place or one.place != other.place or not (one.writes or other.writes):
                    continue
                if self.morally_strong(i, j) or after[i] >> j & 1 or after[j] >> i & 1:
                    continue
                return True
        return False

    def allowed(self):
        """Yield (what each read reads from, causality) of the executions that the axioms allow."""
        for from_, coherence, fences in self.candidates():
            after = self.causality(from_, fences)
            if self.holds(from_, coherence, fences, after):
                yield from_, after

    def outcomes(self) -> set[tuple[int, ...]]:
        """Return the values that the reads may read together, in the order of the program."""
        return {
            tuple(self.value(from_[read], from_, 0) for read in self.reads)
            for from_, _ in self.allowed()
        }

    def is_racy(self) -> bool:
        """Is there an execution with a data race? ValueError where there is none at all."""
        racing = [self.racing(after) for _, after in self.allowed()]
        if not racing:
            raise ValueError("no execution is allowed")
        return any(racing)


def _union(masks) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found
