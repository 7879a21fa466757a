"""`attn-course trace METHOD`: every step of one thread block, as a table or a page to click in.

METHOD is a method of attention(), or a kernel file of the user's own.
"""

from kernelscope import BackendError, Tracer
from kernelscope.cli import trace as of_file
from kernelscope.cli.arguments import write_json
from kernelscope.cli.trace import add_recording, show
from kernelscope.errors import InputError

from attn_course.ladder.methods import AUTO, steps_of

from .arguments import add_own, add_workload, is_own, observed, observed_record, workload


def add(parsers) -> None:
    parser = parsers.add_parser(
        "trace",
        help="step through one thread block: source lines, variables, shared memory",
        description="Runs one method of attention() on the simulator and records every step of "
        "one thread block of each kernel, with the local variables by name. Exit status 1 when "
        "the result disagrees with float64. Or records a launch of a kernel of your own, and the "
        "sanitizer's findings in it: exit status 1 where there is an error.",
    )
    # A small default: each step of each thread is kept.
    add_workload(parser, shape=(1, 1, 16, 8), also="; or a kernel file of your own")
    add_own(parser, kernel_help="record this kernel of the method only; or the file's kernel")
    add_recording(parser)


def execute(arguments) -> int:
    """0 where the result agrees with float64, else 1."""
    if arguments.backend == "gpu":
        raise BackendError("trace needs the simulator: a GPU does not show its registers")
    if is_own(arguments, of_methods=("kernel",)):
        return of_file.execute(arguments)
    work = workload(arguments)
    tracer = Tracer(arguments.at, arguments.warp, arguments.kernel, arguments.limit)
    judged = observed(work, tracer)
    if not tracer.recordings:
        message = f"{work.method} has no kernel {arguments.kernel!r}"
        if work.method != AUTO:
            message += f"; it has {', '.join(step.entry for step in steps_of(work.method))}"
        raise InputError(message)
    show(tracer, work.method, judged.message, arguments)
    recordings = [recording.plain() for recording in tracer.recordings]
    write_json(arguments.json, observed_record(work, judged) | {"recordings": recordings})
    return 0 if judged.agrees else 1
