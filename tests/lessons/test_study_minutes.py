"""The minutes of a lesson and of an exercise, by hand."""

from attn_course.exercises import read_exercise
from attn_course.lessons.study_minutes import exercise_minutes
from attn_devtools.lesson_minutes import lesson_minutes


def cell(kind, text, **metadata):
    return {"cell_type": kind, "source": text.splitlines(keepends=True), "metadata": metadata}


def test_words_lines_and_predictions_add_up():
    prose = cell("markdown", "word " * 300)  # 2 minutes
    code = cell("code", "x = 1\n\n" * 20)  # 2 minutes; empty lines do not count
    ask = cell("code", 'my_prediction = None\npredict("what", my_prediction)')  # 2.2 minutes
    assert lesson_minutes([prose, code]) == 5
    assert lesson_minutes([prose, code, ask]) == 10
    assert lesson_minutes([prose, code, cell("code", "x\n" * 500, exercise="add_ten")]) == 5


def test_an_exercise_is_read_and_written():
    assert exercise_minutes("word " * 150, "line\n" * 10, 3) == 1 + 1 + 9
    one = read_exercise("add_ten")
    assert one.minutes == exercise_minutes(one.statement, one.stub, one.lines)
