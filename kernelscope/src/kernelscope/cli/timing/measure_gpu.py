"""`kernelscope measure-gpu`: the constants of this machine's GPU, for predictions of time."""

from ...timing import measure_gpu
from ...timing.gpus import CONSTANTS, DESCRIPTIONS
from ..arguments import printer, write_json
from ..tables import table


def add(parsers) -> None:
    parsers.add_parser(
        "measure-gpu",
        help="measure this machine's GPU, for predictions of time",
        description="Runs small kernels on the GPU for some seconds and prints the constants that "
        "times are predicted from. With --json FILE, `--gpu FILE` predicts for this GPU.",
    )


def execute(arguments) -> int:
    """Measure and report."""
    record = measure_gpu()
    printer(arguments.json)(report(record))
    write_json(arguments.json, record)
    return 0


def report(record: dict) -> str:
    """The constants as a table."""
    values = record["constants"]
    rows = [(name, f"{values[name]['value']:.5g}", DESCRIPTIONS[name]) for name in CONSTANTS]
    return f"{record['name']}\n\n" + table(("constant", "value", "meaning"), rows, right=(1,))
