"""Attempts and hints of a learner, in the working copy or without one."""

import json
import shutil
from types import SimpleNamespace

import pytest

from attn_course.cli.main import main
from attn_course.exercises import hint, judge, prove, read_exercise, session
from attn_course.lessons import working_copy
from attn_course.lessons.working_copy import GRADER, PROGRESS, Attempts, WorkingCopy, lessons

pytestmark = pytest.mark.system

SOLUTION = read_exercise("add_ten").solution
NO_GUARD = next(one.text for one in read_exercise("add_ten").wrong if one.name == "no guard")


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(session, "_written", {})
    monkeypatch.setattr(session, "_judgements", {})
    monkeypatch.setattr(session, "_unkept", {})


@pytest.fixture
def copy(tmp_path, monkeypatch) -> WorkingCopy:
    (tmp_path / PROGRESS).write_text("{}")
    monkeypatch.chdir(tmp_path)
    return WorkingCopy(tmp_path)


def check(text: str):
    session.write("add_ten", text)
    return session.check("add_ten")


@pytest.mark.turns(23)
def test_attempts_hold_what_failed_the_hints_and_the_minutes_to_the_pass(copy, monkeypatch):
    now = iter([1000.0, 1960.0])  # of the first attempt, and of the first pass
    monkeypatch.setattr(working_copy, "time", SimpleNamespace(time=lambda: next(now)))
    check(NO_GUARD)
    mine = copy.progress()["add_ten"]
    assert (mine.tries, mine.passed, mine.failed, mine.minutes) == (1, False, "in bounds", None)
    assert mine.diagnosis == "no guard" and mine.began == 1000
    hint("add_ten")
    check(SOLUTION.replace("10.0f", "11.0f"))
    assert copy.progress()["add_ten"].failed == "agrees"
    check(SOLUTION)
    mine = copy.progress()["add_ten"]
    assert (mine.tries, mine.passed, mine.failed, mine.hints) == (3, True, "", 1)
    assert mine.minutes == 16.0 and mine.diagnosis == ""
    check(NO_GUARD)
    assert copy.progress()["add_ten"].minutes == 16.0  # to the first pass


@pytest.mark.turns(23)
def test_a_failure_shows_the_diagnosis_and_the_way_to_a_hint(copy):
    text = repr(check(NO_GUARD))
    assert "fails in exactly this way: no guard" in text and 'hint("add_ten")' in text
    assert "no guard" in session.check("add_ten")._repr_html_()
    assert "fails in exactly" not in repr(check(SOLUTION.replace("10.0f", "10.5f")))


def test_hints_come_one_by_one(copy, capsys):
    levels = read_exercise("add_ten").hints
    for number in (1, 2, 3, 3):
        hint("add_ten")
        shown = " ".join(capsys.readouterr().out.split())
        assert [" ".join(one.split()) in shown for one in levels] == [n < number for n in range(3)]
        assert copy.progress()["add_ten"].hints == number
    check(NO_GUARD)
    hint("add_ten")
    assert capsys.readouterr().out.startswith("A known wrong solution")


