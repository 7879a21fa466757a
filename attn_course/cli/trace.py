"""`attn-course trace METHOD`: every step of one thread block, as a table or a page to click in.

METHOD is a method of attention(), or a kernel file of the user's own.
"""

from pathlib import Path

from attn_course.engine.backend import BackendError
from attn_course.engine.errors import SimulatorError
from attn_course.engine.events import observe
from attn_course.engine.watch import Sanitizer
from attn_course.engine.watch.tracer.tracer import Tracer
from attn_course.ladder.methods import AUTO, steps_of

from . import own
from .arguments import (
    add_workload,
    natural,
    observed,
    observed_record,
    output_file,
    positive,
    printer,
    workload,
    write_json,
)


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
    own.add_own(parser, kernel_help="record this kernel of the method only; or the file's kernel")
    parser.add_argument(
        "--at",
        type=own.block_argument,
        default=(0, 0, 0),
        metavar="X,Y,Z",
        help="place in the grid of the block to record (default 0,0,0)",
    )
    parser.add_argument(
        "--warp", type=natural, metavar="N", help="record this warp of the block only"
    )
    parser.add_argument(
        "--limit",
        type=positive,
        default=5000,
        metavar="N",
        help="steps kept for each kernel (default 5000)",
    )
    parser.add_argument(
        "--html",
        metavar="FILE",
        type=output_file,
        help="write the stepper as one page that opens offline",
    )


def execute(arguments) -> int:
    """0 where the result agrees with float64, else 1."""
    if arguments.backend == "gpu":
        raise BackendError("trace needs the simulator: a GPU does not show its registers")
    if own.is_own(arguments, of_methods=("kernel",)):
        return execute_own(arguments)
    work = workload(arguments)
    tracer = Tracer(arguments.at, arguments.warp, arguments.kernel, arguments.limit)
    judged = observed(work, tracer)
    if not tracer.recordings:
        message = f"{work.method} has no kernel {arguments.kernel!r}"
        if work.method != AUTO:
            message += f"; it has {', '.join(step.entry for step in steps_of(work.method))}"
        raise ValueError(message)
    show(tracer, work.method, judged.message, arguments)
    recordings = [recording.plain() for recording in tracer.recordings]
    write_json(arguments.json, observed_record(work, judged) | {"recordings": recordings})
    return 0 if judged.agrees else 1


def execute_own(arguments) -> int:
    """Record one launch of a kernel of the user's own, with the sanitizer's findings in it."""
    call = own.own_call(arguments, backend="simulator")
    tracer = Tracer(arguments.at, arguments.warp, limit=arguments.limit)
    watch, ended = Sanitizer(call.outputs), ""
    try:
        with observe(tracer, watch):
            call.run()
    except SimulatorError as error:
        if not any(recording.frames for recording in tracer.recordings):
            raise
        ended = f"the run ended early: {error}"
    tracer.mark(watch.findings)
    found, told = own.written(call), [*findings(tracer, watch), *([ended] if ended else [])]
    show(tracer, call.name, "\n".join([call.title, own.arrays_report(found), *told]), arguments)
    own.save(call, arguments.out)
    recordings = [recording.plain() for recording in tracer.recordings]
    steps = {"recordings": recordings, "arrays": own.arrays_record(found)}
    write_json(arguments.json, call.record() | steps)
    return 1 if ended or watch.errors else 0


def findings(tracer: Tracer, watch: Sanitizer) -> list[str]:
    """Return each finding that the trace shows, and where the sanitizer's other errors are."""
    marked = [one for recording in tracer.recordings for one in recording.findings]
    told = [f"step {one['step']}, {in_words(**one)}" for one in marked]
    shown = {(one["kind"], one["line"]) for one in marked}
    here = {recording.block for recording in tracer.recordings}
    for error in watch.errors:
        blocks = [block for block, _ in error.threads]
        if blocks and not here.intersection(blocks):
            at = ",".join(map(str, blocks[0]))
            told.append(
                f"block {blocks[0]} has a finding that this one has not: --at {at} traces it"
            )
        elif (error.kind, error.line) not in shown:
            told.append(f"no recorded step, {in_words(error.line, error.kind, error.message)}")
    return list(dict.fromkeys(told))


def in_words(line: int, kind: str, message: str, **_) -> str:
    return f"line {line}: {kind}: {message}"


def show(tracer: Tracer, name: str, result: str, arguments) -> None:
    """Write the page that --html asks for, and print the steps for people."""
    if arguments.html is not None:
        tracer.to_html(arguments.html, title=f"{name}, step by step")
    printer(arguments.json)(report(tracer, result, arguments.html))


def report(tracer: Tracer, result: str, page: Path | None) -> str:
    """The steps for people, or where the page with them is, and what was computed."""
    if page is None:
        from attn_course.engine.watch.tracer import stepper

        return f"{stepper.text(tracer.recordings)}\n\n{result}"
    steps = sum(len(recording.frames) for recording in tracer.recordings)
    notes = [recording.truncated for recording in tracer.recordings if recording.truncated]
    return "\n".join([result, *notes, f"{steps} steps written to {page}"])
