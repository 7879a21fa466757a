"""Bytes of a launch between an SM, L2 and DRAM, by source line, from the counts of its PTX."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from ..executions import PtxCounts, bits_of, is_swap
from ..gpus import GpuConstants
from ..machine_code import Code
from .caches import PIECE_BYTES, SECTOR_BYTES

# Clocks in which an SM sends to L2 a load's request of a line, a store's, and a sector that it
# stores: 1.02, 2.05 and 1.05 on an H200, with 1 block as with 66.
ASKED, STORED, STORED_SECTOR = 1.0, 2.05, 1.05
STORE_TAGS = 2  # lines of a store that L1 looks up in a clock
LINE_LOAD = 1.7  # sectors that a load's request of a line costs L2, if it has fewer
ATOMIC = 2.35  # ... and each sector of an atomic: 9.6 ps at random words of 4 MiB, on an H200
# What the fullest slice of L2 has beyond the mean: two thirds of a stretch of half a KiB, in such
# sectors. Atomics on 16 KiB took 2.9 times as long as on 4 MiB, on 64 KiB 1.5 and on 256 KiB 1.1.
UNEVEN = 0.67 * 1.63
# A store's request of a line: clocks of a sector for its head, and for a sector that it fills in
# part more, since that takes a mask besides. On an H200 3.2 for a sector of a line, 5.3 for two and
# 9 for four.
LINE_STORE, PART_STORED = 1.0, 1.0
WHOLE_LINES = 3.0  # sectors of each line of a load, from which on its lanes load side by side
# Such loads are faster where all SMs load the same few bytes: of half of L2 by 1.13 of l2_gbps, and
# for each halving of it by so much more, down to 2 MiB (an H200's probe).
FEW_FASTER, EACH_HALVING, FASTEST = 1.13, 0.065, 1.4
# Loads of parts of lines of a small table take four times as long where it has so many bytes or
# less, and ever less long where it has more. 132 blocks that each gather 512 times 16 bytes took an
# H200 0.23, 0.27, 0.71, 0.54, 0.57, 0.15 and 0.16 us more of one table of 2 to 128 KiB, each twice
# the last, than of one of their own: 3.8, 2.7, 3.7, 1.9, 1.5, 0.3 and 0.3 of its time in L2.
FEW_SLOWER, FEW_BYTES, FEW_POWER = 4.0, 2**13, 0.7
LONE_READ, LONE_WRITE = 1.5, 4.0  # pieces of a stream that a piece by itself costs DRAM
MISSED = 1.4  # requests of a line that such a piece costs L2 besides, where it is missing


@dataclass(frozen=True)
class Reuse:
    """Distinct bytes of global memory that a launch reads and writes, in pieces as DRAM moves them.

    lone_read, lone_written: bytes of the pieces that a block finds by themselves, as often as it
    does, in neither of the others; again: bytes read that L2 has lost since another block loaded
    them; refilled: of a copy that takes as long as to fill sectors stored in part; hottest:
    nanoseconds of the atomics on the lines of L2 that have most; stored: of the stores that meet;
    room: bytes of all buffers; halves: stretches of half a KiB, each in a slice of L2, that atomics
    touch; of_buffers: bytes read of each buffer, less what blocks share; touched: all of them.
    """

    read: float
    written: float
    lone_read: float = 0.0
    lone_written: float = 0.0
    again: float = 0.0
    refilled: float = 0.0
    hottest: float = 0.0
    room: float = np.inf
    halves: float = np.inf
    stored: float = 0.0
    of_buffers: tuple[float, ...] = ()
    touched: tuple[float, ...] = ()


class Traffic:
    """The memory counts of a launch by line and kind: per request, and the share that misses L1.

    atomic: sectors that a sector of an atomic costs L2; loads: machine loads of global memory by
    their ids -> those of the PTX; whole: sectors that one of a load of whole lines costs L2.
    """

    def __init__(
        self,
        counted: Iterable[PtxCounts],
        atomic: float = ATOMIC,
        loads: dict[int, PtxCounts] | None = None,
        whole: float = 1.0,
    ):
        self.loads = loads or {}
        self.requests: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.passes: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.sectors: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.missing: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.conflicts: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.lines: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.used: defaultdict[tuple[int, str], float] = defaultdict(float)  # bytes, of each warp
        self.l2_sectors: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.far: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.matches: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self.sent: defaultdict[tuple[int, str], float] = defaultdict(float)
        self.first_bytes, self.lost_bytes = 0.0, 0.0
        for one in counted:
            kind = one.kind
            if one.counts["match_values"]:
                of_line = self.matches[one.line]
                of_line[0] += one.counts["match_values"]
                of_line[1] += one.executions
            if one.merged or " " not in kind or kind.startswith("local"):
                continue
            key, counts = (one.line, kind), one.counts
            self.requests[key] += one.machine_instructions
            if kind.startswith("shared"):
                waves = kind.replace(" ", "_") + "_wavefronts"
                swap = kind == "shared atomic" and is_swap(one.instruction)
                self.passes[key] += counts["swap_passes" if swap else waves]
                self.conflicts[key] += counts[kind.replace(" ", "_") + "_conflicts"]
                continue
            if kind.startswith("constant"):
                self.passes[key] += counts["constant_load_passes"]
                continue
            way = "load" if kind == "async copy" else kind.split()[1]
            self.far[key] += counts["far_atomic_sectors"]
            self.passes[key] += counts["shared_atomic_wavefronts"] if way == "atomic" else 0
            sectors = counts[f"global_{way}_sectors"]
            self.sectors[key] += sectors
            lines = counts[f"global_{way}_lines"]
            self.lines[key] += lines
            self.used[key] += counts[f"global_{way}_bytes"]
            self.sent[key] += {
                "load": one.l1_missing * ASKED * lines,
                "store": one.joined * max(STORED * lines, STORED_SECTOR * sectors),
                "atomic": STORED * lines,
            }[way]
            words = max(1, bits_of(one.instruction) // 32) if kind == "global load" else 0
            least = words * one.executions  # of a load: a pass for each register of the lanes
            looked = counts["l1_lookups"] if way == "load" else lines / STORE_TAGS
            self.passes[key] += max(looked, counts[f"global_{way}_passes"], least)
            missing = one.l1_missing * sectors
            self.missing[key] += missing
            if way == "load":
                first = one.first_bytes
                self.lost_bytes += one.lost_bytes
                self.first_bytes += SECTOR_BYTES * missing if first is None else first
            near = whole if sectors >= WHOLE_LINES * lines else few_lines(one.buffer_bytes)
            in_l2 = {
                "load": near * max(sectors, LINE_LOAD * lines),
                "store": sectors_stored(one) if way == "store" else 0.0,
                "atomic": atomic * sectors,
            }
            self.l2_sectors[key] += one.l1_missing * in_l2[way]

    def per_request(self, line: int, kind: str) -> float:
        """What a request asks of its pipe: wavefronts, passes of L1 or addresses of constants."""
        requests = self.requests.get((line, kind), 0.0)
        return max(1.0, self.passes[line, kind] / requests) if requests else 1.0

    def bytes_missing(self, line: int, kind: str) -> float:
        """Bytes of a request that L1 lacks, so that they come from L2."""
        requests = self.requests.get((line, kind), 0.0)
        return SECTOR_BYTES * self.missing[line, kind] / requests if requests else 0.0

    def sending(self, line: int, kind: str) -> float:
        """Clocks in which an SM sends a request to L2."""
        requests = self.requests.get((line, kind), 0.0)
        return self.sent[line, kind] / requests if requests else 0.0

    def values(self, line: int) -> float:
        """Different values of a warp's lanes in a match of a line."""
        values, matches = self.matches.get(line, (1.0, 1.0))
        return values / matches

    def far_sectors(self, line: int) -> float:
        """Sectors that an atomic of a line sends to other blocks of its cluster."""
        requests = self.requests.get((line, "global atomic"), 0.0)
        return self.far[line, "global atomic"] / requests if requests else 0.0


