"""The blocks of a launch on all cores: forked processes run parts of it and send what they wrote.

Threads would share NumPy, but they take turns at Python, which is half of a launch's time.
A forked process has all of the launch's memory as it was, and pays only for what it changes.

The result must be that of one process, block after block. So a launch is shared out only where
nothing passes between blocks: its kernel has no atomics and no volatile accesses in global memory,
prints nothing, and reads no clock. Each process then notes which bytes it writes and which arrays
it reads. Where two have written one byte, or one has read what another one wrote, or anything goes
wrong, all that is thrown away, and the blocks run here, one after another, errors and all.

Launches with observers are not shared out, nor those with a limit in seconds of the processor,
which counts this process alone: so grading uses one process.
"""

import ctypes
import os
import pickle
import select
import signal
import threading
import time
import warnings
from contextlib import suppress

import numpy as np

from ...address_space import SPACE
from ...errors import InputError, Interrupted, OutOfTime, UserError
from ...settings import setting
from ...translate.control_flow import looks_at_others
from ...translate.executable import reachable

WORKERS = "KERNELSCOPE_WORKERS"  # environment: how many processes run the blocks of a launch
_MOST = 8  # processes, unless the environment asks for more
_WORTH_SECONDS = 0.1  # that the blocks must take for it
_LEAST_LANES = 8192  # of a part: fewer cost NumPy nearly as much
_PARTS = 4  # for each process, as blocks may differ in what they take
_MOST_BYTES = 1 << 28  # of arrays that are written
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "u8"}
_SHARED = (".shared", ".local")


def worker_count() -> int:
    """How many processes to use. Raises InputError where KERNELSCOPE_WORKERS is no such number.

    Without it: a core each; but one where pytest-xdist or a CI service has shared the cores out
    among processes already.
    """
    text = setting(WORKERS)
    if text and not (text.isdigit() and int(text) > 0):
        raise InputError(f"{WORKERS} is {text!r}; it must be a number of processes such as 2")
    if text:
        return int(text)
    if "PYTEST_XDIST_WORKER" in os.environ or "CI" in os.environ or not hasattr(os, "fork"):
        return 1
    return min(len(os.sched_getaffinity(0)), _MOST)


def are_independent(kernel) -> bool:
    """Can no block of a kernel learn of another one by what the memory model allows?"""
    names = {kernel.function.name, *reachable(kernel.program.references, kernel.function.name)}
    if kernel.reads_clock or not names.isdisjoint(("vprintf", "malloc", "free")):
        return False
    functions = kernel.module.functions
    code = (i.opcode for name in names & functions.keys() for i in functions[name].body)
    return not any(
        (looks_at_others(opcode) or opcode.startswith("red."))
        and not any(space in opcode for space in _SHARED)
        for opcode in code
    )


def shared_out(run, first: int) -> bool:
    """Run a launch's blocks from `first` on in several processes, where that is worth while and
    right. Raises InputError, OutOfTime and Interrupted.
    """
    kernel, left, count = run.kernel, run.blocks - first, worker_count()
    if count == 1 or kernel.seconds_a_lane * left * run.threads < _WORTH_SECONDS or kernel.alone:
        return False
    if run.observers or run.warp_order is not None or run.budget.started is not None:
        return False
    stays = run.blocks_that_stay_together()
    if left < 2 * stays:
        return False
    kernel.alone = not are_independent(kernel)
    return not kernel.alone and Team(run, count).execute(first, stays)


class Marks:
    """What one process reads and writes of global memory, from now on.

    writes: extent -> (which bytes, what was there before); reads: the same for the extents in
    `both`, that the kernel is known to read and to write.
    """

    def __init__(self, memory, both: set):
        self.memory, self.writes = memory, {}
        self.reads = {extent: self.mask(extent) for extent in both}
        memory.read, memory.written = set(), set()
        memory.recent = memory.recent_writable = (0, 0)

    @staticmethod
    def mask(extent) -> np.ndarray:
        """A byte for each byte from the multiple of 16 before an extent on."""
        return np.zeros(extent[1] + 16 - (extent[0] & ~15) & ~15, np.uint8)

    def note(self, kind: str, address, size: int) -> None:
        """Note an access of all lanes inside one extent, before it takes place."""
        memory = self.memory
        if kind == "load":
            extent, mask = memory.recent, self.reads.get(memory.recent)
            if mask is None:
                return
        else:
            extent = memory.recent_writable
            if extent not in self.writes:
                if sum(end - start for start, end in (*self.writes, extent)) > _MOST_BYTES:
                    raise MemoryError
                saved = memory.bytes[extent[0] : extent[1]].copy()
                self.writes[extent] = self.mask(extent), saved
            mask = self.writes[extent][0]
        words = mask.view(_WORDS[size])
        place = (address - np.uint64(extent[0] & ~15)) // np.uint64(words.itemsize)
        words[place.astype(np.int64)] = ~words.dtype.type(0)
        if size == 16:
            words[place.astype(np.int64) + 1] = ~words.dtype.type(0)

    def undo(self) -> None:
        """Put back what was there."""
        for (start, end), (_, saved) in self.writes.items():
            self.memory.bytes[start:end] = saved

    def packed(self) -> bytes:
        """All of it, and the bytes written, for the process that has forked this one."""
        writes = {}
        for extent, (mask, _) in self.writes.items():
            data = self.memory.bytes[extent[0] & ~15 :][: mask.size]
            writes[extent] = np.packbits(mask, bitorder="little"), data[mask != 0]
        reads = {extent: np.packbits(mask, bitorder="little") for extent, mask in self.reads.items()}
        return pickle.dumps((self.memory.read, reads, writes), pickle.HIGHEST_PROTOCOL)


