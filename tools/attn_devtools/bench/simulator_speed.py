"""`attn-course bench simulator`: how fast the simulator runs here, in lane-instructions a second.

A lane-instruction is one PTX instruction executed by one thread.
"""

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import numpy as np
from kernelscope import Counters, observe
from kernelscope.cli.arguments import printer, write_json
from tqdm import tqdm

from attn_course.figures import table
from attn_course.folders import course_folder
from attn_course.ladder.call import call_steps
from attn_course.ladder.steps import Problem, step
from attn_course.measure.records import CPU_FOLDER

NUMBA_RECORD = course_folder("kernelscope/results") / CPU_FOLDER / "numba_simulator.json"


@dataclass(frozen=True)
class SpeedCase:
    """One timed kernel: a ladder step, its (BH, n, d) and compiler options."""

    name: str
    step: int
    bh: int
    n: int
    d: int
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class SpeedTiming:
    """A case's result. shape: (BH, n, d); seconds: median of the repeats; instructions:
    lane-instructions a launch."""

    name: str
    shape: tuple[int, int, int]
    seconds: float
    fastest: float
    slowest: float
    instructions: int

    @property
    def per_second(self) -> float:
        return self.instructions / self.seconds


CASES = (
    SpeedCase("01_scores_naive", 1, 24, 196, 64),
    SpeedCase("02_scores_tiled TILE=16", 2, 24, 196, 64, ("-DTILE=16",)),
    # The shape that Numba's CUDA simulator was timed on.
    SpeedCase("02_scores_tiled TILE=16, one head", 2, 1, 128, 64, ("-DTILE=16",)),
)
AGAINST_NUMBA = CASES[2].name


def run(repeats: int, json_path: Path | None) -> int:
    """Time every case, print the table and write the JSON. Returns the exit status, 0."""
    with tqdm(CASES, unit="case", disable=None, leave=False) as cases:
        timings = [measure(case, repeats) for case in cases]
    printer(json_path)(report(timings))
    cases = [asdict(t) | {"lane_instructions_per_second": t.per_second} for t in timings]
    when = {"machine": machine(), "date": date.today().isoformat(), "repeats": repeats}
    write_json(json_path, when | {"cases": cases})
    return 0


def machine() -> str:
    """The processor and the versions that a time depends on."""
    cpus = Path("/proc/cpuinfo")
    lines = cpus.read_text().splitlines() if cpus.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if "model name" in line]
    return (
        f"{names[0] if names else platform.machine()}, {len(names) or 1} cores, "
        f"Python {platform.python_version()}, NumPy {np.__version__}"
    )


def prepare(case: SpeedCase, bh: int) -> Callable[[], None]:
    """Return a call that launches the case's kernel once over `bh` heads of random input."""
    row, problem = step(case.step), Problem(bh, case.n, case.n, case.d)
    rng = np.random.default_rng(0)
    arrays = {name: rng.standard_normal(problem.shape(name), dtype=np.float32) for name in "qks"}
    how = {"problem": problem, "backend": "simulator", "options": case.options}
    return call_steps([row], arrays, 1.0, **how).run


def count_instructions(case: SpeedCase) -> int:
    """Lane-instructions of one launch: counted over one head, as every head does the same."""
    call = prepare(case, 1)
    with observe(Counters()) as seen:
        call()
    return seen.totals["thread_instructions"] * case.bh


def measure(case: SpeedCase, repeats: int) -> SpeedTiming:
    """Median, fastest and slowest of `repeats` launches after one that warms up."""
    call, seconds = prepare(case, case.bh), []
    call()
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    shape, middle = (case.bh, case.n, case.d), statistics.median(seconds)
    spread = min(seconds), max(seconds)
    return SpeedTiming(case.name, shape, middle, *spread, count_instructions(case))


def report(timings: list[SpeedTiming]) -> str:
    """The table for people, with the ratio to Numba's simulator where its time is recorded."""
    rows = [
        (
            t.name,
            str(t.shape),
            f"{t.seconds:.4g}",
            f"{t.fastest:.4g} to {t.slowest:.4g}",
            f"{t.instructions / 1e6:,.1f}",
            f"{t.per_second / 1e6:,.0f}",
        )
        for t in timings
    ]
    heads = "kernel on the simulator|(BH, n, d)|seconds|range|M lane-instructions|M a second"
    lines = [machine(), table(heads.split("|"), rows, right=(2, 4, 5))]
    ours = {t.name: t for t in timings}.get(AGAINST_NUMBA)
    if ours and NUMBA_RECORD.is_file():
        record = json.loads(NUMBA_RECORD.read_text(encoding="utf-8"))
        lines.append(
            f"{AGAINST_NUMBA}: {record['seconds'] / ours.seconds:,.0f}x faster than Numba's CUDA "
            f"simulator ({record['seconds']:.3g} s, recorded {record['date']} on "
            f"{record['machine']})"
        )
    return "\n".join(lines)
