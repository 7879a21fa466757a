"""The sentences of findings about tiles in shared memory."""

import numpy as np
from kernelscope.events import Access

from ..elements import Element
from ..findings import Naming
from ..lifetimes import MEET_LAST
from ..races.context import Context
from ..races.shadow import lane_of, time_of
from .operations import COPY, PRODUCT, STORE, AsyncWork
from .phases import Phases

FENCE = "fence.proxy.async"
FENCE_AND_MEET = (
    f"let each thread that has written execute {FENCE} (fence.proxy.async.shared::cta is enough), "
    "and then meet the others at a barrier, before the copy or the wgmma is started"
)
_UNSEEN = {
    "race": ", and nothing orders the two",
    "late": f": its {FENCE} comes behind the barrier that orders the two, not before it",
    "missing": f" without a {FENCE} behind it: the asynchronous proxy need not see the write",
    "taken": f"; a {FENCE} stands only in the thread that starts it, behind the barrier, and not "
    "in the one that wrote, where NVIDIA's libraries have it",
}
_RELEASE = (
    "let each reader arrive at an mbarrier when it is done with the tile, and the thread that "
    "refills it wait for that phase first; the readers' wait for the copy says nothing of this"
)
_PRODUCT_WAIT = "wait first: wgmma.wait_group, and only then release or overwrite the tile"
_STORE_WAIT = (
    "wait first, in the thread that started the copy: cp.async.bulk.commit_group, "
    "cp.async.bulk.wait_group.read 0, and then a barrier where other threads go on"
)


