"""Loads of machine code, each with its load of the PTX: by line, block, width and offset."""

import re
from collections import defaultdict

from ...ptx.syntax import Address, Instruction
from ..machine_code import Code, Segment
from .counts import PtxCounts
from .kinds import KINDS

_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}


def loads_of(segments: tuple[Segment, ...], counted: list[PtxCounts]) -> dict[int, PtxCounts]:
    """Machine loads of global memory, by their ids -> the load of the PTX that each is."""
    lines: defaultdict[tuple[int, str], _Loads] = defaultdict(_Loads)
    for one in counted:
        if one.executions and one.kind in ("global load", "async copy") and not one.merged:
            lines[one.line, one.kind].blocks[one.place.block].append(one)
    found = {}
    for segment in segments:
        own: defaultdict[tuple[int, str], list[Code]] = defaultdict(list)
        for code in segment.code:
            key = code.line, KINDS.get(code.name, "")
            if key in lines:
                own[key].append(code)
        for key, several in own.items():
            found |= lines[key].of(several)
    return found


class _Loads:
    """The PTX's loads of a line. blocks: by basic block."""

    def __init__(self):
        self.blocks: defaultdict[int, list[PtxCounts]] = defaultdict(list)
        self._left: list[PtxCounts] = []  # that no segment has yet

    def of(self, several: list[Code]) -> dict[int, PtxCounts]:
        """A segment's loads, by their ids -> those of the PTX, each the first that is most alike.

        They are those of a basic block or a loop, once or repeated, or else the next of the line.
        """
        self._left = self._left or [one for own in self.blocks.values() for one in own]
        way = self._way(len(several))
        found, left = {}, []
        for code in several:
            left = left or list(way)
            found[id(code)] = left.pop(_most_alike(code, left))
        taken = {*map(id, found.values())}
        self._left = [one for one in self._left if id(one) not in taken]
        return found

    def _way(self, count: int) -> list[PtxCounts]:
        together: defaultdict[tuple[int, ...], list[PtxCounts]] = defaultdict(list)
        for own in self.blocks.values():
            together[own[0].place.loops] += own
        fits = []
        for way in (*self.blocks.values(), *together.values()):
            times, rest = divmod(count, len(way))
            repeated = way[0].place.loops and not rest and times & (times - 1) == 0
            if times == 1 and not rest or repeated:
                fits.append(way)
        return max(fits, key=lambda way: (len(way), way[0] in self._left), default=self._left)


def _most_alike(code: Code, loads: list[PtxCounts]) -> int:
    """The place of the load that is as wide as one of machine code, and has its offset."""
    bits, offset = bits_of_code(code), _offset_of_code(code)
    alike = [(bits_of(o.instruction) != bits, _offset_of(o) != offset) for o in loads]
    return min(range(len(loads)), key=alike.__getitem__)


def bits_of(instruction: Instruction) -> int:
    """Return how many bits a lane's load or store has."""
    *parts, kind = instruction.opcode.split(".")
    several = next((int(part[1:]) for part in parts if part in ("v2", "v4", "v8")), 1)
    bits = int(kind[1:]) if kind[1:].isdigit() else 32
    return several * bits


def bits_of_code(code: Code) -> int:
    return next((_WIDTHS[part] for part in code.parts if part in _WIDTHS), 32)


def _offset_of(one: PtxCounts) -> int:
    return next((o.offset for o in one.instruction.operands if isinstance(o, Address)), 0)


def _offset_of_code(code: Code) -> int:
    found = re.search(r"\+(-?0x[0-9a-f]+)\]", code.operands)
    return int(found[1], 16) if found else 0
