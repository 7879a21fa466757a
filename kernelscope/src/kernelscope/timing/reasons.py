"""Why a bound is long: the line with most of it, what that asks for, and what may shorten it."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from .bounds import (
    FABRIC_NAME,
    FEW,
    FEWER_BLOCKS,
    FEWER_BYTES,
    FEWER_LAUNCHES,
    KEEP,
    NAMES,
    TRY,
)
from .gpus import GpuConstants
from .memory.caches import SECTOR_BYTES
from .memory.traffic import Traffic, kept_bytes
from .work import UNITS, LaunchWork

MOST = 0.3  # share of a bound, from which on its line is named
# ... of those of DRAM, whose bytes the model takes to be of the lines that L2's are of.
MOST_OF_DRAM = 0.9
CONFLICTS = 0.3  # of the wavefronts of shared memory: more are worth a word
LEAST = 0.01  # of the sectors that L1 has, of wavefronts for conflicts: less is not said
HALF = 0.5  # of the bytes of a sector: less is worth a word; of the sectors that L1 lacks
AGAIN = 1.5  # times the distinct bytes: as many or more are loaded again
SIDE_BY_SIDE = "let neighbouring lanes take neighbouring words"
BANKS = "let the words of a warp lie in different banks: pad the rows, or swizzle"
MORE_WARPS = "more warps on an SM"
MORE_LOADS = "more loads of a warp before the first is used"
SHORTER = "shorter chains of what waits for each other"
_DRAM = ("DRAM", FABRIC_NAME)
_BEYOND_L1 = ("L2", *_DRAM, "L2 to an SM", "an SM to L2")
_BY_ACCESS = (*_BEYOND_L1, NAMES["memory"], "latency")
_PLURALS = {"load": "loads", "store": "stores", "atomic": "atomics", "copy": "async copies"}


def reasons(work: LaunchWork, gpu: GpuConstants, name: str) -> tuple[list[str], str]:
    """Return (what a bound of a launch comes from, a sentence each; what to try)."""
    by_line, traffic = _by_line(work, name), work.traffic
    everything, line = sum(by_line.values()), max(by_line, key=by_line.get, default=0)
    advice = _advice(work, gpu, name, line)
    if not line:
        return [], advice
    share = by_line[line] / everything
    if share < (MOST_OF_DRAM if name in _DRAM else MOST):
        found = [f"{name}: of several lines"]
    else:
        found = [f"{name}: {share:.0%} of it by line {line}"]
        for said, better in _accesses(traffic, line, name) if name in _BY_ACCESS else ():
            found.append(said)
            advice = better or advice
    if name in _DRAM:
        found.append(_moved(work, gpu))
    return found, advice


def _by_line(work: LaunchWork, name: str) -> dict[int, float]:
    """Source line -> its part of a bound, in the bound's own unit; none of what has no lines."""
    by_name = {
        "L2": work.l2_bytes,
        "DRAM": work.dram_bytes,
        FABRIC_NAME: work.fabric_bytes,
        "atomics": work.atomic_ns,
    }
    found: defaultdict[int, float] = defaultdict(float, by_name.get(name, {}))
    if name == "latency":
        found.update(sum(map(Counter, work.chain), Counter()))
    for column, unit in enumerate(UNITS):
        if NAMES[unit] == name:
            for line, clocks in zip(work.line.tolist(), work.clocks[:, column], strict=True):
                found[line] += float(clocks)
    return {line: amount for line, amount in found.items() if amount}


