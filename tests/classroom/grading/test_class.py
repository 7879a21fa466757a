"""A class from its folder to its tables: right, wrong and hostile submissions, and a stop."""

import csv
import json
import os
import re
import shutil
from collections import Counter
from dataclasses import replace

import hostile_class
import msgspec
import pytest
from hostile_class import PROBLEM, SET, traces, unexpected, write_class

from attn_course.classroom.grading import (
    HandoutError,
    Task,
    best_sandbox,
    grade_class,
    grader,
    handout_of,
    verdict,
)
from attn_course.classroom.grading.class_run import OVERVIEW
from attn_course.classroom.grading.confined import judging, reading
from attn_course.classroom.grading.store import Result
from attn_course.classroom.notebooks import notebook_text, released_notebook
from attn_course.classroom.sets import problem_set
from attn_course.cli.main import main

pytestmark = [pytest.mark.system, pytest.mark.turns(29)]

QUICK = ("no_first_barrier", "scripts", "not_json", "link", "work_beside_stub", "=cmd()")
TABLES = ("grades.csv", "points.csv", "remarks.csv", "not_taken.csv")


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A folder with a class that is graded, the cases, and the command's exit status."""
    folder = tmp_path_factory.mktemp("class")
    cases = write_class(folder, QUICK)
    (folder / "submitted" / "cyn").mkdir()
    (folder / "submitted" / "cyn" / f"{SET}.ipynb").write_text("{}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(verdict, "require_judge", lambda *_: None)  # test_verdict.py proves it
        status = main(["grade", str(folder), "--json", str(folder / "out.json")])
    return folder, cases, status


def tables(folder):
    return {name: (folder / "grades" / name).read_bytes() for name in TABLES}


def results_of(folder):
    paths = (folder / "grades" / "results").rglob("*.json")
    return {path.stem: msgspec.json.decode(path.read_bytes(), type=Result) for path in paths}


def test_each_submission_has_its_outcome(graded):
    folder, cases, status = graded
    assert status == 1  # two are not readable
    found = results_of(folder)
    wrong = {case.name: unexpected(case, found[case.name]) for case in cases}
    assert not any(wrong.values()), wrong
    assert not traces(folder)
    record = json.loads((folder / "out.json").read_text())
    states = Counter(one["state"] for one in record["submissions"])
    assert states == {"graded": 4, "not readable": 2} and record["graded_now"] == 6


def test_files_that_are_not_taken_are_in_the_report(graded):
    folder, _, _ = graded
    told = {"file": f"cyn/{SET}.ipynb", "reason": "it is not in its place, submitted/STUDENT/SET"}
    (one,) = json.loads((folder / "out.json").read_text())["not_taken"]
    assert one["file"] == told["file"] and one["reason"].startswith(told["reason"])
    assert told["file"] in (folder / "grades" / OVERVIEW).read_text()
    assert told["file"] in (folder / "grades" / "not_taken.csv").read_text()
    chosen = results_of(folder)["work_beside_stub"]
    assert chosen.file == f"submitted/work_beside_stub/{SET}/{SET} (1).IPYNB"


def test_the_whole_class_is_free_of_markup_and_formulas(graded):
    folder, _, _ = graded
    for page in (folder / "grades").rglob("*.html"):
        if not page.name.endswith("_steps.html"):
            assert not re.search(r"<\s*(script|img)", page.read_text()), page
    for name in TABLES:
        for row in csv.reader((folder / "grades" / name).read_text().splitlines()):
            assert not any(cell.startswith(("=", "+", "-", "@")) for cell in row)


def test_the_failing_case_has_a_page(graded):
    folder, _, _ = graded
    page = folder / "grades" / "feedback" / "no_first_barrier" / SET / f"{SET}.html"
    steps = page.with_name(f"{PROBLEM}_steps.html")
    assert steps.name in page.read_text() and "mount(" in steps.read_text()
    assert (folder / "grades" / OVERVIEW).read_text().count("<tr>") == 9  # with heads


def test_a_second_call_grades_nothing_again(graded, capsys):
    folder, _, _ = graded
    before = tables(folder)
    capsys.readouterr()
    assert main(["grade", str(folder)]) == 1
    told = capsys.readouterr().out
    assert "6 submissions, 4 graded, 0 of all now" in told
    assert f"not taken: cyn/{SET}.ipynb: it is not in its place" in told
    assert tables(folder) == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda result: '{"key": ',
        lambda result: json.dumps({"key": result["key"]}),
        lambda result: json.dumps(result | {"problems": [{"name": "ps1_scores"}]}),
        lambda result: json.dumps(result | {"remarks": [{"kind": 1}]}),
        lambda result: "[" * 100_000,
    ],
)
def test_a_damaged_result_is_made_again(graded, damage):
    folder, _, _ = graded
    before = tables(folder)
    path = folder / "grades" / "results" / SET / "not_json.json"
    path.write_text(damage(json.loads(path.read_text())))
    run = grade_class(folder, folder / "grades")
    assert run.graded == 1 and tables(folder) == before


def stop_after_one(graded, count):
    for number, one in enumerate(graded):
        yield one
        if number == 0:
            raise KeyboardInterrupt


