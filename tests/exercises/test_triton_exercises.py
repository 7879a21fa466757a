"""Exercises in Triton: judged, stepped through and kept as those in CUDA C."""

import pytest

from attn_course.exercises import hint, judge, read_exercise, session

pytestmark = pytest.mark.system

pytest.importorskip("triton")
NAME = "triton_softmax"
EXERCISE = read_exercise(NAME)


def test_the_stub_waits_for_a_cell_of_its_language():
    judgement = judge(EXERCISE, EXERCISE.stub)
    assert judgement.waiting and f"%%triton {NAME}" in repr(judgement)


@pytest.mark.parametrize(
    ("old", "new", "line", "said"),
    [
        ("tl.max(s, 0)", "tl.max(s 0)", 11, "SyntaxError"),
        ("tl.max(s, 0)", "tl.mux(s, 0)", 11, "has no attribute 'mux'"),
        ("@triton.jit\n", "", 0, "no Triton kernel 'softmax'"),
        ("def softmax(", "def other(", 0, "no Triton kernel 'softmax'"),
        ("import triton\n", "import triton\nraise RuntimeError('no')\n", 2, "RuntimeError: no"),
    ],
)
def test_a_text_that_is_no_kernel_is_told_with_its_line(old, new, line, said):
    assert old in EXERCISE.solution
    judgement = judge(EXERCISE, EXERCISE.solution.replace(old, new, 1))
    assert judgement.first.property == "compiles" and said in judgement.first.message
    assert f":{line} " in judgement.first.message or not line


def test_a_failure_names_the_line_of_the_python_text():
    wrong = next(one for one in EXERCISE.wrong if one.name == "no mask for the store")
    judgement = judge(EXERCISE, wrong.text)
    line = wrong.text[: wrong.text.index("    tl.store")].count("\n") + 1
    assert judgement.first.property == "in bounds" and judgement.first.line == line
    assert "element" in judgement.first.message and "out" in judgement.first.message


def test_the_stepper_shows_python():
    setup = EXERCISE.setups[1]
    trace = session.traced(EXERCISE, EXERCISE.solution, setup, (0, 0, 0), 5.0)
    [recording] = trace.recordings
    seen = " ".join(source for _, _, source, _ in recording.rows())
    assert "weights = tl.exp(s - tl.max(s, 0))" in seen


@pytest.mark.turns(23)
def test_a_notebook_keeps_the_text_and_checks_it(monkeypatch, capsys):
    monkeypatch.setattr(session, "_written", {})
    kernel = session.write(NAME, EXERCISE.solution)
    assert kernel.name == "softmax" and session.current_text(EXERCISE) == EXERCISE.solution
    assert session.check(NAME)
    hint(NAME)
    assert "Hint 1 of 3" in capsys.readouterr().out
