"""`attn-course golf NAME`: what kernels that pass cost, one's own or those of a class."""

from pathlib import Path

from kernelscope.cli.arguments import printer, write_json
from msgspec.structs import asdict

from attn_course.classroom.grading.golf import class_golf
from attn_course.classroom.grading.gradebook import printable
from attn_course.exercises.exercise import read_exercise
from attn_course.exercises.golf import (
    COLUMNS,
    TOTAL,
    known_standings,
    known_texts,
    predicted,
    text_hash,
    with_time,
)
from attn_course.exercises.judgement import written
from attn_course.figures import table
from attn_course.lessons.working_copy import Attempts

from .grade_self import own_copy


def add(parsers) -> None:
    parser = parsers.add_parser(
        "golf",
        help="rank the kernels that pass an exercise by their counts",
        description="Show what your kernels that passed cost in the largest case, beside the known "
        "solutions: sectors of global memory, wavefronts of shared memory, instructions, and their "
        "sum, which ranks them. The simulator counts, so that every machine agrees. Beside them "
        "stands the time that is predicted for an H200.",
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
    texts = known_texts(exercise)
    rows = [
        {"kernel": name, **with_time(costs, predicted(exercise, texts[name]).us)}
        for name, costs in known_standings(exercise)
    ]
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
    heads = ("kernel", "text", "date", *COLUMNS)
    cells = [[_cell(row.get(head)) for head in heads] for row in rows]
    shown = table(heads, cells, right=range(3, len(heads)))
    say(f"{exercise.name}, {exercise.setups[-1].label}\n\n{shown}\n\nus: predicted for an H200")
    for row in failed:
        say(f"{row['kernel']} {row['reason']}")
    write_json(arguments.json, {"exercise": exercise.name, "standings": rows, "failed": failed})
    return 1 if failed else 0


def _cell(value: float | str | None) -> str:
    return "" if value is None else value if isinstance(value, str) else written(value)
