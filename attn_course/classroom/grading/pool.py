"""Many submissions: on this machine, or on a Dask cluster."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from kernelscope.errors import UserError

from .confined.sandbox import stop_all
from .grader import Task, grade
from .verdict import JudgeError

RETRIES = 3  # of a submission whose worker is gone
_log = logging.getLogger(__name__)


class ClusterError(UserError, RuntimeError):
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


@dataclass(frozen=True)
class Refusal:
    """A worker that grades nobody, since the judge does not work there."""

    worker: str
    why: str


def grade_on_cluster(
    tasks: Sequence[Task], address: str, patience: float = 20.0
) -> Iterator[tuple[Task, dict | Exception]]:
    """Grade submissions on a Dask cluster; yield each once, with its result or what went wrong.

    A submission is graded by another worker where its worker is gone, or where the judge does not
    work there. address: of the scheduler. patience: seconds to wait for it.
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
        asyncio.run(_reach(address, patience))
        client = Client(address, timeout=patience, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ClusterError(
            f"no Dask scheduler at {address!r}: {error}. An address is such as tcp://HOST:8786"
        ) from None
    with client:
        futures = {}
        for number, task in enumerate(tasks):
            future = _submit(client, task, str(number))
            futures[future.key] = (future, task)
        refused: dict[str, str] = {}
        arrived = as_arrived(
            [future for future, _ in futures.values()], loop=client.loop, raise_errors=False
        )
        for future in arrived:
            task = futures.pop(future.key)[1]
            error = future.exception()
            result = error if error is not None else future.result()
            future.release()
            if not isinstance(result, Refusal):
                yield task, result
                continue
            _note(result, refused)
            others = sorted(set(client.nthreads()) - set(refused))
            if not others:
                yield task, JudgeError(result.why)
                continue
            future = _submit(client, task, f"{future.key}-again", others)
            futures[future.key] = (future, task)
            arrived.add(future)


async def _reach(address: str, patience: float) -> None:
    """Connect once: a client that finds nobody gives up late, and with a traceback."""
    from distributed import Security
    from distributed.comm import connect

    security = Security().get_connection_args("client")
    (await connect(address, timeout=patience, **security)).abort()


def _submit(client, task: Task, name: str, workers: Sequence[str] | None = None):
    """Return the future of a task. workers: those to prefer, as others have refused."""
    return client.submit(
        _grade_there,
        task,
        key=f"grade-{name}-{task.key}",
        pure=False,
        retries=RETRIES,
        workers=workers,
        allow_other_workers=workers is not None,  # those may be gone
    )


def _grade_there(task: Task) -> dict | Refusal:
    """Grade on a worker. What is returned is not tried again there, unlike an exception."""
    from distributed import get_worker

    try:
        return grade(task)
    except JudgeError as error:
        return Refusal(get_worker().address, str(error))


def _note(refusal: Refusal, refused: dict[str, str]) -> None:
    if refusal.worker not in refused:
        _log.warning("the worker %s grades nobody: %s", refusal.worker, refusal.why)
    refused[refusal.worker] = refusal.why
