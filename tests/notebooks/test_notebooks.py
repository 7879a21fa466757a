"""Every lesson keeps the course's rhythm and stores what nbval compares.

Without stored outputs nbval has nothing to compare and passes whatever the cells print; these tests
refuse such a notebook.
"""

import copy
import re
from pathlib import Path
from pkgutil import resolve_name

import nbformat
import pytest

from attn_course.exercises import read_exercise
from attn_devtools.lesson_minutes import lesson_minutes

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted(ROOT.glob("notebooks/[0-9]*.ipynb"))
MAX_CODE_LINES = 25
CELLS = range(20, 61)  # an exercise counts as one
IGNORED = ("# NBVAL_IGNORE_OUTPUT", "nbval-ignore-output")
# A duration measured by the run that stored the output.
DURATION = re.compile(
    r"(?<![\w.])\d+(?:[.,]\d+)?(?:e-?\d+)?\s?(?:ns|us|µs|μs|ms|s|seconds?)\b|it/s"
)
# A name of the two packages, as prose gives it: attn_course.measure.recorded.
OF_OURS = re.compile(r"\b(?:attn_course|kernelscope)(?:\.[A-Za-z_]\w*)+")
# A cell that shows a duration from results/ says so; that one is the same in every run.
RECORDED = re.compile(r"(?i)\brecorded\b")


def source(cell) -> str:
    return "".join(cell.source)


def output_text(cell) -> str:
    """Everything of a cell's stored output that a reader sees as text."""
    parts = []
    for output in cell.get("outputs", []):
        parts.append(output.get("text", ""))
        data = output.get("data", {})
        parts.extend(data.get(kind, "") for kind in ("text/plain", "text/markdown"))
    return "\n".join("".join(part) for part in parts)


def ignores_output(cell) -> bool:
    return IGNORED[0] in source(cell) or IGNORED[1] in cell.metadata.get("tags", [])


def output_problems(notebook) -> list[str]:
    """Cells that never ran, ran out of order, failed, or hide from nbval."""
    found, expected = [], 1
    code = [(n, cell) for n, cell in enumerate(notebook.cells) if cell.cell_type == "code"]
    if not any(cell.outputs for _, cell in code):
        found.append("no stored output: nbval would check nothing")
    for number, cell in code:
        if cell.execution_count != expected:
            found.append(f"cell {number} was not run in order: run `make notebooks`")
        expected += 1
        if any(output.output_type == "error" for output in cell.outputs):
            found.append(f"cell {number} stores an error")
        if "NBVAL_SKIP" in source(cell) or "nbval-skip" in cell.metadata.get("tags", []):
            found.append(f"cell {number} is skipped by nbval")
        text = output_text(cell)
        timed = DURATION.search(text)
        if timed and not RECORDED.search(text) and not ignores_output(cell):
            found.append(f"cell {number} shows a time ({timed.group(0)}) and lacks {IGNORED[0]}")
    return found


HEAD = re.compile(
    r"# \d\d · .+\n\n\*\*The question: (?s:.+?)\*\*\n\n"
    r"\*\*Time:\*\* (\d+) minutes, and (\d+) for the exercises\.\n+"
    r"\*\*Builds on:\*\* (?s:.+?)\n\*\*New words:\*\* (?s:.+?)\(\[glossary\]\(glossary\.md\)\)"
)


def head_problems(notebook) -> list[str]:
    """The first cell lacks what a learner needs to plan, or counts other minutes."""
    head = HEAD.match(source(notebook.cells[0])) if notebook.cells else None
    if head is None:
        return ["the first cell does not give title, question, time, what it builds on, new words"]
    names = {cell.metadata.get("exercise") for cell in notebook.cells} - {None}
    found, minutes = [], sum(read_exercise(name).minutes for name in names)
    if int(head[1]) != (text := lesson_minutes(notebook.cells)):
        found.append(f"its text takes {text} minutes, not {head[1]}: tools/exercise_cells.py")
    if int(head[2]) != minutes:
        found.append(f"its exercises take {minutes} minutes, not {head[2]}")
    return found


def figure_problems(notebook) -> list[str]:
    """Figures that a reader who does not see them knows nothing of."""
    found = []
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            images = re.findall(r"<img [^>]*>", "".join(data.get("text/html", "")))
            bare = any(not re.search(r'alt="[^"]{20,}"', image) for image in images)
            if bare or ("image/png" in data and not images):
                found.append(f"cell {number} has a figure without a description: figures.described")
    return found


def rhythm_problems(notebook) -> list[str]:
    """Too long, no title, no prediction, no way on."""
    found = []
    cells = notebook.cells
    parts = [cell.metadata.get("exercise", cell.id) for cell in cells]
    if len(set(parts)) not in CELLS:
        found.append(f"{len(set(parts))} cells; a lesson has {CELLS[0]} to {CELLS[-1]}")
    if not cells or cells[0].cell_type != "markdown" or not source(cells[0]).startswith("# "):
        found.append("the first cell is not a title")
    if (
        not cells
        or cells[-1].cell_type != "markdown"
        or not re.search(r"(?im)^#+ .*where next", source(cells[-1]))
    ):
        found.append("the last cell is not a 'Where next'")
    prose = "\n".join(source(cell) for cell in cells if cell.cell_type == "markdown")
    if not re.search(r"(?i)\bpredict(ion)?\b", prose):
        found.append("no prediction is asked for")
    for number, cell in enumerate(cells):
        lines = len(source(cell).strip().splitlines())
        stub = "exercise" in cell.metadata  # a kernel file, as long as it has to be
        if cell.cell_type == "code" and not stub and lines > MAX_CODE_LINES:
            found.append(f"cell {number} has {lines} lines, at most {MAX_CODE_LINES}")
    return found


