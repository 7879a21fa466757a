"""Warp-level instructions: where the lanes of a warp meet, and shuffles, votes, matches.

Values arrive as arrays over the active lanes; `lanes` are their sorted lane ids (32 a warp). A full
table of 32 places a warp is filled first, so that an inactive source lane is visible as such.
"""

import warnings
from dataclasses import replace
from functools import lru_cache

import numpy as np
from kernelscope.translate.control_flow import LANE, Block, Key, is_group_level

from ..errors import ShuffleWarning, levels_to_caller
from .lanes import ChunkLanes, merged
from .memory import scalar, spread
from .reports import Reports
from .scheduler import Scheduler

_PASSING = -3  # ends the keys of blocks whose lanes no longer wait for their warp
_ALL = np.uint32(0xFFFFFFFF)
_GROUP_WARPS = 4  # of a warp group
_SEGMENTS = 0x1F1F  # bits of a shuffle's clamp and segment mask


def _table(values: np.ndarray, lanes: np.ndarray, fill=0):
    """(warps, 32) table of the active lanes' values, and the row number of each lane's warp."""
    first = int(lanes[0]) >> 5
    rows = (int(lanes[-1]) >> 5) - first + 1
    table = np.full(rows * 32, fill, values.dtype)
    table[lanes - (first << 5)] = values
    return table, first << 5


