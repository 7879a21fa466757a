"""Bulk copies as lines of Python: cp.async.bulk, cp.reduce.async.bulk, those of tensor maps.

And the instructions that make such a map: tensormap.replace, tensormap.cp_fenceproxy.
"""

import re

from kernelscope.ptx.registers import symbols_in
from kernelscope.ptx.syntax import Address, Immediate, Instruction

from ..errors import UnsupportedInstruction
from ..isa.atomics import CLUSTER_REDUCED_TYPES, REDUCED_TYPES, REDUCTIONS, reduction
from ..tensor_map.fields import MAP_BYTES, MAP_FIELDS, REPLACED, Replaced

_AXES = re.compile(r"[1-5]d")
_MODES = re.compile(r"tile::\w+|cp_mask|cta_group::\d|ignore_oob|report_mechanism.*")
_LEAST, _MOST, _STEP = 24, 256, 8  # registers that setmaxnreg takes
_COPIED = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{}.sync.aligned"
_SCOPES = ("cta", "cluster", "gpu", "sys")


def bulk_line(lines, instruction: Instruction) -> str:
    """The call of a method of CopyEngine. lines: the translation, a MemoryLines."""
    parts = instruction.opcode.split(".")
    newer = next((part for part in parts if _MODES.fullmatch(part)), None)
    if newer is not None:
        raise UnsupportedInstruction(f".{newer} is of sm_100 and newer, and is not simulated")
    if "commit_group" in parts:
        return "c.copy_engine.commit()"
    if "wait_group" in parts:
        return f"c.copy_engine.wait({instruction.operands[0].value:d}, {'read' in parts})"
    if "prefetch" in parts:  # changes nothing but caches
        for name in symbols_in(instruction.operands):
            lines.instance.place_of(name)
        return "pass"
    spaces = [part for part in parts if part.split("::")[0] in ("shared", "global")]
    if len(spaces) != 2 or ("mbarrier::complete_tx::bytes" in parts) == (spaces[0] == "global"):
        raise UnsupportedInstruction(
            "a copy into shared memory completes by .mbarrier::complete_tx::bytes, one into global "
            "memory by .bulk_group"
        )
    tensor = any(_AXES.fullmatch(part) for part in parts)
    return _box_line(lines, instruction) if tensor else _plain_line(lines, instruction, spaces)


def reduction_name(opcode: str) -> str:
    """The operation of cp.reduce and red.async; "" of a copy."""
    parts = opcode.split(".")
    if parts[:2] not in (["cp", "reduce"], ["red", "async"]):
        return ""
    found = [part for part in parts if part in REDUCTIONS]
    if len(found) != 1:
        raise UnsupportedInstruction(f"none of .{', .'.join(REDUCTIONS)}")
    return found[0]


def reduction_text(lines, opcode: str, known: dict) -> str:
    """The name of the Reduction of cp.reduce and red.async; known: its types by operation."""
    name = reduction_name(opcode)
    if not name:
        return "None"
    return lines.object("reduction", reduction(name, opcode.rsplit(".", 1)[-1], known))


def _mask(lines, instruction: Instruction, operands: list) -> str:
    """The multicast's mask; the operand may be followed by a cache policy, which has no effect."""
    if "multicast::cluster" not in instruction.opcode:
        return "None"
    return lines.read(operands[0], "u16")


def _box_line(lines, instruction: Instruction) -> str:
    """[to], [map, {coordinates}], [mbarrier], or [map, {coordinates}], [from]."""
    operands = list(instruction.operands)
    if operands[0].extra:
        where, source = operands[:2]
        name = repr(reduction_name(instruction.opcode))
        arguments = [*_box(lines, where), lines.address(source), name]
        return lines.call("copy_engine.store_box", instruction, *arguments)
    to, where, mbarrier, *rest = operands
    mask = _mask(lines, instruction, rest)
    arguments = [lines.address(to), *_box(lines, where), lines.address(mbarrier), mask]
    return lines.call("copy_engine.load_box", instruction, *arguments)


