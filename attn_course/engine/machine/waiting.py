"""Lanes that wait for others without a barrier: in warp-level instructions and in spinning loops.

Lanes that have come furthest in the program run last, so a loop that waits for them would never
end by itself. Two things prevent that. A group that jumps back and finds nothing changed that the
loop reads is set aside until some thread writes to memory. And groups that look at memory again
and again, with atomics or volatile loads, give the others a turn.
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from attn_course.engine.events import FaultEvent, WarpBarrierEvent
from attn_course.engine.translate.control_flow import LANE, Block, Key

from .errors import Hang
from .lanes import merged
from .memory import scalar, spread

_FIRST_PROBE = 8  # backward jumps of a group before it is first asked whether it only spins
_LAST_PROBE = 2048  # and the most between two questions
_PROBE_JUMPS = 32  # backward jumps until a question is given up
_PATIENCE = 256  # blocks with polling instructions until other groups get a turn
_PASSING = -3  # ends the keys of blocks whose lanes no longer wait for their warp
_TURNS = 1024  # jumps or activations between two looks at the clock


class WaitingLanes:
    """Mixed into Chunk.

    parked: lanes at warp-level instructions whose partners have not come;
    awaited: (warps,) uint32, which partners were still to come when the last lanes arrived there;
    seen: (lanes,), where in the kernel partners have been since, -1: nowhere (for observers);
    spinning: (key, places, version of memory) of groups in loops that only a write by another
    thread can end;
    aside: groups that have had their turn;
    stalled_at: the version of memory when the chunk last gave up.
    """

    def start_waiting(self) -> None:
        self.parked: dict[Key, np.ndarray] = {}
        self.awaited: dict[Key, np.ndarray] = {}
        self.seen = np.full(self.alive.size, -1)
        self.spinning: list[tuple[Key, np.ndarray | None, int]] = []
        self.aside: dict[Key, np.ndarray | None] = {}
        self.stalled_at = -1
        self.polls, self.patience = 0, _PATIENCE
        self.turns, self.snapshot, self.snapshot_left = 0, None, 1
        self.polled: Block | None = None  # the last block that looked at memory so
        self.spin_block: Block | None = None  # what messages say that lanes spin at
        self.clock_ticks = 0
        self.forget_probe()

    # -- warp-level instructions ----------------------------------------------------------------
    def converge(self, block: Block) -> bool:
        """Keep the warps whose lanes, as far as the member mask names them, are all here.

        Lanes of the other warps are parked until their partners come. False: nobody is left.
        """
        key = block.key
        earlier = self.parked.pop(key, None)
        if earlier is not None:
            self.flush(block.live_in)
            self.activate(merged(earlier, self.all_places()))
        if self.places is None or self.places.size == self.alive_count():
            return True
        missing = self.missing_lanes(block)
        if not missing.any():
            return True
        places = self.places
        late = missing[self.R[LANE] >> 5] != 0
        self.flush(block.live_in)
        self.parked[key], self.awaited[key] = places[late], missing
        self.seen[np.unpackbits(missing.view(np.uint8), bitorder="little").view(bool)] = -1
        if late.all():
            return False
        self.activate(places[~late])
        return True

    def missing_lanes(self, block: Block) -> np.ndarray:
        """(warps,) uint32: the lanes that each warp's member masks name, and that are not here."""
        lane = self.R[LANE]
        here = np.zeros(self.alive.size, bool)
        here[lane] = True
        absent, warp = warp_bits(self.alive & ~here), lane >> 5
        incomplete = absent[warp] != 0
        named = np.zeros(absent.size, np.uint32)
        if incomplete.any():
            self.fetch(block.uses)
            members = block.members(self.R, self) if block.members else np.uint32(0xFFFFFFFF)
            members = spread(members, lane.size)[incomplete]
            np.bitwise_or.at(named, warp[incomplete], members)
        return absent & named

    def force_parked(self) -> None:
        """Nobody else can run: lanes whose partners never come go on without them."""
        key = min(self.parked)
        members = self.members_at(key)
        places = self.parked.pop(key)
        if self.watchers:
            self.tell_missing(self.blocks[key], places)
        if is_warp_barrier(self.blocks[key]):
            self.tell_warp_barrier(self.home[LANE][places], members)
        self.let_pass(key, places)

    def let_pass(self, key: Key, places: np.ndarray) -> None:
        """Lanes go on from a warp-level instruction, whoever else comes there."""
        passing = (*key, _PASSING)
        self.blocks[passing] = replace(self.blocks[key], key=passing, warp_level=False)
        self.join(passing, places)

    def release_warps(self) -> bool:
        """Let parked lanes pass whose partners have all come by now, or have ended.

        bar.warp.sync waits until the lanes of its mask have executed one with that mask, at
        whatever place; the other instructions until they are all at the same one.
        """
        keys = sorted(self.parked)
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
        lane = self.home[LANE][np.concatenate(places)]
        team, team_of = np.unique(
            (lane >> 5).astype(np.uint64) << np.uint64(32) | members, return_inverse=True
        )
        here = np.zeros(team.size, np.uint32)
        np.bitwise_or.at(here, team_of, np.uint32(1) << (lane & 31).astype(np.uint32))
        warp, absent = team >> np.uint64(32), team.astype(np.uint32) & ~here
        passes = (warp_bits(self.alive)[warp] & absent == 0)[team_of]
        if not passes.any():
            return False
        awaited = np.bitwise_or.reduce([self.awaited[key] for key in keys])
        awaited &= warp_bits(self.seen > max(keys)[0])
        around = (awaited[warp] & absent != 0)[team_of] & passes
        if is_warp_barrier(self.blocks[keys[0]]):
            self.tell_warp_barrier(lane[passes], members[passes])
        for key, mine in zip(keys, places, strict=True):
            go, passes = passes[: mine.size], passes[mine.size :]
            missed, around = around[: mine.size], around[mine.size :]
            if missed.any() and self.watchers:
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
        self.activate(places)
        self.fetch(block.uses)
        members = block.members(self.R, self) if block.members else np.uint32(0xFFFFFFFF)
        return spread(members, places.size)

    def tell_warp_barrier(self, lanes: np.ndarray, members) -> None:
        if not self.watchers:
            return
        if lanes.size > 1 and (lanes[1:] < lanes[:-1]).any():  # of several places in the program
            order = np.argsort(lanes)
            lanes, members = lanes[order], members[order]
        event = WarpBarrierEvent(lanes, members, self.view)
        for observer in self.watchers:
            observer.warp_barrier(event)

    def tell_missing(self, block: Block, places: np.ndarray) -> None:
        instruction, lanes = block.instructions[0], self.home[LANE][places]
        message = (
            f"{self.kernel.function.name}: `{instruction.opcode}` at "
            f"{block.instance.where(instruction)} names lanes of the warp that never come "
            f"there; {places.size} threads wait for them (first: {self.thread_text(lanes)}). "
            f"Move it out of the branch, or name only the lanes that take it in the mask"
        )
        self.report(
            FaultEvent(
                "divergent-barrier",
                message,
                instruction,
                block.instance.line(instruction),
                tuple(self.threads(lanes[:8])),
            )
        )

    # -- loops that make no progress ------------------------------------------------------------
    def forget_probe(self) -> None:
        self.probe = None
        self.jumps, self.next_probe = 0, _FIRST_PROBE

    def jumped_back(self, key: Key, block: Block) -> bool:
        """Called on a jump back to `key`; True when the group spins and has been set aside."""
        self.jumps += 1
        if self.jumps % _TURNS == 0:
            self.check_time(block)
        if self.probe is None:
            if self.jumps >= self.next_probe:
                self.probe = (key, self.live_registers(key), self.memory.version)
                self.next_probe = self.jumps + _PROBE_JUMPS
            return False
        probed, before, version = self.probe
        if probed == key and version == self.memory.version:
            if all(map(_same, before, self.live_registers(key))):
                self.flush(self.blocks[key].live_in)
                self.spinning.append((key, self.places, version))
                inside = self.polled is not None and key <= self.polled.key <= block.key
                self.spin_block, self.probe = self.polled if inside else block, None
                return True
        if self.jumps >= self.next_probe:
            self.probe = None
            self.next_probe = self.jumps + min(self.jumps, _LAST_PROBE)
        return False

    def live_registers(self, key: Key) -> list:
        """The registers needed at `key`, scalars first: they differ first in a loop that counts."""
        live = self.blocks[key].live_in
        values = [value for slot, value in enumerate(self.R) if live >> slot & 1]
        return sorted(values, key=_is_array)

    def check_time(self, block: Block) -> None:
        if time.monotonic() > self.run_.deadline:
            raise Hang(
                f"{self.kernel.function.name} ran longer than {self.run_.seconds:g} s and is now "
                f"at {self.where(block)}. Does its loop end? If it does, set the environment "
                f"variable ATTN_COURSE_TIMEOUT to more seconds"
            )

    def where(self, block: Block) -> str:
        """The source line of a block, of the instruction that looks at memory if there is one."""
        found = [*block.instructions, block.terminator.instruction]
        loads = [i for i in block.instructions if i.opcode.startswith(("ld.", "atom."))]
        placed = [i for i in loads + found[::-1] if i is not None and i.position is not None]
        return block.instance.where(placed[0] if placed else None)

    def describe_spinning(self) -> str:
        key, places, _ = self.spinning[0]
        lanes = self.home[LANE] if places is None else self.home[LANE][places]
        block = self.spin_block or self.blocks[key]
        count = sum(self.lane_count if p is None else p.size for _, p, _ in self.spinning)
        who = "repeats" if count == 1 else f"and {count - 1} others repeat"
        text = (
            f"{self.kernel.function.name} hangs at {self.where(block)}: {self.thread_text(lanes)} "
            f"{who} a loop, and no thread that still runs will write what "
            f"{'it waits' if count == 1 else 'they wait'} for"
        )
        if self.waiting:
            text += "; " + self.describe_deadlock()
        return text

    def wake_spinning(self) -> bool:
        """Groups go on whose loops may now find something changed in memory."""
        version = self.memory.version
        awake = [group for group in self.spinning if group[2] != version]
        self.spinning = [group for group in self.spinning if group[2] == version]
        for key, places, _ in awake:
            self.join(key, places)
        return bool(awake)

    # -- turns ----------------------------------------------------------------------------------
    def take_turns(self) -> None:
        """Groups that poll memory stand back for those that may be what they wait for."""
        self.polls, self.patience = 0, max(64, self.patience // 2)
        if self.repeats():
            version = self.memory.version
            for groups in (self.ready, self.aside, *self.queue):
                self.spinning += [(key, places, version) for key, places in groups.items()]
            self.ready, self.aside, self.queue = {}, {}, []
            self.spin_block = self.polled
            return
        self.wake_spinning()
        self.release_barriers()
        self.release_warps()
        if len(self.ready) > 1:
            furthest = max(self.ready)
            runs = {furthest: self.ready.pop(furthest)}
            self.stand_back()
            self.ready = runs
        elif self.queue:
            self.stand_back()
            self.ready = self.queue.pop(0)
        elif self.aside:
            self.ready, self.aside = self.aside, self.ready

    def stand_back(self) -> None:
        for key, places in self.ready.items():
            if key in self.aside and places is not None:
                self.aside[key] = merged(self.aside[key], places)
            else:
                self.aside[key] = places
        self.ready = {}

    def repeats(self) -> bool:
        """Is the whole chunk in a state in which it has been before? (Brent's cycle search.)"""
        state = (self.memory.version, [self.ready, self.aside, *self.queue], list(self.home))
        if self.snapshot is not None and self.snapshot[0] == state[0]:
            if _same_groups(self.snapshot[1], state[1]) and len(self.home) == len(self.snapshot[2]):
                if all(map(_same, self.snapshot[2], state[2])):
                    return True
        self.snapshot_left -= 1
        if self.snapshot_left <= 0:
            self.turns += 1
            self.snapshot_left = 1 << min(self.turns, 16)
            version, groups, home = state
            self.snapshot = (version, [dict(group) for group in groups], home)
        return False


def warp_bits(flags: np.ndarray) -> np.ndarray:
    """(warps,) uint32: bit i of each is the flag of the warp's lane i."""
    return np.packbits(flags.reshape(-1, 32), axis=1, bitorder="little").view("<u4").ravel()


def is_warp_barrier(block: Block) -> bool:
    return block.instructions[0].opcode.startswith("bar.warp.sync")


def _is_array(value) -> bool:
    return value is not None and not scalar(value)


def _same(a, b) -> bool:
    if a is b:
        return True
    if a is None or b is None or scalar(a) != scalar(b):
        return False
    return a.tobytes() == b.tobytes() if scalar(a) else np.array_equal(a, b)


def _same_groups(before: list[dict], after: list[dict]) -> bool:
    if [list(groups) for groups in before] != [list(groups) for groups in after]:
        return False
    return all(
        _same(places, b[key])
        for a, b in zip(before, after, strict=True)
        for key, places in a.items()
    )
