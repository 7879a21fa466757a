"""From the work of a launch to its time: bounds of throughput, latency that shows, waves of blocks.

For each SM: the blocks that are resident together run each segment at the pace of its slowest unit
or of a warp's own chain of latencies, whichever is longer. Where barriers keep a block's warps
together, segments add up; other resident blocks fill the gaps. L2 and DRAM bound the grid.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial

import numpy as np

from .bounds import FABRIC_NAME, FEW, IDLE, NAMES, TAIL, WAITS
from .gpus import GpuConstants
from .reasons import reasons
from .work import DRAM_SPREAD, OF_SCHEDULER, SCHEDULERS, UNITS, LaunchWork, room_of

DEALING_CLOCKS = 1.17  # a block: 67,584 empty blocks of 32 threads on an H200
# Of L2's bandwidth: what crosses the fabric between its halves, to and from DRAM. It is an H200's
# copy, in which Nsight Compute shows that fabric at 91 % of its peak and DRAM at 81 %.
FABRIC = 0.54
SHARPNESS = 3.2  # of the maximum: two equal bounds together take 2 ** (1 / 3.2) of one
# ... where all blocks run at once and the longest takes less than the first of so many
# microseconds, and in proportion up to the second. From the errors of small launches; that less
# overlaps where blocks begin and end together is a hypothesis.
SHORT, SHORT_US = 2.0, (5.0, 8.0)
# On an SM. Chains of 256 multiply-adds between barriers: 2, 4, 6 and 8 warps of a scheduler took
# 1.10, 1.32, 1.48 and 1.35 times the longer of chain and issue on an H200; it gives 1.09 to 1.33.
SM_SHARPNESS = 2.0
UNITS_SHARPNESS = 6.0  # of an SM's units among each other
# Clocks of issue, of an SM, for each of a unit.
ISSUES = {"fma": 1.0, "alu": 0.5, "fp64": 0.25, "mufu": 0.125, "memory": 0.25}
# DRAM's latency under load, of an H200: a load takes so many clocks more, times the share of its
# bandwidth that is written: 67 at 6 %, 190 at 19 % and 360 at 30 %. Loads alone take 12 more at
# 24 % and 57 at 43 %. A load has a standard deviation of 168 clocks, 272 where it takes 180 more.
WRITING_CLOCKS, LOADED_SPREAD = 1100.0, 0.6
# ... and the last of a block's warps at a barrier is later than the mean by so much of it, times
# the logarithm of their number: 8 warps 0.3 to 0.5, 32 warps 0.8 to 1.
LAST_WARP = 0.15
LOAD_PASSES = 4
BUSY = 0.6  # of the time; Nsight Compute, too, calls a launch with less bound by latency
ALIKE = 0.97  # where DRAM and the fabric before it are as near, Nsight Compute shows the fabric
SEND = UNITS.index("send")


@dataclass(frozen=True)
class Prediction:
    """The time of one launch on a GPU.

    us, low, high: microseconds and their interval; bounds: name -> microseconds that it alone would
    take; limit: the unit that is busy for BUSY of the time or longer, the busiest, else the longest
    of WAITS and IDLE; notes: what is estimated; registers: of a thread; resident: blocks that fit
    on an SM; blocks: of the grid; sms: of the GPU; start_us: the launch and one start; warps: of a
    block; room: for how many blocks an SM has room, by each of what they need.
    """

    kernel: str
    gpu: str
    us: float
    low: float
    high: float
    bounds: dict[str, float]
    limit: str
    notes: tuple[str, ...] = ()
    machine_instructions: float = 0.0
    registers: int = 0
    resident: int = 0
    blocks: int = 0
    sms: int = 0
    start_us: float = 0.0
    warps: int = 0
    room: dict[str, int] = field(default_factory=dict)
    _without: Callable[[], dict[int, float]] = field(default=dict, repr=False, compare=False)
    _why: Callable[[str], tuple[list[str], str]] | None = field(
        default=None, repr=False, compare=False
    )

    @cached_property
    def without_line(self) -> dict[int, float]:
        """Source line -> microseconds of the launch without what that line does."""
        return self._without()

    @cached_property
    def reasons(self) -> dict[str, list[str]]:
        """The limit -> what it comes from, and what to try; the busiest unit -> what it does."""
        found = {}
        for name in dict.fromkeys((self.limit, self.busiest)) if self._why else ():
            said, advice = self._why(name)
            found[name] = [*said, f"to try: {advice}"] if name == self.limit else said
        return found

    def record(self) -> dict:
        """Return all of it, for JSON."""
        own = {one.name: getattr(self, one.name) for one in fields(self) if one.name[0] != "_"}
        return own | {"without_line": self.without_line, "reasons": self.reasons}

    @property
    def units(self) -> dict[str, float]:
        """The bounds of units, which can be busy; the others are waits."""
        return units_of(self.bounds)

    @property
    def busiest(self) -> str:
        """The unit with the longest bound. It is the limit, or is busy for less than BUSY."""
        return busiest_of(self.bounds)


def smooth_max(*values, sharpness: float = SHARPNESS) -> float | np.ndarray:
    """A maximum that is larger where several values are close; elementwise for arrays."""
    if not any(isinstance(value, np.ndarray) for value in values):
        most = max(values)
        if most <= 0:
            return 0.0
        return most * sum((value / most) ** sharpness for value in values) ** (1 / sharpness)
    most = np.maximum.reduce(np.broadcast_arrays(*values))
    safe = np.maximum(most, 1e-30)
    return most * sum((value / safe) ** sharpness for value in values) ** (1 / sharpness)


def units_together(busy: np.ndarray) -> np.ndarray:
    """(..., units) clocks -> (...) of all units together: the longest, or longer where others are
    near it. What a unit's own instructions take of the issue does not disturb it.
    """
    issue = busy[..., :1]
    own = np.array([ISSUES.get(unit, 0.0) for unit in UNITS])
    disturbing = np.clip(1 - own * busy / np.maximum(issue, 1e-30), 0, 1)
    disturbing[..., 0] = 1.0
    longest = np.maximum(busy.max(-1), 1e-30)
    share = (disturbing * (busy / longest[..., None]) ** UNITS_SHARPNESS).sum(-1)
    return longest * np.maximum(1.0, share) ** (1 / UNITS_SHARPNESS)


def predict(
    work: LaunchWork, gpu: GpuConstants, kernel: str, notes: tuple[str, ...] = ()
) -> Prediction:
    """Return the time of a launch."""
    work = under_load(work, gpu)
    bounds = bounds_of(work, gpu, None)
    us = time_of(work, gpu, None)
    spread = gpu.spread
    return Prediction(
        kernel,
        gpu.name,
        us,
        us / (1 + spread),
        us * (1 + spread),
        bounds,
        limit_of(bounds, us),
        notes,
        work.machine_instructions,
        work.registers,
        work.resident,
        work.shape.blocks,
        gpu.sms,
        gpu.launch_us + gpu.start_clocks * 1e6 / gpu.hz,
        work.shape.warps,
        room_of(gpu, work.shape.warps, work.registers, work.shape.shared_bytes),
        partial(_without_lines, work, gpu),
        partial(reasons, work, gpu),
    )


def _without_lines(work: LaunchWork, gpu: GpuConstants) -> dict[int, float]:
    lines = sorted({*map(int, work.line)} - {0})
    return {line: time_of(work, gpu, line) for line in lines}


def under_load(work: LaunchWork, gpu: GpuConstants) -> LaunchWork:
    """Return the work with the latency that DRAM has while the launch writes to it. Where a block's
    warps meet, the last one's load counts.
    """
    waits = sum(sum(of_segment.values()) for of_segment in work.waits)
    if not waits:
        return work
    us, loaded = time_of(work, gpu, None), work
    bounds = bounds_of(work, gpu, None)
    dram = max(bounds["DRAM"], bounds[FABRIC_NAME])
    for _ in range(LOAD_PASSES):
        busy = work.dram_written / us / 1e3 / gpu.dram_gbps
        later = WRITING_CLOCKS * min(busy, 1.0)
        if work.meetings:
            spread = DRAM_SPREAD + LOADED_SPREAD * later
            together = max(1.0, waits / work.meetings)
            later += LAST_WARP * np.log2(work.shape.warps) * spread / np.sqrt(together)
        later *= max(0.0, 1.0 - dram / us)  # the bound by itself has the rest
        chain = tuple(
            {line: clocks + later * more.get(line, 0.0) for line, clocks in of_segment.items()}
            for of_segment, more in zip(work.chain, work.waits, strict=True)
        )
        loaded = replace(work, chain=chain)
        us = 0.5 * (us + time_of(loaded, gpu, None))
    return loaded


def units_of(bounds: dict[str, float]) -> dict[str, float]:
    """Return the bounds of units."""
    return {name: us for name, us in bounds.items() if name not in (*WAITS, *IDLE)}


def busiest_of(bounds: dict[str, float]) -> str:
    """Return the unit with the longest bound."""
    units = units_of(bounds)
    busiest = max(units, key=units.__getitem__)
    alike = busiest == "DRAM" and units.get(FABRIC_NAME, 0.0) > ALIKE * units["DRAM"]
    return FABRIC_NAME if alike else busiest


def limit_of(bounds: dict[str, float], us: float) -> str:
    """Return the name of the bound that limits a launch of so many microseconds."""
    busiest = busiest_of(bounds)
    return busiest if bounds[busiest] >= BUSY * us else max((*WAITS, *IDLE), key=bounds.get)


def _units(work: LaunchWork, without: int | None) -> np.ndarray:
    """(segments, UNITS) clocks of an SM for one block."""
    kept = np.ones(work.line.size, bool) if without is None else work.line != without
    units = np.zeros((len(work.chain), len(UNITS)))
    np.add.at(units, work.segment[kept], work.clocks[kept])
    return units / work.shape.blocks


def _chain(work: LaunchWork, without: int | None) -> np.ndarray:
    """(segments,) clocks of a warp alone, of a block's longest warp."""
    sums = [
        sum(clocks for line, clocks in segment.items() if line != without) for segment in work.chain
    ]
    return work.shape.imbalance * np.array(sums)


