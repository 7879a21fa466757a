"""nvdisasm's text of a kernel, read instruction by instruction."""

import re
from collections import Counter

from .code import Code, Segment
from .segments import segments_of

PTX_SECTION = ".nv_debug_ptx_txt"
_PLACE = re.compile(rf'//## File "{re.escape(PTX_SECTION)}", line (\d+)')
_LABEL = re.compile(r"^([.$\w]+):$")
_CODE = re.compile(
    r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?"
    r"([A-Z][\w.]*)\s*([^;]*);\s*/\* 0x([0-9a-f]+) \*/"
)
_MORE = re.compile(r"^\s*/\* 0x([0-9a-f]{16}) \*/")
_TARGET = re.compile(r"`\(([^)]+)\)")
# Machine instruction -> roots of PTX opcodes, to tell several of one line apart.
_WAYS = {
    **dict.fromkeys(("LDG", "LD", "LDS", "LDL"), ("ld",)),
    **dict.fromkeys(("STG", "ST", "STS", "STL"), ("st",)),
    **dict.fromkeys(("ATOM", "ATOMG", "ATOMS", "RED", "REDG"), ("atom", "red")),
    **dict.fromkeys(("HMMA", "IMMA", "DMMA", "QGMMA", "HGMMA", "IGMMA"), ("mma", "wgmma", "wmma")),
    "LDSM": ("ldmatrix",), "STSM": ("stmatrix",), "LDGSTS": ("cp",), "SHFL": ("shfl",),
    "BAR": ("bar", "barrier"), "MUFU": ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh"),
    **dict.fromkeys(("FFMA", "DFMA", "HFMA2"), ("fma",)),
}  # fmt: skip
Origins = dict[int, list[tuple[int, int, str]]]


def parse(
    text: str, kernel: str, origins: Origins, functions: frozenset[str] = frozenset()
) -> list[Segment]:
    """Return the segments of a kernel in nvdisasm's text, with those of `functions` in the place of
    each call. origins: line of its PTX -> instructions of the PTX there, of which a machine
    instruction is one of its own kind, by turns.
    """
    begin = text.find(f"\n.text.{kernel}:\n")
    if begin < 0:
        return []
    end = text.find("//-----", begin)
    labels: dict[str, int] = {}
    code: list[Code] = []
    here: list[tuple[int, int, str]] = []
    turns: Counter[tuple[int, str]] = Counter()
    for row in text[begin : end if end > 0 else None].splitlines():
        if place := _PLACE.search(row):
            here = origins.get(int(place[1]), [])
        elif found := _CODE.match(row):
            code.append(_instruction(found, *_one_of(here, found[3].split(".")[0], turns)))
        elif high := _MORE.match(row):
            _schedule(code[-1], int(high[1], 16))
        elif label := _LABEL.match(row):
            labels[label[1]] = len(code)
    return segments_of(code, labels, functions)


def _one_of(here: list[tuple[int, int, str]], name: str, turns: Counter) -> tuple[int, int]:
    """(Number, line) of the PTX instruction that a machine instruction is made of."""
    if len(here) <= 1:
        return here[0][:2] if here else (-1, 0)
    way = _WAYS.get(name)
    fits = [one for one in here if way and one[2].split(".")[0] in way]
    if not fits:
        return -1, here[0][1]
    turns[fits[0][0], name] += 1
    return fits[(turns[fits[0][0], name] - 1) % len(fits)][:2]


def _instruction(found: re.Match, origin: int, line: int) -> Code:
    name, *parts = found[3].split(".")
    target = _TARGET.search(found[4])
    guard, aim = found[2] is not None, target[1] if target else ""
    return Code(name, tuple(parts), found[4], guard, line, 1, 7, 7, 0, aim, origin=origin)


def _schedule(code: Code, high: int) -> None:
    """Read the upper half of an encoding: what ptxas says of the instruction's time."""
    control = high >> 41
    code.stall = max(control & 15, 1)
    code.sets, code.frees, code.waits = control >> 5 & 7, control >> 8 & 7, control >> 11 & 63
