"""`attn-course exercises`: the exercises of the lessons, and the proof that each one works."""

from __future__ import annotations

from pathlib import Path

from tqdm import tqdm

from attn_course.classroom.proof import ProvenAnswer, prove_problem
from attn_course.cli.arguments import add_json, write_json
from attn_course.exercises.exercise import Exercise, exercise_names, read_exercise
from attn_course.exercises.proof import Proven, prove
from attn_course.figures import table
from attn_course.lessons.working_copy import WorkingCopy


def add(parsers) -> None:
    """The subcommand `exercises` and its arguments."""
    parser = parsers.add_parser(
        "exercises",
        help="list the exercises, or prove that their checks work",
        description="List every exercise with its lesson and line budget. With --prove, examine "
        "the stub and every correct and wrong solution of an exercise. Exit status 1 when one of "
        "them is judged wrongly.",
    )
    parser.add_argument(
        "--prove",
        nargs="?",
        const="all",
        metavar="NAME",
        help="examine all solutions of this exercise (default: of all exercises)",
    )
    add_json(parser)
    parser.set_defaults(execute=execute)


def execute(arguments) -> int:
    """Run `exercises` with its parsed arguments; return the exit status."""
    if arguments.prove is None:
        names = exercise_names()
    else:
        names = exercise_names() if arguments.prove == "all" else [arguments.prove]
    found = [read_exercise(name) for name in names]
    quiet = arguments.json == Path("-")
    record = {"exercises": [_row(exercise) for exercise in found]}
    if arguments.prove is None:
        if not quiet:
            print(_listing(found))
        write_json(arguments.json, record)
        return 0
    proven = [one for exercise in tqdm(found, disable=quiet or None) for one in _proof(exercise)]
    record["proof"] = [_proof_row(one) for one in proven]
    if not quiet:
        print(_report(proven))
    write_json(arguments.json, record)
    return 0 if all(one.holds for one in proven) else 1


def _proof(exercise: Exercise) -> list[Proven] | list[ProvenAnswer]:
    return prove_problem(exercise) if exercise.points else prove(exercise)


def _row(exercise: Exercise) -> dict:
    """An exercise as plain data; `correct` counts the reference too."""
    return {
        "name": exercise.name,
        "title": exercise.title,
        "lesson": exercise.lesson,
        "lines": exercise.lines,
        "minutes": exercise.minutes,
        "correct": 1 + len(exercise.correct),
        "wrong": len(exercise.wrong),
    }


def _listing(exercises: list[Exercise]) -> str:
    copy = WorkingCopy.here()
    progress = copy.progress() if copy else {}
    rows = []
    for one in exercises:
        state = progress.get(one.name, {})
        mark = "passed" if state.get("passed") else "tried" if state else ""
        cells = (one.lesson, one.name, f"{one.lines}", f"{one.minutes}")
        rows.append((*cells, f"{1 + len(one.correct)}", f"{len(one.wrong)}", mark))
    heads = ("lesson", "exercise", "lines", "minutes", "correct", "wrong", "")
    lines = sum(one.lines for one in exercises)
    lessons = len({one.lesson for one in exercises})
    return (
        table(heads, rows, right=(2, 3, 4, 5))
        + f"\n\n{len(exercises)} exercises in {lessons} lessons, about {lines} lines of CUDA\n"
        "lines, minutes: what you write, and about how long it takes\n"
        "correct, wrong: known solutions that prove the check; --prove NAME runs them"
    )


def _proof_row(proven: Proven | ProvenAnswer) -> dict:
    return {
        "exercise": proven.exercise,
        "solution": proven.name,
        "expected": proven.expected or "pass",
        "found": proven.found or "pass",
        "holds": proven.holds,
    }


def _report(proven: list[Proven] | list[ProvenAnswer]) -> str:
    rows = [
        (
            one.exercise,
            one.name,
            one.expected or "pass",
            one.found or "pass",
            "" if one.holds else "WRONG",
        )
        for one in proven
    ]
    wrong = sum(not one.holds for one in proven)
    return (
        table(("exercise", "solution", "expected", "found", ""), rows)
        + f"\n\n{len(proven)} solutions examined, {wrong} judged wrongly"
    )