def _box(lines, operand: Address) -> tuple[str, str]:
    """(address of a map, coordinates) of `[map, {x, y}]`."""
    coordinates = "".join(f"{lines.read(one, 's32')}, " for one in operand.extra)
    return lines.address(Address(operand.base, operand.offset)), f"({coordinates})"


def _plain_line(lines, instruction: Instruction, spaces: list[str]) -> str:
    """[to], [from], size, and the mbarrier of a copy into shared memory."""
    to, source, size, *rest = instruction.operands
    arguments = [lines.address(to), lines.address(source), lines.read(size, "u32")]
    known = REDUCED_TYPES if spaces[0] == "global" else CLUSTER_REDUCED_TYPES
    change = reduction_text(lines, instruction.opcode, known)
    if spaces[0] == "global":
        return lines.call("copy_engine.store", instruction, *arguments, change)
    arguments.append(lines.address(rest[0]))
    if spaces[1] == "global":
        mask = _mask(lines, instruction, rest[1:])
        return lines.call("copy_engine.load", instruction, *arguments, mask)
    return lines.call("copy_engine.send", instruction, *arguments, change)


def check_register_count(instruction: Instruction) -> None:
    """Raise UnsupportedInstruction for a number of registers that setmaxnreg does not take."""
    count = instruction.operands[0].value
    words = instruction.opcode.split(".")
    if not _LEAST <= count <= _MOST or count % _STEP or not {"inc", "dec"} & {*words}:
        raise UnsupportedInstruction(
            f"setmaxnreg.inc and .dec take a multiple of {_STEP} from {_LEAST} to {_MOST}"
        )


# -- maps that a kernel makes ----------------------------------------------------------------------
def replacement(lines, instruction: Instruction, space: str) -> tuple[str, ...]:
    """The arguments of the store of a field: space, address, values, dtype, shift."""
    name = instruction.opcode.split(".")[3]
    one = REPLACED[name]
    if not instruction.opcode.endswith(f".b1024.{one.kind}"):
        raise UnsupportedInstruction(f"tensormap.replace of {name} ends in .b1024.{one.kind}")
    if space not in ("shared", "global", "generic"):
        raise UnsupportedInstruction("a tensor map is filled in shared or global memory")
    address, *ordinal, value = instruction.operands
    axis = ordinal[0].value if ordinal else 0
    if axis >= max(one.places, 1):
        raise UnsupportedInstruction(f"{name} has the numbers 0 to {one.places - 1}, not {axis}")
    dtype, offset = MAP_FIELDS.fields[one.field][:2]
    item = dtype.base.itemsize
    where = Address(address.base, address.offset + offset + axis * item)
    text = f"{_value(lines, name, one, value)}.astype(u{item})"
    return repr(space), lines.address(where), f"({text},)", f"u{item}", str(item.bit_length() - 1)


def _value(lines, name: str, one: Replaced, operand) -> str:
    """What is stored for an operand of tensormap.replace."""
    if one.values is None:
        return lines.read(operand, one.kind)
    if operand.value >= len(one.values):
        known = f"0 to {len(one.values) - 1}" if len(one.values) > 1 else "0"
        raise UnsupportedInstruction(f"{name} {operand.value} is not simulated, only {known}")
    return lines.read(Immediate(one.values[operand.value]), "u32")


def copied_map_line(lines, instruction: Instruction) -> str:
    """The call that copies a map from shared memory to global memory."""
    if instruction.opcode not in map(_COPIED.format, _SCOPES):
        raise UnsupportedInstruction(f"tensormap.cp_fenceproxy is {_COPIED.format('gpu')}")
    to, source, size = instruction.operands
    if size.value != MAP_BYTES:
        raise UnsupportedInstruction(f"{size.value} bytes: a tensor map has {MAP_BYTES}")
    arguments = lines.address(to), lines.address(source)
    return lines.call("copy_engine.copy_map", instruction, *arguments)
