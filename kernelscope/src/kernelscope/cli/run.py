"""`kernelscope run FILE`: one launch of a kernel, and what it wrote."""

import time

from .arguments import printer, write_json
from .call import file_call
from .options import add_file
from .written import arrays_record, arrays_report, save, written


def add(parsers) -> None:
    parser = parsers.add_parser(
        "run",
        help="one launch of a kernel, and what it wrote",
        description="Runs a kernel and shows what it wrote; exit status 1 when elements of an "
        "`output` stay unwritten.",
        epilog="Example: kernelscope run add.cu --grid 4 --block 32 --arg normal:100 "
        "--arg ones:100 --arg output:100 --arg 100",
    )
    add_file(parser)


def execute(arguments) -> int:
    """Launch a kernel; returns 1 where output elements stay unwritten."""
    call, say = file_call(arguments), printer(arguments.json)
    say(call.title, flush=True)
    start = time.perf_counter()
    call.run()
    found = written(call)
    seconds = time.perf_counter() - start
    say(arrays_report(found))
    if call.kernel.backend == "simulator":
        say(f"{seconds:.3g} s to simulate; says nothing of a GPU")
    save(call, arguments.out)
    write_json(arguments.json, call.record() | {"arrays": arrays_record(found), "seconds": seconds})
    return 1 if any(one.unwritten for one in found) else 0
