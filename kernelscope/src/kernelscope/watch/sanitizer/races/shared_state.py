"""Races and uninitialised reads in memory that threads share.

Two accesses of different lanes to one unit of memory, one of them a write, are in a race unless
something orders them; `ordering` knows what does. The accesses of one instruction happen at once.

Atomic operations are in no race with each other, but with plain accesses they are. One idiom is
let pass: the plain read before a loop of compare-and-swap, which checks what was read.
"""

from dataclasses import replace

import numpy as np
from kernelscope.events import Access

from ..findings import Naming
from ..pointers import origins_of
from .context import Context, LaneStamps
from .flags import Flags
from .reports import RaceReports
from .shadow import FIRST, LANE_MASK, NEVER, STRONG, Shadow, Touch, lane_of, suspects, time_of

_AGREED = 16  # writes of one value by several lanes that are remembered


class SharedState(RaceReports):
    """Base of shared and global memory: how an access is checked against the shadow."""

    any_lane_wins = False  # whether lanes of a warp may write one element with one instruction

    def __init__(self, shadow: Shadow, naming: Naming, lines: list[int]):
        self.shadow, self.naming, self.lines = shadow, naming, lines
        self.swaps: set[int] = set()  # times of compare-and-swaps
        values = origins_of(naming.launch.source).values
        self.flags = Flags(shadow, naming.per_block, values.has_volatile_stores)
        self.agreed: dict[int, np.ndarray] = {}  # time of a write -> keys of who wrote one value

    # -- what the two memories do differently ---------------------------------------------------
    def flat(self, address: np.ndarray, lanes: LaneStamps, context: Context) -> np.ndarray:
        """Byte positions in the shadow, (lanes,) int64."""
        raise NotImplementedError

    def floor(self, lanes: LaneStamps, context: Context):
        raise NotImplementedError

    def relation(self, prior: np.ndarray, lane: np.ndarray, context: Context):
        """Three (n,) bool: ordered; ordered only by a meeting of the warp; only by a lock or flag
        that was taken without a fence.
        """
        raise NotImplementedError

    # -- an access ------------------------------------------------------------------------------
    def access(self, access: Access, context: Context) -> None:
        touch, keep = self.touch(access, context)
        if not touch.unit.size:
            return
        if access.kind == "store":
            self.write(touch, access, context, keep)
            return
        writer = self.writers(touch)
        self.check_initialised(writer, touch, access, context)
        if access.kind == "atomic":
            self.update(touch, writer, access, context)
            return
        agreed = self.agreeing_readers(writer, touch) if self.agreed else None
        self.check("RAW", writer, touch, access, context, agreed)
        if context.traits.volatile:
            self.read_volatile(writer, touch, access, context, agreed)
        if touch.strong:
            self.read_atomic(writer, touch, access, context)
            return
        if agreed is None or not agreed.any():
            self.shadow.note_read(touch)
        else:  # what they read does not depend on the order of the writes
            self.shadow.note_read(touch.part(~agreed))

    def writers(self, touch: Touch) -> np.ndarray:
        """(n,) stamps of who wrote what is read or updated."""
        return self.shadow.writer[touch.unit]

    def update(self, touch: Touch, writer, access: Access, context: Context) -> None:
        """An atomic operation."""
        self.check("WAW", writer, touch, access, context)
        if context.traits.swap:
            self.swaps.add(context.time)
        else:
            self.check_readers(touch, access, context)
            self.check_mixed(writer, touch, access, context)
        self.flags.update(touch)
        self.check_scope("WAW", writer, touch, access, context)
        beaten = self.shadow.note_write(touch)
        if context.traits.narrow:
            self.shadow.mark("narrow", touch)
            winner = self.shadow.writer[touch.unit]
            apart = self.flags.block_of(winner) != self.flags.block_of(touch.stamp)
            beaten = beaten[apart[beaten]] if self.space == "global" else beaten[:0]
            self.report("WAW", "narrow", beaten, winner, touch, access, context)

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
        writer = self.shadow.writer[touch.unit]
        same = self.check("WAW", writer, touch, access, context)
        lost = self.check_readers(touch, access, context)
        # Beside a lost update it is no comfort that both wrote one value.
        same = same[~np.isin(touch.unit[same], lost)] if same.size else same
        self.report("WAW", "same", same, writer, touch, access, context)
        flag = touch.strong and context.traits.volatile
        if flag:
            self.check_flag(writer, touch, access, context)
            self.check_mixed(writer, touch, access, context)
        elif touch.strong:
            self.check_scope("WAW", writer, touch, access, context)
        beaten = self.shadow.note_write(touch)
        if beaten.size and (flag or not touch.strong):
            self.report_beaten(beaten, lost, touch, access, context, keep)
        if context.traits.narrow:
            self.shadow.mark("narrow", touch)
        if flag:
            self.shadow.mark("flag", touch)
            self.check_data_readers(writer, touch, access, context)

    def read_atomic(self, writer, touch: Touch, access: Access, context: Context) -> None:
        """A load that is in no race with atomics of a scope that holds both."""
        self.check_scope("RAW", writer, touch, access, context)
        if context.traits.volatile:
            return
        self.shadow.mark("atomic load", touch)
        if context.traits.decides:
            self.flags.see(touch, context.time)

    def read_volatile(self, writer, touch: Touch, access: Access, context: Context, agreed) -> None:
        """A volatile load: of a flag, or of data that something else has to order."""
        flags, traits = self.flags, context.traits
        data = flags.reads_data(touch, access, traits, self.space)
        if not data or traits.updates:
            flags.read(touch, traits, context.time)
        if not data or traits.in_place:
            return
        places = flags.overwritten(writer, touch)
        places = places[~flags.seen_by(places, writer, touch)]
        self.report_data("RAW", places, writer, touch, access, context, agreed)
        self.shadow.note_read(touch)

    def check_data_readers(self, writer, touch: Touch, access: Access, context: Context) -> None:
        """A volatile store over what another lane has read as data, by a volatile load.

        It is in order when that lane, or another one, has written the value since, and the storing
        block has seen that.
        """
        for stamps in (self.shadow.reader, self.shadow.other):
            prior = stamps[touch.unit]
            read = prior >= np.maximum(touch.floor, FIRST)
            if not np.count_nonzero(read):
                continue
            read &= (prior & STRONG != 0) & ((prior ^ touch.stamp) & LANE_MASK != 0)
            places = np.nonzero(read)[0]
            since = time_of(writer[places]) > time_of(prior[places])
            places = places[~(since & self.flags.seen_by(places, writer, touch))]
            self.report_data("WAR", places, prior, touch, access, context)

    def report_data(
        self, hazard, places, prior, touch: Touch, access: Access, context: Context, agreed=None
    ) -> None:
        """Volatile accesses of data that nothing orders."""
        if not places.size:
            return
        ordered, met, unfenced = self.relation(prior[places], touch.lane[places], context)
        wrong = ~(ordered | met | unfenced)
        earlier, later = lane_of(prior[places]), lane_of(touch.stamp[places])
        warp = earlier >> 5 == later >> 5
        block = earlier // self.flags.per_block == later // self.flags.per_block
        other = np.zeros(places.size, bool) if agreed is None else agreed[places]
        for reason, chosen in (
            ("data", wrong & block & ~warp & ~other),
            ("data of another block", wrong & ~block & ~other),
            ("data in a warp", wrong & warp & ~other),
            ("agreed", wrong & other),
            ("met", ~ordered & met),
            ("unfenced", ~ordered & ~met & unfenced),
        ):
            self.report(hazard, reason, places[chosen], prior, touch, access, context)

    def check_readers(self, touch: Touch, access: Access, context: Context) -> np.ndarray:
        """Return the units that another lane has read, and nothing orders that before this."""
        readers = [self.shadow.reader, self.shadow.other]
        if not touch.strong and "atomic load" in self.shadow.marks:
            readers.append(self.shadow.marks["atomic load"])
        found = [
            self.check("WAR", stamps[touch.unit], touch, access, context) for stamps in readers
        ]
        return touch.unit[np.concatenate(found)]

    def check_initialised(self, writer, touch: Touch, access: Access, context: Context) -> None:
        load = self.naming.findings.event.instruction
        if context.copies.loads:
            context.copies.load(load, touch.lane)
        if writer.all():
            return
        places = np.nonzero(writer == NEVER)[0]
        unit = int(touch.unit[places[0]])
        element = self.naming.element(self.space, self.address_of(unit), access.size)
        copied = access.kind == "load" and self.space == "shared"
        if copied and context.copies.put_off(load, touch.lane[places], element):
            return
        lanes = lane_of(np.unique(touch.stamp[places]))  # a wide access has several units
        said = (
            f"{self.naming.who(lanes[0])} reads {element.text}, which nothing has written yet: its "
            f"value is whatever was in {self.space} memory before"
        )
        remedy = (
            f"write {element.array} before it is read, for example zero, or skip the first read"
        )
        self.naming.report("uninitialised-read", context.line, said, lanes, element, remedy=remedy)

    def forget(self, access: Access, lacking: np.ndarray, context: Context) -> None:
        """Some lanes have stored what nothing had written; lacking: (lanes,) bool."""
        kept = lacking if access.valid is None else lacking & access.valid
        touch, _ = self.touch(replace(access, valid=kept), context)
        self.shadow.writer[touch.unit] = NEVER

    # -- conflicts ------------------------------------------------------------------------------
    def check(
        self, hazard: str, prior, touch: Touch, access: Access, context: Context, agreed=None
    ) -> np.ndarray:
        """Report the earlier accesses that nothing orders before this one.

        Return places: of the unordered reads before a write; of unordered writes of one value,
        which are not reported. agreed: (n,) bool of agreeing_readers().
        """
        places = suspects(prior, touch)
        if places.size and hazard == "RAW" and self.swaps:
            swapped = np.isin(time_of(prior[places]), list(self.swaps))
            places = places[~swapped]
        if not places.size:
            return places
        ordered, met, unfenced = self.relation(prior[places], touch.lane[places], context)
        wrong = ~(ordered | met | unfenced)
        later = context.traits.copy  # cp.async and st.async have not stored their values yet
        if hazard == "WAW" and not later and (context.traits.volatile or not touch.strong):
            shadow, unit = self.shadow, touch.unit[places]
            same = shadow.values(shadow.before)[unit] == shadow.now(unit)
            if np.count_nonzero(prior[places] & STRONG):  # beside an atomic no value is right
                same &= (prior[places] & STRONG == 0) | (
                    prior[places] == shadow.marked("flag", unit)
                )
            same = self.as_a_whole(same, wrong & ~same, touch.stamp[places], access)
        else:
            same = np.zeros(places.size, bool)
        other = np.zeros(places.size, bool) if agreed is None else agreed[places]
        copies = self.replicas(prior, touch, places) if hazard == "WAR" else np.zeros_like(other)
        for reason, chosen in (
            ("error", wrong & ~same & ~other & ~copies),
            ("agreed", wrong & other),
            ("replica", wrong & copies),
            ("met", ~ordered & met & ~same),
            ("unfenced", ~ordered & ~met & unfenced & ~same),
        ):
            self.report(hazard, reason, places[chosen], prior, touch, access, context)
        return places[wrong if hazard == "WAR" else ~ordered & same]

    def as_a_whole(self, same: np.ndarray, bad: np.ndarray, stamps, access: Access) -> np.ndarray:
        """Units of one wide access: (n,) `same`, but for those of accesses with a `bad` unit."""
        if access.size >> self.shadow.shift < 2 or not bad.any():
            return same
        return same & ~np.isin(stamps, stamps[bad])

    def replicas(self, prior, touch: Touch, places: np.ndarray) -> np.ndarray:
        """(n,) bool: is the earlier read one of those that a load of the writer's made at once?"""
        if "first" not in self.shadow.marks:
            return np.zeros(places.size, bool)
        first, earlier = self.shadow.marked("first", touch.unit[places]), prior[places]
        mine = (first ^ touch.stamp[places]) & LANE_MASK == 0
        inside = self.flags.block_of(first) == self.flags.block_of(earlier)
        return mine & inside & (time_of(first) == time_of(earlier))

    def unordered(self, places, prior, touch: Touch, context: Context) -> np.ndarray:
        """The places that nothing at all orders."""
        if not places.size:
            return places
        related = self.relation(prior[places], touch.lane[places], context)
        return places[~np.logical_or.reduce(related)]

    def check_flag(self, prior, touch: Touch, access: Access, context: Context) -> None:
        """A volatile write after another lane's that this one has not waited for."""
        places = self.flags.overwritten(prior, touch)
        if not places.size:
            return
        ordered, met, unfenced = self.relation(prior[places], touch.lane[places], context)
        loose = ~(ordered | met)
        places, unfenced = places[loose], unfenced[loose]
        open_ = unfenced | ~self.flags.seen_by(places, prior, touch)
        places, unfenced = places[open_], unfenced[open_]
        if not places.size:
            return
        shadow, unit = self.shadow, touch.unit[places]
        changed = shadow.values(shadow.before)[unit] != shadow.now(unit)
        lost = self.flags.updates(unit, touch.stamp[places])
        for reason, chosen in (
            ("lost", lost & ~unfenced),
            ("volatile", changed & ~lost & ~unfenced),
            ("unfenced", (changed | lost) & unfenced),
        ):
            self.report("WAW", reason, places[chosen], prior, touch, access, context)

    def check_mixed(self, prior, touch: Touch, access: Access, context: Context) -> None:
        """An atomic and a volatile store of another value."""
        places = self.flags.mixed(prior, touch, context.traits.volatile)
        if not places.size:
            return
        places = self.unordered(places, prior, touch, context)
        unit = touch.unit[places]
        changed = self.shadow.values(self.shadow.before)[unit] != self.shadow.now(unit)
        self.report("WAW", "mixed", places[changed], prior, touch, access, context)

    def check_scope(
        self, hazard: str, prior, touch: Touch, access: Access, context: Context
    ) -> None:
        """A strong access after another block's write, one of them with the scope of a block."""
        if self.space != "global" or not (context.traits.narrow or "narrow" in self.shadow.marks):
            return
        strong = (prior >= FIRST) & (prior & STRONG != 0)
        narrow = (prior == self.shadow.marked("narrow", touch.unit)) | context.traits.narrow
        apart = self.flags.block_of(prior) != self.flags.block_of(touch.stamp)
        places = self.unordered(np.nonzero(strong & narrow & apart)[0], prior, touch, context)
        self.report(hazard, "narrow", places, prior, touch, access, context)

    def agreeing_readers(self, writer, touch: Touch) -> np.ndarray:
        """(n,) bool: was the reader among the lanes that last wrote this, all one value?"""
        found = np.zeros(writer.size, bool)
        for time in np.intersect1d(time_of(writer), list(self.agreed)).tolist():
            mine = time_of(writer) == time
            found[mine] = np.isin(_keys(touch)[mine], self.agreed[time])
        return found

    def report_beaten(
        self, beaten, lost, touch: Touch, access: Access, context: Context, keep
    ) -> None:
        """Lanes that wrote one unit in one instruction: a warning where they agree.

        lost: units whose earlier value other lanes have read.
        """
        winner = self.shadow.writer[touch.unit]
        if self.any_lane_wins:
            beaten = beaten[lane_of(winner[beaten]) >> 5 != lane_of(touch.stamp[beaten]) >> 5]
        same = self.agreeing(beaten, touch, context, keep)
        same = self.as_a_whole(same, ~same, touch.stamp[beaten], access)
        if touch.strong:  # volatile
            unit, who = touch.unit[beaten], winner[beaten]
            update = self.flags.updates(unit, touch.stamp[beaten]) | self.flags.updates(unit, who)
            self.report("WAW", "lost", beaten[update], winner, touch, access, context)
            different = beaten[~same & ~update]
            self.report("WAW", "volatile", different, winner, touch, access, context)
            self.remember(np.setdiff1d(touch.unit[beaten], touch.unit[different]), touch, context)
            return
        self.report("WAW", "error", beaten[~same], winner, touch, access, context)
        agreed = beaten[same & ~np.isin(touch.unit[beaten], lost)]
        self.report("WAW", "same", agreed, winner, touch, access, context)
        self.remember(np.setdiff1d(touch.unit[agreed], touch.unit[beaten[~same]]), touch, context)

    def remember(self, units: np.ndarray, touch: Touch, context: Context) -> None:
        """The lanes of a write agree on these units."""
        if units.size:
            self.agreed[context.time] = _keys(touch)[np.isin(touch.unit, units)]
            if len(self.agreed) > _AGREED:
                del self.agreed[next(iter(self.agreed))]

    def agreeing(self, beaten, touch: Touch, context: Context, keep) -> np.ndarray:
        """(n,) bool: did the beaten lanes store what is there now?"""
        stored = context.values()  # (lanes, bytes) uint8
        if stored is None:
            return np.zeros(beaten.size, bool)
        stored = np.ascontiguousarray(stored if keep is None else stored[keep])
        units = stored.view(f"u{1 << self.shadow.shift}").T.ravel()  # in the order of `touch`
        now = self.shadow.now(touch.unit[beaten])
        return units[beaten] == now


def _keys(touch: Touch) -> np.ndarray:
    """(n,) one number for each pair of a unit and a lane."""
    return touch.unit << 32 | lane_of(touch.stamp)
