"""Shared memory of a chunk: races between barriers, unwritten elements, early reads of copies."""

from dataclasses import replace

import numpy as np
from kernelscope.addresses import aligned
from kernelscope.events import Access, MachineView, PhaseUse

from ..findings import Naming
from ..lifetimes import Lifetimes
from .context import Context, LaneStamps
from .copies_under_way import CP_ASYNC, RED_ASYNC, CopiesUnderWay
from .meetings import phase_key
from .ordering import ChunkOrder
from .shadow import FIRST, HOST, NEVER, STRONG, Shadow, Touch, lane_of, time_of
from .shared_state import SharedState

WAIT_BEFORE_THE_END = "let a thread of that block wait for the phase of its mbarrier before the end"
WAIT_FOR_OWN = (
    "let each thread that copies end with cp.async.wait_all or cp.async.wait_group 0 "
    "(__pipeline_wait_prior(0)): shared memory is gone with the block"
)


class SharedRaces(SharedState):
    """One chunk's shared memory; every block has a slice of it, and starts with nothing in it."""

    space = "shared"

    def __init__(self, machine: MachineView, naming: Naming, lines: list[int]):
        image = machine.memory("shared")
        super().__init__(Shadow(image.size, NEVER, image), naming, lines)
        self.any_lane_wins = naming.launch.source.managed_shared
        self.accepted = ("same", "agreed") if self.any_lane_wins else ()
        self.per_block = naming.per_block
        self.stride = image.size // machine.block_count
        self.one_block = machine.block_count == 1
        # Behind the launch's own bytes is what CUDA reserves; groups of several warps meet there.
        self.end = naming.launch.shared_bytes
        self.has_reserved = self.stride > aligned(self.end)
        self.clustered = machine.clustered
        self.first_lane = machine.first_lane
        self.copies = CopiesUnderWay(self.shadow, machine.block_count * self.per_block)
        self.lifetimes = Lifetimes(machine, naming)

    def access(self, access: Access, context: Context) -> None:
        if self.has_reserved and int(access.address.view(np.int64).min()) >= self.end:
            return
        if self.copies.batches:
            access = self.check_copies(access, context)
        if access.block is not None:
            self.lifetimes.access(access, context)
        super().access(access, context)

    def start_copy(self, access: Access, context: Context) -> None:
        """The shared half of a cp.async: written when its lane waits for it, not now."""
        self.access(access, context)
        kept = slice(None) if access.valid is None else access.valid
        holder = None if access.block is None else access.block[kept]
        lanes = LaneStamps(context.lanes.lane[kept], context.lanes.bits[kept], holder)
        flat = self.flat(access.address[kept].view(np.int64), lanes, context)
        self.copies.issue(flat, access.size, lanes.lane, lanes.bits, context.line)

    def post(self, access: Access, context: Context, use: PhaseUse) -> None:
        """st.async and red.async: written when the phase in which they count is complete."""
        self.access(access, context)
        kept, name = use.chosen, RED_ASYNC if access.kind == "atomic" else "st.async"
        holder = None if access.block is None else access.block[kept]
        lanes = LaneStamps(context.lanes.lane[kept], context.lanes.bits[kept], holder)
        flat = self.flat(access.address[kept].view(np.int64), lanes, context)
        told = context.line, name, phase_key(*use.place, use.parity), context.time
        self.copies.post(flat, access.size, lanes.lane, lanes.bits, *told)
        block, address = use.place  # and of its mbarrier
        how = {"lanes": lanes.lane, "kind": "atomic", "size": 8, "valid": None}
        word = replace(access, address=address.astype(access.address.dtype), block=block, **how)
        super().access(word, replace(context, lanes=lanes, strong=True))

    def begin_mbarriers(self, access: Access, context: Context) -> None:
        """mbarrier.init: what later uses of the words have to come after, whoever used them."""
        self.shadow.mark("init", self.touch(access, context)[0])

    def writers(self, touch: Touch) -> np.ndarray:
        writer = super().writers(touch)
        if not touch.strong or "init" not in self.shadow.marks:
            return writer
        init = self.shadow.marked("init", touch.unit)
        return np.where((init != 0) & (writer & STRONG != 0), init, writer)

    def finish(self, order: ChunkOrder) -> None:
        """The chunk has ended: copies that nobody has waited for, and blocks that nobody kept."""
        self.lifetimes.settle(order)
        for batch in self.copies.batches:
            if batch.name == CP_ASYNC:
                batch = batch.part(~self.lifetimes.alive[batch.lane])
            if not batch.lane.size:
                continue
            address = int(batch.address[0]) % self.stride
            element = self.naming.element(self.space, address, batch.size)
            said = (
                f"the {batch.name} of line {batch.line} may still write {element.text} when the "
                "block has ended"
            )
            how = {"remedy": WAIT_BEFORE_THE_END}
            if batch.name == CP_ASYNC:
                how = {"remedy": WAIT_FOR_OWN, "severity": "warning"}
            lanes = lane_of(batch.bits)
            self.naming.report("race", batch.line, said, lanes, element, **how)

    def deliver(self, access: Access) -> None:
        """What a bulk copy has put in place counts as written, by no thread, from here on."""
        flat = access.address.view(np.int64) + access.block * self.stride
        units = self.shadow.units(flat, access.size)
        self.shadow.writer[units] = HOST
        self.shadow.keep_values(units)

    def check_copies(self, access: Access, context: Context) -> Access:
        """An access to what is still on its way, be it the same thread's; returns the others.

        What meets a cp.async is returned too.
        """
        touch, keep = self.touch(access, context)
        numbers = self.copies.under_way(touch.unit, access.kind == "atomic")
        early = np.nonzero(numbers)[0]
        if not early.size:
            return access
        batch = self.copies.batches[numbers[early[0]] - 1]
        unit, lanes = touch.unit[early[0]], lane_of(np.unique(touch.stamp[early]))
        element = self.naming.element(self.space, self.address_of(int(unit)), access.size)
        verb = "reads" if access.kind == "load" else "writes"
        doing = "copying" if batch.name == CP_ASYNC else "writing"
        said = (
            f"{self.naming.who(lanes[0])} {verb} {element.text} while the {batch.name} of line "
            f"{batch.line} may still be {doing} it"
        )
        remedy = (
            "wait first: cp.async.wait_group (__pipeline_wait_prior), and then a barrier where "
            "another thread's copy is used"
        )
        if batch.name != CP_ASYNC:
            remedy = (
                "wait first until the phase of its mbarrier is complete: no other barrier waits "
                "for it"
            )
        how = {"other_line": batch.line, "remedy": remedy}
        self.naming.report("race", context.line, said, lanes, element, **how)
        if batch.name == CP_ASYNC:
            return access
        place = np.arange(access.lanes.size) if keep is None else keep
        others = np.ones(access.lanes.size, bool) if access.valid is None else access.valid.copy()
        others[place[early % place.size]] = False
        return replace(access, valid=others)

    def check_source(self, access: Access, context: Context) -> None:
        """A write to global memory from which a cp.async is still copying."""
        address = access.address.view(np.int64)
        early, line = self.copies.reading(address, access.size)
        if access.valid is not None:
            early &= access.valid
        if not early.any():
            return
        element = self.naming.element("global", int(address[np.argmax(early)]), access.size)
        lanes = lane_of(context.lanes.bits[early])
        said = (
            f"{self.naming.who(lanes[0])} writes {element.text} while the cp.async of line {line} "
            "may still be reading it"
        )
        remedy = (
            "wait first: cp.async.wait_group (__pipeline_wait_prior), and then a barrier where "
            "another thread copies it"
        )
        how = {"other_line": line, "remedy": remedy}
        self.naming.report("race", context.line, said, lanes, element, **how)

    def flat(self, address: np.ndarray, lanes: LaneStamps, context: Context) -> np.ndarray:
        if self.one_block:
            return address
        if lanes.holder is not None:
            return address + lanes.holder * self.stride
        return address + lanes.lane // self.per_block * self.stride

    def floor(self, lanes: LaneStamps, context: Context):
        if self.clustered:
            return FIRST  # accesses of other blocks have no lower bound
        return context.order.floor(lanes.lane)

    def relation(self, prior: np.ndarray, lane: np.ndarray, context: Context):
        time, earlier = time_of(prior), lane_of(prior) - self.first_lane
        order = context.order
        ordered = order.barrier_orders(time, earlier, lane)
        if self.clustered:
            ordered &= earlier // self.per_block == lane // self.per_block
        ordered |= order.cluster_orders(time, earlier, lane)
        ordered |= order.warp_orders(time, earlier, lane)
        ordered |= order.phase_orders(time, earlier, lane)
        if ordered.all():
            return ordered, ordered, ordered
        fenced, taken = order.publications.relation(time, earlier, lane)
        if self.clustered:  # between blocks a fence tells what other warps of the block did, too
            apart = earlier // self.per_block != lane // self.per_block
            lanes = earlier + self.first_lane, lane + self.first_lane
            of_grid = order.of_grid.relation(time, *lanes)
            fenced, taken = fenced | apart & of_grid[0], taken | apart & of_grid[1]
        return ordered | fenced, order.only_met(time, earlier, lane), taken

    def remedy(self, hazard: str, earlier: int, later: int) -> str:
        if self.in_one_block(earlier, later):
            if hazard == "WAW":
                return (
                    "give each thread an element of its own, put __syncthreads() between the two "
                    "writes, or make both atomic"
                )
            return (
                "put __syncthreads() between the two accesses (__syncwarp() is enough inside one "
                "warp), or make both atomic"
            )
        return (
            "put the barrier of the cluster between the two accesses: cluster.sync(), or "
            "barrier.cluster.arrive and barrier.cluster.wait; __syncthreads() reaches one block"
        )

    def address_of(self, unit: int) -> int:
        return (unit << self.shadow.shift) % self.stride