def filled_share(one: PtxCounts) -> float:
    """Share of the sectors of a store that it fills."""
    size = bits_of(one.instruction) / 8 * one.counts["thread_instructions"]
    return min(1.0, size / (SECTOR_BYTES * one.counts["global_store_sectors"]))


def sectors_stored(one: PtxCounts) -> float:
    """Return the sectors that a store to global memory costs L2."""
    sectors, lines = one.counts["global_store_sectors"], one.counts["global_store_lines"]
    if not sectors:
        return 0.0
    filled = one.filled if one.joined < 1 else filled_share(one)
    in_part = min(1.0, 2 * (1 - filled))  # of a stretch its two ends
    return one.joined * (sectors * (1 + PART_STORED * in_part) + LINE_STORE * lines)


@dataclass(frozen=True)
class DramShare:
    """outside: share of the bytes read that L2 lacks; alone: share of what blocks touch first that
    no other block has touched before, unless the load knows it; again: ... that L2 has lost since.
    """

    outside: float
    alone: float
    again: float = 0.0

    def waiting(self, load: PtxCounts) -> tuple[float, float]:
        """(share of a load's requests that wait for DRAM, pieces of DRAM that each touches)."""
        requests = load.touching * load.executions
        if not requests:
            return min(load.l1_waiting, load.losing), 1.0
        known = load.first_bytes is not None
        pieces = max(1.0, load.first_bytes / PIECE_BYTES / requests) if known else 1.0
        alone = self.alone if load.alone is None else load.alone
        sectors, lines = load.counts["global_load_sectors"], load.counts["global_load_lines"]
        apart = 1.0 if sectors > WHOLE_LINES * lines else pieces  # whole lines are new together
        lacking = self.outside * (1 - (1 - alone) ** apart) + 1 - (1 - self.again) ** apart
        found = load.touching * min(1.0, lacking) + load.losing
        return min(load.l1_waiting, found), pieces


def l2_traffic(traffic: Traffic) -> dict[int, float]:
    """Line -> bytes between L1 and L2, of those that take as long at l2_gbps."""
    found: defaultdict[int, float] = defaultdict(float)
    for (line, _), sectors in traffic.l2_sectors.items():
        found[line] += SECTOR_BYTES * sectors
    return dict(found)


