"""Races and uninitialised reads in memory that threads share.

Two accesses of different lanes to one unit of memory, one of them a write, are in a race unless
something orders them; `ordering` knows what does. The accesses of one instruction happen at once.

Atomic operations are in no race with each other, but with plain accesses they are. One idiom is
let pass: the plain read before a loop of compare-and-swap, which checks what was read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attn_course.engine.events import Access

from .findings import Finding, Findings, Naming, describe_thread, key_of
from .ordering import ChunkOrder
from .shadow import NEVER, STRONG, Shadow, Touch, lane_of, suspects, time_of

_HAZARDS = {
    "RAW": ("wrote", "reads"),
    "WAR": ("read", "overwrites"),
    "WAW": ("wrote", "overwrites"),
}


@dataclass(frozen=True)
class LaneStamps:
    """The lanes of an event: counted through the chunk, and as stamps of the whole grid."""

    lane: np.ndarray  # (n,) int64
    bits: np.ndarray  # (n,) int64, lane through the grid << 1
    holder: np.ndarray | None = None  # (n,) the block whose shared memory it is; None: its own


@dataclass(frozen=True)
class Context:
    """What an event adds to an access: its line, time, chunk order and the stored values."""

    line: int
    time: int
    order: ChunkOrder
    lanes: LaneStamps
    strong: bool
    swap: bool  # an atomic compare-and-swap
    values: Callable  # () -> (lanes, bytes) uint8 that a store wrote, or None


class SharedState:
    """Base of shared and global memory: how an access is checked against the shadow."""

    space = ""
    remedy = ""

    def __init__(self, shadow: Shadow, naming: Naming, findings: Findings, lines: list[int]):
        self.shadow, self.naming, self.findings, self.lines = shadow, naming, findings, lines
        self.swaps: set[int] = set()  # times of compare-and-swaps

    # -- what the two memories do differently ---------------------------------------------------
    def flat(self, address: np.ndarray, lanes: LaneStamps, context: Context) -> np.ndarray:
        """Byte positions in the shadow, (lanes,) int64."""
        raise NotImplementedError

    def floor(self, lanes: LaneStamps, context: Context):
        raise NotImplementedError

    def relation(self, prior: np.ndarray, lane: np.ndarray, context: Context):
        """((n,) bool ordered, (n,) bool ordered only by a meeting of the warp)."""
        raise NotImplementedError

    def address_of(self, unit: int) -> int:
        """The byte address of a unit in the memory's own space."""
        raise NotImplementedError

    # -- an access ------------------------------------------------------------------------------
    def access(self, access: Access, context: Context) -> None:
        touch, keep = self.touch(access, context)
        if not touch.unit.size:
            return
        if access.kind == "store":
            self.write(touch, access, context, keep)
            return
        writer = self.shadow.writer[touch.unit]
        self.check_initialised(writer, touch, access, context)
        if access.kind == "atomic":
            self.check("WAW", writer, touch, access, context)
            if context.swap:
                self.swaps.add(context.time)
            else:
                self.check_readers(touch, access, context)
            self.shadow.note_write(touch)
            return
        self.check("RAW", writer, touch, access, context)
        if not touch.strong:
            self.shadow.note_read(touch)

    def touch(self, access: Access, context: Context) -> tuple[Touch, np.ndarray | None]:
        """The access in units; and, where some lanes were refused, the places of those kept."""
        address, lanes = access.address, context.lanes
        lane, bits, keep = lanes.lane, lanes.bits, None
        if access.valid is not None:
            keep = np.nonzero(access.valid)[0]
            address, lane, bits = address[keep], lane[keep], bits[keep]
        holder = access.block
        if holder is not None and keep is not None:
            holder = holder[keep]
        plain = keep is None and holder is None
        trimmed = context.lanes if plain else LaneStamps(lane, bits, holder)
        flat = self.flat(address.view(np.int64), trimmed, context)
        unit = self.shadow.units(flat, access.size)
        stamp = bits + (context.time << 32 | (STRONG if context.strong else 0))
        floor = self.floor(trimmed, context)
        wide = unit.size // max(lane.size, 1)
        if wide > 1:
            stamp, lane = np.tile(stamp, wide), np.tile(lane, wide)
            floor = np.tile(floor, wide) if isinstance(floor, np.ndarray) else floor
        return Touch(unit, stamp, lane, context.strong, floor), keep

    def write(self, touch: Touch, access: Access, context: Context, keep) -> None:
        self.check("WAW", self.shadow.writer[touch.unit], touch, access, context)
        self.check_readers(touch, access, context)
        beaten = self.shadow.note_write(touch)
        if beaten.size and not touch.strong:
            self.report_beaten(beaten, touch, access, context, keep)

    def check_readers(self, touch: Touch, access: Access, context: Context) -> None:
        self.check("WAR", self.shadow.reader[touch.unit], touch, access, context)
        self.check("WAR", self.shadow.other[touch.unit], touch, access, context)

    def check_initialised(self, writer, touch: Touch, access: Access, context: Context) -> None:
        if writer.all():
            return
        places = np.nonzero(writer == NEVER)[0]
        unit = int(touch.unit[places[0]])
        element = self.naming.element(self.space, self.address_of(unit), access.size)
        thread = self.naming.thread(lane_of(touch.stamp[places[:1]])[0])
        self.findings.add(
            self.naming.finding(
                "uninitialised-read",
                context.line,
                f"{describe_thread(thread)} reads {element.text}, which nothing has "
                f"written yet: its value is whatever was in {self.space} memory before",
                lane_of(touch.stamp[places]),
                element,
                remedy=f"write {element.array} before it is read, for example zero, or skip "
                "the first read",
            )
        )

    # -- conflicts ------------------------------------------------------------------------------
    def check(self, hazard: str, prior, touch: Touch, access: Access, context: Context) -> None:
        """Report the earlier accesses that nothing orders before this one."""
        places = suspects(prior, touch)
        if places.size and hazard == "RAW" and self.swaps:
            swapped = np.isin(time_of(prior[places]), list(self.swaps))
            places = places[~swapped]
        if not places.size:
            return
        ordered, met = self.relation(prior[places], touch.lane[places], context)
        for severity, chosen in (("error", ~ordered & ~met), ("warning", ~ordered & met)):
            mine = places[chosen]
            if not mine.size:
                continue
            same = self.same_values(mine, touch, hazard)
            self.report(hazard, severity, mine[~same], prior, touch, access, context)
            self.report(hazard, "same", mine[same], prior, touch, access, context)

    def same_values(self, places, touch: Touch, hazard: str) -> np.ndarray:
        """Where a write put the value there that was there before."""
        if hazard != "WAW" or touch.strong:
            return np.zeros(places.size, bool)
        shadow, unit = self.shadow, touch.unit[places]
        return shadow.values(shadow.before)[unit] == shadow.now(unit)

    def report(self, hazard, severity, places, prior, touch, access, context) -> None:
        if not places.size:
            return
        first = self.example(places, prior[places], touch)
        address = self.address_of(int(touch.unit[first]))
        element = self.naming.element(self.space, address, access.size)
        level, count = "error" if severity == "error" else "warning", int(places.size)
        if self.findings.has(key_of("race", context.line, element.array, level), count):
            return
        stamp = prior[first : first + 1]
        earlier, later = lane_of(stamp)[0], lane_of(touch.stamp[first : first + 1])[0]
        before = self.lines[int(time_of(stamp)[0])]
        message = self.sentence(hazard, element.text, earlier, later, before, context)
        if severity == "same":
            message += "; both write the same value, so the result stands"
        elif severity == "warning":
            message += "; only a shuffle or vote lies between, and those do not order memory"
        self.findings.add(
            Finding(
                "race",
                context.line,
                message,
                (self.naming.thread(earlier), self.naming.thread(later)),
                element.array,
                element.index,
                level,
                valid_range=element.valid,
                count=count,
                remedy=self.remedy,
                other_line=before,
            )
        )

    @staticmethod
    def example(places, stamps, touch: Touch) -> int:
        """The place to tell of: one between two warps, where there is one."""
        apart = lane_of(stamps) >> 5 != lane_of(touch.stamp[places]) >> 5
        return int(places[np.argmax(apart)])

    def sentence(self, hazard, element: str, earlier: int, later: int, before: int, context) -> str:
        past, present = _HAZARDS[hazard]
        first, second = self.naming.thread(earlier), self.naming.thread(later)
        where = "on this line" if before == context.line else f"on line {before}"
        what = "nothing orders the two"
        if first[0] == second[0]:
            what = "no barrier lies between"
        return (
            f"{hazard}: {describe_thread(second)} {present} {element}, which "
            f"{describe_thread(first)} {past} {where}, and {what}"
        )

    def report_beaten(self, beaten, touch: Touch, access: Access, context: Context, keep) -> None:
        """Lanes that wrote one unit in one instruction: a warning where they agree."""
        same = self.agreeing(beaten, touch, context, keep)
        for severity, places in (("error", beaten[~same]), ("same", beaten[same])):
            if not places.size:
                continue
            winner = self.shadow.writer[touch.unit]
            self.report("WAW", severity, places, winner, touch, access, context)

    def agreeing(self, beaten, touch: Touch, context: Context, keep) -> np.ndarray:
        """(n,) bool: did the beaten lanes store what is there now?"""
        stored = context.values()  # (lanes, bytes) uint8
        if stored is None:
            return np.zeros(beaten.size, bool)
        stored = np.ascontiguousarray(stored if keep is None else stored[keep])
        units = stored.view(f"u{1 << self.shadow.shift}").T.ravel()  # in the order of `touch`
        now = self.shadow.now(touch.unit[beaten])
        return units[beaten] == now
