"""mbarriers: how many phases each has completed, who waited for which, and how they are misused."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from kernelscope.events import Access, InstructionEvent, MachineView

from ..findings import Naming
from ..races.context import Context
from ..races.meetings import phase_key
from ..races.ordering import ChunkOrder
from .fences import FenceLog
from .operations import AsyncWork

ARRIVALS = (
    "count what each phase gets: mbarrier.init names the arrivals, of all threads that arrive and "
    "of each arrive.expect_tx, and expect_tx the bytes of all copies; who waits names the parity "
    "of the phase, 0, 1, 0, ... from the init on"
)
IN_PHASE = (
    "wait before the arrival for what follows the phase before: who releases a tile waits until it "
    "is full, also where it does not read it"
)
Key = tuple[int, int]  # the block of the chunk that holds it, its byte address there


@dataclass(frozen=True)
class Wait:
    """The last wait of a warp at an mbarrier that passed: the phase that it was for."""

    line: int
    parity: int
    phase: int  # -1: the one before the first


@dataclass(frozen=True)
class PhaseArrival:
    """An arrival of a thread at an mbarrier, or a store of it whose bytes count there."""

    line: int
    time: int
    lane: int


@dataclass(eq=False)
class Mbarrier:
    """phase: number of the one that is not complete; waited: phase -> lane of each warp that has
    waited for it -> when; copies: those into shared memory that count here and are not in place;
    arrived: phase -> warp -> its last arrival, of the two newest phases; posted: phase -> the last
    st.async or red.async that counts there.
    """

    line: int  # of its init
    lane: int
    time: int
    phase: int = 0
    expected_at: int = 0  # line of the last arrival with bytes
    waited: dict[int, dict[int, int]] = field(default_factory=dict)
    last: dict[int, Wait] = field(default_factory=dict)  # by warp
    asking: set[int] = field(default_factory=set)  # warps that found a phase not complete
    copies: list[AsyncWork] = field(default_factory=list)
    arrived: dict[int, dict[int, PhaseArrival]] = field(default_factory=dict)
    posted: dict[int, PhaseArrival] = field(default_factory=dict)
    started_for: set[int] = field(default_factory=set)  # warps whose copies may use it


class Phases:
    """The mbarriers of a chunk."""

    def __init__(self, machine: MachineView, order: ChunkOrder, naming: Naming):
        self.machine, self.order, self.naming = machine, order, naming
        self.known: dict[Key, Mbarrier] = {}
        self.places = np.zeros(0, np.int64)  # of all of them, in all shared memory, sorted
        self.started = FenceLog()  # fences after which the copy engine may use an mbarrier
        self.stride = machine.memory("shared").size // machine.block_count

    def sync(self, key: Key) -> Mbarrier | None:
        """The mbarrier, with the number of its present phase."""
        found = self.known.get(key)
        if found is not None and self.machine.mbarrier(*key)[3] != found.phase & 1:
            found.phase += 1
        return found

    def keys(self, access: Access, chosen=None) -> tuple[np.ndarray, np.ndarray]:
        """((n,) lanes, (n,) places in all shared memory) of accesses to mbarriers."""
        chosen = slice(None) if chosen is None else chosen
        lanes, address = access.lanes[chosen], access.address.view(np.int64)[chosen]
        own = lanes // self.naming.per_block
        holder = own if access.block is None else access.block[chosen]
        return lanes, holder * self.stride + address

    # -- what threads do ------------------------------------------------------------------------
    def use(self, event: InstructionEvent, line: int, time: int) -> None:
        """An instruction `mbarrier.*` but for init."""
        what, use = event.instruction.opcode.split(".")[1], event.machine.phase_use
        if what == "init" or not event.accesses or event.accesses[0].space != "shared":
            return
        if what == "inval":
            for place in np.unique(self.keys(event.accesses[0])[1]).tolist():
                self.known.pop(divmod(place, self.stride), None)
            self.note_places()
        if what == "inval" or use is None:
            return
        lanes, places = self.keys(event.accesses[0], use.chosen)
        for place in np.unique(places).tolist():
            mine = places == place
            found = self.sync(divmod(place, self.stride))
            if found is None:
                continue
            if "expect_tx" in event.instruction.opcode:
                found.expected_at = line
            if what.startswith("arrive"):
                self.arrive(found, place, lanes[mine], use.parity[mine], line, time)
            if use.passed is not None:
                parity = int(use.parity[mine][0])
                self.wait(found, lanes[mine], use.passed[mine], parity, line, time)

    def post(self, event: InstructionEvent, line: int, time: int) -> None:
        """st.async and red.async: their bytes count in a phase, as an arrival does."""
        use = event.machine.phase_use
        if use is None or use.place is None:
            return
        block, address = use.place
        lanes, places = event.lanes[use.chosen], block * self.stride + address
        for place in np.unique(places).tolist():
            mine = places == place
            found = self.sync(divmod(place, self.stride))
            if found is not None:
                self.arrive(found, place, lanes[mine], use.parity[mine], line, time, posts=True)

    @staticmethod
    def wait(found: Mbarrier, lanes, passed, parity: int, line: int, time: int) -> None:
        """Lanes asked for a phase of one parity, and passed or not."""
        first = lanes[np.flatnonzero(np.diff(lanes >> 5, prepend=-1))]
        if not passed.any():
            found.asking.update((first >> 5).tolist())
            return
        waited = found.waited.setdefault(found.phase - 1, {})
        wait = Wait(line, parity, found.phase - 1)
        for lane in first.tolist():
            waited.setdefault(lane, time)
            found.last[lane >> 5] = wait
            found.asking.discard(lane >> 5)

    def arrive(
        self, found: Mbarrier, place: int, lanes, parity, line: int, time: int, posts: bool = False
    ) -> None:
        """Lanes have arrived, each in the phase of its parity; posts: their bytes will.

        All arrivals of the phase before have to come first: one that nothing orders behind them
        may be earlier another time, and then counts for that phase, which ends without the last.
        """
        phase = found.phase - (parity != found.phase & 1)
        for number in np.unique(phase).tolist():
            mine = lanes[phase == number]
            first = mine[np.flatnonzero(np.diff(mine >> 5, prepend=-1))]
            before = list(found.arrived.get(number - 1, {}).values())
            if before:
                self.check_arrival(place, number, before, first, line)
            if number - 1 in found.posted:
                self.check_end(found, place, number, first, line)
            if posts:
                found.posted[number] = PhaseArrival(line, time, int(first[-1]))
                continue
            here = found.arrived.setdefault(number, {})
            here.update((lane >> 5, PhaseArrival(line, time, lane)) for lane in first.tolist())
        for kept in (found.arrived, found.posted):
            for old in [one for one in kept if one < found.phase - 1]:
                del kept[old]

    def check_arrival(
        self, place: int, phase: int, before: list[PhaseArrival], lanes, line
    ) -> None:
        """before: arrivals of the phase before; lanes: of one lane of each warp that arrives."""
        time, earlier = (
            np.array([getattr(one, name) for one in before]) for name in ("time", "lane")
        )
        for lane in lanes.tolist():
            ordered = self.order.causes_order(time, earlier, np.full(time.size, lane))
            ordered |= earlier >> 5 == lane >> 5
            if not ordered.all():
                prior = before[int(np.argmin(ordered))]
                self.report_arrival(place, phase, prior, lane, line, "the arrival of {}")
                return

    def check_end(self, found: Mbarrier, place: int, phase: int, lanes, line: int) -> None:
        """Does one lane of each warp that arrives come after a wait for the phase before?

        Bytes of that phase come in at any time before such a wait passes, whoever stored them.
        """
        waited = found.waited.get(phase - 1, {})
        who, time = (np.array(list(part), np.int64) for part in (waited, waited.values()))
        for lane in lanes.tolist():
            ordered = self.order.causes_order(time, who, np.full(time.size, lane))
            if not (ordered | (who >> 5 == lane >> 5)).any():
                prior = found.posted[phase - 1]
                self.report_arrival(place, phase, prior, lane, line, "the end of what {} stored")
                return

    def report_arrival(
        self, place: int, phase: int, prior: PhaseArrival, lane: int, line: int, what: str
    ) -> None:
        where = self.naming.element("shared", place % self.stride, 8)
        lanes = np.array([prior.lane, lane]) + self.machine.first_lane
        said = (
            f"{self.naming.who(lanes[1])} arrives in a phase of parity {phase & 1} of the "
            f"mbarrier {where.text}, and nothing orders that behind "
            f"{what.format(self.naming.who(lanes[0]))} on line {prior.line} in the phase before: "
            "where it comes first it counts for that phase, which then ends before all are done"
        )
        how = {"other_line": prior.line, "remedy": IN_PHASE}
        self.naming.report("race", line, said, lanes, where, **how)

    def begin(self, access: Access, line: int, time: int) -> None:
        """mbarrier.init of some lanes."""
        lanes, places = self.keys(access, access.valid)
        self.order.begin_mbarriers(time)
        for lane, place in zip(lanes.tolist(), places.tolist(), strict=True):
            key = divmod(place, self.stride)
            known = self.known.get(key)
            if known is not None:
                self.report_again(known, key, lane, line)
            self.known[key] = Mbarrier(line, lane, time)
        self.note_places()

    def note_places(self) -> None:
        places = sorted(block * self.stride + address for block, address in self.known)
        self.places = np.array(places, np.int64)

    def report_again(self, known: Mbarrier, key: Key, lane: int, line: int) -> None:
        """An mbarrier that is initialised again without inval."""
        why = ""
        if known.copies:
            why = f", and {known.copies[0].name} has yet to count its bytes there"
        elif known.asking:
            why = ", and other threads wait for its phase"
        where = self.naming.element("shared", key[1], 8)
        lanes = np.array([lane]) + self.machine.first_lane
        said = (
            f"{self.naming.who(lanes[0])} initialises the mbarrier at {where.text} again; it is in "
            f"use since line {known.line}{why}"
        )
        remedy = (
            "initialise an mbarrier once, before the loop, and go on with its phases; where its "
            "memory has to hold something else, end it by mbarrier.inval when all are done with it"
        )
        how = {"other_line": known.line, "remedy": remedy}
        self.naming.report("race", line, said, lanes, where, **how)

    # -- what copies do -------------------------------------------------------------------------
    def join(self, operation: AsyncWork) -> None:
        """A copy counts its bytes in the present phase of its mbarrier."""
        found = self.sync(operation.told.mbarrier)
        if found is None:
            return
        operation.phase = found.phase
        operation.ended = found.waited.setdefault(found.phase, {})
        found.copies.append(operation)
        block, address = operation.told.mbarrier
        key = phase_key(block, address, found.phase & 1)
        self.order.copy_starts(operation.lane, key, operation.time)
        self.check_start(found, operation)

    def leave(self, operation: AsyncWork) -> None:
        """The bytes of a copy are in place; the phase they were counted in may be a later one."""
        found = self.known.get(operation.told.mbarrier)
        operation.landed = True
        if found is None or operation not in found.copies:
            return
        found.copies.remove(operation)
        if operation.phase != found.phase:
            operation.phase = found.phase
            operation.ended = found.waited.setdefault(found.phase, {})
            operation.known.clear()

    def check_start(self, found: Mbarrier, operation: AsyncWork) -> None:
        """Has the copy engine been told of the mbarrier's init, before the copy?"""
        if operation.lane >> 5 in found.started_for:
            return
        found.started_for.add(operation.lane >> 5)
        began, one = np.array([found.time]), np.array([found.lane])
        fence, lane = self.started.first_after(began, one), np.array([operation.lane])
        ordered = found.lane == operation.lane or self.order.settles(fence, one, lane)[0]
        ordered = ordered or self.order.orders_init(began, one, lane)[0]
        if fence[0] and ordered:
            return
        where = self.naming.element("shared", operation.told.mbarrier[1], 8)
        lanes = np.array([operation.lane]) + self.machine.first_lane
        what = "no fence" if not fence[0] else "no barrier of the threads"
        said = (
            f"{self.naming.who(lanes[0])} starts a bulk copy that counts at the mbarrier "
            f"{where.text}, and {what} lies between its init on line {found.line} and the copy: "
            "the copy engine may find the word as it was before"
        )
        remedy = (
            "after mbarrier.init let the same thread execute fence.mbarrier_init.release.cluster "
            "(or fence.proxy.async), and then let all threads meet, as at __syncthreads()"
        )
        how = {"other_line": found.line, "remedy": remedy}
        self.naming.report("race", operation.line, said, lanes, where, **how)

    # -- accesses of another kind ---------------------------------------------------------------
    def touched(self, flat: np.ndarray, size: int) -> np.ndarray:
        """(n,) bool: which accesses of `size` bytes meet an mbarrier."""
        places = self.places
        if not places.size or flat.max() + size <= places[0] or flat.min() >= places[-1] + 8:
            return np.zeros(flat.size, bool)
        at = np.searchsorted(places, flat + size - 1, "right") - 1
        return (at >= 0) & (places[at] + 8 > flat)

    def check_plain(self, flat: np.ndarray, access, context: Context) -> None:
        """A load, store or atomic of threads to the bytes of an mbarrier."""
        met = self.touched(flat, access.size)
        if access.valid is not None:
            met &= access.valid
        if not met.any():
            return
        place = int(flat[met][0])
        began = self.places[np.searchsorted(self.places, place + access.size - 1, "right") - 1]
        known = self.known[divmod(int(began), self.stride)]
        where = self.naming.element("shared", place % self.stride, access.size)
        lanes = context.lanes.lane[met] + self.machine.first_lane
        verb = "reads" if access.kind == "load" else "writes"
        said = (
            f"{self.naming.who(lanes[0])} {verb} {where.text}, where the mbarrier of line "
            f"{known.line} is: its bits mean nothing to a program, and only mbarrier instructions "
            "may touch them"
        )
        remedy = (
            "give mbarriers 8 bytes each that nothing else uses; ask for a phase by "
            "mbarrier.test_wait, and call mbarrier.inval before the memory is used again"
        )
        how = {"other_line": known.line, "remedy": remedy}
        self.naming.report("race", context.line, said, lanes, where, **how)

    # -- the end --------------------------------------------------------------------------------
    def finish(self) -> None:
        """The chunk ends: bytes that are expected and never come, or come unexpected."""
        for key, found in self.known.items():
            left = self.machine.mbarrier(*key)[2] - self.machine.bytes_under_way(*key)
            if left:
                self.report_bytes(found, key, left)

    def report_bytes(self, found: Mbarrier, key: Key, left: int) -> None:
        where = self.naming.element("shared", key[1], 8)
        line, lanes = found.expected_at or found.line, np.array([found.lane])
        what = f"more are copied than it expects, by {-left}"
        if left > 0:
            what = f"it expects {left} more than are copied"
        said = (
            f"the bytes of phase {found.phase} of the mbarrier {where.text} do not add up: {what}; "
            "the phase ends too early, or never"
        )
        remedy = (
            "expect_tx takes the bytes of all boxes and copies of the phase as they stand in "
            "shared memory, elements past the tensor's edges included"
        )
        lanes = lanes + self.machine.first_lane
        self.naming.report("divergent-barrier", line, said, lanes, where, remedy=remedy)
