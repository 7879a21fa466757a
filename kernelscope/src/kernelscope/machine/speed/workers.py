"""The blocks of a launch on all cores: forked processes run parts of it and send what they wrote.

Threads would share the memory, but they take turns at Python, which is half of a launch's time.

The result is that of one process, block after block. So a launch is shared out only where nothing
passes between blocks: its kernel has no atomics and no volatile accesses in global memory, prints
nothing, and reads no clock. For each part the bytes that it writes are noted, and what it
reads of the same arrays. Where two parts have met in a byte, or anything goes wrong, all that is
thrown away, and the blocks run here, one chunk after another, errors and all.

Launches with observers are not shared out, nor those with a limit in seconds of the processor,
which counts this process alone: so grading uses one process.
"""

import multiprocessing
import os
import pickle
import signal
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ...address_space import SPACE
from ...errors import InputError, Interrupted, OutOfTime, UserError
from ...ptx.syntax import Register
from ...settings import setting
from ...translate.control_flow import looks_at_others
from ...translate.executable import reachable
from ...translate.function import call_parts

WORKERS = "KERNELSCOPE_WORKERS"  # environment: how many processes run the blocks of a launch
_GIVEN_AWAY = ("PYTEST_XDIST_WORKER", "CI")
_MOST = 8  # processes, unless the environment asks for more
_MOST_ASKED = 256  # that the environment may ask for
_WORTH_SECONDS = 0.25  # that the blocks must take for it
_LEAST_LANES = 8192  # of a part: fewer cost NumPy nearly as much
_PARTS = 4  # for each process, as blocks may differ in what they take
_MOST_BYTES = 1 << 28  # of arrays that are written
_WORDS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "u8"}  # bytes of an access -> those of a mask
_OWN = (".shared", ".local")  # spaces that no other block sees


def worker_count() -> int:
    """How many processes to use. Raises InputError where KERNELSCOPE_WORKERS is no such number.

    Without it a core each; but one where pytest-xdist, a CI service or a pool of processes has
    given the cores away already, and where the system cannot fork.
    """
    text = setting(WORKERS)
    if text and not multiprocessing.current_process().daemon:  # which may have no children
        if not (text.isascii() and text.isdigit()) or not 0 < int(text[:9]) <= _MOST_ASKED:
            raise InputError(
                f"{WORKERS} is {text!r}; it must be a number of processes such as 2, at most "
                f"{_MOST_ASKED}"
            )
        return int(text)
    given_away = multiprocessing.current_process().daemon or {*_GIVEN_AWAY} & os.environ.keys()
    if given_away or not hasattr(os, "fork"):
        return 1
    return min(len(os.sched_getaffinity(0)), _MOST)


def are_independent(kernel) -> bool:
    """Can no block of a kernel learn of another one by means that the memory model allows?"""
    functions, graph = kernel.module.functions, kernel.program.references
    names = {kernel.function.name, *reachable(graph, kernel.function.name)}
    if any(calls_by_pointer(i) for name in names & functions.keys() for i in functions[name].body):
        names.update(graph, *(reachable(graph, name) for name in functions))  # a call of any
    if kernel.reads_clock or not names.isdisjoint(("vprintf", "malloc", "free")):
        return False
    opcodes = {i.opcode for name in names & functions.keys() for i in functions[name].body}
    if any(one.startswith("cp.reduce.") and ".global." in one for one in opcodes):
        return False
    global_ones = (one for one in opcodes if not any(space in one for space in _OWN))
    return not any(looks_at_others(one) or one.startswith("red.") for one in global_ones)


def shared_out(run, first: int) -> bool:
    """Run a launch's blocks from `first` on in several processes, where that is worth while and
    right. Raises InputError, OutOfTime and Interrupted.
    """
    kernel, left = run.kernel, run.blocks - first
    if kernel.alone or kernel.seconds_a_lane * left * run.threads < _WORTH_SECONDS:
        return False
    if run.observers or run.warp_order is not None or run.budget.started is not None:
        return False
    count, stays = worker_count(), run.blocks_that_stay_together()
    if count == 1 or left < 2 * stays:
        return False
    kernel.alone = not (are_independent(kernel) and Team(run, count).execute(first, stays))
    return not kernel.alone


def calls_by_pointer(instruction) -> bool:
    """Does it call a function whose address is in a register, perhaps an argument of the launch?"""
    is_call = instruction.opcode.split(".")[0] == "call"
    return is_call and isinstance(call_parts(instruction)[1], Register)


