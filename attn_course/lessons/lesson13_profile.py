"""Lesson 13: counts predicted without a GPU, and access to recorded profiles.

Two kinds of records: "counters" (`attn-course record counters`: requests, sectors, wavefronts,
occupancy limits) and KIND (`attn-course record profile`: speed of light, stall reasons). Both
hold cases with `label`, `kernel`, `file`, `problem`, `options`, `grid`, `block` and `metrics`.
"""

from dataclasses import dataclass
from math import prod

from kernelscope import Counters, observe
from kernelscope.watch import LineLookups

from attn_course.ladder.call import compiled
from attn_course.ladder.headers import kernel_path
from attn_course.measure.hardware.nsight import TIME, CopyTarget, Target
from attn_course.measure.hardware.occupancy import Occupancy, compiled_registers, occupancy
from attn_course.measure.records import is_current

KIND = "profile_lesson"
PROBLEM = (24, 196, 196, 64)  # (BH, n, m, d)
LONG = (24, 2048, 2048, 64)
TARGETS = tuple(Target(number, PROBLEM) for number in range(1, 7)) + (
    Target(2, PROBLEM, ("-DK_TILE=0",)),
    Target(2, PROBLEM, ("-DK_TILE=1", "-DPAD=0")),
)
# Launches beyond the L2 cache, and launches with much to compute; too large for the simulator.
LARGE = {
    "copy": CopyTarget(1 << 24),
    "05_softmax_warp": Target(5, LONG),
    "10_flash_rows": Target(10, LONG),
    "11_flash_fp32": Target(11, LONG),
    "12_flash_async": Target(12, LONG),
}
# Metrics that ncu reports of every launch, unasked.
LIMITS = tuple(
    f"launch__occupancy_limit_{what}" for what in ("warps", "blocks", "registers", "shared_mem")
)


# -- the simulator's side --------------------------------------------------------------------------
@dataclass(frozen=True)
class Predicted:
    """One kernel at PROBLEM, from the simulator and the compiler.

    totals: the counters; blocks: of the grid; occupancy: of one SM of compute capability 9.0.
    wavefronts: of shared memory, and one for each 128-byte line that a global request touches.
    """

    totals: dict[str, int]
    wavefronts: int
    blocks: int
    registers: int
    occupancy: Occupancy


def predict_target(target: Target) -> Predicted:
    """Count a target on the simulator, and compile it for its registers. Needs no GPU."""
    with observe(Counters()) as seen, observe(LineLookups()) as lookups:
        target.run("simulator")
    totals, launch = seen.totals, target.launch
    shared = totals["shared_load_wavefronts"] + totals["shared_store_wavefronts"]
    registers = compiled_registers(target.file, launch.entry, target.options)
    fits = occupancy(prod(launch.block), registers, shared_bytes(target))
    return Predicted(totals, lookups.total + shared, prod(launch.grid), registers, fits)


def shared_bytes(target: Target) -> int:
    """Return the shared memory of a block in bytes, static and dynamic."""
    path, launch = kernel_path(target.file), target.launch
    kernel = compiled(path, target.options, entry=launch.entry, backend="simulator")
    return kernel.shared_size_bytes + launch.shared_bytes


# -- the hardware's side ---------------------------------------------------------------------------
def case_of(record: dict, target: Target | CopyTarget) -> dict | None:
    """Return the record's case for a target; None where there is none, or it is stale."""
    for case in record["cases"]:
        launched = case["file"], tuple(case["problem"]), tuple(case["options"])
        same = launched == (f"{target.file}.cu", target.problem, target.options)
        if same and is_current(record, case["file"]):
            return case
    return None


def metric(target: Target | CopyTarget, name: str, *records: dict) -> float | None:
    """Return a metric of a target's case from the first record that has it, or None."""
    for record in records:
        case = case_of(record, target)
        if case is not None and name in case["metrics"]:
            return case["metrics"][name]
    return None


def blocks_that_fit(target: Target, *records: dict) -> float | None:
    """Return the blocks that fit a multiprocessor by ncu: the smallest of four limits, or None."""
    limits = [metric(target, name, *records) for name in LIMITS]
    return None if None in limits else min(limits)


def time_us(record: dict, target: Target | CopyTarget) -> float | None:
    """Return the time of one launch under the profiler in microseconds, or None."""
    found = metric(target, TIME, record)
    return None if found is None else found / 1000


def counted(record: dict, target: Target, counter: str) -> float | None:
    """Return the hardware's count of one of our counters from a "counters" record, or None."""
    case = case_of(record, target)
    return None if case is None else case["counters"].get(counter, {}).get("hardware")


def shown(value: float | None, form: str = ",.0f") -> str:
    """Return a number as text for a table, '-' for None."""
    return "-" if value is None else format(value, form)
