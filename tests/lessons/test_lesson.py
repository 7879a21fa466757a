"""Predictions, listings and facts that the lessons print."""

import os
import re
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from attn_course import lessons
from attn_course.ladder.headers import kernel_path
from attn_course.lessons import predictions, show
from attn_course.lessons.predictions import PredictionError


@pytest.fixture(autouse=True)
def no_predictions():
    lessons.begin()
    yield
    lessons.begin()


def test_a_lesson_runs_without_predictions(capsys):
    lessons.predict("idle threads", None)
    lessons.predict("which way", None, {"a": "down", "b": "up"})
    lessons.reveal("idle threads", 1234, "threads")
    lessons.reveal("which way", "b")
    lessons.scorecard()
    out = capsys.readouterr().out
    assert (
        out.count(predictions.NO_ANSWER) == 6
    )  # two predict, two reveal, two rows of the scorecard
    assert "1,234 threads" in out and "b: up" in out
    assert "predicted" not in out  # no verdict on a prediction that was not made


@pytest.mark.parametrize(
    ("guess", "answer", "words"),
    [
        (9, 9, "exactly"),
        (100, 101, "within 5 %"),
        (50, 100, "2 times too low"),
        (300, 100, "3 times too high"),
        (0, 7, "off by -7"),
        (7, 0, "off by 7"),
        (-1, 2, "off by -3"),
        (np.float32(0.5), np.int64(1), "2 times too low"),
        (-20, -10, "2 times too high"),
    ],
)
def test_a_number_is_judged_by_its_distance(capsys, guess, answer, words):
    lessons.predict("how many", guess)
    lessons.reveal("how many", answer)
    assert f"({words})" in capsys.readouterr().out


@pytest.mark.parametrize(("guess", "words"), [("a", "not as predicted"), (" B ", "(as predicted")])
def test_a_choice_is_right_or_not(capsys, guess, words):
    lessons.predict("which way", guess, {"a": "down", "b": "up"})
    lessons.reveal("which way", "b")
    assert words in capsys.readouterr().out


def test_options_are_listed_unless_they_were_before(capsys):
    options = {"a": "more", "b": "less"}
    lessons.predict("sectors", "a", options)
    assert "  b: less\n" in capsys.readouterr().out
    lessons.predict("lines", "b", options, listed=False)
    assert capsys.readouterr().out == "lines: your prediction is b: less\n"
    lessons.reveal("lines", "b")
    assert "as predicted" in capsys.readouterr().out


def scored(capsys, question: str) -> list[str]:
    """The scorecard's row of a question: the words after its name."""
    capsys.readouterr()
    lessons.scorecard()
    rows = capsys.readouterr().out.splitlines()
    return next(row for row in rows if row.startswith(question)).removeprefix(question).split()


def test_before_the_answer_a_new_prediction_replaces_the_old_one(capsys):
    lessons.predict("how many", 1)
    lessons.predict("how many", 8)
    lessons.reveal("how many", 8)
    assert scored(capsys, "how many") == ["8", "8", "exactly"]


@pytest.mark.parametrize(
    ("first", "words"), [(1, ["1", "8", *"8 times too low".split()]), (None, ["none", "yet", "8"])]
)
def test_after_the_answer_the_first_prediction_stays(capsys, first, words):
    lessons.predict("how many", first)
    lessons.reveal("how many", 8)
    lessons.predict("how many", 8)
    said = capsys.readouterr().out.splitlines()[-1]
    assert "the answer has been shown" in said and "your prediction is" not in said
    assert said.endswith(
        "so no prediction counts" if first is None else "so your first prediction, 1, counts"
    )
    lessons.reveal("how many", 8)
    assert "exactly" not in capsys.readouterr().out
    assert scored(capsys, "how many") == words
    lessons.begin()
    lessons.predict("how many", 8)
    lessons.reveal("how many", 8)
    assert scored(capsys, "how many") == ["8", "8", "exactly"]


def test_the_scorecard_keeps_the_first_answer(capsys):
    """A cell run again with other numbers is a new experiment; the prediction was for the first."""
    lessons.predict("how many", 8)
    lessons.reveal("how many", 8)
    lessons.reveal("how many", 16, "threads")
    assert "this run         16 threads   (2 times too low)" in capsys.readouterr().out
    assert scored(capsys, "how many") == ["8", "8", "exactly"]


