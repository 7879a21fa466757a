"""Runs the experiments of the lesson on timing on this machine's GPU and records them.

    python tools/record_timing_lesson.py [FOLDER]

Writes FOLDER/<gpu>/first_calls.json, by default under results/. PyTorch takes part where it is
installed (the `peers` extra). About a minute.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # also where the package is not installed

from attn_course.measure import first_calls
from attn_course.measure import records as results
from attn_course.measure.timing import TimingError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, default=results.RESULTS_FOLDER, metavar="FOLDER"
    )
    arguments = parser.parse_args()
    try:
        path = results.write_record(first_calls.record(), "timing_lesson", arguments.folder)
    except TimingError as error:
        print(f"record_timing_lesson: {error}", file=sys.stderr)
        return 2
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
