"""`kernelscope trace FILE`: every step of one thread block, as a table or a page to click in."""

from collections.abc import Sequence
from pathlib import Path

from ..errors import BackendError, SimulatorError
from ..events import observe
from ..watch import Sanitizer
from ..watch.tracer import stepper
from ..watch.tracer.recording import Recording
from ..watch.tracer.tracer import Tracer
from .arguments import natural, output_file, positive, printer, write_json
from .call import file_call
from .options import add_file, block_argument
from .written import arrays_record, arrays_report, save, written


def add(parsers) -> None:
    parser = parsers.add_parser(
        "trace",
        help="step through one thread block: source lines, variables, shared memory",
        description="Records every step of one thread block, with the local variables by name, and "
        "the sanitizer's findings: exit status 1 where there is an error.",
    )
    add_file(parser)
    add_recording(parser)


def add_recording(parser) -> None:
    """The options that say what is recorded, and where it goes."""
    parser.add_argument(
        "--at",
        type=block_argument,
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
    """Record one launch, with the sanitizer's findings in it."""
    if arguments.backend == "gpu":
        raise BackendError("trace needs the simulator: a GPU does not show its registers")
    call = file_call(arguments, backend="simulator", for_debug=True)
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
    found, told = written(call), [*findings(tracer.recordings, watch), *([ended] if ended else [])]
    show(tracer, call.name, "\n".join([call.title, arrays_report(found), *told]), arguments)
    save(call, arguments.out)
    recordings = [recording.plain() for recording in tracer.recordings]
    steps = {"recordings": recordings, "arrays": arrays_record(found)}
    write_json(arguments.json, call.record() | steps)
    return 1 if ended or watch.errors else 0


def findings(recordings: Sequence[Recording], watch: Sanitizer) -> list[str]:
    """Return each finding that the recordings show, and where the sanitizer's other errors are."""
    marked = [one for recording in recordings for one in recording.findings]
    told = [f"step {one['step']}, {in_words(**one)}" for one in marked]
    shown = {(one["kind"], one["line"]) for one in marked}
    here = {recording.block for recording in recordings}
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
        return f"{stepper.text(tracer.recordings)}\n\n{result}"
    steps = sum(len(recording.frames) for recording in tracer.recordings)
    notes = [recording.truncated for recording in tracer.recordings if recording.truncated]
    return "\n".join([result, *notes, f"{steps} steps written to {page}"])
