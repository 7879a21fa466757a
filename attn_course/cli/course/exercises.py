"""`attn-course exercises`: the exercises of the lessons, and the proof that each one works."""

from dataclasses import asdict
from pathlib import Path

from kernelscope.cli.arguments import printer, write_json
from kernelscope.errors import InputError
from tqdm import tqdm

from attn_course.classroom.proof import prove_problem
from attn_course.exercises.exercise import Exercise, exercise_names, read_exercise
from attn_course.exercises.proof import Proven, prove
from attn_course.exercises.session import attempt, next_hint
from attn_course.figures import table
from attn_course.lessons.working_copy import Attempts

from .grade_self import own_copy


def add(parsers) -> None:
    parser = parsers.add_parser(
        "exercises",
        help="list the exercises, check your kernel for one, or prove that their checks work",
        description="List every exercise with its lesson and line budget. With NAME, examine your "
        "kernel as `check` does in a notebook; exit status 1 where it does not pass. With --prove, "
        "examine the stub and every correct and wrong solution of an exercise; exit status 1 when "
        "one of them is judged wrongly.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("name", nargs="?", help="an exercise, or a problem of a problem set")
    what.add_argument(
        "--prove",
        nargs="?",
        const="all",
        metavar="NAME",
        help="examine all solutions of this exercise (default: of all exercises)",
    )
    parser.add_argument(
        "--file",
        type=Path,
        metavar="FILE",
        help="the kernel (default: the one in your working copy)",
    )
    parser.add_argument("--hint", action="store_true", help="show one hint more, and check nothing")


def execute(arguments) -> int:
    if arguments.name:
        return _own(arguments)
    if arguments.hint or arguments.file:
        raise InputError("name the exercise: attn-course exercises NAME --hint")
    chosen = arguments.prove
    names = exercise_names() if chosen in (None, "all") else [chosen]
    found = [read_exercise(name) for name in names]
    say, quiet = printer(arguments.json), arguments.json == Path("-")
    record, proven = {"exercises": [_row(exercise) for exercise in found]}, []
    if chosen:
        for exercise in tqdm(found, disable=quiet or None):
            proven += prove_problem(exercise) if exercise.points else prove(exercise)
        record["proof"] = [_proof_row(one) for one in proven]
    say(_report(proven) if chosen else _listing(found))
    write_json(arguments.json, record)
    return 0 if all(one.holds for one in proven) else 1


def _own(arguments) -> int:
    """Check a learner's kernel, or show a hint."""
    exercise, copy, say = read_exercise(arguments.name), own_copy(), printer(arguments.json)
    if arguments.hint:
        shown = next_hint(exercise, copy)
        say(shown)
        write_json(arguments.json, {"exercise": exercise.name, "hints": shown.splitlines()})
        return 0
    text = copy.answer(exercise.name) if copy else ""
    if arguments.file:
        text = arguments.file.read_text(encoding="utf-8", errors="replace")
    if not text:
        raise InputError(f"no kernel for {exercise.name}: name its file with --file FILE")
    judgement = attempt(exercise, text, copy)
    say(repr(judgement))
    names = ("exercise", "waiting", "cases", "diagnosis", "counters", "standings")
    record = {name: getattr(judgement, name) for name in names}
    failures = [asdict(one) for one in judgement.failures]
    write_json(arguments.json, {**record, "passed": bool(judgement), "failures": failures})
    return 0 if judgement else 1


def _row(exercise: Exercise) -> dict:
    """An exercise as plain data; `correct` counts the reference too."""
    names = ("name", "title", "lesson", "lines", "minutes")
    row = {name: getattr(exercise, name) for name in names}
    return row | {"correct": 1 + len(exercise.correct), "wrong": len(exercise.wrong)}


def _listing(exercises: list[Exercise]) -> str:
    copy = own_copy()
    progress = copy.progress() if copy else {}
    rows, counts = [], ("lines", "minutes", "correct", "wrong")
    for one in exercises:
        state, row = progress.get(one.name, Attempts()), _row(one)
        mark = "passed" if state.passed else "tried" if state.tries else ""
        rows.append((row["lesson"], row["name"], *(f"{row[head]}" for head in counts), mark))
    heads = ("lesson", "exercise", *counts, "")
    lines = sum(one.lines for one in exercises)
    lessons = len({one.lesson for one in exercises})
    return (
        table(heads, rows, right=(2, 3, 4, 5))
        + f"\n\n{len(exercises)} exercises in {lessons} lessons, about {lines} lines of CUDA\n"
        "lines, minutes: what you write, and about how long it takes\n"
        "correct, wrong: known solutions that prove the check; --prove NAME runs them"
    )


def _proof_row(proven: Proven) -> dict:
    return {
        "exercise": proven.exercise,
        "solution": proven.name,
        "expected": proven.expected or "pass",
        "found": proven.found or "pass",
        "holds": proven.holds,
    }


def _report(proven: list[Proven]) -> str:
    rows = []
    for *cells, holds in (_proof_row(one).values() for one in proven):
        rows.append((*cells, "" if holds else "WRONG"))
    wrong = sum(not one.holds for one in proven)
    return (
        table(("exercise", "solution", "expected", "found", ""), rows)
        + f"\n\n{len(proven)} solutions examined, {wrong} judged wrongly"
    )