class Mask:
    """Which bytes of an extent a part touches: a byte each, from the multiple of 16 before it on.

    within: where they all are.
    """

    def __init__(self, extent: tuple[int, int]):
        self.start = extent[0] & ~15
        self.bytes, self.within = np.zeros((extent[1] + 15 & ~15) - self.start, np.uint8), slice(0)

    def add(self, address, size: int) -> None:
        """Add what lanes touch at their addresses, (lanes,) or one scalar, of `size` bytes each."""
        words = self.bytes.view(_WORDS[size])
        place = ((address - np.uint64(self.start)) // np.uint64(words.itemsize)).astype(np.int64)
        for item in range(size // words.itemsize):
            words[place + item] = ~words.dtype.type(0)
        low, high = int(place.min()) * words.itemsize, int(place.max()) * words.itemsize + size
        if self.within.stop:
            low, high = min(low, self.within.start), max(high, self.within.stop)
        self.within = slice(low, high)

    def clear(self) -> None:
        self.bytes[self.within] = 0
        self.within = slice(0)


class Marks:
    """What one process reads and writes of global memory, part after part.

    writes, reads: Masks by extent, of the part that runs; reads only of extents that the kernel is
    known to write as well. all_writes, all_reads: their bytes, of the parts before. saved: what
    was there at first.
    """

    def __init__(self, memory, both: set):
        self.memory, self.saved = memory, {}
        self.writes, self.all_writes = {}, {}
        self.reads = {extent: Mask(extent) for extent in both}
        self.all_reads = {extent: mask.bytes.copy() for extent, mask in self.reads.items()}
        memory.read, memory.written = set(), set()
        memory.recent = memory.recent_writable = (0, 0)

    def note(self, kind: str, address, size: int) -> None:
        """Note an access of all lanes inside one extent, before it takes place."""
        extent = self.memory.recent if kind == "load" else self.memory.recent_writable
        mask = self.reads.get(extent) if kind == "load" else self.written(extent)
        if mask is not None:
            mask.add(address, size)

    def note_apart(self, kind: str, address: np.ndarray, size: int) -> None:
        """Note an access whose lanes, (lanes,), are in several extents."""
        memory = self.memory
        extents, met = (
            (memory.extents, memory.read) if kind == "load" else (memory.writable, memory.written)
        )
        slots = np.searchsorted(
            np.array([start for start, _ in extents], np.uint64), address, "right"
        )
        for slot in np.unique(slots).tolist():
            extent = extents[slot - 1]
            met.add(extent)
            if kind == "load":
                memory.recent = extent
            else:
                memory.recent_writable = extent
            self.note(kind, address[slots == slot], size)

    def written(self, extent: tuple[int, int]) -> Mask:
        """Which bytes of an extent the part has written. Raises MemoryError for too many."""
        if extent not in self.writes:
            if sum(end - start for start, end in (*self.writes, extent)) > _MOST_BYTES:
                raise MemoryError
            mask = self.writes[extent] = Mask(extent)
            self.all_writes[extent] = mask.bytes.copy()
            self.saved[extent] = self.memory.bytes[slice(*extent)].copy()
        return self.writes[extent]

    def end_part(self) -> bool:
        """Has the part met no byte that another one has written, and written none that it read?"""
        pairs = (
            (self.writes, self.all_writes),
            (self.reads, self.all_writes),
            (self.writes, self.all_reads),
        )
        apart = not any(
            (mask.bytes[mask.within] & before[extent][mask.within]).any()
            for now, before in pairs
            for extent, mask in now.items()
            if extent in before
        )
        for now, before in pairs[0], (self.reads, self.all_reads):
            for extent, mask in now.items():
                before[extent][mask.within] |= mask.bytes[mask.within]
                mask.clear()
        return apart and not self.memory.read & self.writes.keys() - self.reads.keys()

    def undo(self) -> None:
        """Put back what was there."""
        for extent, saved in self.saved.items():
            self.memory.bytes[slice(*extent)] = saved

    def packed(self) -> bytes:
        """(extents read, masks of bytes read, masks of bytes written, those bytes), by extent."""
        data = {
            extent: self.memory.bytes[extent[0] & ~15 :][: mask.size][mask != 0]
            for extent, mask in self.all_writes.items()
        }
        both = (
            {e: _bits(mask) for e, mask in m.items()} for m in (self.all_reads, self.all_writes)
        )
        return pickle.dumps((self.memory.read, *both, data))


def _bits(mask: np.ndarray) -> np.ndarray:
    return np.packbits(mask, bitorder="little")


def _meet(one: dict, other: dict) -> bool:
    """Do masks of the same extents have a byte in common?"""
    return any((one[extent] & other[extent]).any() for extent in one.keys() & other.keys())


def agree(parts: list) -> bool:
    """Has no process written what another one has read or written? parts: see Marks.packed."""
    for i, (read, reads, writes, _) in enumerate(parts):
        for _, _, others, _ in parts[:i] + parts[i + 1 :]:
            if others.keys() & read - reads.keys() or _meet(reads, others) or _meet(writes, others):
                return False
    return True


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let Ctrl-C wait: no process stays behind, and a fork leaves no lock of Python taken."""
    handler, came = signal.getsignal(signal.SIGINT), []
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, lambda *given: came.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


class Team:
    """Processes that run blocks of one launch: this one and those that it forks.

    next: the number of the part that the next free one takes.
    """

    def __init__(self, run, count: int):
        self.run, self.count, self.leader = run, count, os.getpid()
        self.fork, self.next = multiprocessing.get_context("fork"), None
        self.children: list = []  # (process, end of a pipe that it writes to)

    def execute(self, first: int, stays: int) -> bool:
        """Run the blocks from `first` on; False, with memory as it was, where that came to nothing.

        stays: how many blocks stay together. Raises OutOfTime and Interrupted.
        """
        run, budget = self.run, self.run.budget
        whole, budget.memory_bytes = budget.memory_bytes, budget.memory_bytes // self.count
        marks = run.memory.marks = Marks(run.memory, run.memory.extents_of(run.kernel.both))
        done, warned = False, run.warned
        try:
            starts, self.next = self.parts(first, stays), self.fork.Value("q", 0)
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # one process warns of what comes first
                with uninterrupted():
                    for _ in range(min(self.count, len(starts)) - 1):
                        self.start(starts)
                done = self.work(starts) and self.merge(marks)
        except (OutOfTime, Interrupted):
            raise
        except KeyboardInterrupt:
            raise run.interrupted("blocks of other processes") from None
        except (UserError, OSError, ImportError, MemoryError, Warning):
            pass  # the blocks run again, and tell of it
        finally:
            run.memory.marks, budget.memory_bytes = None, whole
            with uninterrupted():
                for process, _ in self.children:
                    process.kill()
                    process.join()
        if not done:
            marks.undo()
            run.warned = warned
        return done

    def parts(self, first: int, stays: int) -> range:
        """The first blocks of the parts."""
        run, lanes = self.run, (self.run.blocks - first) * self.run.threads
        size = max(_LEAST_LANES, lanes // (_PARTS * self.count))
        size = min(size, -(-lanes // self.count)) // run.threads
        size = -(-max(1, min(size, run.most_blocks)) // stays) * stays
        return range(first, run.blocks, size)

    def start(self, starts: range) -> None:
        """Fork a process that runs parts and sends what it wrote, or nothing where it gave up."""
        receive, send = self.fork.Pipe(duplex=False)
        process = self.fork.Process(target=self.serve, args=(send, starts), daemon=True)
        with warnings.catch_warnings():  # of other threads, which the child goes on without
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        send.close()
        self.children.append((process, receive))

    def serve(self, send, starts: range) -> None:
        """What a forked process does. It ends at once: nothing of the parent's is its own."""
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
            SPACE.renew_lock()
            self.run.budget.progress, self.children = self.end_with_leader, []
            if self.work(starts):
                send.send_bytes(self.run.memory.marks.packed())
        finally:
            os._exit(0)

    def end_with_leader(self, where) -> None:
        """End this process, in the middle of a part too, where the one that forked it is gone."""
        if os.getppid() != self.leader:
            os._exit(1)

    def work(self, starts: range) -> bool:
        """Run parts, in the order of their numbers, until there is none; False where one gave up.

        A part gives up where pointers lead to more memory: the extents of others are older.
        """
        run, known = self.run, len(self.run.memory.buffers)
        while (number := self.take()) is not None:
            if number >= len(starts):
                return len(run.memory.buffers) == known
            run.progress.done = start = starts[number]
            chunk = run.chunk(start, min(starts.step, run.blocks - start))
            if not run.run_chunk(chunk, start=True) or not run.memory.marks.end_part():
                break
        return False

    def take(self) -> int | None:
        """The number of a part that nobody has taken; None where a process that counts has ended.

        It may have ended with the lock, which then nobody gets.
        """
        parent = multiprocessing.parent_process()
        while parent is None or parent.is_alive():
            if self.next.get_lock().acquire(timeout=1):
                number, self.next.value = self.next.value, self.next.value + 1
                self.next.get_lock().release()
                return number
            if not all(process.is_alive() for process, _ in self.children):
                return None
        return None

    def merge(self, marks: Marks) -> bool:
        """Take over what the others have written; False where one gave up, or two disagree."""
        memory, parts = self.run.memory, [pickle.loads(marks.packed())]
        for _, receive in self.children:
            while not receive.poll(0.05):
                self.run.budget.check(self.run.kernel.name, lambda: "blocks of other processes")
            try:
                parts.append(pickle.loads(receive.recv_bytes()))
            except EOFError:
                return False
        if not agree(parts):
            return False
        for *_, writes, data in parts[1:]:
            for extent, mask in writes.items():
                chosen = np.unpackbits(mask, bitorder="little").view(bool)
                memory.bytes[extent[0] & ~15 :][: chosen.size][chosen] = data[extent]
        memory.version += 1
        self.run.progress.done = self.run.blocks
        return True
