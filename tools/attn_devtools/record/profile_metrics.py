"""The record `profile`: Nsight Compute's metrics of lesson 13's launches."""

from attn_course.figures import table
from attn_course.lessons.lesson13_profile import (
    KIND,
    LARGE,
    LIMITS,
    TARGETS,
    case_of,
    metric,
    shown,
    time_us,
)
from attn_course.measure.hardware.nsight import PROFILING, SPEED_METRICS
from attn_course.measure.records import new_record

from ..profile.ncu import collect, stalls

EXTRA = (
    "sm__throughput.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "sm__cycles_active.avg",
    "sm__cycles_elapsed.max",
    "l1tex__throughput.avg.pct_of_peak_sustained_elapsed",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "smsp__warps_eligible.avg.per_cycle_active",
    "l1tex__t_sector_hit_rate.pct",
    "lts__t_sector_hit_rate.pct",
)
# Metrics that ncu reports of every launch, unasked.
UNASKED = (
    *LIMITS,
    "launch__sm_count",
    "launch__waves_per_multiprocessor",
    "launch__registers_per_thread",
    "device__attribute_clock_rate",
)


def record(quick: bool = False) -> dict:
    """Return a record of kind KIND: ncu's metrics for every target; quick: for the first alone.

    Needs a GPU and ncu.
    """
    targets = TARGETS[:1] if quick else (*TARGETS, *LARGE.values())
    metrics = (*PROFILING, *EXTRA)
    cases = []
    for target, profile in zip(targets, collect(targets, metrics), strict=True):
        kept = dict.fromkeys((*metrics, *UNASKED))
        found = {name: profile.metrics[name] for name in kept if name in profile.metrics}
        cases.append(profile.case(target) | {"label": target.label, "metrics": found})
    return new_record(KIND, {case["file"] for case in cases}, cases=cases)


def report(record: dict) -> str:
    """Return a record as a table: times, % of peak, and the two longest stalls."""
    units = ("SM", "L1", "L2", "DRAM")
    rows = []
    named = {one.label: one for one in TARGETS}
    for name, target in (named | {f"{name}, large": one for name, one in LARGE.items()}).items():
        case = case_of(record, target)
        longest = stalls(case["metrics"])[:2] if case else ()
        percent = [shown(metric(target, SPEED_METRICS[unit], record)) for unit in units]
        waits = ", ".join(f"{stall} {cycles:.1f}" for stall, cycles in longest)
        rows.append((name, shown(time_us(record, target), ",.1f"), *percent, waits))
    heads = ("kernel", "us", *units, "longest stalls, clocks an instruction")
    return table(heads, rows, (1, 2, 3, 4, 5))
