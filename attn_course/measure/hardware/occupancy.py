"""How many warps a kernel can keep on a multiprocessor: from its cubin and its launch alone.

Registers come out of the compiler's cubin, which needs no GPU. Registers are allocated to warps in
units of 256, shared memory in units of 128 bytes, of which a block's bookkeeping takes 1 KB
(compute capability 8.0 and later).
"""

from dataclasses import dataclass

from kernelscope.timing import cubin_registers

from .devices import MULTIPROCESSORS, Multiprocessor
from .disassembly import cubin_of, of_kernel

WARP = 32
REGISTER_UNIT = 256  # registers that a warp is given at a time
SHARED_UNIT, SHARED_RESERVED = 128, 1024


@dataclass(frozen=True)
class Occupancy:
    """Blocks that fit on a multiprocessor by each limit, and what follows.

    limits: "warps", "blocks", "registers" and "shared memory" -> blocks.
    """

    limits: dict[str, int]
    warps_a_block: int
    warps_possible: int

    @property
    def blocks(self) -> int:
        return min(self.limits.values())

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The limits that allow no more blocks than fit."""
        return tuple(name for name, count in self.limits.items() if count == self.blocks)

    @property
    def share(self) -> float:
        """Warps resident at most, over the warps that a multiprocessor can hold."""
        return self.blocks * self.warps_a_block / self.warps_possible


def compiled_registers(
    file: str, entry: str, options: tuple[str, ...] = (), arch: str = "sm_90"
) -> int:
    """Registers a thread that ptxas gives a kernel of a file. Needs no GPU.

    The compiler is the one this course installs; another release may allocate differently.

    Raises:
        CompileError: as compile_cubin.  KeyError: no such kernel in the file.
    """
    return of_kernel(cubin_registers(cubin_of(file, options, arch)), file, entry)


def occupancy(
    threads: int, registers: int, shared_bytes: int, unit: Multiprocessor = MULTIPROCESSORS["sm_90"]
) -> Occupancy:
    """How many blocks of a kernel fit on one multiprocessor.

    threads: of a block; registers: a thread; shared_bytes: of a block, static and dynamic.
    """
    warps = -(-threads // WARP)
    of_a_warp = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    shared = -(-(shared_bytes + SHARED_RESERVED) // SHARED_UNIT) * SHARED_UNIT
    limits = {
        "warps": unit.warps // warps,
        "blocks": unit.blocks,
        "registers": unit.registers // (of_a_warp * warps) if registers else unit.blocks,
        "shared memory": unit.shared_bytes // shared,
    }
    return Occupancy(limits, warps, unit.warps)
