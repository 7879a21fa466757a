"""The notebook of a problem set, made from its problems: the source, and what learners get.

The source holds the solutions between `// BEGIN SOLUTION` and `// END SOLUTION` and the hidden
tests; nbgrader takes them out. `released_notebook` gives the same cells without nbgrader, for a
learner's working copy.
"""

import json
from functools import lru_cache
from pathlib import Path

from attn_course.exercises.exercise import Exercise
from attn_course.exercises.judgement import PROPERTIES

from . import sets
from .points import ungraded_properties
from .sets import ProblemSet, SetCell

SCHEMA = 3  # of nbgrader's metadata
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
IMPORTS = """import numpy as np

from attn_course.classroom import bonus, earn
from attn_course.exercises import check, step"""
HIDDEN_BEGIN, HIDDEN_END = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
MAGIC = "%%cuda"


def source_notebook(chosen: ProblemSet) -> dict:
    """Return the instructor's notebook as plain data (nbformat 4.5), without outputs."""
    return _notebook(chosen, released=False)


def released_notebook(chosen: ProblemSet) -> dict:
    """Return the learner's notebook: stubs for solutions, no hidden tests."""
    return _notebook(chosen, released=True)


def notebook_text(notebook: dict) -> str:
    """Return a notebook as the text of its file."""
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def _notebook(chosen: ProblemSet, released: bool) -> dict:
    return {
        "cells": [_cell(chosen, cell, released) for cell in chosen.cells],
        "metadata": {"kernelspec": KERNEL, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def _cell(chosen: ProblemSet, cell: SetCell, released: bool) -> dict:
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
        "source": _source(chosen, cell, released),
    }
    return made if is_markdown else made | {"execution_count": None, "outputs": []}


def _source(chosen: ProblemSet, cell: SetCell, released: bool) -> str:
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
        text = problem.stub if released else problem.solution
        return f"{MAGIC} {problem.name}\n{text.rstrip()}"
    if cell.kind == sets.CHECK:
        return f'check("{problem.name}")'
    if cell.kind == sets.BONUS:
        return f'# NBVAL_IGNORE_OUTPUT\nbonus("{problem.name}")'
    visible = f'earn("{problem.name}", "{cell.property}")'
    if released or not problem.hidden_setups:
        return visible
    hidden = f'earn("{problem.name}", "{cell.property}", hidden=True)'
    return "\n".join((visible, HIDDEN_BEGIN, hidden, HIDDEN_END))


def _text(macro: str, of: ProblemSet | Exercise) -> str:
    """Return the text of a Markdown cell: a macro of cells.md.j2, of the set or a problem."""
    return getattr(_template().module, macro)(of).strip()


@lru_cache(maxsize=1)
def _template():
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # `make tour` has it not

    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True)
    environment.globals["meaning"] = _meaning
    return environment.get_template("cells.md.j2")


def _meaning(problem: Exercise, name: str) -> str:
    """Return what the points of a property are for, in words."""
    kind, _, counter = name.partition(": ")
    if counter:
        return f"the goal of `{counter}` is reached"
    more = f", and no failure of: {', '.join(ungraded_properties(problem))}"
    return PROPERTIES[kind] + (more if kind == "agrees" and ungraded_properties(problem) else "")
