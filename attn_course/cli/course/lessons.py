"""`attn-course lessons`: the lessons with minutes and progress, in the learner's working copy."""

import importlib.util
import os
import sys
from pathlib import Path

from kernelscope.cli.arguments import write_json
from kernelscope.errors import InputError, did_you_mean

from attn_course.classroom.notebooks import notebook_text, released_notebook
from attn_course.classroom.sets import problem_sets
from attn_course.cli.arguments import output_folder
from attn_course.figures import table
from attn_course.folders import search_path
from attn_course.lessons.working_copy import LAB_EXTENSIONS, Lesson, WorkingCopy, lessons

from .grade_self import FOLDER


def add(parsers) -> None:
    parser = parsers.add_parser(
        "lessons",
        help="make the working copies of the lessons, and list minutes and progress",
        description="Copy the lessons without their outputs, and the problem sets without their "
        "solutions, into a folder where you work on them. "
        "What you changed is never overwritten: a newer version of a lesson goes beside yours.",
    )
    parser.add_argument(
        "--folder",
        type=output_folder,
        default="work",
        help="the working copy (default: work, in the current folder)",
    )
    parser.add_argument(
        "--open",
        nargs="?",
        const="00_start_here",
        metavar="LESSON",
        help="open JupyterLab in the working copy, on this lesson, by its name or number (default: "
        "the first)",
    )


def execute(arguments) -> int:
    found = lessons()
    opened = None if arguments.open is None else lesson_name(arguments.open, found)
    if opened is not None and importlib.util.find_spec("jupyterlab") is None:
        raise ModuleNotFoundError(name="jupyterlab")
    copy = WorkingCopy(arguments.folder.resolve())
    said = copy.update()
    sets = {f"{FOLDER}/{one.name}.ipynb": released_notebook(one) for one in problem_sets()}
    said += copy.place({path: notebook_text(notebook) for path, notebook in sets.items()})
    rows = [_row(copy, lesson) for lesson in found]
    if arguments.json != Path("-"):
        where = f"They are in {copy.folder}, the problem sets in its folder {FOLDER}."
        if opened is None:
            where += "\nattn-course lessons --open 03 opens one of them in JupyterLab."
        print("\n".join([*said, _listing(rows), "", where]), flush=True)
    write_json(arguments.json, {"folder": str(copy.folder), "lessons": rows})
    if opened is not None:
        command = lab_command(copy.folder, opened)
        os.execve(command[0], command, {**os.environ, "PATH": search_path()})
    return 0


def lesson_name(name: str, found: list[Lesson]) -> str:
    """The lesson of a name, or of a number such as 03. Raises ValueError where there is none."""
    names = [lesson.name for lesson in found]
    for one in names:
        if name == one or f"{name:0>2}" == one.split("_")[0]:
            return one
    near = did_you_mean(name, names)
    raise InputError(f"no lesson {name!r}{near}; the lessons are: {', '.join(names)}")


def lab_command(folder: Path, lesson: str) -> list[str]:
    """Return the command that opens JupyterLab in the working copy, with the course's extension.

    The extension colours cells that begin with %%cuda as C++, and turns off JupyterLab's question
    about news, its look for updates on the network, and nbgrader's tools for teachers.
    Root needs leave of its own; where there is no screen, the address is printed instead.
    """
    command = [sys.executable, "-m", "jupyterlab", "--ServerApp.root_dir", str(folder)]
    command.append(f"--LabApp.extra_labextensions_path={LAB_EXTENSIONS}")
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        command.append("--allow-root")
    marks = (Path("/.dockerenv"), Path("/run/.containerenv"))  # of docker and of podman
    if os.environ.get("container") or any(mark.exists() for mark in marks):
        command += ["--ip", "0.0.0.0", "--no-browser"]
    command.append(str(folder / f"{lesson}.ipynb"))
    return command


def _row(copy: WorkingCopy, lesson: Lesson) -> dict:
    progress = copy.progress()
    tried = {name: progress[name] for name in lesson.exercises if name in progress}
    return {
        "name": lesson.name,
        "title": lesson.title,
        "minutes": lesson.minutes,
        "exercise_minutes": lesson.exercise_minutes,
        "begun": copy.has_changed(lesson.name),
        "exercises": list(lesson.exercises),
        "passed": [name for name, one in tried.items() if one.passed],
        "tries": sum(one.tries for one in tried.values()),
        "minutes_taken": round(sum(one.minutes or 0 for one in tried.values()), 1),
        "hints": sum(one.hints for one in tried.values()),
    }


def _listing(rows: list[dict]) -> str:
    cells = [
        (
            row["name"],
            f"{row['minutes']}",
            f"{row['exercise_minutes']}",
            f"{len(row['passed'])} of {len(row['exercises'])}" if row["exercises"] else "-",
            *(
                f"{row[name]:g}" if row[name] else ""
                for name in ("tries", "minutes_taken", "hints")
            ),
            "begun" if row["begun"] else "",
        )
        for row in rows
    ]
    heads = ("lesson", "minutes", "for exercises", "passed", "tries", "minutes taken", "hints", "")
    return table(heads, cells, right=(1, 2, 3, 4, 5, 6))
