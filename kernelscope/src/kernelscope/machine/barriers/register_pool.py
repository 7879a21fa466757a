"""setmaxnreg: registers that warpgroups of a block give back to a pool, and take from it.

A thread starts with as many registers as ptxas gives a kernel that uses setmaxnreg: what `.maxnreg`
says, else what the launch bounds leave each thread of a multiprocessor's 65,536, a multiple of 8.
Where the bounds do not tell, ptxas drops setmaxnreg (its warning C7508), and so it has no effect
here. The pool is empty at first: PTX promises no more than what the block was launched with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from kernelscope.ptx.syntax import Function, Instruction
from kernelscope.translate.control_flow import Block, Key

from ...errors import Hang, SimulatorError
from ..lanes import ChunkLanes, merged
from ..reports import Reports
from ..scheduler import Scheduler

_REGISTERS = 65536  # of a multiprocessor of sm_90
_MOST_A_THREAD = 255
_STEP = 8
_WARPGROUP = 128  # threads


def registers_at_entry(function: Function) -> int | None:
    """Registers of each thread when the kernel starts; None where its bounds do not tell."""
    limits = function.limits
    if "maxnreg" in limits:
        return limits["maxnreg"][0]
    threads = int(np.prod(limits.get("reqntid") or limits.get("maxntid") or (0,)))
    if not threads or "minnctapersm" not in limits:
        return None
    each = _REGISTERS // (limits["minnctapersm"][0] * -(-threads // 32) * 32)
    return min(each, _MOST_A_THREAD) // _STEP * _STEP


@dataclass
class _Waiting:
    """Lanes at one setmaxnreg. count: registers that each thread is to have."""

    places: np.ndarray
    key: Key
    instance: object
    instruction: Instruction
    count: int


class RegisterPool:
    """The registers of a chunk's blocks, counted for whole warpgroups of 128 threads.

    held: (warpgroups,) registers of each thread; free: (blocks,) registers in the pool. All threads
    of a warpgroup that have not ended wait for each other at a setmaxnreg, and for the pool there.
    """

    def __init__(self, lanes: ChunkLanes, scheduler: Scheduler, reports: Reports):
        self.lanes, self.scheduler, self.reports = lanes, scheduler, reports
        self.entry = registers_at_entry(lanes.kernel.function)
        self.groups_per_block = -(-lanes.warps_per_block // 4)
        self.held = np.full(lanes.block_count * self.groups_per_block, self.entry or 0)
        self.free = np.zeros(lanes.block_count, np.int64)
        self.waiting: list[_Waiting] = []

    def group_of(self, lanes: np.ndarray) -> np.ndarray:
        """(n,) the warpgroup of each lane id."""
        block, lane = np.divmod(lanes, 32 * self.lanes.warps_per_block)
        return block * self.groups_per_block + lane // _WARPGROUP

    def meet(self, block: Block) -> Key | None:
        """The running group comes to the setmaxnreg that ends `block`."""
        t = block.terminator
        if self.entry is None:
            return t.fall
        self.lanes.flush(self.lanes.kernel.blocks[t.fall].live_in)
        places, count = self.lanes.all_places(), int(t.instruction.operands[0].value)
        for one in self.waiting:
            if one.key == t.fall:
                one.places = merged(one.places, places)
                return None
        self.waiting.append(_Waiting(places, t.fall, t.action, t.instruction, count))
        return None

    def release(self) -> bool:
        """Let the warpgroups go on that are all there, and for which the pool has room."""
        released: dict[Key, np.ndarray] = {}
        while self.waiting and self.release_once(released):
            pass
        if released:
            self.scheduler.enqueue(released)
        return bool(released)

    def release_once(self, released: dict[Key, np.ndarray]) -> bool:
        before, staying = len(released), []
        moved = False
        for one in self.waiting:
            group = self.group_of(self.lanes.at(one.places))
            passes = np.isin(group, [g for g in self.complete(group) if self.change(g, one)])
            moved |= bool(passes.any())
            if passes.any():
                released[one.key] = merged(released.get(one.key), one.places[passes])
            if not passes.all():
                staying.append(replace(one, places=one.places[~passes]))
        self.waiting = staying
        return moved or len(released) > before

    def complete(self, group: np.ndarray) -> list[int]:
        """The warpgroups of which every thread that has not ended is among the lanes."""
        living = np.bincount(
            self.group_of(np.nonzero(self.lanes.alive)[0]), minlength=self.held.size
        )
        here = np.bincount(group, minlength=self.held.size)
        return np.nonzero((here == living) & (here > 0))[0].tolist()

    def change(self, group: int, at: _Waiting) -> bool:
        """Give a warpgroup the registers that it asks for, if the pool has room."""
        block, number = divmod(group, self.groups_per_block)
        warps = min(4, self.lanes.warps_per_block - 4 * number)
        grows = "inc" in at.instruction.opcode.split(".")
        more = at.count - int(self.held[group])
        if more and grows != (more > 0):
            way = "inc" if grows else "dec"
            raise SimulatorError(
                f"{self.lanes.kernel.name} at {at.instance.where(at.instruction)}: "
                f"{self.lanes.thread_text(self.lanes.at(at.places))} asks by setmaxnreg.{way} for "
                f"{at.count} registers and has {self.held[group]} (at entry {self.entry}, by the "
                "launch bounds): .inc asks for more, .dec for fewer",
                at.instance.line(at.instruction),
            )
        if 32 * warps * more > self.free[block]:
            return False
        self.free[block] -= 32 * warps * more
        self.held[group] = at.count
        return True

    # -- waits that never end -------------------------------------------------------------------
    def describe(self, blocks: np.ndarray) -> list[str]:
        """Who waits at a setmaxnreg in these blocks of the chunk, and why."""
        parts = []
        for one in self.waiting:
            mine = one.places[np.isin(self.lanes.block_of_place[one.places], blocks)]
            if not mine.size:
                continue
            lanes = self.lanes.at(mine)
            group = self.group_of(lanes)
            where = one.instance.where_called(one.instruction)
            text = f"{self.lanes.who(lanes)} at {where} for {one.count} registers a thread: "
            if set(np.unique(group).tolist()) <= set(self.complete(group)):
                block = int(self.lanes.block_of_place[mine[0]])
                text += f"the block's pool has {self.free[block]} free"
            else:
                text += "other threads of the warpgroup of 128 do not come there"
            parts.append(text)
        return parts

    def report_deadlock(self, message: str) -> None:
        """Raise Hang; or, where an observer wants the run to go on, let everybody pass."""
        first = self.waiting[0]
        where = first.instance, first.instruction
        lanes = self.lanes.at(first.places)
        if self.reports.fault("divergent-barrier", message, *where, lanes) is not None:
            raise Hang(message, first.instance.kernel_line(first.instruction))
        released: dict[Key, np.ndarray] = {}
        for one in self.waiting:
            released[one.key] = merged(released.get(one.key), one.places)
        self.waiting = []
        self.scheduler.enqueue(released)
