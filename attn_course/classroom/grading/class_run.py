"""Grade a folder: find the submissions, grade those that are new, write tables and pages."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from .feedback import feedback, overview
from .gradebook import printable, write_nbgrader, write_tables
from .grader import Task
from .handout import Handout, HandoutError, handout_of
from .pool import Outcome, grade_here, grade_on_cluster
from .store import Result, Store, write
from .submissions import Submission, collect, read_plain
from .verdict import JudgeError

OVERVIEW = "index.html"
Graded = Iterable[tuple[Task, Outcome]]


@dataclass(frozen=True)
class ClassRun:
    """What came of grading a folder.

    layout: which one was found. results: of all submissions, in the order of set and student.
    graded: how many were graded now; the others had been before. left_out: students that are not in
    nbgrader's gradebook, as it cannot hold their names. not_taken: (file, reason) of what looks
    like a notebook and is in no submission.
    """

    folder: Path
    layout: str
    results: tuple[Result, ...]
    graded: int
    left_out: tuple[str, ...] = ()
    not_taken: tuple[tuple[str, str], ...] = ()


def grade_class(
    folder: Path,
    out: Path,
    *,
    only: str = "",
    jobs: int = 0,
    cluster: str = "",
    again: bool = False,
    gradebook: Path | None = None,
    follow: Callable[[Graded, int], Graded] = lambda graded, count: graded,
) -> ClassRun:
    """Grade the submissions of a folder into the folder `out`.

    Args:
        only: this problem set only; the set of notebooks that name none.
        jobs: submissions at a time; 0 is one for each processor. cluster: the address of a Dask
            scheduler, which grades in place of this machine.
        again: grade those too whose results are there.
        gradebook: nbgrader's database, to write the points into.
        follow(graded, count): shows progress; returns an iterable of the same.
    Raises CollectError where no submissions are found, HandoutError for a problem set that cannot
    be graded, JudgeError where the judge does not work here, SandboxError, ClusterError,
    GradebookError.
    """
    layout, submissions, not_taken = collect(folder, only)
    handouts, unknown = _handouts(folder, submissions)
    store, results, tasks = Store(out), {}, []
    for one in submissions:
        task = _task(one, folder, handouts, unknown)
        found = None if again else store.load(task.student, task.set, task.key)
        if found is None:
            tasks.append(task)
        else:
            results[one.set, one.student] = found
    many = jobs or len(os.sched_getaffinity(0))
    graded = grade_on_cluster(tasks, cluster) if cluster else grade_here(tasks, many)
    for task, result in follow(graded, len(tasks)) if tasks else ():
        if isinstance(result, JudgeError):
            raise result
        if isinstance(result, Exception):
            why = printable(f"{type(result).__name__}: {result}")  # not kept, and tried again
            results[task.set, task.student] = task.result(failed=why)
        else:
            results[task.set, task.student] = store.save(*result)
    ordered = tuple(results[key] for key in sorted(results))
    _publish(store, ordered, not_taken)
    left_out = () if gradebook is None else write_nbgrader(gradebook, handouts, ordered)
    return ClassRun(out, layout, ordered, store.graded, tuple(left_out), tuple(not_taken))


def _handouts(
    folder: Path, submissions: Sequence[Submission]
) -> tuple[dict[str, Handout], dict[str, str]]:
    """Return the problem sets that submissions name, and why others cannot be graded."""
    handouts, unknown = {}, {}
    for name in sorted({one.set for one in submissions if one.set}):
        try:
            handouts[name] = handout_of(name, folder)
        except HandoutError as error:
            unknown[name] = str(error)
    if unknown and not handouts:
        raise HandoutError("; ".join(unknown.values()))
    return handouts, unknown


def _task(
    one: Submission, folder: Path, handouts: dict[str, Handout], unknown: dict[str, str]
) -> Task:
    problem, data, others = one.problem or unknown.get(one.set, ""), b"", ()
    if not problem:
        try:
            data = one.data()
            others = tuple((other.name, read_plain(other)) for other in one.others)
        except OSError as error:
            problem = f"the notebook cannot be read: {error.strerror}"
    handout = None if problem else handouts.get(one.set)
    about = (one.student, one.set, one.path.relative_to(folder).as_posix(), data, handout)
    return Task(*about, problem, one.remark, others=others, named=one.named)


def _publish(store: Store, results: Sequence[Result], not_taken: Sequence[tuple[str, str]]) -> None:
    """Write the tables, a page for each student, and the instructor's page."""
    write_tables(store.folder, results, not_taken)
    links = {}
    for one in results:
        path = store.feedback_path(one.student, one.set)
        write(path, feedback(one))
        # a name may be no UTF-8
        links[one.student, one.set] = quote(os.fsencode(path.relative_to(store.folder)))
    write(store.folder / OVERVIEW, overview(results, links, not_taken))
