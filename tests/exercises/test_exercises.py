"""Every exercise of the folder: its proof, its budget, and what its file must hold."""

import difflib

import pytest
from IPython.core.interactiveshell import InteractiveShell

from attn_course.exercises import exercise_names, prove, read_exercise, session
from attn_course.exercises.exercise import problem_names
from attn_devtools.mutants.kinds import kind_faults
from attn_devtools.mutants.share import MUTANTS_ONE_IN, part_of
from attn_devtools.mutants.survival import survival
from attn_devtools.shares import in_turns

pytestmark = pytest.mark.system

NAMES = exercise_names()
LEAST_WRONG, LEAST_CORRECT = 12, 3  # the reference is one of the correct ones


def lacks(exercise) -> list[str]:
    """What the proof of an exercise lacks, in words."""
    found = [f"{len(exercise.wrong)} wrong"] if len(exercise.wrong) < LEAST_WRONG else []
    correct = 1 + len(exercise.correct)
    found += [f"{correct} correct"] if correct < LEAST_CORRECT else []
    return [*found, *kind_faults(exercise)]


def test_a_proof_has_every_kind_of_wrong_kernel():
    lacking = {name: lacks(read_exercise(name)) for name in NAMES}
    assert not any(lacking.values()), {name: found for name, found in lacking.items() if found}


@pytest.mark.parametrize("name", in_turns(NAMES, 23))
def test_a_mutant_of_a_reference_is_rejected_or_listed_with_its_reason(name):
    found = survival(read_exercise(name), one_in=MUTANTS_ONE_IN)
    assert found.holds, found


@pytest.mark.parametrize("name", in_turns(NAMES, 19))
def test_every_solution_is_judged_rightly(name):
    wrong = [
        f"{one.name}: {one.found or 'passed'}, expected {one.expected or 'a pass'}"
        for one in prove(part_of(read_exercise(name)))
        if not one.holds
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", NAMES)
def test_the_solutions_of_an_exercise_are_different_and_fail_for_different_reasons(name):
    exercise = read_exercise(name)
    assert len({one.rejected_for for one in exercise.wrong}) >= 2
    texts = [exercise.solution, *(one.text for one in exercise.correct + exercise.wrong)]
    assert len(set(texts)) == len(texts)
    # JupyterLab colours all that follows `:::` of inline PTX as a string.
    assert ":::" not in exercise.stub + exercise.solution


@pytest.mark.parametrize("name", [*NAMES, *problem_names()])
def test_the_line_budget_is_what_the_solution_takes(name):
    exercise = read_exercise(name)
    stub, solution = (
        [line.strip() for line in text.splitlines() if line.split("//")[0].strip(" {}")]
        for text in (exercise.stub, exercise.solution)
    )
    matches = difflib.SequenceMatcher(a=stub, b=solution, autojunk=False).get_matching_blocks()
    written = len(solution) - sum(match.size for match in matches)
    assert exercise.lines - 2 <= written <= exercise.lines * 1.3 + 1


def test_learners_write_at_least_150_lines_in_ten_lessons():
    exercises = [read_exercise(name) for name in NAMES]
    assert len(exercises) >= 20
    assert len({exercise.lesson for exercise in exercises}) >= 10
    assert sum(exercise.lines for exercise in exercises) >= 150


@pytest.fixture(scope="module")
def shell():
    shell = InteractiveShell()
    shell.run_cell("from attn_course import RawModule, xp, lessons")
    shell.run_cell("import numpy as np")
    shell.register_magic_function(session.cuda, "cell")
    shell.run_cell("from attn_course.exercises import check, step")
    return shell


@pytest.mark.parametrize(
    ("cell", "line", "words"),
    [
        ("n = 1\ncheck('no_such')", "line 2 of the cell: check(", "there is no exercise"),
        (
            "%%cuda no_such\n" + "a long text;\n" * 50,
            "line 1 of the cell: get_",
            "there is no exercise",
        ),
        ("step('add_ten')", "line 1 of the cell: step(", 'run check("add_ten")'),
        ("lessons.predict('p', 'x')", "line 1 of the cell: lessons", "without quotes"),
        (
            "def build(text):\n    return RawModule(code=text, backend='simulator')\n\n"
            "build('extern \"C\" __global__ void f(int* x) { x[0] = 1 }').get_function('f')",
            "line 4 of the cell: build(",
            "expected a",
        ),
        (
            "k = RawModule(code='extern \"C\" __global__ void f(int* x) { x[9] = 1; }',"
            "backend='simulator').get_function('f')\nk((1,), (1,), (np.zeros(4, np.int32),))",
            "line 2 of the cell: k((1,)",
            "element 9",
        ),
    ],
)
def test_an_error_shows_the_learners_line_and_the_message(
    shell, capsys, monkeypatch, cell, line, words
):
    monkeypatch.setattr(session, "_judgements", {})  # as in a session that has checked nothing
    shell.run_cell(cell)
    shown = capsys.readouterr().out
    assert line in shown and words in shown
    assert "attn_course/" not in shown and len(shown.splitlines()) <= 14, shown
