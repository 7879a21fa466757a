"""Accesses that the hardware refuses: out of bounds or misaligned, lane by lane."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from ..events import Access, Buffer
from .findings import Finding, Naming, describe_thread

_VERBS = {"load": "reads", "store": "writes", "atomic": "updates"}
_FAR = 1 << 20  # bytes: an address this far from every array belongs to none in particular


def refused(access: Access, line: int, naming: Naming, first_lane: int) -> Iterator[Finding]:
    """Findings for the lanes whose access was refused, at most one of each kind.

    first_lane: of the chunk, to count lanes through the grid.
    """
    bad = ~access.valid
    uneven = bad & (access.address & np.uint64(access.size - 1) != 0)
    for kind, mine in (("misaligned", uneven), ("out-of-bounds", bad & ~uneven)):
        if mine.any():
            yield _finding(kind, access, mine, line, naming, first_lane)


def _finding(kind, access: Access, mine, line: int, naming: Naming, first_lane: int) -> Finding:
    address = int(access.address.view(np.int64)[mine][0])
    lanes = access.lanes[mine] + first_lane
    array, index, valid, negative = _element(access, address, line, naming)
    who = f"{describe_thread(naming.thread(int(lanes[0])))} {_VERBS[access.kind]}"
    if kind == "misaligned":
        text = f"{who} {access.size} bytes at once at {index}, whose address is no multiple of that"
        if array:
            text = text.replace(f"at {index},", f"at element {index} of {array},")
    else:
        text = f"{who} element {index} of {array}, which has {valid}"
        if not array:
            text = f"{who} address {address:#x}, where no array is: a null or wild pointer"
    if negative:
        text += (
            ". A negative index: an int gives one when it passes 2^31; compute the index in "
            "64 bits (size_t)"
        )
    return Finding(kind, line, text, naming.threads(lanes), array, index, valid_range=valid,
                   count=int(lanes.size))


def _element(access: Access, address: int, line: int, naming: Naming):
    """(array, index, valid range, whether the index is far below 0) of a signed byte address."""
    if access.space == "local":
        return "local memory", address // access.size, "", address < -_FAR
    buffer = _meant(access.space, address, line, naming)
    if buffer is None:
        return "", address, "", False
    item = buffer.dtype.itemsize if buffer.dtype is not None else min(access.size, 4)
    index = (address - buffer.start) // item
    return buffer.name, index, f"elements 0 to {buffer.size // item - 1}", index < -_FAR


def _meant(space: str, address: int, line: int, naming: Naming) -> Buffer | None:
    """The array that a bad address was meant for: the one that the source line names with an
    index, where it names just one; else the nearest. None where no array is near.
    """
    buffers = naming.buffers.get(space, [])
    source = naming.launch.source_lines
    text = source[line - 1] if 0 < line <= len(source) else ""
    named = [b for b in buffers if re.search(rf"\b{re.escape(b.name)}\b\s*[\[(+]", text)]
    if len(named) == 1:
        return named[0]
    near = min(buffers, key=lambda b: _distance(b, address), default=None)
    if near is None or _distance(near, address) > _FAR or space == "global" and 0 <= address < 256:
        return None
    return near


def _distance(buffer: Buffer, address: int) -> int:
    return max(buffer.start - address, address - (buffer.start + buffer.size - 1), 0)
