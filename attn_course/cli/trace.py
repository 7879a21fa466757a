"""`attn-course trace METHOD`: every step of one thread block, as a table or a page to click in."""

from kernelscope import Sanitizer, Tracer, observe
from kernelscope.cli import trace as of_file
from kernelscope.cli.arguments import write_json
from kernelscope.cli.trace import add_recording, findings, show
from kernelscope.errors import InputError

from .arguments import add_workload, judged_record
from .calls import NamedCall, message_of, simulated_call


def add(parsers) -> None:
    parser = parsers.add_parser(
        "trace",
        help="step through one thread block: source lines, variables, shared memory",
        description="Runs one method of attention(), or one kernel file, on the simulator and "
        "records every step of one thread block of each kernel, with the local variables by name "
        "and the sanitizer's findings. Exit status 1 where there is an error, or the result "
        "disagrees with float64. Or records a launch of a kernel of your own.",
    )
    # A small default: each step of each thread is kept.
    only = "record this kernel of the method only; or the file's kernel"
    add_workload(parser, shape=(1, 1, 16, 8), kernel_help=only)
    add_recording(parser)


def execute(arguments) -> int:
    """0 where the result agrees with float64 and the sanitizer finds no error, else 1."""
    refusal = "trace needs the simulator: a GPU does not show its registers"
    call = simulated_call(arguments, refusal, filters=("kernel",))
    if call is None:
        return of_file.execute(arguments)
    tracer = Tracer(arguments.at, arguments.warp, arguments.kernel, arguments.limit)
    wrong, told = record(call, tracer)
    if not tracer.recordings:
        entries = ", ".join(dict.fromkeys(part.launch.kernel.name for part in call.parts))
        raise InputError(f"{call.name} has no kernel {arguments.kernel!r}; it has {entries}")
    judged = call.judge()
    result = "\n".join([call.title, message_of(judged), *told])
    show(tracer, call.name, result, arguments)
    recordings = [recording.plain() for recording in tracer.recordings]
    write_json(arguments.json, call.record() | judged_record(judged) | {"recordings": recordings})
    return 0 if not wrong and (judged is None or judged.agrees) else 1


def record(call: NamedCall, tracer: Tracer) -> tuple[bool, list[str]]:
    """Run a call under a tracer, with the findings of each launch on its steps.

    Returns whether there is an error among them, and the findings for people.
    """
    wrong, told = False, []
    for part in call.parts:
        before, watch = len(tracer.recordings), Sanitizer(part.empty)
        with observe(tracer, watch):
            part.run()
        if recordings := tracer.recordings[before:]:
            for recording in recordings:
                recording.mark(watch.findings)
            told += findings(recordings, watch)
            wrong = wrong or bool(watch.errors)
    return wrong, told
