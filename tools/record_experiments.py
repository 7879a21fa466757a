"""Times the single-kernel methods and the attempts beside them on this machine's GPU.

    python tools/record_experiments.py [FOLDER]

Writes FOLDER/<gpu>/experiments.json, by default under results/. Kernels 07 to 12, 19 and
every experiment on large head dimensions, and kernel 11 with several tiles: each checked against
float64, then timed in turns as graph replays. Less than a minute.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # also where the package is not installed

from attn_course.measure import experiments, records
from attn_course.measure.timing import TimingError


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, default=records.RESULTS_FOLDER, metavar="FOLDER"
    )
    arguments = parser.parse_args()
    try:
        found = experiments.record()
    except TimingError as error:
        print(f"record_experiments: {error}", file=sys.stderr)
        return 2
    for row in (*found["rows"], found["tiles"]):
        print(",".join(map(str, row["shape"])))
        for name, one in row["contestants"].items():
            print(
                f"  {name:<30} {one['median_us']:10.2f} us  {one['registers']:3} registers, "
                f"{one['blocks']} blocks, {one['resident_blocks']} on an SM"
            )
        for name, reason in row["refused"].items():
            print(f"  {name:<30} refused: {reason}")
        for message in row["wrong"].values():
            print(f"  WRONG: {message}")
    print(f"written to {records.write_record(found, 'experiments', arguments.folder)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
