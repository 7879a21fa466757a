"""Time: an observer that predicts how long the launches it sees take on a GPU."""

from collections import Counter
from copy import copy
from dataclasses import replace
from functools import lru_cache
from numbers import Integral

import numpy as np

from ..errors import InputError
from ..events import Access, BarrierEvent, InstructionEvent, Launch, MachineView
from ..ptx.demangle import demangle
from ..ptx.source_module import SourceModule
from ..watch.counters.atomics import count_atomic_sectors
from ..watch.counters.counters import Counters
from ..watch.counters.patterns import TouchedBytes
from ..watch.counters.traffic import LINE_BYTES, Lanes, count_addresses
from .estimate import estimated
from .executions import (
    NOWHERE,
    BlockPlace,
    PtxCounts,
    has_slow_path,
    is_swap,
    places_of,
    steps_that_yield,
)
from .gpus import GpuConstants, gpu
from .machine_code import machine_code, numbers_of
from .memory.atomics import HotLines, SharedSwaps
from .memory.caches import (
    PIECE_BYTES,
    SECTOR_BYTES,
    SectorStreams,
)
from .memory.lookups import Lookups
from .memory.reuse import Grid, alone_in_buffers, reuse_of
from .memory.stores import StoredSectors, Stores
from .memory.traffic import Reuse, reused_bytes
from .model import Prediction, predict
from .report import text
from .results import match_values, slow_paths
from .warps import GROUPS, Apart, LongestWarps, Unevenness, sampled_blocks, unevenness
from .work import LaunchShape, l1_lines, resident_blocks, work_of

LONE_PIECES = 16  # of a stretch in which a block that touches one alone finds no others open
NEARLY = 0.02  # how far off the mean of the groups' work may be: else MORE times as many are run
ENOUGH = 1 << 22  # instructions of warps: no further group of blocks is run after so many
# Of a store: requests for each sector within its reach, from which on they are followed. Time of a
# request behind one of the same line, in ns: 60,000 on each of 32 stretches took an H200 134 us.
SEVERAL, STORE_NS = 4, 2.2
BESIDE = 32  # PTX instructions between two stores at most, if L1 joins them
OF_CHUNK = ("_swaps", "_common", "_lanes_of_all", "_apart")  # attributes of Time
_ASKED_MORE = ("atom.", "red.", "match.", "div.", "rcp.", "sqrt.")
_PAST_L1 = frozenset(("cg", "cv", "volatile", "relaxed", "acquire"))  # of loads


