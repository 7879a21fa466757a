"""The values a store instruction wrote, lane by lane."""

from __future__ import annotations

import numpy as np

from attn_course.engine.events import Access, InstructionEvent

from .call_sites import executing


def stored_bytes(event: InstructionEvent, access: Access) -> np.ndarray | None:
    """(lanes, access.size) uint8: what each lane stored; None where that is not known."""
    operands = event.instruction.operands
    if len(operands) < 2 or access.lanes.size != event.lanes.size:
        return None
    items = getattr(operands[1], "items", (operands[1],))
    width = access.size // len(items)
    columns = []
    for item in items:
        value = value_of(event, item)
        if value is None:
            return None
        bits = np.broadcast_to(np.asarray(value), (event.lanes.size,))
        raw = np.ascontiguousarray(bits).view(np.uint8).reshape(event.lanes.size, -1)
        if raw.shape[1] < width:
            return None
        columns.append(raw[:, :width])  # little-endian: a narrow store takes the low bytes
    return np.concatenate(columns, axis=1)


def value_of(event: InstructionEvent, item):
    """A register's or immediate's value: a scalar or (lanes,), or None."""
    if hasattr(item, "float_bits"):
        return np.uint64(int(item.value) & (1 << 64) - 1)
    name, chunk, lanes = getattr(item, "name", ""), event.chunk, event.lanes.size
    instances = executing(chunk, event.instruction, lanes)
    if len(instances) != 1:
        return None  # several call sites: which one is not known
    slot = instances[0].slots.get(name)
    value = chunk.lanes.R[slot] if slot is not None and slot < len(chunk.lanes.R) else None
    return value if value is not None and np.size(value) in (1, lanes) else None