def shuffle(mode: str, value, b, c, lanes: np.ndarray):
    """shfl.sync: returns (value, predicate, source, reads_inactive) over the active lanes.

    value: (lanes,) uint32; b: source lane or distance; c: clamp in bits 4:0, segment mask in 12:8.
    source: (lanes,) int, the lane of the warp that each one reads, or (32,) if all warps agree;
    reads_inactive: (lanes,) bool, where that lane is not active.
    """
    count = lanes.size
    value = spread(value, count)
    if scalar(b) and scalar(c) and count % 32 == 0 and are_whole_warps(lanes):
        source, inside = _sources_of_a_warp(mode, int(b), int(c))
        moved = value.reshape(-1, 32).take(source, axis=1).ravel()
        return moved, np.tile(inside, count // 32), source, np.zeros(count, bool)
    lane = (lanes & 31).astype(np.int64)
    b, c = spread(b, count).astype(np.int64), spread(c, count).astype(np.int64)
    source, inside = _sources(mode, lane, b & 31, c)
    table, base = _table(value, lanes)
    active, _ = _table(np.ones(count, bool), lanes, False)
    place = (lanes - base) - lane + source
    reads_inactive = ~active[place]
    return np.where(reads_inactive, value, table[place]), inside, source, reads_inactive


def are_whole_warps(lanes: np.ndarray) -> bool:
    """Return whether a multiple of 32 sorted lanes is all the lanes of their warps."""
    firsts, lasts = lanes[::32], lanes[31::32]
    return bool(((lasts - firsts == 31) & (firsts & 31 == 0)).all())


@lru_cache(maxsize=1024)
def _sources_of_a_warp(mode: str, b: int, c: int) -> tuple[np.ndarray, np.ndarray]:
    """`_sources` of the 32 lanes of a warp that agree on b and c."""
    return _sources(mode, np.arange(32), b & 31, c)


def _sources(mode: str, lane: np.ndarray, b, c) -> tuple[np.ndarray, np.ndarray]:
    """(source lane, is it within bounds) of each lane of a shuffle; outside, the lane itself."""
    clamp, segment = c & 31, (c >> 8) & 31
    limit = (lane & segment) | (clamp & ~segment)
    if mode == "up":
        source = lane - b
        inside = source >= limit
    elif mode == "down":
        source = lane + b
        inside = source <= limit
    elif mode == "bfly":
        source = lane ^ b
        inside = source <= limit
    else:  # idx
        source = (lane & segment) | (b & ~segment & 31)
        inside = source <= limit
    return np.where(inside, source, lane), inside


def ballot(predicate, lanes: np.ndarray, members) -> np.ndarray:
    """vote.ballot: bit i of each warp's result is lane i's predicate; (lanes,) uint32."""
    count = lanes.size
    bits = spread(predicate, count).astype(np.uint32) << (lanes & 31).astype(np.uint32)
    table, base = _table(bits, lanes)
    whole = np.bitwise_or.reduce(table.reshape(-1, 32), axis=1)
    return whole[(lanes - base) >> 5] & spread(members, count).astype(np.uint32)


def vote(mode: str, predicate, lanes: np.ndarray, members):
    """vote.{all,any,uni,ballot}: (lanes,) bool, or uint32 for ballot."""
    predicate = spread(predicate, lanes.size)
    true = ballot(predicate, lanes, members)
    if mode == "ballot":
        return true
    if mode == "any":
        return true != 0
    false = ballot(~predicate, lanes, members)
    return (false == 0) if mode == "all" else (false == 0) | (true == 0)


def match_any(value, lanes: np.ndarray, members) -> np.ndarray:
    """match.any: the mask of lanes of the warp that hold the same value; (lanes,) uint32."""
    count = lanes.size
    value, members = spread(value, count), spread(members, count)
    result = np.zeros(count, np.uint32)
    table, base = _table(value, lanes)
    active = ballot(np.bool_(True), lanes, members)
    warp_start = (lanes - base) & ~np.int64(31)
    for lane in range(32):
        same = table[warp_start + lane] == value
        result |= same.astype(np.uint32) << np.uint32(lane)
    return result & active & members.astype(np.uint32)


def match_all(value, lanes: np.ndarray, members):
    """match.all: (mask or 0, predicate)."""
    same = match_any(value, lanes, members)
    active = ballot(np.bool_(True), lanes, members)
    agree = same == active
    return np.where(agree, active, np.uint32(0)).astype(np.uint32), agree


_REDUCE = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reduce(operation: str, value, lanes: np.ndarray, members) -> np.ndarray:
    """redux.sync over the active members of each lane's mask; integers of 32 bits, dtype kept."""
    value = spread(value, lanes.size)
    one_mask = scalar(members)
    members = spread(members, lanes.size).astype(np.uint32)
    info = np.iinfo(value.dtype)
    fill = {
        "add": 0,
        "or": 0,
        "xor": 0,
        "and": -1 if info.min < 0 else info.max,
        "min": info.max,
        "max": info.min,
    }[operation]
    inside = (members >> (lanes & 31).astype(np.uint32)) & np.uint32(1)
    table, base = _table(np.where(inside != 0, value, value.dtype.type(fill)), lanes, fill)
    if one_mask or _one_mask_a_warp(members, lanes):
        whole = _REDUCE[operation].reduce(table.reshape(-1, 32), axis=1).astype(value.dtype)
        return whole[(lanes - base) >> 5]
    masks = (lanes >> 5).astype(np.uint64) << np.uint64(32) | members
    _, team = np.unique(masks, return_inverse=True)
    whole = np.full(int(team.max()) + 1, fill, value.dtype)
    _REDUCE[operation].at(whole, team, table[lanes - base])
    return whole[team]


def _one_mask_a_warp(members: np.ndarray, lanes: np.ndarray) -> bool:
    """Do the lanes of each warp name the same lanes?"""
    if (members == members[0]).all():
        return True
    table, base = _table(members, lanes)
    union = np.bitwise_or.reduce(table.reshape(-1, 32), axis=1)
    return bool((union[(lanes - base) >> 5] == members).all())


def first_active(lanes: np.ndarray, members):
    """elect.sync: (leader lane of the warp, is this lane the leader)."""
    active = ballot(np.bool_(True), lanes, members)
    lowest = active & (~active + np.uint32(1))
    leader = np.bitwise_count(lowest - np.uint32(1)).astype(np.uint32)
    return leader, leader == (lanes & 31).astype(np.uint32)


class Warps:
    """Warps whose lanes meet at an instruction, and the instructions that exchange values.

    parked: lanes at warp-level instructions whose partners have not come;
    awaited: (warps,) uint32, which partners were still to come when the last lanes arrived there;
    seen: (lanes,), where in the kernel partners have been since, -1: nowhere (for observers);
    sources, reads_inactive: of the last shuffle, see shuffle(); group_of_warp: (warps,) a number
    for the warp group of each.
    """

    def __init__(self, lanes: ChunkLanes, scheduler: Scheduler, reports: Reports):
        self.lanes, self.scheduler, self.reports = lanes, scheduler, reports
        self.blocks = lanes.kernel.blocks
        self.parked: dict[Key, np.ndarray] = {}
        self.awaited: dict[Key, np.ndarray] = {}
        self.seen = np.full(lanes.alive.size, -1)
        self.sources: np.ndarray | None = None
        self.reads_inactive: np.ndarray | None = None
        per_block = lanes.warps_per_block
        block, warp = np.divmod(np.arange(lanes.block_count * per_block), per_block)
        self.group_of_warp = block * per_block + warp // _GROUP_WARPS

    # -- values ---------------------------------------------------------------------------------
    def shuffle(self, mode, value, b, c):
        """shfl.sync: (the source lanes' values, was the source in bounds)."""
        if mode == "bfly" and scalar(value) and scalar(c) and self.reports.accesses is None:
            if int(c) & _SEGMENTS == 31:  # the whole warp: every source is in bounds
                return value, np.bool_(True)
        result, inside, source, inactive = shuffle(mode, value, b, c, self.lanes.R[LANE])
        self.sources, self.reads_inactive = source, inactive
        if inactive.any() and not self.reports.observers and not self.lanes.run.warned:
            self.warn_of_absent(source, inactive)
        return result, inside

    def warn_of_absent(self, source, inactive) -> None:
        """Warn, once a launch, of lanes that read one which the mask names and which is not there.

        A lane outside the mask is often read for a value that nobody uses: the upper half of
        `if (lane < 8) x += __shfl_down_sync(0xff, x, 4)`.
        """
        block, lanes = self.reports.block, self.lanes.R[LANE]
        if block.members is None:  # a shuffle without a mask
            return
        members = spread(self.members_of(block), lanes.size)
        source = np.broadcast_to(source, lanes.size).astype(np.uint32)
        absent = inactive & (members >> source & np.uint32(1) != 0)
        if not absent.any():
            return
        self.lanes.run.warned = True
        first, shuffle = int(np.argmax(absent)), block.instructions[0]
        text = (
            f"{self.lanes.kernel.name}, {block.instance.where(shuffle)}: "
            f"{self.lanes.thread_text(lanes[first : first + 1])} reads lane {source[first]} of its "
            f"warp, which the mask names and which does not take part (it has ended, is elsewhere, "
            f"or the block has no such thread): on a GPU it gets any number. Use the value only "
            f"where the lane exists, or let all lanes that the mask names shuffle"
        )
        warnings.warn(text, ShuffleWarning, stacklevel=levels_to_caller())

    def vote(self, mode, predicate, members):
        return vote(mode, predicate, self.lanes.R[LANE], members)

    def match_any(self, value, members):
        return match_any(value, self.lanes.R[LANE], members)

    def match_all(self, value, members):
        return match_all(value, self.lanes.R[LANE], members)

    def redux(self, mode, value, members):
        return reduce(mode, value, self.lanes.R[LANE], members)

    def float_redux(self, fn, absent, value, members):
        """redux.sync of floats: fn(a, b), for which `absent` changes nothing."""
        lanes = self.lanes.R[LANE]
        value, members = spread(value, lanes.size), spread(members, lanes.size)
        table, base = _table(value, lanes, absent)
        active = ballot(np.bool_(True), lanes, _ALL) & members
        start, result = (lanes - base) & ~np.int64(31), np.full(lanes.size, absent)
        for lane in range(32):
            named = active >> np.uint32(lane) & np.uint32(1) != 0
            result = fn(result, np.where(named, table[start + lane], absent))
        return result

    def elect(self, members):
        return first_active(self.lanes.R[LANE], members)

    def active_mask(self):
        return ballot(np.bool_(True), self.lanes.R[LANE], _ALL)

    # -- meeting --------------------------------------------------------------------------------
    def converge(self, block: Block) -> bool:
        """Keep the warps whose lanes, as far as the member mask names them, are all here.

        Lanes of the other warps are parked until their partners come. False: nobody is left. Of
        wgmma, partners are the lanes of all four warps of the warp group.
        """
        key = block.key
        earlier = self.parked.pop(key, None)
        lanes = self.lanes
        if earlier is not None:
            lanes.flush(block.live_in)
            lanes.activate(merged(earlier, lanes.all_places()))
        if lanes.are_all():
            return True
        missing = self.missing_lanes(block)
        if not missing.any():
            return True
        places = lanes.places
        incomplete = missing != 0
        if is_group_level(block.instructions[0].opcode):
            incomplete = self.in_groups(incomplete)
        late = incomplete[lanes.R[LANE] >> 5]
        lanes.flush(block.live_in)
        self.parked[key], self.awaited[key] = places[late], missing
        self.seen[np.unpackbits(missing.view(np.uint8), bitorder="little").view(bool)] = -1
        if late.all():
            return False
        lanes.activate(places[~late])
        return True

    def missing_lanes(self, block: Block) -> np.ndarray:
        """(warps,) uint32: the lanes that each warp's member masks name, and that are not here."""
        lane, alive = self.lanes.R[LANE], self.lanes.alive
        here = np.zeros(alive.size, bool)
        here[lane] = True
        absent, warp = warp_bits(alive & ~here), lane >> 5
        if is_group_level(block.instructions[0].opcode):
            return absent * self.in_groups(warp_bits(here) != 0)
        incomplete = absent[warp] != 0
        named = np.zeros(absent.size, np.uint32)
        if incomplete.any():
            self.lanes.fetch(block.uses)
            members = spread(self.members_of(block), lane.size)[incomplete]
            np.bitwise_or.at(named, warp[incomplete], members)
        return absent & named

    def in_groups(self, warps: np.ndarray) -> np.ndarray:
        """(warps,) bool: which warps are in a group with one of these, (warps,) bool."""
        return np.isin(self.group_of_warp, self.group_of_warp[warps])

    def force(self) -> None:
        """Nobody else can run: lanes whose partners never come go on without them."""
        key = min(self.parked)
        members = self.members_at(key)
        places = self.parked.pop(key)
        of_group = is_group_level(self.blocks[key].instructions[0].opcode)
        if self.reports.observers and not of_group:  # the product tells of the warps that it lacks
            self.tell_missing(self.blocks[key], places)
        if is_warp_barrier(self.blocks[key]):
            self.reports.warp_barrier(self.lanes.at(places), members)
        self.let_pass(key, places)

    def let_pass(self, key: Key, places: np.ndarray) -> None:
        """Lanes go on from a warp-level instruction, whoever else comes there."""
        passing = (*key, _PASSING)
        if passing not in self.blocks:
            self.blocks[passing] = replace(self.blocks[key], key=passing, warp_level=False)
        self.scheduler.join(passing, places)

    def release(self) -> bool:
        """Let parked lanes pass whose partners have all come by now, or have ended.

        bar.warp.sync waits until the lanes of its mask have executed one with that mask, at
        whatever place; the other instructions until they are all at the same one.
        """
        keys = sorted(self.parked)
        groups = [k for k in keys if is_group_level(self.blocks[k].instructions[0].opcode)]
        keys = [key for key in keys if key not in groups]  # groups wait until all have come
        barriers = [key for key in keys if is_warp_barrier(self.blocks[key])]
        teams = [[key] for key in keys if key not in barriers]
        passed = [self.release_teams(keys) for keys in ([barriers] if barriers else []) + teams]
        return any(passed)

    def release_teams(self, keys: list[Key]) -> bool:
        """Let lanes at these places pass whose masks name nobody who is alive and not there.

        Lanes that have ended count as there. Where they have ended since the others came, and in
        code behind the instruction, they went around it, which is told of.
        """
        places = [self.parked[key] for key in keys]
        members = np.concatenate([self.members_at(key) for key in keys])
        lane = self.lanes.at(np.concatenate(places))
        team, team_of = np.unique(
            (lane >> 5).astype(np.uint64) << np.uint64(32) | members, return_inverse=True
        )
        here = np.zeros(team.size, np.uint32)
        np.bitwise_or.at(here, team_of, np.uint32(1) << (lane & 31).astype(np.uint32))
        warp, absent = team >> np.uint64(32), team.astype(np.uint32) & ~here
        passes = (warp_bits(self.lanes.alive)[warp] & absent == 0)[team_of]
        if not passes.any():
            return False
        awaited = np.bitwise_or.reduce([self.awaited[key] for key in keys])
        awaited &= warp_bits(self.seen > max(keys)[0])
        around = (awaited[warp] & absent != 0)[team_of] & passes
        if is_warp_barrier(self.blocks[keys[0]]):
            self.reports.warp_barrier(lane[passes], members[passes])
        for key, mine in zip(keys, places, strict=True):
            go, passes = passes[: mine.size], passes[mine.size :]
            missed, around = around[: mine.size], around[mine.size :]
            if missed.any() and self.reports.observers:
                self.tell_missing(self.blocks[key], mine[missed])
            if go.any():
                del self.parked[key]
                self.let_pass(key, mine[go])
                if not go.all():
                    self.parked[key] = mine[~go]
        return True

    def members_at(self, key: Key) -> np.ndarray:
        """(lanes,) uint32: the member masks of the lanes that are parked at `key`."""
        block, places = self.blocks[key], self.parked[key]
        self.lanes.activate(places)
        self.lanes.fetch(block.uses)
        return spread(self.members_of(block), places.size)

    def members_of(self, block: Block):
        """The member mask of a block's first instruction, for the running lanes."""
        return block.members(self.lanes.R) if block.members else _ALL

    def tell_missing(self, block: Block, places: np.ndarray) -> None:
        instruction, lanes = block.instructions[0], self.lanes.at(places)
        waits = "threads wait" if places.size > 1 else "thread waits"
        message = (
            f"{self.lanes.kernel.name}: `{instruction.opcode}` at "
            f"{block.instance.where(instruction)} names lanes of the warp that never come "
            f"there; {places.size} {waits} for them (first: {self.lanes.thread_text(lanes)}). "
            f"Move it out of the branch, or name only the lanes that take it in the mask"
        )
        self.reports.fault("divergent-barrier", message, block.instance, instruction, lanes)


def warp_bits(flags: np.ndarray) -> np.ndarray:
    """(warps,) uint32: bit i of each is the flag of the warp's lane i."""
    return np.packbits(flags.reshape(-1, 32), axis=1, bitorder="little").view("<u4").ravel()


def is_warp_barrier(block: Block) -> bool:
    return block.instructions[0].opcode.startswith("bar.warp.sync")
