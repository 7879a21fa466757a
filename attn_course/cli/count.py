"""`attn-course count METHOD`: what Nsight Compute would count, without a GPU, line by line."""

from kernelscope import BackendError, Counters
from kernelscope.cli import count as of_file
from kernelscope.cli.arguments import printer, write_json
from kernelscope.cli.count import add_totals, kernels_record, report

from .arguments import add_own, add_workload, is_own, observed, observed_record, title, workload


def add(parsers) -> None:
    parser = parsers.add_parser(
        "count",
        help="memory traffic, bank conflicts and branches of a method, line by line",
        description="Runs one method of attention() on the simulator and counts requests, "
        "sectors, wavefronts, conflicts and branches as Nsight Compute does. Exit status 1 when "
        "the result disagrees with float64. Or counts a launch of a kernel of your own.",
    )
    add_workload(parser, also="; or a kernel file of your own")
    add_own(parser)
    add_totals(parser)


def execute(arguments) -> int:
    """0 where the result agrees with float64, else 1."""
    if arguments.backend == "gpu":
        raise BackendError("count observes the simulator; for a GPU there is `attn-course profile`")
    if is_own(arguments):
        return of_file.execute(arguments)
    work, seen, say = workload(arguments), Counters(), printer(arguments.json)
    say(title(work, "counted on the simulator"), flush=True)  # before the work, which may take long
    judged = observed(work, seen)
    say("\n" + report(seen, judged.message, lines=not arguments.totals))
    counted = {"totals": seen.totals, "kernels": kernels_record(seen)}
    write_json(arguments.json, observed_record(work, judged) | counted)
    return 0 if judged.agrees else 1
