"""`attn-course run METHOD`: one attention call on seeded random input, checked against float64.

`attn-course run FILE.cu`: one launch of a kernel of the user's own, and what it wrote.
"""

from dataclasses import asdict

from kernelscope import resolve_backend
from kernelscope.cli import run as of_file
from kernelscope.cli.arguments import printer, write_json

from attn_course.figures import table
from attn_course.ladder.verify import launch_record, timed

from .arguments import add_workload, judged_record, launch_cells
from .calls import message_of, named_call


def add(parsers) -> None:
    parser = parsers.add_parser(
        "run",
        help="one method on random input, checked against float64",
        description="Runs one method of attention(), or one kernel file, and compares it with "
        "float64 NumPy. Exit status 1 when they disagree. Or runs a kernel of your own, and shows "
        "what it wrote; exit status 1 when elements of an `output` stay unwritten.",
        epilog="Example: attn-course run add.cu --grid 4 --block 32 --arg normal:100 "
        "--arg ones:100 --arg output:100 --arg 100",
    )
    add_workload(parser)


def execute(arguments) -> int:
    """0 where the result agrees with float64, else 1."""
    backend = resolve_backend(arguments.backend)
    call, say = named_call(arguments, backend), printer(arguments.json)
    if call is None:
        return of_file.execute(arguments)
    say(call.title, flush=True)  # before the work
    call.warm_up()
    seconds = timed(call)
    judged, launches = call.judge(), [launch_record(part.launch) for part in call.parts]
    if call.picked:
        say(f"auto picks {call.picked}")
    rows = [(one.file, one.entry, *launch_cells(one)) for one in launches]
    say(table(("file", "kernel", "grid", "block", "shared bytes"), rows, right=(4,)))
    where = "on the GPU" if backend == "gpu" else "to simulate; says nothing of a GPU"
    say(f"{message_of(judged)}\n{seconds:.3g} s {where}")
    ran = {"picked": call.picked, "seconds": seconds, "steps": [asdict(one) for one in launches]}
    write_json(arguments.json, call.record() | judged_record(judged) | ran)
    return 0 if judged is None or judged.agrees else 1
