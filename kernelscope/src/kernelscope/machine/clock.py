"""The clock of a chunk: cycles that pass with its instructions, and leaps while all only wait."""

import numpy as np
from kernelscope.translate.control_flow import Block

from .memory import GlobalMemory

CYCLES = 4  # an instruction of a warp that waits for the one before it
_PATIENCE = 256  # readings, while nothing is written, before time stands still
_FIRST_LEAP, _LAST_LEAP = 1 << 10, 1 << 44
_STRIDES = 16  # readings after a leap between which as much time passes again


class Clock:
    """The values of %clock, %clock64 and %globaltimer; a nanosecond is a cycle here.

    instructions: how many the chunk has executed, whatever the number of lanes.

    A loop that looks at the clock again and again, while no thread writes anything, sees it stand
    still. So it comes back to where it was, and is known to wait. Once all threads only wait, or
    one loop goes on that counts its rounds, time leaps, further each time, and passes as fast
    between the next readings. A loop that waits for a time, or adds up times, ends soon, and one
    that waits for what never comes is found.
    """

    def __init__(self, memory: GlobalMemory):
        self.memory = memory
        self.instructions = self.added = self.now = 0
        self.version, self.readings = -1, 0
        self.looked, self.next_leap = False, _FIRST_LEAP
        self.stride = self.strides = 0

    def read(self, dtype: np.dtype, shift: int, block: Block, index: int):
        """The value for an instruction by its place in the function; bits from `shift` on."""
        if self.memory.version != self.version:
            self.version, self.readings, self.strides = self.memory.version, 0, 0
        self.looked, self.readings = True, self.readings + 1
        if self.readings <= _PATIENCE:
            passed = self.instructions + index - block.instructions[0].index + 1
            self.now = max(self.now, CYCLES * passed + self.added)
        elif self.strides:
            self.strides -= 1
            self.pass_by(self.stride)
        return dtype.type(self.now >> shift & (1 << 8 * dtype.itemsize) - 1)

    def sleep(self, nanoseconds) -> None:
        """nanosleep: as long as the lane that sleeps longest."""
        self.added += int(np.max(nanoseconds))

    def pass_by(self, cycles: int) -> None:
        self.added, self.now = self.added + cycles, self.now + cycles

    def stands_still(self) -> bool:
        """Whether readings since the last write, or the last leap, have stopped the time."""
        return self.readings > _PATIENCE and not self.strides

    def leap(self) -> bool:
        """Let much time pass; False where no lane has read the clock since, or too often."""
        if not self.looked or self.next_leap > _LAST_LEAP:
            return False
        self.looked = False
        self.pass_by(self.next_leap)
        self.stride, self.strides = self.next_leap, _STRIDES
        self.next_leap *= 2
        self.memory.version += 1  # groups that wait look again
        self.version = self.memory.version
        return True
