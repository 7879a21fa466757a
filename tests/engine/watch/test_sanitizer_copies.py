"""The sanitizer on cp.async: data is there only after its wait, and for others after a barrier."""

from types import SimpleNamespace

import numpy as np

from attn_course.engine.events import Access, BarrierEvent, Buffer, InstructionEvent, Launch
from attn_course.engine.watch import Sanitizer


class Copies:
    """A block of 64 threads, driven event by event; thread t copies 8 bytes to byte 8 t."""

    LANES = np.arange(64)

    def __init__(self):
        self.sanitizer = Sanitizer()
        bytes_ = SimpleNamespace(bytes=np.zeros(1024, np.uint8))
        self.chunk = SimpleNamespace(
            memory=SimpleNamespace(
                shared=bytes_,
                globals=SimpleNamespace(bytes=np.zeros(4096, np.uint8)),
                local_size=0,
            ),
            first_block=0,
            block_count=1,
            kernel=SimpleNamespace(
                instances={},
                function=SimpleNamespace(body=[]),
                module=SimpleNamespace(functions={}),
            ),
            cluster=SimpleNamespace(block_of_rank=np.zeros((1, 1), np.int64)),
            lanes=SimpleNamespace(alive=np.ones(64, bool)),
        )
        buffers = (Buffer("tile", "shared", 0, 1024), Buffer("a", "global", 512, 1024))
        lines = tuple(f"line {i}" for i in range(1, 20))
        launch = Launch("k", (1, 1, 1), (64, 1, 1), 1024, "debug", "k.cu", lines, buffers)
        self.sanitizer.launch_started(launch)
        self.sanitizer.chunk_started(self.chunk)
        self.line = 0

    def do(self, opcode, *accesses, operand=None, lanes=LANES):
        self.line += 1
        operands = () if operand is None else (SimpleNamespace(value=operand),)
        instruction = SimpleNamespace(opcode=opcode, operands=operands, index=0)
        self.sanitizer.instruction(
            InstructionEvent(instruction, self.line, lanes, accesses, self.chunk)
        )

    def access(self, space, kind, address, size):
        return Access(space, kind, address.astype(np.uint64), self.LANES, size)

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
        instruction = SimpleNamespace(opcode="bar.sync", operands=(0,))
        self.sanitizer.barrier(
            BarrierEvent(np.array([0]), 0, ((instruction, self.LANES),), self.chunk)
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
    assert block.sanitizer.findings[0].count == 2 * 24  # two words each


def test_a_barrier_without_a_wait():
    block = Copies()
    block.copy()
    block.commit()
    block.barrier()
    assert [kind for kind, *_ in block.read(shift=1)] == ["race"]
