"""The diagnosis: a known mistake is named under other names, and no other mistake is."""

import re
import sys

import pytest

from attn_course.exercises import judge, read_exercise
from attn_course.exercises.diagnosis import diagnosis
from attn_course.exercises.examination import compiled

pytestmark = pytest.mark.system

module = sys.modules[diagnosis.__module__]


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Time enough on a slow machine."""
    monkeypatch.setattr(module, "SECONDS", 120.0)


@pytest.fixture
def nothing_known(monkeypatch):
    """What another test has seen is not known."""
    monkeypatch.setattr(module, "_seen", {})


def wrong(name: str, called: str) -> str:
    return next(one.text for one in read_exercise(name).wrong if one.name == called)


def rewritten(text: str, **names: str) -> str:
    """A text with other names, without comments, and with empty lines that move all others."""
    text = re.sub(r"//[^\n]*", "", text)
    for old, new in names.items():
        text, count = re.subn(rf"\b{old}\b", new, text)
        assert count
    return "\n\n" + text.replace("{\n", "{\n\n", 1)


def diagnosed(name: str, text: str) -> tuple[str, str]:
    exercise = read_exercise(name)
    judgement = judge(exercise, text)
    return judgement.first.property, diagnosis(exercise, judgement)


@pytest.mark.turns(37)
@pytest.mark.parametrize(
    ("name", "called", "broken", "names"),
    [
        ("add_ten", "no guard", "in bounds", {"i": "mine"}),
        ("add_ten", "guard one too short", "agrees", {"i": "number"}),
        ("tile_dot", "no first barrier", "no race", {"tile": "part", "sum": "total"}),
        ("tile_dot", "no second barrier", "no race", {"tile": "part", "row": "mine"}),
        ("warp_max", "starts at zero", "agrees", {"largest": "best", "offset": "step"}),
        ("transpose_padded", "two columns more", "counters", {"tile": "buffer", "row": "line"}),
        ("block_sum", "the sum is not set to 0", "initialised", {"sum": "mine", "warp": "group"}),
        ("tile_dot", "the barrier only for threads with a row", "barriers", {"row": "mine"}),
    ],
)
def test_a_known_mistake_is_named_whatever_the_variables_are_called(name, called, broken, names):
    text = wrong(name, called)
    assert diagnosed(name, rewritten(text, **names)) == (broken, called)


@pytest.mark.turns(37)
@pytest.mark.parametrize(
    ("name", "old", "new", "broken"),
    [
        # in the first case that fails, these look like a known mistake; in another they do not
        ("add_ten", "if (i < n)", "if (i > 0 && i < n)", "agrees"),  # n = 1: guard one too short
        ("add_ten", "if (i < n)", "if (i <= n + 1)", "in bounds"),
        ("add_ten", "+ 10.0f", "+ 10.5f", "agrees"),
        ("tile_dot", "__syncthreads()", "", "no race"),  # both barriers
        ("tile_dot", "min(64, m - start)", "min(63, m - start)", "agrees"),
        ("warp_max", "MINUS_INFINITY;", "1.0f;", "agrees"),
        ("transpose_padded", "[33]", "[36]", "counters"),
        ("block_sum", "lane < 8", "lane < 7", "agrees"),
    ],
)
def test_another_mistake_has_no_diagnosis(name, old, new, broken):
    text = read_exercise(name).solution.replace(old, new)
    assert diagnosed(name, text) == (broken, "")


@pytest.mark.turns(23)
def test_where_two_known_mistakes_look_alike_neither_is_named():
    assert diagnosed("warp_max", wrong("warp_max", "upwards, and lane 0 stores")) == ("agrees", "")


def test_a_kernel_that_does_not_compile_or_end_has_no_diagnosis():
    assert diagnosed("add_ten", "no kernel") == ("compiles", "")


def test_without_time_there_is_no_diagnosis_and_what_is_known_takes_none(
    nothing_known, monkeypatch
):
    text = rewritten(wrong("add_ten", "no guard"))
    monkeypatch.setattr(module, "SECONDS", 0.0)
    assert diagnosed("add_ten", text) == ("in bounds", "")
    monkeypatch.setattr(module, "SECONDS", 120.0)
    assert diagnosed("add_ten", text) == ("in bounds", "no guard")
    monkeypatch.setattr(module, "SECONDS", 0.0)
    assert diagnosed("add_ten", text) == ("in bounds", "no guard")


def test_only_wrong_solutions_of_the_same_property_are_run(nothing_known, monkeypatch):
    exercise, ran = read_exercise("add_ten"), []
    judgement = judge(exercise, wrong("add_ten", "no guard"))

    def noted(exercise, text):
        ran.append(text)
        return compiled(exercise, text)

    monkeypatch.setattr(module, "compiled", noted)
    assert diagnosis(exercise, judgement) == "no guard"
    properties = {one.text: one.rejected_for for one in exercise.wrong}
    assert {properties[text] for text in ran} == {"in bounds"}
