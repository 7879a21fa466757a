"""`attn-course run METHOD`: one attention call on seeded random input, checked against float64.

`attn-course run FILE.cu`: one launch of a kernel of the user's own, and what it wrote.
"""

import time
from dataclasses import asdict

from kernelscope.backend import resolve_backend

from attn_course.figures import table
from attn_course.ladder.verify import Verdict, verify_method

from .arguments import (
    Workload,
    add_workload,
    launch_cells,
    printer,
    title,
    verdict_record,
    workload,
    write_json,
)
from .own import add_own, arrays_record, arrays_report, is_own, own_call, save, written


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
        return execute_own(arguments)
    work, say = workload(arguments), printer(arguments.json)
    say(title(work, f"backend {resolve_backend(work.backend)}"), flush=True)  # before the work
    verdict = verify_method(work.method, *work.inputs(), causal=work.causal, backend=work.backend)
    say(report(verdict))
    write_json(arguments.json, record(work, verdict))
    return 0 if verdict.agrees else 1


def execute_own(arguments) -> int:
    """Launch a kernel of the user's own; returns 1 where output elements stay unwritten."""
    call, say = own_call(arguments), printer(arguments.json)
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
