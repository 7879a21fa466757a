"""The judge proves itself, and where it ends without an answer nobody is blamed for the machine."""

import json
import os
import signal
import site
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
from hostile_class import PROBLEM, SET, without_nvrtc, write_class

from attn_course.classroom.grading import best_sandbox, grade_class, verdict
from attn_course.classroom.grading.confined.sandbox import ProcessOutcome, SandboxError
from attn_course.classroom.grading.confined.supervise import descendants
from attn_course.classroom.grading.verdict import JudgeError, NotJudged
from attn_course.classroom.points import Points, PropertyPoints, nothing
from attn_course.classroom.scoring import read_problem
from attn_course.cli.main import main

ABOUT = read_problem(PROBLEM)
WRONG = ABOUT.wrong[0]
ALL = Points(PROBLEM, tuple(PropertyPoints(name, n, n) for name, n in ABOUT.points.items()))
NOTHING = nothing(ABOUT, "compiles: no compiler")


def answer(points, page="page"):
    return outcome(reply=f"{as_json(points)}\n{json.dumps(page)}\n")


def as_json(points):
    return json.dumps(msgspec.to_builtins(points))


def outcome(passed="", status=0, tail="", reply=""):
    return ProcessOutcome(passed, None if passed else status, 50, tail, reply)


KILLED, LATE = outcome(status=137), outcome("time")
WAITED = outcome("clock")  # it had no processor, or waited for a disk
FRAMES = "Traceback (most recent call last):\n" + "  File x, line 1\n" * 90
CRASHED = outcome(status=1, tail=f"{FRAMES}os.OSError: no space left\n")
MUTE = outcome(status=1, tail="x" * 900 + "\nkilled")


class Judges:
    """A sandbox whose judge gives these outcomes for a student's text, one after the other.

    known: outcomes for the reference, in turn, once the judge is proved; the last one stays.
    """

    def __init__(self, *outcomes, known=(), wrong=None):
        self.outcomes, self.known = list(outcomes), list(known) or [answer(ALL)]
        self.wrong = answer(NOTHING) if wrong is None else wrong
        self.asked = []

    def run(self, arguments, data, limits):
        text = json.loads(data)["text"]
        self.asked.append(text)
        if text == WRONG.text:
            return self.wrong
        given = self.known if text == ABOUT.solution else self.outcomes
        found = given.pop(0) if len(given) > 1 or given is self.outcomes else given[0]
        if isinstance(found, Exception):
            raise found
        return found


def judged(*outcomes, **known):
    sandbox = Judges(*outcomes, **known)
    try:
        return verdict.judge(sandbox, PROBLEM, "text")
    finally:
        assert not sandbox.outcomes


# -- what an ending without an answer means --------------------------------------------------------
@pytest.mark.parametrize(
    "first", [KILLED, LATE, CRASHED, outcome(reply='{"prob'), SandboxError("not started")]
)
def test_a_judge_that_ends_once_is_asked_again(first):
    assert judged(first, answer(ALL)) == (ALL, "page")


def test_the_page_alone_may_be_cut_off():
    cut = as_json(ALL) + '\n"pa'
    assert judged(outcome(reply=cut)) == (ALL, "")
    assert judged(outcome(status=137, reply=cut)) == (ALL, "")


@pytest.mark.parametrize(
    ("endings", "why"),
    [
        ((KILLED, KILLED), "not on the reference solution: it was ended by signal 9"),
        ((CRASHED, CRASHED), "exit status 1: OSError: no space left$"),
        ((MUTE, MUTE), r"exit status 1: \.\.\. x+ killed$"),
        ((LATE, KILLED), "was ended by signal 9"),
        ((KILLED, LATE), "ran longer than 40 s"),
        ((outcome(reply="{"), outcome(reply="{")), "was cut off in its answer"),
    ],
)
def test_a_text_that_ends_the_judge_each_time_is_left_to_the_teacher(endings, why):
    with pytest.raises(NotJudged, match=f"ends on this text each time, .*{why}"):
        judged(*endings)


@pytest.mark.parametrize("endings", [(KILLED, KILLED), (LATE, LATE)])
@pytest.mark.parametrize("then", [KILLED, LATE, answer(NOTHING)])
def test_where_the_reference_fails_too_the_machine_is_at_fault(endings, then):
    with pytest.raises(SandboxError, match="the machine's fault") as caught:
        judged(*endings, known=(answer(ALL), then))
    assert "the reference solution of ps1_scores gets" in str(caught.value)
    assert not isinstance(caught.value, JudgeError)


def test_a_limit_each_time_is_the_texts_own():
    points, page = judged(LATE, outcome("memory"))
    assert points.earned == 0 and not page
    reason = "the kernel ended the examination: it used more than 2048 MiB of memory"
    assert {row.reason for row in points.rows} == {reason}


def test_time_that_a_judge_waits_for_the_machine_is_not_the_texts():
    with pytest.raises(NotJudged, match="it waited for the machine"):
        judged(WAITED, WAITED)
    with pytest.raises(NotJudged):
        judged(LATE, WAITED)


