"""`attn-course grade DIR`: grade a class, each submission in a sandbox."""

from pathlib import Path
from textwrap import shorten

import msgspec
from kernelscope.cli.arguments import natural, output_file, write_json
from kernelscope.errors import InputError
from tqdm import tqdm

from attn_course.classroom.grading.class_run import OVERVIEW, ClassRun, grade_class
from attn_course.classroom.grading.gradebook import printable
from attn_course.classroom.grading.store import GRADED
from attn_course.classroom.grading.submissions import MOST_NAMED
from attn_course.cli.arguments import output_folder
from attn_course.figures import table

from .grade_self import grade_self

MOST_CHARACTERS = 160  # of a remark in the table


def add(parsers) -> None:
    parser = parsers.add_parser(
        "grade",
        help="grade the notebooks of a class",
        description="Grade every submission of a folder. The text of each kernel is judged by the "
        "course's own code in a sandbox; the notebook is read and not executed. Results are kept, "
        "so that a second call goes on where the first was stopped. "
        "Exit status 1 when a submission is not graded; 2 when nothing is, as the judge does not "
        "work here.",
        epilog="The folder has nbgrader's layout (submitted/STUDENT/ps1/ps1.ipynb), or holds "
        "notebooks such as ann_ps1.ipynb.",
    )
    parser.add_argument(
        "folder",
        metavar="DIR",
        type=Path,
        nargs="?",
        help="where the submissions are; with --self your notebook",
    )
    parser.add_argument(
        "--self",
        dest="own",
        default="",
        metavar="SET",
        help="show the points of your own notebook of this problem set, and grade nobody else",
    )
    parser.add_argument("--set", default="", metavar="SET", help="this problem set only: ps1 ...")
    parser.add_argument(
        "--out", type=output_folder, metavar="FOLDER", help="results (default: DIR/grades)"
    )
    parser.add_argument(
        "--jobs", type=natural, default=0, help="submissions at a time (default: the processors)"
    )
    parser.add_argument(
        "--dask", default="", metavar="ADDRESS", help="grade on the Dask cluster of this scheduler"
    )
    parser.add_argument("--again", action="store_true", help="grade those too that are graded")
    parser.add_argument(
        "--gradebook",
        type=output_file,
        metavar="FILE",
        help="also write the points into nbgrader's database, such as DIR/gradebook.db",
    )


def execute(arguments) -> int:
    if arguments.own:
        return grade_self(arguments.own, arguments.folder, arguments.json)
    if arguments.folder is None:
        raise InputError("name the folder of the submissions, or a problem set: --self ps1")
    quiet = arguments.json == Path("-")

    def follow(graded, count):
        return tqdm(graded, total=count, disable=quiet or None, unit="submission")

    run = grade_class(
        arguments.folder,
        arguments.out or arguments.folder / "grades",
        only=arguments.set,
        jobs=arguments.jobs,
        cluster=arguments.dask,
        again=arguments.again,
        gradebook=arguments.gradebook,
        follow=follow,
    )
    if not quiet:
        print(_report(run))
    write_json(arguments.json, _record(run))
    return 0 if all(result.state == GRADED for result in run.results) else 1


def _record(run: ClassRun) -> dict:
    """The outcome for machines: results without the texts of kernels."""
    rows = [
        {
            "student": one.student,
            "set": one.set,
            "file": one.file,
            "state": one.state,
            "points": one.earned,
            "possible": one.possible,
            "remarks": msgspec.to_builtins(one.all_remarks),
            "seconds": one.seconds,
        }
        for one in run.results
    ]
    left = [{"file": file, "reason": why} for file, why in run.not_taken]
    kept = {"layout": run.layout, "graded_now": run.graded}
    return kept | {"submissions": rows, "not_taken": left}


def _report(run: ClassRun) -> str:
    rows = []
    for result in run.results:
        remarks = result.all_remarks
        graded = result.state == GRADED
        cells = (
            result.set,
            result.student,
            f"{result.earned} of {result.possible}" if graded else result.state,
            shorten(remarks[0].text, MOST_CHARACTERS) if remarks else "",
            f"{len(remarks) - 1} more" if len(remarks) > 1 else "",
        )
        rows.append(tuple(printable(cell) for cell in cells))
    graded = sum(result.state == GRADED for result in run.results)
    confined = sorted({result.sandbox for result in run.results if result.sandbox})
    lines = [
        table(("set", "student", "points", "remarks", ""), rows),
        "",
        f"{run.layout}: {len(run.results)} submissions, {graded} graded, {run.graded} of all now",
        *(f"sandbox: {one}" for one in confined),
        *(f"not in the gradebook, the name is not UTF-8: {printable(one)}" for one in run.left_out),
        *_not_taken(run),
        f"written to {run.folder}: grades.csv, points.csv, remarks.csv, {OVERVIEW}, feedback/",
    ]
    return "\n".join(lines)


def _not_taken(run: ClassRun) -> list[str]:
    """A line for each file that is in no submission, and one for those that are too many."""
    lines = [f"not taken: {printable(file)}: {why}" for file, why in run.not_taken[:MOST_NAMED]]
    more = len(run.not_taken) - len(lines)
    return [*lines, f"not taken: {more:,} more, in not_taken.csv"] if more else lines
