"""`attn-course count METHOD`: what Nsight Compute would count, without a GPU, line by line."""

from kernelscope import Counters, observe
from kernelscope.cli import count as of_file
from kernelscope.cli.arguments import printer, write_json
from kernelscope.cli.count import add_totals, kernels_record, report

from .arguments import add_workload, judged_record
from .calls import message_of, simulated_call


def add(parsers) -> None:
    parser = parsers.add_parser(
        "count",
        help="memory traffic, bank conflicts and branches of a method, line by line",
        description="Runs one method of attention(), or one kernel file, on the simulator and "
        "counts requests, sectors, wavefronts, conflicts and branches as Nsight Compute does. Exit "
        "status 1 when the result disagrees with float64. Or counts a launch of a kernel of your "
        "own.",
    )
    add_workload(parser)
    add_totals(parser)


def execute(arguments) -> int:
    """0 where the result agrees with float64, else 1."""
    refusal = "count observes the simulator; for a GPU there is `attn-course profile`"
    call, say = simulated_call(arguments, refusal), printer(arguments.json)
    if call is None:
        return of_file.execute(arguments)
    say(call.title, flush=True)  # before the work, which may take long
    with observe(Counters()) as seen:
        call.run()
    judged = call.judge()
    say("\n" + report(seen, message_of(judged), lines=not arguments.totals))
    counted = {"totals": seen.totals, "kernels": kernels_record(seen)}
    write_json(arguments.json, call.record() | judged_record(judged) | counted)
    return 0 if judged is None or judged.agrees else 1
