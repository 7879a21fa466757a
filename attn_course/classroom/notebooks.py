"""The notebook of a problem set, made from its problems, as learners get it.

The source of nbgrader's course, with solutions and hidden tests, is made from it by the authors.
"""

import json

from attn_course.exercises.exercise import Exercise
from attn_course.exercises.judgement import PROPERTIES

from . import sets
from .points import ungraded_properties
from .sets import ProblemSet, SetCell
from .templates import template

SCHEMA = 3  # of nbgrader's metadata
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
IMPORTS = """import numpy as np

from attn_course.classroom import bonus, earn
from attn_course.exercises import check, step"""


def released_notebook(chosen: ProblemSet) -> dict:
    """Return the learner's notebook as plain data (nbformat 4.5): stubs, and no hidden tests."""
    return {
        "cells": [_cell(chosen, cell) for cell in chosen.cells],
        "metadata": {"kernelspec": KERNEL, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def notebook_text(notebook: dict) -> str:
    """Return a notebook as the text of its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _cell(chosen: ProblemSet, cell: SetCell) -> dict:
    is_markdown = cell.kind in (sets.TEXT, sets.STATEMENT)
    about = {
        "grade": cell.kind == sets.TEST,
        "grade_id": cell.grade_id,
        "locked": cell.kind != sets.SOLUTION,
        "schema_version": SCHEMA,
        "solution": cell.kind == sets.SOLUTION,
        "task": False,
    }
    if cell.kind == sets.TEST:
        about["points"] = cell.points
    made = {
        "cell_type": "markdown" if is_markdown else "code",
        "id": cell.grade_id[:64],
        "metadata": {"nbgrader": about},
        "source": _source(chosen, cell),
    }
    return made if is_markdown else made | {"execution_count": None, "outputs": []}


def _source(chosen: ProblemSet, cell: SetCell) -> str:
    if cell.kind == sets.SETUP:
        return IMPORTS
    if cell.kind == sets.TEXT:
        return _text(cell.grade_id.rpartition("-")[2], chosen)
    problem = next(one for one in chosen.problems if one.name == cell.problem)
    if cell.kind == sets.STATEMENT:
        return _text("statement", problem)
    if cell.kind == sets.NUMPY:
        return problem.numpy.rstrip()
    if cell.kind == sets.SOLUTION:
        return f"%%cuda {problem.name}\n{problem.stub.rstrip()}"
    if cell.kind == sets.CHECK:
        return f'check("{problem.name}")'
    if cell.kind == sets.BONUS:
        return f'# NBVAL_IGNORE_OUTPUT\nbonus("{problem.name}")'
    return f'earn("{problem.name}", "{cell.property}")'


def _text(macro: str, of: ProblemSet | Exercise) -> str:
    """Return the text of a Markdown cell: a macro of cells.md.j2, of the set or a problem."""
    macros = template("cells.md.j2", of_html=False).module
    return getattr(macros, macro)(of, PROPERTIES, ungraded_properties).strip()
