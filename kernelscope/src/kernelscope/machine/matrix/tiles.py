"""Tiles of A and B in shared memory, as matrix descriptors name them."""

import numpy as np
from kernelscope.isa.matrix.descriptors import CHUNK, RESERVED, chunk_addresses, descriptor, runs
from kernelscope.isa.matrix.layouts import BITS
from kernelscope.translate.control_flow import LANE

from ...errors import MemoryFault, SimulatorError
from ..access import Memory
from ..lanes import ChunkLanes
from ..reports import Reports

_LONG = np.dtype("u8")
_SWIZZLES = {
    16: "no swizzle",
    32: "32-byte swizzle",
    64: "64-byte swizzle",
    128: "128-byte swizzle",
}


class Tiles:
    """Reads the tiles of a chunk's products, and refuses descriptors that name none."""

    def __init__(self, lanes: ChunkLanes, memory: Memory, reports: Reports):
        self.lanes, self.memory, self.reports = lanes, memory, reports

    @staticmethod
    def place(product, name: str) -> tuple[int, int, bool]:
        """(rows, k, is it K-major) of operand "A" or "B" of a product."""
        m, n, k = product.form.shape
        return m if name == "A" else n, k, product.k_major[name == "B"]

    def runs(self, product, name: str, bits: int) -> tuple[np.ndarray, int]:
        """(addresses, bytes of each) of the runs of shared memory that hold an operand."""
        address, size = runs(bits, *self.place(product, name))
        return address.astype(np.uint64), size

    def read(self, product, name: str, found: list, first: np.ndarray, instruction) -> np.ndarray:
        """(groups, k, rows) bits of operand "A" or "B".

        found: the descriptor of each group; first: place of each group's first active lane.
        """
        rows, k, k_major = self.place(product, name)
        for at, bits in enumerate(found):
            self.check(product, name, bits, first[at], instruction)
        address = np.stack([chunk_addresses(bits, rows, k, k_major) for bits in found])
        valid = self.valid(product, name, found, address, first, instruction)
        if valid is not None:
            address = np.where(valid, address, 0)
        block = self.lanes.R[LANE][first] // (32 * self.lanes.warps_per_block)
        at = address + (block * self.memory.run.shared_stride)[:, None, None]
        chunks = self.memory.shared.view[_LONG].reshape(-1, 2).take(at // CHUNK, axis=0)
        if valid is not None:
            chunks[~valid] = 0
        kind = product.form.a if name == "A" else product.form.b
        raw = chunks.reshape(len(found), at.shape[1], -1).view(f"u{BITS[kind] // 8}")
        return raw.swapaxes(1, 2) if k_major else raw

    def check(self, product, name: str, bits: int, first: int, instruction) -> None:
        """Refuse reserved bits, and a tile that is not where its swizzle begins."""
        form, lane = descriptor(bits), self.lanes.R[LANE][first : first + 1]
        if form.is_aligned and not bits & RESERVED:
            return
        instance = self.reports.block.instance
        who = f"{self.lanes.kernel.name} at {instance.where(instruction)}: "
        who += f"{self.lanes.thread_text(lane)}: "
        if bits & RESERVED:
            raise SimulatorError(
                f"{who}the descriptor of {name}, {bits:#018x}, sets bits that sm_90 has no use for "
                f"({bits & RESERVED:#x}). Its swizzles are 0 to 3 in bits 62 and 63. Use (address "
                "& 0x3FFFF) >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | swizzle << 62, in "
                "unsigned integers of 64 bits",
                instance.line(instruction),
            )
        array, index, place = self.memory.describe_shared(form.start)
        message = (
            f"{who}the tile of {name} begins at {place} (address {form.start}), which is not where "
            f"the pattern of its {_SWIZZLES[form.line]} begins by the base offset, {form.base}. "
            f"Align the tile to {form.alignment} bytes with __align__({form.alignment})"
        )
        self.fault("misaligned", message, instruction, lane, array, index)

    def fault(self, kind: str, message: str, instruction, lane, array: str, index) -> None:
        """Tell of a tile that cannot be read; raise MemoryFault unless an observer goes on."""
        instance = self.reports.block.instance
        event = self.reports.fault(kind, message, instance, instruction, lane, array, index)
        if event is not None:
            raise MemoryFault(message, kind, array, index, event.threads, event.line)

    def valid(self, product, name, found, address, first, instruction) -> np.ndarray | None:
        """Which chunks are inside the block's shared memory; None: all of them."""
        memory = self.memory
        if int(address.max()) + CHUNK <= memory.shared_limit:
            return None
        valid = memory.fits("shared", address.astype(np.uint64), CHUNK)
        if valid.all():
            return None
        group = int(np.argmin(valid.all(axis=(1, 2))))
        form = descriptor(found[group])
        start = int(address[group][~valid[group]].min())
        array, index, place = memory.describe_shared(start)
        lane = self.lanes.R[LANE][first[group] : first[group] + 1]
        instance, (rows, k, k_major) = self.reports.block.instance, self.place(product, name)
        message = (
            f"{self.lanes.kernel.name} at {instance.where(instruction)}: the tile of {name} of "
            f"{self.lanes.thread_text(lane)}, {rows} x {k}, {'K' if k_major else 'MN'}-major, "
            f"starts at byte {form.start} of shared memory (leading offset {form.leading}, stride "
            f"offset {form.stride}, {_SWIZZLES[form.line]}) and reads {place}. Correct the start "
            "address or the offsets of its descriptor"
        )
        self.fault("out-of-bounds", message, instruction, lane, array, index)
        return valid
