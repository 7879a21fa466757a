"""The findings of races: which sentence, how bad, and the remedy."""

import numpy as np

from ..findings import Finding, Naming, key_of
from .handshakes import Handshakes
from .shadow import Shadow, Touch, lane_of, time_of

_HAZARDS = {
    "RAW": ("wrote", "reads"),
    "WAR": ("read", "overwrites"),
    "WAW": ("wrote", "overwrites"),
}

# Why an unordered pair is reported: the end of the sentence, and the remedy where it is another.
_REASONS = {
    "error": ("", ""),
    "same": ("; both write the same value, so the result stands", ""),
    "agreed": ("; the reader wrote the same value too, so it reads that one in any order", ""),
    "replica": (
        "; the compiler lets several threads load it and one of them store it",
        "where the loaded value counts later, put __syncthreads() between the two",
    ),
    "met": ("; only a shuffle or vote lies between, and those do not order memory", ""),
    "unfenced": (
        "; the lock or flag between them was taken without a fence after it",
        "put __threadfence() after the lock is taken or the flag is seen, before the data is used",
    ),
    "volatile": (
        "; both are volatile, and write different values",
        "let one thread write the flag, or let the later one wait for the earlier one's value",
    ),
    "data": ("; both are volatile, and volatile makes neither wait for the other", ""),
    "data of another block": (
        "; both are volatile, so it reads the old value or the new one, as timing has it",
        "after the write put __threadfence() and then a flag or ticket; the reader takes it, runs "
        "__threadfence(), and only then reads",
    ),
    "data in a warp": (
        "; both are volatile, but lanes of one warp need not run together",
        "put __syncwarp() between the two accesses; then volatile is not needed",
    ),
    "mixed": (
        "; one is an atomic and the other a volatile store, and which value stays is an accident",
        "let one thread write it, or use atomic operations for both and order them",
    ),
    "lost": (
        "; both read, compute and write, so one update is lost",
        "use an atomic operation: volatile does not make a read and a write one",
    ),
    "narrow": (
        "; an atomic of block scope (`_block`, `.cta`) is atomic inside its block only",
        "use one whose scope is the device: the atomic without _block, or `.gpu`",
    ),
}
_WARNINGS = (
    "same",
    "agreed",
    "replica",
    "met",
    "unfenced",
    "data of another block",
    "data in a warp",
)


class RaceReports:
    """The findings of one memory."""

    space = ""
    accepted: tuple[str, ...] = ()  # reasons that are no finding here
    handshakes: Handshakes
    shadow: Shadow
    naming: Naming
    lines: list[int]  # of each event, by its time

    def address_of(self, unit: int) -> int:
        """The byte address of a unit in the memory's own space."""
        raise NotImplementedError

    def remedy(self, hazard: str, earlier: int, later: int) -> str:
        """The usual fix of a race between two lanes, counted through the grid."""
        raise NotImplementedError

    def fence_remedy(self, time: int, earlier: int, later: int) -> str:
        """The fix where `earlier` used a flag, ticket or lock after `time`, and `later` then did.

        "" where there is none.
        """
        one_block = self.in_one_block(earlier, later)
        team = 32 if one_block else self.naming.per_block
        if not self.handshakes.between(time, earlier, later, team):
            return ""
        if one_block:
            return (
                "put __syncthreads() between the two accesses; or __threadfence_block() after the "
                "first, before the atomic or flag that tells of it, and again after that is seen"
            )
        if self.has_fenced(earlier, time):
            return (
                "put __syncthreads() before the thread that runs __threadfence() and tells of it "
                "by an atomic or a flag, and again in the other block after that is seen"
            )
        return (
            "put __threadfence() after the first access, before the atomic or flag that tells of "
            "it, and again in the other block after that is seen, before the second access"
        )

    def has_fenced(self, lane: int, time: int) -> bool:
        """Has the block of a lane run a fence of the device since a time?"""
        return False

    def report(self, hazard, reason, places, prior, touch, access, context) -> None:
        if not places.size or reason in self.accepted:
            return
        first = self.example(places, prior[places], touch)
        address = self.address_of(int(touch.unit[first]))
        element = self.naming.element(self.space, address, access.size)
        level = "warning" if reason in _WARNINGS else "error"
        count = int(np.unique(touch.stamp[places]).size)  # a wide access has several units
        if self.naming.findings.has(key_of("race", context.line, element.array, level), count):
            return
        stamp = prior[first : first + 1]
        earlier, later = lane_of(stamp)[0], lane_of(touch.stamp[first : first + 1])[0]
        before = self.lines[int(time_of(stamp)[0])]
        ending, remedy = _REASONS[reason]
        self.naming.findings.add(
            Finding(
                "race",
                context.line,
                self.sentence(hazard, element.text, earlier, later, before, context) + ending,
                (self.naming.thread(earlier), self.naming.thread(later)),
                element.array,
                element.index,
                level,
                valid_range=element.valid,
                count=count,
                remedy=remedy
                or self.fence_remedy(int(time_of(stamp)[0]), earlier, later)
                or self.remedy(hazard, earlier, later),
                other_line=before,
            )
        )

    def in_one_block(self, earlier: int, later: int) -> bool:
        return self.naming.thread(earlier)[0] == self.naming.thread(later)[0]

    @staticmethod
    def example(places, stamps, touch: Touch) -> int:
        """The place to tell of: one between two warps, where there is one."""
        apart = lane_of(stamps) >> 5 != lane_of(touch.stamp[places]) >> 5
        return int(places[np.argmax(apart)])

    def sentence(self, hazard, element: str, earlier: int, later: int, before: int, context) -> str:
        past, present = _HAZARDS[hazard]
        where = "on this line" if before == context.line else f"on line {before}"
        one_block = self.in_one_block(earlier, later)
        what = "no barrier lies between" if one_block else "nothing orders the two"
        return (
            f"{hazard}: {self.naming.who(later)} {present} {element}, which "
            f"{self.naming.who(earlier)} {past} {where}, and {what}"
        )
