"""The notebook's side: `%%cuda`, `check`, `step`, kept answers and progress."""

import json

import pytest
from IPython.core.interactiveshell import InteractiveShell
from kernelscope.watch.sanitizer.findings import KINDS

from attn_course.exercises import PROPERTIES, ExerciseError, read_exercise, session
from attn_course.exercises.examination import BROKEN_BY
from attn_course.lessons.working_copy import PROGRESS, WorkingCopy


@pytest.fixture
def copy(tmp_path, monkeypatch) -> WorkingCopy:
    """A working copy that the current folder is inside of."""
    (tmp_path / PROGRESS).write_text("{}")
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    monkeypatch.setattr(session, "_written", {})
    monkeypatch.setattr(session, "_judgements", {})
    return WorkingCopy(tmp_path)


def wrong(name: str, called: str) -> str:
    return next(one.text for one in read_exercise(name).wrong if one.name == called)


def test_an_exercise_waits_until_its_kernel_is_written(copy):
    judgement = session.check("add_ten")
    assert judgement.waiting and not judgement
    assert "waiting for your kernel" in repr(judgement) and "%%cuda add_ten" in repr(judgement)
    assert "waiting" in judgement._repr_html_()
    assert copy.progress() == {}
    with pytest.raises(ExerciseError, match='check\\("add_ten"\\)'):
        session.step("add_ten")


def test_a_comment_in_the_stub_is_no_answer(copy):
    session.write("add_ten", "// I do not know\n" + read_exercise("add_ten").stub)
    assert session.check("add_ten").waiting


def test_a_failure_names_property_case_and_line(copy):
    session.write("add_ten", wrong("add_ten", "no guard"))
    judgement = session.check("add_ten")
    text = repr(judgement)
    assert judgement.first.property == "in bounds" and judgement.first.line == 4
    assert "case n = 1" in text and "out[i] = x[i] + 10.0f;" in text and ">   4" in text
    assert "element 1 of x" in text
    assert judgement.properties["in bounds"] is False and judgement.properties["compiles"] is True
    assert judgement.properties["agrees"] is judgement.properties["counters"] is None
    assert "&#10007;" in judgement._repr_html_()


@pytest.mark.system
def test_goals_are_not_judged_before_the_rest_holds(copy):
    session.write("transpose", wrong("transpose", "no barrier"))
    judgement = session.check("transpose")
    assert judgement.first.property == "no race" and judgement.properties["counters"] is None
    assert max(map(len, repr(judgement).splitlines())) <= 100  # its sentence has more


@pytest.mark.turns(23)
@pytest.mark.system
def test_a_goal_of_nothing_is_shown_with_a_pass(copy):
    session.write("transpose_padded", read_exercise("transpose_padded").solution)
    judgement = session.check("transpose_padded")
    assert judgement.counters["shared_load_conflicts"] == (0, 0, "<= 0")


def test_step_shows_the_failing_case_even_where_the_kernel_faults(copy):
    session.write("add_ten", wrong("add_ten", "no guard"))
    session.check("add_ten")
    stepper = session.step("add_ten")
    found = stepper.tracer.findings[0]
    assert stepper.step == found["step"] > 0 and found["kind"] == "out-of-bounds"


def test_step_opens_at_the_last_step_of_a_kernel_that_never_ends(copy):
    session.write("add_arrays", wrong("add_arrays", "never moves on"))
    assert session.check("add_arrays").first.property == "finishes"
    stepper = session.step("add_arrays")
    assert stepper.step == len(stepper.tracer.frames) - 1 > 0


TWO_FINDINGS = """
extern "C" __global__ void rotate_row(float* x, int m) {
    __shared__ float unset[1024];
    float* row = x + blockIdx.x * m;
    const float old = unset[threadIdx.x];
    row[threadIdx.x] = old + row[threadIdx.x + 1];
}
"""


def test_step_opens_at_the_finding_that_check_tells(copy):
    """The uninitialised read comes first, and check tells the access out of bounds."""
    session.write("rotate_row", TWO_FINDINGS)
    assert session.check("rotate_row").first.property == "in bounds"
    stepper = session.step("rotate_row")
    early, told = stepper.tracer.findings
    assert early["kind"] == "uninitialised-read" and stepper.step == told["step"] > early["step"]


