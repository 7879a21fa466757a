"""A kernel's parameters and block limits: sizes from its PTX, C types and names from its DWARF."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..ptx.c_types import C_TYPES
from ..ptx.dwarf import CType, Reader, attribute_of, bounded, readable, text_of, type_of
from ..ptx.syntax import Function

# Pointers that take elements of more than one dtype; the first is the one to suggest.
_SEVERAL_DTYPES = {
    "bool": ("bool", "uint8"),
    "char": ("int8", "uint8", "bool"),
    "unsigned char": ("uint8", "bool"),
    "float2": ("float32", "complex64"),
    "double2": ("float64", "complex128"),
    "__nv_bfloat16": ("bfloat16", "uint16"),
    "__nv_bfloat162": ("bfloat16", "uint16"),
    "__nv_fp8_e4m3": ("float8_e4m3fn", "uint8"),
    "__nv_fp8_e5m2": ("float8_e5m2", "uint8"),
}


@dataclass(frozen=True)
class Parameter:
    """One kernel parameter.

    `size` in bytes and `kind` ("f32", "u64", "b8", ...) are the PTX's. `name` and `text` are the
    source's ("q", "const float* q"), or the PTX's where there is no debug information; `ctype` is
    None there.
    """

    name: str
    kind: str
    size: int
    text: str
    ctype: CType | None = None

    @cached_property
    def is_struct(self) -> bool:
        """Whether it is passed as bytes: a struct, a vector, a half."""
        return self.kind == "b8"

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """Names of the element dtypes a pointer takes; () where any dtype will do."""
        target = self.ctype.target if self.ctype else None
        if target is None or not target.name:
            return ()
        if target.name in _SEVERAL_DTYPES:
            return _SEVERAL_DTYPES[target.name]
        dtype = C_TYPES[target.name][0] if target.name in C_TYPES else target.dtype
        return (np.dtype(dtype).name,) if dtype else ()


@dataclass(frozen=True)
class Entry:
    """One kernel of a module.

    name: as the PTX spells it; max_threads: of __launch_bounds__, in a block; required_block: the
    only block it takes; cluster: in blocks, of __cluster_dims__; line: where the source declares
    it, 0 where that is not known.
    """

    name: str
    parameters: tuple[Parameter, ...]
    max_threads: int | None = None
    required_block: tuple[int, int, int] | None = None
    cluster: tuple[int, int, int] = (1, 1, 1)
    line: int = 0


def read_entry(function: Function, reader: Reader | None, source_name: str) -> Entry:
    """The entry of a PTX function.

    reader: the debug information of the function's module, None without it; source_name: the
    kernel's own file, the only one in which `line` counts.
    """
    with readable():
        return _entry(function, reader, source_name)


def _entry(function: Function, reader: Reader | None, source_name: str) -> Entry:
    die = reader.subprograms.get(function.name) if reader else None
    limits = {name: (*sizes, 1, 1, 1)[:3] for name, sizes in function.limits.items()}
    return Entry(
        function.name,
        tuple(_parameters(function, die)),
        math.prod(limits["maxntid"]) if "maxntid" in limits else None,
        limits.get("reqntid"),
        limits.get("reqnctapercluster", (1, 1, 1)),
        _line(reader, die, source_name) if die is not None else 0,
    )


def _parameters(function: Function, die):
    children = bounded(die.iter_children()) if die is not None else ()
    formals = [child for child in children if child.tag == "DW_TAG_formal_parameter"]
    if len(formals) != len(function.parameters):
        for p in function.parameters:
            yield Parameter(p.name, p.type, p.size, p.name)
        return
    for position, (p, formal) in enumerate(zip(function.parameters, formals, strict=True), 1):
        name, ctype = text_of(formal, "DW_AT_name"), type_of(formal)
        text = f"{ctype.text} {name}".rstrip()
        yield Parameter(name or f"parameter {position}", p.type, p.size, text, ctype)


def _line(reader: Reader, die, source_name: str) -> int:
    file = reader.files.get(attribute_of(die, "DW_AT_decl_file"), "")
    own = file.rsplit("/", 1)[-1] == source_name.rsplit("/", 1)[-1]
    return (attribute_of(die, "DW_AT_decl_line") or 0) if own else 0
