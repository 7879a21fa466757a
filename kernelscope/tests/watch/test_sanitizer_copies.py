"""The sanitizer on cp.async: data is there only after its wait, and for others after a barrier."""

import numpy as np
from kernelscope import events
from kernelscope.ptx.source_module import SourceModule
from kernelscope.ptx.syntax import Function, Immediate, Instruction, Module
from kernelscope.watch import Sanitizer
from watch_harness import kernels, launch


class OneBlock(events.MachineView):
    """The view of a block of 64 threads in memory that nobody fills."""

    first_block, block_count, warps_per_block, local_bytes = 0, 1, 2, 0
    alive, clustered, cluster_of_block = np.ones(64, bool), False, np.zeros(1, np.int64)
    cluster_arrivals = reads_inactive = by_space = callee = lines_of = None
    line_at = shuffle_sources = phase_use = None
    register = operand = None

    def running(self, *_):
        return []

    call_sites = ()

    def stored(self, instruction, access, lanes):
        return None

    def mbarrier(self, block, address):
        raise KeyError(address)

    def bytes_under_way(self, block, address):
        raise KeyError(address)

    def memory(self, space):
        return np.zeros({"global": 4096, "shared": 1024, "local": 0}[space], np.uint8)


class Copies:
    """A block of 64 threads, driven event by event; thread t copies 8 bytes to byte 8 t."""

    LANES = np.arange(64)

    def __init__(self):
        self.sanitizer = Sanitizer()
        self.machine = OneBlock()
        buffers = (
            events.Buffer("tile", "shared", 0, 1024),
            events.Buffer("a", "global", 512, 1024),
        )
        source = SourceModule(Module(functions={"k": Function("k", True)}), "line\n" * 20, "k.cu")
        launch = events.Launch(
            "k", (1, 1, 1), (64, 1, 1), 1024, "debug", "k.cu", source.source_lines, buffers, source
        )
        self.sanitizer.launch_started(launch)
        self.sanitizer.chunk_started(self.machine)
        self.line = 0

    def do(self, opcode, *accesses, operand=None, lanes=LANES):
        self.line += 1
        operands = () if operand is None else (Immediate(operand),)
        instruction = Instruction(opcode, operands)
        self.sanitizer.instruction(
            events.InstructionEvent(instruction, self.line, lanes, accesses, self.machine)
        )

    def access(self, space, kind, address, size):
        return events.Access(space, kind, address.astype(np.uint64), self.LANES, size)

    def copy(self, half=0):
        place = 512 * half + 8 * self.LANES
        self.do(
            "cp.async.ca.shared.global",
            self.access("global", "load", 512 + place, 8),
            self.access("shared", "store", place, 8),
        )

    def commit(self):
        self.do("cp.async.commit_group")

    def wait(self, newer, lanes=LANES):
        self.do("cp.async.wait_group", operand=newer, lanes=lanes)

    def barrier(self):
        instruction = Instruction("bar.sync", (Immediate(0),))
        self.sanitizer.barrier(
            events.BarrierEvent(np.array([0]), 0, ((instruction, self.LANES),), self.machine)
        )

    def read(self, half=0, shift=0):
        place = 512 * half + 8 * ((self.LANES + shift) % 64)
        self.do("ld.shared.f64", self.access("shared", "load", place, 8))
        return [(f.kind, f.line, f.index) for f in self.sanitizer.findings]


def test_copies_that_are_waited_for():
    block = Copies()
    for half in range(4):
        block.copy(half % 2)
        block.commit()
        if half:
            block.wait(1)
            block.barrier()
            assert block.read((half - 1) % 2, shift=5) == []
            block.barrier()
    block.do("cp.async.wait_all")
    block.barrier()
    assert block.read(1, shift=9) == []


def test_a_copy_read_before_its_wait():
    block = Copies()
    block.copy(0)
    block.commit()
    block.copy(1)
    block.commit()
    block.wait(1)
    assert block.read(0) == []  # the older group is there, for its own thread
    (found,) = block.read(1)
    assert found == ("race", block.line, 128)
    assert "cp.async of line 3" in block.sanitizer.findings[0].message


def test_a_copy_waited_for_by_its_own_thread_only():
    block = Copies()
    block.copy()
    block.commit()
    block.wait(0)
    (found,) = block.read(shift=1)  # another thread's copy, and no barrier
    assert found[0] == "race"


def test_a_copy_that_only_others_waited_for():
    block = Copies()
    block.copy()
    block.commit()
    block.wait(0, lanes=Copies.LANES[:40])
    block.barrier()
    ((kind, line, _),) = block.read()
    assert (kind, line) == ("race", block.line)
    assert block.sanitizer.findings[0].count == 24


def test_a_barrier_without_a_wait():
    block = Copies()
    block.copy()
    block.commit()
    block.barrier()
    assert [kind for kind, *_ in block.read(shift=1)] == ["race"]


def test_a_copy_under_way_when_its_block_ends():
    """A group without copies needs no wait; a wait of some threads is none of the others'."""
    copy = """__shared__ int s[64]; const int t = threadIdx.x;
        __pipeline_memcpy_async(&s[t], &a[t], 4); __pipeline_commit(); """
    waits = (
        "",
        "if (t < 40) __pipeline_wait_prior(0);",
        "__pipeline_wait_prior(0); __pipeline_commit();",
        "__pipeline_commit(); __pipeline_wait_prior(1);",
    )
    made = kernels(tuple(copy + wait for wait in waits), "#include <cuda_pipeline.h>").values()
    all_, some, *clean = (launch(kernel, Sanitizer()).findings for kernel in made)
    assert not any(clean)
    for found, count in ((all_, 64), (some, 24)):
        (one,) = found
        assert (one.kind, one.severity, one.array, one.count) == ("race", "warning", "s", count)
        assert "when the block has ended" in one.message and "wait_group 0" in one.remedy


def test_a_source_is_not_overwritten_while_it_is_copied():
    body = """__shared__ int s[64]; const int t = threadIdx.x;
        __pipeline_memcpy_async(&s[t], &a[t], 4); __pipeline_commit(); FIRST
        __pipeline_wait_prior(0); THEN b[t] = s[t];"""

    after = "__syncthreads(); a[63 - t] = 2;"  # a barrier waits for no copy
    own = ("a[t] = 2;", "((char*)a)[4 * t + 3] = 2;", "atomicAdd(&a[t], 1);")
    pairs = [*((one, "") for one in (*own, after)), ("a[64 + t] = 2; b[t] = 3;", "a[t] = 2;")]
    bodies = tuple(body.replace("FIRST", one).replace("THEN", then) for one, then in pairs)
    made = kernels(bodies, "#include <cuda_pipeline.h>").values()
    *racing, barrier, clean = (launch(kernel, Sanitizer()).findings for kernel in made)
    for (one,) in racing:
        assert (one.kind, one.array, one.count) == ("race", "a", 64)
        assert "may still be reading it" in one.message
    (one,) = barrier
    assert "may still be reading it" in one.message
    assert clean == []
