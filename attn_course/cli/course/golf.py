"""`attn-course golf NAME`: what kernels that pass cost, one's own or those of a class."""

from pathlib import Path

from kernelscope.cli.arguments import printer, write_json
from msgspec.structs import asdict

from attn_course.classroom.grading.golf import class_golf
from attn_course.classroom.grading.gradebook import printable
from attn_course.exercises.exercise import read_exercise
from attn_course.exercises.golf import TOTAL, known_standings, text_hash
from attn_course.figures import table
from attn_course.lessons.working_copy import Attempts

from .grade_self import own_copy


def add(parsers) -> None:
    parser = parsers.add_parser(
        "golf",
        help="rank the kernels that pass an exercise by their counts",
        description="Show what your kernels that passed cost in the largest case, beside the known "
        "solutions: sectors of global memory, wavefronts of shared memory, instructions, and their "
        "sum. The simulator counts, so that every machine agrees.",
        epilog="Submissions are FOLDER/STUDENT.cu, or FOLDER/STUDENT/answers/NAME.cu of working "
        "copies.",
    )
    parser.add_argument("name", metavar="NAME", help="an exercise, or a problem of a problem set")
    parser.add_argument(
        "--submissions",
        type=Path,
        metavar="FOLDER",
        help="rank the kernels of a class, each judged again in a sandbox; exit status 1 where one "
        "does not pass",
    )


def execute(arguments) -> int:
    exercise, say = read_exercise(arguments.name), printer(arguments.json)
    rows = [{"kernel": name, **costs} for name, costs in known_standings(exercise)]
    failed = []
    if arguments.submissions:
        for student, text, found in class_golf(exercise, arguments.submissions):
            about = {"kernel": printable(student), "text": text_hash(text)}
            passed = isinstance(found, dict)
            (rows if passed else failed).append(about | (found if passed else {"reason": found}))
    elif copy := own_copy():
        passes = copy.progress().get(exercise.name, Attempts()).passes
        rows += [{"kernel": "yours", "text": text, **asdict(one)} for text, one in passes.items()]
    rows.sort(key=lambda row: row[TOTAL])
    heads = ("kernel", "text", "date", "sectors", "wavefronts", "instructions", TOTAL)
    cells = [[_cell(row.get(head, "")) for head in heads] for row in rows]
    say(
        f"{exercise.name}, {exercise.setups[-1].label}\n\n{table(heads, cells, right=(3, 4, 5, 6))}"
    )
    for row in failed:
        say(f"{row['kernel']} {row['reason']}")
    write_json(arguments.json, {"exercise": exercise.name, "standings": rows, "failed": failed})
    return 1 if failed else 0


def _cell(value: int | str) -> str:
    return value if isinstance(value, str) else f"{value:,}"
