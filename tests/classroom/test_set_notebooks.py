"""The notebooks of the problem sets: current, released without a solution, and not to be fooled."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import problem_sets as tool
import pytest

from attn_course.classroom import (
    problem_set,
    problem_sets,
    released_notebook,
)
from attn_course.classroom.notebooks import notebook_text
from attn_course.classroom.sets import TEST, ProblemSetError
from attn_course.cli.main import main

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[2]
ASSIGNMENTS = ROOT / "notebooks" / "assignments"
SETS = problem_sets()
SHORTEST_SECRET = 12  # characters of a line that could give a solution away


def stored(chosen) -> nbformat.NotebookNode:
    return nbformat.read(ASSIGNMENTS / "source" / chosen.name / f"{chosen.name}.ipynb", 4)


def sources(notebook) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"]]


@pytest.mark.parametrize("chosen", SETS, ids=lambda chosen: chosen.name)
def test_the_stored_notebook_is_current_and_passed_all_its_tests(chosen):
    notebook = stored(chosen)
    nbformat.validate(notebook)
    assert tool.is_current(tool.source_notebook(chosen), notebook), "run tools/problem_sets.py"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    kinds = {output.output_type for cell in code for output in cell.outputs}
    assert kinds and "error" not in kinds
    assert all(cell.outputs for cell in code if cell.metadata.nbgrader.grade)


def test_a_changed_problem_makes_its_notebook_stale():
    chosen = problem_set("ps2")
    old = json.loads(notebook_text(stored(chosen)))
    new = tool.source_notebook(chosen)
    assert tool.is_current(new, old)
    new["cells"][2]["source"] += " "
    assert not tool.is_current(new, old)
    kept = tool.renewed(new, old)["cells"]
    assert "outputs" not in kept[2] and kept[5]["outputs"] == old["cells"][5]["outputs"]


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """nbgrader's course folder, with the released version of each problem set."""
    folder = tmp_path_factory.mktemp("course")
    made = subprocess.run(
        [sys.executable, "tools/release_class.py", folder],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


def secrets(chosen) -> set[str]:
    """Lines of solutions, correct and wrong, and of the hidden cases, that a learner must find."""
    found = {"hidden=True", "HIDDEN"}
    for problem in chosen.problems:
        shown = f"{problem.stub}\n{problem.statement}\n{problem.folded_hints}\n{problem.numpy}"
        others = [one.text for one in (*problem.correct, *problem.wrong)]
        hidden = problem.specification.partition("HIDDEN = [")[2].partition("\n]")[0]
        for text in (problem.solution, hidden, *others):
            lines = {line.strip() for line in text.splitlines()}
            found |= {line for line in lines if line not in shown and len(line) > SHORTEST_SECRET}
    return found


@pytest.mark.turns(23, "release")
@pytest.mark.parametrize("chosen", SETS, ids=lambda chosen: chosen.name)
def test_the_release_gives_no_solution_away(course, chosen):
    path = course / "release" / chosen.name / f"{chosen.name}.ipynb"
    notebook = nbformat.read(path, 4)
    text = "\n".join(sources(notebook))
    known = secrets(chosen)
    assert len(known) > 10 and not [line for line in known if line in text]
    assert sources(notebook) == sources(released_notebook(chosen))
    assert not any(cell.get("outputs") for cell in notebook.cells)
    points = sum(cell.metadata.nbgrader.get("points", 0) for cell in notebook.cells)
    assert points == chosen.points
    original = "\n".join(sources(stored(chosen)))
    assert [line for line in known if line in original]  # and they can be found where they are


@pytest.mark.turns(29, "release")
def test_nbgrader_finds_that_a_release_earns_nothing(course):
    done = subprocess.run(
        [Path(sys.executable).parent / "nbgrader", "validate", "release/ps2/ps2.ipynb"],
        cwd=course,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    tests = [cell for cell in problem_set("ps2").cells if cell.kind == TEST]
    assert done.stdout.count("still holds the stub") == len(tests)
    assert f"VALIDATION FAILED ON {len(tests)} CELL" in done.stdout


# -- one's own points ------------------------------------------------------------------------------
@pytest.fixture
def work(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    assert main(["lessons"]) == 0
    return tmp_path / "work" / "assignments"


def rewrite(path: Path, **texts: str) -> None:
    """Change the cells of these ids, and put cells of new ids before the end."""
    notebook = json.loads(path.read_text())
    for name, text in texts.items():
        mine = [cell for cell in notebook["cells"] if cell["id"] == name]
        if not mine:
            mine = [dict(nbformat.v4.new_code_cell(""), id=name)]
            notebook["cells"].insert(-1, mine[0])
        mine[0]["source"] = text
    path.write_text(json.dumps(notebook))


def own_points(capsys, name: str) -> dict:
    capsys.readouterr()
    status = main(["grade", "--self", name, "--json", "-"])
    record = json.loads(capsys.readouterr().out)
    assert status == (0 if record["earned"] == record["possible"] else 1)
    return record


def test_the_working_copy_has_the_problem_sets_without_solutions(work):
    for chosen in SETS:
        notebook = json.loads((work / f"{chosen.name}.ipynb").read_text())
        assert sources(notebook) == sources(released_notebook(chosen))


@pytest.mark.turns(23)
def test_a_right_kernel_earns_all_points_before_it_is_handed_in(work, capsys):
    [problem] = problem_set("ps2").problems
    rewrite(work / "ps2.ipynb", ps2_softmax=f"%%cuda ps2_softmax\n{problem.correct[0].text}")
    record = own_points(capsys, "ps2")
    assert record["earned"] == record["possible"] == problem_set("ps2").points
    assert record["remarks"] == []
    assert main(["lessons"]) == 0
    assert "ps2.ipynb" not in capsys.readouterr().out  # the learner's copy stays as it is


@pytest.mark.turns(29)
def test_what_a_wrong_kernel_loses_is_listed(work, capsys):
    [problem] = problem_set("ps2").problems
    [short] = [one for one in problem.wrong if one.name == "rows of at most 128"]
    rewrite(work / "ps2.ipynb", ps2_softmax=f"%%cuda ps2_softmax\n{short.text}")
    capsys.readouterr()
    assert main(["grade", "--self", "ps2"]) == 1
    shown = capsys.readouterr().out
    assert "agrees" in shown and "0 of 4" in shown and "in a hidden case: " in shown
    assert "m = 250" not in shown and "ps2: 5 of 14 points" in shown
    assert "bonus: 0 of 2 points: " in shown


def test_python_of_the_notebook_earns_nothing(work, capsys):
    """NumPy in place of a kernel, functions that are replaced, and a second cell of the name."""
    [problem] = problem_set("ps2").problems
    rewrite(
        work / "ps2.ipynb",
        **{
            "own-numpy": "p = softmax(np.ones((1, 4)), [4], 1.0)",
            "own-earn": "earn = check = lambda *args, **more: print('4 of 4 points')",
            "ps2_softmax-agrees": "print('agrees: 4 of 4 points')",
            "own-kernel": f"%%cuda ps2_softmax\n{problem.solution}",
        },
    )
    record = own_points(capsys, "ps2")
    assert record["earned"] == 0
    assert any("is changed" in text for text in record["remarks"])
    assert any("begins with `%%cuda ps2_softmax` too" in text for text in record["remarks"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--self", "ps9"], "the problem sets are: ps1, ps2"),
        (["--self", "ps1"], "attn-course lessons"),
        (["--self", "ps1", "no.ipynb"], "no.ipynb"),
        (["--self", "ps1", "text.ipynb"], "not JSON"),
        ([], "--self ps1"),
    ],
)
def test_what_can_not_be_graded_is_told_in_one_line(
    tmp_path, monkeypatch, capsys, arguments, words
):
    monkeypatch.chdir(tmp_path)
    Path("text.ipynb").write_text("no notebook")
    assert main(["grade", *arguments]) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.splitlines()) == 1


def test_an_unknown_set_is_named():
    with pytest.raises(ProblemSetError, match="ps4, ps5"):
        problem_set("ps0")
