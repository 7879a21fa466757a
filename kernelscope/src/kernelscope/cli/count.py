"""`kernelscope count FILE`: what Nsight Compute would count, without a GPU, line by line."""

from pathlib import Path

from ..errors import BackendError
from ..events import observe
from ..ptx.demangle import demangle
from ..watch.counters.counters import DESCRIPTIONS, NAMES, Counters
from .arguments import printer, write_json
from .call import file_call
from .options import add_file
from .tables import table, width
from .written import arrays_record, arrays_report, save, written


def add(parsers) -> None:
    parser = parsers.add_parser(
        "count",
        help="memory traffic, bank conflicts and branches, line by line",
        description="Runs a kernel on the simulator and counts requests, sectors, wavefronts, "
        "conflicts and branches as Nsight Compute does.",
    )
    add_file(parser)
    add_totals(parser)


def add_totals(parser) -> None:
    """--totals."""
    parser.add_argument("--totals", action="store_true", help="no source lines, only the totals")


def execute(arguments) -> int:
    """Count one launch."""
    if arguments.backend == "gpu":
        raise BackendError("count observes the simulator; on a GPU use NVIDIA's Nsight Compute")
    call, say = file_call(arguments, backend="simulator"), printer(arguments.json)
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
        parts.append(seen.by_line.text(width()))
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
