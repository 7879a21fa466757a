"""Every problem: its proof, its budget, and how many solutions prove it."""

import pytest

from attn_course.classroom import problem_sets, score
from attn_course.classroom.proof import prove_problem
from attn_course.exercises import read_exercise
from attn_course.exercises.exercise import BEGIN, END, YOUR_CODE, problem_names
from attn_devtools.mutants.share import part_of
from attn_devtools.shares import in_turns

pytestmark = pytest.mark.system

NAMES = problem_names()
REPAIRS = [name for name in NAMES if name.startswith("ps4")]


@pytest.mark.parametrize("name", in_turns(NAMES, 13))
def test_every_solution_earns_what_it_should(name):
    wrong = [
        f"{one.name}: {one.found or 'passed'}, expected {one.expected or 'a pass'}; "
        f"{one.points.earned} of {one.points.possible}, lost {one.points.lost}"
        for one in prove_problem(part_of(read_exercise(name)))
        if not one.holds
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("chosen", problem_sets(), ids=lambda chosen: chosen.name)
def test_a_set_has_enough_solutions_to_prove_its_points(chosen):
    assert sum(len(problem.wrong) for problem in chosen.problems) >= 12
    for problem in chosen.problems:
        assert len(problem.correct) >= 2 and len(problem.wrong) >= 4
        others = (*problem.correct, *problem.wrong)
        texts = [problem.stub, problem.solution, *(one.text for one in others)]
        assert len(set(texts)) == len(texts)
        assert problem.hidden_setups and problem.points
    assert {problem.lesson for problem in chosen.problems} == {chosen.lesson}


@pytest.mark.turns(41)
@pytest.mark.parametrize("name", in_turns([name for name in NAMES if name not in REPAIRS], 6))
def test_a_wrong_solution_passes_what_the_learner_sees(name):
    """So the hidden cases are needed; and three other correct solutions show that they are fair."""
    problem = read_exercise(name)
    assert len(problem.correct) >= 3
    passed = [
        one.name
        for one in problem.wrong
        if "at most" in one.name and not score(name, one.text, hidden=False).lost
    ]
    assert passed


@pytest.mark.turns(23)
@pytest.mark.parametrize("name", in_turns(REPAIRS, 2))
def test_a_broken_kernel_under_other_names_earns_nothing(name):
    problem = read_exercise(name)
    points = score(name, problem.stub.replace("{\n", "{\n    int unused = 0;\n", 1))
    assert points.earned == 0 and problem.needed in points.lost
    if name == "ps4_a":  # right in lockstep
        assert "before `no race` holds" in points.of("agrees").reason


@pytest.mark.turns(17)
def test_a_slow_kernel_under_other_names_earns_little():
    problem = read_exercise("ps5_weighted")
    points = score("ps5_weighted", problem.stub.replace("half", "side"))
    assert points.earned <= 2 < points.possible / 4


@pytest.mark.parametrize("name", NAMES)
def test_without_the_method_nothing_but_the_result_is_paid(name):
    """Each problem with a method has a wrong solution without it, in plain loads and in atomics."""
    problem = read_exercise(name)
    if not problem.setups[0].method:
        return
    stated = [one for one in problem.wrong if one.earns is not None]
    without = [one for one in stated if one.earns in (0, problem.points["agrees"])]
    assert without and any("atomic" in one.name for one in without)
    assert all(setup.method for setup in (*problem.setups, *problem.hidden_setups))


def test_an_empty_kernel_earns_nothing():
    text = read_exercise("ps2_softmax").stub.replace(YOUR_CODE, "return;")
    assert score("ps2_softmax", text).earned == 0


@pytest.mark.parametrize("change", ["", "// a remark\n", "#\n", "/* two\nlines */"])
def test_a_stub_with_comments_is_still_the_stub(change):
    problem = read_exercise("ps1_scores")
    assert problem.is_stub(problem.stub.replace(YOUR_CODE, change))
    assert BEGIN not in problem.stub and END not in problem.stub
