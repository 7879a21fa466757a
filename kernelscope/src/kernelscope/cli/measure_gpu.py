"""`kernelscope measure-gpu`: the constants of this machine's GPU, for predictions of time."""

import json

from ..timing.gpus import CONSTANTS, DESCRIPTIONS
from .arguments import output_file
from .tables import table


def add(parsers) -> None:
    parser = parsers.add_parser(
        "measure-gpu",
        help="measure this machine's GPU for predictions of time",
        description="Runs small kernels on the GPU, in about ten seconds, and prints the constants "
        "that predictions of time are made from.",
    )
    parser.add_argument(
        "--out", metavar="FILE", type=output_file, help="write a JSON file for --gpu FILE"
    )


def execute(arguments) -> int:
    """Measure, print, write."""
    from ..timing.measure import measure_gpu

    record = measure_gpu()
    if arguments.json is None:
        print(report(record))
    text = json.dumps(record, indent=2) + "\n"
    if arguments.out:
        arguments.out.write_text(text, encoding="utf-8")
    return 0


def report(record: dict) -> str:
    """The constants as a table."""
    values = record["constants"]
    rows = [(name, f"{values[name]['value']:.5g}", DESCRIPTIONS[name]) for name in CONSTANTS]
    return f"{record['name']}\n\n" + table(("constant", "value", "meaning"), rows, right=(1,))