def test_without_a_working_copy_hints_are_counted_in_the_session(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        hint("add_ten")
        assert capsys.readouterr().out.count("Hint ") == number
    assert list(tmp_path.iterdir()) == []


@pytest.mark.turns(29)
def test_a_stub_a_proof_and_a_judge_are_no_attempts(copy):
    check(read_exercise("add_ten").stub)
    prove(read_exercise("add_ten"))
    judge(read_exercise("add_ten"), NO_GUARD)
    assert copy.progress() == {}


def test_a_grader_has_no_working_copy(copy, monkeypatch):
    copy.keep("add_ten", SOLUTION)
    monkeypatch.setenv(GRADER, "autograde")
    assert session.check("add_ten").waiting  # the kept answer is not the student's
    assert check(SOLUTION) and copy.progress() == {}
    assert copy.answer("add_ten") == SOLUTION


@pytest.mark.turns(23)
@pytest.mark.parametrize(
    "damaged", ["", "[1", '{"exercises": [1]}', '{"exercises": {"add_ten": {"tries": "many"}}}']
)
def test_a_damaged_file_is_told_and_set_aside_and_the_check_works(copy, caplog, damaged):
    (copy.folder / PROGRESS).write_text(damaged)
    assert check(SOLUTION)
    assert "is damaged" in caplog.text and "progress.json.unreadable" in caplog.text
    assert (copy.folder / "progress.json.unreadable").read_text() == damaged
    assert copy.progress()["add_ten"].tries == 1


def test_a_file_of_an_older_version_is_read(copy):
    old = {"lessons": {"a": "b"}, "exercises": {"add_ten": {"passed": True, "tries": 3}}}
    (copy.folder / PROGRESS).write_text(json.dumps(old))
    assert copy.progress()["add_ten"] == Attempts(passed=True, tries=3)


def test_a_copy_that_cannot_be_written_is_told_and_the_check_works(copy, caplog):
    (copy.folder / f"{PROGRESS}.new").mkdir()  # in the way, for root too
    (copy.folder / "answers").write_text("a file")
    assert not check(NO_GUARD) and check(SOLUTION)
    assert "cannot be written" in caplog.text and str(copy.folder) in caplog.text
    assert copy.progress() == {}
    hint("add_ten")
    shutil.rmtree(copy.folder / f"{PROGRESS}.new")
    assert session.check("add_ten") and copy.progress()["add_ten"].tries == 1


def test_the_command_checks_gives_hints_and_counts(copy, capsys, tmp_path):
    file = tmp_path / "mine.cu"
    file.write_text(NO_GUARD)
    assert main(["exercises", "add_ten", "--file", str(file), "--json", "-"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["diagnosis"] == "no guard" and not record["passed"]
    assert record["failures"][0]["property"] == "in bounds"
    assert main(["exercises", "add_ten", "--hint"]) == 0
    shown = capsys.readouterr().out
    assert "no guard" in shown and "Hint 1 of 3" in shown and "Hint 2" not in shown
    copy.keep("add_ten", SOLUTION)
    assert main(["exercises", "add_ten"]) == 0
    assert "add_ten: passed" in capsys.readouterr().out
    mine = copy.progress()["add_ten"]
    assert (mine.tries, mine.hints, mine.passed) == (2, 1, True)


def test_the_command_finds_the_copy_in_work_and_names_what_is_missing(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["exercises", "add_ten"]) == 2
    assert "--file FILE" in capsys.readouterr().err
    assert main(["exercises", "--hint"]) == 2
    assert main(["exercises", "add_ten", "--file", "no.cu"]) == 2
    assert "no.cu" in capsys.readouterr().err
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / PROGRESS).write_text("{}")
    WorkingCopy(tmp_path / "work").keep("add_ten", SOLUTION)
    assert main(["exercises", "add_ten"]) == 0
    assert WorkingCopy(tmp_path / "work").progress()["add_ten"].passed


def test_the_listing_of_lessons_sums_what_the_exercises_took(tmp_path, capsys):
    copy = WorkingCopy(tmp_path / "work")
    command = ["lessons", "--folder", str(copy.folder)]
    assert main(command) == 0
    lesson = next(one for one in lessons() if len(one.exercises) > 2)

    def passed(mine: Attempts) -> None:
        mine.tries, mine.hints, mine.passed, mine.minutes = 3, 1, True, 4.5

    copy.note(lesson.exercises[0], passed)
    copy.note(lesson.exercises[1], passed)
    copy.note(lesson.exercises[2], lambda mine: mine.add("agrees", ""))
    capsys.readouterr()
    assert main([*command, "--json", "-"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["lessons"]}
    row = rows[lesson.name]
    assert (row["tries"], row["minutes_taken"], row["hints"]) == (7, 9, 2)
    assert row["passed"] == list(lesson.exercises[:2])
    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    line = next(line for line in lines if line.startswith(lesson.name))
    assert line.split()[3:] == ["2", "of", str(len(lesson.exercises)), "7", "9", "2"]