def test_an_interrupted_class_goes_on(tmp_path):
    write_class(tmp_path, ("not_json", "no_notebook", "nested"))
    with pytest.raises(KeyboardInterrupt):
        grade_class(tmp_path, tmp_path / "grades", jobs=1, follow=stop_after_one)
    assert len(results_of(tmp_path)) == 1
    run = grade_class(tmp_path, tmp_path / "grades")
    assert len(run.results) == 3 and run.graded == 2
    whole = tmp_path / "whole"
    shutil.copytree(tmp_path / "submitted", whole / "submitted")
    grade_class(whole, whole / "grades")
    assert tables(whole) == tables(tmp_path)


def test_one_that_fails_loses_no_other(tmp_path, monkeypatch):
    write_class(tmp_path, ("not_json", "empty"))
    real = grader._chosen

    def broken(task, sandbox):
        if task.student == "empty":
            raise RuntimeError("\x1b[2Jthe grader itself")
        return real(task, sandbox)

    monkeypatch.setattr(grader, "_chosen", broken)
    run = grade_class(tmp_path, tmp_path / "grades")
    failed = {one.student: one.failed for one in run.results}
    assert failed == {"empty": "RuntimeError:  [2Jthe grader itself", "not_json": ""}
    assert not (tmp_path / "grades" / "results" / SET / "empty.json").exists()  # tried again


def test_another_version_of_the_course_grades_nothing():
    handout = handout_of(SET)
    task = Task("ann", SET, "a.ipynb", b"{}", handout, code="another")
    with pytest.raises(HandoutError, match="another version of the course"):
        grader.grade(task)
    other = replace(handout, problems={PROBLEM: "0"})
    with pytest.raises(HandoutError, match=f"another version of {PROBLEM}"):
        grader.grade(Task("ann", SET, "a.ipynb", b"{}", other))


def test_an_unknown_problem_set_is_told(tmp_path, capsys):
    (tmp_path / "ann_ps99.ipynb").write_text("{}")
    assert main(["grade", str(tmp_path)]) == 2
    assert "there is no problem set 'ps99'" in capsys.readouterr().err


def test_every_case_has_a_name_of_its_own():
    names = [case.name for case in hostile_class.CASES]
    assert len(set(names)) == len(names) >= 30


def test_what_a_kernel_prints_is_not_taken_for_points():
    points, page = verdict.judge(best_sandbox(), PROBLEM, hostile_class.PRINTED)
    assert points.earned == 0 and points.possible == 14 and "mount(" in page


def test_points_edited_in_a_release_change_no_grade(tmp_path):
    """The problem's file gives the points, as docs/classroom.md says."""
    handed_out = released_notebook(problem_set(SET))
    submitted, edited = tmp_path / f"ann_{SET}.ipynb", tmp_path / "release" / SET / f"{SET}.ipynb"
    submitted.write_text(notebook_text(handed_out))
    tests = [cell for cell in handed_out["cells"] if cell["metadata"]["nbgrader"].get("points")]
    tests[0]["metadata"]["nbgrader"]["points"] += 50
    edited.parent.mkdir(parents=True)
    edited.write_text(notebook_text(handed_out))
    (result,) = grade_class(tmp_path, tmp_path / "grades").results
    assert (result.earned, result.possible) == (0, problem_set(SET).points)
    assert [one.kind for one in result.remarks] == ["metadata"]


class Recorded:
    """The sandbox of this machine, which keeps what it is asked to run, and on what."""

    description = "recorded"

    def __init__(self):
        self.asked = []

    def run(self, arguments, data, limits=None):
        self.asked.append((tuple(arguments), data))
        return best_sandbox().run(arguments, data, limits)


def test_no_python_of_a_submission_is_given_to_python(tmp_path, monkeypatch):
    """The two programs that run are the course's own; the judge gets the kernel's text alone."""
    monkeypatch.setattr(verdict, "require_judge", lambda *_: None)  # it would judge two more texts
    (case,) = write_class(tmp_path, ("replaces_the_judge",))
    data = (tmp_path / "submitted" / case.name / SET / f"{SET}.ipynb").read_bytes()
    sandbox = Recorded()
    result, _ = grader.grade(Task("ann", SET, "a.ipynb", data, handout_of(SET)), sandbox)
    assert result.earned == result.possible and not traces(tmp_path)
    assert {one for one, _ in sandbox.asked} == {("-m", reading.__name__), ("-m", judging.__name__)}
    judged = [json.loads(given) for (_, name), given in sandbox.asked if name == judging.__name__]
    assert all(set(one) == {"problem", "text"} and "import" not in one["text"] for one in judged)


def test_a_name_that_is_no_text_has_a_page(tmp_path):
    path = os.fsencode(tmp_path) + b"/ann\xff_ps1.ipynb"
    with open(path, "w") as file:
        file.write("no notebook")
    run = grade_class(tmp_path, tmp_path / "grades", jobs=1)
    assert run.results[0].unreadable.startswith("the file is not JSON")
    assert "ann%FF" in (run.folder / OVERVIEW).read_text()
