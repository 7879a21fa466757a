"""A submitted notebook beside what was handed out: what was done to its cells, and its answers."""

import json
from collections import Counter

import msgspec
import pytest
from hostile_class import (
    CASES,
    PROBLEM,
    SET,
    TEST,
    cell_of,
    code_cell,
    edit,
    solved,
    with_cell,
    with_metadata,
)
from problem_sets import source_notebook

from attn_course.classroom import problem_set
from attn_course.classroom.grading import Handout, HandoutError, handout_of, read_handout
from attn_course.classroom.grading.confined.reading import read
from attn_course.classroom.notebooks import released_notebook

pytestmark = pytest.mark.system

HANDOUT = handout_of(SET)
BY_NAME = {case.name: case for case in CASES}


def reading_of(change=None, folder=None):
    notebook = solved()
    instead = change(notebook, folder) if change else None
    return read(instead if isinstance(instead, bytes) else json.dumps(notebook).encode(), HANDOUT)


def test_the_released_notebook_needs_no_remark():
    reading = reading_of()
    assert not reading.remarks and not reading.unreadable
    assert reading.kernels == {PROBLEM: problem_set(SET).problems[0].solution}


def test_the_source_and_the_release_give_the_same_handout():
    chosen, made = problem_set(SET), (released_notebook, source_notebook)
    both = [read_handout(SET, make(chosen), SET) for make in made]
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(both[0]), type=Handout)
    assert both[0] == both[1] == again and both[0].digest == again.digest


def test_the_notebook_of_another_set_is_told_in_one_sentence():
    other = json.dumps(released_notebook(problem_set("ps2"))).encode()
    reading = read(other, HANDOUT)
    assert reading.unreadable == "this is the notebook of ps2, not ps1"
    assert not (reading.remarks or reading.kernels)
    notebook = released_notebook(problem_set("ps2"))  # with an answer to this set, it is graded
    notebook["cells"].append(code_cell(f"%%cuda {PROBLEM}\nmine"))
    assert read(json.dumps(notebook).encode(), HANDOUT).kernels == {PROBLEM: "mine"}
    assert "not readable" not in read(b'{"cells": []}', HANDOUT).unreadable


def test_remarks_are_cut_with_a_count_of_each_kind():
    notebook = solved()
    notebook["cells"] += [code_cell("1", {"nbgrader": {"grade_id": "x" * 999}}) for _ in range(70)]
    notebook["cells"] += [code_cell(cell_of(notebook, TEST)["source"]) for _ in range(11)]
    told = read(json.dumps(notebook).encode(), HANDOUT).remarks
    count = Counter(one.kind for one in told)
    assert count == {"unknown": 11, "copied": 11}
    assert [one.text for one in told if "more" in one.text] == [
        "60 more remarks of this kind",
        "1 more remarks of this kind",
    ]
    assert max(len(one.text) for one in told) == 300


@pytest.mark.parametrize(
    "name",
    [case.name for case in CASES if case.remarks and case.remarks != ("file",)],
)
def test_what_was_done_is_named(name, tmp_path):
    kinds = {remark.kind for remark in reading_of(BY_NAME[name].change, tmp_path).remarks}
    assert kinds == set(BY_NAME[name].remarks)


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("not_json", "not JSON"),
        ("not_text", "UTF-8"),
        ("no_notebook", "no list of cells"),
        ("nested", "nested too deeply"),
        ("odd_cells", "cell 1"),
        ("empty", "empty"),
    ],
)
def test_a_file_that_is_no_notebook_is_told(name, word):
    reading = reading_of(BY_NAME[name].change)
    assert word in reading.unreadable and not reading.kernels


def test_an_error_that_was_handed_in_is_told_and_one_of_a_test_cell_is_not():
    errors = [
        {"output_type": "error", "ename": name, "evalue": "why"}
        for name in ("NotEarned", "OSError")
    ]
    (remark,) = reading_of(with_cell(TEST, outputs=errors)).remarks
    assert (remark.kind, remark.cell) == ("output", TEST)
    assert remark.text == "handed in with OSError: why"


def test_blanks_at_line_ends_are_no_change():
    assert not reading_of(with_cell(TEST, source=f'earn("{PROBLEM}", "agrees")  \n\n')).remarks


def test_a_test_cell_that_became_text_is_named():
    remarks = reading_of(with_cell(TEST, cell_type="markdown")).remarks
    assert [remark.kind for remark in remarks] == ["changed"]


def more_kernels(text, *, drop):
    def change(notebook, folder):
        if drop:
            notebook["cells"].remove(cell_of(notebook, PROBLEM))
        for part in text:
            notebook["cells"].append(code_cell(part))

    return change


def test_the_released_cell_counts_before_a_copy():
    mine = f"%%cuda {PROBLEM}\n// a copy"
    reading = reading_of(more_kernels([mine], drop=False))
    assert "a copy" not in reading.kernels[PROBLEM]
    assert [(one.kind, one.cell) for one in reading.remarks] == [("duplicate", PROBLEM)]


def test_without_the_released_cell_the_last_one_counts():
    mine = [f"%%cuda {PROBLEM}\n// one", f"\n%%cuda {PROBLEM}\n// two"]
    reading = reading_of(more_kernels(mine, drop=True))
    assert reading.kernels[PROBLEM] == "// two"
    assert {one.kind for one in reading.remarks} == {"missing", "kernel", "duplicate"}


def test_no_kernel_is_told():
    reading = reading_of(more_kernels([], drop=True))
    assert reading.kernels == {} and {one.kind for one in reading.remarks} == {"missing", "kernel"}


def test_an_endless_kernel_text_is_not_judged():
    reading = reading_of(edit("// END SOLUTION", "x" * 300_000))
    assert reading.kernels == {} and "at most 200,000" in reading.remarks[0].text


def test_lost_metadata_is_told():
    assert {one.kind for one in reading_of(with_metadata(TEST, locked=False)).remarks} == {
        "metadata"
    }


def test_wrong_handouts_are_refused():
    notebook = solved()
    notebook["cells"].append(cell_of(notebook, TEST))
    with pytest.raises(HandoutError, match="two cells have the grade_id"):
        read_handout(SET, notebook, "the release")
    notebook = solved()
    cell_of(notebook, PROBLEM)["source"] = "%%cuda no_such_problem\n"
    with pytest.raises(HandoutError, match="no_such_problem is no problem"):
        read_handout(SET, notebook, "the release")
    with pytest.raises(HandoutError, match="there is no problem set 'ps99'"):
        handout_of("ps99")
