"""Many submissions: on this machine, or on a Dask cluster."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed

from kernelscope import ShownBriefly

from .confined.sandbox import stop_all
from .grader import Task, grade

RETRIES = 3  # of a submission whose worker is gone


class ClusterError(ShownBriefly, RuntimeError):
    """A Dask cluster that can not be used."""


def grade_here(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, dict | Exception]]:
    """Grade submissions, `jobs` at a time; yield each with its result, or what went wrong.

    The threads only wait: what they grade runs in processes of its own.
    """
    pool = ThreadPoolExecutor(jobs)
    try:
        futures = {pool.submit(grade, task): task for task in tasks}
        for future in as_completed(futures):
            error = future.exception()
            yield futures[future], error if error is not None else future.result()
    except BaseException:  # Ctrl-C, or the caller stops early
        pool.shutdown(wait=False, cancel_futures=True)
        stop_all()
        raise
    finally:
        pool.shutdown()


def grade_on_cluster(
    tasks: Sequence[Task], address: str, patience: float = 20.0
) -> Iterator[tuple[Task, dict | Exception]]:
    """Grade submissions on a Dask cluster; yield each once, with its result or what went wrong.

    A submission whose worker is gone is graded by another worker. address: of the scheduler.
    patience: seconds to wait for it.
    Raises ClusterError where there is no cluster.
    """
    try:
        from distributed import Client
        from distributed import as_completed as as_arrived
    except ImportError:
        raise ClusterError(
            "a cluster needs Dask: pip install 'attn-course[class-cluster]'"
        ) from None
    try:
        client = Client(address, timeout=patience, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Dask scheduler at {address}: {error}") from None
    with client:
        futures = {}
        for number, task in enumerate(tasks):
            future = client.submit(
                grade, task, key=f"grade-{number}-{task.key}", pure=False, retries=RETRIES
            )
            futures[future.key] = (future, task)
        waiting = [future for future, _ in futures.values()]
        for future in as_arrived(waiting, loop=client.loop, raise_errors=False):
            task = futures[future.key][1]
            error = future.exception()
            yield task, error if error is not None else future.result()
            future.release()