class Time(Counters):
    """Predicts the time of each launch on a GPU, from counts of the simulator.

    with observe(Time(gpu="h200")) as seen:
        kernel(grid, block, args)
    seen.total_us; seen.launches[0].limit; print(seen)

    gpu: "h200", "h100", another of `names()`, a JSON file of measure-gpu, or GpuConstants.
    blocks: run about so many blocks of each launch, in GROUPS places of the grid, up to MORE times
    as many where their work differs, and take them for all; the kernel's arrays then lack the rest.
    None: run all of them.
    Everything of Counters is there too, of the blocks that ran.

    Raises:
        UnknownNameError: there is no such GPU.
        InputError: blocks is not a whole number of at least 1.
    """

    def __init__(self, gpu: str | GpuConstants = "h200", blocks: int | None = None):
        if blocks is not None and (not isinstance(blocks, Integral) or blocks < 1):
            raise InputError(
                f"blocks is {blocks!r}; give a whole number of at least 1, or None for all"
            )
        super().__init__()
        self.gpu = gpu if isinstance(gpu, GpuConstants) else _known(gpu)
        self.most_blocks = blocks
        self.launches: list[Prediction] = []
        self._sources: list[tuple[str, tuple[str, ...]]] = []  # of each launch: file, lines
        self._launch: Launch | None = None
        self._machine_of_chunk: MachineView | None = None
        self._chunk_ended = True

    @property
    def total_us(self) -> float:
        """Microseconds of all launches, one after another in a CUDA graph."""
        return sum(one.us for one in self.launches)

    def chosen_blocks(self, launch: Launch) -> tuple[range, ...] | None:
        total = int(np.prod(launch.grid))
        if self.most_blocks is None or total <= self.most_blocks:
            return None
        x, *others = _cluster(launch)
        if others != [1, 1]:
            return None  # clusters whose blocks do not follow each other
        return sampled_blocks(launch.grid[0], total, x, self.most_blocks)

    def has_enough(self) -> bool:
        """Has the launch had ENOUGH instructions, or all groups whose work is nearly alike?

        What the work of groups varies by that lie side by side says how far off the mean may be.
        """
        if self._executed >= ENOUGH:
            return True
        if len(self._chosen) <= GROUPS or self._ran < sum(map(len, self._chosen[:GROUPS])):
            return False
        if not self._work_of_warps:  # all wait for others
            return False
        work, _ = self._work_of_blocks()
        parts = np.array([part.mean() for part in np.array_split(work, GROUPS)])
        between = parts[1:-1] - 0.5 * (parts[:-2] + parts[2:])
        return np.sqrt((between**2).mean() / 1.5 / len(parts)) <= NEARLY * max(parts.mean(), 1.0)

    def __str__(self) -> str:
        several = len({file for file, _ in self._sources}) > 1
        parts = [
            text(one, lines, file if several else "")
            for one, (file, lines) in zip(self.launches, self._sources, strict=True)
        ]
        if len(parts) > 1:
            parts = [f"{number}. {part}" for number, part in enumerate(parts, 1)]
            parts.append(f"all launches, one after another: {self.total_us:.4g} us")
        return "\n\n".join(parts) or "no kernel ran"

    # -- a launch -------------------------------------------------------------------------------
    def launch_started(self, launch: Launch) -> None:
        super().launch_started(launch)
        self._launch, self._chunk_ended = launch, True
        self._before = self._counts(launch)
        self._streams, self._stores = SectorStreams(), Stores()
        self._chosen = self.chosen_blocks(launch) or (range(int(np.prod(launch.grid))),)
        group = len(self._chosen[0]) if len(self._chosen) > 1 else 1
        self._hot = HotLines(self.gpu.atomic_line_ns / 4, self.gpu.atomic_ns, group)
        self._stored = HotLines(STORE_NS, 0.0, group)
        self._ran, self._pieces = 0, [[], []]
        self._common = 0
        self._machine = machine = machine_code(launch, self.gpu.arch)
        places = places_of(launch.source)
        self._apart = Apart(places, steps_that_yield(launch.source, machine) if machine else ())
        self._events = 0
        self._stretch, self._at = 0, 0  # of straight code: its number, place of the instruction
        self._run, self._run_of, self._stored_at = 0, 0, 0  # of stores beside each other
        self._lookups = Lookups(launch.warps)
        self._asked = _asked_more(launch.source) | self._apart.exits.keys()
        self._longest = LongestWarps(launch.warps)
        self._numbers: list[np.ndarray] = []  # of the blocks that have ended, chunk by chunk
        self._work_of_warps: list[np.ndarray] = []
        self._executed = 0  # instructions of warps, of the chunks that have ended
        self._waiting: dict[int, tuple] = {}  # chunks that wait for others, by their machines' ids

    def chunk_started(self, machine: MachineView) -> None:
        super().chunk_started(machine)
        self._turn_to(machine)
        self._ran += machine.block_count
        self._first_lanes = 32 * machine.warps_per_block
        self._streams.begin(machine.first_block)
        self._stores.begin()
        self._swaps: SharedSwaps | None = None  # of the chunk, if it has any
        self._common = 0
        self._lanes_of_all = 32 * machine.block_count * machine.warps_per_block
        self._apart = copy(self._apart)
        self._apart.begin(self._lanes_of_all)
        self._longest.begin(machine)

    def chunk_resumed(self, machine: MachineView) -> None:
        super().chunk_resumed(machine)
        self._turn_back_to(machine)

    def _turn_back_to(self, machine: MachineView) -> None:
        self._turn_to(machine)
        _, own, self._streams.at, self._stores.at, longest = self._waiting.pop(id(machine))
        self.__dict__.update(own)
        self._longest.resume(longest)

    def _turn_to(self, machine: MachineView) -> None:
        """What follows is of another chunk. That before it, if it has not ended, goes on later."""
        before = self._machine_of_chunk
        if before is not None and not self._chunk_ended:
            own = {name: self.__dict__[name] for name in OF_CHUNK}
            places = self._streams.at, self._stores.at
            self._waiting[id(before)] = before, own, *places, self._longest.chunk()
        self._machine_of_chunk, self._chunk_ended = machine, False
        self._hot.first_block = self._stored.first_block = machine.first_block

    def chunk_finished(self, machine: MachineView) -> None:
        super().chunk_finished(machine)
        if machine is not self._machine_of_chunk:  # what it waits for is of blocks that are not run
            self._turn_back_to(machine)
        work = self._work()
        self._numbers.append(machine.first_block + np.arange(machine.block_count))
        self._work_of_warps.append(work)
        self._executed += int(work.sum())
        self._longest.end(work)
        self._chunk_ended = True

    def barrier(self, event: BarrierEvent) -> None:
        super().barrier(event)
        self._run += 1
        self._longest.meet(event, self._work())

    def _work(self) -> np.ndarray:
        """(blocks, warps) instructions so far."""
        return self._longest.work() + self._common

    def instruction(self, event: InstructionEvent) -> None:
        one, apart = event.instruction, self._apart
        key = id(one)
        self._events += 1
        self._stretch += one.index <= self._at  # a loop goes back
        self._at = one.index
        if apart.any or key in apart.steps:
            for part, lanes in apart.parts(event):
                if lanes is not None:
                    self._remember(lanes)
                self._count(part)
        else:
            self._count(event)
        if key in self._asked:
            self._ask_more(event)

    def _ask_more(self, event: InstructionEvent) -> None:
        """Count what the addresses and results say besides."""
        if id(event.instruction) in self._apart.exits:
            self._apart.leave(event)
            return
        counts = self._row(event.instruction, event.line).counts
        for access in event.accesses:
            if access.space == "shared" and access.kind == "atomic" and is_swap(event.instruction):
                self._swaps = self._swaps or SharedSwaps(event.machine)
                swaps, passes = self._swaps.count(event, access, self._events)
                counts["swaps"] += swaps
                counts["swap_passes"] += passes
        if event.instruction.opcode.startswith("match.any"):
            counts["match_values"] += match_values(event)
        if has_slow_path(event.instruction.opcode):
            counts["slow_paths"] += slow_paths(event)

    def _count(self, event: InstructionEvent) -> None:
        """Count the instruction of lanes that run it together."""
        super().instruction(event)
        lanes = self._running
        if lanes.full and lanes.size == self._lanes_of_all:
            self._common += 1
        else:
            self._longest.ran(id(event.instruction), lanes.numbers)

    def _pattern(self, row, access, address, lanes):
        self._met = super()._pattern(row, access, address, lanes)
        return self._met

    def _constant(self, row, address, lanes) -> None:
        if row.instruction.opcode.startswith("ld.const"):
            row.counts["constant_load_passes"] += count_addresses(self._cut(lanes), address)

    def _global(self, row, access, address, lanes, requests: int) -> None:
        super()._global(row, access, address, lanes, requests)
        (pattern, delta), counts, size = self._met, row.counts, access.size
        if access.kind == "atomic":
            counts["global_atomic_lines"] += pattern.pieces(delta, LINE_BYTES)
            floats = row.instruction.opcode.rsplit(".", 1)[-1].startswith(("f", "bf"))
            self._hot.add(lanes, address, self._first_lanes, floats)
            return
        lines, passes = pattern.of_request(delta, size, access.kind)
        if access.kind == "load":
            if lines > requests:
                self._lookups.add(id(row), size, pattern, delta, requests)
            else:
                counts["l1_lookups"] += requests
            counts["global_load_lines"] += lines
            counts["global_load_passes"] += passes
            counts["global_load_bytes"] += pattern.addresses * size
        else:
            counts["global_store_lines"] += lines
            counts["global_store_passes"] += passes
            counts["global_store_bytes"] += pattern.addresses * size
            if SEVERAL * (pattern.reach // SECTOR_BYTES + 1) <= requests:
                of_warp = (lanes.astype(np.uint64) >> 5 << 44) + address // SECTOR_BYTES
                _, one = np.unique(of_warp, return_index=True)  # a lane for each warp and sector
                self._stored.add(lanes[one], address[one], self._first_lanes, floats=False)
        self._follow(row.instruction, access)

    def _shared(self, row, access, address, lanes, requests: int) -> None:
        super()._shared(row, access, address, lanes, requests)
        if access.kind == "atomic" and access.block is not None:
            holder = access.block if access.valid is None else access.block[access.valid]
            far = holder != lanes // self._first_lanes if holder.size == lanes.size else []
            if np.any(far):  # each block's addresses begin at 0
                apart = address[far] + (holder[far].astype(np.uint64) << np.uint64(32))
                row.counts["far_atomic_sectors"] += count_atomic_sectors(Lanes(lanes[far]), apart)

    def _follow(self, instruction, access: Access) -> None:
        """Follow the loads and stores of the chunk's first block."""
        store = access.kind == "store"
        if self._streams.left <= 0 and not (store and self._stores.left > 0):
            return
        pattern, delta = self._met
        sectors, wants, warps = pattern.sectors_before(self._first_lanes, delta)
        if not store:
            # what stands on both sides of a load is not joined, but of one that may go before both
            self._run += ".nc" not in instruction.opcode
            self._streams.add(id(instruction), sectors, warps, self._stretch, wants)
        elif sectors.size:
            self._streams.store(sectors, wants)
            apart = self._events - self._stored_at > BESIDE + 1
            self._run += apart or self._stretch != self._run_of
            self._stored_at, self._run_of = self._events, self._stretch
            filled, lines = pattern.stored_before(self._first_lanes, delta, access.size)
            stored = StoredSectors(sectors, wants, filled, warps, lines)
            self._stores.add(id(instruction), self._run, stored)

    def bytes_touched(self, touched: TouchedBytes) -> None:
        self._pieces = [
            touched.aligned_pieces(how, PIECE_BYTES, LONE_PIECES) for how in ("read", "written")
        ]

    def launch_finished(self, launch: Launch) -> None:
        super().launch_finished(launch)
        rows = {id(row): row for row in self._current.rows.values()}
        for key, clocks in self._lookups.totals().items():
            rows[key].counts["l1_lookups"] += clocks
        self.launches.append(self._predict(launch))
        file = launch.source.source_name.rsplit("/", 1)[-1]
        self._sources.append((file, launch.source_lines))

    # -- from counts to a prediction --------------------------------------------------------------
    def _counts(self, launch: Launch) -> dict[int, tuple[int, Counter]]:
        """Executions and counts of each instruction so far, by its id."""
        return {id(i): (n, counts) for i, _, n, counts, _ in self.rows_of(launch)}

    def _counted(self, launch: Launch, scale: float) -> list[PtxCounts]:
        """The instructions of this launch alone, scaled up to all of its blocks."""
        found, numbers = [], numbers_of(launch.source)
        blocks = places_of(launch.source).blocks
        for instruction, line, ran, counts, merged in self.rows_of(launch):
            key = id(instruction)
            if key in self._before:
                before, old = self._before[key]
                ran -= before
                counts.subtract(old)
            for name in counts:
                counts[name] *= scale
            of_warps, of_longest = self._longest.shares(key, ran)
            found.append(
                PtxCounts(
                    instruction,
                    line,
                    scale * ran,
                    counts,
                    merged,
                    blocks.get(key, NOWHERE),
                    of_warps=of_warps,
                    of_longest=of_longest,
                    origin=numbers[key],
                )
            )
        return found + _never_ran(launch, {id(one.instruction) for one in found}, blocks)

    def _predict(self, launch: Launch) -> Prediction:
        blocks = int(np.prod(launch.grid))
        scale = blocks / max(self._ran, 1)
        counted = self._counted(launch, scale)
        notes = []
        if self._ran < blocks:
            cut = self._ran < sum(map(len, self._chosen[:GROUPS]))
            why = ": they are long" if cut else ""
            notes.append(f"{self._ran} of {blocks} blocks were run and stand for all{why}")
            first = any(numbers[0] == 0 for numbers in self._numbers)
            if not (first and any(numbers[-1] == blocks - 1 for numbers in self._numbers)):
                which = "the last block" if first else "the first block"
                notes.append(f"{which} is not among them: what it alone does is left out")
        machine = self._machine
        if machine is None:
            machine = estimated(launch)
            notes.append("no machine code here: instructions and registers are guessed from PTX")
        for function in machine.calls:
            notes.append(f"not every call of {demangle(function)} counts: it is not inlined")
        resident = resident_blocks(self.gpu, launch.warps, machine.registers, launch.shared_bytes)
        resident = min(resident, -(-blocks // self.gpu.sms))
        reuse = self._reuse(launch, scale, resident)
        work = work_of(
            machine,
            self._with_caches(counted, launch, blocks, resident, reuse),
            self.gpu,
            LaunchShape(
                blocks,
                launch.warps,
                launch.shared_bytes,
                cluster_size(launch),
                self._imbalance(),
                self._unevenness(launch, blocks, resident),
            ),
            reuse,
        )
        return predict(work, self.gpu, launch.kernel, tuple(notes))

    def _imbalance(self) -> float:
        """The longest warp of a block over the mean of its warps, by instructions."""
        work = np.concatenate(self._work_of_warps)
        return float((work.max(1) / np.maximum(work.mean(1), 1e-9)).mean())

    def _work_of_blocks(self) -> tuple[np.ndarray, np.ndarray]:
        """((blocks, warps) instructions of the blocks that ran, their numbers), ascending."""
        numbers = np.concatenate(self._numbers)
        order = np.argsort(numbers)
        return np.concatenate(self._work_of_warps)[order], numbers[order]

    def _unevenness(self, launch: Launch, blocks: int, resident: int) -> Unevenness:
        work, numbers = self._work_of_blocks()
        return unevenness(numbers, work.sum(1), work.max(1), blocks, self.gpu.sms, resident)

    def _reuse(self, launch: Launch, scale: float, resident: int) -> Reuse:
        blocks, at_a_time = int(np.prod(launch.grid)), resident * self.gpu.sms
        grid = Grid(blocks, scale, at_a_time)
        found = reuse_of(self.gpu, self._pieces, self._streams, self._stores, grid)
        share = min(1.0, at_a_time / blocks)  # of the blocks, that run at a time
        hottest, halves = self._hot.most(scale, self.gpu.slices, share)
        stored, _ = self._stored.most(scale, self.gpu.slices)
        room = sum(b.size for b in launch.buffers if b.space == "global")
        return replace(found, hottest=hottest, halves=halves, stored=stored, room=room)

    def _with_caches(
        self, counted, launch: Launch, blocks: int, resident: int, reuse: Reuse
    ) -> list[PtxCounts]:
        """The same with the shares of the sectors that L1 lacks, of those touched first, and of
        those that L2 has lost before they are loaded again.
        """
        lines = l1_lines(self.gpu, launch.shared_bytes, resident)
        rounds = blocks / (resident * self.gpu.sms)
        lacking = self._streams.misses(lines, resident, rounds)
        followed = {
            (key := id(one.instruction)): self._streams.followed(key, one.executions / blocks)
            for one in counted
        }
        first = {
            key: (pieces / followed[key], touching)
            for key, (pieces, touching) in self._streams.first_touches().items()
        }
        touched = blocks * PIECE_BYTES * sum(pieces for pieces, _ in first.values())
        alone = min(1.0, (reuse.read + reuse.lone_read) / touched) if touched else 1.0
        buffers = self._streams.buffers([buffer[0] for buffer in self._pieces[0]])
        alone_in = alone_in_buffers(
            buffers,
            reuse.of_buffers,
            {key: blocks * PIECE_BYTES * pieces for key, (pieces, _) in first.items()},
        )
        side_by_side = max(1.0, alone * min(blocks, resident * self.gpu.sms))
        lost = self._streams.lost(int(reused_bytes(self.gpu) / LINE_BYTES / side_by_side))
        found, joined = [], self._stores.joined(resident * launch.warps)
        for one in counted:
            key, sectors = id(one.instruction), one.counts["global_load_sectors"] / blocks
            if key in joined:
                share, filled = joined[key]
                one = replace(one, joined=share, filled=filled)
            if sectors and key in lacking and not _past_l1(one):
                missing, waiting = lacking[key]
                missing = min(1.0, missing / followed[key] / sectors)
                one = replace(one, l1_missing=missing, l1_waiting=waiting)
            if key in buffers:
                one = replace(one, buffer_bytes=reuse.touched[buffers[key]])
            if key in first:
                pieces, touching = first[key]
                again, share = lost[key]
                one = replace(
                    one,
                    first_bytes=blocks * PIECE_BYTES * pieces,
                    touching=touching,
                    alone=alone_in.get(key),
                    lost_bytes=alone * blocks * SECTOR_BYTES * again / followed[key],
                    losing=alone * share,
                )
            found.append(one)
        return found


@lru_cache(maxsize=64)
def _asked_more(source: SourceModule) -> frozenset[int]:
    """The ids of instructions whose addresses or results say more than Counters count."""
    functions = source.module.functions.values()
    every = (one for function in functions for one in function.body)
    return frozenset(id(one) for one in every if one.opcode.startswith(_ASKED_MORE))


def _never_ran(launch: Launch, ran: set[int], blocks: dict[int, BlockPlace]) -> list[PtxCounts]:
    """The instructions of the kernel, and of what it called, that no warp executed."""
    numbers = numbers_of(launch.source)
    return [
        PtxCounts(
            one,
            launch.source.own_line(one),
            0,
            Counter(),
            False,
            blocks[id(one)],
            origin=numbers[id(one)],
        )
        for function in launch.source.module.functions.values()
        if any(id(one) in ran for one in function.body)
        for one in function.body
        if id(one) not in ran and id(one) in blocks
    ]


def cluster_size(launch: Launch) -> int:
    """Return how many blocks a cluster of the launch has."""
    return int(np.prod(_cluster(launch)))


def _cluster(launch: Launch) -> tuple[int, int, int]:
    limits = launch.source.module.functions[launch.kernel].limits
    return (*limits.get("reqnctapercluster", ()), 1, 1, 1)[:3]


def _known(name: str) -> GpuConstants:
    return gpu(name)


def _past_l1(one: PtxCounts) -> bool:
    """Does a load leave L1 out?"""
    return not _PAST_L1.isdisjoint(one.instruction.opcode.split("."))
