"""Which of a student's notebooks is graded."""

import pytest
from hostile_class import PROBLEM, SET

from attn_course.classroom.grading import Task, grader
from attn_course.classroom.grading.confined.reading import ReadSubmission, Remark
from attn_course.classroom.grading.verdict import NotJudged
from attn_course.classroom.scoring import read_problem

STUB = read_problem(PROBLEM).stub
SPACED = STUB.replace("\n", "\n\n")


@pytest.fixture
def choose(monkeypatch):
    """Choose among files, file -> the kernel's text; the first has the name that is asked for."""

    def read(handout, data, sandbox):
        text = data.decode()
        problem = "the file is empty" if not text else ""
        return ReadSubmission(problem, [Remark("", "", "own")], {PROBLEM: text} if text else {})

    monkeypatch.setattr(grader, "_read", read)

    def chosen(named=True, **files):
        (first, text), *others = ((f"{name}.ipynb", text.encode()) for name, text in files.items())
        task = Task("ann", SET, f"a/{first}", text, None, others=tuple(others), named=named)
        file, reading = grader._chosen(task, None)
        return file, [one.text for one in reading.remarks]

    return chosen


def test_one_file_needs_no_choice(choose):
    assert choose(ps1="mine") == ("a/ps1.ipynb", ["own"])


@pytest.mark.parametrize(
    ("other", "word"),
    [(STUB, "still holds the stub"), ("own", "holds the same kernels"), ("x", "OTHER kernels"),
     ("", "cannot be read: the file is empty")],
)  # fmt: skip
def test_the_named_file_counts_and_the_other_is_told(choose, other, word):
    file, told = choose(ps1="own", copy=other)
    assert file == "a/ps1.ipynb" and told[1:] == ["own"]
    assert "not graded, of the same student: a/copy.ipynb" in told[0] and word in told[0]


@pytest.mark.parametrize("first", [STUB, SPACED, ""])
def test_a_stub_does_not_hide_the_work_beside_it(choose, first):
    file, told = choose(ps1=first, copy="work", again="work", third=STUB)
    assert file == "a/copy.ipynb" and told[0] == "graded is a/copy.ipynb"
    assert len(told) == 5 and any("a/ps1.ipynb" in one for one in told)


def test_stubs_alone_leave_the_first(choose):
    assert choose(ps1=STUB, copy=STUB)[0] == "a/ps1.ipynb"
    assert choose(ps1="", copy="")[0] == "a/ps1.ipynb"


@pytest.mark.parametrize(
    ("named", "files", "why"),
    [
        (True, {"ps1": STUB, "b": "x", "c": "y"}, "still holds the stub, .*: a/b.ipynb, a/c.ipynb"),
        (False, {"a": "x", "b": "y"}, "has not the expected name, .*: a/a.ipynb, a/b.ipynb"),
    ],
)
def test_the_teacher_decides_between_different_kernels(choose, named, files, why):
    with pytest.raises(NotJudged, match=why):
        choose(named, **files)


def test_the_other_files_decide_about_a_kept_result():
    def key(*others, named=True):
        return Task("ann", SET, "ps1.ipynb", b"{}", None, others=others, named=named).key

    keys = {key(), key(("b", b"x")), key(("b", b"y")), key(("c", b"x")), key(named=False)}
    assert len(keys) == 5
