"""Reports of a chunk to its observers: instructions with their accesses, barriers, faults."""

import numpy as np
from kernelscope import events
from kernelscope.translate.control_flow import LANE, Block, Key

from ..errors import MemoryFault
from .lanes import ChunkLanes
from .memory import spread


class Reports:
    """Builds events and tells observers of them; raises errors where no observer goes on.

    accesses: those of the instruction that runs; None without observers. block: the block that
    runs, which knows the call site for messages. machine: the chunk's view, which events carry.
    """

    def __init__(self, observers: tuple, lanes: ChunkLanes):
        self.observers, self.lanes = observers, lanes
        self.machine: events.MachineView | None = None
        self.kernel = lanes.kernel
        self.accesses: list[events.Access] | None = [] if observers else None
        self.block: Block | None = None
        self._steps: dict[Key, list[tuple]] = {}  # of the blocks that have run

    def steps(self, block: Block) -> list[tuple]:
        """Return (instruction, operation, told) of a block's instructions.

        told: whether observers are told of it, whatever it accesses.
        """
        known = self._steps.get(block.key)
        if known is None:
            own_line, body = self.kernel.program.own_line, block.instructions
            told = [any(one.concerns(i) for one in self.observers) for i in body]
            for place, following in enumerate(body[1:]):
                told[place] |= not own_line(following)
            told[-1:] = [True] * bool(told)
            known = self._steps[block.key] = list(zip(body, block.operations, told, strict=True))
        return known

    def instruction(self, instruction, taken=None, members=None) -> None:
        """Tell of an instruction that the running lanes have executed."""
        line = self.kernel.program.own_line(instruction)
        lanes, accesses = self.lanes.R[LANE], ()
        if self.accesses:
            accesses, self.accesses = tuple(self.accesses), []
        event = events.InstructionEvent(
            instruction, line, lanes, accesses, self.machine, taken, members
        )
        for observer in self.observers:
            observer.instruction(event)

    def line(self, instruction) -> int:
        """The line of the kernel's own source that an instruction is of, as events have it."""
        return self.kernel.program.own_line(instruction)

    def async_issued(self, operations: list[events.AsyncOperation] | None) -> None:
        """Tell of work that the asynchronous proxy has been given; None: nobody listens."""
        self._async("async_issued", operations)

    def async_read(self, operations: list[events.AsyncOperation] | None) -> None:
        """Tell of such work whose source has been read."""
        self._async("async_read", operations)

    def async_completed(self, operations: list[events.AsyncOperation] | None) -> None:
        """Tell of such work that has ended."""
        self._async("async_completed", operations)

    def _async(self, method: str, operations: list[events.AsyncOperation] | None) -> None:
        for operation in operations or ():
            for observer in self.observers:
                getattr(observer, method)(operation, self.machine)

    def access(self, space: str, kind: str, address, size: int, valid, block=None) -> None:
        """Note an access of the running lanes."""
        lanes = self.lanes.R[LANE]
        address = spread(address, lanes.size)
        self.accesses.append(events.Access(space, kind, address, lanes, size, valid, block))

    def barrier(self, number: int, arrivals: list, complete: bool = True) -> None:
        """Tell of threads that pass a barrier; arrivals: (instance, instruction, lane ids)."""
        if not self.observers:
            return
        lanes = np.concatenate([lanes for _, _, lanes in arrivals])
        per_block = 32 * self.lanes.warps_per_block
        blocks = self.lanes.first_block + np.unique(lanes // per_block)
        groups = tuple((instruction, lanes) for _, instruction, lanes in arrivals)
        sites = tuple(self.machine.site_of(instance) for instance, _, _ in arrivals)
        event = events.BarrierEvent(blocks, number, groups, self.machine, sites, complete)
        for observer in self.observers:
            observer.barrier(event)

    def warp_barrier(self, lanes: np.ndarray, members) -> None:
        """Tell of lanes that pass __syncwarp() together."""
        if not self.observers:
            return
        if lanes.size > 1 and (lanes[1:] < lanes[:-1]).any():  # of several places in the program
            order = np.argsort(lanes)
            lanes, members = lanes[order], members[order]
        event = events.WarpBarrierEvent(lanes, members, self.machine)
        for observer in self.observers:
            observer.warp_barrier(event)

    # -- faults ---------------------------------------------------------------------------------
    def fault(
        self, kind: str, message: str, instance, instruction, lanes, array: str = "", index=None
    ) -> events.FaultEvent | None:
        """Tell of a fault; return the event, or None when an observer wants the run to go on."""
        threads = tuple(self.lanes.threads(lanes[:8]))
        line = instance.line(instruction)
        called = instance.call_line(line) or instance.kernel_line(instruction)
        place = array, index, called if called != line else 0
        event = events.FaultEvent(kind, message, instruction, line, threads, *place)
        for observer in self.observers:
            observer.fault(event)
        return None if any(observer.keeps_going for observer in self.observers) else event

    def bad_access(
        self, found: tuple, remedy: str, space: str, address, valid, size: int, ins, kind: str
    ):
        """Report lanes whose access is not `valid`; raise MemoryFault if no observer goes on.

        found: (array, index in it, place in words) of the first bad address; remedy: what to do
        unless it is misaligned.
        """
        array, index, place = found
        bad = np.nonzero(~valid)[0]
        first, lanes = int(address[bad[0]]), self.lanes.R[LANE][bad]
        misaligned = first % size != 0
        fault = "misaligned" if misaligned else "out-of-bounds"
        what = f"{size} bytes that are not aligned to {size}: " if misaligned else ""
        instance = self.block.instance
        message = (
            f"{self.kernel.name} at {instance.where(ins)}: "
            f"{self.lanes.thread_text(lanes)} {events.VERBS[kind]} {what}{place} "
            f"({bad.size} of {valid.size} active threads do so). "
            + ("Use an address that is a multiple of the access size" if misaligned else remedy)
        )
        event = self.fault(fault, message, instance, ins, lanes, array, index)
        if event is not None:
            raise MemoryFault(message, fault, array, index, event.threads, event.line)
