"""The operations of cp.reduce.async.bulk: those of `red`, on each element of a copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..errors import UnsupportedInstruction
from . import atomics
from .table import DTYPE

OPERATIONS = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_BITWISE = ("and", "or", "xor")
_INTEGERS = ("s32", "u32", "s64", "u64")
# Operation -> the types of PTX that it takes in global memory, and in shared memory of a cluster.
TYPES = {
    "add": ("u32", "s32", "u64", "f16", "bf16", "f32", "f64"),
    **dict.fromkeys(("min", "max"), (*_INTEGERS, "f16", "bf16")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(_BITWISE, ("b32", "b64")),
}
CLUSTER_TYPES = {
    "add": ("u32", "s32", "u64"),
    **dict.fromkeys(("min", "max"), ("u32", "s32")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(_BITWISE, ("b32",)),
}
# Element type of a tensor map -> the type of PTX in which its reductions compute.
_ELEMENTS = {
    "uint32": "u32",
    "int32": "s32",
    "uint64": "u64",
    "int64": "s64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float32_ftz": "f32",
    "float64": "f64",
}


@dataclass(frozen=True)
class Reduction:
    """An operation that a copy does on what is in memory already, on values of a dtype."""

    operation: atomics.AtomicOperation
    dtype: np.dtype


def reduction(name: str, kind: str, known: dict = TYPES) -> Reduction:
    """An operation on values of a PTX type; UnsupportedInstruction where the ISA has none."""
    if kind not in known[name]:
        raise UnsupportedInstruction(f".{name} takes .{', .'.join(known[name])}, not .{kind}")
    return Reduction(atomics.operation(f"red.global.{name}.{kind}", kind), DTYPE[kind])


def reduction_of_elements(name: str, element: str) -> Reduction:
    """An operation on the elements of a tensor map, by their type there."""
    kind = _ELEMENTS.get(element, element)
    if kind in _INTEGERS and name in _BITWISE:
        kind = f"b{kind[1:]}"
    elif (name, kind) == ("add", "s64"):
        kind = "u64"
    return reduction(name, kind)
