"""A suite's compiled peers, compiled in several processes before anything is timed.

Inductor keeps what it compiles in a cache on disk, so the process that times compiles each peer
again in little time. A peer that fails here, hangs or ends its process is not timed. What became of
each peer is kept in the same folder: who compiles beforehand (`--compile-only`) waits once.
"""

import gc
import hashlib
import json
import os
import queue
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial, wraps
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from threading import Lock

from kernelscope import array_module
from kernelscope.differential.identity import gpu_identity

from attn_course.measure import candidates
from attn_course.measure.benchmarks import gather, to_device
from attn_course.measure.candidates import torch_module, torch_version

from .peers import AUTOTUNE, PEERS, forget_compiled
from .suite import Refusals, Suite

SECONDS = 120.0  # for one peer; the first one of a process waits for the import of PyTorch as well
MOST_PROCESSES = 12  # each holds the inputs of a row on the GPU
_BENCHMARKING = "torch._inductor.runtime.benchmarking"  # not public: other versions may lack it
_CACHE = "torch._inductor.runtime.cache_dir_utils"  # nor is this

Job = tuple[Suite, int, str]  # a suite, the number of a row, a peer


def compile_first(
    suite: Suite, chosen: Iterable[str] | None = None, quick: bool = False
) -> Refusals:
    """Compile the peers of a suite; return those that cannot be timed, with the reasons.

    chosen, quick: as Suite.run() takes them. Does nothing where PyTorch sees no GPU.
    """
    if not candidates.available():
        return {}
    found, start = jobs_of(suite, chosen, quick), time.perf_counter()
    kept = kept_outcomes(suite)
    known = json.loads(kept.read_text()) if kept and kept.exists() else {}
    new = [job for job in found if _key(job) not in known]

    def keep(job: Job, reason: str) -> None:  # at once: whoever is stopped has not waited in vain
        known[_key(job)] = reason
        if kept:
            whole = kept.with_suffix(".new")
            whole.write_text(json.dumps(known, indent=1))
            whole.replace(kept)

    if new:
        compile_all(new, processes_for(len(new)), keep)
    failed = {(_label(job), job[2]): reason for job in found if (reason := known[_key(job)])}
    text = f"{len(found) - len(failed)} of {len(found)} peers of {suite.name} compiled"
    before = f", {len(found) - len(new)} of them before" if len(new) < len(found) else ""
    print(f"{text} in {time.perf_counter() - start:.0f} s{before}", file=sys.stderr, flush=True)
    return failed


