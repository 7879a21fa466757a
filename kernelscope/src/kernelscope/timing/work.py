"""What one launch asks of a GPU: instructions by segment, line and unit, and bytes by level."""

import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from .executions import (
    KINDS,
    PtxCounts,
    bits_of_code,
    executions,
    loads_of,
    of_one_kind,
    with_spaces,
)
from .gpus import GpuConstants
from .machine_code import Code, MachineCode, codes
from .memory.caches import LINE_SECTORS, PIECE_SECTORS
from .memory.traffic import (
    ASKED,
    ATOMIC,
    UNEVEN,
    DramShare,
    Reuse,
    Traffic,
    atomic_times,
    dram_traffic,
    l2_traffic,
    local_bytes,
    near_share,
    shares_of,
)
from .schedule import MEETINGS, Latency, WalkStep, steps_of, walk
from .warps import Unevenness, WarpShares

UNITS = tuple("issue fma alu fp64 mufu tensor memory fill send constant together".split())
_COLUMN = {unit: number for number, unit in enumerate(UNITS)}
OF_SCHEDULER = np.array([1] * 6 + [0] * 5, bool)  # units of which each scheduler has its own
FILL_BYTES = 64  # from L2 to L1, a clock and SM
CONSTANT_CLOCKS = 2.0  # of the constant cache, for each address of a warp's load, as measured
SCHEDULERS = 4  # of an SM: each has its own warps and its own lanes of every unit but the last
FMA_LANES, ALU_LANES, FP64_LANES, MUFU_LANES = 128, 64, 64, 16  # a clock and SM, of sm_90
# Clocks of an SM: of a match, for each value that a warp's lanes have; of a match of all; of a sum.
MATCH_CLOCKS, MATCH_ALL, REDUX_CLOCKS = 2.0, 1.0, 2.0
# What each further warp adds to a fence, a barrier of a cluster, a fence with no store before it.
MEETING_CLOCKS, ALONE_CLOCKS = {"MEMBAR": 16.0, "UCGABAR_WAIT": 5.4}, 2.5
MATCH_LATENCY, OF_VALUE = 10.0, 2.75  # a warp's match by itself: clocks, more for each value
FAR_ATOMIC = 3.0  # clocks of an SM for a sector of an atomic on another block of the cluster
# Standard deviations of the latency of a load that L2 has, or DRAM, on an H200 with nothing else.
L2_SPREAD, DRAM_SPREAD = 19.0, 168.0
PIECES_OF_LINE = LINE_SECTORS // PIECE_SECTORS  # of DRAM
ONE_SECTOR = 1.01  # of a request: its warps load one place, moved along from one to the next
LOADS = ("global load", "async copy")  # whose latency depends on DRAM's
STEP_CLOCKS = 100.0  # of DRAM's latency, by which the chain is walked again
_WIDE = {64: 1.07, 128: 2.16}  # clocks of a wide load of shared memory whose lanes read one place
_INDEXED = re.compile(r"c\[0x[1-9a-f]\w*\]\[R\d")  # bank 0 has the parameters
_FLOAT = ("FFMA", "FMUL", "FADD", "HFMA2", "HADD2", "HMUL2")
_INTEGERS_OF_FMA = ("IMAD", "IDP", "VIADD")
_ALU = tuple(
    "IADD3 MOV LOP3 PLOP3 SHF SHL SHR LEA ISETP SEL FSEL FSETP FMNMX IMNMX VIMNMX PRMT IABS "
    "I2FP F2FP FSET VABSDIFF LOP FMNMX3 VIADDMNMX VIMNMX3 HSETP2 HMNMX2 VOTE".split()
)
_XU = ("MUFU", "I2F", "F2I", "F2F", "I2I", "FRND", "POPC", "FLO", "BREV", "FCHK")
_FP64 = ("DFMA", "DMUL", "DADD", "DSETP")
_LATENCIES = {  # clocks, of compute capability 9.0; loads and barriers are of the GPU's constants
    **dict.fromkeys(("MUFU", "I2F", "F2I", "F2F", "FRND", "POPC", "FLO", "BREV", "FCHK"), 22.0),
    **dict.fromkeys(("S2R", "S2UR", "CS2R", "R2UR", "VOTEU"), 20.0),
    "REDUX": 40.0,  # a chain of them, less the move back
    **dict.fromkeys(("LDC", "ULDC", "LDCU"), 30.0),
    **dict.fromkeys(("DFMA", "DMUL", "DADD", "DSETP"), 16.0),
    **dict.fromkeys(("HMMA", "IMMA"), 24.0),
    "DMMA": 26.0,
}
# Kinds of instructions that always take as long, but for those of some names.
_FIXED_KINDS = ("", "float32", "float64", "mufu", "popc", "division")
_NOT_FIXED = ("MATCH", "LDC", *MEETINGS)  # fences that are alone are among the latter
# Multiply-adds of an mma.sync of 16 bits, and how long one of half of them takes: 1.53 and 1.02
# clocks of an SM on an H200, with a latency of 24 and of 17.
FULL_PRODUCT, SHORT_PRODUCT, SHORT_LATENCY = 16 * 8 * 16, 2 / 3, 17.0
_DEPTHS = {"1684": 4, "1688": 8, "16816": 16, "16832": 32}  # of the sums


