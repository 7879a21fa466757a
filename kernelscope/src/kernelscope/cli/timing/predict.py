"""`kernelscope predict FILE`: how long a launch takes on a GPU that is not here, and why."""

import argparse

from ...compile import requested_arch
from ...errors import BackendError
from ...events import observe
from ...timing import Time, names
from ..arguments import positive, printer, write_json
from ..call import file_call
from ..options import add_file


def add(parsers) -> None:
    parser = parsers.add_parser(
        "predict",
        help="how long it would take on a GPU, and what limits it",
        description="Runs some blocks of a kernel on the simulator and predicts the time of the "
        "launch on a GPU: each bound, and the time without each source line. `an SM to L2` and "
        "`L2 to an SM` are the ways between an SM's L1 and L2, `L2 to DRAM` is the one between "
        "the halves of L2, which all of DRAM's bytes cross. A .cu file is compiled for that GPU, "
        "unless --option=-arch=... names another architecture.",
    )
    add_file(parser)
    add_prediction(parser)


def add_prediction(parser: argparse.ArgumentParser) -> None:
    """--gpu and --blocks."""
    parser.add_argument(
        "--gpu",
        default="h200",
        metavar="NAME",
        help=f"one of {', '.join(names())}, or a file of measure-gpu (default h200)",
    )
    parser.add_argument(
        "--blocks",
        type=positive,
        default=64,
        metavar="N",
        help="run about so many blocks of the grid, which stand for all, or up to four times as "
        "many where their work differs (default 64)",
    )


def execute(arguments) -> int:
    """Predict one launch."""
    if arguments.backend == "gpu":
        raise BackendError("predict observes the simulator; on a GPU measure the time")
    time = Time(arguments.gpu, blocks=arguments.blocks)
    if str(arguments.file).endswith(".cu") and not requested_arch(tuple(arguments.option or ())):
        arguments.option = [*(arguments.option or ()), f"-arch={time.gpu.arch}"]
    call, say = file_call(arguments, backend="simulator"), printer(arguments.json)
    say(call.title, flush=True)
    with observe(time) as seen:
        call.run()
    say(f"\n{seen}")
    write_json(arguments.json, call.record() | {"launches": [p.record() for p in seen.launches]})
    return 0
