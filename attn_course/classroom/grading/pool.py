"""Many submissions: on this machine, or on a Dask cluster."""

import asyncio
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import NamedTuple

from kernelscope.errors import UserError

from .confined.sandbox import stop_all
from .grader import Task, grade
from .store import Result
from .verdict import JudgeError

Outcome = tuple[Result, dict[str, str]] | Exception
RETRIES = 3  # of a submission whose worker is gone
_log = logging.getLogger(__name__)


class ClusterError(UserError, RuntimeError):
    """A Dask cluster that can not be used."""


def grade_here(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Outcome]]:
    """Grade submissions, `jobs` at a time; yield each with its result, or what went wrong.

    The threads only wait: what they grade runs in processes of its own.
    """
    pool, futures = ThreadPoolExecutor(jobs), {}
    try:
        futures |= {pool.submit(grade, task): task for task in tasks}
        for future in as_completed(futures):
            error = future.exception()
            yield futures[future], error if error is not None else future.result()
    except BaseException:  # Ctrl-C, or the caller stops early
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in futures):  # a judge that ends is asked again
            stop_all()
            time.sleep(0.05)
        raise
    finally:
        pool.shutdown()


class Refusal(NamedTuple):
    """A worker that grades nobody, since the judge does not work there."""

    worker: str
    why: str


def grade_on_cluster(
    tasks: Sequence[Task], address: str, patience: float = 20.0
) -> Iterator[tuple[Task, Outcome]]:
    """Grade submissions on a Dask cluster; yield each once, with its result or what went wrong.

    A submission is graded by another worker where its worker is gone, or where the judge does not
    work there. address: of the scheduler. patience: seconds to wait for it.
    Raises ClusterError where there is no cluster.
    """
    with _client(address, patience) as client:
        from distributed import as_completed as as_arrived

        waiting: dict[str, Task] = {}
        arrived = as_arrived(loop=client.loop, raise_errors=False)

        def submit(task: Task, key: str, preferred: Sequence[str] | None = None) -> None:
            waiting[key] = task
            others = preferred is not None  # the preferred workers may be gone
            where = {"workers": preferred, "allow_other_workers": others}
            arrived.add(
                client.submit(_grade_there, task, key=key, pure=False, retries=RETRIES, **where)
            )

        for number, task in enumerate(tasks):
            submit(task, f"grade-{number}-{task.key}")
        refused: set[str] = set()
        for future in arrived:
            task, error = waiting.pop(future.key), future.exception()
            result = error if error is not None else future.result()
            future.release()
            if not isinstance(result, Refusal):
                yield task, result
                continue
            if result.worker not in refused:
                _log.warning("the worker %s grades nobody: %s", *result)
            refused.add(result.worker)
            if others := sorted(set(client.nthreads()) - refused):
                submit(task, f"{future.key}-again", others)
            else:
                yield task, JudgeError(result.why)


def _client(address: str, patience: float):
    """Return a client of a cluster. It connects once before: a client that finds nobody gives up
    late, and with a traceback.
    """
    try:
        from distributed import Client, Security
        from distributed.comm import connect
    except ImportError:
        raise ClusterError(
            "a cluster needs Dask: pip install 'attn-course[class-cluster]'"
        ) from None

    async def reach() -> None:
        security = Security().get_connection_args("client")
        (await connect(address, timeout=patience, **security)).abort()

    try:
        asyncio.run(reach())
        return Client(address, timeout=patience, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler at {address!r}: {error}. An address is such as tcp://HOST:8786"
        ) from None


def _grade_there(task: Task) -> tuple[Result, dict[str, str]] | Refusal:
    """Grade on a worker. What is returned is not tried again there, unlike an exception."""
    from distributed import get_worker

    try:
        return grade(task)
    except JudgeError as error:
        return Refusal(get_worker().address, str(error))
