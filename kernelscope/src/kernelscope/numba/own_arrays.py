"""Names, shapes and dtypes of a kernel's own arrays, from its Python source.

Numba numbers them: `tile = cuda.shared.array((16, 16), float32)` is `_cudapy_smem_1` in the PTX.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator

import numpy as np

from ..ptx.parser import parse
from ..ptx.shared_shapes import SharedArray

_NUMBERED = re.compile(r"_cudapy_smem_(\d+)")


def with_names(ptx: str, functions: Iterable, taken: str) -> tuple[str, dict[str, SharedArray]]:
    """Return the PTX with the shared arrays under the names of their variables, and the arrays.

    functions: those compiled into the PTX, in the order in which Numba has compiled them; taken: a
    name that no array gets.
    """
    declared = [array for function in functions for array in declared_arrays(function, "shared")]
    matched: list[tuple[str, SharedArray]] = []
    for place, size in _numbered(ptx):
        at = next((i for i, one in enumerate(declared) if one.size == size), None)
        if at is not None:
            matched.append((place, declared[at]))
            declared = declared[at + 1 :]
    found: dict[str, SharedArray] = {}
    names: dict[str, str] = {}
    for place, array in reversed(matched):  # the kernel comes last: its arrays keep their names
        name, count = array.name, 2
        while name in found or name == taken:
            name, count = f"{array.name}_{count}", count + 1
        names[place] = name
        found[name] = SharedArray(name, array.dtype, array.shape)
    return _NUMBERED.sub(lambda m: names.get(m[0], m[0]), ptx), found


def _numbered(ptx: str) -> list[tuple[str, int]]:
    """(PTX name, bytes) of the shared arrays in Numba's order."""
    variables = parse(ptx, bodies=False).variables.values() if "_cudapy_smem_" in ptx else ()
    shared = [(one.name, one.size) for one in variables if _NUMBERED.fullmatch(one.name)]
    return sorted(shared, key=lambda one: int(_NUMBERED.fullmatch(one[0])[1]))


def declared_arrays(function, space: str) -> Iterator[SharedArray]:
    """Yield the arrays of a function's `NAME = cuda.SPACE.array(SHAPE, DTYPE)`, in its order."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return
    scope = inspect.getclosurevars(function)
    known = {**function.__globals__, **scope.nonlocals}
    assigned = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    for node in sorted(assigned, key=lambda one: one.lineno):
        if isinstance(node.targets[0], ast.Name):
            call = node.value
            if isinstance(call, ast.Call) and ast.unparse(call.func).endswith(f"{space}.array"):
                given = dict(zip(("shape", "dtype"), call.args, strict=False))
                given |= {one.arg: one.value for one in call.keywords}
                if (array := _array(node.targets[0].id, given, known)) is not None:
                    yield array


def _array(name: str, given: dict, known: dict) -> SharedArray | None:
    from numba.cuda.np import numpy_support

    try:
        values = {key: _value(given[key], known) for key in ("shape", "dtype")}
        kind = values["dtype"]
        dtype = numpy_support.as_dtype(kind) if hasattr(kind, "bitwidth") else kind
        shape = values["shape"]
        shape = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
        return SharedArray(name, np.dtype(dtype).str[1:], tuple(n or -1 for n in shape))
    except Exception:  # an expression of names that only the compiler knows
        return None


def _value(node: ast.expr, known: dict):
    """The value of an expression of constants, names, attributes and arithmetic; no calls."""
    if any(isinstance(one, ast.Call | ast.NamedExpr | ast.Await) for one in ast.walk(node)):
        raise SyntaxError
    return eval(compile(ast.Expression(node), "<shape>", "eval"), {"__builtins__": {}}, known)
