"""Writes the notebooks of the problem sets from the files of `exercises/assignments`.

    python tools/problem_sets.py           write notebooks/assignments/source/psN/psN.ipynb
    python tools/problem_sets.py --check   exit status 1 where one is not current

An output stays where its cell has not changed; `make notebooks` runs the cells again.
"""

import argparse
import json
import sys
from pathlib import Path

from attn_course.classroom.notebooks import notebook_text, released_notebook
from attn_course.classroom.sets import SOLUTION, TEST, ProblemSet, problem_sets

HIDDEN_BEGIN, HIDDEN_END = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
SOURCE = Path(__file__).resolve().parent.parent / "notebooks" / "assignments" / "source"


def source_notebook(chosen: ProblemSet) -> dict:
    """Return the instructor's notebook, without outputs.

    It holds the solutions between `// BEGIN SOLUTION` and `// END SOLUTION` and the hidden tests;
    nbgrader takes them out.
    """
    notebook = released_notebook(chosen)
    problems = {problem.name: problem for problem in chosen.problems}
    for cell, about in zip(notebook["cells"], chosen.cells, strict=True):
        problem = problems.get(about.problem)
        if about.kind == SOLUTION:
            cell["source"] = f"%%cuda {problem.name}\n{problem.solution.rstrip()}"
        elif about.kind == TEST and problem.hidden_setups:
            visible = cell["source"]
            hidden = f"{visible.removesuffix(')')}, hidden=True)"
            cell["source"] = "\n".join((visible, HIDDEN_BEGIN, hidden, HIDDEN_END))
    return notebook


def renewed(new: dict, old: dict | None) -> dict:
    """Return the new notebook with the outputs of the cells that it shares with the old one."""
    kept = {cell["id"]: cell for cell in old["cells"]} if old else {}
    cells = []
    for cell in new["cells"]:
        same = kept.get(cell["id"])
        is_same = same is not None and "".join(same["source"]) == cell["source"]
        is_same = is_same and same["metadata"].get("nbgrader") == cell["metadata"]["nbgrader"]
        cells.append(same if is_same else cell)
    return new | {"cells": cells, "metadata": old["metadata"] if old else new["metadata"]}


def is_current(new: dict, old: dict | None) -> bool:
    if old is None or len(old["cells"]) != len(new["cells"]):
        return False
    pairs = zip(renewed(new, old)["cells"], old["cells"], strict=True)
    return all(one is other for one, other in pairs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args()
    stale = []
    for chosen in problem_sets():
        path = SOURCE / chosen.name / f"{chosen.name}.ipynb"
        old = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
        new = source_notebook(chosen)
        if is_current(new, old):
            continue
        stale.append(path.name)
        if not arguments.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(notebook_text(renewed(new, old)), encoding="utf-8")
    for name in stale:
        print(f"{name}: {'is not current' if arguments.check else 'written'}")
    return 1 if arguments.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