class TileReports:
    """Adds the findings of one chunk's tiles."""

    stride = 1
    shared = None

    def __init__(self, naming: Naming, phases: Phases, first_lane: int):
        self.naming, self.phases, self.first_lane = naming, phases, first_lane

    def element(self, chunk: int, size: int = 4) -> Element:
        return self.naming.element("shared", (chunk << 4) % self.stride, size)

    def who(self, lane: int) -> str:
        return self.naming.who(lane + self.first_lane)

    def tell(self, line: int, said: str, lanes, where: Element, remedy: str, **how) -> None:
        lanes = np.atleast_1d(lanes) + self.first_lane
        self.naming.report("race", line, said, lanes, where, remedy=remedy, **how)

    def subject(self, operation: AsyncWork) -> str:
        """Who reads, in a sentence."""
        if operation.kind == PRODUCT:
            return f"the wgmma of the warp group of {self.who(operation.lane)}"
        return f"the bulk copy that {self.who(operation.lane)} starts"

    # -- reads ----------------------------------------------------------------------------------
    def phase_advice(self, prior: AsyncWork, lane: int) -> tuple[str, str]:
        """(what a thread has waited for in place of a copy's phase, the remedy)."""
        parity = prior.phase & 1
        wait = None
        found = self.phases.known.get(prior.told.mbarrier)
        if found is not None:
            wait = found.last.get(lane >> 5)
        if wait is None:
            remedy = (
                f"wait for the phase first: mbarrier.try_wait.parity with parity {parity} at the "
                "copy's mbarrier, by each thread that reads, or by one and then a barrier"
            )
            return "nothing orders it behind a wait for the copy's mbarrier", remedy
        said = (
            f"its wait on line {wait.line} is for a phase of parity {wait.parity}, and passes when "
            f"the one before the copy's has ended; the copy belongs to a phase of parity {parity}"
        )
        remedy = (
            f"wait for parity {parity}: phases are 0, 1, 0, ... from the mbarrier's init, one for "
            "each time that the tile is filled. If the old tile is meant, the copy is too early: "
            "let it wait until the readers have arrived at an mbarrier of their own"
        )
        return said, remedy

    def report_early(self, operation: AsyncWork, prior: AsyncWork, lane: int, chunk: int) -> None:
        """An operation reads what a copy may still be writing."""
        why, remedy = self.phase_advice(prior, lane)
        where = self.element(chunk)
        said = (
            f"{self.subject(operation)} reads {where.text}, to which {prior.name} may still be "
            f"writing: {why}"
        )
        self.tell(operation.line, said, lane, where, remedy, other_line=prior.line)

    def report_unseen(self, operation: AsyncWork, stamp, chunk: int, why: str, count: int) -> None:
        """An operation reads what threads have written, which it need not see; why: of _UNSEEN."""
        where, line = self.element(chunk), self.shared.lines[int(time_of(stamp))]
        writer = int(lane_of(stamp)) - self.first_lane
        said = (
            f"{self.subject(operation)} reads {where.text}, which {self.who(writer)} wrote on line "
            f"{line}{_UNSEEN[why]}"
        )
        lanes = np.array([writer, operation.lane])
        severity = "warning" if why == "taken" else "error"
        how = {"other_line": line, "count": count, "severity": severity}
        self.tell(operation.line, said, lanes, where, FENCE_AND_MEET, **how)

    # -- writes ---------------------------------------------------------------------------------
    def report_refill(self, operation: AsyncWork, prior: AsyncWork, chunk: int) -> None:
        """A copy into a tile that another operation may still be using."""
        where, remedy = self.element(chunk), _RELEASE
        what = f"{self.who(operation.lane)} starts a bulk copy into {where.text}"
        if prior.kind == PRODUCT:
            said = f"{what} before the readers have released it: {prior.name} reads it, and "
            if prior.ended:
                said += "nothing orders the wait for that before the copy"
            else:
                said, remedy = (
                    f"{said}no wgmma.wait_group has closed it yet",
                    f"{_PRODUCT_WAIT}; {_RELEASE}",
                )
        elif prior.kind == STORE:
            said, remedy = f"{what}, from which {prior.name} may still be reading", _STORE_WAIT
        else:
            said = f"{what}, to which {prior.name} may still be writing"
        self.tell(operation.line, said, operation.lane, where, remedy, other_line=prior.line)

    def report_overwritten(self, operation: AsyncWork, name: str, stamp, chunk: int) -> None:
        """A copy into a tile that a thread has used, and nothing orders the two."""
        where, line = self.element(chunk), self.shared.lines[int(time_of(stamp))]
        user = int(lane_of(stamp)) - self.first_lane
        early = "before the readers have released it: " if name == "read" else ": "
        said = (
            f"{self.who(operation.lane)} starts a bulk copy into {where.text} {early}"
            f"{self.who(user)} {name} it on line {line}, and nothing orders that before the copy"
        ).replace(" : ", ": ")
        lanes, remedy = np.array([user, operation.lane]), _RELEASE
        if name == "wrote":
            remedy = FENCE_AND_MEET
        self.tell(operation.line, said, lanes, where, remedy, other_line=line)

    def report_unfenced_write(self, operation: AsyncWork, stamp, chunk: int) -> None:
        """A copy over what a thread has written, without a fence between the proxies."""
        where, line = self.element(chunk), self.shared.lines[int(time_of(stamp))]
        writer = int(lane_of(stamp)) - self.first_lane
        said = (
            f"{self.who(operation.lane)} starts a bulk copy into {where.text}, which "
            f"{self.who(writer)} wrote on line {line} without a {FENCE} behind it: the model does "
            "not say which of the two stays"
        )
        how = {"other_line": line, "severity": "warning"}
        self.tell(operation.line, said, operation.lane, where, FENCE_AND_MEET, **how)

    # -- accesses of threads --------------------------------------------------------------------
    def report_access(
        self, prior: AsyncWork, kind: str, access: Access, context: Context, lanes, place: int
    ) -> None:
        """Threads read or write what an operation is using."""
        where = self.naming.element("shared", place % self.stride, access.size)
        verb = "reads" if access.kind == "load" else "writes"
        said = f"{self.who(int(lanes[0]))} {verb} {where.text}, "
        if kind == COPY:
            why, remedy = self.phase_advice(prior, int(lanes[0]))
            said += f"to which {prior.name} may still be writing: {why}"
        elif kind == STORE:
            remedy = _STORE_WAIT
            said += f"from which {prior.name} may still be reading"
            if prior.read:
                said += ": nothing orders the wait for it before this"
        else:
            remedy = _PRODUCT_WAIT
            said += f"which {prior.name} may still be reading"
        self.tell(context.line, said, lanes, where, remedy, other_line=prior.line)

    def report_exit(self, operation: AsyncWork) -> None:
        """A copy that is under way when its block ends."""
        shared = [one for one in operation.told.accesses if one.space == "shared"][-1]
        if operation.ended and operation.source is not None:
            shared = operation.source
        where = self.naming.element("shared", int(shared.address[0]), 4)
        if operation.kind == COPY and shared.kind == "load":
            said = (
                f"{operation.name} reads {where.text} of the block of {self.who(operation.lane)}, "
                "which may have ended: nothing lets it wait for the end of the copy"
            )
            remedy = MEET_LAST
        elif operation.kind == COPY:
            said = f"{operation.name} may still write to {where.text} when the block has ended"
            remedy = "let a thread of the block wait for the phase of its mbarrier before the end"
        else:
            said = f"{operation.name} may still read {where.text} when the block has ended"
            remedy = (
                "let the thread that started it end with cp.async.bulk.commit_group and "
                "cp.async.bulk.wait_group.read 0: shared memory is gone with the block"
            )
        self.tell(operation.line, said, operation.lane, where, remedy)