def agree(parts: list) -> bool:
    """Has no part written what another one has read or written? parts: (read, reads, writes)."""
    for i, (read, reads, writes) in enumerate(parts):
        for _, _, others in parts[:i] + parts[i + 1 :]:
            for extent in others.keys() & (read | writes.keys()):
                theirs = others[extent][0]
                mine = [writes[extent][0]] if extent in writes else []
                if extent in read:
                    if extent not in reads:
                        return False
                    mine.append(reads[extent])
                if any((theirs & one).any() for one in mine):
                    return False
    return True


class Team:
    """Processes that run blocks of one launch: this one and those that it forks."""

    def __init__(self, run, count: int):
        self.run, self.count = run, count
        self.children: dict[int, int] = {}  # process -> where it writes to
        self.memory_bytes = run.budget.memory_bytes

    def execute(self, first: int, stays: int) -> bool:
        """Run the blocks from `first` on; False, with memory as it was, where that came to nothing:
        then the kernel runs in one process from now on.

        stays: how many blocks stay together. Raises OutOfTime and Interrupted.
        """
        run, kernel = self.run, self.run.kernel
        run.budget.memory_bytes //= self.count
        marks = run.memory.marks = Marks(run.memory, run.memory.extents_of(kernel.both))
        try:
            kernel.alone = not (self.share(first, stays) and self.merge(marks))
        except KeyboardInterrupt:
            raise run.interrupted("blocks that other processes run") from None
        except (OutOfTime, Interrupted):
            raise
        except (UserError, OSError, MemoryError):
            kernel.alone = True
        finally:
            run.memory.marks, run.budget.memory_bytes = None, self.memory_bytes
            self.stop()
        if kernel.alone:
            marks.undo()
        return not kernel.alone

    def share(self, first: int, stays: int) -> bool:
        """Fork, and run parts until none is left; False where one does not end."""
        run = self.run
        lanes = (run.blocks - first) * run.threads
        size = max(_LEAST_LANES, lanes // (_PARTS * self.count))
        size = min(size, -(-lanes // self.count)) // run.threads
        size = -(-max(1, min(size, run.most_blocks)) // stays) * stays
        starts = range(first, run.blocks, size)
        tickets, fill = os.pipe()
        try:
            for _ in range(self.count - 1):
                self.fork(tickets, fill, starts)
            feeder = threading.Thread(target=_fill, args=(fill, len(starts)), daemon=True)
            feeder.start()
            return self.work(tickets, starts)
        finally:
            os.close(tickets)

    def fork(self, tickets: int, fill: int, starts: range) -> None:
        """Start a process that runs parts, sends what it wrote, and ends without a word."""
        receive, send = os.pipe()
        with warnings.catch_warnings():  # of other threads, which the child goes on without
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child:
            os.close(send)
            self.children[child] = receive
            return
        known = len(self.run.memory.buffers)
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
            ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            os.close(fill)
            SPACE.renew_lock()
            self.run.budget.progress = None
            if self.work(tickets, starts) and known == len(self.run.memory.buffers):
                _write(send, self.run.memory.marks.packed())
        finally:
            os._exit(0)

    def work(self, tickets: int, starts: range) -> bool:
        """Run parts, in the order of their numbers, until there is none."""
        while ticket := os.read(tickets, 4):
            start = starts[int.from_bytes(ticket, "little")]
            self.run.progress.done = start
            chunk = self.run.chunk(start, min(starts.step, self.run.blocks - start))
            if not self.run.run_chunk(chunk, start=True):
                return False
        return True

    def receive(self, end: int) -> bytes:
        """All that a child sends; b"" from one that gave up."""
        pieces, run = [], self.run
        while True:
            run.budget.check(run.kernel.name, lambda: "blocks that other processes run")
            if select.select([end], [], [], 0.05)[0]:
                piece = os.read(end, 1 << 20)
                if not piece:
                    return b"".join(pieces)
                pieces.append(piece)

    def merge(self, marks: Marks) -> bool:
        """Take over what the children have written; False where one gave up, or two disagree."""
        sent = [self.receive(end) for end in self.children.values()]
        if not all(sent):
            return False
        memory, theirs = self.run.memory, [pickle.loads(data) for data in sent]
        if not agree([pickle.loads(marks.packed()), *theirs]):
            return False
        for _, _, writes in theirs:
            for (start, _), (mask, data) in writes.items():
                chosen = np.unpackbits(mask, bitorder="little").view(bool)
                memory.bytes[start & ~15 :][: chosen.size][chosen] = data
        memory.version += 1
        self.run.progress.done = self.run.blocks
        return True

    def stop(self) -> None:
        """End all children."""
        for child, end in self.children.items():
            os.close(end)
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _fill(end: int, count: int) -> None:
    """Write the numbers of all parts, and close the pipe."""
    with suppress(BrokenPipeError):
        _write(end, np.arange(count, dtype="<u4").tobytes())
    os.close(end)


def _write(end: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(end, rest) :]
