"""Registers of products of warp groups: touched while a product is under way, or not fenced before.

A product has the registers of its sums and of A from its issue to the wgmma.wait_group of its warp.
Only further products of the same shape may take the sums in between, in order. What a warp has
written there counts for a product only behind a wgmma.fence.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from kernelscope.events import Access, InstructionEvent, MachineView

from ..findings import Naming
from .value_flow import ValueFlow, ValueStep

_WAIT = (
    "put wgmma.wait_group before the first use of the sums, with as many newer groups left open as "
    "were committed after this one"
)
_CLOSE = (
    "close the group of the product with wgmma.commit_group, then wait for it with "
    "wgmma.wait_group before the first use of the sums: a wait is for groups that are closed"
)
_OPERANDS = (
    "wait for the product first (wgmma.wait_group), or give each round registers of its own: "
    "arrays in an unrolled loop"
)
_FENCE = (
    "put wgmma.fence.sync.aligned behind the last write to the registers, before the first wgmma "
    "that takes them; the first wgmma of a kernel needs one in any case"
)


@dataclass
class Held:
    """What a register or a word of local memory holds, (warps,) or (warps, words) each.

    product: number of the one whose sum it is, 0: of none; time: when it was computed, 0: by a
    product; home: the word that a register was loaded from, or -1; operand: the product that takes
    it as A.
    """

    product: np.ndarray
    time: np.ndarray
    home: np.ndarray

    @classmethod
    def none(cls, *shape: int) -> Held:
        return cls(np.zeros(shape, np.int32), np.zeros(shape, np.int64), np.full(shape, -1))

    def put(self, at, product, time, home) -> None:
        self.product[at], self.time[at], self.home[at] = product, time, home


class Sums:
    """The values of products of one chunk; the first active lane of a warp stands for the warp."""

    def __init__(self, machine: MachineView, naming: Naming, flow: ValueFlow):
        self.machine, self.naming, self.flow = machine, naming, flow
        self.first_lane = machine.first_lane
        self.warps = warps = machine.block_count * machine.warps_per_block
        self.products: list[tuple[int, str]] = [(0, "")]  # (line, shape) by number
        self.done = np.zeros(warps, np.int64)  # the last product that each warp has waited for
        self.issued = np.zeros(warps, np.int64)
        self.committed: list[list[int]] = [[] for _ in range(warps)]  # products before each commit
        self.fenced = np.zeros(warps, np.int64)  # when; 0: never
        self.registers: dict[tuple[str, str], Held] = {}
        self.words = Held.none(warps, 0)  # here `home` is the product that takes the word as A
        self.open = False
        self.seen: tuple = (None, None, None)

    # -- products and their groups --------------------------------------------------------------
    def warps_of(self, lanes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """((warps,), (warps,) place of the first lane of each)."""
        if self.seen[0] is not lanes:
            first = np.flatnonzero(np.diff(lanes >> 5, prepend=-1))
            self.seen = lanes, lanes[first] >> 5, first
        return self.seen[1:]

    def fence(self, event: InstructionEvent, time: int) -> None:
        self.fenced[self.warps_of(event.lanes)[0]] = time

    def commit(self, event: InstructionEvent) -> None:
        for warp in self.warps_of(event.lanes)[0].tolist():
            self.committed[warp].append(int(self.issued[warp]))

    def wait(self, event: InstructionEvent) -> None:
        newer = int(event.instruction.operands[0].value)
        for warp in self.warps_of(event.lanes)[0].tolist():
            groups = self.committed[warp]
            if len(groups) > newer:
                self.done[warp] = max(self.done[warp], groups[-1 - newer])
        self.open = bool((self.issued > self.done).any())

    # -- instructions ---------------------------------------------------------------------------
    def follow(self, event: InstructionEvent, line: int, time: int) -> None:
        """An instruction of the plan."""
        step = self.flow.steps.get(id(event.instruction))
        if step is not None:
            getattr(self, step.kind)(step, event, line, time)

    def of(self, step: ValueStep, name: str | None, make: bool = False) -> Held | None:
        key = step.function, name
        found = self.registers.get(key)
        if found is None and make:
            found = self.registers[key] = Held.none(self.warps)
        return found

    def local(self, event: InstructionEvent) -> tuple[Access, np.ndarray, np.ndarray] | None:
        """(the access to local memory, warps, the word of each warp's first lane)."""
        for access in event.accesses:
            if access.space == "local" and access.lanes.size:
                warps, first = self.warps_of(access.lanes)
                return access, warps, access.address.view(np.int64)[first] >> 2
        return None

    def room(self, last: int) -> None:
        """Room for words up to one."""
        size = self.words.product.shape[1]
        if last >= size:
            more = Held.none(self.warps, max(last + 1, 2 * size) - size)
            parts = zip(vars(self.words).values(), vars(more).values(), strict=True)
            self.words = Held(*(np.concatenate(pair, axis=1) for pair in parts))

    def load(self, step: ValueStep, event: InstructionEvent, line: int, time: int) -> None:
        wanted = [
            (place, name)
            for place, name in enumerate(step.results)
            if name and (self.open or (step.function, name) in self.flow.feeds)
        ]
        if not wanted:
            return
        found = self.local(event)
        if found is None:
            warps = self.warps_of(event.lanes)[0]
            for _, name in wanted:
                self.of(step, name, True).put(warps, 0, time, -1)
            return
        access, warps, word = found
        each = max(access.size // len(step.results) >> 2, 1)
        self.room(int(word.max()) + each * len(step.results))
        for place, name in wanted:
            at = warps, word + place * each
            held = self.of(step, name, True)
            held.put(warps, self.words.product[at], self.words.time[at], at[1])

    def store(self, step: ValueStep, event: InstructionEvent, line: int, time: int) -> None:
        found = self.local(event)
        if found is None:
            for name in step.sources if self.open else ():
                self.use(step, name, event, line, "stores")
            return
        access, warps, word = found
        each = max(access.size // len(step.sources) >> 2, 1)
        self.room(int(word.max()) + each * len(step.sources))
        for place, name in enumerate(step.sources):
            held, words = self.of(step, name), word + place * each
            product, when, home = 0, time, -1
            if held is not None:
                product, when, home = held.product[warps], held.time[warps], held.home[warps]
            for word_of in (words + more for more in range(each)):  # two of a wide register
                if self.open:
                    self.overwrite(warps, word_of, product, home, event, line)
                operand = np.where(home == word_of, self.words.home[warps, word_of], 0)
                self.words.put((warps, word_of), product, when, operand)

    def move(self, step: ValueStep, event: InstructionEvent, line: int, time: int) -> None:
        warps = self.warps_of(event.lanes)[0]
        for name, source in zip(step.results, step.sources, strict=True):
            held = self.of(step, source)
            if held is not None:
                new = held.product[warps], held.time[warps], held.home[warps]
                self.of(step, name, True).put(warps, *new)
            elif self.of(step, name) is not None or (step.function, name) in self.flow.feeds:
                self.of(step, name, True).put(warps, 0, time, -1)

    def other(self, step: ValueStep, event: InstructionEvent, line: int, time: int) -> None:
        if self.open:
            for name in step.sources:
                self.use(step, name, event, line, "uses")
        for name in step.results:
            feeds = (step.function, name) in self.flow.feeds
            if feeds or self.of(step, name) is not None:
                warps = self.warps_of(event.lanes)[0]
                self.of(step, name, True).put(warps, 0, time, -1)

    def product(self, step: ValueStep, event: InstructionEvent, line: int, time: int) -> None:
        warps = self.warps_of(event.lanes)[0]
        shape = event.instruction.opcode.split("aligned.")[-1]
        number = len(self.products)
        self.products.append((line, shape))
        self.check_fence(step, warps, line, time)
        for name in step.results:
            held = self.of(step, name, True)
            under = held.product[warps] > self.done[warps]
            if under.any():
                prior = int(held.product[warps][np.argmax(under)])
                if self.products[prior][1] != shape:
                    self.report_use(warps[under], prior, event, line, "takes", ", in another shape")
            held.put(warps, number, 0, -1)
        for name in step.sources:
            if self.open:
                self.use(step, name, event, line, "takes as A")
            held = self.of(step, name)
            if held is not None:
                home = held.home[warps]
                known = home >= 0
                self.words.home[warps[known], home[known]] = number
        self.issued[warps], self.open = number, True

    # -- findings -------------------------------------------------------------------------------
    def check_fence(self, step: ValueStep, warps: np.ndarray, line: int, time: int) -> None:
        """Has the warp written registers of this product since its last wgmma.fence?"""
        late = self.fenced[warps] == 0
        what = "and no wgmma.fence lies before it"
        if not late.any():
            what = "whose registers it has written since its last wgmma.fence"
            for name in (*step.results, *step.sources):
                held = self.of(step, name)
                if held is not None:
                    late |= held.time[warps] > self.fenced[warps]
        if late.any():
            lanes = warps[late] * 32 + self.first_lane
            said = f"the warp of {self.naming.who(lanes[0])} issues a wgmma, {what}"
            self.naming.report("race", line, said, lanes, remedy=_FENCE)
            self.fenced[warps[late]] = time  # further products are in order with this one

    def use(self, step: ValueStep, name: str | None, event, line: int, verb: str) -> None:
        held = self.of(step, name)
        if held is None:
            return
        warps = self.warps_of(event.lanes)[0]
        under = held.product[warps] > self.done[warps]
        if under.any():
            self.report_use(warps[under], int(held.product[warps][under][0]), event, line, verb)
            held.product[warps[under]] = 0

    def report_use(self, warps, prior: int, event, line: int, verb: str, end: str = "") -> None:
        lanes = warps * 32 + self.first_lane
        said = (
            f"the warp of {self.naming.who(lanes[0])} {verb} sums of the wgmma of line "
            f"{self.products[prior][0]}{end}, which it has not waited for"
        )
        closed = prior <= max(self.committed[int(warps[0])], default=0)
        how = {"other_line": self.products[prior][0], "remedy": _WAIT if closed else _CLOSE}
        self.naming.report("race", line, said, lanes, **how)

    def overwrite(self, warps, words, product, home, event, line: int) -> None:
        """A store to local memory where sums or operands of products under way are."""
        done = self.done[warps]
        fresh = np.broadcast_to(np.asarray(product) <= done, warps.shape)
        sums = self.words.product[warps, words]
        lost = fresh & (sums > done)
        if lost.any():
            self.report_use(warps[lost], int(sums[lost][0]), event, line, "overwrites")
        taken = self.words.home[warps, words]
        changed = fresh & (taken > done) & (np.asarray(home) != words)
        if changed.any():
            lanes = warps[changed] * 32 + self.first_lane
            prior = self.products[int(taken[changed][0])][0]
            said = (
                f"the warp of {self.naming.who(lanes[0])} overwrites a variable, whose registers "
                f"the wgmma of line {prior} takes as A, and has not waited for it: safe only where "
                "the compiler gives each value registers of its own"
            )
            how = {"other_line": prior, "severity": "warning", "remedy": _OPERANDS}
            self.naming.report("race", line, said, lanes, **how)
