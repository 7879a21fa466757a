"""Lines of instructions that come from CUDA's own headers: the line that asks for them.

An instruction of a header (a shuffle, an atomic) has no line in the kernel's file. Where the
debug build has put it into one of the file's functions, the line before it is meant; where it is
in a function of the header, the line of the call.
"""

from __future__ import annotations

import numpy as np


def executing(chunk, instruction, lanes: int) -> list:
    """The instances (one a call site) that may be running this instruction now, in program order.

    lanes: how many lanes run it. Several are left where the registers do not tell them apart.
    """
    found = instances_of(chunk.kernel, instruction)
    if len(found) < 2:
        return found
    return [one for one in found if _has_registers(chunk, one, lanes)] or found


def instances_of(kernel, instruction) -> list:
    """All instances of the function that this instruction belongs to, in program order."""
    found = []
    for _, instance in sorted(kernel.instances.items()):
        body = instance.function.body
        if instruction.index < len(body) and body[instruction.index] is instruction:
            found.append(instance)
    return found


def _has_registers(chunk, instance, lanes: int) -> bool:
    """Are registers of this instance there for just the active lanes?"""
    slots = [slot for slot in instance.slots.values() if slot < len(chunk.lanes.R)]
    values = [chunk.lanes.R[slot] for slot in slots]
    return any(isinstance(v, np.ndarray) and v.size == lanes for v in values)


def line_asking(kernel, instance, instruction) -> int:
    """The line of the kernel's file that an instruction of an instance stands for; 0 for none."""
    while instance is not None:
        body = instance.function.body
        for index in range(instruction.index, -1, -1):  # its own line, or the last before it
            if line := kernel.program.own_line(body[index]):
                return line
        if instance.called_from is None:
            return 0
        instance, instruction = instance.called_from
    return 0
