"""Tables and pages of a class: what comes from a submission is text there, and nothing else."""

import copy
import csv
import io
import os
import re
import shutil
from pathlib import Path

import pytest
from hostile_class import PROBLEM, SET

from attn_course.classroom import problem_set
from attn_course.classroom.grading.confined.reading import Remark
from attn_course.classroom.grading.feedback import feedback, lines_around, overview
from attn_course.classroom.grading.gradebook import (
    cell,
    printable,
    table,
    write_nbgrader,
    write_tables,
)
from attn_course.classroom.grading.store import JudgedKernel, Result, Store, page_name
from attn_course.classroom.points import PropertyPoints
from attn_course.classroom.scoring import read_problem

pytestmark = pytest.mark.system

EVIL = '</pre><script>alert(1)</script><img src=x onerror="alert(2)">&'


def result_of(student="ann", earned=0, text="", reason="", unreadable=""):
    """A result as the grader returns it, with this text wherever a submission has one."""
    rows = [
        PropertyPoints(
            name,
            most if earned else 0,
            most,
            reason="" if earned else reason or text or "it does not hold",
            label="" if earned else f"n = 1{text}",
            hidden=True,
            line=2,
            block=(0, 0, 0),
        )
        for name, most in read_problem(PROBLEM).points.items()
    ]
    source = f"int a;{text}\nint b;{text}\nint c;{text}\n"
    problem = JudgedKernel(PROBLEM, PROBLEM, source, tuple(rows))
    return Result(
        "0",
        student,
        SET,
        f"{student}.ipynb",
        unreadable=unreadable,
        remarks=[Remark("unknown", f"cell 1{text}", f"x{text}")],
        problems=[] if unreadable else [problem],
        pages=[PROBLEM],
        sandbox=f"limits{text}",
    )


@pytest.mark.parametrize("unreadable", ["", EVIL])
def test_nothing_of_a_submission_is_markup(unreadable):
    result = result_of(student=f"ann{EVIL}", text=EVIL, unreadable=unreadable)
    page = feedback(result)
    links = {(result.student, SET): f"feedback/{result.student}.html"}
    everything = overview([result], links, [(f"x{EVIL}", EVIL)])
    for text in (page, everything):
        assert "alert(1)" in text  # as text
        assert not re.search(r"<\s*(script|img)", text) and 'onerror="' not in text
        assert "default-src 'none'" in text  # and the page would run none


def test_the_page_names_points_reasons_and_lines():
    page = feedback(result_of(reason="a race\nremedy: a barrier"))
    assert "0 of 14 points" in page and "a race\nremedy: a barrier" in page
    assert '<span class="at">   2  int b;</span>' in page and "(a hidden case)" in page
    assert page.count("a race") == 1 and "<h3>All properties, case n = 1 (a hidden case)" in page
    assert f'href="{PROBLEM}_steps.html"' in page
    assert "14 of 14 points" in feedback(result_of(earned=1))


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", "  ="])
def test_no_cell_is_a_formula(start):
    text = cell(f"{start}cmd|'/c calc'!A0")
    assert text.startswith("'") and not set(text) & set("\t\r\n")


def test_a_table_is_read_again_as_it_was():
    rows = [("student", "points"), ('a,"b"', 3), ("-1", -1)]
    again = list(csv.reader(io.StringIO(table(rows))))
    assert again == [["student", "points"], ['a,"b"', "3"], ["'-1", "-1"]]


def test_a_terminal_gets_no_control_characters():
    assert printable("a\x1b[2Jb\udcff\u202ec") == "a [2Jb  c"


def test_tables_do_not_depend_on_the_order_of_results(tmp_path):
    results = [result_of("bob", earned=1), result_of("ann"), result_of("cyn", unreadable="empty")]
    slower = copy.deepcopy(results[::-1])
    for result in slower:
        result.seconds = 99.0
    texts = []
    for name, given in (("a", results), ("b", slower)):
        write_tables(tmp_path / name, given)
        texts.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
    assert texts[0] == texts[1] and len(texts[0]) == 4
    rows = list(csv.DictReader(io.StringIO(texts[0]["grades.csv"].decode())))
    assert [(row["student"], row["state"], row["points"]) for row in rows] == [
        ("ann", "graded", "0"),
        ("bob", "graded", "14"),
        ("cyn", "not readable", ""),
    ]


def test_a_second_hand_in_leaves_no_page_of_the_first(tmp_path):
    store = Store(tmp_path)
    store.save(result_of(), {PROBLEM: "the steps"})
    page = store.feedback_path("ann", SET).with_name(page_name(PROBLEM))
    assert page.read_text() == "the steps"
    store.save(result_of(earned=1), {})
    assert not page.exists() and store.graded == 2


@pytest.fixture(scope="module")
def new_gradebook(tmp_path_factory):
    """A gradebook with the points of two students; nbgrader takes seconds to make one."""
    pytest.importorskip("nbgrader", reason="nbgrader is not installed")
    path = tmp_path_factory.mktemp("nbgrader") / "gradebook.db"
    results = [result_of("ann"), result_of("bob", earned=1), result_of("cyn", unreadable="empty")]
    assert write_nbgrader(path, [SET], results) == []
    return path


@pytest.fixture
def gradebook(new_gradebook, tmp_path):
    return Path(shutil.copy(new_gradebook, tmp_path))


@pytest.mark.turns(19, "gradebook")
def test_the_points_reach_nbgraders_gradebook(gradebook):
    write_nbgrader(gradebook, [SET], [result_of("ann", earned=1)])  # a second hand-in
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{gradebook}") as book:
        points = {one.student.id: one.score for one in book.assignment_submissions(SET)}
        assert points == {"ann": 14, "bob": 14}
        assert book.find_assignment(SET).max_score == problem_set(SET).points


@pytest.mark.turns(13, "gradebook")
def test_a_name_that_is_no_text_keeps_no_other_out_of_the_gradebook(gradebook):
    strange = os.fsdecode(b"cyn\xff")
    results = [result_of("ann"), result_of(strange), result_of("dan")]
    assert write_nbgrader(gradebook, [SET], results) == [strange]
    from nbgrader.api import Gradebook

    with Gradebook(f"sqlite:///{gradebook}") as book:
        found = {one.student.id for one in book.assignment_submissions(SET)}
        assert found == {"ann", "bob", "dan"}


@pytest.mark.parametrize("mark", ["\f", "\v", "\x1c", "\x85", "\u2028", "\r"])
def test_a_quoted_line_is_the_one_that_the_compiler_counts(mark):
    source = f"// one{mark}half\nsecond\nthird\n"
    assert lines_around(source, 2)[1] == (2, "second")
    context = lines_around(source, 2)
    assert context[1] == (2, "second") and len(context) == 3
