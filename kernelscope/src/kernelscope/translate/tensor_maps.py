"""Tensor maps that kernels make as lines of Python: tensormap.replace, tensormap.cp_fenceproxy."""

from kernelscope.ptx.syntax import Address, Immediate, Instruction

from ..errors import UnsupportedInstruction
from ..tensor_map.fields import MAP_BYTES, MAP_FIELDS, REPLACED, Replaced

_COPIED = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.{}.sync.aligned"
_SCOPES = ("cta", "cluster", "gpu", "sys")


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
