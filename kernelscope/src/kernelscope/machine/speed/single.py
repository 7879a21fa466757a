"""A loop in which one lane runs alone goes on as a Python function, for a while.

NumPy takes as long for one lane as for a thousand. So a group of one lane that has jumped back a
few times leaves the NumPy lines: its registers become plain numbers, and the loop's function (see
translate.scalar) runs until it is done, or meets what it leaves to NumPy. That goes on at exactly
that instruction, with the same registers and the same memory: a fault, a hang and the limits of
the call are found and told of by the same code as ever.

A few lanes, each of another warp, go on one after another.

It steps aside for all observers, which are told of every instruction; for kernels that read a
clock, which counts blocks; while the scheduler has other groups to run inside the loop; for blocks
that poll memory, which must let other groups take turns; and in a launch that is shared out among
processes, which note every store.
"""

from time import monotonic

import numpy as np
from kernelscope.translate.control_flow import LANE, Block, Key
from kernelscope.translate.scalar import FUEL, LEAST, Aside, Loop, loop_of, views

FEW = 4  # lanes of different warps that are worth running one after another
_FIRST = 16  # jumps back by NumPy until it is worth while to write the function
_LONGEST = 1 << 20  # and between two questions whether the loop only repeats itself
_PROBED = 40  # jumps back that such a question may take
_MOST_REST = 1 << 12  # jumps back until another attempt, after some that came to nothing
_WORTH = 4  # jumps back that make an attempt worth while
_LEAVES = (Aside, ArithmeticError, ValueError)  # division by zero, int(inf), sqrt(-1)
_NUMPY = {"b1": np.bool_, "f4": np.float32, "f8": np.float64, "i8": np.int64} | {
    f"u{size}": np.dtype(f"u{size}").type for size in (1, 2, 4, 8)
}


