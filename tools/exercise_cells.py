"""Writes the exercises into the lessons, each as four cells made from its Markdown file.

    python tools/exercise_cells.py                     write the cells of all placed exercises again
    python tools/exercise_cells.py --check             exit status 1 where one is not current
    python tools/exercise_cells.py --place NAME CELL   put an exercise after the cell with this id

The cells hold the statement, the stub, the check, and in four folds three hints and the solution.
Their metadata names the exercise, so that they are found again. A lesson imports `check` and `step`
before them. The minutes in a lesson's first cell are written too, by the rules in
attn_course/lessons/study_minutes.py and attn_devtools/lesson_minutes.py.
"""

import argparse
import re
import sys
from pathlib import Path

import nbformat

from attn_course.exercises import Exercise, exercise_names, read_exercise
from attn_devtools.lesson_minutes import lesson_minutes

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
TIME = re.compile(r"(?<=\*\*Time:\*\* )\d+ minutes, and \d+(?= for the exercises\.)")
SOLUTION = "<details><summary>Solution</summary>\n\n```{}\n{}```\n\n</details>"


def cells_of(exercise: Exercise) -> list:
    """Return the four cells of an exercise, without outputs."""
    new = nbformat.v4
    title = f"### Exercise: {exercise.title}"
    plural = "s" if exercise.lines > 1 else ""
    budget = f"*About {exercise.lines} line{plural}, {exercise.minutes} minutes.*"
    solution = SOLUTION.format(
        {"cuda": "c++", "triton": "python"}[exercise.language], exercise.solution
    )
    cells = [
        new.new_markdown_cell(f"{title}\n\n{budget}\n\n{exercise.statement}"),
        new.new_code_cell(f"%%{exercise.language} {exercise.name}\n{exercise.stub.rstrip()}"),
        new.new_code_cell(f'check("{exercise.name}")'),
        new.new_markdown_cell(f"{exercise.folded_hints}\n\n{solution}"),
    ]
    for part, cell in zip(("statement", "stub", "check", "folds"), cells, strict=True):
        cell.id = f"{exercise.name}-{part}"[:64]
        cell.metadata["exercise"] = exercise.name
    return cells


def renewed(notebook) -> bool:
    """Write the cells of a notebook's exercises again; return whether any has changed."""
    cells, seen = [], set()
    for cell in notebook.cells:
        name = cell.metadata.get("exercise")
        if name is None:
            cells.append(cell)
        elif name not in seen:
            seen.add(name)
            old = {c.id: c for c in notebook.cells if c.metadata.get("exercise") == name}
            for new in cells_of(read_exercise(name)):
                same = old.get(new.id)
                cells.append(same if same is not None and same.source == new.source else new)
    changed = [id(cell) for cell in cells] != [id(cell) for cell in notebook.cells]
    notebook.cells = cells
    head = TIME.sub(time_of(cells), cells[0].source)
    changed |= head != cells[0].source
    cells[0].source = head
    return changed


def time_of(cells) -> str:
    """Return the minutes that the head of a lesson states."""
    names = dict.fromkeys(cell.metadata.get("exercise") for cell in cells)
    exercises = sum(read_exercise(name).minutes for name in names if name)
    return f"{lesson_minutes(cells)} minutes, and {exercises}"


def place(exercise: Exercise, after: str) -> Path:
    """Put an exercise's cells into its lesson after the cell `after`, or move them there."""
    path = NOTEBOOKS / f"{exercise.lesson}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    kept = [cell for cell in notebook.cells if cell.metadata.get("exercise") != exercise.name]
    places = [number for number, cell in enumerate(kept) if cell.id == after]
    if not places:
        raise SystemExit(f"{path.name}: no cell has the id {after!r}")
    where = places[0] + 1
    notebook.cells = kept[:where] + cells_of(exercise) + kept[where:]
    renewed(notebook)
    nbformat.write(notebook, path)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only compare")
    parser.add_argument("--place", nargs=2, metavar=("NAME", "CELL"))
    arguments = parser.parse_args()
    if arguments.place:
        name, cell = arguments.place
        print(f"{name}: in {place(read_exercise(name), cell).name}")
        return 0
    stale, placed = [], set()
    for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        changed = renewed(notebook)
        placed |= {cell.metadata.get("exercise") for cell in notebook.cells}
        if changed:
            stale.append(path.name)
            if not arguments.check:
                nbformat.write(notebook, path)
    missing = [name for name in exercise_names() if name not in placed]
    for name in stale:
        print(f"{name}: {'exercises are not current' if arguments.check else 'written'}")
    for name in missing:
        print(f"{name}: in no lesson; place it with --place {name} CELL")
    return 1 if missing or (arguments.check and stale) else 0


if __name__ == "__main__":
    sys.exit(main())
