"""The judge's own limits: loops without an end."""

import pytest

from attn_course.exercises import examination, read_exercise, session

pytestmark = pytest.mark.system

ENDLESS = {  # what stands in place of row_sum's `++col`, and the word of the message
    "counts on": ("col -= 77 == (n = n * 1664525u + 1u)", "ran longer than"),
    "stands still": ("col += 0", "repeats a loop"),
}


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(examination, "LAUNCH_SECONDS", 0.3)
    monkeypatch.setattr(examination, "SANITIZER_SECONDS", 0.3)
    monkeypatch.setattr(session, "STEP_SECONDS", 0.3)


@pytest.mark.turns(47)
@pytest.mark.parametrize("name", ENDLESS)
def test_a_loop_without_an_end_is_told_with_its_line(soon, name):
    step, words = ENDLESS[name]
    exercise = read_exercise("row_sum")
    found = examination.judge(exercise, exercise.solution.replace("++col", step))
    assert found.first.property == "finishes" and words in found.first.message
    assert step in exercise.solution.replace("++col", step).splitlines()[found.first.line - 1]
    assert "KERNELSCOPE_TIMEOUT" not in repr(found)
    session._judgements["row_sum"] = found
    try:
        assert session.step("row_sum").tracer.recordings[0].frames
    finally:
        del session._judgements["row_sum"]


def test_a_slow_kernel_that_ends_is_not_failed(monkeypatch):
    monkeypatch.setattr(examination, "LAUNCH_SECONDS", 100)  # whatever else the machine does
    launch, given = examination.launch, []

    def slow(kernel, setup, arguments, *observers, seconds=None):
        given.append(([type(one).__name__ for one in observers], seconds))
        limit = 1e-9 if len(given) == 1 else seconds
        launch(kernel, setup, arguments, *observers, seconds=limit)

    monkeypatch.setattr(examination, "launch", slow)
    exercise = read_exercise("row_sum")
    assert examination.judge(exercise, exercise.solution)
    assert given[:3] == [(["Counters"], 100), ([], 100), (["Counters"], None)]
