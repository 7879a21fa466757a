"""Shared memory under bulk copies and products: who may read or write a tile, and when.

Copies and products touch chunks of 16 bytes. For each chunk is kept which copy last writes it,
which copy out of shared memory last reads it, and which product of each warp group does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from kernelscope.events import Access, MachineView

from ..findings import Naming
from ..races.context import Context
from ..races.ordering import ChunkOrder
from ..races.shadow import FIRST, HOST, lane_of, time_of
from ..races.shared_races import SharedRaces
from .fences import FenceLog
from .operations import COPY, PRODUCT, STORE, AsyncWork, comes_after
from .phases import Phases
from .reports import TileReports

_CHUNK = 4  # bits of an address inside a chunk
_WARPS = 4  # of a group


class TileRules(TileReports):
    """The shared memory of a chunk of blocks, in chunks of 16 bytes.

    operations: all of the launch, by number; fences: those that tell the asynchronous proxy of
    writes to shared memory.
    """

    def __init__(
        self,
        machine: MachineView,
        shared: SharedRaces,
        order: ChunkOrder,
        phases: Phases,
        operations: list[AsyncWork],
        naming: Naming,
    ):
        super().__init__(naming, phases, machine.first_lane)
        self.shared, self.order, self.operations = shared, order, operations
        self.stride, count = shared.stride, machine.memory("shared").size >> _CHUNK
        self.per_block = naming.per_block
        self.fences = FenceLog()
        self.copies = np.zeros(count, np.int32)  # number of the operation; 0: none
        self.stores = np.zeros(count, np.int32)
        groups = -(-machine.warps_per_block // _WARPS)
        self.products = np.zeros((groups, count), np.int32)
        self.proven = np.zeros((groups, count), np.int64)  # writes up to then come before products
        self.any = False

    # -- places ---------------------------------------------------------------------------------
    def chunks_of(self, access: Access) -> np.ndarray:
        """The chunks of an asynchronous access, (n,) int64; refused ones are left out."""
        address = access.address.view(np.int64)
        inside = address + access.size <= self.stride
        start = ((address + access.block * self.stride) >> _CHUNK)[inside]
        count = max(access.size >> _CHUNK, 1)
        return start if count == 1 else (start[:, None] + np.arange(count)).ravel()

    def stamps(self, of: np.ndarray, chunks: np.ndarray) -> np.ndarray:
        """(chunks, units of one) stamps of the shadow."""
        shift = _CHUNK - self.shared.shadow.shift
        return of[(chunks[:, None] << shift) + np.arange(1 << shift)]

    def under(self, numbers: np.ndarray) -> Iterator[tuple[AsyncWork, np.ndarray]]:
        """Each operation that is named, and where, (n,) bool."""
        for number in np.unique(numbers).tolist():
            if number:
                yield self.operations[number], numbers == number

    # -- an operation begins --------------------------------------------------------------------
    def issue(self, operation: AsyncWork) -> None:
        """Judge and note the accesses of an operation to shared memory."""
        self.any = True
        accesses = [one for one in operation.told.accesses if one.space == "shared"]
        for place, access in enumerate(accesses):
            chunks = self.chunks_of(access)
            if access.kind == "load":
                own_rows = operation.kind == PRODUCT and place == 0 and len(accesses) > 1
                self.read(operation, chunks, own_rows)
            else:
                self.write(operation, chunks)

    def read(self, operation: AsyncWork, chunks: np.ndarray, own_rows: bool) -> None:
        """own_rows: each warp of the group reads rows of its own, as of A."""
        readers = operation.lanes[:1]
        if operation.kind == PRODUCT:
            readers = operation.lanes[::32]
        for prior, where in self.under(self.copies[chunks]):
            late = [one for one in readers.tolist() if not self.over(prior, one)]
            if late:
                self.report_early(operation, prior, late[0], int(chunks[where][0]))
                prior.known.update(one >> 5 for one in late)
        group = operation.lane % self.per_block // 128
        writers = self.stamps(self.shared.shadow.writer, chunks)
        fresh = writers >= FIRST
        if operation.kind == PRODUCT:
            fresh &= time_of(writers) > self.proven[group, chunks][:, None]
        if fresh.any():
            self.check_writers(operation, writers, fresh, chunks, readers, own_rows)
        if operation.kind == PRODUCT:
            if not own_rows:
                self.proven[group, chunks] = operation.time
            self.products[group, chunks] = operation.number
        else:
            self.stores[chunks] = operation.number

    def check_writers(self, operation, writers, fresh, chunks, readers, own_rows: bool) -> None:
        """What threads have written has to be ordered before the operation, behind a fence.

        writers: (chunks, units) stamps, fresh: those to look at; own_rows as of read().
        """
        stamps, first = np.unique(writers[fresh], return_index=True)
        where = np.nonzero(fresh)[0][first]
        time, lane = time_of(stamps), lane_of(stamps) - self.first_lane
        fenced = self.fences.first_after(time, lane)
        ordered, published = np.ones((2, stamps.size), bool)
        for reader in readers.tolist():
            other = lane != reader
            if operation.kind == PRODUCT:
                other = lane >> 5 != reader >> 5
                if own_rows:
                    other &= lane >> 7 != reader >> 7
            here = np.nonzero(other)[0]
            if here.size:
                later = np.full(here.size, reader)
                ordered[here] &= self.order.settles(time[here], lane[here], later)
                published[here] &= self.order.settles(fenced[here], lane[here], later)
        published &= fenced > 0
        taken = ordered & ~published & self.fenced_by(readers, time)
        late = ordered & ~published & ~taken & (fenced > 0)
        missing = ordered & ~published & ~taken & (fenced == 0)
        for why, wrong in (
            ("race", ~ordered),
            ("late", late),
            ("missing", missing),
            ("taken", taken),
        ):
            if wrong.any():
                at = int(np.argmax(wrong))
                count = int(np.count_nonzero(wrong))
                self.report_unseen(operation, stamps[at], int(chunks[where[at]]), why, count)

    def fenced_by(self, readers: np.ndarray, time: np.ndarray) -> np.ndarray:
        """(n,) bool: has a barrier come after these times, and then a fence of every reader?"""
        found = np.ones(time.size, bool)
        for reader in readers.tolist():
            passed = self.order.passed_by_all
            if self.order.passed is not None:
                passed = int(self.order.passed[reader])
            fence = self.fences.first_after(np.array([passed]), np.array([reader]))[0]
            found &= (time < passed) & bool(fence)
        return found

    def write(self, operation: AsyncWork, chunks: np.ndarray) -> None:
        """A copy into shared memory: all who used the tile have to be done with it."""
        lane = operation.lane
        users = [
            (self.copies, COPY),
            (self.stores, STORE),
            *((one, PRODUCT) for one in self.products),
        ]
        for numbers, kind in users:
            for prior, where in self.under(numbers[chunks]):
                if prior is operation or prior.reduces and operation.reduces:
                    continue
                if not self.done_with(prior, kind, lane):
                    self.report_refill(operation, prior, int(chunks[where][0]))
        shadow = self.shared.shadow
        for name, stamps in (
            ("wrote", shadow.writer),
            ("read", shadow.reader),
            ("read", shadow.other),
        ):
            self.check_threads(operation, name, self.stamps(stamps, chunks), chunks)
        self.copies[chunks] = operation.number
        self.stores[chunks] = 0
        self.products[:, chunks] = 0
        units = (chunks[:, None] << _CHUNK - shadow.shift) + np.arange(1 << _CHUNK - shadow.shift)
        shadow.writer[units] = HOST  # no thread wrote it; early accesses are judged here

    def check_threads(self, operation: AsyncWork, name: str, stamps, chunks) -> None:
        """Accesses of threads to a tile before a copy into it."""
        fresh = stamps >= FIRST
        if not fresh.any():
            return
        which, first = np.unique(stamps[fresh], return_index=True)
        where = np.nonzero(fresh)[0][first]
        time, lane = time_of(which), lane_of(which) - self.first_lane
        later = np.full(lane.size, operation.lane)
        ordered = (lane == operation.lane) | self.order.settles(time, lane, later)
        if not ordered.all():
            at = int(np.argmin(ordered))
            self.report_overwritten(operation, name, which[at], int(chunks[where[at]]))
        elif name == "wrote" and not self.fences.first_after(time, lane).all():
            at = int(np.argmin(self.fences.first_after(time, lane)))
            self.report_unfenced_write(operation, which[at], int(chunks[where[at]]))

    # -- an operation ends ----------------------------------------------------------------------
    def over(self, prior: AsyncWork, lane: int) -> bool:
        """Does what `lane` does now come after the end of an operation?"""
        if lane >> 5 not in prior.known:
            if not comes_after(prior.ended, lane, self.order, prior.kind != STORE):
                return False
            prior.known.add(lane >> 5)
        return True

    def done_with(self, prior: AsyncWork, kind: str, lane: int) -> bool:
        """The same of the operation's use of the tile.

        kind: STORE for a source. One that an mbarrier counts at the other end is read when it ends.
        """
        if kind != STORE or prior.kind == COPY:
            return self.over(prior, lane)
        return comes_after(prior.read, lane, self.order, False)

    def all_done_with(self, prior: AsyncWork, kind: str, lanes: np.ndarray) -> np.ndarray:
        """(n,) bool: the same for several lanes."""
        if kind != STORE or lanes.size == 1 or not prior.read:
            return np.array([self.done_with(prior, kind, lane) for lane in lanes.tolist()], bool)
        ((reader, time),) = prior.read.items()
        earlier, when = np.full(lanes.size, reader), np.full(lanes.size, time)
        return (lanes == reader) | self.order.settles(when, earlier, lanes)

    # -- threads ------------------------------------------------------------------------------
    def access(self, access: Access, context: Context) -> None:
        """An access of threads, before the shadow learns of it."""
        address, lanes, holder = access.address.view(np.int64), context.lanes.lane, access.block
        home = lanes // self.per_block if holder is None else holder
        flat = address + home * self.stride
        if self.phases.places.size:
            self.phases.check_plain(flat, access, context)
        if not self.any:
            return
        if access.valid is not None:
            flat, lanes = flat[access.valid], lanes[access.valid]
        chunks = flat >> _CHUNK
        self.check_users(self.copies[chunks], COPY, access, context, lanes, flat)
        if access.kind != "load":
            self.check_users(self.stores[chunks], STORE, access, context, lanes, flat)
            for numbers in self.products:
                self.check_users(numbers[chunks], PRODUCT, access, context, lanes, flat)

    def check_users(
        self, numbers, kind: str, access: Access, context: Context, lanes, flat
    ) -> None:
        if not np.count_nonzero(numbers):
            return
        for prior, where in self.under(numbers):
            mine = np.nonzero(where)[0]
            if kind != STORE:  # a wait counts for its warp
                known = np.isin(lanes[mine] >> 5, list(prior.known)) if prior.known else None
                mine = mine if known is None else mine[~known]
            _, first = np.unique(lanes[mine] >> 5 * (kind != STORE), return_index=True)
            mine = mine[first]
            late = mine[~self.all_done_with(prior, kind, lanes[mine])]
            if late.size:
                self.report_access(prior, kind, access, context, lanes[late], int(flat[late[0]]))
