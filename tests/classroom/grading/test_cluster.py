"""A class on a Dask cluster: a worker that is killed loses no submission, and none counts twice."""

import os
import signal
import subprocess
import sys

import pytest
from hostile_class import SET, without_nvrtc

from attn_course.classroom.grading import grade_class
from attn_course.classroom.grading.pool import ClusterError, grade_on_cluster
from attn_course.classroom.grading.store import GRADED
from attn_course.classroom.grading.verdict import JudgeError
from attn_course.classroom.notebooks import notebook_text, released_notebook
from attn_course.classroom.sets import problem_set

pytestmark = [pytest.mark.system, pytest.mark.turns(29), pytest.mark.usefixtures("distributed")]


@pytest.fixture(scope="module")
def distributed():
    """The package, which takes long to import, for the tests that come."""
    return pytest.importorskip("distributed", reason="Dask is not installed")


@pytest.fixture(scope="module")
def cluster(distributed):
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    ) as cluster:
        yield cluster


def test_a_killed_worker_loses_no_submission(distributed, cluster, tmp_path):
    for number in range(6):
        (tmp_path / f"student{number}_{SET}.ipynb").write_text("[" * (number + 1))
    with distributed.Client(cluster) as client:
        workers = list(client.run(os.getpid).values())
    seen = []

    def follow(graded, count):
        for task, result in graded:
            if not seen:
                os.kill(workers[0], signal.SIGKILL)
            seen.append(task.student)
            yield task, result

    address = cluster.scheduler_address
    run = grade_class(tmp_path, tmp_path / "grades", cluster=address, follow=follow)
    assert sorted(seen) == [f"student{number}" for number in range(6)]
    assert run.graded == 6 and [one.student for one in run.results] == sorted(seen)
    assert all("not JSON" in one.unreadable for one in run.results)


BREAK = """
import os
from attn_course.classroom.grading import verdict
os.environ["PYTHONPATH"] = {!r}
verdict.require_judge = getattr(verdict, "required", verdict.require_judge)
verdict._proven.clear()
"""
# test_verdict.py proves the judge of this machine; here one worker takes it for proved.
TRUST = """
from attn_course.classroom.grading import verdict
verdict.required, verdict.require_judge = verdict.require_judge, lambda *_: None
"""


def test_a_worker_without_a_judge_grades_nobody(distributed, cluster, tmp_path, caplog):
    text = notebook_text(released_notebook(problem_set(SET)))
    for number in range(2):
        (tmp_path / f"student{number}_{SET}.ipynb").write_text(text)
    path = without_nvrtc(tmp_path / "hidden")
    with distributed.Client(cluster) as client:
        client.wait_for_workers(2, timeout=60)
        bad, good = sorted(client.nthreads())
        client.run(exec, BREAK.format(path), workers=[bad])
        client.run(exec, TRUST, workers=[good])
        address = cluster.scheduler_address
        run = grade_class(tmp_path, tmp_path / "grades", cluster=address)
        assert [one.state for one in run.results] == [GRADED] * 2
        assert f"the worker {bad} grades nobody: nothing is graded" in caplog.text
        client.run(exec, BREAK.format(path), workers=[good])
        with pytest.raises(JudgeError, match="pip install cupy"):
            grade_class(tmp_path, tmp_path / "grades", cluster=address, again=True)


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "tcp://", "http://a:1"])
def test_no_scheduler_is_an_error_of_one_line(address):
    with pytest.raises(ClusterError, match=f"no Dask scheduler at '{address}': .*tcp://HOST:8786"):
        list(grade_on_cluster([], address, patience=0.5))


def test_the_command_ends_at_once_where_there_is_no_scheduler(tmp_path):
    """A client of Dask that finds nobody waits twice as long, and ends with a traceback."""
    (tmp_path / f"ann_{SET}.ipynb").write_text("{}")
    command = [sys.executable, "-m", "attn_course.cli", "grade", str(tmp_path), "--dask", "garbage"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 2, ended
    assert ended.stderr.splitlines() == [ended.stderr.rstrip("\n")]
    assert ended.stderr.startswith("attn-course: no Dask scheduler at 'garbage': missing port")
