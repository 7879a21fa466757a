"""mbarrier objects: words of shared memory that count arrivals and bytes, phase after phase.

A phase completes when no arrival and no byte is pending any more; the next one then expects as many
arrivals, less those that were dropped. PTX leaves the 64 bits opaque. Here bits 0 to 19 hold the
arrivals that are pending, 20 to 39 those that a phase expects, 40 to 61 the pending bytes (signed),
bit 62 is set from `init` to `inval`, and bit 63 is the parity of the phase. The state that an
arrival returns is the word before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from kernelscope.events import PhaseUse
from kernelscope.ptx.syntax import Instruction
from kernelscope.translate.control_flow import LANE

from ...errors import MemoryFault, SimulatorError
from ..access import Memory
from ..copy_engine.arrivals import Arrivals
from ..lanes import ChunkLanes
from ..memory import spread
from ..reports import Reports
from ..scheduler import Scheduler
from .copies import AsyncCopies

MOST = (1 << 20) - 1  # arrivals that an mbarrier can expect, and bytes that can be pending
_WORD = np.dtype("u8")
_READY = np.uint64(1 << 62)
_PARITY = np.uint64(63)
_FIELD, _EXPECTED, _BYTES = np.uint64(MOST), np.uint64(20), np.uint64(40)
_BYTES_FIELD = np.uint64((1 << 22) - 1)


def pack_state(pending, expected, waiting, parity) -> np.ndarray:
    """The word of an initialised mbarrier; waiting: bytes. Integers, int64."""
    fields = (np.asarray(field, np.int64).view(np.uint64) for field in (pending, expected, parity))
    pending, expected, parity = fields
    waiting = np.asarray(waiting, np.int64).view(np.uint64) & _BYTES_FIELD
    return pending | expected << _EXPECTED | waiting << _BYTES | _READY | parity << _PARITY


def unpack_state(word) -> tuple[np.ndarray, ...]:
    """(pending arrivals, expected arrivals, pending bytes, parity) of words, int64 each."""
    pending, expected = word & _FIELD, word >> _EXPECTED & _FIELD
    waiting = (word << np.uint64(2)).view(np.int64) >> np.int64(42)
    return pending.view(np.int64), expected.view(np.int64), waiting, parity_of(word)


def parity_of(word) -> np.ndarray:
    """The parity of the phase that words were in, int64."""
    return (word >> _PARITY).view(np.int64)


def step(word, arrivals, dropped, added) -> tuple[np.ndarray, np.ndarray]:
    """(words after one arrival each, bool: does that leave the range of a count?).

    arrivals: by how much the pending arrivals fall; dropped: the same for those of later phases;
    added: bytes more that are pending.
    """
    pending, expected, waiting, parity = unpack_state(word)
    pending, expected, waiting = pending - arrivals, expected - dropped, waiting + added
    outside = (pending < 0) | (expected < 0) | (np.abs(waiting) > MOST)
    complete = (pending == 0) & (waiting == 0)
    pending = np.where(complete, expected, pending)
    return pack_state(pending, expected, waiting, parity ^ complete), outside


@dataclass
class _Following:
    """Arrivals that follow the copies of their lanes, (n,) each."""

    places: np.ndarray
    index: np.ndarray  # word of shared memory of the mbarrier
    issued: int  # copies issued before
    instruction: Instruction

    def part(self, chosen: np.ndarray) -> _Following:
        places, index = self.places[chosen], self.index[chosen]
        return _Following(places, index, self.issued, self.instruction)


class Mbarriers:
    """The instructions on mbarrier objects of a chunk's shared memory.

    following: arrivals that wait for copies (cp.async.mbarrier.arrive). They come in, with the
    data, when somebody asks for the phase: a kernel that reads without waiting finds the old bytes.
    use: what the last instruction did, for observers. awaited: (places,) the word of the mbarrier
    that each lane has lately asked in vain, or -1; parities: the phase that it asked for; asked_at:
    the number in `sites` of (function instance, instruction) where it asked.
    """

    def __init__(
        self,
        lanes: ChunkLanes,
        memory: Memory,
        copies: AsyncCopies,
        arrivals: Arrivals,
        scheduler: Scheduler,
        reports: Reports,
    ):
        self.lanes, self.memory, self.copies, self.arrivals = lanes, memory, copies, arrivals
        self.scheduler, self.reports = scheduler, reports
        self.following: list[_Following] = []
        self.use: PhaseUse | None = None
        self.awaited = np.full(lanes.count, -1)
        self.parities = np.zeros(lanes.count, np.int8)
        self.asked_at = np.zeros(lanes.count, np.int32)
        self.sites: list[tuple[object, Instruction]] = []

    @property
    def words(self) -> np.ndarray:
        return self.memory.shared.view[_WORD]

    @staticmethod
    def pending_count(state):
        """mbarrier.pending_count: the arrivals that were pending in a state, uint32."""
        return (state & _FIELD).astype(np.uint32)

    # -- finding the words ----------------------------------------------------------------------
    def locate(self, space: str, address, ins: Instruction, kind: str, ready: bool = True):
        """(index, chosen): words of shared memory, and the running lanes that have them, (n,).

        ready: they have to be initialised mbarriers. What is wrong is reported; those lanes are
        left out where an observer lets the run go on.
        """
        address = spread(address, self.lanes.R[LANE].size)
        memory, index, valid = self.memory.locate(space, address, 3, 8, ins, kind)
        if memory is not self.memory.shared:
            self.complain("out-of-bounds", "names an mbarrier outside of shared memory", ins)
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        chosen = np.arange(address.size) if valid is None else np.nonzero(valid)[0]
        index = index[chosen]
        if ready:
            good = self.are_ready(index, self.lanes.R[LANE][chosen], ins)
            if not good.all():
                index, chosen = index[good], chosen[good]
        return index, chosen

    def are_ready(self, index: np.ndarray, lanes: np.ndarray, ins: Instruction) -> np.ndarray:
        """(n,) bool: which words are initialised mbarriers; lanes of others are reported."""
        raw = self.words[index] & _READY == 0
        if raw.any():
            text = (
                "uses an mbarrier that is not initialised. Let one thread initialise it, and put a "
                "barrier such as __syncthreads() behind that"
            )
            self.complain("uninitialised-read", text, ins, lanes[raw])
        return ~raw

    def complain(self, kind: str, what: str, ins: Instruction, lanes=None) -> None:
        """Report a misuse; raise where no observer goes on. lanes: their ids, None: the running."""
        lanes = self.lanes.R[LANE] if lanes is None else lanes
        instance = self.reports.block.instance
        memory = kind in ("out-of-bounds", "misaligned")
        where = instance.where(ins) if memory else instance.where_called(ins)
        message = f"{self.lanes.kernel.name} at {where}: {self.lanes.thread_text(lanes)} {what}"
        event = self.reports.fault(kind, message, instance, ins, lanes)
        if event is None:
            return
        if memory:
            raise MemoryFault(message, kind, threads=event.threads, line=event.line)
        raise SimulatorError(message, instance.kernel_line(ins) or event.line)

    def note(self, chosen: np.ndarray, parity: np.ndarray, passed=None, place=None) -> None:
        if self.reports.observers:
            self.use = PhaseUse(chosen, parity, passed, place)

    # -- beginning and end ----------------------------------------------------------------------
    def init(self, space: str, address, count, ins: Instruction) -> None:
        """mbarrier.init: a first phase that expects `count` arrivals."""
        index, chosen = self.locate(space, address, ins, "store", ready=False)
        count = spread(count, self.lanes.R[LANE].size)[chosen].astype(np.int64)
        wrong = (count < 1) | (count > MOST)
        if wrong.any():
            first = int(count[np.argmax(wrong)])
            text = f"initialises an mbarrier for {first} arrivals; it takes 1 to {MOST}"
            self.complain("divergent-barrier", text, ins, self.lanes.R[LANE][chosen[wrong]])
            return
        self.words[index] = pack_state(count, count, 0, 0)
        self.memory.globals.version += 1

    def inval(self, space: str, address, ins: Instruction) -> None:
        """mbarrier.inval: the memory may hold something else from here on."""
        index, _ = self.locate(space, address, ins, "store")
        self.words[index] &= ~_READY
        self.memory.globals.version += 1

    # -- arriving -------------------------------------------------------------------------------
    def arrive(self, space: str, address, count, drops: bool, added, ins: Instruction):
        """mbarrier.arrive and arrive_drop: (lanes,) uint64, the states before.

        count: arrivals of each lane; drops: also of all later phases; added: bytes that are
        expected besides, before the arrival.
        """
        lanes = self.lanes.R[LANE].size
        index, chosen = self.locate(space, address, ins, "atomic")
        count = spread(count, lanes)[chosen].astype(np.int64)
        added = spread(added, lanes)[chosen].astype(np.int64)
        found = self.update(index, count, count * drops, added, ins, self.lanes.R[LANE][chosen])
        self.note(chosen, parity_of(found))
        before = np.zeros(lanes, np.uint64)
        before[chosen] = found
        return before

    def expect(self, space: str, address, added, sign: int, ins: Instruction) -> None:
        """mbarrier.expect_tx (sign 1) and complete_tx (-1): bytes that are pending or not."""
        index, chosen = self.locate(space, address, ins, "atomic")
        added = spread(added, self.lanes.R[LANE].size)[chosen].astype(np.int64) * sign
        none = np.zeros(index.size, np.int64)
        found = self.update(index, none, none, added, ins, self.lanes.R[LANE][chosen])
        self.note(chosen, parity_of(found))

    def update(self, index, arrivals, dropped, added, ins: Instruction, lanes) -> np.ndarray:
        """Arrivals of lanes (by id) one after another, in order; returns each one's word before."""
        self.memory.globals.version += 1
        words, outside = self.words, np.zeros(index.size, bool)
        before = np.empty(index.size, np.uint64)
        order = np.argsort(index, kind="stable")
        places, starts, counts = np.unique(index[order], return_index=True, return_counts=True)
        rest = np.ones(places.size, bool)  # the places where each arrival is done by itself
        if index.size > places.size and arrivals.all():
            # All at once where the phase does not complete before the last one.
            sums = [np.add.reduceat(x[order], starts) for x in (arrivals, dropped, added)]
            now = words[places]
            rest = unpack_state(now)[0] < sums[0]
            words[places[~rest]] = step(now[~rest], *(x[~rest] for x in sums))[0]
            earlier = np.cumsum(arrivals[order]) - arrivals[order]
            earlier -= np.repeat(earlier[starts], counts)
            before[order] = np.repeat(now, counts) - earlier.view(np.uint64)
        for k in range(int(counts[rest].max(initial=0))):  # the k-th lane of every place
            more = rest & (counts > k)
            lane = order[starts[more] + k]
            before[lane] = words[places[more]]
            after, bad = step(before[lane], arrivals[lane], dropped[lane], added[lane])
            outside[lane] = bad
            words[places[more][~bad]] = after[~bad]
        if outside.any():
            first = int(np.argmax(outside))
            text = self.describe_excess(int(index[first]), int(arrivals[first]))
            self.complain("divergent-barrier", text, ins, lanes[outside])
        return before

    def describe_excess(self, index: int, arrivals: int) -> str:
        """Why a word of shared memory takes no more arrivals, or no more bytes."""
        pending, *_ = unpack_state(self.words[index])
        if int(pending) >= arrivals:
            return (
                f"exceeds the count of bytes ({MOST}) of an mbarrier: {self.describe_phase(index)}"
            )
        return (
            "arrives at an mbarrier whose phase expects no more arrivals: "
            f"{self.describe_phase(index)}. An arrival for the next phase comes too early: wait "
            "until the phase before has ended. If this phase needs it, initialise the mbarrier "
            "for more arrivals"
        )

    # -- waiting --------------------------------------------------------------------------------
    def wait(self, space: str, address, phase, by_parity: bool, ins: Instruction) -> np.ndarray:
        """mbarrier.test_wait and try_wait: (lanes,) bool, has the phase completed?

        phase: the state of an arrival, or the phase's parity. try_wait does not wait either: where
        nobody passes, other groups get a turn.
        """
        lanes = self.lanes.R[LANE].size
        index, chosen = self.locate(space, address, ins, "load")
        if self.following:
            self.bring_copies(index)
        phase = spread(phase, lanes)[chosen]
        parity = (phase & phase.dtype.type(1)).astype(np.int64) if by_parity else parity_of(phase)
        passed = parity_of(self.words[index]) != parity
        if self.arrivals.pending and not passed.all():
            # Only for who finds the phase not complete: another one may have asked too early.
            self.land_arrivals(index[~passed])
            passed = parity_of(self.words[index]) != parity
        self.note(chosen, parity, passed)
        self.note_waiting(chosen, index, parity, passed, ins)
        if not passed.all():
            self.scheduler.polls = self.scheduler.patience
        result = np.ones(lanes, bool)
        result[chosen] = passed
        return result

    def follow_copies(self, space: str, address, counted: bool, ins: Instruction) -> None:
        """cp.async.mbarrier.arrive: arrive once the lane's copies up to here are done.

        counted: that arrival is among those that the phase expects (.noinc); else one more is.
        """
        index, chosen = self.locate(space, address, ins, "atomic")
        if not counted:
            np.add.at(self.words, index, np.uint64(1))
        self.note(chosen, parity_of(self.words[index]))
        places = self.lanes.all_places()[chosen]
        self.following.append(_Following(places, index, self.copies.issued, ins))
        self.memory.globals.version += 1

    def bring_copies(self, index: np.ndarray) -> None:
        """Copies arrive that these mbarriers wait for, and count as arrivals there."""
        asked, kept = np.unique(index), []
        for arrival in self.following:
            due = np.isin(arrival.index, asked)
            if not due.all():
                kept.append(arrival.part(~due))
            if due.any():
                arrival = arrival.part(due)
                self.copies.bring(arrival.places, arrival.issued)
                one, lanes = np.ones(arrival.index.size, np.int64), self.lanes.at(arrival.places)
                self.update(arrival.index, one, 0 * one, 0 * one, arrival.instruction, lanes)
        self.following = kept

    def land_arrivals(self, index: np.ndarray) -> None:
        """Bulk copies arrive that these mbarriers wait for, and their bytes are complete there."""
        for arrival in self.arrivals.land(np.unique(index)):
            none = np.zeros(arrival.mbarrier.size, np.int64)
            added = none - arrival.size
            self.update(arrival.mbarrier, none, none, added, arrival.instruction, arrival.lanes)

    # -- phases that never complete -------------------------------------------------------------
    def note_waiting(self, chosen, index, parity, passed, ins: Instruction) -> None:
        """Remember which lanes have asked in vain, and forget those that pass."""
        places = self.lanes.all_places()[chosen]
        self.awaited[places] = np.where(passed, -1, index)
        if passed.all():
            return
        site = self.reports.block.instance, ins
        if site not in self.sites:
            self.sites.append(site)
        self.parities[places] = parity
        self.asked_at[places] = self.sites.index(site)

    def describe(self, places: np.ndarray) -> list[str]:
        """Who of these lanes waits for which phase of an mbarrier, and what is pending there."""
        mine = places[self.awaited[places] >= 0]
        keys = np.stack([self.asked_at[mine], self.awaited[mine], self.parities[mine]], axis=1)
        found, parts = np.unique(keys, axis=0, return_inverse=True), []
        for number, (site, index, parity) in enumerate(found[0].tolist()):
            lanes = self.lanes.at(mine[found[1].ravel() == number])
            instance, instruction = self.sites[site]
            asked = instance.where_called(instruction)
            parts.append(
                f"{self.lanes.who(lanes)} at {asked} for the end of a phase "
                f"of parity {parity}: {self.describe_phase(index)}"
            )
        return parts

    def describe_phase(self, index: int) -> str:
        """What an mbarrier waits for: the pending arrivals and bytes of its phase."""
        pending, expected, waiting, parity = (int(x) for x in unpack_state(self.words[index]))
        stride = self.memory.cluster.shared_stride
        place = self.memory.name_shared(8 * index % stride)
        text = f"the mbarrier at {place} waits for {pending} of {expected} arrivals"
        if waiting:
            text += f" and {waiting} bytes"
        if waiting < 0:
            text += " (more were copied than it expects)"
        return f"{text} of its phase of parity {parity}"
