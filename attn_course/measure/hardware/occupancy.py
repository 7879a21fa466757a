"""How many warps a kernel can keep on a multiprocessor: from its cubin and its launch alone.

Registers come out of the compiler's cubin, which needs no GPU. Registers are allocated to warps in
units of 256, shared memory in units of 128 bytes, of which a block's bookkeeping takes 1 KB
(compute capability 8.0 and later).
"""

import io
import struct
from dataclasses import dataclass

from kernelscope.compile import compile_cubin
from kernelscope.errors import UnknownNameError

from attn_course.ladder.headers import kernel_path

from .devices import MULTIPROCESSORS, Multiprocessor

WARP = 32
REGISTER_UNIT = 256  # registers that a warp is given at a time
SHARED_UNIT, SHARED_RESERVED = 128, 1024
SIZED_VALUE, REGISTER_COUNT = 0x04, 0x2F  # in a cubin's .nv.info: EIFMT_SVAL, EIATTR_REGCOUNT


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
    path = kernel_path(file)
    source = path.read_text(encoding="utf-8")
    cubin = compile_cubin(source, path.name, tuple(options), arch, folder=str(path.parent)).cubin
    found = cubin_registers(cubin)
    if entry not in found:
        raise UnknownNameError(f"no kernel {entry!r} in {path.name}; there are: {', '.join(found)}")
    return found[entry]


def cubin_registers(cubin: bytes) -> dict[str, int]:
    """Kernel name -> registers a thread, from the attributes in a cubin's .nv.info section.

    An attribute is a byte that says how it is laid out, a byte that says what it is, and two bytes
    of length or value; the register count is a symbol number and a count, 4 bytes each.
    """
    from elftools.elf.elffile import ELFFile

    elf = ELFFile(io.BytesIO(cubin))
    symbols = elf.get_section_by_name(".symtab")
    data, found, at = elf.get_section_by_name(".nv.info").data(), {}, 0
    while at + 4 <= len(data):
        layout, attribute, length = struct.unpack_from("<BBH", data, at)
        at += 4
        if layout != SIZED_VALUE:
            continue
        if attribute == REGISTER_COUNT:
            symbol, count = struct.unpack_from("<II", data, at)
            found[symbols.get_symbol(symbol).name] = count
        at += length
    return found


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
