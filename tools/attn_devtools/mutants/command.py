"""`attn-course mutants`: small changes of an exercise's solution that its check accepts."""

from dataclasses import asdict
from pathlib import Path

from kernelscope.cli.arguments import positive, printer, write_json
from tqdm import tqdm

from attn_course.exercises.exercise import exercise_names, read_exercise

from .survival import Survival, survival


def add(parsers) -> None:
    parser = parsers.add_parser(
        "mutants",
        help="changes of an exercise's solution that its check accepts",
        description="Examine mutants of an exercise's solution, each with one small change made by "
        "rule, and list those that pass. Exit status 1 when one of them is not listed in the "
        "exercise's file, or one that is listed does not pass.",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="exercises (default: all)")
    parser.add_argument(
        "--jobs", type=positive, default=1, help="processes that examine mutants (default: 1)"
    )


def execute(arguments) -> int:
    found = [read_exercise(name) for name in arguments.names or exercise_names()]
    quiet = arguments.json == Path("-") or len(found) == 1
    survivals = [survival(one, arguments.jobs) for one in tqdm(found, disable=quiet or None)]
    printer(arguments.json)(_report(survivals))
    write_json(arguments.json, {"mutants": [asdict(one) for one in survivals]})
    return 0 if all(one.holds for one in survivals) else 1


def _report(survivals: list[Survival]) -> str:
    lines = []
    for one in survivals:
        lines.append(
            f"{one.exercise}: {one.killed} of {one.of} mutants killed, {one.equivalent} equivalent"
        )
        lines += [f"  passes, line {change}" for change in one.survivors]
        lines += [
            f"  listed as equivalent, yet no mutant passes by it, line {it}" for it in one.refuted
        ]
    return "\n".join(lines)
