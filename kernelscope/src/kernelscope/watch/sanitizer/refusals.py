"""Accesses that the hardware refuses: out of bounds or misaligned, lane by lane."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from kernelscope.events import BULK_SIZE, GIVE_MEMORY, GRID_BARRIER, VERBS, Access, FaultEvent

from .async_proxy.phases import ARRIVALS
from .barriers import ALL_LANES
from .elements import NOWHERE, Array, Element, element
from .findings import Finding, Naming
from .traits import MEETINGS

_FAR = 1 << 20  # bytes: an address this far from every array belongs to none in particular


def refused(
    access: Access, line: int, naming: Naming, first_lane: int, local: Sequence[Array]
) -> Iterator[Finding]:
    """Findings for the lanes whose access was refused, at most one of each kind.

    first_lane: of the chunk, to count lanes through the grid; local: the Arrays in the
    thread's local memory.
    """
    bad = ~access.valid
    uneven = bad & (access.address & np.uint64(access.size - 1) != 0)
    kept = _kept_from_writing(access, bad, naming) & ~uneven
    if kept.any():
        yield _read_only(access, kept, line, naming, first_lane)
    for kind, mine in (("misaligned", uneven), ("out-of-bounds", bad & ~uneven & ~kept)):
        if mine.any():
            address = _first(access, mine)
            meant = _meant(access, address, line, naming, local)
            lanes = access.lanes[mine] + first_lane
            yield _finding(kind, access, address, lanes, line, naming, meant)


def _kept_from_writing(access: Access, bad: np.ndarray, naming: Naming) -> np.ndarray:
    """(lanes,) bool: which of the refused lanes write inside an array that is only read."""
    kept = np.zeros(bad.size, bool)
    if access.space == "global" and access.kind != "load":
        address = access.address.view(np.int64)
        for one in naming.buffers["global"]:
            if not one.writable:
                kept |= bad & (address >= one.start) & (address < one.start + one.size)
    return kept


def _read_only(access: Access, wrong: np.ndarray, line: int, naming: Naming, first_lane: int):
    """The finding for lanes that write where kernels only read; wrong: (lanes,) bool."""
    address = _first(access, wrong)
    buffer = naming.buffer("global", address)
    where = element(naming.array(buffer, access.size), address)
    lanes = access.lanes[wrong] + first_lane
    # A variable without the caller's shape is __constant__ memory; an array is the caller's.
    place = "a read-only array" if buffer.dtype is not None else "__constant__ memory"
    text = (
        f"{naming.who(lanes[0])} {VERBS[access.kind]} {where.text}, "
        f"which is in {place}: the kernel can only read it"
    )
    return naming.finding("read-only", line, text, lanes, where)


def leaving(
    access: Access, wrong: np.ndarray, line: int, naming: Naming, first_lane: int, array: Array
) -> Finding:
    """The finding for lanes that reach memory, but not in the array that they count from.

    wrong: (lanes,) bool.
    """
    lanes = access.lanes[wrong] + first_lane
    return _finding("out-of-bounds", access, _first(access, wrong), lanes, line, naming, array)


def _first(access: Access, wrong: np.ndarray) -> int:
    return int(access.address.view(np.int64)[wrong][0])


def _finding(
    kind, access: Access, address: int, lanes, line: int, naming: Naming, meant: Array | None
) -> Finding:
    who, remedy = f"{naming.who(lanes[0])} {VERBS[access.kind]}", ""
    missing = naming.launch.without_memory(address) if access.space == "shared" else ""
    where = element(meant, address) if meant is not None else Element("", address, "", "")
    if kind == "misaligned":
        place = _in_words(where) if meant is not None else str(address)
        text = f"{who} {access.size} bytes at once at {place}, whose address is no multiple of that"
        if access.space == "local":
            text += (
                "; the optimised build may keep the array in registers and make no such access, "
                "but C++ leaves it undefined: declare the array with __align__"
            )
    elif missing:
        text, where = f"{who} {missing}, to which the launch gives no memory", NOWHERE
        remedy = GIVE_MEMORY
    elif meant is None and access.space == "local":
        text = f"{who} byte {address} of its local memory, which holds no array there"
    elif meant is None:
        text = f"{who} address {address:#x}, where no array is: a null or wild pointer"
    else:
        inside = 0 <= address - meant.start < meant.item * meant.count  # it begins there
        text = f"{who} {f'{access.size} bytes at once at ' if inside else ''}{outside(where)}"
        if (address - meant.start) // meant.item < -_FAR:
            text += (
                ". A negative index: an int gives one when it passes 2^31; compute the index in "
                "64 bits (size_t)"
            )
    return naming.finding(kind, line, text, lanes, where, remedy=remedy)


def outside(where: Element) -> str:
    """Describe an element outside of its array, with the valid range."""
    if isinstance(where.index, tuple):
        return f"{where.text} (valid: {where.valid})"
    return f"{_in_words(where)}, which has {where.valid.removesuffix(f' of {where.array}')}"


def _in_words(where: Element) -> str:
    if isinstance(where.index, tuple):
        return where.text
    return f"element {where.index} of {where.array}"


def _meant(access: Access, address: int, line: int, naming: Naming, local) -> Array | None:
    """The array that a bad address was meant for, with no more extents than the source gives."""
    if access.space == "local":
        return nearest(local, address, line, naming)
    buffers = naming.buffers.get(access.space, [])
    if access.space == "global" and 0 <= address < 256:
        return None  # a null pointer
    found = nearest(buffers, address, line, naming)
    array = naming.array(found, access.size) if found is not None else None
    if array is not None and found.space == "global" and found.shape:
        return replace(array, shape=())  # the kernel has only a pointer, and counts along it
    return array


def named(arrays: Sequence, line: int, naming: Naming):
    """The one of some Arrays or Buffers that a source line names with an index; None if not one."""
    source = naming.launch.source_lines
    text = source[line - 1] if 0 < line <= len(source) else ""
    found = [a for a in arrays if re.search(rf"\b{re.escape(a.name)}\b\s*[\[(+]", text)]
    return found[0] if len(found) == 1 else None


def nearest(arrays: Sequence, address: int, line: int, naming: Naming):
    """The array that the source line names, or else the nearest to the address, if it is near.

    A line may name another array than the one that it reaches by a pointer: `out[i] = row[i]`. So a
    named one that is far away does not count where another one is near.
    """
    found = named(arrays, line, naming)
    near = min(arrays, key=lambda a: _distance(a, address), default=None)
    if near is not None and _distance(near, address) > _FAR:
        near = None
    is_far = found is None or _distance(found, address) > _FAR
    return near if near is not None and is_far else found


def _distance(buffer, address: int) -> int:
    return max(buffer.start - address, address - (buffer.start + buffer.size - 1), 0)


def remedy_of(event: FaultEvent) -> str:
    """Return the fix of a fault where the one of its kind does not fit, or ""."""
    opcode = event.instruction.opcode if event.instruction is not None else ""
    if event.kind == "divergent-barrier" and "mbarrier" in event.message:
        return ARRIVALS
    if BULK_SIZE in event.message:
        return "give the size in bytes, and let rows have a multiple of 16"
    if event.kind == "out-of-bounds" and "its descriptor" in event.message:
        return "correct the descriptor: every chunk that it leads to has to be in the tile"
    if GRID_BARRIER in event.message:
        return "let all blocks of the grid reach grid.sync(), or none"
    missed = event.kind == "divergent-barrier" and opcode.startswith(MEETINGS)
    return ALL_LANES if missed else ""
