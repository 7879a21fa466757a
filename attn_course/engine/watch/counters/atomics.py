"""How many sectors and shared-memory wavefronts the atomics of a warp make, as an H200 counts them.

Lanes that update one address wait for each other. In global memory they send its sector on once
for each of them; in shared memory a bank serves one lane in a pass, whether the lanes want one word
or several. An increment by 1 whose result nobody uses is the exception: the lanes of one word are
counted and added together (ATOMS.POPC.INC).

A compare-and-swap takes two wavefronts a pass. The machine adds floats, and works on 64 bits, in
shared memory by a loop of loads and compare-and-swaps: counted is the loop of a warp that no other
warp disturbs, without its loads, as one request.

Not followed: where ptxas sees that an integer atomic has one address for all lanes, it adds their
values up first (REDUX, VOTE) and lets one lane go; hardware then counts that lane alone.
"""

from collections import Counter

import numpy as np

from attn_course.engine.events import Launch
from attn_course.engine.ptx.registers import reads_and_writes
from attn_course.engine.ptx.syntax import Immediate

from .traffic import BANKS, SECTOR_BYTES, WORD_BYTES, Lanes

_NATIVE = {"u32", "s32", "b32"}


def is_loop(opcode: str) -> bool:
    """Does the machine have no single instruction for this atomic in shared memory?"""
    parts = opcode.split(".")
    if parts[0] not in ("atom", "red") or "shared" not in opcode or "cluster" in opcode:
        return False
    return not ({"cas", "exch"} & set(parts) or parts[-1] in _NATIVE) or parts[-1] == "b16"


def wavefronts_of_a_pass(opcode: str) -> int:
    """Return 2 for a compare-and-swap and a loop of them, 1 for other atomics."""
    return 2 if "cas" in opcode.split(".") or is_loop(opcode) else 1


def counting_increments(launch: Launch) -> set[int]:
    """Return the ids of the launch's increments by 1 in shared memory whose result is not used."""
    found: set[int] = set()
    for function in launch.source.module.functions.values():
        adds = [i for i in function.body if _adds_one(i)]
        if adds:
            read = Counter(name for i in function.body for name in reads_and_writes(i)[0])
            unused = [i for i in adds if not any(read[n] for n in reads_and_writes(i)[1])]
            found.update(map(id, unused))
    return found


def _adds_one(instruction) -> bool:
    parts, last = instruction.opcode.split("."), instruction.operands[-1:]
    if parts[0] not in ("atom", "red") or not {"add", "shared"} <= set(parts):
        return False
    return parts[-1] in _NATIVE and isinstance(last[0], Immediate) and last[0].value == 1


def count_atomic_sectors(lanes: Lanes, address: np.ndarray) -> int:
    """Sectors of atomics on global memory, summed over warps.

    A sector counts as often as its most wanted address has lanes. address: (lanes,) uint64.
    """
    warp = lanes.lanes // 32
    order = np.lexsort((address, warp))
    address, warp = address[order], warp[order]
    first = _starts(address, warp)
    meeting = np.diff(first, append=address.size)  # lanes on each address
    sector = address[first] // np.uint64(SECTOR_BYTES)
    return int(np.maximum.reduceat(meeting, _starts(sector, warp[first])).sum())


def _starts(*sorted_keys: np.ndarray) -> np.ndarray:
    """Where a new combination of the keys begins."""
    changes = np.logical_or.reduce([key[1:] != key[:-1] for key in sorted_keys])
    return np.concatenate([[0], np.flatnonzero(changes) + 1])


def count_atomic_passes(lanes: Lanes, address: np.ndarray, size: int) -> tuple[int, int]:
    """(passes, their minimum) of atomics on shared memory, summed over warps.

    size: bytes a lane; half a warp goes at a time where they are 8, a quarter where they are 16.
    """
    unit = max(WORD_BYTES, size)
    part = WORD_BYTES * BANKS // unit  # lanes that go together, and places that they may take
    starts = lanes.starts(part)
    group = np.repeat(np.arange(starts.size), np.diff(starts, append=lanes.size))
    place = (address // np.uint64(unit)).astype(np.int64) % part
    met = np.bincount(part * group + place, minlength=part * starts.size)
    return int(met.reshape(-1, part).max(1).sum()), starts.size
