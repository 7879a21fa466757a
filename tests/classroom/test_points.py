"""The rules that turn examined cases into points, one by one."""

import json
from dataclasses import replace

import msgspec
import pytest
from kernelscope.errors import CompilerFailedError

from attn_course.classroom import Points, score
from attn_course.classroom.grading.verdict import NotJudged, own_points
from attn_course.classroom.points import STUB, CaseOutcome, nothing, points_of
from attn_course.classroom.scoring import read_problem
from attn_course.exercises import ExerciseError, examination, judge, read_exercise
from attn_course.exercises.examination import compiled, launch
from attn_course.exercises.exercise import GOAL, parse_exercise
from attn_course.exercises.judgement import Failure

SECTORS = f"{GOAL}global_load_sectors"
PROBLEM = replace(
    read_exercise("ps1_scores"),
    points={"agrees": 4, "in bounds": 1, "no race": 2, SECTORS: 3, f"{GOAL}barriers": 2},
)


def outcome(*failures, hidden=False):
    found = tuple(Failure(name, f"{name} fails", counter=counter) for name, counter in failures)
    return CaseOutcome("n = 1", hidden, found)


def lost(*outcomes, problem=PROBLEM):
    return points_of(problem, outcomes).lost


GOOD = outcome()


def test_all_is_earned_where_every_case_holds():
    points = points_of(PROBLEM, [GOOD, GOOD])
    assert points.earned == points.possible == 12 and not points.lost


@pytest.mark.parametrize("hidden", [False, True])
def test_a_property_must_hold_in_every_case_the_hidden_ones_too(hidden):
    points = points_of(PROBLEM, [GOOD, outcome(("no race", ""), hidden=hidden)])
    assert points.lost == ("no race", SECTORS, f"{GOAL}barriers")
    row = points.of("no race")
    assert row.hidden is hidden and row.label == "n = 1" and row.reason == "no race fails"


@pytest.mark.parametrize("name", ["compiles", "finishes"])
def test_what_does_not_end_earns_nothing(name):
    assert points_of(PROBLEM, [GOOD, outcome((name, ""))]).earned == 0


def test_a_result_after_an_illegal_access_does_not_count_as_right():
    assert "agrees" in lost(GOOD, outcome(("in bounds", "")))


def test_agrees_stands_for_properties_without_points():
    assert lost(GOOD, outcome(("barriers", "")))[0] == "agrees"
    assert "agrees" not in lost(GOOD, outcome(("no race", "")))


def test_safety_needs_one_right_result():
    assert lost(outcome(("agrees", ""))) == tuple(PROBLEM.points)
    assert "no race" not in lost(GOOD, outcome(("agrees", "")))


def test_goals_are_counted_one_by_one_once_all_else_holds():
    assert lost(outcome(("counters", "global_load_sectors"))) == (SECTORS,)
    assert {SECTORS, f"{GOAL}barriers"} < set(lost(GOOD, outcome(("agrees", ""))))
    one = replace(PROBLEM, points={"agrees": 1, "counters": 2})
    assert lost(outcome(("counters", "barriers")), problem=one) == ("counters",)


@pytest.mark.parametrize("others", [(), ("no race",)])
def test_without_the_method_a_right_result_is_all_that_counts(others):
    method = Failure("counters", "global_load_requests is 9", "n = 5", method=True)
    failures = (*(Failure(name, f"{name} fails") for name in others), method)
    points = points_of(PROBLEM, [GOOD, CaseOutcome("n = 5", True, failures)])
    assert points.lost == tuple(name for name in PROBLEM.points if name != "agrees")
    row = points.of("in bounds")
    assert row.reason.startswith("no points without the method that is asked for: global_load")
    assert row.label == "n = 5" and row.hidden


def test_nothing_is_earned_before_the_needed_property_holds():
    needed = replace(PROBLEM, needed="no race")
    points = points_of(needed, [outcome(("no race", ""))])
    assert points.earned == 0 and "before `no race` holds" in points.of("agrees").reason
    assert points_of(needed, [outcome(("counters", "barriers"))]).earned == 10


def test_points_are_plain_data():
    points = points_of(PROBLEM, [GOOD, outcome(("agrees", ""), hidden=True)])
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(points))), Points) == points
    with pytest.raises(KeyError):
        points.of("style")


