"""Times kernels 12 and 19 without one idea at a time on this machine's GPU.

    python tools/record_ablations.py [FOLDER]

Writes FOLDER/<gpu>/ablations.json, by default under results/. All variants are compiled with the
tiles that the tuning gives, held against float64, then timed in turns as graph replays. A few
minutes, most of them compiling.
"""

import argparse
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # also where the package is not installed

from attn_course.measure import ablations, records
from attn_course.measure.ablations import PROBLEMS, all_variants, options_for
from attn_course.measure.suites import shape_label
from attn_course.measure.timing import TimingError, require_gpu


def compile_one(wanted: tuple[str, str, tuple[str, ...]]) -> None:
    """Puts one kernel into CuPy's cache of compiled kernels."""
    kernel, name, options = wanted
    one = next(one for one in all_variants() if (one.kernel, one.name) == (kernel, name))
    ablations.compiled(one, options, "gpu").attributes  # noqa: B018


def wanted(device=None) -> list[tuple[str, str, tuple[str, ...]]]:
    """Kernel, name and compiler options of everything that is timed, each once."""
    return sorted(
        {
            (one.kernel, one.name, options_for(one, shape, causal, device))
            for one in all_variants()
            for shape, causal in PROBLEMS
        }
    )


def compile_all() -> int:
    """Compiles every variant in as many processes as there are cores; how many there are."""
    require_gpu()
    found = wanted(ablations.current_device("gpu"))
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_one, found))
    return len(found)


def show(found: dict) -> None:
    """Print each problem's times, and the ratios to the whole kernel's."""
    for row in found["rows"]:
        print(shape_label(row["shape"], row["causal"]))
        for name, one in row["variants"].items():
            ratio = one.get("over_whole", {"value": float("nan")})
            print(
                f"  {name:<32} {one['median_us']:10.2f} us  {ratio['value']:6.3f} of the whole  "
                f"{one['registers']:3} registers, {one['local_bytes']} bytes spilled"
            )
        for message in row["wrong"].values():
            print(f"  WRONG: {message}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, default=records.RESULTS_FOLDER, metavar="FOLDER"
    )
    arguments = parser.parse_args()
    try:
        print(f"{compile_all()} kernels compiled")
        found = ablations.record()
    except TimingError as error:
        print(f"record_ablations: {error}", file=sys.stderr)
        return 2
    show(found)
    print(f"written to {records.write_record(found, ablations.KIND, arguments.folder)}")
    return 1 if any(row["wrong"] for row in found["rows"]) else 0


if __name__ == "__main__":
    sys.exit(main())
