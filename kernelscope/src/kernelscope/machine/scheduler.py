"""The order in which groups run, and loops that wait for other threads.

The group that is furthest back in the program runs first, so that the two sides of a branch meet
again. A loop that waits for lanes further back would then never end by itself. Two things prevent
that. A group that jumps back and finds nothing changed that the loop reads is set aside until some
thread writes to memory. And groups that look at memory again and again, with atomics or volatile
loads, give the others a turn.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic

import numpy as np
from kernelscope.ptx.syntax import Instruction
from kernelscope.translate.control_flow import LANE, Block, Key

from ..errors import OutOfTime
from .access import Memory
from .clock import Clock
from .lanes import ChunkLanes, merged
from .memory import scalar

_FIRST_PROBE = 8  # backward jumps of a group before it is first asked whether it only spins
_LAST_PROBE = 2048  # and the most between two questions
_LONG_LOOP = 2048  # backward jumps of a group after which a clock that stands still goes on
_LONG_WAIT = 32  # the same for groups that poll: after so many turns without a write
_PROBE_JUMPS = 32  # backward jumps until a question is given up
_PATIENCE = 256  # blocks with polling instructions until other groups get a turn
_QUIET = 3  # after 2**_QUIET turns without a write, local memory is compared as well


@dataclass(frozen=True)
class _Snapshot:
    """The state of a chunk: version of memory, whose turn it is, groups, registers that they need,
    local memory."""

    version: int
    suspended: Key
    groups: list[dict]
    home: list
    local_changes: int
    local: np.ndarray | None  # None where it is not kept

    def holds(
        self, suspended: Key, groups: list[dict], home: list, local_changes: int, local: np.ndarray
    ) -> bool:
        """Is this the state again?"""
        if suspended != self.suspended:  # a group may not have had its turn since
            return False
        if not _same_groups(self.groups, groups) or len(home) != len(self.home):
            return False
        if not all(map(_same, self.home, home)):
            return False
        return self.local_changes == local_changes or _same(self.local, local)


class Scheduler:
    """The groups of a chunk that can run.

    ready: groups by the key of their next block; queue: sets of groups that run once `ready` is
    empty, the last first; aside: groups that have had their turn; suspended: the key at which the
    last group has stopped;
    spinning: (key, places, version of memory) of groups in loops that only a write by another
    thread can end; stalled_at: the version of memory when the chunk last gave up;
    polls: blocks run since the last turn that looked at memory, `patience` the most of them;
    quiet: (how many such turns, since which version of memory); polled: the last such block;
    spin_block: the block at which messages say that lanes spin.
    """

    def __init__(self, run, lanes: ChunkLanes, memory: Memory, clock: Clock):
        self.budget, self.lanes, self.memory, self.globals = run.budget, lanes, memory, run.memory
        self.clock = clock
        self.blocks, self.name = lanes.kernel.blocks, lanes.kernel.name
        self.team = None  # (places,) turn of each lane's warp, with a warp order
        if run.warp_order is not None:
            rng = np.random.default_rng([run.warp_order, lanes.first_block])
            warp = (lanes.home[LANE] >> 5) % lanes.warps_per_block
            self.team = rng.permutation(lanes.warps_per_block)[warp]
        self.ready: dict[Key, np.ndarray | None] = {}
        self.queue: list[dict[Key, np.ndarray | None]] = []
        self.enqueue({(0,): None})
        self.spinning: list[tuple[Key, np.ndarray | None, int]] = []
        self.aside: dict[Key, np.ndarray | None] = {}
        self.suspended: Key = ()
        self.stalled_at = -1
        self.next_probe = _FIRST_PROBE
        self.polls, self.patience = 0, _PATIENCE
        self.turns, self.snapshot, self.snapshot_left = 0, None, 1
        self.quiet = (0, -1)
        self.polled: Block | None = None
        self.spin_block: Block | None = None

    def enqueue(self, groups: dict[Key, np.ndarray | None]) -> None:
        """Let groups run later; with a warp order, those of each warp of a block by themselves."""
        if self.team is None:
            self.queue.append(groups)
            return
        for team in range(self.lanes.warps_per_block):
            part = {}
            for key, places in groups.items():
                places = np.arange(self.lanes.count) if places is None else places
                mine = places[self.team[places] == team]
                if mine.size:
                    part[key] = mine
            if part:
                self.queue.append(part)

    def join(self, key: Key, places: np.ndarray | None) -> None:
        """Add lanes to the group that is ready at `key`."""
        if places is None:
            self.ready[key] = None
        else:
            self.ready[key] = merged(self.ready.get(key), places)

    def next(self) -> Key:
        """Take the ready group that is furthest back, and make it the running one."""
        key = min(self.ready)
        if monotonic() >= self.budget.next_look:
            self.check_budget(self.blocks[key])
        self.lanes.activate(self.ready.pop(key))
        return key

    def suspend(self, key: Key) -> None:
        """The running group waits for its turn at `key`."""
        self.suspended = key
        self.lanes.flush(self.blocks[key].live_in)
        self.join(key, self.lanes.places)

    # -- loops that make no progress ------------------------------------------------------------
    def jumped_back(self, key: Key, block: Block) -> bool:
        """Called on a jump back to `key`; True when the group spins and has been set aside."""
        lanes = self.lanes
        lanes.jumps += 1
        if lanes.jumps == 1:  # of this group
            self.next_probe = _FIRST_PROBE
        if monotonic() >= self.budget.next_look:
            self.check_budget(block)
        if lanes.probe is None:
            if lanes.jumps >= self.next_probe:
                lanes.probe = (key, self.live_registers(key), self.versions())
                self.next_probe = lanes.jumps + _PROBE_JUMPS
            return False
        probed, before, version_before = lanes.probe
        if probed == key and version_before == self.versions():
            if all(map(_same, before, self.live_registers(key))):
                lanes.flush(self.blocks[key].live_in)
                self.spinning.append((key, lanes.places, self.globals.version))
                inside = self.polled is not None and key <= self.polled.key <= block.key
                self.spin_block, lanes.probe = self.polled if inside else block, None
                return True
        if lanes.jumps >= self.next_probe:
            lanes.probe, wait = None, min(lanes.jumps, _LAST_PROBE)
            if lanes.jumps >= _LONG_LOOP and self.clock.stands_still() and self.clock.leap():
                wait = _PROBE_JUMPS  # the loop changes something else at each round
            self.next_probe = lanes.jumps + wait
        return False

    def versions(self) -> tuple[int, int]:
        """What changes with each write to memory that other threads see, or the thread itself."""
        return self.globals.version, self.lanes.local_changes

    def live_registers(self, key: Key) -> list:
        """The registers needed at `key`, scalars first: they differ first in a loop that counts."""
        live = self.blocks[key].live_in
        values = [value for slot, value in enumerate(self.lanes.R) if live >> slot & 1]
        return sorted(values, key=_is_array)

    def check_budget(self, block: Block) -> None:
        """End the launch when the call has used up its time or its memory."""
        try:
            self.budget.check(self.name, lambda: self.where(block), "Does its loop end?")
        except OutOfTime as error:
            error.line = self.line(block)
            raise

    def where(self, block: Block) -> str:
        """The source line of a block, of the instruction that looks at memory if there is one."""
        return block.instance.where(placed_in(block))

    def line(self, block: Block) -> int:
        """The number of that line in the kernel's own file, 0 for none."""
        return block.instance.line(placed_in(block))

    def spinning_at(self) -> Block:
        """The block in which lanes spin."""
        return self.spin_block or self.blocks[self.spinning[0][0]]

    def describe_spinning(self, asked: Sequence[str] = ()) -> str:
        """Who repeats which loop. asked: who waits where at mbarriers; that place is told there."""
        places, block = self.spinning[0][1], self.spinning_at()
        lanes = self.lanes.at(places)
        count = sum(self.lanes.count if p is None else p.size for _, p, _ in self.spinning)
        who = "repeats" if count == 1 else f"and {count - 1} others repeat"
        where = block.instance.where_called(placed_in(block))
        if any(where in one for one in asked):
            return (
                f"{self.name} hangs at mbarriers, and no thread that still runs will arrive there"
            )
        return (
            f"{self.name} hangs at {where}: {self.lanes.thread_text(lanes)} "
            f"{who} a loop, and no thread that still runs will write what "
            f"{'it waits' if count == 1 else 'they wait'} for"
        )

    def wake_spinning(self) -> bool:
        """Groups go on whose loops may now find something changed in memory."""
        version = self.globals.version
        awake = [group for group in self.spinning if group[2] != version]
        self.spinning = [group for group in self.spinning if group[2] == version]
        for key, places, _ in awake:
            self.join(key, places)
        return bool(awake)

    # -- turns ----------------------------------------------------------------------------------
    def give_up_polling(self) -> bool:
        """Start a new turn; True when the chunk only repeats itself: all of its groups spin."""
        self.polls, self.patience = 0, max(64, self.patience // 2)
        quiet, since = self.quiet
        self.quiet = (
            (quiet + 1, since) if since == self.globals.version else (0, self.globals.version)
        )
        if quiet >= _LONG_WAIT and self.clock.stands_still() and self.clock.leap():
            self.quiet = (quiet, self.globals.version)
        if self.repeats():
            version = self.globals.version
            for groups in (self.ready, self.aside, *self.queue):
                self.spinning += [(key, places, version) for key, places in groups.items()]
            self.ready, self.aside, self.queue = {}, {}, []
            self.spin_block = self.polled
            return True
        return False

    def take_turns(self) -> None:
        """Groups that poll memory let the groups run that they may wait for.

        The next one by its key runs alone; groups at one key go together. So none is left out, be
        it behind some and before others.
        """
        later = [key for key in self.ready if key > self.suspended]
        if not later and self.queue:
            self.stand_back()
            self.ready = self.queue.pop(0)
            return
        if not later:
            self.stand_back()
            self.ready, self.aside = self.aside, {}
            later = [key for key in self.ready if key > self.suspended] or list(self.ready)
        if later:
            runs = {min(later): self.ready.pop(min(later))}
            self.stand_back()
            self.ready = runs

    def stand_back(self) -> None:
        for key, places in self.ready.items():
            if key in self.aside and places is not None:
                self.aside[key] = merged(self.aside[key], places)
            else:
                self.aside[key] = places
        self.ready = {}

    def repeats(self) -> bool:
        """Is the whole chunk in a state in which it has been before? (Brent's cycle search.)

        Not while a group that has been set aside may find something changed.
        """
        if any(since != self.globals.version for _, _, since in self.spinning):
            return False
        groups, live = [self.ready, self.aside, *self.queue], 0
        for key in set().union(*groups):
            live |= self.blocks[key].live_in
        home = [v if live >> slot & 1 else None for slot, v in enumerate(self.lanes.home)]
        version, changes = self.versions()
        if self.snapshot is None or self.snapshot.version != version:
            self.turns, self.snapshot_left = 0, 1  # something was written: look from here on
        elif self.snapshot.holds(self.suspended, groups, home, changes, self.memory.local.bytes):
            return True
        self.snapshot_left -= 1
        if self.snapshot_left <= 0:
            self.turns += 1
            self.snapshot_left = 1 << min(self.turns, 16)
            local = self.memory.local.bytes.copy() if self.turns >= _QUIET else None
            groups = [dict(g) for g in groups]
            self.snapshot = _Snapshot(version, self.suspended, groups, home, changes, local)
        return False


def placed_in(block: Block) -> Instruction | None:
    """Return an instruction with a source line: the first that looks at memory, else the last."""
    found = [*block.instructions, block.terminator.instruction]
    loads = [i for i in block.instructions if i.opcode.startswith(("ld.", "atom.", "mbarrier."))]
    placed = (i for i in loads + found[::-1] if i is not None and i.position is not None)
    return next(placed, None)


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
