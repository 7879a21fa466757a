"""Shapes of __shared__ arrays, read from their declarations in the source.

DWARF does not list the shared arrays of a function. Their extents are constant expressions of
`#define` and `constexpr` names and of the compiler's -D options, which are evaluated here.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from operator import add, floordiv, lshift, mul, sub
from types import MappingProxyType

import numpy as np

from .c_types import C_TYPES, dtype_of

_DECLARATION = re.compile(
    r"__shared__\s+(?:(?:__align__|alignas)\s*\([^)]*\)\s*|(?:const|volatile|static|struct)\s+)*"
    r"(?P<type>[A-Za-z_][\w:]*(?:\s+(?:int|char|short|long))*)\s+(?P<names>[^;=]+);"
)
_CONSTANT = re.compile(
    r"^\s*#\s*define\s+(?P<macro>\w+)\s+(?P<value>[^\n]+)$"
    r"|\b(?:constexpr|const)\s+(?:static\s+)?(?:unsigned\s+)?(?:int|size_t|unsigned|long)\s+"
    r"(?P<name>\w+)\s*=\s*(?P<expression>[^;]+);",
    re.MULTILINE,
)

_ALIAS = re.compile(
    r"\btypedef\s+(?P<type>[\w\s]+?)\s+(?P<name>\w+)\s*;|"
    r"\busing\s+(?P<new>\w+)\s*=\s*(?P<old>[\w\s]+?)\s*;"
)
_MOST_ELEMENTS = 1 << 24  # of an array; no block has as much shared memory


@dataclass(frozen=True)
class SharedArray:
    """A __shared__ array's element type and extents (-1: the launch decides); other arrays' too.

    members: the last extent are the members of a vector type such as float4.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    members: bool = False

    @property
    def size(self) -> int:
        """Its bytes; 0 where the launch decides."""
        return max(np.dtype(self.dtype).itemsize * prod(self.shape), 0)

    def element(self, offset: int) -> str:
        """Return the element at a byte of it, as the source writes it; a scalar as name[0]."""
        flat, places = offset // dtype_of(self.dtype).itemsize, []
        for extent in self.shape[:0:-1]:
            flat, place = divmod(flat, extent)
            places.append(place)
        return self.name + "".join(f"[{one}]" for one in (flat, *places[::-1]))


def declared_arrays(
    source: str, options: tuple[str, ...], sizes: Mapping[str, int] = MappingProxyType({})
) -> Iterator[SharedArray]:
    """Yield the arrays of the __shared__ declarations whose extents can all be evaluated.

    sizes: name -> bytes, from which one extent may follow, such as that of a template's parameter.
    """
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", source, flags=re.DOTALL)
    constants, types = _constants(text, options), _types(text)
    for match in _DECLARATION.finditer(text):
        dtype, inner = types.get(match["type"], ("", ()))
        for part in match["names"].split(","):
            name, *extents = re.findall(r"\w+|\[[^\]]*\]", part)
            if name.startswith("[") or not dtype:
                continue
            shape = [evaluate(extent.strip("[]"), constants) for extent in extents]
            if len(shape) > 1 and shape.count(None) == 1:
                rest = np.dtype(dtype).itemsize * prod(n for n in (*shape, *inner) if n is not None)
                count, left = divmod(sizes.get(name, 0), max(rest, 1))
                shape[shape.index(None)] = count if count and not left else None
            if None not in shape and min(shape, default=0) >= 0 and prod(shape) <= _MOST_ELEMENTS:
                yield SharedArray(name, dtype, (*shape, *inner), bool(inner))


def _types(text: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """C_TYPES and the names that the source gives to such types."""
    found = dict(C_TYPES)
    for match in _ALIAS.finditer(text):
        known = found.get(" ".join((match["type"] or match["old"]).split()))
        if known is not None:
            found[match["name"] or match["new"]] = known
    return found


def _constants(text: str, options) -> dict[str, str]:
    found = {}
    for match in _CONSTANT.finditer(text):
        found[match["macro"] or match["name"]] = match["value"] or match["expression"]
    for option in options:
        name, _, value = option.removeprefix("-D").strip().partition("=")
        if option.startswith("-D"):
            found[name] = value or "1"
    return found


_MOST_BITS = 64  # of a shift
_OPERATORS = {ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Div: floordiv, ast.LShift: lshift}


def evaluate(text: str, constants: dict[str, str], depth: int = 0) -> int | None:
    """A constant expression of integers, names, + - * / << and parentheses; None for more."""
    try:
        return _value(ast.parse(text.strip(), mode="eval").body, constants, depth)
    except (SyntaxError, KeyError, TypeError, ValueError, ArithmeticError):
        return None
    except (RecursionError, MemoryError):  # of the parser: nested too deeply
        return None


def _value(node, constants: dict[str, str], depth: int):
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name) and depth < 20:
        return evaluate(constants[node.id], constants, depth + 1)
    if isinstance(node, ast.BinOp):
        left, right = (_value(side, constants, depth) for side in (node.left, node.right))
        if isinstance(node.op, ast.LShift) and right > _MOST_BITS:
            raise KeyError(ast.dump(node))
        return _OPERATORS[type(node.op)](left, right)
    raise KeyError(ast.dump(node))
