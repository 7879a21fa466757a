"""The learner's copies: no outputs, nothing overwritten, newer versions beside."""

import json
import re

import pytest

from attn_course.cli.main import main
from attn_course.lessons import working_copy
from attn_course.lessons.working_copy import NOTEBOOKS, WorkingCopy, lessons


def notebook(text: str) -> str:
    cell = {
        "cell_type": "code",
        "id": "one",
        "metadata": {},
        "source": [text],
        "execution_count": 3,
        "outputs": [{"output_type": "stream", "name": "stdout", "text": ["the answer"]}],
    }
    head = {"cell_type": "markdown", "id": "head", "metadata": {}, "source": ["# Title"]}
    return json.dumps({"cells": [head, cell], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course of two lessons and a folder of kernels."""
    folder = tmp_path / "a course" / "notebooks"
    folder.mkdir(parents=True)
    (folder / "00_a.ipynb").write_text(notebook("print(1)"))
    (folder / "01_b.ipynb").write_text(notebook("print(2)"))
    (folder / "glossary.md").write_text("# Glossary")
    kernels = folder.parent / "kernels"
    kernels.mkdir()
    (kernels / "01_x.cu").write_text("// x")
    monkeypatch.setattr(working_copy, "NOTEBOOKS", folder)
    monkeypatch.setattr(working_copy, "KERNELS", kernels)
    return folder


@pytest.fixture
def copy(course, tmp_path) -> WorkingCopy:
    made = WorkingCopy(tmp_path / "my work")
    assert made.update() == []
    return made


def code(path) -> dict:
    return json.loads(path.read_text())["cells"][1]


def test_copies_have_no_outputs_and_the_kernels_beside_them(copy):
    cell = code(copy.folder / "00_a.ipynb")
    assert cell["outputs"] == [] and cell["execution_count"] is None
    assert cell["source"] == ["print(1)"]
    assert (copy.folder / "kernels" / "01_x.cu").read_text() == "// x"


def test_copies_have_no_marks_for_the_tests(course, copy):
    (course / "00_a.ipynb").write_text(notebook("# NBVAL_IGNORE_OUTPUT\nprint(1)"))
    assert copy.update() == []  # the same cells for a learner
    assert code(copy.folder / "00_a.ipynb")["source"] == ["print(1)"]


def test_a_lesson_that_the_learner_ran_counts_as_unchanged(copy, course):
    mine = copy.folder / "00_a.ipynb"
    mine.write_text(notebook("print(1)"))  # with outputs
    assert not copy.has_changed("00_a")
    assert copy.update() == []
    assert code(mine)["outputs"], "the outputs of the learner's run stay"


def test_a_newer_lesson_replaces_an_unchanged_copy(copy, course):
    (course / "00_a.ipynb").write_text(notebook("print(10)"))
    (said,) = copy.update()
    assert "00_a.ipynb" in said and "newer" in said
    assert code(copy.folder / "00_a.ipynb")["source"] == ["print(10)"]


def test_an_unchanged_copy_is_known_again_where_the_state_was_lost(copy, course):
    copy.update()
    (copy.folder / working_copy.PROGRESS).unlink()
    copy.update()
    assert not copy.has_changed("00_a")
    (course / "00_a.ipynb").write_text(notebook("print(3)"))
    (said,) = copy.update()
    assert "replaced" in said and not list(copy.folder.glob("*.new.ipynb"))


def test_a_changed_copy_is_never_overwritten(copy, course):
    mine = copy.folder / "00_a.ipynb"
    mine.write_text(notebook("my own work"))
    assert copy.has_changed("00_a") and copy.update() == []
    (course / "00_a.ipynb").write_text(notebook("print(10)"))
    (said,) = copy.update()
    assert "00_a.new.ipynb" in said
    assert code(mine)["source"] == ["my own work"]
    assert code(copy.folder / "00_a.new.ipynb")["source"] == ["print(10)"]
    assert copy.update() == [], "told once"


def test_a_copy_that_is_no_notebook_any_more_is_kept(copy, course):
    mine = copy.folder / "00_a.ipynb"
    mine.write_text("half a file")
    (course / "00_a.ipynb").write_text(notebook("print(10)"))
    copy.update()
    assert mine.read_text() == "half a file"


def test_a_deleted_copy_comes_back(copy):
    (copy.folder / "00_a.ipynb").unlink()
    copy.update()
    assert (copy.folder / "00_a.ipynb").is_file()


def test_kernels_are_copied_where_links_are_refused(course, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise OSError("no links here")

    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    copy = WorkingCopy(tmp_path / "plain")
    copy.update()
    assert (copy.folder / "kernels" / "01_x.cu").read_text() == "// x"


def test_a_link_to_a_course_that_moved_is_renewed(copy, course, monkeypatch):
    moved = course.parent.parent / "moved"
    (course.parent / "kernels").rename(moved)
    monkeypatch.setattr(working_copy, "KERNELS", moved)
    copy.update()
    assert (copy.folder / "kernels" / "01_x.cu").is_file()


def test_every_lesson_states_title_and_exercises():
    found = lessons()
    assert [one.name[:2] for one in found] == sorted(one.name[:2] for one in found)
    assert all(one.title for one in found)


def test_the_listing_has_the_minutes_of_the_text_and_of_the_exercises(capsys, tmp_path):
    assert main(["lessons", "--folder", str(tmp_path / "work")]) == 0
    shown = capsys.readouterr().out
    for one in lessons():
        text = json.loads((NOTEBOOKS / f"{one.name}.ipynb").read_text())["cells"][0]["source"]
        stated = f"{one.minutes} minutes, and {one.exercise_minutes} for the exercises."
        assert stated in "".join(text)
        assert re.search(rf"^{one.name} +{one.minutes} +{one.exercise_minutes} ", shown, re.M)
    assert sum(one.exercise_minutes for one in lessons()) > 0
