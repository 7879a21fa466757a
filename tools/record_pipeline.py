"""Times the kernels of the pipelines on this machine's GPU, alone and together, and records them.

    python tools/record_pipeline.py [FOLDER]

Writes FOLDER/<gpu>/pipeline.json, by default under results/. PyTorch takes part where it is
installed (the `peers` extra). Less than a minute.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # also where the package is not installed

from attn_course.figures import table
from attn_course.measure import pipeline_times
from attn_course.measure import records as results
from attn_course.measure.timing import TimingError


def report(record: dict) -> str:
    """Every time of a record, shape by shape, and where it was taken."""
    parts = []
    for row in record["rows"]:
        heads = (",".join(map(str, row["shape"])), "us", "20 %", "80 %")
        cells = [
            (name, *(f"{timing[key]:.2f}" for key in ("median_us", "p20_us", "p80_us")))
            for group in ("kernels", "pipelines")
            for name, timing in row[group].items()
        ]
        parts.append(table(heads, cells, (1, 2, 3)))
    return "\n\n".join([*parts, results.caption(record)])


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, default=results.RESULTS_FOLDER, metavar="FOLDER"
    )
    parsed = parser.parse_args(arguments)
    try:
        record = pipeline_times.record()
    except TimingError as error:
        print(f"record_pipeline: {error}", file=sys.stderr)
        return 2
    path = results.write_record(record, "pipeline", parsed.folder)
    print(report(record))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