class Single:
    """The single lanes of a chunk.

    wait: at how many jumps back of a group it is tried next; rest: how many it was left alone for;
    turn: jumps back until NumPy looks whether the loop only repeats itself.
    """

    def __init__(self, chunk):
        self.chunk, self.kernel, self.lanes = chunk, chunk.kernel, chunk.lanes
        marks = chunk.memory.globals.marks
        self.allowed = not (chunk.reports.observers or self.kernel.reads_clock or marks)
        self.rest, self.turn, self.wait = 1, FUEL * 16, _FIRST
        self._known: tuple[object, object, dict] = (None, None, {})

    def go_on(self, key: Key, block: Block) -> tuple[Key | None, int]:
        """Run from `key`, to which `block` jumps back; (block, number of the instruction there) at
        which NumPy goes on. Without a key the group has been cut into single lanes, to run later.
        """
        lanes, ready = self.lanes, self.chunk.scheduler.ready
        if lanes.jumps == _FIRST:
            self.wait = _FIRST
        if lanes.jumps < self.wait or ready and min(ready) <= block.key:
            return key, 0
        loop = self.loop(key, block.key)
        if lanes.R[LANE].size > 1:
            return self.part(key) if loop and loop.whole and self.may_part() else key, 0
        values = self.take(loop, key) if loop else None
        if values is None:
            self.wait = lanes.jumps + self.tired()
            return key, 0
        return self.run(loop, values, key)

    def may_part(self) -> bool:
        """Are the group's lanes of different warps? Lanes of one warp stay in lockstep."""
        warps = self.lanes.R[LANE] >> 5
        return bool((warps[1:] != warps[:-1]).all()) and self.chunk.scheduler.team is None

    def part(self, key: Key) -> None:
        """Let the group's lanes run one after another, as warps may."""
        lanes, scheduler = self.lanes, self.chunk.scheduler
        lanes.flush(self.chunk.blocks[key].live_in)
        self.wait = 1  # for each of them
        scheduler.queue += [{key: place} for place in lanes.all_places()[::-1, None]]

    def tired(self) -> int:
        """How long to leave it alone, after another attempt that came to little."""
        self.rest = min(2 * self.rest, _MOST_REST)
        return self.rest

    def loop(self, head: Key, last: Key) -> Loop | None:
        """The function of a loop, written when it is first wanted."""
        known, which = self.kernel.loops, (head, last, len(self.kernel.instances))
        if which not in known:
            known[which] = loop_of(self.kernel, head, last)
        loop, calls = known[which], self.chunk.calls
        fits = loop and loop.local_bytes <= self.chunk.memory.local_size and calls.tops is None
        return loop if fits else None

    # -- registers ------------------------------------------------------------------------------
    def take(self, loop: Loop, key: Key) -> list | None:
        """The loop's registers as plain numbers; None where one holds what only NumPy keeps."""
        R, live = self.lanes.R, self.chunk.blocks[key].live_in
        self.lanes.fetch(slot for slot in loop.slots if live >> slot & 1)
        values = []
        for slot in loop.slots:
            value = R[slot] if live >> slot & 1 else None
            if value is not None:
                code, value = self.kernel.slot_types[slot], value.item()
                if code == "f4" and not (abs(value) > LEAST or value == 0.0) or value != value:
                    return None
            values.append(value)
        return values

    def give_back(self, loop: Loop, values: list) -> None:
        """The registers that the loop may have changed, for NumPy."""
        R, types = self.lanes.R, self.kernel.slot_types
        for slot, value in zip(loop.slots, values, strict=True):
            if value is not None and slot in loop.written:
                R[slot] = _NUMPY[types[slot]](value)
                self.lanes.dirty |= 1 << slot

    # -- running --------------------------------------------------------------------------------
    def run(self, loop: Loop, values: list, key: Key) -> tuple[Key, int]:
        """Run the loop's function from its head on, as far as it gets."""
        chunk, told, place, left = self.chunk, [False, False, 0], None, self.turn
        views, before = self.views(), left
        try:
            while place is None and left > 0:
                key = loop.run(values, chunk, views, self.stretch, told, loop.keys.index(key))
                left -= FUEL - told[2]
                if told[2] >= 0:
                    place = key, 0
                elif monotonic() >= chunk.scheduler.budget.next_look:
                    chunk.scheduler.check_budget(chunk.blocks[key])
        except _LEAVES as error:
            place, left = loop.place(error), left - (FUEL - told[2])
            if place is None:
                raise
        self.give_back(loop, values)
        chunk.memory.globals.version += told[0]
        self.lanes.local_changes += told[1]
        self.plan(before - left, place is None)
        return place or (key, 0)

    def plan(self, jumps: int, unfinished: bool) -> None:
        """When to try again, after a run of so many jumps back."""
        lanes, scheduler = self.lanes, self.chunk.scheduler
        if unfinished:  # NumPy looks now whether the loop only repeats itself
            lanes.probe, scheduler.next_probe = None, lanes.jumps
            self.wait, self.turn = lanes.jumps + _PROBED, min(2 * self.turn, _LONGEST)
        else:
            self.rest = 1 if jumps > _WORTH else self.rest
            self.wait = lanes.jumps + (1 if jumps > _WORTH else self.tired())

    def views(self) -> dict[str, memoryview]:
        """Shared and local memory as plain numbers."""
        shared, local = self.chunk.memory.shared.bytes, self.chunk.memory.local.bytes
        if self._known[0] is not shared or self._known[1] is not local:
            both = views("shared", shared) | views("local", local)
            self._known = shared, local, both
        return self._known[2]

    def stretch(self, address: int, size: int, writes: bool) -> tuple[int, int]:
        """The lowest and the highest address of an access around one. Raises Aside without any."""
        memory = self.chunk.memory.globals
        kind = "store" if writes else "load"
        if address & size - 1 or not memory.covers(address, address + size, kind):
            raise Aside
        first, end = memory.recent_writable if writes else memory.recent
        return first, end - size
