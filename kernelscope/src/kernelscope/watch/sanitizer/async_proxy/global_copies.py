"""Global memory under bulk copies: what they read and write, and when threads may."""

from __future__ import annotations

import numpy as np
from kernelscope.events import Access

from ..elements import Element
from ..findings import Naming
from ..races.context import Context
from ..races.global_races import GlobalRaces
from ..races.ordering import ChunkOrder
from ..races.shadow import FIRST, TIME_SHIFT, lane_of, time_of
from .fences import FenceLog
from .operations import COPY, STORE, AsyncWork
from .reports import FENCE

_WORD = 2  # bits of an address inside a word
_LOAD_FENCE = (
    f"let each thread that has written execute {FENCE} (or fence.proxy.async.global), and then "
    "order it before the copy: __threadfence() and a flag between blocks, a barrier inside one"
)
_WAIT = (
    "let the thread that started the copy wait for all of it first: cp.async.bulk.commit_group and "
    "cp.async.bulk.wait_group 0 (.read waits for the source alone); then order the accesses as "
    "plain ones: a barrier inside a block, __threadfence() and a flag between blocks"
)
_SOURCE = (
    "wait for the phase of the copy's mbarrier before the source is overwritten, and order the "
    "threads behind that"
)


class GlobalCopies:
    """The bulk copies of a launch in global memory, by the words of 4 bytes that they touch.

    operations: all of the launch, by number; fences: by lane through the grid.
    """

    def __init__(self, races: GlobalRaces, operations: list[AsyncWork], naming: Naming):
        self.races, self.operations, self.naming = races, operations, naming
        self.fences = FenceLog()
        self.numbers: dict[str, np.ndarray] = {}  # kind -> number of the last one, by chunk
        self.stamps: set[int] = set()  # of writes by copies, in the shadow

    # -- places ---------------------------------------------------------------------------------
    def last(self, kind: str) -> np.ndarray:
        """(words,) number of the last operation of a kind that touches each."""
        size = (self.races.shadow.packed.size >> _WORD) + 1
        known = self.numbers.get(kind)
        if known is None or known.size < size:
            grown = np.zeros(size, np.int32)
            if known is not None:
                grown[: known.size] = known
            self.numbers[kind] = grown
        return self.numbers[kind]

    def places(self, access: Access) -> tuple[np.ndarray, np.ndarray]:
        """(words, units of the shadow) that an asynchronous access touches, int64."""
        shadow, address = self.races.shadow, access.address.view(np.int64)
        if access.size > 4:
            address = (address[:, None] + np.arange(0, access.size, 4)).ravel()
        found, more = shadow.positions(address), _WORD - shadow.shift
        units = found >> shadow.shift
        if more and access.size >= 4:
            units = (units[:, None] + np.arange(1 << more)).ravel()
        return found >> _WORD, units

    def element(self, unit: int) -> Element:
        return self.naming.element("global", self.races.address_of(unit), 4)

    @staticmethod
    def overlaps(operation: AsyncWork, address: int, size: int) -> bool:
        """Does it touch these bytes, or others of the same word only?"""
        for one in operation.told.accesses:
            if one.space == "global":
                start = one.address.view(np.int64)
                if ((start < address + size) & (address < start + one.size)).any():
                    return True
        return False

    # -- order ----------------------------------------------------------------------------------
    def ordered(self, stamps: np.ndarray, lane: int, order: ChunkOrder) -> np.ndarray:
        """(n,) bool: do accesses, by stamps, come before what a lane of the chunk does now?"""
        later = np.full(stamps.size, lane)
        same = lane_of(stamps) == lane + order.first_lane
        relation = self.races.relation(stamps, later, _Now(order))
        return same | relation[0]

    def over(self, operation: AsyncWork, lane: int, order: ChunkOrder) -> bool:
        """Does what a lane does now come after the end of an operation?"""
        ended = operation.ended
        if not ended:
            return False
        grid = np.array(list(ended)) + operation.first_lane
        if operation.kind == COPY and (grid >> 5 == lane + order.first_lane >> 5).any():
            return True
        stamps = np.array(list(ended.values())) << TIME_SHIFT | grid << 1
        return bool(self.ordered(stamps, lane, order).any())

    # -- operations -----------------------------------------------------------------------------
    def issue(self, operation: AsyncWork, order: ChunkOrder) -> None:
        for access in operation.told.accesses:
            if access.space != "global" or not access.address.size:
                continue
            words, units = self.places(access)
            if access.kind == "load":
                self.read(operation, words, units, order)
            else:
                self.write(operation, words, units, order)

    def read(self, operation: AsyncWork, words, units, order: ChunkOrder) -> None:
        self.check_stores(operation, words, order, "reads")
        writers = self.races.shadow.writer[units]
        fresh = writers >= FIRST
        if fresh.any():
            stamps, first = np.unique(writers[fresh], return_index=True)
            kept = ~np.isin(stamps, list(self.stamps))
            stamps, where = stamps[kept], np.nonzero(fresh)[0][first[kept]]
            if stamps.size:
                self.check_writers(operation, stamps, units[where], order)
        self.last(COPY)[words] = operation.number

    def check_writers(self, operation: AsyncWork, stamps, units, order: ChunkOrder) -> None:
        fence = self.fences.first_after(time_of(stamps), lane_of(stamps))
        ordered = self.ordered(stamps, operation.lane, order)
        published = (fence > 0) & self.ordered(
            fence << TIME_SHIFT | lane_of(stamps) << 1, operation.lane, order
        )
        me = operation.lane + order.first_lane
        apart = lane_of(stamps) // self.races.per_block != me // self.races.per_block
        own = self.fences.first_after(time_of(stamps), np.full(stamps.size, me))
        published |= apart & (own > 0)  # between blocks a fence on either side is taken
        for wrong, end in (
            (~ordered, ", and nothing orders the two"),
            (ordered & ~published, f" without a {FENCE} behind it, before what orders the two: "
             "the asynchronous proxy need not see the write"),
        ):  # fmt: skip
            if wrong.any():
                at = int(np.argmax(wrong))
                where, line = (
                    self.element(int(units[at])),
                    self.races.lines[int(time_of(stamps[at]))],
                )
                writer = int(lane_of(stamps[at]))
                said = (
                    f"the bulk copy that {self.naming.who(me)} starts reads {where.text}, which "
                    f"{self.naming.who(writer)} wrote on line {line}{end}"
                )
                lanes = np.array([writer, me])
                how = {"other_line": line, "remedy": _LOAD_FENCE}
                self.naming.report("race", operation.line, said, lanes, where, **how)

    def write(self, operation: AsyncWork, words, units, order: ChunkOrder) -> None:
        self.check_stores(operation, words, order, "writes", operation.reduces)
        shadow = self.races.shadow
        for name, all_stamps in (("wrote", shadow.writer), ("read", shadow.reader)):
            found = all_stamps[units]
            fresh = found >= FIRST
            if not fresh.any():
                continue
            stamps, first = np.unique(found[fresh], return_index=True)
            kept = ~np.isin(stamps, list(self.stamps))
            stamps, where = stamps[kept], np.nonzero(fresh)[0][first[kept]]
            ordered = self.ordered(stamps, operation.lane, order)
            if not ordered.all():
                at = int(np.argmin(ordered))
                self.report_user(operation, name, stamps[at], int(units[where[at]]), order)
        self.last(STORE)[words] = operation.number
        self.mark(operation, operation.time, units)

    def mark(self, operation: AsyncWork, time: int, units) -> None:
        """The destination counts as written by the thread that started the copy."""
        stamp = time << TIME_SHIFT | (operation.lane + operation.first_lane) << 1
        self.stamps.add(stamp)
        self.races.shadow.writer[units] = stamp

    def complete(self, operation: AsyncWork, time: int) -> None:
        """The thread has waited for a copy out of shared memory."""
        for access in operation.told.accesses:
            if access.space == "global" and access.address.size:
                units = self.places(access)[1]
                self.mark(operation, time, units)
                self.races.shadow.keep_values(units)

    def check_stores(self, operation, words, order, verb: str, reduces: bool = False) -> None:
        """Copies out of shared memory, to what an operation reads or writes."""
        if STORE not in self.numbers:
            return
        numbers = self.last(STORE)[words]
        for number in np.unique(numbers[numbers > 0]).tolist():
            prior = self.operations[number]
            if prior.lane == operation.lane and verb == "writes":
                continue  # of one thread; groups of its copies end in any order, with one value
            if reduces and prior.reduces:
                continue
            if self.over(prior, operation.lane, order):
                continue
            start = global_access(operation).address.view(np.int64)
            met = [
                one
                for one in start.tolist()
                if self.overlaps(prior, one, global_access(operation).size)
            ]
            if met:
                where = self.naming.element("global", met[0], 4)
                me = operation.lane + order.first_lane
                said = (
                    f"the bulk copy that {self.naming.who(me)} starts {verb} {where.text}, to "
                    f"which {prior.name} may still be writing"
                )
                how = {"other_line": prior.line, "remedy": _WAIT}
                self.naming.report("race", operation.line, said, np.array([me]), where, **how)

    def report_user(self, operation: AsyncWork, name: str, stamp, unit: int, order) -> None:
        where, line = self.element(unit), self.races.lines[int(time_of(stamp))]
        user, me = int(lane_of(stamp)), operation.lane + order.first_lane
        said = (
            f"the bulk copy that {self.naming.who(me)} starts writes {where.text}, which "
            f"{self.naming.who(user)} {name} on line {line}, and nothing orders the two"
        )
        remedy = (
            "order the threads first: a barrier inside a block, __threadfence() and a flag "
            "between blocks"
        )
        how = {"other_line": line, "remedy": remedy}
        self.naming.report("race", operation.line, said, np.array([user, me]), where, **how)

    # -- threads --------------------------------------------------------------------------------
    def access(self, access: Access, context: Context) -> None:
        """An access of threads, before the shadow learns of it."""
        address, lanes = access.address.view(np.int64), context.lanes.lane
        if access.valid is not None:
            address, lanes = address[access.valid], lanes[access.valid]
        for kind in (STORE,) if access.kind == "load" else (STORE, COPY):
            if kind in self.numbers and address.size:
                self.check(kind, address, lanes, access, context)

    def check(self, kind: str, address, lanes, access: Access, context: Context) -> None:
        numbers = self.last(kind)[self.races.shadow.positions(address) >> _WORD]
        for number in np.unique(numbers[numbers > 0]).tolist():
            prior = self.operations[number]
            if kind == STORE and prior.ended:
                continue  # a write like any other, which the shadow knows
            mine = np.nonzero(numbers == number)[0]
            late = [
                at
                for at in mine[np.unique(lanes[mine] >> 5, return_index=True)[1]].tolist()
                if not self.over(prior, int(lanes[at]), context.order)
                and self.overlaps(prior, int(address[at]), access.size)
            ]
            if late:
                self.report(prior, kind, access, context, lanes[late], int(address[late[0]]))

    def report(self, prior, kind: str, access: Access, context: Context, lanes, place: int) -> None:
        where = self.naming.element("global", place, access.size)
        lanes = lanes + context.order.first_lane
        verb = "reads" if access.kind == "load" else "writes"
        doing, remedy = ("writing", _WAIT) if kind == STORE else ("reading", _SOURCE)
        what = "to which" if kind == STORE else "from which"
        said = (
            f"{self.naming.who(lanes[0])} {verb} {where.text}, {what} {prior.name} may still be "
            f"{doing}"
        )
        how = {"other_line": prior.line, "remedy": remedy}
        self.naming.report("race", context.line, said, lanes, where, **how)


def global_access(operation: AsyncWork) -> Access:
    """The access of a bulk copy to global memory."""
    return next(one for one in operation.told.accesses if one.space == "global")


class _Now:
    """As much of a Context as an order is asked of."""

    def __init__(self, order: ChunkOrder):
        self.order = order
