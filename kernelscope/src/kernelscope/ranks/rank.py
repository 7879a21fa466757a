"""A rank: what a program of several workers knows of itself and of the others.

The workers are processes with a GPU each, which join_ranks() finds by variables of the environment,
or threads of one process, which run_ranks() starts: one a GPU, or any number on the simulator.
"""

import contextvars
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral

from ..backend import array_module, gpu_count, is_device_array, resolve_backend
from ..errors import BackendError, InputError, UserError
from . import links
from .lines import FarLine, Hub, HubLine, OwnLine, RankLost, name_of

WAIT_S = 60.0  # that a rank waits for its stream
POLL_S = 50e-6
LOCK_S = 5.0  # that an abort waits for a call of NCCL to return
STARTING_S = 60.0  # that NCCL may take to connect the ranks
CHANNELS = "NCCL_MAX_P2P_NCHANNELS"  # NCCL's variable: blocks, and so SMs, that an exchange takes
MOST_CHANNELS = "32"
PRIORITY = -5  # the first there is: of blocks that wait for an SM its go before others
PORT_AFTER = 1  # MASTER_PORT is torchrun's own
FIRST, LAST = "the start", "the end"  # rounds of all ranks


class Rank:
    """One of the workers.

    Use it as a context: an exception inside ends all ranks, with its words.

    Attributes:
        rank, size: its number, and how many there are.
        backend: "gpu" or "simulator"; xp: CuPy or NumPy.
        stream: of exchanges, on a GPU; its work goes before other streams'. None on the simulator.
    """

    def __init__(self, line: HubLine, backend: str, communicator):
        self.rank, self.size, self.backend = line.rank, line.size, backend
        self.xp, self.stream = array_module(backend), None
        self._line, self._communicator = line, communicator
        self._lock = threading.RLock()
        self._group = links
        if backend == "gpu":
            from cupy.cuda import Stream

            self.stream = Stream(non_blocking=True, priority=PRIORITY)
            self._group = nccl_module()
        line.hub.on_failure(lambda _: self._abort())

    def gather(self, value, what: str) -> list:
        """Return the values that all ranks give, by rank: of JSON's types, on the host.

        what: in words, for the message that names a rank which does not come.

        Raises:
            RankLost: a rank has failed, or does not come.
        """
        return self._line.gather(value, what)

    def agree(self, form: Mapping[str, object], what: str, fault: UserError | None = None) -> None:
        """Compare what ranks are about to do; nothing has travelled yet.

        form: names and values of JSON's types, equal on all ranks.  fault: what is wrong on this
        one, of which the others hear.

        Raises:
            The fault. InputError: a fault of another rank, or values that differ. RankLost.
        """
        forms = self.gather({**form, "fault": fault and str(fault)}, what)
        if fault is not None:
            raise fault
        for number, other in enumerate(forms):
            if other["fault"]:
                raise InputError(f"rank {number}: {other['fault']}")
        for number, other in enumerate(forms):
            for name, value in other.items():
                if value != forms[0][name]:
                    raise InputError(
                        f"rank {number} has {name} {value}, rank 0 {forms[0][name]}, in {what}: "
                        "it must be the same on all ranks"
                    )

    def exchange(self, sends: Iterable, receives: Iterable) -> None:
        """Send and receive arrays at once, on `stream`; the simulator waits until it is done.

        sends, receives: (array, rank) each; C-contiguous.

        Raises:
            RankLost. LinkError: on the simulator, counts that differ. InputError: no such rank.
        """
        try:
            with self._lock:
                self._check()
                self._exchange(sends, receives)
        except links.LinkError:
            raise
        except Exception:
            self._check()  # of an exchange that has been aborted NCCL says only that it has failed
            raise

    def _exchange(self, sends: Iterable, receives: Iterable) -> None:
        stream = self.stream.ptr if self.stream is not None else 0
        send, receive = self._communicator.send, self._communicator.recv
        moves = [(send, *_memory(array), peer) for array, peer in sends]
        moves += [(receive, *_memory(array), peer) for array, peer in receives]
        for *_, peer in moves:
            if not 0 <= peer < self.size:
                raise InputError(
                    f"rank {self.rank} exchanges with rank {peer}, but the last one is "
                    f"rank {self.size - 1}"
                )
        self._group.groupStart()
        try:
            for move, address, count, peer in moves:
                move(address, count, links.BYTE, peer, stream)
        finally:
            self._group.groupEnd()  # a group that stays open would swallow the next exchange

    def exchange_in_turn(self, sends: Iterable, receives: Iterable) -> None:
        """The same, after what CuPy's current stream does now and before what it does next."""
        if self.stream is None:
            self.exchange(sends, receives)
            return
        from cupy.cuda import get_current_stream

        current = get_current_stream()
        self.stream.wait_event(current.record())
        self.exchange(sends, receives)
        current.wait_event(self.stream.record())

    def wait(self, timeout_s: float = WAIT_S) -> None:
        """Wait until CuPy's current stream has done its work. Raises RankLost."""
        self._check()
        if self.backend == "simulator":
            return
        from cupy.cuda import get_current_stream

        stream, end = get_current_stream(), time.monotonic() + timeout_s
        while not stream.done:
            self._check()
            if time.monotonic() > end:
                self._line.fail(
                    f"{name_of(self.rank)} has waited {timeout_s:g} s for an exchange that another "
                    "rank has not joined"
                )
            time.sleep(POLL_S)
        self._check()

    def close(self) -> None:
        """Wait until all ranks are done, and end the lines to them. Raises RankLost."""
        self._line.gather(None, LAST)
        with self._lock:
            self._check()
            communicator, self._communicator = self._communicator, None
            communicator.destroy()
        self._line.close()

    def __enter__(self) -> "Rank":
        return self

    def __exit__(self, kind, error, _traceback) -> None:
        if error is None:
            self.close()
        elif isinstance(error, RankLost):
            self._abort()  # unless another thread does: then wait for it
        else:
            self._line.fail(f"{name_of(self.rank)}: {kind.__name__}: {error}")

    def _check(self) -> None:
        if self._line.hub.failure is not None:
            raise RankLost(self._line.hub.failure)

    def _abort(self) -> None:
        """End NCCL's kernels, which would wait for ever; its calls return then, with an error."""
        held = self._lock.acquire(timeout=LOCK_S)
        communicator, self._communicator = self._communicator, None
        if communicator is not None:
            communicator.abort()
        if held:
            self._lock.release()


