"""Times and counters of the time model's held-out kernels on a GPU, for the judgement.

    python -m attn_devtools.held_out_times FOLDER TIMES.json [--seconds N]

FOLDER is one of the sets in kernelscope/tests/timing, such as held_out_twelfth. TIMES.json is
what kernelscope/tools/time_model.py judges: the median of replays of each kernel at each shape, and
what Nsight Compute says of how busy each unit was, where it may read counters. It is written after
each part; what N seconds do not suffice for is left out.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from kernelscope.differential.identity import checkout_commit, gpu_identity
from kernelscope.timing import replay_times

from attn_course.folders import checkout
from attn_course.ladder.problem import Geometry
from attn_course.measure.hardware.nsight import TIME

from .profile.ncu import ProfilerError, run_ncu

sys.path.insert(0, str(Path(__file__).parents[2] / "kernelscope/tools"))
from time_model import NCU_UNITS, HeldOut, held_out  # noqa: E402 - a tool, in no package

HOW = "CUDA graph of calls_a_sample launches, median of 15 replays, caches warm"
SAMPLES, SAMPLE_US, MOST_CALLS = 15, 1000.0, 100
AT_ONCE = 12  # cases whose arrays are made ahead, in threads
OF_AN_NCU_RUN = 36  # cases
OPTIONS = ("--cache-control", "none", "--profile-from-start", "off")


def with_arrays(cases: Sequence[HeldOut]) -> Iterator[tuple[HeldOut, tuple]]:
    """Every case with its arguments as arrays of CuPy."""
    import cupy

    with ThreadPoolExecutor(AT_ONCE) as pool:
        for first in range(0, len(cases), AT_ONCE):
            some = cases[first : first + AT_ONCE]
            for case, values in zip(some, pool.map(lambda c: c.values(np), some), strict=True):
                on_gpu = [cupy.asarray(v) if isinstance(v, np.ndarray) else v for v in values]
                yield case, tuple(on_gpu)
                del on_gpu
                cupy.get_default_memory_pool().free_all_blocks()


def timed(case: HeldOut, values: tuple) -> dict:
    """Return the row of a case: microseconds of a launch among others in a CUDA graph."""
    kernel = case.kernel("gpu")

    def call() -> None:
        kernel(case.grid, case.block, values)

    once = statistics.median(replay_times(call, 1, 3))
    calls = int(min(MOST_CALLS, max(1.0, SAMPLE_US // once)))
    taken = replay_times(call, calls, SAMPLES)
    return {
        "label": case.label,
        "median_us": statistics.median(taken),
        "fastest_us": min(taken),
        "slowest_us": max(taken),
        "calls_a_sample": calls,
    }


def launch_all(cases: Sequence[HeldOut]) -> None:
    """Launch every case twice, the second time for ncu to profile."""
    import cupy

    for case, values in with_arrays(cases):
        kernel = case.kernel("gpu")
        kernel(case.grid, case.block, values)
        cupy.cuda.Device().synchronize()
        cupy.cuda.profiler.start()
        kernel(case.grid, case.block, values)
        cupy.cuda.Device().synchronize()
        cupy.cuda.profiler.stop()


def profiled(cases: Sequence[HeldOut], metrics: Sequence[str]) -> list[dict[str, float]]:
    """Return ncu's metrics of some cases, in percent of what each unit can do at most."""
    launches = [Geometry(c.name, three(c.grid), three(c.block)) for c in cases]
    program = [sys.executable, "-m", "attn_devtools.held_out_times", cases[0].folder, "-"]
    program += ["--launch", *(case.label for case in cases)]
    found = run_ncu(program, launches, metrics, OPTIONS)
    return [{name: one.metrics[name] for name in metrics if name in one.metrics} for one in found]


def three(extents: tuple[int, ...]) -> tuple[int, int, int]:
    return (*extents, 1, 1)[:3]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder")
    parser.add_argument("times", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--launch", nargs="+", metavar="LABEL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    cases = list(held_out(arguments.folder))
    if arguments.launch:
        launch_all([case for case in cases if case.label in arguments.launch])
    else:
        measure(cases, arguments.times, time.monotonic() + arguments.seconds)


def measure(cases: Sequence[HeldOut], path: Path, end: float) -> None:
    """Write the record of all cases. end: of the time that there is, by time.monotonic()."""
    stamp = {"date": time.strftime("%Y-%m-%d"), "commit": checkout_commit(checkout())}
    rows: list[dict] = []
    record = gpu_identity() | stamp | {"folder": cases[0].folder, "how": HOW, "rows": rows}
    done = []
    for case, values in with_arrays(cases):
        if time.monotonic() > end:
            break
        try:
            rows.append(timed(case, values))
            done.append(case)
        except Exception as error:  # of the driver or the compiler: the others go on
            print(case.label, error)
    path.write_text(json.dumps(record, indent=1) + "\n")
    for first, found in in_parts(done, end):
        for row, metrics in zip(rows[first:], found, strict=False):
            row["ncu"] = metrics
        path.write_text(json.dumps(record, indent=1) + "\n")


def in_parts(cases: Sequence[HeldOut], end: float) -> Iterator[tuple[int, list[dict]]]:
    """Yield (number of the first case, ncu's metrics) of some cases at a time.

    What ncu fails at is printed, and the other parts are profiled.
    """
    metrics = [metric for unit in NCU_UNITS.values() for metric in unit]
    try:
        metrics = measurable(cases[:1], metrics)
    except ProfilerError as error:
        print(error)
        return
    for first in range(0, len(cases), OF_AN_NCU_RUN):
        if time.monotonic() < end:
            try:
                yield first, profiled(cases[first : first + OF_AN_NCU_RUN], metrics)
            except ProfilerError as error:
                print(error)


def measurable(cases: Sequence[HeldOut], metrics: Sequence[str]) -> list[str]:
    """Return those of the metrics that ncu has a value of; ProfilerError where it has no time."""
    profiled(cases, [TIME])
    return _measurable(cases, metrics)


def _measurable(cases: Sequence[HeldOut], metrics: Sequence[str]) -> list[str]:
    """... where some may make ncu fail without its naming them: half of them at a time."""
    try:
        return [*profiled(cases, metrics)[0]]
    except ProfilerError as error:
        if len(metrics) == 1:
            print(metrics[0], error)
            return []
    half = len(metrics) // 2
    return _measurable(cases, metrics[:half]) + _measurable(cases, metrics[half:])


if __name__ == "__main__":
    main()
