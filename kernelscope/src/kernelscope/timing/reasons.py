"""Why a bound is long: the line with most of it, what that asks for, and what may shorten it."""

from collections import Counter, defaultdict
from collections.abc import Iterator

from .bounds import FABRIC_NAME, NAMES, TRY
from .memory.caches import SECTOR_BYTES
from .memory.traffic import Traffic
from .work import UNITS, LaunchWork

MOST = 0.3  # share of a bound, from which on its line is named
LEAST = 0.01  # of the sectors that L1 has: less is not said
HALF = 0.5  # of the bytes of a sector: less is worth a word; of the sectors of a line
CONFLICTS = 0.3  # of the wavefronts of shared memory: more are worth a word
SIDE_BY_SIDE = "let neighbouring lanes take neighbouring words"
BANKS = "let the words of a warp lie in different banks: pad the rows, or swizzle"
_BEYOND_L1 = ("L2", "DRAM", FABRIC_NAME, "L2 to an SM", "an SM to L2")
_BY_ACCESS = (*_BEYOND_L1, NAMES["memory"], "latency")
_PLURALS = {"load": "loads", "store": "stores", "atomic": "atomics", "copy": "async copies"}


def reasons(work: LaunchWork, name: str) -> list[str]:
    """Return what a bound of a launch comes from, and what to try, a sentence each."""
    by_line = _by_line(work, name)
    everything, line = sum(by_line.values()), max(by_line, key=by_line.get, default=0)
    found, advice = [], TRY[name]
    if line and by_line[line] >= MOST * everything:
        found.append(f"{name}: {by_line[line] / everything:.0%} of it by line {line}")
        if name in _BY_ACCESS and work.traffic is not None:
            for said, better in _accesses(work.traffic, line, name in _BEYOND_L1):
                found.append(said)
                advice = better or advice
    if name in ("DRAM", FABRIC_NAME) and work.reuse is not None:
        found.append(_moved(work))
    return [*found, f"to try: {advice}"]


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
    return found


def _accesses(traffic: Traffic, line: int, beyond_l1: bool) -> Iterator[tuple[str, str]]:
    """(what a line's loads, stores and atomics ask for, what to do about it or ""). beyond_l1: of
    global memory alone.
    """
    for (at, kind), requests in traffic.requests.items():
        if at != line or not requests or kind.startswith("constant"):
            continue
        what, passes = _PLURALS[kind.split()[-1]], traffic.per_request(line, kind)
        if kind.startswith("shared") and not beyond_l1:
            waves = f"{passes:.3g} wavefront{'s' * (passes != 1)}"
            conflicts = traffic.conflicts[line, kind] / traffic.passes[line, kind]
            yield (
                f"its {what} of shared memory take {waves} each, {conflicts:.0%} of them for "
                "conflicts of banks",
                BANKS if conflicts >= CONFLICTS and what != "atomics" else "",
            )
        elif what == "atomics":
            sectors = traffic.sectors[line, kind] / requests
            of_line = sum(n for (at, _), n in traffic.sectors.items() if at == line)
            yield (
                f"its atomics are {sectors:.3g} operation{'s' * (sectors != 1)} of L2 each",
                TRY["atomics"] if traffic.sectors[line, kind] > HALF * of_line else "",
            )
        elif lines := traffic.lines[line, kind] / requests:
            used = min(1.0, traffic.used[line, kind] / (SECTOR_BYTES * traffic.sectors[line, kind]))
            said = (
                f"its {what} ask for {lines:.3g} line{'s' * (lines != 1)} each, and use "
                f"{SECTOR_BYTES * used:.0f} of the {SECTOR_BYTES} bytes of a sector"
            )
            missing = traffic.missing[line, kind] / traffic.sectors[line, kind]
            if what != "stores" and missing < 1 - LEAST:
                said += f"; L1 has {1 - missing:.0%} of these"
            yield said, SIDE_BY_SIDE if used < HALF else ""


def _moved(work: LaunchWork) -> str:
    """The bytes of DRAM that a launch reads and writes, those that L2 keeps for the next too."""
    reuse = work.reuse
    parts = {
        "read": reuse.read + reuse.lone_read,
        "written": reuse.written + reuse.lone_written,
        "read again, after L2 had lost them": reuse.again,
    }
    said = ", ".join(f"{size / 1e6:.3g} MB {what}" for what, size in parts.items() if size)
    if reuse.refilled:
        said += "; sectors that stores fill in part are read besides"
    return f"in all: {said}"
