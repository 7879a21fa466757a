"""Which submissions a folder holds."""

import os

import pytest

from attn_course.classroom.grading import CollectError, collect
from attn_course.classroom.grading.submissions import FLAT, MOST_BYTES, NBGRADER

pytestmark = pytest.mark.system


def submit(folder, student, name="ps1", file=None):
    path = folder / "submitted" / student / name / (file or f"{name}.ipynb")
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    return path


def test_nbgrader_layout(tmp_path):
    for student in ("cyn", "ann"):
        submit(tmp_path, student)
    submit(tmp_path, "ann2", "ps2")
    layout, found = collect(tmp_path)
    assert layout == NBGRADER
    assert [(one.set, one.student) for one in found] == [
        ("ps1", "ann"),
        ("ps1", "cyn"),
        ("ps2", "ann2"),
    ]
    assert found[0].data() == b"{}" and not any(one.problem or one.remark for one in found)
    assert [one.student for one in collect(tmp_path, "ps2")[1]] == ["ann2"]


def test_the_folder_submitted_itself(tmp_path):
    submit(tmp_path, "ann")
    assert collect(tmp_path / "submitted")[0] == NBGRADER


def test_a_flat_folder(tmp_path):
    for name in ("ann_ps1", "ps2-bob", "cyn.ps12", "caps1", "dan"):
        (tmp_path / f"{name}.ipynb").write_text("{}")
    layout, found = collect(tmp_path)
    assert layout == FLAT
    known = {(one.student, one.set) for one in found if not one.problem}
    assert known == {("ann", "ps1"), ("bob", "ps2"), ("cyn", "ps12")}
    assert {one.student for one in found if "no problem set" in one.problem} == {"caps1", "dan"}
    assert {one.student for one in collect(tmp_path, "ps1")[1]} == {"ann", "caps1", "dan"}


def test_two_files_with_one_name_are_both_graded(tmp_path):
    """The name in the form that is asked for counts, whatever sorts first."""
    for name in ("ann-ps1", "ann_ps1", "ann", "bob_ps1"):
        (tmp_path / f"{name}.ipynb").write_text("{}")
    found = {one.student: one for one in collect(tmp_path, "ps1")[1]}
    assert {student: one.path.name for student, one in found.items()} == {
        "ann": "ann_ps1.ipynb",
        "ann-ps1": "ann-ps1.ipynb",
        "ann.ipynb": "ann.ipynb",
        "bob": "bob_ps1.ipynb",
    }
    assert "ann-ps1.ipynb" in found["ann"].remark and "ann.ipynb" in found["ann"].remark
    assert all("ann_ps1.ipynb" in found[name].remark for name in ("ann-ps1", "ann.ipynb"))
    assert not found["bob"].remark


def test_a_renamed_notebook_is_graded_and_told(tmp_path):
    submit(tmp_path, "ann", file="my ps1 (final).ipynb")
    (one,) = collect(tmp_path)[1]
    assert not one.problem and "my ps1 (final).ipynb" in one.remark


def test_hidden_files_are_no_submissions(tmp_path):
    """macOS writes `._NAME` beside a file; it would sort before the notebook."""
    for name in ("ann_ps1", "._ann_ps1", "..", "bob_ps1"):
        (tmp_path / f"{name}.ipynb").write_text("{}")
    found = collect(tmp_path, "ps1")[1]
    assert [one.path.name for one in found] == ["ann_ps1.ipynb", "bob_ps1.ipynb"]
    assert not any(one.remark for one in found)


def test_only_plain_files_inside_are_read(tmp_path):
    for student in ("folder", "huge", "link", "none", "pipe"):
        submit(tmp_path, student)
    root = tmp_path / "submitted"
    (tmp_path / "elsewhere.ipynb").write_text("{}")
    for student in ("folder", "link", "none", "pipe"):
        (root / student / "ps1" / "ps1.ipynb").unlink()
    (root / "folder" / "ps1" / "ps1.ipynb").mkdir()
    (root / "link" / "ps1" / "ps1.ipynb").symlink_to(tmp_path / "elsewhere.ipynb")
    os.mkfifo(root / "pipe" / "ps1" / "ps1.ipynb")
    os.truncate(root / "huge" / "ps1" / "ps1.ipynb", MOST_BYTES + 1)
    (root / "whole").symlink_to(root / "none")
    why = {one.student: one.problem for one in collect(tmp_path)[1]}
    words = {
        "folder": "not a plain file",
        "huge": "MiB",
        "link": "is a link",
        "none": "no notebook",
        "pipe": "not a plain file",
        "whole": "is a link",
    }
    assert why.keys() == words.keys()
    assert all(words[name] in text for name, text in why.items()), why


def test_nothing_to_grade_is_told(tmp_path):
    with pytest.raises(CollectError, match="no submissions: neither"):
        collect(tmp_path)
    with pytest.raises(CollectError, match="no folder"):
        collect(tmp_path / "missing")
