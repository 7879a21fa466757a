"""How many sectors and shared-memory wavefronts the atomics of a warp make, as an H200 counts them.

Lanes that update one address wait for each other. In global memory they send its sector on once
for each of them; in shared memory a bank serves one lane in a pass, whether the lanes want one word
or several. An increment by 1 whose result nobody uses is the exception: the lanes of one word are
counted and added together (ATOMS.POPC.INC).

A compare-and-swap takes two wavefronts a pass. The machine adds floats, and works on 64 bits, in
shared memory by a loop of loads and compare-and-swaps: counted is the loop of a warp that no other
warp disturbs, without its loads, as one request.

Where all lanes have one address for ptxas to see, it adds the values of an integer atomic up first
(REDUX, VOTE) and lets one lane go for all; only this lane is counted. Addresses that depend on a
loop's counter or on loaded numbers are not followed: there more lanes are counted than go.
"""

from collections import Counter
from collections.abc import Iterator

import numpy as np
from kernelscope.events import Launch
from kernelscope.ptx.registers import reads_and_writes, registers_in
from kernelscope.ptx.syntax import Function, Immediate

from .traffic import BANKS, SECTOR_BYTES, WORD_BYTES, Lanes

INCREMENT, JOINED = "increment", "joined"
_NATIVE = {"u32", "s32", "b32"}
_SUMS = {"add", "min", "max", "and", "or", "xor"}
_FOLLOWED = tuple("ld.param mov cvta cvt add sub mul mad shl shr and or".split())
_PASSES = 4  # over the code: it is in order, so one finds nearly all


def is_loop(opcode: str) -> bool:
    """Does the machine have no single instruction for this atomic in shared memory?"""
    parts = opcode.split(".")
    if parts[0] not in ("atom", "red") or "shared" not in opcode or "cluster" in opcode:
        return False
    return not ({"cas", "exch"} & set(parts) or parts[-1] in _NATIVE) or parts[-1] == "b16"


def wavefronts_of_a_pass(opcode: str) -> int:
    """Return 2 for a compare-and-swap and a loop of them, 1 for other atomics."""
    return 2 if "cas" in opcode.split(".") or is_loop(opcode) else 1


def served_apart(launch: Launch) -> dict[int, str]:
    """Return the id of each atomic that the machine does otherwise -> INCREMENT or JOINED."""
    found: dict[int, str] = {}
    for function in launch.source.module.functions.values():
        if any(i.opcode.startswith(("atom", "red")) for i in function.body):
            found.update(_served(function))
    return found


def _served(function: Function) -> Iterator[tuple[int, str]]:
    read = Counter(name for i in function.body for name in reads_and_writes(i)[0])
    alike = _alike_in_all_lanes(function)
    for one in function.body:
        parts = one.opcode.split(".")
        if parts[0] not in ("atom", "red") or "cluster" in one.opcode:
            continue
        unused = not any(read[name] for name in reads_and_writes(one)[1])
        value = one.operands[-1]
        constant = isinstance(value, Immediate)
        add, narrow = "add" in parts, parts[-1] in _NATIVE
        if add and narrow and unused and "shared" in parts and constant and value.value == 1:
            yield id(one), INCREMENT
        elif set(registers_in(one.operands[0 if parts[0] == "red" else 1])) <= alike:
            summed = narrow and unused and _SUMS & set(parts)
            if summed or add and constant and parts[-1] in _NATIVE | {"u64", "s64"}:
                yield id(one), JOINED


def _alike_in_all_lanes(function: Function) -> set[str]:
    """Registers that one instruction sets, from constants, parameters and the block's number."""
    sets = Counter(name for i in function.body for name in reads_and_writes(i)[1])
    alike = {f"%{name}.{axis}" for name in ("ctaid", "nctaid", "ntid") for axis in "xyz"}
    for _ in range(_PASSES):
        before = len(alike)
        for one in function.body:
            reads, writes = reads_and_writes(one)
            if one.guard is None and one.opcode.startswith(_FOLLOWED) and reads <= alike:
                alike.update(name for name in writes if sets[name] == 1)
        if len(alike) == before:
            break
    return alike


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
