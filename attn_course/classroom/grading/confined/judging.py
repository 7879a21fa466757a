"""Judge one kernel, inside the sandbox: its costs, or points and the failing case step by step.

    python -m attn_course.classroom.grading.confined.judging  (the task: standard input)

Only the course's own code runs here, on the text of a kernel. The answer goes out on a file
descriptor of its own; what the kernel prints goes nowhere, so that it cannot be taken for points.
"""

import json
import os
import sys

import msgspec

from attn_course.exercises.examination import compiled, examine, judge
from attn_course.exercises.exercise import Exercise, read_exercise
from attn_course.exercises.golf import costs
from attn_course.exercises.session import traced

from ...points import Points, PropertyPoints
from ...scoring import read_problem, score
from .supervise import REPLY

STEP_SECONDS = 2.0  # of the launch on the page; a kernel without an end shows its first steps
MOST_PAGE_CHARACTERS = 4_000_000


def main() -> None:
    reply = os.dup(REPLY)
    os.close(REPLY)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    task = json.load(sys.stdin)
    with os.fdopen(reply, "w", encoding="utf-8") as file:
        if "exercise" in task:
            json.dump(standing_of(task["exercise"], task["text"]), file)
            return
        points = score(task["problem"], task["text"])
        answer = json.dumps(msgspec.to_builtins(points))
        print(answer, file=file, flush=True)  # even if the page fails
        print(json.dumps(page(read_problem(task["problem"]), task["text"], points)), file=file)


def standing_of(name: str, text: str) -> dict[str, int] | str:
    """Return the costs of a kernel that passes, hidden cases included, or why it has none."""
    exercise = read_exercise(name)
    judgement = judge(exercise, text)
    failures = list(judgement.failures)
    for setup in exercise.hidden_setups if judgement else ():
        failures += examine(compiled(exercise, text), setup)[0]
    if judgement and not failures:
        return costs(judgement.totals)
    return f"fails: {failures[0].property}" if failures else "is the stub"


def page(problem: Exercise, text: str, points: Points) -> str:
    """Return the stepper on the first case that fails, as a page; "" where no block shows it."""
    row = shown(points)
    if row is None:
        return ""
    setups = (*problem.setups, *problem.hidden_setups)
    setup = next(one for one in setups if one.label == row.label)
    trace = traced(problem, text, setup, row.block, STEP_SECONDS)
    if not trace.recordings:
        return ""
    html = trace.to_html(title=f"{problem.name}, {setup.label}")
    return html if len(html) <= MOST_PAGE_CHARACTERS else ""


def shown(points: Points) -> PropertyPoints | None:
    """Return the first property that is lost with a thread block to show for it."""
    return next((row for row in points.rows if row.reason and row.block is not None), None)


if __name__ == "__main__":
    main()
