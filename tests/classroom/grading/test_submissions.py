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
    layout, found, _ = collect(tmp_path)
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
    layout, found, _ = collect(tmp_path)
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


def test_a_second_download_is_the_same_students(tmp_path):
    for name in ("ann_ps1", "ann_ps1 (1)", "bob_ps1(2)", "ann-ps1", "ann-ps1 (3)", "ps1 (1)"):
        (tmp_path / f"{name}.ipynb").write_text("{}")
    found = {one.student: one for one in collect(tmp_path)[1]}
    files = {
        student: (one.path.stem, *[o.stem for o in one.others]) for student, one in found.items()
    }
    assert files == {
        "ann": ("ann_ps1", "ann_ps1 (1)"),
        "ann-ps1": ("ann-ps1", "ann-ps1 (3)"),
        "bob": ("bob_ps1(2)",),
        "ps1 (1)": ("ps1 (1)",),  # nobody's name: it may be another student's
    }
    assert found["ann"].named and not found["bob"].named and "copy" in found["bob"].remark


def test_other_notebooks_of_a_students_folder_go_with_the_named_one(tmp_path):
    for file in ("ps1.ipynb", "ps1 (1).ipynb", "other.IPYNB"):
        path = tmp_path / "submitted" / "ann" / "ps1" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    submit(tmp_path, "bob", file="ps1.IPYNB")
    ann, bob = collect(tmp_path)[1]
    assert (ann.path.name, ann.named) == ("ps1.ipynb", True)
    assert [one.name for one in ann.others] == ["other.IPYNB", "ps1 (1).ipynb"]
    assert (bob.path.name, bob.named) == ("ps1.IPYNB", False) and "ps1.IPYNB" in bob.remark


NOT_TAKEN = {
    "submitted/ann/ps1/.ps1.ipynb": "begins with a dot",
    "submitted/ann/ps1/deeper/ps1.ipynb": "not in its place, submitted/STUDENT/SET",
    "submitted/ann/ps1.ipynb": "not in its place",
    "submitted/ann/ps1/ps1.ipynb.txt": "does not end with .ipynb",
    "submitted/ann/ps1/.ipynb_checkpoints/ps1-checkpoint.ipynb": None,
    "submitted/ann/ps1/notes.txt": None,
}


def test_what_is_not_taken_is_told_with_the_reason(tmp_path):
    submit(tmp_path, "ann")
    submit(tmp_path, "bob", "ps2")
    for name in NOT_TAKEN:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    (tmp_path / "submitted" / "ann" / "ps1" / "link.ipynb").symlink_to("ps1.ipynb")
    told = {f"submitted/{file}": why for file, why in collect(tmp_path, "ps1")[2]}
    words = {name: why for name, why in NOT_TAKEN.items() if why}
    assert told.keys() == {*words, "submitted/ann/ps1/link.ipynb"}  # ps2's is taken, with --set ps2
    assert all(word in told[name] for name, word in words.items()), told
    assert "is a link" in told["submitted/ann/ps1/link.ipynb"]


def test_in_a_flat_folder_the_class_folders_hold_no_submissions(tmp_path):
    names = ("ann_ps1", ".bob_ps1", "below/cyn_ps1", "release/ps1/ps1", "grades/x/dan_ps1")
    for name in names:
        (tmp_path / f"{name}.ipynb").parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.ipynb").write_text("{}")
    told = dict(collect(tmp_path)[2])
    assert told.keys() == {".bob_ps1.ipynb", "below/cyn_ps1.ipynb"}
    assert "the folder itself" in told["below/cyn_ps1.ipynb"]
    (tmp_path / "ann_ps1.ipynb").unlink()
    with pytest.raises(CollectError, match=r"below/cyn_ps1.ipynb: it is not in its place"):
        collect(tmp_path)
