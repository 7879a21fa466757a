"""Barriers that pass only because threads that went around them have ended since."""

from __future__ import annotations

import numpy as np

from attn_course.engine.events import CLUSTER_BARRIER, BarrierEvent, InstructionEvent, MachineView

from .findings import Findings, Naming, describe_thread

_LEAVING = ("bra", "brx", "ret", "exit")


class Exits:
    """Where the lanes of one chunk were in the kernel's code when they were last seen.

    A barrier of the kernel waits for no thread that has ended. Where such a thread ended from code
    behind the barrier (`if (t < 40) __syncthreads(); a[t] = 1;`), it went around it, which CUDA
    leaves undefined: a warning. A thread that ended from code before the barrier, as after
    `if (t >= n) return;`, is left alone. Barriers inside device functions that the debug build
    calls are not judged. Behind a barrier that ends the kernel there is no code to end from: there
    the warning is for threads whose warp is at the barrier without them.
    """

    def __init__(self, machine: MachineView, lanes: int, naming: Naming, findings: Findings):
        launch = naming.launch
        self.body = launch.source.module.functions[launch.kernel].body
        self.naming, self.findings = naming, findings
        self.first_lane = machine.first_lane
        place = np.arange(lanes) % naming.per_block
        self.launched = place < launch.threads
        self.count = int(np.count_nonzero(self.launched))
        self.watching = any(self._is_barrier(instruction) for instruction in self.body)
        acting = [i.index for i in self.body if i.opcode.split(".", 1)[0] not in _LEAVING]
        self.end = max(acting, default=0)  # index of the last instruction that does anything
        self.seen_by_all, self.seen = 0, None  # index in the body; (lanes,) where they differ

    @staticmethod
    def _is_barrier(instruction) -> bool:
        return instruction.opcode.startswith(("bar.", "barrier."))

    def _own(self, instruction) -> bool:
        index = instruction.index
        return index < len(self.body) and self.body[index] is instruction

    def instruction(self, event: InstructionEvent) -> None:
        instruction = event.instruction
        if not self.watching or not self._own(instruction):
            return
        if instruction.opcode.split(".", 1)[0] in _LEAVING:
            return
        if event.lanes.size == self.count:
            self.seen_by_all, self.seen = instruction.index, None
            return
        if self.seen is None:
            self.seen = np.full(self.launched.size, self.seen_by_all, np.int64)
        self.seen[event.lanes] = instruction.index

    def barrier(self, event: BarrierEvent) -> None:
        """Report the barrier when threads of its blocks ended behind it."""
        if not event.complete or event.barrier == CLUSTER_BARRIER or self.seen is None:
            return
        instructions = [instruction for instruction, _ in event.arrivals]
        if any(len(one.operands) > 1 or not self._own(one) for one in instructions):
            return
        arrived = np.concatenate([lanes for _, lanes in event.arrivals])
        here = np.zeros(self.launched.size // self.naming.per_block, bool)
        here[arrived // self.naming.per_block] = True
        last = max(instructions, key=lambda one: one.index)
        around = self.launched & ~event.machine.alive & np.repeat(here, self.naming.per_block)
        if last.index == self.end:
            warps = np.zeros(self.launched.size >> 5, bool)
            warps[arrived >> 5] = True
            around &= np.repeat(warps, 32)
        else:
            around &= self.seen > last.index
        if around.any():
            self._report(last, np.nonzero(around)[0], arrived.size)

    def _report(self, instruction, lanes: np.ndarray, arrived: int) -> None:
        line = self.naming.launch.source.own_line(instruction)
        thread = self.naming.thread(int(lanes[0]) + self.first_lane)
        blocks = np.unique(lanes // self.naming.per_block).size
        self.findings.add(
            self.naming.finding(
                "divergent-barrier",
                line,
                f"{arrived} threads wait here, and {lanes.size} others of their blocks never came: "
                f"{describe_thread(thread)} went around the barrier and has ended; the barrier "
                "passes only because of that",
                lanes + self.first_lane,
                severity="warning",
                count=blocks,
            )
        )
