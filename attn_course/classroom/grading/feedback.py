"""Feedback as HTML pages: one a submission for the student, one of the class for the instructor.

Everything that comes from a submission is escaped, and the pages allow no script; the steps of a
failing case are a page beside it, made by the course's stepper.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from attn_course.exercises.judgement import PROPERTIES, lines_around

from ..points import PropertyPoints
from ..templates import template
from .gradebook import GRADED, printable
from .store import NO_SET, JudgedKernel, Result, page_name


def _page(**about) -> str:
    names = {"reasons": reasons, "lines": lines_around, "page_name": page_name}
    page = template("grading/pages.html.j2", of_html=True, finalize=clean)
    return page.render(**names, meanings=PROPERTIES, **about)


def clean(value: object) -> object:
    """Return a text with blanks for control characters other than line ends; markup as it is."""
    if not isinstance(value, str) or hasattr(value, "__html__"):
        return value
    return "\n".join(map(printable, value.split("\n")))


def feedback(result: Result) -> str:
    """Return a student's page."""
    title = f"{result.student}: {result.set or NO_SET}"
    remarks = [(one.kind, one.cell, one.text) for one in result.all_remarks]
    return _page(title=title, result=result, remarks=remarks)


def overview(
    results: Sequence[Result],
    links: Mapping[tuple[str, str], str],
    not_taken: Iterable[tuple[str, str]] = (),
) -> str:
    """Return the instructor's page.

    links: (student, problem set) -> the address of a page. not_taken: (file, reason) of what is in
    no submission.
    """
    graded = sum(one.state == GRADED for one in results)
    return _page(
        title=f"{len(results)} submissions, {graded} graded",
        results=sorted(results, key=lambda one: (one.set, one.student)),
        links=links,
        sandboxes=sorted({one.sandbox for one in results if one.sandbox}),
        not_taken=not_taken,
    )


def reasons(problem: JudgedKernel) -> Iterator[tuple[str, PropertyPoints, list[str]]]:
    """Yield each different reason for lost points once: a property, its row, other properties."""
    found: dict[str, list[PropertyPoints]] = {}
    for row in problem.rows:
        if row.reason:
            found.setdefault(row.reason, []).append(row)
    for first, *others in found.values():
        if len(others) + 1 == len(problem.rows):
            yield "All properties", first, []
        else:
            yield first.property, first, [row.property for row in others]
