"""The counts of a PTX instruction, and where machine code has more or fewer of it."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from ...ptx.syntax import Instruction
from ..machine_code import Code, Segment, codes
from .kinds import KINDS, has_slow_path, is_swap

_OF_SHARED = {"LD": "LDS", "ST": "STS", "ATOM": "ATOMS"}
_REQUESTS = tuple(  # counter -> kind
    (f"{space}_{way}_requests", f"{space} {way}")
    for space in ("global", "shared", "local")
    for way in ("load", "store", "atomic")
)
_WAYS = {"ld": "load", "st": "store", "atom": "atomic", "red": "atomic"}


@dataclass(frozen=True)
class BlockPlace:
    """Where a PTX instruction stands. block: number of its basic block, from 1; loops: the blocks
    that head the loops around it, the innermost first; above: of a block that heads a loop, the
    nearest block outside that every way to it passes, 0 for none.
    """

    block: int = 0
    loops: tuple[int, ...] = ()
    above: int = 0


NOWHERE = BlockPlace()


@dataclass(eq=False)  # not frozen: one is made for each instruction of a launch
class PtxCounts:
    """One PTX instruction: its line, how often warps executed it, and the counts of Counters.

    l1_missing: share of the sectors that it loads which L1 does not have; l1_waiting: share of its
    requests that wait for any; first_bytes: of the pieces of DRAM that it touches before any other,
    None: not followed; touching: share of its requests that do; alone: share of these pieces that
    no other block touches, None: not known; lost_bytes: that it loads again when L2 has lost them;
    losing: share of its requests that do; buffer_bytes: distinct ones that the launch reads of its
    buffer; joined: share of the sectors that it stores which leaves L1, filled: how much of each of
    these it fills; of_warps: (warps of a block,) executions, summed over
    blocks; of_longest: those of a block's longest warp between two barriers, summed too; origin:
    its number among the PTX instructions of its module.
    """

    instruction: Instruction
    line: int
    executions: int
    counts: Counter
    merged: bool  # into another shared access
    place: BlockPlace = NOWHERE
    l1_missing: float = 1.0
    l1_waiting: float = 1.0
    first_bytes: float | None = None
    touching: float = 1.0
    alone: float | None = None
    lost_bytes: float = 0.0
    losing: float = 0.0
    buffer_bytes: float = np.inf
    joined: float = 1.0
    filled: float = 1.0
    of_warps: np.ndarray | None = None
    of_longest: float = 0.0
    origin: int = -1

    @cached_property
    def kind(self) -> str:
        """As of KINDS; "" where machine code has no single instruction for it."""
        of = self.counts.get
        if of("tensor_instructions"):
            return "tensor"
        if of("async_copy_requests"):
            return "async copy"
        if of("constant_load_passes", 0) > self.executions:  # addresses of a warp differ
            return "constant load"
        if of("far_atomic_sectors"):  # ATOM does it, as of global memory
            return "global atomic"
        for counter, kind in _REQUESTS:
            if of(counter):
                return kind
        return _kind_of(self.instruction.opcode, bool(self.executions))

    @property
    def is_of_wmma(self) -> bool:
        """Does it load or store a tile, which is several instructions of machine code?"""
        return self.instruction.opcode.startswith(("wmma.load", "wmma.store"))

    @property
    def machine_instructions(self) -> int:
        """How often warps execute such instructions of machine code for it."""
        if self.kind == "tensor":
            return self.counts["tensor_instructions"]
        if self.kind == "shared atomic" and is_swap(self.instruction):
            return self.counts["swaps"]
        return self.executions


@lru_cache(maxsize=4096)
def _kind_of(opcode: str, ran: bool) -> str:
    """The kind of an instruction that has made no requests."""
    parts = opcode.split(".")
    if not ran and parts[0] in _WAYS:
        space = next((part for part in parts if part in ("global", "shared", "local")), "")
        return f"{space} {_WAYS[parts[0]]}" if space else ""
    if has_slow_path(opcode) and parts[-1] == "f32":
        return {"div": "division", "sqrt": "mufu"}.get(parts[0], "")
    if parts[0] in ("fma", "mul", "add", "sub") and parts[-1] in ("f32", "f64"):
        return "float32" if parts[-1] == "f32" else "float64"
    if parts[0] in ("ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt"):
        return "mufu" if "approx" in parts else ""
    if parts == ["popc", "b32"]:
        return "popc"
    return {"bar": "barrier", "barrier": "barrier", "shfl": "shuffle"}.get(parts[0], "")


def with_spaces(segments, counted: Iterable[PtxCounts]) -> tuple[Segment, ...]:
    """The same segments, with loads, stores and atomics of generic addresses by the names of those
    of shared memory, where the PTX instructions that they are made of have reached that.
    """
    shared = {one.origin for one in counted if one.kind.startswith("shared")}

    def named(code: Code) -> Code:
        fits = code.name in _OF_SHARED and code.origin in shared
        return replace(code, name=_OF_SHARED[code.name]) if fits else code

    if not any(code.name in _OF_SHARED for _, code in codes(segments)):
        return segments
    return tuple(replace(one, code=[named(code) for code in one.code]) for one in segments)


def loads_of(segments, counted: Iterable[PtxCounts]) -> dict[int, PtxCounts]:
    """Machine loads of global memory, by their ids -> the load of the PTX that each is."""
    known = {one.origin: one for one in counted if one.kind in ("global load", "async copy")}
    return {id(code): one for _, code, one in of_one_kind(segments, known)}


def of_one_kind(segments, known: dict[int, PtxCounts]) -> Iterable[tuple[int, Code, PtxCounts]]:
    """Every machine instruction, with its segment, that is of the kind of the PTX instruction that
    it is made of. known: by the numbers of PTX instructions.
    """
    for at, code in codes(segments):
        one = known.get(code.origin)
        if one is not None and KINDS.get(code.name) == one.kind:
            yield at, code, one
