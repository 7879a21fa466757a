"""Kinds of instructions, of PTX and of machine code, by which the two are joined."""

from ...ptx.syntax import Instruction
from ..machine_code import Code

KINDS = {
    **dict.fromkeys(("LDG", "LD"), "global load"),
    "LDGSTS": "async copy",
    **dict.fromkeys(("STG", "ST"), "global store"),
    **dict.fromkeys(("LDS", "LDSM"), "shared load"),
    **dict.fromkeys(("STS", "STSM"), "shared store"),
    **dict.fromkeys(("ATOM", "ATOMG", "RED", "REDG"), "global atomic"),
    **dict.fromkeys(("ATOMS",), "shared atomic"),
    "LDL": "local load",
    "STL": "local store",
    **dict.fromkeys(("FFMA", "FMUL", "FADD"), "float32"),
    **dict.fromkeys(("DFMA", "DMUL", "DADD"), "float64"),
    **dict.fromkeys(("HMMA", "IMMA", "DMMA", "HGMMA", "QGMMA", "IGMMA"), "tensor"),
    "MUFU": "mufu",
    "BAR": "barrier",
    "SHFL": "shuffle",
    "POPC": "popc",
    "FCHK": "division",
}
_NO_WORK = frozenset(  # neither in PTX nor in machine code: the two need not have as many
    "mov cvta ld st pragma bra brx ret exit bar barrier NOP MOV BRA BRX EXIT BAR BSSY BSYNC".split()
)
_FUNCTIONS = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "tanh")
_NO_PRODUCT = ("MOV", "SHL", "IADD", "X")  # parts of an IMAD that moves, shifts or adds


def has_slow_path(opcode: str) -> bool:
    """Is it an operation on floats, rounded to nearest, for which ptxas may call a function?"""
    root, *parts = opcode.split(".")
    return root in ("div", "rcp", "sqrt") and "rn" in parts and parts[-1] == "f32"


def is_long(instruction: Instruction) -> bool:
    """Are several instructions of machine code made of it, arithmetic among them?"""
    root, *parts = instruction.opcode.split(".")
    if root in ("div", "rem", "sin", "cos"):
        return True
    return root in _FUNCTIONS and not {"approx", "ftz"} <= {*parts}


def divides_integers(instruction: Instruction) -> bool:
    root, *parts = instruction.opcode.split(".")
    return root in ("div", "rem") and parts[-1][0] in "us"


def is_product(instruction: Instruction) -> bool:
    root, *parts = instruction.opcode.split(".")
    return root in ("mul", "mad") and parts[-1][0] in "us"


def code_is_product(code: Code) -> bool:
    return code.name == "IMAD" and not any(part in _NO_PRODUCT for part in code.parts)


def is_work(instruction: Instruction) -> bool:
    return instruction.opcode.split(".")[0] not in _NO_WORK


def code_is_work(code: Code) -> bool:
    return not code.called and code.name not in _NO_WORK and code.parts[:1] != ("MOV",)