@dataclass(frozen=True)
class LaunchShape:
    """A launch's grid. warps, shared_bytes: of a block; cluster: blocks of one; imbalance: of the
    warps of a block, the longest over the mean; uneven: of the blocks of the grid.
    """

    blocks: int
    warps: int
    shared_bytes: int
    cluster: int
    imbalance: float
    uneven: Unevenness = Unevenness()


@dataclass(frozen=True)
class LaunchWork:
    """One launch as the model sees it. Entries are of one (segment, line) each.

    clocks: (entries, UNITS) of one SM that ran all blocks alone; chain: of a warp alone, by segment
    summed over the warp's runs of it; l2_bytes, dram_bytes, fabric_bytes, atomic_ns: by line, of
    the grid; fabric: between the halves of L2, on the way to and from DRAM; waits: as chain, by how
    much it grows with each clock of DRAM's latency; dram_written: bytes; meetings: barriers of a
    warp; traffic, reuse: what they were made of.
    """

    shape: LaunchShape
    resident: int  # blocks of an SM, at most
    segment: np.ndarray
    line: np.ndarray
    clocks: np.ndarray
    chain: tuple[dict[int, float], ...]  # by segment: line -> clocks
    l2_bytes: dict[int, float]
    dram_bytes: dict[int, float]
    fabric_bytes: dict[int, float]
    atomic_ns: dict[int, float]
    barriers: bool
    machine_instructions: float
    registers: int
    waits: tuple[dict[int, float], ...] = ()
    dram_written: float = 0.0
    meetings: float = 0.0
    traffic: Traffic | None = None
    reuse: Reuse | None = None