def kept_outcomes(suite: Suite) -> Path | None:
    """Return the file of what became of a suite's peers, beside what inductor keeps of them.

    Another PyTorch, GPU, driver or text of the suites has another file. None: inductor names no
    folder.
    """
    try:
        folder = Path(import_module(_CACHE).cache_dir())
        folder.mkdir(parents=True, exist_ok=True)
    except (ImportError, AttributeError):
        return None
    digest = hashlib.sha256(f"{torch_version()} {gpu_identity()}".encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return folder / f"attn_course_{suite.name}_{digest.hexdigest()[:16]}.json"


def _label(job: Job) -> str:
    suite, number, _ = job
    return suite.rows[number].label


def _key(job: Job) -> str:
    return f"{_label(job)}: {job[2]}"


def jobs_of(suite: Suite, chosen: Iterable[str] | None = None, quick: bool = False) -> list[Job]:
    """Return every compiled peer of every row: first those that are tuned, which take longest."""
    names = suite.candidates(chosen)
    found = [
        (suite, number, name)
        for number, row in enumerate(suite.rows[:1] if quick else suite.rows)
        for name in suite.peers(row, names)
        if PEERS[name].mode
    ]
    return sorted(found, key=lambda job: PEERS[job[2]].mode != AUTOTUNE)


def processes_for(jobs: int) -> int:
    """Return how many processes compile: one where they could not time in turns."""
    try:
        import_module(_BENCHMARKING)
    except ImportError:
        return 1
    return max(1, min(MOST_PROCESSES, (os.cpu_count() or 1) * 3 // 4, jobs))


def compile_all(
    jobs: Iterable[Job],
    processes: int,
    keep: Callable[[Job, str], None],
    seconds: float = SECONDS,
    work: Callable[[str, int, str], str] | None = None,
    prepare: Callable[[str], None] | None = None,
) -> None:
    """Run jobs in processes of their own.

    Args:
        keep: is told of each job as it is done, and why it failed, or ""; one call at a time.
        seconds: for a job; a process that takes longer is ended, and another one goes on.
        work: compiles a peer by the names of its suite and the row's number, and returns why that
            failed, or "".  prepare: runs first in each process, with the path of a common lock.
            compile_peer() and time_in_turns() where `work` is None.
    """
    waiting: queue.SimpleQueue = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    if work is None and processes > 1:
        prepare = time_in_turns
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(processes) as pool:
        threads = max(1, (os.cpu_count() or 1) // processes)
        lock = str(Path(folder) / "gpu.lock")
        start = partial(_Worker, threads, lock, work or compile_peer, prepare)
        told = _one_at_a_time(keep)
        try:
            list(pool.map(lambda _: _serve_all(waiting, start, seconds, told), range(processes)))
        finally:  # whoever stops this waits for what is under way, and for no more
            _empty(waiting)


def _empty(waiting: queue.SimpleQueue) -> None:
    with suppress(queue.Empty):
        while True:
            waiting.get_nowait()


def _one_at_a_time(tell: Callable) -> Callable:
    lock = Lock()

    def told(*what):
        with lock:
            tell(*what)

    return told


def _serve_all(waiting: queue.SimpleQueue, start: Callable, seconds: float, keep: Callable) -> None:
    """Give jobs to a worker until none is left."""
    worker = None
    try:
        while True:
            job = waiting.get_nowait()
            worker = worker or start()
            reason, alive = worker.ask(job, seconds)
            if not alive:
                worker.end()
                worker = None
            keep(job, reason)
    except queue.Empty:
        return
    finally:
        if worker:
            worker.end()


class _Worker:
    """A process that does one job after the other."""

    def __init__(self, *how):
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, *how))
        self.process.start()
        theirs.close()  # so that the end of the process is noticed

    def ask(self, job: Job, seconds: float) -> tuple[str, bool]:
        """Return why a job failed, or "", and whether the process can go on."""
        suite, *rest = job
        try:
            self.connection.send((suite.name, *rest))
            if self.connection.poll(seconds):
                return self.connection.recv(), True
        except (EOFError, OSError):
            return "the process that compiled it ended", False
        return f"not compiled within {seconds:g} s", False

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _serve(connection, threads: int, lock: str, work: Callable, prepare: Callable | None) -> None:
    """Runs in the process: do what comes in, until it is ended. threads: of inductor."""
    os.setpgrp()  # Ctrl-C ends whoever asked, and no peer fails of it
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(threads))
    if prepare:
        prepare(lock)
    while True:
        connection.send(work(*connection.recv()))


def time_in_turns(lock: str) -> None:
    """Let one process at a time benchmark inductor's choices.

    Others would distort the times, and the cache would keep the wrong choice.
    """
    from filelock import FileLock  # of PyTorch's own requirements; the end of a process frees it
    from torch._inductor.runtime.benchmarking import benchmarker

    alone, kind = FileLock(lock), type(benchmarker)
    for name in ("benchmark_gpu", "benchmark_gpu_with_cuda_graph"):
        if function := getattr(kind, name, None):
            setattr(kind, name, _holding(alone, function))


def _holding(lock, function: Callable) -> Callable:
    @wraps(function)
    def call(*arguments, **named):
        with lock:
            return function(*arguments, **named)

    return call


def compile_peer(suite: str, number: int, name: str) -> str:
    """Compile one peer of a row, and run it; return why that failed, or "".

    Short of memory, beside other processes, is no failure: the process that times tries again.
    """
    from . import SUITES

    benchmark = SUITES[suite].benchmark(SUITES[suite].rows[number], [name])
    xp = array_module("gpu")
    forget_compiled()
    found = gather(
        {name: benchmark["makers"][name]}, [to_device(array, xp) for array in benchmark["inputs"]]
    )
    reason = found.refused.get(name, "")
    del found
    gc.collect()
    torch_module().cuda.empty_cache()
    xp.get_default_memory_pool().free_all_blocks()
    return "" if "out of memory" in reason.lower() else reason
