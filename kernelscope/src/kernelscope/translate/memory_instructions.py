"""Memory instructions as lines of Python: ld, st, atom, red, cp.async, mbarrier."""

import itertools

import numpy as np
from kernelscope.isa.table import DTYPE
from kernelscope.ptx.syntax import (
    TYPE_BYTES,
    Address,
    Immediate,
    Instruction,
    Register,
    Symbol,
    Vector,
)

from ..errors import UnsupportedInstruction
from ..isa import atomics
from .bulk_copies import bulk_line, copied_map_line, reduction_text, replacement
from .operand_forms import VECTORS
from .operands import OperandText, code_of, type_of

_TEXTURES_REFUSED = {  # word of an opcode -> what it is of
    "3d": "textures of three dimensions",
    **dict.fromkeys(("a1d", "a2d"), "layered textures"),
    **dict.fromkeys(("cube", "acube"), "cube maps"),
    **dict.fromkeys(("level", "grad", "base"), "levels of mipmapped textures"),
    **dict.fromkeys(("2dms", "a2dms"), "textures of several samples"),
    "f16x2": "textures read as pairs of halves",
}
_COPIED_BYTES = (4, 8, 16)
_POSTED_BYTES = 16  # of st.async, at most
SPACES = ("global", "shared", "local", "param", "const")


def memory_space(opcode: str) -> str:
    """The state space that an opcode names; "generic" if none. Constants are global memory."""
    for part in opcode.split(".")[1:]:
        part = part.split("::")[0]
        if part in SPACES:
            return "global" if part == "const" else part
    return "generic"


def _item(kind: str) -> str:
    """dtype and shift of what one lane moves at a time: 2**shift bytes."""
    return f"{code_of(DTYPE[kind])}, {TYPE_BYTES[kind].bit_length() - 1}"


def item_type(opcode: str) -> str:
    """The type of what a load or store moves: .b128 goes as two halves."""
    return "b64" if type_of(opcode) == "b128" else type_of(opcode)


def items_of(operand, opcode: str) -> tuple:
    """The registers of a load or store: as many as .v2 or .v4 says, two halves of .b128."""
    items = operand.items if isinstance(operand, Vector) else (operand,)
    count = next((n for word, n in VECTORS.items() if word in opcode.split(".")), 1)
    count = 2 if "b128" in opcode.split(".") else count
    if len(items) != count:
        raise UnsupportedInstruction(f"{len(items)} registers, and {count} in its name")
    return items


def texture_parts(instruction: Instruction) -> tuple:
    """Return (type, coordinates' type, results, handle, coordinates) of a tex instruction.

    Raises UnsupportedInstruction for another form, by the name of what it is of.
    """
    _, *parts = instruction.opcode.split(".")
    for word, what in _TEXTURES_REFUSED.items():
        if word in parts:
            raise UnsupportedInstruction(f"{what} are not simulated")
    dimensions = 1 if parts[:1] == ["1d"] else 2
    known = parts[2:3] in (["f32"], ["s32"], ["u32"]) and parts[3:] in (["f32"], ["s32"])
    if parts[:2] not in (["1d", "v4"], ["2d", "v4"]) or not known:
        raise UnsupportedInstruction("only fetches of 32 bits in one or two dimensions")
    if len(instruction.operands) != 2:
        raise UnsupportedInstruction(f"{instruction.opcode} takes 2 operands")
    results, source = instruction.operands
    if not isinstance(results, Vector) or len(results.items) != 4:
        raise UnsupportedInstruction("four results in braces")
    if not isinstance(source, Address) or not isinstance(source.base, Register):
        raise UnsupportedInstruction("texture references were removed in CUDA 12; pass an object")
    places = source.extra[:dimensions]  # a fourth or second one fills up
    values = (Register, Immediate)
    registers = all(isinstance(one, Register) for one in results.items)
    if source.offset or not registers or len(places) < dimensions:
        raise UnsupportedInstruction("a handle and its coordinates in brackets")
    if not all(isinstance(one, values) for one in places):
        raise UnsupportedInstruction("coordinates are registers or literals")
    return parts[2], parts[3], results.items, source.base, places


