"""What can go wrong with a kernel. Every message names the source line and a way out."""


class SimulatorError(RuntimeError):
    """A kernel did something that hardware refuses, or that the simulator does not know."""


class MemoryFault(SimulatorError):
    """An out-of-bounds or misaligned access.

    kind: "out-of-bounds" or "misaligned"; array: the nearest array's name; index: the element of
    it (or the byte); threads: ((block x, y, z), (thread x, y, z)) of the first eight that did it.
    """

    def __init__(self, message, kind, array="", index=None, threads=()):
        super().__init__(message)
        self.kind, self.array, self.index, self.threads = kind, array, index, threads


class Hang(SimulatorError):
    """The kernel can not finish: names the line it hangs on and who waits for what."""


class Trap(SimulatorError):
    """The kernel stopped itself with trap."""


class KernelAssertion(SimulatorError):
    """An assert() in the kernel failed."""


class UnsupportedKernel(SimulatorError):
    """The kernel uses something the simulator does not do; names the instruction and its line."""


class UnsupportedInstruction(Exception):
    """Raised while decoding; becomes UnsupportedKernel once the source line is known."""