def _advice(work: LaunchWork, gpu: GpuConstants, name: str, line: int) -> str:
    """What may shorten a bound, whatever its accesses are like."""
    traffic = work.traffic
    if name in ("L2", "L2 to an SM"):
        loaded = sum(n for (_, kind), n in traffic.missing.items() if "load" in kind)
        distinct = work.reuse.read + work.reuse.lone_read
        return KEEP if SECTOR_BYTES * loaded >= AGAIN * distinct else FEWER_BYTES
    of_sm = -(-work.shape.blocks // gpu.sms)
    if name == "launch and starts":
        return f"{FEWER_LAUNCHES}, or {FEWER_BLOCKS}" if of_sm > 1 else FEWER_LAUNCHES
    if name != "latency":
        return TRY[name]
    few = [TRY[FEW]] if work.shape.blocks < gpu.sms else []
    room = [MORE_WARPS] if min(work.resident, of_sm) * work.shape.warps < gpu.warps else []
    loads = any("load" in kind for at, kind in traffic.requests if at == line)
    return ", or ".join([*(few or room), MORE_LOADS if loads else SHORTER])


def _accesses(traffic: Traffic, line: int, name: str) -> Iterator[tuple[str, str]]:
    """(what a line's loads, stores and atomics ask for, what to do about it or "")."""
    for (at, kind), requests in traffic.requests.items():
        if at != line or not requests or kind.startswith("constant"):
            continue
        key, what = (line, kind), _PLURALS[kind.split()[-1]]
        if not kind.startswith("shared"):
            yield from _of_global(traffic, key, what, name)
        elif name not in _BEYOND_L1:
            passes = traffic.per_request(*key)
            said = f"its {what} of shared memory take {_count(passes, 'wavefront')} each"
            if what == "atomics":
                yield said, TRY["atomics"] if name != "latency" else ""
                continue
            conflicts = traffic.conflicts[key] / traffic.passes[key]
            advice = BANKS if conflicts >= CONFLICTS and name != "latency" else ""
            if conflicts >= LEAST:
                said += f", {conflicts:.0%} of them for conflicts of banks"
            yield said, advice


def _of_global(
    traffic: Traffic, key: tuple[int, str], what: str, name: str
) -> Iterator[tuple[str, str]]:
    """The same of one kind of access to global memory; none that stays in the cluster."""
    requests, sectors = traffic.requests[key], traffic.sectors[key]
    if not sectors:
        return
    if what == "atomics":
        of_line = sum(n for (at, _), n in traffic.sectors.items() if at == key[0])
        advice = TRY["atomics"] if name == "L2" and sectors > HALF * of_line else ""
        yield f"its atomics are {_count(sectors / requests, 'operation')} of L2 each", advice
        return
    lines, used = traffic.lines[key] / requests, traffic.used[key] / (SECTOR_BYTES * sectors)
    missing = traffic.missing[key] / sectors
    said = (
        f"its {what} ask for {_count(lines, 'line')} each, and use {SECTOR_BYTES * used:.0f} of "
        f"the {SECTOR_BYTES} bytes of a sector"
    )
    if what != "stores" and missing < 1 - LEAST:
        said += f"; L1 has {1 - missing:.0%} of these"
    # Of what L1 has there is no less to move, and a single sector is what a request needs.
    apart = used < HALF and sectors >= 2 * requests and name != "latency"
    yield said, SIDE_BY_SIDE if apart and (missing >= HALF or name not in _BEYOND_L1) else ""


def _moved(work: LaunchWork, gpu: GpuConstants) -> str:
    """The bytes that DRAM moves, but for those that L2 keeps."""
    reuse = work.reuse
    read, written = reuse.read + reuse.lone_read, reuse.written + reuse.lone_written
    said = f"{read / 1e6:.3g} MB read, {written / 1e6:.3g} MB written"
    again = reuse.again + work.traffic.lost_bytes
    if again:
        said += f", {again / 1e6:.3g} MB read again"
    if reuse.refilled:
        said += "; sectors that stores fill in part are read, too"
    return f"{said}; L2 keeps {kept_bytes(gpu) / 1e6:.0f} MB from launch to launch"


def _count(number: float, what: str) -> str:
    """'1 line', '2.5 lines'."""
    return f"{number:.3g} {what}" + "s" * (f"{number:.3g}" != "1")