class MemoryLines(OperandText):
    """The lines of memory instructions; each calls a method of a part of the chunk."""

    def address(self, operand: Address) -> str:
        """`[base + offset]` as uint64, within its own space."""
        offset = np.uint64(operand.offset & (2**64 - 1))
        if operand.base is None:
            return self.constant(offset)
        if isinstance(operand.base, Symbol):
            return self.symbol(operand.base.name, operand.offset, "u64")
        kind = self.instance.register_type(operand.base.name)
        if TYPE_BYTES[kind] == 4:
            text = self.read_register(operand.base.name, "u32")
            if operand.offset:  # the sum wraps around at 32 bits
                offset = np.uint32(operand.offset & 0xFFFFFFFF)
                text = f"({text} + {self.constant(offset)})"
            return f"{text}.astype(u8)"
        text = self.read_register(operand.base.name, "u64")
        return f"{text} + {self.constant(offset)}" if operand.offset else text

    def space_of(self, instruction: Instruction, operand: Address) -> str:
        """memory_space(), but .param is "parameter" in a kernel and "local", a frame, elsewhere."""
        space = memory_space(instruction.opcode)
        if space != "param":
            return space
        if not isinstance(operand.base, Symbol):
            return "global"
        place = self.instance.place_of(operand.base.name)[0]
        if place not in ("parameter", "local"):
            raise UnsupportedInstruction(f"{operand.base.name} is no .param variable")
        return place

    def _ld(self, instruction: Instruction) -> str:
        destination, source = instruction.operands[:2]
        kind, items = item_type(instruction.opcode), items_of(destination, instruction.opcode)
        space = self.space_of(instruction, source)
        if space == "parameter":
            return self.load_parameter(source, kind, items)
        where = repr(space), self.address(source)
        call = self.call("memory.load", instruction, *where, _item(kind), len(items))
        one = len(items) == 1
        return self.write(items[0], kind, call) if one else self.write_items(items, kind, call)

    _ldu = _ld

    def load_parameter(self, source: Address, kind: str, items: tuple) -> str:
        """A kernel's parameters are read from its argument image, one value after another."""
        offset = self.instance.place_of(source.base.name)[1] + source.offset
        dtype = DTYPE[kind]
        end = offset + len(items) * dtype.itemsize
        if offset < 0 or end > self.instance.kernel.parameter_bytes:
            raise UnsupportedInstruction("it reads past the kernel's parameters")
        return "; ".join(
            self.write(item, kind, f"c.memory.parameter({at:d}, {code_of(dtype)})")
            for at, item in zip(itertools.count(offset, dtype.itemsize), items, strict=False)
        )

    def _st(self, instruction: Instruction) -> str:
        if instruction.opcode.startswith("st.bulk"):
            return self.bulk_store(instruction)
        if instruction.opcode.startswith("st.async"):
            return self.asynchronous(instruction)
        destination, source = instruction.operands[:2]
        kind = item_type(instruction.opcode)
        values = ", ".join(self.read(item, kind) for item in items_of(source, instruction.opcode))
        space = self.space_of(instruction, destination)
        if space == "parameter":
            raise UnsupportedInstruction("a kernel cannot write to its parameters")
        where = repr(space), self.address(destination)
        return self.call("memory.store", instruction, *where, f"({values},)", _item(kind))

    def bulk_store(self, instruction: Instruction) -> str:
        """st.bulk: a number of bytes of shared memory become zero."""
        self.need(100)
        address, size, value = instruction.operands
        if value != Immediate(0):
            raise UnsupportedInstruction("its value can only be 0")
        return self.call("memory.clear", instruction, self.address(address), self.read(size, "u64"))

    def _atom(self, instruction: Instruction) -> str:
        return self.atomic(instruction, instruction.operands[0], instruction.operands[1:])

    def asynchronous(self, instruction: Instruction) -> str:
        """st.async and red.async: an mbarrier where they are written to learns of their bytes."""
        self.need(90)
        opcode, space = instruction.opcode, memory_space(instruction.opcode)
        if "mbarrier::complete_tx::bytes" not in opcode.split("."):
            raise UnsupportedInstruction("it completes by .mbarrier::complete_tx::bytes only")
        if space != "generic" and "shared::cluster" not in opcode.split("."):
            raise UnsupportedInstruction("it stores to .shared::cluster, or to generic addresses")
        to, source, mbarrier = instruction.operands
        kind, items = type_of(opcode), items_of(source, opcode)
        if kind[1:] not in ("32", "64"):
            raise UnsupportedInstruction(f"it takes values of 32 or 64 bits, not .{kind}")
        if len(items) * TYPE_BYTES[kind] > _POSTED_BYTES:
            raise UnsupportedInstruction(f"it moves at most {_POSTED_BYTES} bytes of a thread")
        values = "".join(f"{self.read(item, kind)}, " for item in items)
        change = reduction_text(self, opcode, atomics.CLUSTER_REDUCED_TYPES)
        where, shift = (self.address(to), self.address(mbarrier)), TYPE_BYTES[kind].bit_length() - 1
        return self.call(
            "copy_engine.post", instruction, repr(space), *where, f"({values})", shift, change
        )

    def _red(self, instruction: Instruction) -> str:
        if instruction.opcode.startswith("red.async"):
            return self.asynchronous(instruction)
        return self.atomic(instruction, None, instruction.operands)

    def atomic(self, instruction: Instruction, destination, operands: tuple) -> str:
        """The old value is asked for only where something reads it later."""
        kind, parts = type_of(instruction.opcode), instruction.opcode.split(".")
        if "L2::cache_hint" in parts:
            operands = operands[:-1]
        if kind == "b128":
            return self.wide_atomic(instruction, destination, operands)
        if not VECTORS.keys().isdisjoint(parts):
            return self.vector_atomic(instruction, kind, destination, operands)
        space = memory_space(instruction.opcode)
        operation = self.decoded(lambda opcode: atomics.operation(opcode, kind), instruction.opcode)
        name = self.object("atom", operation)
        values = "".join(f"{self.read(o, kind)}, " for o in operands[1:])
        wanted = isinstance(destination, Register) and destination.name != "_"
        if wanted:
            slot = self.instance.slot(destination.name)
            wanted = self.instance.is_live_after(instruction, slot)
        arguments = self.address(operands[0]), name, f"({values})", _item(kind), wanted
        call = self.call("memory.atomic", instruction, repr(space), *arguments)
        return self.write(destination, kind, call) if wanted else call

    def vector_atomic(self, instruction: Instruction, kind: str, destination, operands) -> str:
        """red.v2, atom.v4 and the like, which are for global memory alone."""
        if memory_space(instruction.opcode) != "global":
            raise UnsupportedInstruction("a vector of atomics is for .global memory")
        operation = self.decoded(lambda opcode: atomics.operation(opcode, kind), instruction.opcode)
        name, items = self.object("atom", operation), items_of(operands[1], instruction.opcode)
        values = "".join(f"{self.read(item, kind)}, " for item in items)
        wanted = isinstance(destination, Vector)
        arguments = self.address(operands[0]), name, f"({values})", _item(kind), wanted
        call = self.call("memory.atomic_vector", instruction, *arguments)
        if not wanted:
            return call
        return self.write_items(items_of(destination, instruction.opcode), kind, call)

    def wide_atomic(self, instruction: Instruction, destination, operands) -> str:
        """atom.b128, whose values are pairs of 64-bit registers."""
        parts = instruction.opcode.split(".")
        if "exch" not in parts and "cas" not in parts:
            raise UnsupportedInstruction(f"{instruction.opcode}: .b128 has .exch and .cas only")
        pairs = [
            [self.read(half, "b64") for half in items_of(o, instruction.opcode)]
            for o in operands[1:]
        ]
        values = "".join(f"({low}, {high}), " for low, high in pairs)
        where = repr(memory_space(instruction.opcode)), self.address(operands[0])
        call = self.call("memory.atomic_wide", instruction, *where, f"({values})")
        return self.write_halves(destination, call) if isinstance(destination, Vector) else call

    def _cp(self, instruction: Instruction) -> str:
        parts = instruction.opcode.split(".")
        if parts[:4] == ["cp", "async", "mbarrier", "arrive"]:
            counted = str("noinc" in parts)
            return self.mbarrier(instruction, "follow_copies", instruction.operands[0], counted)
        if "bulk" in parts:
            self.need(90)
            return bulk_line(self, instruction)
        if parts[:2] != ["cp", "async"]:
            raise UnsupportedInstruction(f"{instruction.opcode}: only cp.async")
        if "commit_group" in parts:
            return "c.copies.commit()"
        if "wait_all" in parts:
            return "c.copies.wait(None)"
        if "wait_group" in parts:
            return f"c.copies.wait({self.read(instruction.operands[0], 'u32')})"
        to, source, size, *rest = instruction.operands
        if size.value not in _COPIED_BYTES:
            raise UnsupportedInstruction(f"{size.value} bytes: it copies 4, 8 or 16")
        hinted = "L2::cache_hint" in instruction.opcode
        available = self.available_bytes(size, rest, hinted)
        sizes = f"{size.value:d}", available
        places = self.address(to), self.address(source)
        return self.call("copies.start", instruction, *places, *sizes)

    def available_bytes(self, size, rest: list, hinted: bool) -> str:
        """How much of a copy comes from memory: a size, or a predicate that says to ignore it."""
        available = self.read(size, "u32")
        if rest and isinstance(rest[0], Register):
            if self.instance.register_type(rest[0].name) == "pred":
                return f"np.where({self.read(rest[0], 'pred')}, 0, {available})[()]"
        if len(rest) > 1 or rest and not hinted:
            return self.read(rest[0], "u32")
        return available

    def _tensormap(self, instruction: Instruction) -> str:
        self.need(90)
        if "cp_fenceproxy" in instruction.opcode:
            return copied_map_line(self, instruction)
        space = memory_space(instruction.opcode)
        return self.call("memory.store", instruction, *replacement(self, instruction, space))

    # -- textures -------------------------------------------------------------------------------
    def _tex(self, instruction: Instruction) -> str:
        """tex.1d and tex.2d of a texture object: four channels at one place."""
        kind, coordinate_kind, results, handle, places = texture_parts(instruction)
        coordinates = "".join(f"{self.read(place, coordinate_kind)}, " for place in places)
        call = self.call(
            "memory.fetch",
            instruction,
            self.read(handle, "u64"),
            f"({coordinates})",
            code_of(DTYPE[kind]),
        )
        return self.write_items(results, kind, call)

    # -- mbarrier objects -----------------------------------------------------------------------
    def _mbarrier(self, instruction: Instruction) -> str:
        _, name, *parts = instruction.opcode.split(".")
        operands = instruction.operands
        if name == "init":
            return self.mbarrier(instruction, "init", operands[0], self.read(operands[1], "u32"))
        if name == "inval":
            return self.mbarrier(instruction, "inval", operands[0])
        if name in ("expect_tx", "complete_tx"):
            count, sign = self.read(operands[1], "u32"), 1 if name == "expect_tx" else -1
            return self.mbarrier(instruction, "expect", operands[0], count, str(sign))
        if name == "pending_count":
            state = self.read(operands[1], "b64")
            return self.write(operands[0], "b32", f"c.mbarriers.pending_count({state})")
        if name in ("arrive", "arrive_drop"):
            return self.write(operands[0], "b64", self.arrival(instruction, name, parts))
        if name in ("test_wait", "try_wait"):
            by_parity = "parity" in parts
            phase = self.read(operands[2], "u32" if by_parity else "b64")
            call = self.mbarrier(instruction, "wait", operands[1], phase, str(by_parity))
            return self.write(operands[0], "pred", call)
        raise UnsupportedInstruction(instruction.opcode)

    def arrival(self, instruction: Instruction, name: str, parts: list[str]) -> str:
        """The call of an arrival: by a count, by one with bytes to expect, or by one."""
        _, address, *value = instruction.operands
        count, added = self.constant(np.uint32(1)), self.constant(np.uint32(0))
        if "expect_tx" in parts and not value:
            raise UnsupportedInstruction("without the number of bytes to expect")
        if "expect_tx" in parts:
            added = self.read(value[0], "u32")
        elif value:
            count = self.read(value[0], "u32")
        drops = str(name == "arrive_drop")
        return self.mbarrier(instruction, "arrive", address, count, drops, added)

    def mbarrier(self, instruction: Instruction, method: str, address: Address, *values: str):
        """The call of a method of Mbarriers for the mbarrier at an address."""
        where = repr(memory_space(instruction.opcode)), self.address(address)
        return self.call(f"mbarriers.{method}", instruction, *where, *values)