def _round(work: LaunchWork, chain: np.ndarray, units: np.ndarray, blocks: int) -> float:
    """Clocks of an SM for `blocks` resident blocks. chain: (segments,) clocks of a warp; units:
    (segments, UNITS) of a block.
    """
    if not blocks:
        return 0.0
    warps, barriers = work.shape.warps, work.barriers
    apart = blocks if barriers else blocks * warps  # how many run independently of others
    of_scheduler = -(-blocks * warps // SCHEDULERS) * SCHEDULERS / (blocks * warps)
    busy = units * blocks * np.where(OF_SCHEDULER, of_scheduler, 1.0)
    total, each = units_together(busy.sum(0)), units_together(busy)
    together = float(smooth_max(chain.sum(), float(total), sharpness=SM_SHARPNESS))
    in_turn = float(smooth_max(chain, each, sharpness=SM_SHARPNESS).sum())
    return together + max(in_turn - together, 0.0) / apart


def _sm_clocks(
    work: LaunchWork, gpu: GpuConstants, without: int | None, sending: bool = True
) -> tuple[float, float, float]:
    """(clocks of the SM that ends last, those if the blocks were spread evenly over the SMs that
    have any, those if the units' work were spread over all SMs). sending: its path to L2 counts.
    """
    chain, units = _chain(work, without), _units(work, without)
    units[:, SEND] *= sending
    most, resident = _most_blocks(work, gpu)
    full, rest = divmod(most, resident)
    uneven, share = work.shape.uneven, work.shape.blocks / gpu.sms
    evenly = max(share, 1.0) / resident * _round(work, chain, units, resident)
    spread = evenly if share >= 1 else _round(work, chain, share * units, 1)
    chain, units = uneven.chain * chain, uneven.busy * units
    clocks = full * _round(work, chain, units, resident) + _round(work, chain, units, rest)
    used = min(clocks, evenly)
    return clocks, used, min(used, spread)


def _most_blocks(work: LaunchWork, gpu: GpuConstants) -> tuple[int, int]:
    """(blocks of the SM that has most, how many of them at a time)."""
    most = -(-work.shape.blocks // gpu.sms)
    return most, min(work.resident, most)


def _start_clocks(work: LaunchWork, gpu: GpuConstants) -> tuple[float, float]:
    """(clocks until the first blocks work, clocks of an SM between blocks that follow others)."""
    most, resident = _most_blocks(work, gpu)
    return gpu.start_clocks, (-(-most // resident) - 1) * gpu.start_clocks / resident


def dealing_us(work: LaunchWork, gpu: GpuConstants) -> float:
    """Microseconds in which the blocks of a grid are dealt out to SMs, whatever they do."""
    return work.shape.blocks * DEALING_CLOCKS * 1e6 / gpu.hz


def bounds_of(work: LaunchWork, gpu: GpuConstants, without: int | None) -> dict[str, float]:
    """Bound -> microseconds of the launch by it alone."""
    return _bounds(work, gpu, without)[0]


def _bounds(
    work: LaunchWork, gpu: GpuConstants, without: int | None
) -> tuple[dict[str, float], float]:
    """(bounds_of, clocks of the SM that ends last)."""
    us_of_clock = 1e6 / gpu.hz
    most, resident = _most_blocks(work, gpu)
    units = _units(work, without).sum(0) * work.shape.blocks / gpu.sms * us_of_clock
    found = {NAMES[unit]: float(us) for unit, us in zip(UNITS, units, strict=True)}
    found["L2"] = _kept(work.l2_bytes, without) / gpu.l2_gbps / 1e3
    found["DRAM"] = _kept(work.dram_bytes, without) / gpu.dram_gbps / 1e3
    found[FABRIC_NAME] = _kept(work.fabric_bytes, without) / (FABRIC * gpu.l2_gbps) / 1e3
    found["atomics"] = _kept(work.atomic_ns, without) / 1e3
    chain = _chain(work, without).sum() * us_of_clock
    found["latency"] = float(chain * max(1.0, most / resident))
    starts = max(sum(_start_clocks(work, gpu)) * us_of_clock, dealing_us(work, gpu))
    found["launch and starts"] = gpu.launch_us + starts
    last, used, even = _sm_clocks(work, gpu, without)
    found[TAIL], found[FEW] = (last - used) * us_of_clock, (used - even) * us_of_clock
    return {name: float(us) for name, us in found.items()}, last


def sharpness_of(longest_us: float) -> float:
    """Return how sharply L2, DRAM and an SM overlap in a launch of one round."""
    return float(np.interp(longest_us, SHORT_US, (SHORT, SHARPNESS)))


def _kept(by_line: dict[int, float], without: int | None) -> float:
    return sum(amount for line, amount in by_line.items() if line != without)


def time_of(work: LaunchWork, gpu: GpuConstants, without: int | None) -> float:
    """Microseconds of the launch; without: leave out what this source line does."""
    (bounds, sent), us_of_clock = _bounds(work, gpu, without), 1e6 / gpu.hz
    unsent, *_ = _sm_clocks(work, gpu, without, sending=False)
    first, between = _start_clocks(work, gpu)
    dram = max(bounds["DRAM"], bounds[FABRIC_NAME])
    in_l2 = max(bounds["L2"], bounds["atomics"])  # what an SM sends is what L2 takes
    on_sm, alone = ((clocks + between) * us_of_clock for clocks in (sent, unsent))
    most, resident = _most_blocks(work, gpu)
    sharpness = sharpness_of(max(on_sm, in_l2, dram)) if most <= resident else SHARPNESS
    both = partial(smooth_max, sharpness=sharpness)
    body = max(both(on_sm, dram), both(alone, in_l2, dram))
    return float(gpu.launch_us + smooth_max(first * us_of_clock + body, dealing_us(work, gpu)))
