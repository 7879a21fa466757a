"""The issue of bulk copies, their groups, and the ends of those that leave shared memory."""

from __future__ import annotations

import numpy as np
from kernelscope.ptx.syntax import Instruction
from kernelscope.translate.control_flow import LANE

from ...addresses import WINDOWS
from ...errors import InputError, UnsupportedInstruction
from ...events import BULK_SIZE
from ...isa.atomics import Reduction, reduction_of_elements
from ...tensor_map.fields import MAP_BYTES
from ..access import Memory
from ..barriers.mbarriers import Mbarriers, parity_of
from ..clusters import Cluster
from ..lanes import ChunkLanes
from ..memory import scalar, spread
from ..reports import Reports
from ..warps import are_whole_warps
from . import told
from .arrivals import Arrivals
from .boxes import UNITS, Box, decoded
from .places import CHUNK, LINE, PLAIN, SharedPlaces
from .transfers import Arrival, Departure, GlobalPlaces

_MAP_ALIGNMENT = 64
_WORD = np.dtype("u4"), 2
_RANKS = 16  # bits of a multicast's mask


class CopyEngine:
    """cp.async.bulk and cp.reduce.async.bulk of a chunk, plain or of boxes of maps, and st.async.

    Copies into shared memory read their source at once, and arrive when an mbarrier is asked (see
    Arrivals). Copies out of it read shared memory when their thread waits for that
    (wait_group.read), and write global memory when it waits for all (wait_group), at the latest
    when the chunk ends: what is overwritten too early, or read too early, gives wrong numbers.

    departures: copies out of shared memory that are under way, in the order of their issue;
    committed: (places,) bulk groups that each lane has closed.
    """

    def __init__(
        self,
        lanes: ChunkLanes,
        memory: Memory,
        cluster: Cluster,
        arrivals: Arrivals,
        mbarriers: Mbarriers,
        reports: Reports,
    ):
        self.lanes, self.memory, self.cluster = lanes, memory, cluster
        self.arrivals, self.mbarriers, self.reports = arrivals, mbarriers, reports
        self.departures: list[Departure] = []
        self.committed = np.zeros(lanes.count, np.int64)

    # -- into shared memory ---------------------------------------------------------------------
    def load_box(self, to, where, coordinates: tuple, mbarrier, mask, ins: Instruction) -> None:
        """cp.async.bulk.tensor from global memory; where: address of the map; mask: of ranks."""
        for box, chosen, first in self.boxes(where, coordinates, ins):
            span = box.span(first)
            if not self.reaches(span.low, span.high, "load", chosen, ins):
                continue
            target = GlobalPlaces(box, first)
            self.note("load", target)
            data = box.read(self.memory.globals.bytes, first)
            self.arrive(to, mbarrier, mask, chosen, data, target, ins)

    def load(self, to, source, size, mbarrier, mask, ins: Instruction) -> None:
        """cp.async.bulk from global memory."""
        count = self.lanes.R[LANE].size
        source = spread(source, count)
        for one, chosen in self.sizes(size, ins):
            chosen = self.in_global(source, chosen, one, "load", ins)
            target = GlobalPlaces(None, source[chosen].astype(np.int64))
            self.note("load", target, one)
            index = (target.first[:, None] + np.arange(0, one, CHUNK)) // CHUNK
            data = self.memory.globals.bytes.view(UNITS[CHUNK]).take(index).view(np.uint8)
            self.arrive(to, mbarrier, mask, chosen, data, target, ins)

    def send(self, to, source, size, mbarrier, reduction, ins: Instruction) -> None:
        """cp.async.bulk and cp.reduce.async.bulk to shared memory of a block of the cluster."""
        for one, chosen in self.sizes(size, ins):
            here, chosen = self.place(source, chosen, one, CHUNK, ins)
            there, kept = self.place(to, chosen, one, CHUNK, ins)
            here = here.part(np.isin(chosen, kept))
            phase, last = self.place(mbarrier, kept, 8, 8, ins)
            held, lanes = np.isin(kept, last), self.lanes.R[LANE][last]
            arrival = Arrival(lanes, there.part(held), phase, one, PLAIN, ins)
            arrival.source, arrival.reduction = here.part(held), reduction
            self.start(arrival, None)

    def post(
        self, space: str, to, mbarrier, values: tuple, shift: int, change, ins: Instruction
    ) -> None:
        """st.async and red.async: items of threads, to shared memory of a block of the cluster.

        Threads store them, so observers see accesses of threads. They arrive as copies do.
        """
        count, kind = self.lanes.R[LANE].size, "store" if change is None else "atomic"
        data = np.stack([spread(one, count) for one in values], axis=1).view(np.uint8)
        size, none = data.shape[1], np.zeros(0, np.int64)
        self.mbarriers.note(none, none, place=(none, none))
        memory, index, valid = self.memory.locate(space, to, shift, size, ins, kind)
        if memory is not self.memory.shared:
            self.mbarriers.complain("out-of-bounds", "stores outside of shared memory", ins)
            return
        if space == "generic":
            mbarrier = mbarrier - np.uint64(WINDOWS["shared"])
        chosen = np.arange(count) if valid is None else np.nonzero(valid)[0]
        flat, stride = spread(index, count)[chosen] << shift, self.cluster.shared_stride
        there = SharedPlaces(flat % stride, flat // stride * stride, flat // stride)
        phase, last = self.place(mbarrier, chosen, 8, 8, ins)
        there = there.part(np.isin(chosen, last))
        apart = there.block != phase.block
        if apart.any():
            text = "stores to one block and names an mbarrier of another; both have to be in one"
            self.mbarriers.complain("out-of-bounds", text, ins, self.lanes.R[LANE][last[apart]])
            there, phase, last = there.part(~apart), phase.part(~apart), last[~apart]
        lanes = self.lanes.R[LANE][last]
        arrival = Arrival(lanes, there, phase, size, PLAIN, ins, data, last, reduction=change)
        started = self.start(arrival, None, tell=False)
        if started is not None:
            where, words = started.phase, self.mbarriers.words[started.mbarrier]
            self.mbarriers.note(started.row, parity_of(words), place=(where.block, where.address))

    def arrive(
        self, to, mbarrier, mask, chosen, data, target: GlobalPlaces, ins: Instruction
    ) -> None:
        """Start copies of rows of data, those of the chosen lanes, to one block or several."""
        size, layout = data.shape[1], target.layout
        alignment = LINE if target.box is not None else CHUNK
        there, kept = self.place(to, chosen, layout.room(size), alignment, ins)
        phase, last = self.place(mbarrier, kept, 8, 8, ins)
        there = there.part(np.isin(kept, last))
        row = np.searchsorted(chosen, last)
        if mask is not None:
            names = spread(mask, self.lanes.R[LANE].size)[last].astype(np.int64)
            which, there, phase = self.multicast(names, last, there, phase, ins)
            row, last = row[which], last[which]
        arrival = Arrival(self.lanes.R[LANE][last], there, phase, size, layout, ins, data, row)
        self.start(arrival, target)

    def start(
        self, arrival: Arrival, target: GlobalPlaces | None, tell: bool = True
    ) -> Arrival | None:
        """Put copies under way whose mbarriers are ready, and return them, if any.

        target: where their data is from; tell: let observers know of them here.
        """
        ins = arrival.instruction
        ready = self.mbarriers.are_ready(arrival.mbarrier, arrival.lanes, ins)
        if not ready.all():
            arrival = arrival.part(ready)
        if not arrival.lanes.size:
            return None
        if tell and self.reports.observers:
            arrival.told = told.of_arrivals(arrival, self.reports.line(ins), target)
            self.reports.async_issued(arrival.told)
        self.arrivals.pending.append(arrival)
        self.memory.globals.version += 1
        return arrival

    def multicast(self, mask, chosen, there: SharedPlaces, phase: SharedPlaces, ins: Instruction):
        """(which of the copies, places, places of mbarriers), one for each block that a mask names.

        Address and mbarrier are the same in every block.
        """
        which, rank = np.nonzero(mask[:, None] >> np.arange(_RANKS) & 1)
        ranks = self.cluster.block_of_rank.shape[1]
        absent = rank >= ranks
        if absent.any():
            lanes = self.lanes.R[LANE][chosen[which[absent]]]
            text = f"multicasts to rank {rank[absent][0]} of a cluster of {ranks} blocks"
            self.mbarriers.complain("out-of-bounds", text, ins, lanes)
            which, rank = which[~absent], rank[~absent]
        own = self.lanes.running_blocks()[chosen[which]]
        holder = self.cluster.block_of_rank[self.cluster.of_block[own], rank]
        base = holder * self.cluster.shared_stride
        both = (SharedPlaces(one.address[which], base, holder) for one in (there, phase))
        return which, *both

    # -- out of shared memory -------------------------------------------------------------------
    def store_box(
        self, where, coordinates: tuple, source, reduction: str, ins: Instruction
    ) -> None:
        """cp.async.bulk.tensor and cp.reduce.async.bulk.tensor to global memory."""
        for box, chosen, first in self.boxes(where, coordinates, ins):
            before = (first < 0).any(axis=1)
            if before.any():
                text = (
                    f"stores a box at {tuple(first[before][0].tolist())}; one that is stored "
                    "begins inside of the array or after it: no coordinate may be negative"
                )
                lanes = self.lanes.R[LANE][chosen[before]]
                self.mbarriers.complain("out-of-bounds", text, ins, lanes)
                chosen, first = chosen[~before], first[~before]
            if not chosen.size:
                continue
            span, operation = box.span(first), None
            if not self.reaches(span.low, span.high, "store", chosen, ins):
                continue
            try:
                operation = reduction_of_elements(reduction, box.kind) if reduction else None
            except UnsupportedInstruction as error:
                text = f"reduces a box of {box.kind}: {error}"
                self.mbarriers.complain("bad-launch", text, ins, self.lanes.R[LANE][chosen])
                continue
            target = GlobalPlaces(box, first)
            here, kept = self.place(source, chosen, target.layout.room(box.bytes), LINE, ins)
            target = target.part(np.isin(chosen, kept))
            self.leave(kept, here, box.bytes, target, operation, ins)

    def store(self, to, source, size, reduction, ins: Instruction) -> None:
        """cp.async.bulk and cp.reduce.async.bulk to global memory."""
        to = spread(to, self.lanes.R[LANE].size)
        for one, chosen in self.sizes(size, ins):
            chosen = self.in_global(to, chosen, one, "store", ins)
            here, kept = self.place(source, chosen, one, CHUNK, ins)
            target = GlobalPlaces(None, to[kept].astype(np.int64))
            self.leave(kept, here, one, target, reduction, ins)

    def leave(self, chosen, source, size, target, reduction, ins: Instruction) -> None:
        """Put copies out of shared memory under way."""
        if not chosen.size:
            return
        places = self.lanes.all_places()[chosen]
        group = self.committed[places]
        departure = Departure(places, group, source, size, target, None, reduction, ins, None)
        if self.reports.observers:
            lanes = self.lanes.R[LANE][chosen]
            departure.told = told.of_departures(departure, self.reports.line(ins), lanes)
            self.reports.async_issued(departure.told)
        self.departures.append(departure)

    def commit(self) -> None:
        """Close the bulk group of each running lane."""
        self.committed[self.lanes.all_places()] += 1

    def wait(self, newer: int, reading: bool) -> None:
        """Wait for all but the `newer` newest bulk groups of each lane.

        reading: only until shared memory has been read.
        """
        if not self.departures:
            return
        mine, kept = np.zeros(self.lanes.count, bool), []
        mine[self.lanes.all_places()] = True
        for one in self.departures:
            due = mine[one.places] & (one.group < self.committed[one.places] - newer)
            if not due.any():
                kept.append(one)
                continue
            ended = one if due.all() else one.part(due)
            self.read_source(ended)
            if reading:
                kept.append(ended)
            else:
                self.write(ended)
            if not due.all():
                kept.append(one.part(~due))
        self.departures = kept

    def finish(self) -> None:
        """The chunk has ended: what nobody has waited for arrives all the same."""
        for one in self.departures:
            self.read_source(one)
            self.write(one)
        self.departures = []

    def read_source(self, one: Departure) -> None:
        if one.data is None:
            one.data = one.source.read(self.memory.shared.bytes, one.size, one.target.layout)
            self.reports.async_read(one.told)

    def write(self, one: Departure) -> None:
        """Copies arrive in global memory."""
        memory, target = self.memory.globals, one.target
        memory.version += 1
        self.note("store", target, one.size)
        if one.reduction is not None:
            unit, dtype = one.reduction.dtype.itemsize, one.reduction.dtype
        else:
            unit = target.box.unit(target.first) if target.box is not None else CHUNK
            dtype = UNITS[unit]
        if target.box is not None:
            index, inside = target.box.indices(target.first, unit)
        else:
            index, inside = (target.first[:, None] + np.arange(0, one.size, unit)) // unit, None
        view, data = memory.bytes.view(dtype), one.data.view(dtype)
        if one.reduction is not None:
            _reduce(view, index, inside, data, one.reduction)
        elif inside is None:
            view[index] = data
        else:
            view[index[inside]] = data[inside]
        self.reports.async_completed(one.told)

    # -- operands -------------------------------------------------------------------------------
    def boxes(self, where, coordinates: tuple, ins: Instruction):
        """Yield (box, running lanes that name its map, (n, axes) int64 coordinates)."""
        count = self.lanes.R[LANE].size
        first = np.stack([spread(one, count) for one in coordinates], axis=1).astype(np.int64)
        for address in [int(where)] if scalar(where) else np.unique(where).tolist():
            chosen = np.arange(count) if scalar(where) else np.nonzero(where == address)[0]
            box = self.box_at(address, chosen, len(coordinates), ins)
            if box is None:
                continue
            uneven = first[chosen, 0] * box.item % CHUNK != 0
            if uneven.any():
                text = (
                    f"names a box at element {first[chosen[uneven][0], 0]} of a row of {box.kind}; "
                    f"the first coordinate must be a multiple of {CHUNK} bytes"
                )
                self.mbarriers.complain("misaligned", text, ins, self.lanes.R[LANE][chosen[uneven]])
                chosen = chosen[~uneven]
            if chosen.size:
                yield box, chosen, first[chosen]

    def box_at(self, address: int, chosen, axes: int, ins: Instruction) -> Box | None:
        """The box of the tensor map at an address; a wrong one is reported, and gives None."""
        memory, kind = self.memory.globals, "out-of-bounds"
        if address % _MAP_ALIGNMENT:
            kind, problem = "misaligned", f"at {address:#x}, no multiple of {_MAP_ALIGNMENT}"
        elif not memory.reaches(address, address + MAP_BYTES, "load"):
            problem = "outside of global, constant and parameter memory"
        else:
            if memory.marks is not None:
                chunks = np.arange(address, address + MAP_BYTES, CHUNK, dtype=np.uint64)
                memory.marks.note("load", chunks, CHUNK)
            try:
                box = decoded(memory.bytes[address : address + MAP_BYTES].tobytes())
            except InputError as error:
                problem = str(error)
            else:
                if box.axes == axes:
                    return box
                problem = f"of {box.axes} axes, with {axes} coordinates"
        lanes = self.lanes.R[LANE][chosen]
        self.mbarriers.complain(kind, f"uses a tensor map {problem}", ins, lanes)
        return None

    def copy_map(self, to, source, ins: Instruction) -> None:
        """tensormap.cp_fenceproxy: the 32 lanes of a warp copy a map, 4 bytes each."""
        lane = self.lanes.R[LANE]
        if lane.size % 32 or not are_whole_warps(lane):
            text = "copies a tensor map, which needs all 32 lanes of a warp: let none branch off"
            self.mbarriers.complain("divergent-barrier", text, ins)
            return
        word = (lane.astype(np.uint64) % np.uint64(32)) << np.uint64(2)
        value = self.memory.load("shared", source + word, *_WORD, 1, ins)
        self.memory.store("global", to + word, (value,), *_WORD, ins)

    def sizes(self, size, ins: Instruction):
        """Yield (bytes, running lanes that copy so many)."""
        count = self.lanes.R[LANE].size
        for one in [int(size)] if scalar(size) else np.unique(size).tolist():
            chosen = np.arange(count) if scalar(size) else np.nonzero(size == one)[0]
            if one % CHUNK:
                text = f"copies {one} bytes; {BULK_SIZE}"
                self.mbarriers.complain("misaligned", text, ins, self.lanes.R[LANE][chosen])
            elif one:
                yield one, chosen

    def place(self, address, chosen, size: int, alignment: int, ins: Instruction):
        """(places of the chosen lanes' addresses in shared memory, the lanes that have them)."""
        found = self.cluster.base_of(spread(address, self.lanes.R[LANE].size))
        inside, base, exists = (one[chosen] for one in found)
        inside, base = inside.astype(np.int64), base.astype(np.int64)
        uneven = inside % alignment != 0
        beyond = ~exists | (inside + size > self.memory.shared_size)
        for kind, wrong in (("misaligned", uneven), ("out-of-bounds", beyond & ~uneven)):
            if wrong.any():
                at = self.memory.describe_shared(int(inside[wrong][0]))[2]
                why = f"the address must be a multiple of {alignment}"
                if kind == "out-of-bounds":
                    why = f"the block has {self.memory.shared_size} bytes"
                text = f"copies {size} bytes to or from {at}; {why}"
                self.mbarriers.complain(kind, text, ins, self.lanes.R[LANE][chosen[wrong]])
        good = ~(uneven | beyond)
        block = base // max(self.cluster.shared_stride, 1)
        return SharedPlaces(inside, base, block).part(good), chosen[good]

    def in_global(self, address, chosen, size: int, kind: str, ins: Instruction) -> np.ndarray:
        """The chosen lanes whose bytes in global memory may be copied; others are reported."""
        mine = address[chosen]
        valid = self.memory.globals.valid(mine, size, kind)
        uneven = mine % np.uint64(CHUNK) != 0
        for what, wrong in (("misaligned", uneven), ("out-of-bounds", ~valid & ~uneven)):
            if wrong.any():
                at = self.memory.describe("global", int(mine[wrong][0]), size, kind)[2]
                text = f"copies {size} bytes to or from {at}"
                if what == "misaligned":
                    text += f"; the address must be a multiple of {CHUNK}"
                self.mbarriers.complain(what, text, ins, self.lanes.R[LANE][chosen[wrong]])
        return chosen[valid & ~uneven]

    def reaches(self, low: int, high: int, kind: str, chosen, ins: Instruction) -> bool:
        """May all of [low, high) of global memory be read or written? What may not is reported."""
        if low == high or self.memory.globals.reaches(low, high, kind):
            return True
        at = self.memory.describe("global", low, 4, kind)[2]
        text = f"copies a box of a tensor map whose array it cannot use: {at}"
        self.mbarriers.complain("out-of-bounds", text, ins, self.lanes.R[LANE][chosen])
        return False

    def note(self, kind: str, target: GlobalPlaces, size: int = 0) -> None:
        """Note accesses for the processes that share a launch."""
        memory = self.memory.globals
        if memory.marks is None:
            return
        for i in range(len(target.first)):
            access, *_ = told.global_access(kind, target, i, 0, size)
            run, step = access.address, access.size
            if target.box is None:
                run, step = run[0] + np.arange(0, size, CHUNK, dtype=np.uint64), CHUNK
            if run.size:
                memory.covers(int(run.min()), int(run.max()) + step, kind)
                memory.marks.note(kind, run, step)


def _reduce(view, index, inside, data, reduction: Reduction) -> None:
    """One copy after another: two may meet in an element."""
    fn = reduction.operation.fn
    for row in range(len(index)):
        kept = slice(None) if inside is None else inside[row]
        place = index[row][kept]
        view[place] = fn(view[place], data[row][kept])
