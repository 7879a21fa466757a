"""Block barriers: bar.sync, bar.arrive and bar.red, by number, as the PTX ISA says.

A barrier without a thread count passes when every thread of the block that has not ended waits
there, wherever in the program. A barrier with a count passes when that many threads, counted in
full warps, wait or have arrived. Threads that have ended are not waited for. An arrival is that of
a warp: at bar.arrive a thread waits for the others of its warp that have not ended, and goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from kernelscope.events import CLUSTER_BARRIER
from kernelscope.ptx.syntax import Immediate, Instruction, Inverted
from kernelscope.translate.control_flow import LANE, Block, Key

from ...errors import Hang
from ..clusters import Cluster
from ..lanes import ChunkLanes, merged
from ..memory import spread
from ..reports import Reports
from ..scheduler import Scheduler

_REDUCTIONS = ("popc", "and", "or")


@dataclass
class Waiting:
    """Lanes that wait at one barrier instruction. Arrays are over `places`."""

    places: np.ndarray
    key: Key  # where they go on
    instance: object  # the function it is in
    instruction: Instruction
    number: np.ndarray  # of the barrier
    expected: int | None  # thread count, where the instruction has one
    mode: str = ""  # reduction of bar.red: popc, and, or
    predicate: np.ndarray | None = None
    slot: int = -1  # register for the reduction's result
    arrives: bool = False  # it is bar.arrive, and waits for its warp alone

    def part(self, chosen: np.ndarray) -> Waiting:
        predicate = None if self.predicate is None else self.predicate[chosen]
        places, number = self.places[chosen], self.number[chosen]
        return replace(self, places=places, number=number, predicate=predicate)


class Barriers:
    """The barriers of a chunk: `waiting` lists the lanes at them; `arrived` counts threads of
    bar.arrive by (block, barrier).
    """

    def __init__(self, lanes: ChunkLanes, scheduler: Scheduler, cluster: Cluster, reports: Reports):
        self.lanes, self.scheduler, self.cluster = lanes, scheduler, cluster
        self.reports = reports
        self.waiting: list[Waiting] = []
        self.arrived: dict[tuple[int, int], int] = {}

    # -- arriving -------------------------------------------------------------------------------
    def meet(self, block: Block) -> Key | None:
        """The running group comes to the barrier that ends `block`; the key where it goes on."""
        instruction, fall = block.terminator.instruction, block.terminator.fall
        if self.lanes.are_all() and not self.arrived and is_plain(instruction):
            number = instruction.operands[0].value if instruction.operands else 0
            here = (block.terminator.action, instruction, self.lanes.R[LANE])
            self.reports.barrier(number, [here])
            return fall
        at = self.arrival(block)
        if at.arrives and self.in_whole_warps(at.places).all():
            self.arrive(at)
            if self.waiting:
                self.release(whole=True)  # at once: what arrives later is for the next time
            return fall
        self.wait(at)
        if at.expected is not None:
            self.release(whole=True)
        return None

    def meet_cluster(self, block: Block) -> Key | None:
        """The same for barrier.cluster.wait."""
        t, lanes = block.terminator, self.lanes
        if self.cluster.passes(lanes.R[LANE]).all():
            self.reports.barrier(CLUSTER_BARRIER, [(t.action, t.instruction, lanes.R[LANE])])
            return t.fall
        places = lanes.all_places()
        number = np.full(places.size, CLUSTER_BARRIER)
        return self.wait(Waiting(places, t.fall, t.action, t.instruction, number, None))

    def wait(self, at: Waiting) -> None:
        self.lanes.flush(self.lanes.kernel.blocks[at.key].live_in)
        self.waiting.append(at)

    def arrival(self, block: Block) -> Waiting:
        """The running group as it stands at the barrier that ends `block`."""
        instance, instruction = block.terminator.action, block.terminator.instruction
        operands = list(instruction.operands)
        places = self.lanes.all_places()
        mode, predicate, slot = "", None, -1
        parts = instruction.opcode.split(".")
        if "red" in parts:
            mode = next(part for part in parts if part in _REDUCTIONS)
            slot = instance.slot(operands.pop(0).name)
            predicate = spread(self.operand(instance, operands.pop()), places.size)
        number = self.operand(instance, operands[0]) if operands else np.uint32(0)
        expected = int(np.max(self.operand(instance, operands[1]))) if len(operands) > 1 else None
        return Waiting(
            places,
            block.terminator.fall,
            instance,
            instruction,
            spread(number, places.size),
            expected,
            mode,
            predicate,
            slot,
            "arrive" in parts,
        )

    def operand(self, instance, operand):
        """A register, `!register` or immediate operand of a barrier."""
        match operand:
            case Immediate(value):
                return np.uint32(value & 0xFFFFFFFF)  # a predicate may be -1
            case Inverted(inner):
                return np.logical_not(self.lanes.R[instance.slot(inner.name)])
        return self.lanes.R[instance.slot(operand.name)]

    def arrive(self, at: Waiting) -> None:
        for number in np.unique(at.number).tolist():
            self.count_arrivals(number, at.places[at.number == number])

    def count_arrivals(self, number: int, places: np.ndarray) -> None:
        threads = self.threads_in_warps(places)
        for block in np.nonzero(threads)[0].tolist():
            key = (block, number)
            self.arrived[key] = self.arrived.get(key, 0) + int(threads[block])

    def threads_in_warps(self, places: np.ndarray, whole: bool = False) -> np.ndarray:
        """(blocks,) 32 for each warp of the block that has a lane among `places`.

        whole: only for warps all of whose living lanes are there.
        """
        if whole:
            places = places[self.in_whole_warps(places)]
        warps = np.unique(self.lanes.at(places) >> 5)
        blocks = warps // self.lanes.warps_per_block
        return 32 * np.bincount(blocks, minlength=self.lanes.block_count)

    def in_whole_warps(self, places: np.ndarray) -> np.ndarray:
        """(n,) bool: are all living lanes of their warps among the places?"""
        warp, warps = self.lanes.at(places) >> 5, self.lanes.alive.size >> 5
        living = np.bincount(np.flatnonzero(self.lanes.alive) >> 5, minlength=warps)
        return (np.bincount(warp, minlength=warps) == living)[warp]

    def arrive_in_parts(self, released: dict[Key, np.ndarray]) -> None:
        """Count the warps once whose lanes came to bar.arrive one after another, and free them."""
        parts = [w for w in self.waiting if w.arrives]
        for number in sorted({n for w in parts for n in np.unique(w.number).tolist()}):
            places = np.concatenate([w.places[w.number == number] for w in parts])
            places = places[self.in_whole_warps(places)]
            self.count_arrivals(number, places)
            self.free(number, places, released)

    def free(self, number: int, places: np.ndarray, released: dict[Key, np.ndarray]) -> None:
        """Lanes at bar.arrive of a barrier go on."""
        staying = []
        for w in self.waiting:
            goes = np.isin(w.places, places) & (w.number == number) & w.arrives
            if goes.any():
                released[w.key] = merged(released.get(w.key), w.places[goes])
            if not goes.all():
                staying.append(w.part(~goes) if goes.any() else w)
        self.waiting = staying

    def reduce(self, mode: str, predicate: np.ndarray, places: np.ndarray) -> np.ndarray:
        """bar.red over each block's lanes at `places`: count, and, or of their predicates."""
        block = self.lanes.block_of_place[places]
        true = np.bincount(block, weights=predicate).astype(np.uint32)
        if mode == "popc":
            return true[block]
        total = np.bincount(block)
        return (true == total)[block] if mode == "and" else (true > 0)[block]

    # -- passing --------------------------------------------------------------------------------
    def release(self, whole: bool = False) -> bool:
        """Let the blocks go on whose threads have all arrived at a barrier of one number.

        whole: at barriers with a count a warp counts when all of its lanes have come; the others
        may still be on another side of a branch. Else it counts with its first lane.
        """
        released: dict[Key, np.ndarray] = {}
        self.arrive_in_parts(released)
        for number in self.numbers():
            passing, staying = self.who_passes(number, whole)
            if passing:
                self.pass_barrier(number, passing, released)
                self.waiting = staying
        if released:
            self.scheduler.enqueue(released)
        return bool(released)

    def numbers(self) -> list[int]:
        """The numbers of the barriers at which lanes wait to pass."""
        waiting = [w for w in self.waiting if not w.arrives]
        return sorted({int(n) for w in waiting for n in np.unique(w.number)})

    def complete_blocks(self, number: int, whole: bool) -> np.ndarray:
        """(blocks,) bool: may the threads at this barrier pass?"""
        count, block_of_place = self.lanes.block_count, self.lanes.block_of_place
        living = np.nonzero(self.lanes.alive)[0] // (32 * self.lanes.warps_per_block)
        needed = np.bincount(living, minlength=count)
        here, counted = [], np.zeros(count, bool)
        for w in self.waiting:
            if w.arrives:
                continue
            places = w.places[w.number == number]
            here.append(places)
            if w.expected is not None:
                blocks = block_of_place[places]
                needed[blocks], counted[blocks] = w.expected, True
        places = np.concatenate(here)
        threads = np.bincount(block_of_place[places], minlength=count)
        present = np.where(counted, self.threads_in_warps(places, whole), threads)
        for (block, n), extra in self.arrived.items():
            if n == number:
                present[block] += extra
        return present >= needed

    def who_passes(self, number: int, whole: bool) -> tuple[list[Waiting], list[Waiting]]:
        """The lanes that may pass a barrier, and all others that wait."""
        passing, staying = [], []
        complete = None if number == CLUSTER_BARRIER else self.complete_blocks(number, whole)
        for w in self.waiting:
            if complete is None:
                passes = self.cluster.passes(self.lanes.at(w.places))
            else:
                passes = complete[self.lanes.block_of_place[w.places]]
            passes = passes & (w.number == number) & (not w.arrives)
            if passes.any():
                passing.append(w.part(passes))
            if not passes.all():
                staying.append(w.part(~passes))
        return passing, staying

    def pass_barrier(self, number: int, passing: list[Waiting], released: dict) -> None:
        places = np.concatenate([w.places for w in passing])
        blocks = set(self.lanes.block_of_place[places].tolist())
        self.arrived = {
            key: count
            for key, count in self.arrived.items()
            if key[1] != number or key[0] not in blocks
        }
        self.store_reductions(passing)
        for w in passing:
            released[w.key] = merged(released.get(w.key), w.places)
        self.reports.barrier(
            number, [(w.instance, w.instruction, self.lanes.at(w.places)) for w in passing]
        )

    def store_reductions(self, passing: list[Waiting]) -> None:
        voters = [w for w in passing if w.mode]
        if not voters:
            return
        places = np.concatenate([w.places for w in voters])
        predicate = np.concatenate([w.predicate for w in voters])
        for w in voters:
            mine = np.isin(places, w.places, assume_unique=True)
            result = self.reduce(w.mode, predicate, places)[mine]
            self.lanes.scatter(w.slot, result, w.places)

    # -- barriers that never complete -----------------------------------------------------------
    def report_deadlock(self) -> None:
        """Raise Hang; or, where an observer wants the run to go on, let everybody pass."""
        first = self.waiting[0]
        lanes, message = self.lanes.at(first.places), self.describe_deadlock()
        where = first.instance, first.instruction
        if self.reports.fault("divergent-barrier", message, *where, lanes) is not None:
            raise Hang(message, first.instance.kernel_line(first.instruction))
        released: dict[Key, np.ndarray] = {}
        for w in self.waiting:
            released[w.key] = merged(released.get(w.key), w.places)
        for number in self.numbers():
            here = [
                (w.instance, w.instruction, self.lanes.at(w.places[w.number == number]))
                for w in self.waiting
            ]
            here = [group for group in here if group[2].size]
            self.reports.barrier(number, here, complete=False)
        self.waiting, self.arrived = [], {}
        self.scheduler.enqueue(released)

    def describe_deadlock(self) -> str:
        """Who waits where, in the first block (or cluster of blocks) that does not get on."""
        first = self.lanes.block_of_place[self.waiting[0].places[0]]
        parts = self.describe(self.cluster.together_with(first))
        counted = any(w.expected is not None for w in self.waiting)
        if counted and len(parts) > 1:
            return (
                f"{self.lanes.kernel.name} hangs at barriers that never complete: "
                + "; ".join(parts)
                + ". A barrier with a count opens when so many threads wait or have arrived there: "
                "count both for each number, from the first wait on"
            )
        return (
            f"{self.lanes.kernel.name} hangs at a barrier that never completes: "
            + "; ".join(parts)
            + ". Not all threads that it waits for arrive there: move the barrier out of the "
            "branch or loop that only some of them take"
        )

    def describe(self, blocks: np.ndarray) -> list[str]:
        """Who waits at a barrier in these blocks of the chunk."""
        lanes, parts = self.lanes, []
        for w in self.waiting:
            here = np.isin(lanes.block_of_place[w.places], blocks)
            for number in np.unique(w.number[here]).tolist():
                parts.append(self.describe_group(w, w.places[here & (w.number == number)], number))
        return parts

    def describe_group(self, w: Waiting, mine: np.ndarray, number: int) -> str:
        """These places of one group that waits, at one barrier."""
        lanes = self.lanes
        thread = lanes.thread_text(lanes.at(mine[:1]))
        where = w.instance.where_called(w.instruction)
        name = "the cluster's" if number == CLUSTER_BARRIER else f"barrier {number}"
        count = f" for {w.expected} threads" if w.expected is not None else ""
        arrived = self.arrived.get((int(lanes.block_of_place[mine[0]]), number), 0)
        count += f", {arrived} more have arrived" if arrived else ""
        count += ", for the other threads of their warp" if w.arrives else ""
        waits = "threads wait" if mine.size > 1 else "thread waits"
        return f"{mine.size} {waits} at {where} ({name}{count}; first: {thread})"


def is_plain(instruction: Instruction) -> bool:
    """bar.sync for the whole block, with the barrier's number written out (or zero)."""
    operands = instruction.operands
    numbered = not operands or len(operands) == 1 and isinstance(operands[0], Immediate)
    return numbered and "sync" in instruction.opcode.split(".")
