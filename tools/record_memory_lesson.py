"""Times what lesson 03 predicts, on a machine with a GPU, and records it under results/<gpu>/.

    PYTHONPATH=. python3 tools/record_memory_lesson.py [--results FOLDER]

The score kernels 01, 02 in every layout and 03 take turns as graph replays; chains of dependent
loads give the latency of each level of memory, streams the bandwidth. Needs CuPy; takes less than
a minute. Every result is checked before its time counts.
"""

import argparse
import sys
from pathlib import Path

from attn_course.figures import table
from attn_course.measure import memory_levels
from attn_course.measure.records import RESULTS_FOLDER, write_record


def report(record: dict) -> str:
    scores = [
        (one["name"], f"{one['median_us']:.2f}", f"{one['p20_us']:.2f}", f"{one['p80_us']:.2f}")
        for one in record["scores"]["timings"]
    ]
    chains = [
        (one["space"], f"{one['bytes']:,}", f"{one['clocks']:.1f}", f"{one['nanoseconds']:.1f}")
        for one in record["latencies"]
    ]
    streams = [(one["level"], f"{one['gb_per_s']:,.0f}") for one in record["bandwidths"]]
    return "\n\n".join(
        [
            table(("scores", "median us", "20 %", "80 %"), scores, (1, 2, 3)),
            table(("chain in", "bytes", "clocks a load", "ns a load"), chains, (1, 2, 3)),
            table(("stream from", "GB/s"), streams, (1,)),
            f"clock {memory_levels.clock_mhz(record):.0f} MHz, {memory_levels.describe(record)}",
        ]
    )


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
    record = memory_levels.measure()
    path = write_record(record, memory_levels.KIND, parsed.results)
    print(report(record))
    print(f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