@dataclass(frozen=True)
class DramTraffic:
    """By line: moved, bytes of DRAM, of a copy that takes as long; crossed, of the fabric of L2;
    looked_up, of L2 for what it lacks. share: of loads that wait for DRAM; written: bytes.
    """

    moved: dict[int, float]
    crossed: dict[int, float]
    looked_up: dict[int, float]
    share: DramShare
    written: float


def dram_traffic(gpu: GpuConstants, reuse: Reuse, traffic: Traffic) -> DramTraffic:
    """Launches are taken to follow each other: what fits L2 is there already."""
    lone = reuse.lone_read + reuse.lone_written
    total = min(reuse.read + reuse.written + lone, reuse.room)
    kept = kept_bytes(gpu)
    outside = min(max((total - kept) / kept, 0.0), 1.0) if total else 0.0
    missed = max(1.0 - kept / total, 0.0) if total else 0.0  # by what has no order
    by_line = l2_traffic(traffic)
    everything = max(sum(by_line.values()), 1.0)
    waiting = outside * reuse.read + missed * reuse.lone_read
    distinct = reuse.read + reuse.lone_read
    share = DramShare(
        waiting / distinct if distinct else 0.0,
        min(1.0, distinct / traffic.first_bytes) if traffic.first_bytes else 1.0,
        min(1.0, reuse.again / traffic.first_bytes) if traffic.first_bytes else 0.0,
    )
    lost, lone_read = traffic.lost_bytes, missed * reuse.lone_read + reuse.again
    moved = copy_bytes(gpu, outside * reuse.read + lost, outside * reuse.written)
    moved += LONE_READ * lone_read * gpu.dram_gbps / gpu.read_gbps
    moved += missed * (LONE_WRITE * reuse.lone_written + reuse.refilled)
    crossed = outside * (reuse.read + reuse.written) + missed * lone + lost + reuse.again
    looked_up = MISSED * LINE_LOAD * SECTOR_BYTES / PIECE_BYTES * lone_read
    return DramTraffic(
        *(
            {line: size * part / everything for line, part in by_line.items()}
            for size in (moved, crossed, looked_up)
        ),
        share,
        outside * reuse.written + missed * reuse.lone_written,
    )


def kept_bytes(gpu: GpuConstants) -> float:
    """Bytes that L2 keeps until the next launch."""
    return 0.5 * gpu.l2_bytes


def near_share(gpu: GpuConstants, read: float) -> float:
    """Return the time of L2 of a load of whole lines, over that of l2_gbps, where all blocks read
    so many distinct bytes.

    That lines have a copy in each half of L2 which fewer SMs wait for is a hypothesis.
    """
    halves = max(read, 1.0) / kept_bytes(gpu)
    if halves > 1:
        return 1 / (1 + (FEW_FASTER - 1) * max(0.0, 2 - halves))
    return 1 / min(FEW_FASTER - EACH_HALVING * np.log2(halves), FASTEST)


def few_lines(read: float) -> float:
    """Return the time of L2 of loads of parts of lines, over that of as many of anywhere, where all
    blocks read so many distinct bytes of a buffer.

    That lines lie in few slices of L2, as of atomics, is a hypothesis.
    """
    return 1 + (FEW_SLOWER - 1) * min(1.0, FEW_BYTES / max(read, 1.0)) ** FEW_POWER


def reused_bytes(gpu: GpuConstants) -> float:
    """Bytes that L2 keeps while the resident blocks load them again: on an H200 33 MB of 1,024
    blocks were there, 53 MB of 264 were not.
    """
    return 0.75 * gpu.l2_bytes


def local_bytes(code: Code) -> int:
    """Bytes between L1 and L2 of a warp's access to local memory: a store goes on to L2 and leaves
    nothing in L1, so a load does too.
    """
    if code.name not in ("LDL", "STL"):
        return 0
    return 4 * SECTOR_BYTES * {"64": 2, "128": 4}.get(code.parts[-1] if code.parts else "", 1)


def copy_bytes(gpu: GpuConstants, read: float, written: float) -> float:
    """Return the bytes of a copy that takes as long as these: reading alone turns no bus around."""
    return (
        2 * min(read, written)
        + max(read - written, 0.0) * gpu.dram_gbps / gpu.read_gbps
        + max(written - read, 0.0)
    )


def atomic_times(traffic: Traffic, reuse: Reuse) -> dict[int, float]:
    """Line -> nanoseconds of its share of the atomics on the hottest lines of L2."""
    shares = shares_of(traffic, "global atomic")
    return {line: reuse.hottest * share for line, share in shares.items()}


def shares_of(traffic: Traffic, kind: str) -> dict[int, float]:
    """Line -> its share of the sectors of a kind."""
    sectors: defaultdict[int, float] = defaultdict(float)
    for (line, own), count in traffic.sectors.items():
        if own == kind:
            sectors[line] += count
    everything = max(sum(sectors.values()), 1.0)
    return {line: count / everything for line, count in sectors.items()}
