"""`attn-course run METHOD`: one attention call on seeded random input, checked against float64.

`attn-course run FILE.cu`: one launch of a kernel of the user's own, and what it wrote.
"""

from dataclasses import asdict

from kernelscope import resolve_backend
from kernelscope.cli import run as of_file
from kernelscope.cli.arguments import printer, write_json

from attn_course.figures import table
from attn_course.ladder.verify import Verdict, verify_method

from .arguments import (
    Workload,
    add_own,
    add_workload,
    is_own,
    launch_cells,
    title,
    verdict_record,
    workload,
)


def add(parsers) -> None:
    parser = parsers.add_parser(
        "run",
        help="one method on random input, checked against float64",
        description="Runs one method of attention() and compares it with float64 NumPy. Exit "
        "status 1 when they disagree. Or runs a kernel of your own, and shows what it wrote; exit "
        "status 1 when elements of an `output` stay unwritten.",
        epilog="Example: attn-course run add.cu --grid 4 --block 32 --arg normal:100 "
        "--arg ones:100 --arg output:100 --arg 100",
    )
    add_workload(parser, also="; or a kernel file of your own")
    add_own(parser)


def execute(arguments) -> int:
    """0 where the method agrees with float64, else 1."""
    if is_own(arguments):
        return of_file.execute(arguments)
    work, say = workload(arguments), printer(arguments.json)
    say(title(work, f"backend {resolve_backend(work.backend)}"), flush=True)  # before the work
    verdict = verify_method(work.method, *work.inputs(), causal=work.causal, backend=work.backend)
    say(report(verdict))
    write_json(arguments.json, record(work, verdict))
    return 0 if verdict.agrees else 1


def record(work: Workload, verdict: Verdict) -> dict:
    """The result for machines: the workload's fields and the verdict's."""
    fields = {name: value for name, value in asdict(work).items() if name != "backend"}
    judged = verdict_record(verdict)
    return fields | {name: value for name, value in judged.items() if name != "name"}


def report(verdict: Verdict) -> str:
    """The result for people, below the title."""
    rows = [(launch.file, launch.entry, *launch_cells(launch)) for launch in verdict.launches]
    heads = ("file", "kernel", "grid", "block", "shared bytes")
    where = "on the GPU" if verdict.backend == "gpu" else "to simulate; says nothing of a GPU"
    picked = [f"auto picks {verdict.picked}"] if verdict.picked else []
    return "\n".join(
        [
            *picked,
            table(heads, rows, right=(4,)),
            verdict.comparison.message,
            f"{verdict.seconds:.3g} s {where}",
        ]
    )