def room_of(gpu: GpuConstants, warps: int, registers: int, shared_bytes: int) -> dict[str, int]:
    """Return how many blocks an SM has room for, by its own limit of them, by warps, registers and
    shared memory. registers: of a thread.
    """
    of_warp = -(-registers * 32 // 256) * 256
    return {
        "limit of blocks": gpu.blocks,
        "warps": gpu.warps // warps,
        "registers": gpu.registers // (of_warp * 4) * 4 // warps if of_warp else gpu.blocks,
        "shared memory": (gpu.shared_bytes + 1024) // (-(-(shared_bytes + 1024) // 128) * 128),
    }


def resident_blocks(gpu: GpuConstants, warps: int, registers: int, shared_bytes: int) -> int:
    """Return how many blocks fit on an SM. registers: of a thread."""
    return max(1, min(room_of(gpu, warps, registers, shared_bytes).values()))


def l1_lines(gpu: GpuConstants, shared_bytes: int, resident: int) -> int:
    """Return the 128-byte lines of L1 that the resident blocks have together."""
    steps = (0, 8, 16, 32, 64, 100, 132, 164, 196, 228)  # KiB that shared memory can have
    wanted = resident * (shared_bytes + 1024 * bool(shared_bytes)) / 1024
    carved = next((step for step in steps if step >= wanted), steps[-1])
    return max(1, (gpu.l1_bytes - carved * 1024) // 128)


def work_of(
    machine: MachineCode,
    counted: list[PtxCounts],
    gpu: GpuConstants,
    shape: LaunchShape,
    reuse: Reuse,
) -> LaunchWork:
    """Return the work of a launch whose machine code is known."""
    segments, blocks, warps = with_spaces(machine.segments, counted), shape.blocks, shape.warps
    counts, edges = executions(segments, counted, blocks * warps)
    atomic = ATOMIC + UNEVEN * gpu.slices / reuse.halves
    near = near_share(gpu, reuse.read + reuse.lone_read)
    traffic = Traffic(counted, atomic, loads_of(segments, counted), near)
    dram = dram_traffic(gpu, reuse, traffic)
    exact = corrections(segments, counts, counted)

    every = [*codes(segments)]
    units = {id(code): unit_clocks(code, traffic, gpu) for _, code in every}

    def passes(code: Code) -> float:
        return units[id(code)].get("memory", 0.0) + units[id(code)].get("constant", 0.0)

    def latency(code: Code) -> Latency:
        return latency_of(code, traffic, gpu, dram.share)

    shares, each = WarpShares(segments, counted), (counts / (blocks * warps)).tolist()

    def chain(steps: list[list[WalkStep]]) -> tuple[dict[int, float], ...]:
        of_warp = tuple(
            {line: clocks * times for line, clocks in of_segment.items()}
            for of_segment, times in zip(walk(segments, edges, steps), each, strict=True)
        )
        return shares.longest(of_warp)

    steps = steps_of(segments, latency, passes)
    clocks, idle = np.zeros((len(every), len(UNITS))), 0.0
    for row, (at, code) in zip(clocks, every, strict=True):
        share = exact.get((code.origin, KINDS.get(code.name, "")), 1.0)
        for unit, own in units[id(code)].items():
            row[_COLUMN[unit]] = share * own
        if code.guarded and share < 1:  # in the other executions no lane takes part
            for unit, own in clocks_of_no_lane(code).items():
                row[_COLUMN[unit]] += (1 - share) * own
            idle += (1 - share) * counts[at]
    entry: dict[tuple[int, int], int] = {}
    entries = [entry.setdefault((at, code.line), len(entry)) for at, code in every]
    totals = np.zeros((len(entry), len(UNITS)))
    np.add.at(totals, entries, counts[[at for at, _ in every]][:, None] * clocks)
    issued = float(sum(len(s.code) * n for s, n in zip(segments, counts, strict=True)))
    l2_bytes = l2_traffic(traffic)
    for line, more in dram.looked_up.items():
        l2_bytes[line] += more
    for line, share in shares_of(traffic, "global store").items():  # a slice has its mean besides
        l2_bytes[line] += share * reuse.stored * gpu.l2_gbps
    for at, code in every:
        if moved := local_bytes(code):
            l2_bytes[code.line] = l2_bytes.get(code.line, 0.0) + counts[at] * moved
    longest, by_number = chain(steps)
    waits = tuple({} for _ in segments)
    if dram.share.outside or dram.share.again:
        far = replace(gpu, dram_clocks=gpu.dram_clocks + STEP_CLOCKS)
        for of_segment in steps:
            for at, step in enumerate(of_segment):
                if KINDS.get(step.code.name) in LOADS:
                    later = load_latency(traffic, step.code, far, dram.share)
                    of_segment[at] = step._replace(latency=later)
        then, _ = chain(steps)
        waits = tuple(
            {line: max(0.0, after[line] - before.get(line, 0.0)) / STEP_CLOCKS for line in after}
            for before, after in zip(longest, then, strict=True)
        )
    meetings = sum(
        n * sum(code.name == "BAR" for code in segment.code)
        for segment, n in zip(segments, each, strict=True)
    )
    # all warps issue what is guarded, also those that the PTX takes past it
    imbalance = max(1.0, (shape.imbalance - idle / max(issued, 1.0)) / by_number)
    return LaunchWork(
        replace(shape, imbalance=imbalance),
        resident_blocks(gpu, warps, machine.registers, shape.shared_bytes),
        *np.array([*entry]).T,
        totals,
        longest,
        l2_bytes,
        dram.moved,
        dram.crossed,
        atomic_times(traffic, reuse),
        any(code.name == "BAR" for _, code in every),
        issued,
        machine.registers,
        waits,
        dram.written,
        float(meetings),
        traffic,
        reuse,
    )


def corrections(segments, counts: np.ndarray, counted: list[PtxCounts]) -> dict:
    """(PTX instruction, kind) -> exact executions over those that the segments' counts give: less
    than 1 where predicates are false, or where machine code has several instructions for one.
    """
    known = {one.origin: one for one in counted if one.kind and not one.merged}
    found: Counter = Counter()
    for at, code, _ in of_one_kind(segments, known):
        found[code.origin] += counts[at]
    return {
        (number, known[number].kind): min(1.0, known[number].machine_instructions / n)
        for number, n in found.items()
        if n > 0
    }


def unit_clocks(code: Code, traffic: Traffic, gpu: GpuConstants) -> dict[str, float]:
    """Unit -> clocks of an SM that one execution by a warp takes of it."""
    clocks = {"issue": code.issue / SCHEDULERS}
    name, kind = code.name, KINDS.get(code.name, "")
    if name in _FLOAT:
        clocks["fma"] = 32 / FMA_LANES
    elif name in _INTEGERS_OF_FMA:
        long = name == "IMAD" and ("WIDE" in code.parts or "HI" in code.parts)
        clocks["fma"] = (128 if long else 64) / FMA_LANES
    elif name == "MATCH":
        any_value = "ANY" in code.parts
        clocks["together"] = MATCH_CLOCKS * traffic.values(code.line) if any_value else MATCH_ALL
    elif name == "REDUX":
        clocks["together"] = REDUX_CLOCKS
    elif name in _ALU:
        clocks["alu"] = 32 / ALU_LANES
    elif name in _XU:
        clocks["mufu"] = 32 / MUFU_LANES
    elif name in _FP64:
        clocks["fp64"] = 32 / FP64_LANES
    elif kind == "tensor":
        clocks["tensor"] = products(code) / gpu.mma_per_clock
    elif kind.startswith("shared"):
        least = _WIDE.get(bits_of_code(code), 1.0) if kind == "shared load" else 1.0
        clocks["memory"] = max(least, traffic.per_request(code.line, kind))
    elif kind in ("global load", "global store", "async copy"):
        clocks["memory"] = traffic.per_request(code.line, kind)
        clocks["fill"] = traffic.bytes_missing(code.line, kind) / FILL_BYTES
        clocks["send"] = traffic.sending(code.line, kind)
    elif kind == "global atomic":
        clocks["memory"] = traffic.per_request(code.line, kind)
        clocks["fill"] = FAR_ATOMIC * traffic.far_sectors(code.line)
        clocks["send"] = traffic.sending(code.line, kind)
    elif name in MEETINGS and name != "BAR":
        clocks["memory"] = ALONE_CLOCKS if code.alone else MEETING_CLOCKS[name]
    elif kind == "shuffle" or name in ("LDL", "STL"):
        clocks["memory"] = 1.0
    elif _is_indexed_constant(code):
        clocks["constant"] = CONSTANT_CLOCKS * traffic.per_request(code.line, "constant load")
    return clocks


def _is_indexed_constant(code: Code) -> bool:
    """Does it load a constant at a place that each lane has of its own?"""
    if code.name != "LDC":
        return False
    return "const" in code.parts or _INDEXED.search(code.operands) is not None


def clocks_of_no_lane(code: Code) -> dict[str, float]:
    """The same of an execution whose predicate is false in all lanes: it is issued, and takes a
    place in the memory pipe.
    """
    memory = float(" " in KINDS.get(code.name, ""))
    return {"issue": code.issue / SCHEDULERS, "memory": memory}


def products(code: Code) -> float:
    """Multiply-adds of a warp's instruction, as f16 ones: those of other types take longer, and
    those that have half as many take two thirds of the time.
    """
    shape = next((part for part in code.parts if part[:2].isdigit() and len(part) >= 3), "16816")
    speed = 0.5 if "TF32" in code.parts else 2.0 if code.name == "IMMA" else 1.0
    if "x" in shape:  # of wgmma, such as 64x128x16: four warps share it
        m, n, k = map(int, shape.split("x"))
        return m // 4 * n * k / speed
    return max(16 * 8 * _DEPTHS.get(shape, 16) / speed, SHORT_PRODUCT * FULL_PRODUCT)


def is_short_product(code: Code) -> bool:
    """Has it half of the multiply-adds, so that its result is there sooner?"""
    return code.name in ("HMMA", "IMMA") and products(code) < FULL_PRODUCT


def latency_of(code: Code, traffic: Traffic, gpu: GpuConstants, dram_share: DramShare) -> Latency:
    """Clocks from the issue of an instruction to its result."""
    kind, line = KINDS.get(code.name, ""), code.line
    near = gpu.shared_clocks
    if kind in _FIXED_KINDS and code.name not in _NOT_FIXED:
        return _latency(code.name, near)
    if kind in LOADS:
        return load_latency(traffic, code, gpu, dram_share)
    if kind in ("shared load", "shared atomic", "shared store"):
        clocks = near + traffic.per_request(line, kind) - 1
    elif kind == "global atomic":
        clocks = gpu.l2_clocks + traffic.per_request(line, kind) - 1
    elif code.name == "LDL":
        clocks = near + 9
    elif code.alone:
        clocks = gpu.l2_clocks
    elif code.name in MEETINGS:
        clocks = getattr(gpu, MEETINGS[code.name])
    elif kind == "shuffle":
        clocks = near
    elif code.name == "MATCH" and "ANY" in code.parts:
        clocks = MATCH_LATENCY + OF_VALUE * traffic.values(line)
    elif is_short_product(code):
        clocks = SHORT_LATENCY
    elif _is_indexed_constant(code):
        more = CONSTANT_CLOCKS * (traffic.per_request(line, "constant load") - 1)
        clocks = _LATENCIES["LDC"] + more
    else:
        return _latency(code.name, near)
    return Latency(clocks)


@cache
def _latency(name: str, otherwise: float) -> Latency:
    """The latency of an instruction that always has the same."""
    return Latency(_LATENCIES.get(name, otherwise))


def load_latency(traffic: Traffic, code: Code, gpu: GpuConstants, dram_share: DramShare) -> Latency:
    """Clocks of a load of global memory, to the last of a warp's lines."""
    passes = traffic.per_request(code.line, KINDS[code.name]) - 1
    sure, in_l2 = gpu.shared_clocks + 9 + passes, gpu.l2_clocks - gpu.shared_clocks - 9
    load = traffic.loads.get(id(code))
    if load is None or not load.executions:
        in_dram = dram_share.outside * dram_share.alone
        return Latency(sure, 1.0, in_l2, in_dram, gpu.dram_clocks - gpu.l2_clocks)
    waiting, (in_dram, pieces) = load.l1_waiting, dram_share.waiting(load)
    lines = load.counts["global_load_lines"] * load.l1_missing / load.executions
    lines = max(1.0, lines / waiting) if waiting else 1.0
    in_l2 += L2_SPREAD * last_of(lines) + max(0.0, ASKED * lines - 1 - passes)
    beyond = gpu.dram_clocks - gpu.l2_clocks + DRAM_SPREAD * last_of(pieces / PIECES_OF_LINE)
    in_step = load.counts["global_load_sectors"] <= ONE_SECTOR * load.executions
    return Latency(sure, waiting, in_l2, in_dram, beyond, in_step)


def last_of(count: float) -> float:
    """Standard deviations from the mean to the last of so many, about, as of a normal one."""
    return 0.45 * np.log2(max(1.0, count))