def problems(notebook) -> list[str]:
    rules = (head_problems, rhythm_problems, output_problems, figure_problems)
    return [problem for rule in rules for problem in rule(notebook)]


def test_there_are_lessons():
    assert [path.name[:2] for path in LESSONS[:3]] == ["00", "01", "02"]
    assert len({path.name[:2] for path in LESSONS}) == len(LESSONS), "two lessons share a number"


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    found = problems(notebook)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_lesson_names_files_that_exist(path):
    notebook = nbformat.read(path, as_version=4)
    text = "\n".join(source(cell) for cell in notebook.cells)
    for name in set(re.findall(r"\bkernels/[\w/]+\.cuh?\b", text)):
        assert (ROOT / name).is_file(), f"{path.name} names {name}"
    for name in set(re.findall(r"\]\((\d\d_\w+\.ipynb)\)", text)):
        assert (path.parent / name).is_file(), f"{path.name} links to {name}"


GOOD_HEAD = """# 99 · Title

**The question: how many?**

**Time:** 5 minutes, and 0 for the exercises.

**Builds on:** nothing.

**New words:** none ([glossary](glossary.md))"""


def names_that_lead_nowhere(text: str) -> list[str]:
    """The names of ours in a text that no module has."""
    found = []
    for name in OF_OURS.findall(text):
        try:
            resolve_name(name)
        except (ImportError, AttributeError):
            found.append(name)
    return found


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_prose_names_what_there_is(path):
    cells = nbformat.read(path, as_version=4).cells
    prose = "\n".join(source(cell) for cell in cells if cell.cell_type == "markdown")
    assert names_that_lead_nowhere(prose) == []


def test_a_name_that_is_gone_is_found():
    text = "`attn_course.measure.recorded`, `attn_course.measure.gone(1)`, `kernelscope.gone.name`"
    assert names_that_lead_nowhere(text) == ["attn_course.measure.gone", "kernelscope.gone.name"]


def good_notebook():
    """A lesson that keeps every rule."""
    new = nbformat.v4
    cells = [new.new_markdown_cell(GOOD_HEAD), new.new_markdown_cell("Predict: how many sectors?")]
    for count in range(1, 19):
        output = new.new_output("stream", name="stdout", text=f"answer {count}\n")
        cells.append(new.new_code_cell(f"print({count})", execution_count=count, outputs=[output]))
    cells.append(new.new_markdown_cell("## Where next\nOn to tiles."))
    return new.new_notebook(cells=cells)


def print_text(cell, text):
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text)]


def show_figure(cell, **data):
    cell.outputs = [nbformat.v4.new_output("display_data", data=data)]


DEFECTS = {
    "what it builds on": lambda cells: cells[0].update(source=GOOD_HEAD.replace("Builds", "Build")),
    "text takes 25 minutes, not 5": lambda cells: cells[1].update(source="Predict: word " * 1600),
    "take 7 minutes, not 0": lambda cells: cells[3].metadata.update(exercise="add_ten"),
    "not a title": lambda cells: cells.pop(0),
    "Where next": lambda cells: cells.pop(),
    "no prediction": lambda cells: cells.pop(1),
    "at most 25": lambda cells: cells[2].update(source="x = 1\n" * 26),
    "no stored output": lambda cells: [c.update(outputs=[]) for c in cells if "outputs" in c],
    "stores an error": lambda cells: cells[3].outputs.append(
        nbformat.v4.new_output("error", ename="E", evalue="v", traceback=[])
    ),
    "in order": lambda cells: cells[4].update(execution_count=99),
    "skipped": lambda cells: cells[5].update(source="# NBVAL_SKIP\nprint(1)"),
    "without a description": lambda cells: show_figure(cells[7], **{"image/png": "iVBOR"}),
    "has a figure": lambda cells: show_figure(cells[8], **{"text/html": '<img alt="" src="x">'}),
    "shows a time": lambda cells: print_text(cells[6], "took 3.2 ms"),
    "20 to 60": lambda cells: cells.extend(nbformat.v4.new_markdown_cell("x") for _ in range(45)),
}


def test_a_good_lesson_has_no_problem():
    assert problems(good_notebook()) == []


@pytest.mark.parametrize("word", DEFECTS)
def test_each_defect_is_found(word):
    notebook = copy.deepcopy(good_notebook())
    DEFECTS[word](notebook.cells)
    assert any(word in problem for problem in problems(notebook)), problems(notebook)


@pytest.mark.parametrize("text", ["recorded on H200: 29.9 us", "(2, 12, 196, 64)", "32 sectors"])
def test_text_that_is_no_measured_time(text):
    notebook = good_notebook()
    print_text(notebook.cells[6], text)
    assert problems(notebook) == []
