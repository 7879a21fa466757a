"""`attn-course count METHOD`: what Nsight Compute would count, without a GPU, line by line."""

from pathlib import Path

from kernelscope.backend import BackendError
from kernelscope.events import observe
from kernelscope.ptx.demangle import demangle
from kernelscope.watch.counters.counters import DESCRIPTIONS, NAMES, Counters

from attn_course.figures import table

from .arguments import add_workload, observed, observed_record, printer, title, workload, write_json
from .own import add_own, arrays_record, arrays_report, is_own, own_call, save, written


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
    parser.add_argument("--totals", action="store_true", help="no source lines, only the totals")


def execute(arguments) -> int:
    """0 where the result agrees with float64, else 1."""
    if arguments.backend == "gpu":
        raise BackendError("count observes the simulator; for a GPU there is `attn-course profile`")
    if is_own(arguments):
        return execute_own(arguments)
    work, seen, say = workload(arguments), Counters(), printer(arguments.json)
    say(title(work, "counted on the simulator"), flush=True)  # before the work, which may take long
    judged = observed(work, seen)
    say("\n" + report(seen, judged.message, lines=not arguments.totals))
    counted = {"totals": seen.totals, "kernels": kernels_record(seen)}
    write_json(arguments.json, observed_record(work, judged) | counted)
    return 0 if judged.agrees else 1


def execute_own(arguments) -> int:
    """Count one launch of a kernel of the user's own."""
    call, say = own_call(arguments, backend="simulator"), printer(arguments.json)
    say(call.title, flush=True)
    with observe(Counters()) as seen:
        call.run()
    found = written(call)
    say("\n" + report(seen, arrays_report(found), lines=not arguments.totals))
    save(call, arguments.out)
    counted = {"totals": seen.totals, "kernels": kernels_record(seen)}
    write_json(arguments.json, call.record() | counted | {"arrays": arrays_record(found)})
    return 0


def kernels_record(seen: Counters) -> list[dict]:
    """Every kernel's totals, and its lines with counts."""
    kernels = []
    for name, kernel in seen.by_kernel.items():
        lines = [
            {"line": number, "text": kernel.line(number).text, "counts": counts}
            for number, counts in kernel.lines.items()
        ]
        kernels.append(
            {
                "kernel": name,
                "file": Path(kernel.source_name).name,
                "launches": kernel.launches,
                "totals": kernel.totals,
                "lines": lines,
            }
        )
    return kernels


def report(seen: Counters, result: str, *, lines: bool) -> str:
    """The result for people: a column a kernel, what it computed, the source with its counts."""
    parts = [totals_table(seen), result]
    if lines:
        parts.append(seen.by_line.text())
    return "\n\n".join(parts)


def totals_table(seen: Counters) -> str:
    """Counters down, kernels across, and what each counter means."""
    kernels = seen.by_kernel
    rows = []
    for name in NAMES:
        values = [kernel.totals[name] for kernel in kernels.values()]
        if any(values):
            rows.append((name, *(f"{value:,}" for value in values), DESCRIPTIONS[name]))
    heads = ("counter", *map(demangle, kernels), "meaning")
    return table(heads, rows, right=tuple(range(1, len(kernels) + 1)))
