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
_FUNCTIONS = ("ex2", "lg2", "rcp", "rsqrt", "sqrt", "tanh")
_WIDTHS = {"U8": 8, "S8": 8, "U16": 16, "S16": 16, "64": 64, "128": 128}


def has_slow_path(opcode: str) -> bool:
    """Is it an operation on floats, rounded to nearest, for which ptxas may call a function?"""
    root, *parts = opcode.split(".")
    return root in ("div", "rcp", "sqrt") and "rn" in parts and parts[-1] in ("f32", "f64")


def is_long(instruction: Instruction) -> bool:
    """Are several instructions of machine code made of it, arithmetic among them?"""
    root, *parts = instruction.opcode.split(".")
    if root in ("div", "rem", "sin", "cos"):
        return True
    return root in _FUNCTIONS and not {"approx", "ftz"} <= {*parts}


def has_two_halves(instruction: Instruction) -> bool:
    """Does machine code have it once for each half of 64 bits?"""
    root, _, kind = instruction.opcode.partition(".")
    return root in ("and", "or", "xor", "not", "mov", "selp") and kind.endswith("64")


def is_swap(instruction: Instruction) -> bool:
    """Is it, on shared memory, a loop of ATOMS.CAS, in which lanes on one address take turns?"""
    *parts, kind = instruction.opcode.split(".")
    of_64 = kind.endswith("64") and not {"cas", "exch"} & {*parts}
    return of_64 or kind.startswith(("f", "bf"))


def bits_of(instruction: Instruction) -> int:
    """Return how many bits a lane's load or store has."""
    *parts, kind = instruction.opcode.split(".")
    several = next((int(part[1:]) for part in parts if part in ("v2", "v4", "v8")), 1)
    bits = int(kind[1:]) if kind[1:].isdigit() else 32
    return several * bits


def bits_of_code(code: Code) -> int:
    return next((_WIDTHS[part] for part in code.parts if part in _WIDTHS), 32)