def run_ranks(
    work: Callable[[Rank], object], size: int | None = None, backend: str | None = None
) -> list:
    """Run a function in a thread for each rank; return what they return, by rank.

    size: ranks; None: one a GPU. On the simulator any number. Observers of the caller see what
    all of them launch.

    Raises:
        RankLost: what has gone wrong first, with its rank; the cause is that exception. Where all
            ranks raise something, that of rank 0.  InputError: size is no number of ranks.
    """
    backend = resolve_backend(backend)
    if size is not None and (not isinstance(size, Integral) or size < 1):
        raise InputError(f"size is {size!r}: pass a number of ranks, at least 1, or None")
    size = size or gpu_count() or 1
    hub, results, errors = Hub(size), [None] * size, {}
    communicators = _communicators(hub, size, backend)

    def run(number: int) -> None:
        if backend == "gpu":
            import cupy

            cupy.cuda.Device(number).use()
        rank = Rank(HubLine(hub, number), backend, communicators[number])
        try:
            results[number] = work(rank)
            rank.close()
        except BaseException as error:
            reason = f"rank {number}: {type(error).__name__}: {error}"
            errors[number] = reason, error
            hub.fail(reason)

    threads = [
        threading.Thread(target=contextvars.copy_context().run, args=(run, number))
        for number in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    causes = [error for _, error in errors.values() if not isinstance(error, RankLost)]
    if len(causes) == size:
        raise errors[0][1]  # all refuse alike
    if errors:
        raise RankLost(hub.failure) from dict(errors.values()).get(hub.failure)
    return results


def join_ranks(backend: str | None = None) -> Rank:
    """Return this process's rank among those that torchrun, mpirun or a shell has started.

    RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are torchrun's variables; rank 0
    listens at the port after MASTER_PORT, which is torchrun's own. Without them mpi4py is asked.

    Raises:
        InputError: neither is there. RankLost: a rank that does not come. BackendError: no GPU.
    """
    backend = resolve_backend(backend)
    rank, size, local, address = _place()
    if backend == "simulator" and size > 1:
        raise InputError(
            "processes have no link on the simulator: run the ranks as threads, by run_ranks()"
        )
    line = OwnLine(address, size) if rank == 0 else FarLine(address, rank, size)
    if backend == "simulator":
        return Rank(line, backend, links.Loopback(links.Mail(line.hub), 0))
    import cupy

    if local >= gpu_count():
        line.fail(f"{name_of(rank)}: LOCAL_RANK is {local}, and there are {gpu_count()} GPUs")
        raise BackendError(line.hub.failure)
    try:
        nccl = nccl_module()
    except BackendError as error:
        line.fail(f"{name_of(rank)}: {error}")
        raise
    cupy.cuda.Device(local).use()
    os.environ.setdefault(CHANNELS, MOST_CHANNELS)
    number = unique_id(line, nccl)
    started = _end_unless_started(line)
    communicator = nccl.NcclCommunicator(size, number, rank)
    started.set()
    return Rank(line, backend, communicator)


def unique_id(line: HubLine, nccl) -> bytes:
    """Return rank 0's id of a communicator on all ranks; it travels as JSON's integers."""
    own = nccl.get_unique_id() if line.rank == 0 else b""
    return bytes(line.gather(list(own), FIRST)[0])


def _end_unless_started(line: HubLine) -> threading.Event:
    """End this process where NCCL waits for a rank that does not come: nothing else ends it."""
    started = threading.Event()

    def watch() -> None:
        end = time.monotonic() + STARTING_S
        while not started.wait(0.2):
            if line.hub.failure is None and time.monotonic() > end:
                line.fail(f"NCCL has not connected all ranks within {STARTING_S:g} s")
            if line.hub.failure is not None:
                print(f"{name_of(line.rank)} ends: {line.hub.failure}", file=sys.stderr, flush=True)
                os._exit(70)

    threading.Thread(target=watch, daemon=True).start()
    return started


def _place() -> tuple[int, int, int, tuple[str, int]]:
    """Rank, size, rank on this host, and where rank 0 listens."""
    known = os.environ
    if "RANK" in known and "WORLD_SIZE" in known:
        rank, size = int(known["RANK"]), int(known["WORLD_SIZE"])
        host, port = known.get("MASTER_ADDR", "localhost"), int(known.get("MASTER_PORT", 29400))
        return rank, size, int(known.get("LOCAL_RANK", rank)), (host, port + PORT_AFTER)
    try:
        from mpi4py import MPI
    except ImportError:
        raise InputError(
            "no RANK and WORLD_SIZE in the environment and no mpi4py: start the program by "
            "torchrun --nproc-per-node=2 PROGRAM or by mpirun, or call run_ranks()"
        ) from None
    world = MPI.COMM_WORLD
    local = world.Split_type(MPI.COMM_TYPE_SHARED).rank
    with socket.create_server(("", 0)) as free:
        place = socket.gethostname(), free.getsockname()[1]
    return world.rank, world.size, local, tuple(world.bcast(place))


def _communicators(hub: Hub, size: int, backend: str) -> Sequence:
    """A communicator for each thread."""
    if backend == "simulator":
        mail = links.Mail(hub)
        return [links.Loopback(mail, number) for number in range(size)]
    if size > gpu_count():
        raise BackendError(f"{size} ranks need a GPU each, and there are {gpu_count()}")
    os.environ.setdefault(CHANNELS, MOST_CHANNELS)
    return nccl_module().NcclCommunicator.initAll(size)


def nccl_module():
    """Return CuPy's module for NCCL. Raises BackendError where the library is not installed."""
    from cupy.cuda import nccl, runtime

    if not nccl.available:
        package = f"nvidia-nccl-cu{runtime.runtimeGetVersion() // 1000}"
        raise BackendError(f"CuPy finds no NCCL, by which GPUs exchange: pip install {package}")
    return nccl


def _memory(array) -> tuple[int, int]:
    """Address and bytes of an array."""
    return array.data.ptr if is_device_array(array) else array.ctypes.data, array.nbytes
