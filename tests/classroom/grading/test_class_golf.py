"""A class's golf: texts are judged again in the sandbox, and no number of theirs counts."""

import json

import pytest

from attn_course.classroom.grading import SandboxError, best_sandbox
from attn_course.classroom.grading.confined.sandbox import ProcessOutcome
from attn_course.classroom.grading.golf import class_golf, judged_apart, submitted_kernels
from attn_course.classroom.grading.submissions import CollectError
from attn_course.cli.main import main
from attn_course.exercises import judge, read_exercise
from attn_course.exercises.golf import known_standings, text_hash
from attn_course.lessons.working_copy import PROGRESS

pytestmark = [pytest.mark.system, pytest.mark.turns(29)]

EXERCISE = read_exercise("add_ten")
CLAIM = {"sectors": 1, "wavefronts": 0, "instructions": 1, "total": 2, "date": "2026-01-01"}


def test_python_of_a_class_is_not_run(tmp_path):
    (tmp_path / "eve.cu").write_text(f"open({str(tmp_path / 'done')!r}, 'w')", encoding="utf-8")
    with pytest.raises(CollectError, match="no student's Python is run"):
        list(class_golf(read_exercise("triton_softmax"), tmp_path))
    assert not (tmp_path / "done").exists()


@pytest.fixture
def folder(tmp_path):
    work = tmp_path / "bob"
    (work / "answers").mkdir(parents=True)
    (work / "answers" / "add_ten.cu").write_text(EXERCISE.correct[1].text)
    claimed = {"passed": True, "passes": {text_hash(EXERCISE.correct[1].text): CLAIM}}
    (work / PROGRESS).write_text(json.dumps({"exercises": {"add_ten": claimed}}))
    (tmp_path / "ann.cu").write_text(EXERCISE.solution)
    (tmp_path / "cy.cu").write_text(EXERCISE.wrong[0].text)
    (tmp_path / "di.cu").write_text(EXERCISE.stub)
    (tmp_path / "ed.cu").symlink_to(tmp_path / "ann.cu")
    (tmp_path / "flo.cu").write_text("//" + "x" * 200_000)
    return tmp_path


def test_every_text_is_judged_again_and_no_claimed_number_counts(folder, capsys):
    known = dict(known_standings(EXERCISE))
    assert main(["golf", "add_ten", "--submissions", str(folder), "--json", "-"]) == 1
    record = json.loads(capsys.readouterr().out)
    found = {row["kernel"]: row for row in record["standings"]}
    assert found["ann"]["total"] == known["reference"]["total"]
    assert found["bob"]["total"] == known[EXERCISE.correct[1].name]["total"] > CLAIM["total"]
    assert found["ann"]["text"] == text_hash(EXERCISE.solution)
    assert [row["total"] for row in record["standings"]] == sorted(
        row["total"] for row in record["standings"]
    )
    reasons = {row["kernel"]: row["reason"] for row in record["failed"]}
    assert reasons["cy"] == "fails: in bounds" and reasons["di"] == "is the stub"
    assert "cannot be read" in reasons["ed"] and "200,000 characters" in reasons["flo"]
    assert set(reasons) == {"cy", "di", "ed", "flo"}


def test_a_hidden_case_counts_too():
    problem = read_exercise("ps1_scores")
    (blind,) = (one.text for one in problem.wrong if one.name == "d is at most 64")
    assert judge(problem, blind)  # no case that is shown has d > 64
    found = judged_apart(best_sandbox(), "ps1_scores", blind)
    assert isinstance(found, str) and found.startswith("fails: ")


def test_links_out_of_the_folder_are_not_followed(tmp_path, tmp_path_factory):
    (tmp_path / "flo.cu").write_text("//" + "x" * 200_000)
    other = tmp_path_factory.mktemp("other") / "gil"
    (other / "answers").mkdir(parents=True)
    (other / "answers" / "add_ten.cu").write_text(EXERCISE.solution)
    (tmp_path / "gil").symlink_to(other)
    found = {student: result for student, _, result in class_golf(EXERCISE, tmp_path)}
    assert "link" in found.get("gil", "a link that glob leaves out")


class Broken:
    """A sandbox whose judge dies."""

    def run(self, arguments, data, limits):
        return ProcessOutcome("", 137, 1.0, "killed", "")


def test_a_judge_that_does_not_work_blames_nobody(folder):
    with pytest.raises(SandboxError, match="reference solution is not judged: .*signal 9"):
        list(class_golf(EXERCISE, folder, Broken()))


def test_a_folder_without_kernels_is_refused_with_the_names_that_are_read(tmp_path):
    with pytest.raises(CollectError, match=r"STUDENT/answers/add_ten\.cu"):
        submitted_kernels(tmp_path, "add_ten")