# -- answers ---------------------------------------------------------------------------------------
def test_a_stub_and_a_text_that_does_not_compile_earn_nothing():
    problem = read_problem("ps2_softmax")
    assert score("ps2_softmax", problem.stub) == nothing(problem, STUB)
    broken = score("ps2_softmax", problem.solution.replace("expf(", "expf((", 1))
    assert broken.earned == 0 and broken.rows[0].reason.startswith("compiles: ")
    other_name = score("ps2_softmax", problem.solution.replace(" softmax(", " softmaxx("))
    assert other_name.earned == 0 and "softmaxx" in other_name.rows[0].reason


CRASH = f"__global__ void k(int* x) {{ x[0] = {'(' * 100_000}1{')' * 100_000}; }}"
ABORTS = "__device__ int zeros[1 << 28] = {1};"  # the same in the sandbox, which has more memory


@pytest.mark.turns(41)
@pytest.mark.system
def test_a_crash_of_the_compiler_gives_no_points_and_takes_none(monkeypatch):
    """The source or the machine may be the cause: nobody gets 0 for it."""
    monkeypatch.setenv("KERNELSCOPE_MEMORY", "300M")
    monkeypatch.delenv("KERNELSCOPE_COMPILED", raising=False)
    for examined in (score, lambda name, text: judge(read_exercise(name), text)):
        with pytest.raises(CompilerFailedError, match="the compiler broke down"):
            examined("ps2_softmax", CRASH)
    with pytest.raises(NotJudged, match="CompilerFailedError: .*compiler"):
        own_points("ps2_softmax", ABORTS)


@pytest.mark.parametrize("when", [0, 1])
def test_a_compiler_that_fails_in_a_case_gives_no_verdict(when, monkeypatch):
    """At the launch, or under the sanitizer, whose build is another."""
    problem = read_problem("ps4_a")
    kernel, calls = compiled(problem, problem.solution), []

    def failing(*arguments, **keywords):
        calls.append(1)
        if len(calls) > when:
            raise CompilerFailedError("the compiler's process has ended")
        return launch(*arguments, **keywords)

    monkeypatch.setattr(examination, "launch", failing)
    with pytest.raises(CompilerFailedError):
        examination.examine(kernel, problem.setups[0])
    assert len(calls) == when + 1


@pytest.mark.turns(23)
@pytest.mark.system
def test_the_sanitizer_sees_the_text_that_is_counted():
    """A right kernel for the debug build alone earns nothing for the other one."""
    problem = read_problem("ps1_scores")
    racy = next(one.text for one in problem.wrong if one.name == "no first barrier")
    text = f"#ifdef __CUDACC_DEBUG__\n{problem.solution}\n#else\n{racy}\n#endif\n"
    assert "no race" in score(problem.name, text).lost


def test_an_exercise_of_a_lesson_has_no_points():
    with pytest.raises(ExerciseError, match="has no points"):
        score("add_ten", "")
    with pytest.raises(ExerciseError, match="ps1_scores"):
        score("ps1_score", "")


@pytest.mark.turns(23)
@pytest.mark.system
def test_a_process_of_its_own_gives_the_same_points_whatever_the_kernel_prints():
    problem = read_problem("ps4_e")
    loud = problem.solution.replace("    s[", '    printf("{\\"ps4_e\\": 5}\\n");\n    s[')
    found, wrong = own_points("ps4_e", loud), read_problem("ps4_a").wrong[0].text
    assert found.earned == found.possible
    assert own_points("ps4_a", wrong) == score("ps4_a", wrong)


@pytest.mark.turns(23)
@pytest.mark.system
def test_a_process_that_says_nothing_is_told():
    with pytest.raises(NotJudged, match="no_such is not judged: .*there is no exercise"):
        own_points("no_such", "")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("agrees = 4", "style = 4"), "not 'style' = 4"),
        (("agrees = 4", 'agrees = "four"'), "not 'agrees' = 'four'"),
        (("counters: global_load_sectors", "counters: sectors"), "'counters: sectors'"),
        (("bonus = 2", 'bonus = 2\nneeded = "style"'), "needed is 'style'"),
        (("// BEGIN SOLUTION", "// begin"), "no section Stub"),
    ],
)
def test_a_wrong_file_of_a_problem_is_refused(change, message):
    from attn_course.exercises.exercise import ASSIGNMENTS

    text = (ASSIGNMENTS / "ps1_scores.md").read_text(encoding="utf-8").replace(*change)
    with pytest.raises(ExerciseError) as raised:
        parse_exercise("ps1_scores", text)
    assert message in str(raised.value)
