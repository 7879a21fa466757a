"""Machine code guessed from PTX, where ptxas's own cannot be had: without CUDA C or nvdisasm.

One PTX instruction stands for those that ptxas usually makes of it; a load's first reader waits for
it. Loops are as the PTX has them, which ptxas may unroll further.
"""

from collections import Counter

from ..events import Launch
from ..ptx.registers import followers, reads_and_writes
from ..ptx.syntax import Function, Instruction
from .machine_code import NO_SCOREBOARD, Code, MachineCode, Segment, numbers_of

_ROOTS = {
    "setp": "ISETP", "selp": "SEL", "slct": "SEL", "and": "LOP3", "or": "LOP3", "xor": "LOP3",
    "not": "LOP3", "lop3": "LOP3", "shl": "SHF", "shr": "SHF", "shf": "SHF", "bfe": "SHF",
    "bfi": "LOP3", "prmt": "PRMT", "min": "FMNMX", "max": "FMNMX", "neg": "IADD3", "abs": "IABS",
    "popc": "POPC", "clz": "FLO", "bar": "BAR", "barrier": "BAR", "shfl": "SHFL", "bra": "BRA",
    "brx": "BRX", "ret": "EXIT", "exit": "EXIT", "mma": "HMMA", "wmma": "HMMA", "wgmma": "HGMMA",
    "ldmatrix": "LDSM", "stmatrix": "STSM", "vote": "VOTE", "ex2": "MUFU", "lg2": "MUFU",
    "sin": "MUFU", "cos": "MUFU", "tanh": "MUFU", "rcp": "MUFU", "rsqrt": "MUFU", "sqrt": "MUFU",
}  # fmt: skip
_LONG = {"div": ("MUFU", *["FFMA"] * 7), "rem": ("MUFU", *["IMAD"] * 12)}
_LOADS = {"param": "LDC", "const": "LDC", "shared": "LDS", "local": "LDL"}
_FREE = ("mov", "cvta", "pragma", "membar", "fence")
_BYTES = {"64": 2, "32": 1, "16": 1}
_VARIABLE = ("LDG", "LDS", "LDC", "LDSM", "MUFU", "SHFL", "ATOMG", "ATOMS", "I2F", "F2I", "S2R")
_BOARDS, _STALL = 6, 2
_SPARE = 8  # registers that addresses and constants take beside the live ones


def estimated(launch: Launch) -> MachineCode:
    """Return segments and registers that resemble what ptxas makes of a launched kernel."""
    function = launch.source.module.functions[launch.kernel]
    starts = {0, *function.labels.values()}
    for one in function.body:
        if _names(one)[-1:] in (("BRA",), ("BRX",), ("EXIT",), ("BAR",)):
            starts.add(one.index + 1)
    ordered = sorted(start for start in starts if start < len(function.body))
    number = {start: at for at, start in enumerate(ordered)}
    segments, waits, numbers = [], _Boards(), numbers_of(launch.source)
    for start, end in zip(ordered, [*ordered[1:], len(function.body)], strict=True):
        part = function.body[start:end]
        code = [
            c
            for one in part
            for c in waits.code(one, launch.source.own_line(one), numbers[id(one)])
        ]
        last = part[-1]
        if not code:  # a block of moves, or of a fence
            line = launch.source.own_line(last)
            code.append(
                Code("MOV", (), "", False, line, _STALL, NO_SCOREBOARD, NO_SCOREBOARD, 0, "")
            )
        after = followers(last, end, function)
        if last.opcode in ("ret", "exit"):
            after = [end] if last.guard else []
        segments.append(Segment(code, [number[at] for at in dict.fromkeys(after) if at in number]))
    return MachineCode(live_registers(function), tuple(segments))


def _names(one: Instruction) -> tuple[str, ...]:
    """The machine instructions of a PTX instruction."""
    parts = one.opcode.split(".")
    root, kind = parts[0], parts[-1]
    if root in _FREE:
        return ()
    if root in ("ld", "ldu"):
        return (next((_LOADS[part] for part in parts[1:] if part in _LOADS), "LDG"),)
    if root == "st":
        return ({"shared": "STS", "local": "STL"}.get(parts[1].partition(":")[0], "STG"),)
    if root in ("atom", "red"):
        return ("ATOMS",) if "shared" in one.opcode else ("ATOMG",)
    if root == "cp" and parts[1:2] == ["async"]:
        return {"commit_group": ("LDGDEPBAR",), "wait_group": ("DEPBAR",)}.get(kind, ("LDGSTS",))
    if root in _LONG:
        return _LONG[root]
    if root in ("fma", "mul", "add", "sub", "mad") and kind in ("f32", "f64", "f16x2", "bf16x2"):
        return ({"f32": "FFMA", "f64": "DFMA"}.get(kind, "HFMA2"),)
    if root in ("mul", "mad", "mul24", "mad24"):
        return ("IMAD",)
    if root in ("add", "sub"):
        return ("IADD3",) * _BYTES.get(kind[1:], 1)
    if root == "cvt":
        floats = [part.startswith(("f", "bf")) for part in parts[-2:]]
        return ("I2F",) if floats == [True, False] else ("F2I",) if floats[1] else ("PRMT",)
    return (_ROOTS.get(root, "NOP"),)


class _Boards:
    """Scoreboards by turns: who reads what a slow instruction wrote waits for it."""

    def __init__(self):
        self.next, self.pending = 0, {}  # register -> scoreboard

    def code(self, one: Instruction, line: int, number: int) -> list[Code]:
        reads, writes = reads_and_writes(one)
        waits = 0
        for name in reads | writes:
            if name in self.pending:
                waits |= 1 << self.pending.pop(name)
        names, found = _names(one), []
        for name in names:
            sets = NO_SCOREBOARD
            if name in _VARIABLE and writes:
                sets, self.next = self.next, (self.next + 1) % _BOARDS
                self.pending.update(dict.fromkeys(writes, sets))
            parts, guarded = tuple(one.opcode.split(".")[1:]), one.guard is not None
            operands = str(one.operands[0].value) if name == "DEPBAR" and one.operands else ""
            found.append(
                Code(
                    name,
                    parts,
                    operands,
                    guarded,
                    line,
                    _STALL,
                    sets,
                    NO_SCOREBOARD,
                    waits,
                    "",
                    origin=number,
                )
            )
            waits = 0
        return found


def live_registers(function: Function) -> int:
    """Most 32-bit registers that are live at once, in the order of the text, and some to spare."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for one in function.body:
        reads, writes = reads_and_writes(one)
        for name in reads | writes:
            first.setdefault(name, one.index)
            last[name] = one.index
    change: Counter[int] = Counter()
    for name, begin in first.items():
        kind = function.registers.get(name, "pred")
        width = 0 if kind == "pred" else _BYTES.get(kind.lstrip("bsuf")[:2], 1)
        change[begin] += width
        change[last[name] + 1] -= width
    live = most = 0
    for at in sorted(change):
        live += change[at]
        most = max(most, live)
    return min(255, -(-(most + _SPARE) // 8) * 8)
