"""The properties of an instruction that matter to the sanitizer, read from its opcode once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from .values import Values

_STRONG = ("relaxed", "acquire", "release", "acq_rel", "mmio")
POSTS = ("st.async", "red.async")  # threads store, and an mbarrier counts the bytes
MEETINGS = ("shfl.sync", "vote.sync", "match.", "redux.sync", "elect.sync")


@dataclass(frozen=True)
class InstructionTraits:
    """The properties of an instruction that matter here, read from its opcode once."""

    parameter: bool  # ld.param and st.param: call arguments, nobody else's business
    atomic: bool  # atomics and accesses with a memory order, in any space
    swap: bool
    exchange: bool
    narrow: bool  # an atomic, load or store that only threads of its own block may rely on
    volatile: bool
    decides: bool  # a volatile load that may decide a branch; one with a memory order that waits
    waits: (
        bool  # a volatile load that may end the loop it is in, or feeds an atomic: it reads a flag
    )
    updates: bool  # a volatile load whose value is computed with and stored again
    in_place: bool  # and to the same address
    fence: bool  # of the device at least
    block_fence: bool  # of any scope
    releases: bool  # an access that publishes what came before it
    acquires: bool  # an access that what follows comes after
    meeting: bool
    shuffle: bool
    warp_barrier: bool  # __syncwarp()
    arrive: bool
    copy: str  # cp.async: "issue", "commit" or "wait"; st.async and red.async: "post"
    phase: str  # of an mbarrier: "arrive" (its bytes, too), "relaxed" (an arrival that publishes
    # nothing by itself), "wait" or, after copies, "follow"

    @cached_property
    def plain(self) -> bool:
        """Return whether nothing but its accesses matters."""
        wait = self.meeting or self.warp_barrier or self.arrive or self.phase
        return not (wait or self.block_fence or self.copy)

    @classmethod
    def of(cls, instruction, values: Values) -> InstructionTraits:
        opcode = instruction.opcode
        parts = opcode.split(".")
        root = parts[0]
        ordered = any(part in _STRONG for part in parts)
        block_only, is_access = "cta" in parts, root in ("atom", "red", "st", "ld")
        reads_flag = root == "ld" and "volatile" in parts
        return cls(
            parameter="param" in opcode,
            atomic=root in ("atom", "red") or ordered and root in ("ld", "st") or _shares(parts),
            swap=root == "atom" and "cas" in parts,
            exchange=root == "atom" and "exch" in parts,
            narrow=is_access and block_only,
            volatile="volatile" in parts,
            decides=reads_flag
            and values.decides(instruction)
            or ordered
            and root == "ld"
            and values.waits(instruction),
            waits=reads_flag and values.waits(instruction),
            updates=reads_flag and values.returns_to_memory(instruction),
            in_place=reads_flag and values.updates_in_place(instruction),
            fence=_is_memory_fence(parts) and not block_only,
            block_fence=_is_memory_fence(parts),
            releases=is_access and ("release" in parts or "acq_rel" in parts),
            acquires=is_access and ("acquire" in parts or "acq_rel" in parts),
            meeting=opcode.startswith(MEETINGS),
            shuffle=root == "shfl",
            warp_barrier=opcode.startswith("bar.warp.sync"),
            arrive=root in ("bar", "barrier") and "arrive" in parts,
            copy=_part_of_copy(opcode),
            phase=_use_of_phase(parts),
        )


def _is_memory_fence(parts: list[str]) -> bool:
    """Not those between proxies, nor that for the start of mbarriers, which order no data."""
    return parts[0] in ("membar", "fence") and parts[1] not in ("proxy", "mbarrier_init")


def is_fence(opcode: str) -> bool:
    """Is this a fence of any scope, or an access that acts as one?"""
    root, *parts = opcode.split(".")
    if root in ("membar", "fence"):
        return _is_memory_fence([root, *parts])
    ordered = any(part in ("acquire", "release", "acq_rel") for part in parts)
    return ordered and root in ("atom", "red", "st", "ld")


def _part_of_copy(opcode: str) -> str:
    if opcode.startswith(POSTS):
        return "post"
    if not opcode.startswith("cp.async.") or opcode.startswith("cp.async.bulk"):
        return ""
    if "commit_group" in opcode:
        return "commit"
    if "wait" in opcode:
        return "wait"
    return "issue" if opcode.startswith(("cp.async.ca.", "cp.async.cg.")) else ""


def _shares(parts: list[str]) -> bool:
    """Is this an operation on an mbarrier that other threads may be using?"""
    return "mbarrier" in parts and "init" not in parts


def _use_of_phase(parts: list[str]) -> str:
    if parts[:3] == ["cp", "async", "mbarrier"]:
        return "follow"
    if ".".join(parts[:2]) in POSTS:
        return "arrive"
    if parts[0] != "mbarrier":
        return ""
    arrival = "relaxed" if "relaxed" in parts else "arrive"
    known = {"arrive": arrival, "arrive_drop": arrival, "test_wait": "wait", "try_wait": "wait"}
    return known.get(parts[1], "")
