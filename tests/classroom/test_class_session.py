"""A problem set in a notebook: `earn` and `bonus`."""

import os
import subprocess
import sys

import pytest
from kernelscope.backend import gpu_count
from kernelscope.contest import Timing

from attn_course.classroom import bonus, earn, scoring
from attn_course.classroom.gpu_bonus import awarded, timed
from attn_course.classroom.session import NotEarned
from attn_course.classroom.session import _scored as scored
from attn_course.exercises import ExerciseError, check, read_exercise, session
from attn_course.exercises.exercise import problem_names

pytestmark = pytest.mark.system

NAME = "ps4_d"
WITH_BONUS = [name for name in problem_names() if read_exercise(name).bonus]


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "_written", {})
    return session.write


@pytest.mark.turns(23)
def test_a_property_that_holds_prints_its_points(write, capsys):
    write(NAME, read_exercise(NAME).solution)
    earn(NAME, "in bounds")
    earn(NAME, "in bounds", hidden=True)
    assert capsys.readouterr().out.splitlines() == [
        "in bounds: 2 of 2 points (3 cases, visible)",
        "in bounds: 2 of 2 points (6 cases, with hidden ones)",
    ]


@pytest.mark.turns(7)
def test_cases_that_a_check_passed_are_not_run_again(write, monkeypatch):
    problem, seen, examine = read_exercise(NAME), [], scoring.examine

    def noted(kernel, setup):
        seen.append(setup.label)
        return examine(kernel, setup)

    monkeypatch.setattr(scoring, "examine", noted)
    write(NAME, problem.solution)
    check(NAME)
    scored.cache_clear()
    earn(NAME, "in bounds")
    assert not seen
    earn(NAME, "in bounds", hidden=True)
    assert seen == [setup.label for setup in problem.hidden_setups]
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    seen.clear()
    scored.cache_clear()
    earn(NAME, "in bounds")
    assert seen == [setup.label for setup in problem.setups]
    monkeypatch.delenv("NBGRADER_EXECUTION")
    write(NAME, problem.wrong[0].text)  # of another text nothing is known
    with pytest.raises(NotEarned):
        earn(NAME, "in bounds")


def test_a_property_that_fails_names_case_and_line(write):
    problem = read_exercise(NAME)
    write(NAME, problem.wrong[0].text)
    with pytest.raises(
        NotEarned, match=r"in bounds: 0 of 2 points \(case n = 32, w = 2\), line 12"
    ):
        earn(NAME, "in bounds")
    write(NAME, problem.stub)
    with pytest.raises(NotEarned, match="still holds the stub"):
        earn(NAME, "agrees")


AUTOGRADED = """
from attn_course.classroom import session
def broken(*_, **__):
    raise OSError("no compiler here")
session._scored = broken
try:
    session.earn("ps4_d", "in bounds")
except OSError:
    print("raised")
"""


@pytest.mark.parametrize(("by", "out"), [("autograde", ""), ("validate", "raised\n")])
def test_nbgrader_gives_no_0_where_the_machine_fails(by, out, tmp_path):
    """An error in a test cell would be 0 points; a process that ends is a failed assignment."""
    environment = os.environ | {"NBGRADER_EXECUTION": by}
    ended = subprocess.run(
        [sys.executable, "-c", AUTOGRADED],
        capture_output=True,
        text=True,
        env=environment,
        cwd=tmp_path,
    )
    assert (ended.returncode, ended.stdout) == (0 if out else 1, out)
    assert ("ps4_d is not judged: OSError: no compiler here" in ended.stderr) == (not out)


def test_what_has_no_points_is_told(write):
    with pytest.raises(ExerciseError, match="no points for 'barriers', but for: in bounds, agrees"):
        earn(NAME, "barriers")
    with pytest.raises(ExerciseError, match="has no points"):
        earn("add_ten", "agrees")


@pytest.mark.turns(23)
def test_a_pass_does_not_show_the_reference(write):
    problem = read_exercise(NAME)
    write(NAME, problem.correct[0].text)
    shown = check(NAME)._repr_html_()
    assert "passed" in shown and "key &lt; 0 || key &gt;= n" not in shown


# -- the bonus -------------------------------------------------------------------------------------
@pytest.mark.skipif(bool(gpu_count()), reason="CuPy sees a GPU")
def test_without_a_gpu_the_bonus_says_so(write):
    found = bonus("ps2_softmax")
    assert (found.earned, found.possible) == (0, 2)
    assert "skipped, CuPy sees no GPU" in repr(found)
    assert bonus(NAME).possible == 0


@pytest.mark.parametrize(("yours", "points"), [(104.0, 2), (106.0, 0)])
def test_the_bonus_is_for_kernels_as_fast_as_the_reference(yours, points):
    problem = read_exercise("ps2_softmax")
    times = [Timing(name, "graph", (us,)) for name, us in (("yours", yours), ("reference", 100.0))]
    found = awarded(problem, problem.setups[0], *times)
    assert found.earned == points and "the goal is at most 105.0 us" in found.reason


@pytest.mark.skipif(not gpu_count(), reason="CuPy sees no GPU")
@pytest.mark.parametrize("name", WITH_BONUS)
def test_the_reference_earns_the_bonus_and_a_wrong_kernel_does_not(name):
    problem = read_exercise(name)
    assert timed(problem, problem.solution).earned == problem.bonus
    short = next(one for one in problem.wrong if "unwritten" in one.name)
    assert timed(problem, short.text).earned == 0
