"""`kernelscope check FILE`: races, bad accesses, uninitialised reads and divergent barriers."""

from collections import Counter
from dataclasses import asdict, dataclass

from ..errors import BackendError
from ..events import observe
from ..watch import Sanitizer
from ..watch.sanitizer.findings import Finding
from .arguments import printer, write_json
from .call import file_call
from .options import add_file
from .written import arrays_record, save, written


@dataclass(frozen=True)
class Checked:
    """The findings of one kernel, or of one file."""

    file: str
    findings: list[Finding]


def add(parsers) -> None:
    parser = parsers.add_parser(
        "check",
        help="races, bad accesses, uninitialised reads and divergent barriers",
        description="Examines one launch of a kernel, in its debug build on the simulator. Exit "
        "status 1 when it finds an error, or when elements of an `output` stay unwritten; a "
        "warning is shown only.",
        epilog="Example: kernelscope check add.cu --grid 4 --block 32 --arg normal:100 "
        "--arg output:100 --arg 100",
    )
    add_file(parser)


def execute(arguments) -> int:
    """Examine one launch."""
    if arguments.backend == "gpu":
        raise BackendError("check runs on the simulator; on a GPU use NVIDIA's compute-sanitizer")
    call = file_call(arguments, backend="simulator", for_debug=True)
    say = printer(arguments.json)
    say(call.title, flush=True)
    with observe(Sanitizer(call.outputs)) as seen:
        call.run()
    checked, arrays = [Checked(call.file.name, seen.findings)], written(call)
    errors = errors_in(checked)
    clean = not errors and not any(one.unwritten for one in arrays)
    say("\n".join([report(checked), *(one.warning for one in arrays if one.warning)]))
    save(call, arguments.out)
    found = {"clean": clean, "errors": len(errors), "kernels": findings_record(checked)}
    write_json(arguments.json, call.record() | found | {"arrays": arrays_record(arrays)})
    return 0 if clean else 1


def errors_in(checked: list[Checked]) -> list[Finding]:
    """The findings that are errors, not warnings."""
    return [f for one in checked for f in one.findings if f.severity == "error"]


def findings_record(checked: list[Checked]) -> list[dict]:
    """The findings of each kernel as plain data for JSON."""
    return [{"file": one.file, "findings": [asdict(f) for f in one.findings]} for one in checked]


def report(checked: list[Checked]) -> str:
    """The findings for people, kernel by kernel."""
    parts = []
    for one in checked:
        counts = Counter(finding.severity for finding in one.findings)
        words = [
            f"{n} {kind}" + "s" * (n > 1) for kind in ("error", "warning") if (n := counts[kind])
        ]
        parts.append(f"{one.file}: {', '.join(words) or 'no findings'}")
        parts += [str(finding) for finding in one.findings]
    return "\n".join(parts)
