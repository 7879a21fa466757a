"""`attn-course run METHOD`: one attention call on seeded random input, held against float64."""

from dataclasses import asdict
from pathlib import Path

from attn_course.engine.backend import resolve_backend
from attn_course.ladder.verify import Verdict, verify_method

from . import arguments as common


def add(parsers) -> None:
    """The subcommand `run` and its arguments."""
    parser = parsers.add_parser(
        "run", help="one method on random input, held against float64",
        description="Runs one method of attention() and compares it with float64 NumPy. Exit "
        "status 1 when they disagree.")
    common.add_workload(parser)
    common.add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments) -> int:
    """Run `run` with its parsed arguments; returns the exit status."""
    work = common.workload(arguments)
    if arguments.json != Path("-"):  # before the work, which may take long
        print(common.title(work, f"backend {resolve_backend(work.backend)}"), flush=True)
    verdict = verify_method(
        work.method, *work.inputs(), causal=work.causal, backend=work.backend
    )
    if arguments.json != Path("-"):
        print(report(verdict))
    common.write_json(arguments.json, record(work, verdict))
    return 0 if verdict.agrees else 1


def record(work: common.Workload, verdict: Verdict) -> dict:
    """The result for machines: the workload's fields and the verdict's."""
    fields = {name: value for name, value in asdict(work).items() if name != "backend"}
    judged = common.verdict_record(verdict)
    return fields | {name: value for name, value in judged.items() if name != "name"}


def report(verdict: Verdict) -> str:
    """The result for people, below the title."""
    rows = [(launch.file, launch.entry, *common.launch_cells(launch))
            for launch in verdict.launches]
    heads = ("file", "kernel", "grid", "block", "shared bytes")
    where = "on the GPU" if verdict.backend == "gpu" else "to simulate; says nothing of a GPU"
    picked = [f"auto picks {verdict.picked}"] if verdict.picked else []
    return "\n".join([
        *picked,
        common.table(heads, rows, right=(4,)),
        verdict.comparison.message,
        f"{verdict.seconds:.3g} s {where}",
    ])
