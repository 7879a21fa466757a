"""A class on a Dask cluster: a worker that is killed loses no submission, and none counts twice."""

import os
import signal

import pytest
from hostile_class import SET

from attn_course.classroom.grading import grade_class
from attn_course.classroom.grading.pool import ClusterError, grade_on_cluster

pytestmark = pytest.mark.system

distributed = pytest.importorskip("distributed", reason="Dask is not installed")


@pytest.fixture(scope="module")
def cluster():
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
    ) as cluster:
        yield cluster


def test_a_killed_worker_loses_no_submission(cluster, tmp_path):
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
    assert run.graded == 6 and [one["student"] for one in run.results] == sorted(seen)
    assert all("not JSON" in one["unreadable"] for one in run.results)


def test_no_scheduler_is_one_line():
    with pytest.raises(ClusterError, match="no Dask scheduler at"):
        list(grade_on_cluster([], "tcp://127.0.0.1:9", patience=0.5))
