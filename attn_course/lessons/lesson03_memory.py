"""What lesson 03 counts, and what it says of the times: sentences made from a record's figures.

Nothing here holds a figure of its own: the same functions describe any record of
:mod:`attn_course.measure.hardware.memory_levels`, whichever way it turns out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attn_course.engine.events import observe
from attn_course.engine.watch.counters.counters import Counters
from attn_course.engine.watch.footprints import LineLookups
from attn_course.figures import memory as memory_plots
from attn_course.ladder.call import run_steps
from attn_course.ladder.steps import step
from attn_course.measure.hardware import memory_levels
from attn_course.measure.records import measured_or_recorded, no_record

NO_RECORD = no_record("memory")
ALIKE = 0.03  # times that differ by less are called equal


@dataclass(frozen=True)
class Counted:
    """One build of a score kernel, counted. scores: (BH, n, m); lookups: 128-byte lines."""

    seen: Counters
    lookups: int
    scores: np.ndarray

    @property
    def shared_passes(self) -> int:
        """Wavefronts of all shared loads and stores."""
        totals = self.seen.totals
        return totals["shared_load_wavefronts"] + totals["shared_store_wavefronts"]

    @property
    def passes(self) -> int:
        """Turns that L1 and shared memory take in all: wavefronts, and lines looked up."""
        return self.shared_passes + self.lookups


def count(number: int, q: np.ndarray, k: np.ndarray, options: tuple[str, ...] = ()) -> Counted:
    """Run a score kernel on the simulator and count. q (BH, n, d), k (BH, m, d) float32."""
    with observe(Counters()) as seen, observe(LineLookups()) as lookups:
        found = run_steps(
            [step(number)], {"q": q, "k": k}, 1.0, backend="simulator", options=options
        )
    return Counted(seen, lookups.total, found["s"])


def layout_options(k_tile: int, pad: int, tile: int = 32) -> tuple[str, ...]:
    """The compiler options of one build of kernel 02."""
    return memory_levels.score_variants()[memory_levels.variant_name(k_tile, pad, tile)][1]


def times() -> dict | None:
    """Return a record of the times: measured now on a GPU, else the newest; None: no record."""
    return measured_or_recorded(memory_levels.KIND, memory_levels.record)


def predicted_us(passes: float, record: dict) -> float:
    """The time that so many turns of L1 take at least, shared evenly by all multiprocessors."""
    return passes / record["multiprocessors"] / memory_levels.clock_mhz(record)


def ratio(record: dict, slow: tuple[int, int], fast: tuple[int, int], tile: int = 32) -> float:
    """How many times longer one (K_TILE, PAD) of kernel 02 takes than another."""
    found = memory_levels.medians_us(record)
    return (
        found[memory_levels.variant_name(*slow, tile)]
        / found[memory_levels.variant_name(*fast, tile)]
    )


def compared(name: str, other: str, value: float) -> str:
    """'A takes 1.5 times as long as B', from the time of A over the time of B."""
    if abs(value - 1) <= ALIKE:
        return f"{name} and {other} take the same time (ratio {value:.2f})"
    if value > 1:
        return f"{name} takes {value:.2f} times as long as {other}"
    return f"{name} takes {value:.2f} of the time of {other}"


def layout_sentences(record: dict, tile: int = 32) -> list[str]:
    """What the times say of the three layouts and of padding."""
    pairs = {
        "storing the tile [tx][ty]": ((1, 0), (0, 0)),
        "padding it": ((1, 1), (1, 0)),
        "reading along rows": ((2, 1), (0, 0)),
        "reading along rows without padding": ((2, 0), (2, 1)),
    }
    said = [
        f"{what}: " + compared(_layout(a), _layout(b), ratio(record, a, b, tile))
        for what, (a, b) in pairs.items()
    ]
    found = memory_levels.medians_us(record)
    names = [name for name in found if name.startswith(f"02 TILE={tile} ")]
    best, worst = min(names, key=found.get), max(names, key=found.get)
    return [*said, f"fastest: {best}; slowest: {worst}"]


def _layout(pair: tuple[int, int]) -> str:
    return f"K_TILE {pair[0]} PAD {pair[1]}"


def level_table(record: dict) -> list[tuple[str, ...]]:
    """A row a level: name, clocks a load, times shared's, GB/s, and shared's over it."""
    found = memory_levels.levels(record)
    shared = found["shared"]
    return [
        (
            name,
            f"{one['clocks']:.0f}",
            f"{one['clocks'] / shared['clocks']:.1f}",
            f"{one['gb_per_s']:,.0f}",
            f"{shared['gb_per_s'] / one['gb_per_s']:.1f}",
        )
        for name, one in found.items()
    ]


def latency_verdicts(record: dict) -> list[str]:
    """The three claims about shared memory beside what was measured."""
    found = memory_levels.levels(record)
    shared, device = found["shared"], found["device"]
    rows = (
        ("shared memory takes about 5 clocks", 5, shared["clocks"], "clocks"),
        ("global memory takes about 400 clocks", 400, device["clocks"], "clocks"),
        (
            "shared memory is 100 times faster: latency",
            100,
            device["clocks"] / shared["clocks"],
            "times",
        ),
        (
            "shared memory is 100 times faster: bandwidth",
            100,
            shared["gb_per_s"] / device["gb_per_s"],
            "times",
        ),
    )
    return [
        f"{claim}: measured {value:.1f} {unit}, {judged(claimed, value)}"
        for claim, claimed, value, unit in rows
    ]


def judged(claimed: float, measured: float) -> str:
    """How far a claimed figure is from the measured one, in words."""
    factor = max(claimed / measured, measured / claimed)
    if factor <= 1.25:
        return "holds"
    side = "too much" if claimed > measured else "too little"
    return f"claimed {factor:.1f} times {side}"


def latency_figure(record: dict | None):
    """The stair of latencies, a matplotlib Figure; None without a record."""
    if record is None:
        return None
    chains = [one for one in record["latencies"] if one["space"] == "global"]
    return memory_plots.latency_by_size(
        [one["bytes"] for one in chains],
        [one["clocks"] for one in chains],
        shared_clocks=memory_levels.levels(record)["shared"]["clocks"],
        marks={"size of L2": record["l2_bytes"]},
        source=f"{record['gpu']}, {record['date']}",
        title="Each load waits for the one before",
    )


def traffic_figure(counted: dict[str, Counted], record: dict | None, times_of: int = 1):
    """Turns of every kernel and, with a record, its time beside them; a matplotlib Figure.

    counted: name, as in the record -> counts; times_of: what to multiply the counts by.
    """
    parts = {
        "shared wavefronts": [times_of * one.shared_passes / 1e6 for one in counted.values()],
        "lines looked up": [times_of * one.lookups / 1e6 for one in counted.values()],
    }
    found = memory_levels.medians_us(record) if record else {}
    return memory_plots.passes_and_times(
        list(counted),
        parts,
        [found[name] for name in counted] if record else None,
        passes_unit="turns of L1, millions",
        source=f"{record['gpu']}, {record['date']}" if record else "",
        title="Counted without a GPU" + (", and timed on one" if record else ""),
    )