# -- the proof -------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("judges", "why"),
    [
        ({"known": (answer(NOTHING),)}, "0 of 14 points: compiles: no compiler"),
        ({"known": (CRASHED,)}, "gets no answer: the judge ended early, .*no space left"),
        ({"known": (LATE,)}, "gets no answer: the judge ran longer"),
        ({"wrong": answer(ALL)}, "14 of 14 points, though it breaks 'no race'"),
        ({"wrong": KILLED}, "a wrong solution of ps1_scores gets no answer"),
    ],
)
def test_a_judge_that_misjudges_what_is_known_judges_nobody(judges, why):
    sandbox = Judges(answer(ALL), **judges)
    for _ in range(2):  # it is tried again, as the machine may have recovered
        with pytest.raises(JudgeError, match=f"nothing is graded, .*{why}"):
            verdict.judge(sandbox, PROBLEM, "text")
    assert "text" not in sandbox.asked


def test_the_judge_is_proved_once_for_a_problem():
    sandbox = Judges(*[answer(ALL)] * 6)
    threads = [
        threading.Thread(target=verdict.judge, args=(sandbox, PROBLEM, one)) for one in "abc"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sandbox.asked[:2] == [ABOUT.solution, WRONG.text] and len(sandbox.asked) == 5
    assert verdict.judge(sandbox, PROBLEM, None)[0].earned == 0  # no kernel: nothing to prove


# -- the machine itself ----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def proved():
    """The sandbox of this machine, in which the judge is proved."""
    verdict.require_judge(best_sandbox(), PROBLEM)
    return best_sandbox()


class Killer(threading.Thread):
    """Kill judges of this process, as a system does that is out of memory, up to a number."""

    def __init__(self, most):
        super().__init__(daemon=True)
        self.most, self.killed, self.stop = most, set(), threading.Event()

    def run(self):
        while len(self.killed) < self.most and not self.stop.wait(0.02):
            for process in descendants():  # other tests judge as well
                try:
                    words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
                    if verdict.MODULE.encode() in words and process not in self.killed:
                        os.kill(process, signal.SIGKILL)
                        self.killed.add(process)
                        break
                except OSError:
                    continue

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.join()


@pytest.mark.turns(41)
@pytest.mark.system
def test_a_judge_that_is_killed_costs_no_points(proved):
    with Killer(1) as killer:
        points, _ = verdict.judge(proved, PROBLEM, ABOUT.correct[0].text)
    assert len(killer.killed) == 1 and points.earned == points.possible
    with Killer(99) as killer, pytest.raises(SandboxError, match="the machine's fault"):
        verdict.judge(proved, PROBLEM, ABOUT.correct[0].text)
    assert len(killer.killed) == 4  # the text twice, the reference twice


@pytest.mark.turns(23)
@pytest.mark.system
def test_a_killed_judge_is_not_kept_as_a_grade(proved, tmp_path, capsys):
    write_class(tmp_path, ("correct",))
    arguments = ["grade", str(tmp_path), "--jobs", "1"]
    with Killer(99):
        assert main(arguments) == 1
    assert "not graded" in capsys.readouterr().out
    assert ",not graded,,,1" in (tmp_path / "grades" / "grades.csv").read_text()
    assert main(arguments) == 0  # the next call tries again
    assert "14 of 14" in capsys.readouterr().out


@pytest.mark.turns(47)
@pytest.mark.system
def test_a_judge_without_nvrtc_grades_nobody(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(verdict, "_proven", set())
    monkeypatch.setenv("PYTHONPATH", without_nvrtc(tmp_path / "hidden"))
    write_class(tmp_path, ("correct", "two_buffers"))
    assert main(["grade", str(tmp_path), "--jobs", "1"]) == 2
    told = capsys.readouterr().err
    assert "nothing is graded, the judge does not work here" in told
    assert "pip install cupy-cuda12x" in told
    assert not list((tmp_path / "grades").rglob("*.csv"))
    assert not list((tmp_path / "grades").rglob("results/*/*.json"))


JUDGED = """
import sys
from attn_course.classroom.grading.verdict import own_points
print(own_points(*sys.argv[1:]).rows[0].reason)
"""


@pytest.mark.turns(23)
@pytest.mark.system
def test_packages_in_the_user_site_cost_no_points(tmp_path):
    """The judge finds NumPy and the compiler there; else it gives no answer, and no points."""
    base = Path(sys.base_prefix, "bin", f"python3.{sys.version_info.minor}")
    if not base.exists() or sys.prefix == sys.base_prefix:
        pytest.skip("this Python is in no virtual environment")
    user = tmp_path / "home" / ".local"
    packages = Path(next(path for path in site.getsitepackages() if path.startswith(sys.prefix)))
    inside = user / packages.relative_to(sys.prefix)
    inside.parent.mkdir(parents=True)
    inside.symlink_to(packages)
    environment = os.environ | {"HOME": str(user.parent), "PYTHONUSERBASE": str(user)}
    command = [str(base), "-c", JUDGED, PROBLEM, "this is no CUDA"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path)
    if ended.returncode:
        assert "NotJudged: " in ended.stderr and not ended.stdout
    else:
        assert ended.stdout.startswith("compiles: kernel.cu:1: error: ")


def test_a_class_ends_where_the_judge_does_not_work(tmp_path, monkeypatch):
    def refused(task):
        raise JudgeError("nothing is graded")

    monkeypatch.setattr("attn_course.classroom.grading.pool.grade", refused)
    for name in ("ann", "bob"):
        (tmp_path / f"{name}_{SET}.ipynb").write_text("{}")
    with pytest.raises(JudgeError):
        grade_class(tmp_path, tmp_path / "grades", jobs=1)
    assert not (tmp_path / "grades").exists()
