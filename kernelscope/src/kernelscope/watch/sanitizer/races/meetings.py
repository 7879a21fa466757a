"""The order of lanes or warps, where only some of a warp's lanes or a block's warps have met."""

import numpy as np

FULL = np.uint32(0xFFFFFFFF)
_TEAMS_AT_ONCE = 1024  # so that their rows stay in the cache
_PLACES = np.arange(32, dtype=np.uint32)


class Meetings:
    """Meetings inside groups of 32 members: of the lanes of a warp, or of the warps of a block.

    Members of one meeting, its team, come after all that each of them did before it, and after
    all that those came after then. Kept are the time of each group's last meeting as a whole, every
    member's last team since, and its time; what was between these only where teams changed, as
    the time up to which a member comes after each of the others.
    """

    def __init__(self, members: int, history: bool = True):
        """history: keep what was before the last team."""
        self.history = history
        self.whole = np.zeros(members >> 5, np.int64)  # when the group last met as a whole
        self.team = np.zeros(members, np.uint32)  # bit i: member i of the group was there; 0: none
        self.time = np.zeros(members, np.int32)
        self.before: np.ndarray | None = None  # (members, 32) int32; None: no team ever changed

    def meet_all(self, time: int) -> None:
        """Every group met as a whole."""
        self.whole.fill(time)
        self.team.fill(0)

    def meet(self, members: np.ndarray, team, time: int) -> None:
        """Members met, (n,) int64; team: (n,) uint32 or one, who was there for each of them."""
        full = team == FULL
        if np.any(full):
            self.whole[(members if np.ndim(team) == 0 else members[full]) >> 5] = time
            team = np.where(full, np.uint32(0), team)
        known = self.team[members]
        changed = (known != team) & (known != 0) & ~full
        if self.history and changed.any():
            self._remember(members[changed], np.broadcast_to(team, known.shape)[changed])
        self.team[members] = team
        self.time[members] = time

    def _remember(self, members: np.ndarray, team: np.ndarray) -> None:
        """The teams of these members learn what each one of them came after."""
        pairs = np.unique((members >> 5).astype(np.uint64) << np.uint64(32) | team)
        for start in range(0, pairs.size, _TEAMS_AT_ONCE):
            some = pairs[start : start + _TEAMS_AT_ONCE]
            inside = some.astype(np.uint32)[:, None] >> _PLACES & np.uint32(1)
            which, place = np.nonzero(inside)
            each = (some >> np.uint64(32)).astype(np.int64)[which] * 32 + place
            first = np.flatnonzero(np.diff(which, prepend=-1))
            rows, sizes = self.comes_after(each), np.diff(first, append=each.size)
            if (sizes == sizes[0]).all():  # then this is faster
                rows = rows.reshape(some.size, int(sizes[0]), 32).max(axis=1)
            else:
                rows = np.maximum.reduceat(rows, first, axis=0)
            self.learn(each, rows[which])

    def comes_after(self, members: np.ndarray) -> np.ndarray:
        """(n, 32) int32: the time up to which each comes after what each of its group did.

        Meetings of whole groups are left out.
        """
        team = np.unpackbits(self.team[members, None].view(np.uint8), axis=-1, bitorder="little")
        last = team * self.time[members, None]
        return last if self.before is None else np.maximum(last, self.before[members])

    def learn(self, members: np.ndarray, rows: np.ndarray) -> None:
        """Members come after what their groups did up to some times, (n, 32) or (32,)."""
        if self.before is None:
            self.before = np.zeros((self.team.size, 32), np.int32)
        self.before[members] = np.maximum(self.before[members], rows)

    def orders(self, time: np.ndarray, earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
        """(n,) bool: does what `later` does now come after what `earlier` did at `time`?"""
        group = later >> 5
        met, same = time < self.whole[group], earlier >> 5 == group
        if not met.all():
            place = (earlier & 31).astype(np.uint32)
            met |= (self.team[later] >> place & np.uint32(1) != 0) & (time < self.time[later])
            if self.before is not None:
                met |= time < self.before[later, earlier & 31]
        return met & same


class WarpMeetings:
    """Meetings of the lanes of each warp, by the member masks of warp-level instructions."""

    def __init__(self, lanes: int, history: bool = True):
        self.meetings = Meetings(lanes, history)
        self.orders = self.meetings.orders

    def meet(self, lanes: np.ndarray, members, alive: np.ndarray, time: int) -> None:
        """Lanes (sorted) met; members: their masks, or None: the lanes that are here.

        Lanes that a mask names and that have ended count as there, as they do for hardware; what
        they did came before. alive: (lanes of the chunk,) bool.
        """
        if members is not None and lanes.size == np.count_nonzero(alive):
            if np.size(members) == 1 and members == FULL:
                self.meetings.meet_all(time)
            else:
                self.meetings.meet(lanes, members, time)
            return
        warp = lanes >> 5
        first = np.flatnonzero(np.diff(warp, prepend=-1))
        bits = np.uint32(1) << (lanes & 31).astype(np.uint32)
        there = np.zeros(alive.size >> 5, np.uint32)
        there[warp[first]] = np.bitwise_or.reduceat(bits, first)
        if members is not None:
            ended = np.packbits((~alive).reshape(-1, 32), axis=1, bitorder="little").view("<u4")
            there |= ended.ravel()
        team = there[warp] if members is None else there[warp] & members
        self.meetings.meet(lanes, team, time)


class NamedBarriers:
    """Block barriers with a thread count: they order the warps that take part, no others.

    A warp that only arrives (bar.arrive) comes before the warps that wait at the barrier then, and
    after none of them.
    """

    NUMBERS = 16  # barriers of a block

    def __init__(self, passed: np.ndarray, per_block: int):
        """passed: (lanes,) when each lane last passed a barrier of its whole block."""
        self.per_block = per_block
        blocks = passed.size // per_block
        self.meetings = Meetings(32 * blocks)
        self.meetings.whole[:] = passed.reshape(blocks, per_block)[:, 0]
        self.arrived: dict[tuple[int, int], np.ndarray] = {}  # (block, number) -> (32,) times

    def members(self, lanes: np.ndarray) -> np.ndarray:
        """The warps of some lanes, 32 a block."""
        return lanes // self.per_block * 32 + lanes % self.per_block // 32

    def arrive(self, lanes: np.ndarray, number, time: int) -> None:
        """number: of the barrier, (lanes,) or one; None: not known, it may be any."""
        member = self.members(lanes)
        for one in range(self.NUMBERS) if number is None else np.unique(number).tolist():
            mine = member if number is None or np.size(number) == 1 else member[number == one]
            for warp in np.unique(mine).tolist():
                row = self.meetings.comes_after(np.array([warp]))[0]
                row = np.maximum(row, self.meetings.whole[warp >> 5])
                row[warp & 31] = time
                key = warp >> 5, one
                self.arrived[key] = np.maximum(self.arrived.get(key, 0), row)

    def meet(self, lanes: np.ndarray, number: int, whole: bool, time: int) -> None:
        """Lanes passed a barrier; whole: it was one of their whole blocks."""
        members = np.unique(self.members(lanes))
        block = members >> 5
        team = np.zeros(self.meetings.team.size >> 5, np.uint32)
        np.bitwise_or.at(team, block, np.uint32(1) << (members & 31).astype(np.uint32))
        self.meetings.meet(members, FULL if whole else team[block], time)
        for key in [key for key in self.arrived if key[1] == number]:
            here = members[block == key[0]]
            if here.size:
                self.meetings.learn(here, self.arrived.pop(key))

    def orders(self, time, earlier, later) -> np.ndarray:
        """(n,) bool as Meetings has it, for lanes."""
        return self.meetings.orders(time, self.members(earlier), self.members(later))


def phase_key(block, address, parity):
    """The number of a phase of the mbarrier at an address of a block's shared memory, int64."""
    return block << 40 | address << 1 | parity


def block_of_phase(keys):
    """The blocks whose shared memory has the mbarriers of such numbers."""
    return keys >> 40


class MbarrierPhases:
    """Phases of mbarriers: who finds one complete comes after all that arrived there.

    Warps stand for their lanes, as they do for fences: an arrival by one lane counts for its warp,
    and so does a wait. What a warp knows to be over is passed on with its next arrival.
    """

    def __init__(self, lanes: int, per_block: int):
        warps = lanes >> 5
        self.per_block = per_block >> 5
        self.after = np.zeros((warps, warps), np.int32)  # up to when it comes after each other one
        # key of a phase, or of a barrier with a count -> what comes before it, (warps,)
        self.arrived: dict[int, np.ndarray] = {}

    def arrive(self, lanes: np.ndarray, keys: np.ndarray, passed, time: int) -> None:
        """keys: the phase of each lane; passed: when each last passed a barrier of its block."""
        for key in np.unique(keys).tolist():
            mine = keys == key
            warps = np.unique(lanes[mine] >> 5)
            row = self.after[warps].max(axis=0)
            first = warps // self.per_block * self.per_block
            inside = (first[:, None] + np.arange(self.per_block)).ravel()
            row[inside] = np.maximum(row[inside], int(np.max(passed[mine])))
            row[warps] = time
            self.arrived[key] = np.maximum(row, self.arrived.get(key, 0))

    def wait(self, lanes: np.ndarray, keys: np.ndarray) -> None:
        """Lanes have found phases complete."""
        for key in np.unique(keys).tolist():
            if key in self.arrived:
                warps = np.unique(lanes[keys == key] >> 5)
                self.after[warps] = np.maximum(self.after[warps], self.arrived[key])

    def blocks_of(self, lanes: np.ndarray) -> np.ndarray:
        """(n,) int64: the block of each lane in the chunk."""
        return (lanes >> 5) // self.per_block

    @staticmethod
    def key_of_barrier(block, number):
        """The number of a barrier of a block, int64; no phase has it."""
        return -1 - (block * NamedBarriers.NUMBERS + number)

    def arrive_at_barrier(self, lanes: np.ndarray, number, time: int) -> None:
        """bar.arrive; arguments as of NamedBarriers.arrive."""
        for one in range(NamedBarriers.NUMBERS) if number is None else [number]:
            keys = self.key_of_barrier(self.blocks_of(lanes), np.asarray(one, np.int64))
            self.arrive(lanes, keys, np.zeros(lanes.size, np.int64), time)

    def meet_at_barrier(self, lanes: np.ndarray, number: int, time: int) -> None:
        """Lanes pass a barrier: they come after those that have only arrived there, too."""
        keys = self.key_of_barrier(self.blocks_of(lanes), number)
        self.wait(lanes, keys)
        for key in np.unique(keys).tolist():
            self.arrived.pop(key, None)
        self.meet(lanes, time)

    def meet(self, lanes: np.ndarray, time: int) -> None:
        """Warps of each block have met at a barrier: each comes after all that any of them did,
        and after what any of them knows.
        """
        warps = np.unique(lanes >> 5)
        for block in np.unique(warps // self.per_block).tolist():
            mine = warps[warps // self.per_block == block]
            known = self.after[mine].max(axis=0)
            known[mine] = time
            self.after[mine] = known

    def begin(self, named: NamedBarriers) -> None:
        """Take over what warps know by barriers with a count, and pending arrivals there."""
        for block in range(len(self.after) // self.per_block):
            warps = np.arange(self.per_block)
            rows = named.meetings.comes_after(warps + 32 * block)[:, : self.per_block]
            mine = warps + self.per_block * block
            self.after[np.ix_(mine, mine)] = np.maximum(rows, named.meetings.whole[block])
        for (block, number), row in named.arrived.items():
            first = self.per_block * block
            known = np.zeros(len(self.after), np.int32)
            known[first : first + self.per_block] = row[: self.per_block]
            self.arrived[self.key_of_barrier(block, number)] = known

    def orders(self, time: np.ndarray, earlier: np.ndarray, later: np.ndarray) -> np.ndarray:
        """(n,) bool as Meetings has it, for lanes of the chunk."""
        return time < self.after[later >> 5, earlier >> 5]
