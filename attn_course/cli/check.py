"""`attn-course check METHOD`: the sanitizer on every kernel of a method, or on a kernel file."""

from kernelscope import Sanitizer, observe
from kernelscope.cli import check as of_file
from kernelscope.cli.arguments import printer, write_json
from kernelscope.cli.check import Checked, errors_in, findings_record, report

from .arguments import add_workload, judged_record
from .calls import NamedLaunch, message_of, simulated_call


def add(parsers) -> None:
    parser = parsers.add_parser(
        "check",
        help="races, bad accesses, uninitialised reads and divergent barriers",
        description="Runs a method of attention(), or one kernel file of kernels/ or "
        "kernels/broken, in its debug build on the simulator under the sanitizer. Exit status 1 "
        "when it finds an error or the result disagrees with float64; a warning is shown only. "
        "Or examines a launch of a kernel of your own; exit status 1 also when elements of an "
        "`output` stay unwritten.",
        epilog="Examples: attn-course check tiled; attn-course check lost_update; attn-course "
        "check add.cu --grid 4 --block 32 --arg normal:100 --arg output:100 --arg 100",
    )
    add_workload(parser, shape=(2, 3, 37, 20))  # ragged: it ends inside every tile


def execute(arguments) -> int:
    """0 where no error is found and the result agrees with float64, else 1."""
    refusal = "check runs on the simulator; on a GPU use NVIDIA's compute-sanitizer"
    call, say = simulated_call(arguments, refusal), printer(arguments.json)
    if call is None:
        return of_file.execute(arguments)
    say(call.title, flush=True)
    checked = [examined(part) for part in call.parts]
    errors, judged = errors_in(checked), call.judge()
    clean = not errors and (judged is None or judged.agrees)
    say(f"{report(checked)}\n{message_of(judged)}")
    found = {"clean": clean, "errors": len(errors), "kernels": findings_record(checked)}
    write_json(
        arguments.json,
        call.record() | judged_record(judged) | {"name": arguments.method} | found,
    )
    return 0 if clean else 1


def examined(part: NamedLaunch) -> Checked:
    """The findings of one launch."""
    with observe(Sanitizer(part.empty)) as seen:
        part.run()
    return Checked(part.name, seen.findings)