def test_a_late_prediction_must_fit_its_options_all_the_same():
    lessons.predict("which way", "a", {"a": "down", "b": "up"})
    lessons.reveal("which way", "b")
    with pytest.raises(PredictionError, match="choose one of"):
        lessons.predict("which way", "c", {"a": "down", "b": "up"})


@pytest.mark.parametrize(
    ("guess", "options", "words"),
    [
        ("c", {"a": "down", "b": "up"}, "choose one of: 'a', 'b', with its quotes"),
        (3, {"a": "down"}, "choose one of: 'a'"),
        (np.zeros(2), {"a": "down"}, "choose one of: 'a'"),
        ("many", None, "must be a number, without quotes"),
        (True, None, "must be a number"),
        ((921, 984), None, "write the number without commas"),
        (float("nan"), None, "finite"),
        (float("inf"), None, "finite"),
    ],
)
def test_predictions_that_cannot_be_judged(guess, options, words):
    with pytest.raises(PredictionError, match=words):
        lessons.predict("how many", guess, options)


def test_an_answer_must_fit_its_question():
    lessons.predict("which way", None, {"a": "down"})
    with pytest.raises(PredictionError, match="the answer is 'x'"):
        lessons.reveal("which way", "x")
    with pytest.raises(PredictionError, match="the answer is None"):
        lessons.reveal("which way", None)
    with pytest.raises(PredictionError, match=r"Run the cell .* There are:\n  which way"):
        lessons.reveal("which", "a")
    lessons.begin()
    with pytest.raises(PredictionError, match="There are: none yet"):
        lessons.reveal("which way", "a")


def test_a_digit_may_lack_its_quotes(capsys):
    lessons.predict("padding", 1, {"0": "only PAD 0", "1": "only PAD 1"})
    lessons.reveal("padding", "1")
    assert "(as predicted)" in capsys.readouterr().out


def test_a_listing_can_be_copied_and_says_where_it_stands():
    listing = show.show_source("01_scores_naive", "float score", "    }")
    where, *shown = repr(listing).splitlines()
    lines = kernel_path("01_scores_naive").read_text().splitlines()
    first, last = map(int, re.findall(r"\d+", where.split("naive.cu")[1]))
    assert where == f"// kernels/01_scores_naive.cu, lines {first} to {last}"
    assert shown == textwrap.dedent("\n".join(lines[first - 1 : last])).splitlines()
    assert len(shown) == 4 and "fmaf" in shown[2]
    assert listing._repr_markdown_().startswith("```c++\n")
    header = show.show_source("include/warp.cuh", "__shfl")
    assert repr(header).startswith("// kernels/include/warp.cuh, line ")


@pytest.mark.parametrize(("layout", "absent"), [(1, "[i][tx]"), (2, "[tx][i]")])
def test_a_listing_leaves_out_what_the_compiler_does_not_see(layout, absent):
    text = repr(
        show.show_source("02_scores_tiled", "const float* q_row", "= score;", K_TILE=layout)
    )
    assert "#" not in text and absent not in text
    assert text.count("score = fmaf") == 1 and text.count("const int key =") == 1


def test_a_listing_of_what_is_not_there():
    with pytest.raises(ValueError, match="holds 'no such text'"):
        show.show_source("01_scores_naive", "no such text")
    with pytest.raises(ValueError, match="no line from"):
        show.show_source("01_scores_naive", "fmaf", "#ifndef")  # stands above, not below


def test_a_diff_holds_the_code_that_changed_and_no_header():
    text = repr(show.show_diff("01_scores_naive", "02_scores_tiled"))
    added = [line for line in text.splitlines() if line.startswith("+")]
    assert any("__syncthreads" in line for line in added)
    assert any("__shared__" in line for line in added)
    assert "Idea:" not in text
    assert repr(show.show_diff("01_scores_naive", "01_scores_naive")) == ""


@pytest.mark.parametrize("others", ["/usr/bin", None])
def test_a_cell_finds_the_command_of_its_own_environment(others, monkeypatch):
    """`!attn-course ..` where the notebook's Python is not that of the shell that started it."""
    monkeypatch.delenv("PATH") if others is None else monkeypatch.setenv("PATH", others)
    for _ in range(2):
        lessons.begin()
        folder, *rest = os.environ["PATH"].split(os.pathsep)
        assert folder == str(Path(sys.executable).parent) and folder not in rest and rest
