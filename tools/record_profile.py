"""Profiles kernels 01 to 06 for lesson 13, on a machine with a GPU and ncu.

    PYTHONPATH=. python3 tools/record_profile.py [--results FOLDER]

Speed of light, occupancy, cache hits and stall reasons at one shape, and for kernel 02 in its
other layouts as well; written to results/<gpu>/profile_lesson.json.
"""

import argparse
import sys
from pathlib import Path

from attn_course.figures import table
from attn_course.lessons import lesson13_profile
from attn_course.measure.nsight import ProfilerError
from attn_course.measure.records import RESULTS_FOLDER, caption, write_record


def report(record: dict) -> str:
    rows = []
    for target in lesson13_profile.TARGETS:
        light = lesson13_profile.speed_of_light(record, target)
        waits = list(lesson13_profile.waits(record, target).items())[:2]
        rows.append(
            (
                target.label,
                lesson13_profile.shown(lesson13_profile.time_us(record, target), ".1f"),
                *(
                    lesson13_profile.shown(light.get(unit), ".0f")
                    for unit in lesson13_profile.UNITS
                ),
                ", ".join(f"{name} {clocks:.1f}" for name, clocks in waits),
            )
        )
    heads = ("kernel", "us", *lesson13_profile.UNITS, "what warps wait for, clocks an instruction")
    return table(heads, rows, (1, 2, 3, 4, 5)) + f"\n\n{caption(record)}"


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--results",
        type=Path,
        default=RESULTS_FOLDER,
        metavar="FOLDER",
        help="where records are kept (default: results/)",
    )
    parsed = parser.parse_args(arguments)
    try:
        record = lesson13_profile.measure()
    except ProfilerError as error:
        print(error, file=sys.stderr)
        return 1
    path = write_record(record, lesson13_profile.KIND, parsed.results)
    print(report(record))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