@pytest.mark.system
def test_step_opens_at_the_beginning_after_a_pass(copy):
    session.write("add_ten", read_exercise("add_ten").solution)
    assert session.check("add_ten")
    assert session.step("add_ten").step == 0


def test_what_does_not_compile_is_told_with_its_line(copy):
    text = read_exercise("add_ten").solution.replace("10.0f;", "10.0f")
    session.write("add_ten", text)
    judgement = session.check("add_ten")
    assert judgement.first.property == "compiles" and 'expected a ";"' in judgement.first.message
    assert judgement.properties["agrees"] is None


def test_assembly_that_is_no_ptx_does_not_compile(copy):
    solution = read_exercise("add_ten").solution
    session.write("add_ten", solution.replace("{", '{ asm volatile(".reg .v2 .b32 q;");', 1))
    first = session.check("add_ten").first
    assert first.property == "compiles" and "vector registers are not supported" in first.message


def test_every_kind_of_finding_breaks_a_property():
    assert set(BROKEN_BY) == set(KINDS) and set(BROKEN_BY.values()) <= set(PROPERTIES)


def test_other_parameters_are_told_before_any_result(copy):
    session.write("add_ten", read_exercise("add_ten").solution.replace(", int n", ", float n"))
    judgement = session.check("add_ten")
    assert judgement.first.property == "compiles" and "n" in judgement.first.message


def test_a_pass_shows_the_reference_and_both_counts(copy):
    exercise = read_exercise("add_ten")
    session.write("add_ten", exercise.correct[1].text)
    judgement = session.check("add_ten")
    assert judgement and judgement.cases[-1] == "n = 140000"
    mine, theirs, goal = judgement.counters["global_load_sectors"]
    assert mine == theirs == 17500 and goal == "<= 17,500"
    assert "Your kernel beside the reference" in judgement._repr_html_()


def test_answers_and_progress_are_kept(copy):
    exercise = read_exercise("add_ten")
    session.write("add_ten", exercise.wrong[0].text)
    session.check("add_ten")
    assert copy.progress()["add_ten"].tries == 1
    session.write("add_ten", exercise.solution)
    session.check("add_ten")
    session.write("add_ten", exercise.wrong[0].text)
    session.check("add_ten")
    assert (mine := copy.progress()["add_ten"]).passed and mine.tries == 3
    assert copy.answer("add_ten") == exercise.wrong[0].text
    assert (copy.folder / "answers" / "add_ten.before.cu").read_text() == exercise.solution


def test_a_new_session_checks_the_kept_answer(copy):
    copy.keep("add_ten", read_exercise("add_ten").solution)
    assert session.check("add_ten")


def test_the_magic_keeps_the_kernel_and_names_its_module(copy):
    shell = InteractiveShell.instance()
    try:
        shell.register_magic_function(session.cuda, "cell")
        shell.run_cell_magic("cuda", "add_ten", read_exercise("add_ten").solution)
        assert shell.user_ns["add_ten"].get_function("add_ten") is not None
        assert shell.user_ns["hint"] is session.hint
        near = r"there is no exercise 'add_tenn' \(did you mean 'add_ten'\?\); they are: .*add_ten"
        with pytest.raises(ExerciseError, match=near):
            shell.run_cell_magic("cuda", "add_tenn", "x")
        with pytest.raises(ExerciseError, match="write the exercise's name after %%cuda"):
            shell.run_cell_magic("cuda", "", "x")
        with pytest.raises(ExerciseError, match="write the name in quotes"):
            session.check(shell.user_ns["add_ten"])
    finally:
        InteractiveShell.clear_instance()


def test_outside_a_working_copy_nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(session, "_written", {})
    session.write("add_ten", read_exercise("add_ten").solution)
    assert session.check("add_ten")
    assert list(tmp_path.iterdir()) == []


def test_an_unreadable_progress_file_is_set_aside(copy):
    (copy.folder / PROGRESS).write_text('{"exercises": [1, 2')
    copy.note("add_ten", lambda attempts: attempts.add("", ""))
    assert json.loads((copy.folder / PROGRESS).read_text())["exercises"]["add_ten"]["passed"]
    assert (copy.folder / "progress.json.unreadable").is_file()
