"""Arguments of a Numba kernel as its PTX takes them: an array is several parameters."""

import numpy as np

from ..errors import ArgumentError

_ARRAY = ("meminfo", "parent", "size", "itemsize")


def types_of(dispatcher, arguments: tuple, where: str) -> tuple:
    """Return Numba's types of the arguments. Raises ArgumentError that names the parameter."""
    names = dispatcher.py_func.__code__.co_varnames[: dispatcher.py_func.__code__.co_argcount]
    if len(arguments) != len(names):
        listed = ", ".join(names) or "none"
        raise ArgumentError(
            f"{where} takes {len(names)} argument{'s' * (len(names) != 1)}, got {len(arguments)}. "
            f"Its parameters: {listed}"
        )
    found = []
    for name, value in zip(names, arguments, strict=True):
        try:
            kind = dispatcher.typeof_pyval(value)
        except ValueError as error:
            raise _refusal(where, name, f"got {_shown(value)}: {error}") from None
        _flatten(where, name, kind, value)  # refused before anything is compiled
        found.append(kind)
    return tuple(found)


def flattened(dispatcher, kinds: tuple, arguments: tuple, where: str) -> list[tuple[str, object]]:
    """Return (name, value) of each parameter of the PTX, numbers as NumPy scalars."""
    names = dispatcher.py_func.__code__.co_varnames
    each = zip(names, kinds, arguments, strict=False)
    return [pair for name, kind, value in each for pair in _flatten(where, name, kind, value)]


def _flatten(where: str, name: str, kind, value) -> list[tuple[str, object]]:
    from numba.cuda import types
    from numba.cuda.np import numpy_support

    value = getattr(value, "value", value)  # of cuda.In(x), or of an enumeration's member
    if isinstance(kind, types.Array):
        return _array(where, name, value)
    if isinstance(kind, types.BaseTuple):
        parts = enumerate(zip(kind, value, strict=True))
        return [pair for i, one in parts for pair in _flatten(where, f"{name}[{i}]", *one)]
    if isinstance(kind, types.EnumMember):
        return _flatten(where, name, kind.dtype, value)
    if isinstance(kind, types.Complex):
        number = numpy_support.as_dtype(kind).type(value)
        return [(f"{name}.real", number.real), (f"{name}.imag", number.imag)]
    if isinstance(kind, types.Number | types.Boolean | types.NPDatetime | types.NPTimedelta):
        try:
            return [(name, numpy_support.as_dtype(kind).type(value))]
        except (OverflowError, TypeError, ValueError) as error:
            raise _refusal(where, name, f"{value!r} is no {kind}: {error}") from None
    if isinstance(kind, types.Record):
        advice = "a record alone; pass an array with one element, such as x[:1]"
        raise _refusal(where, name, f"got {advice}")
    raise _refusal(
        where, name, f"got {_shown(value)}, which no kernel takes: arrays, numbers and tuples do"
    )


def _array(where: str, name: str, value) -> list[tuple[str, object]]:
    if not isinstance(value, np.ndarray):
        advice = "the simulator works on NumPy arrays"
        raise _refusal(where, name, f"got {_shown(value)}; {advice}")
    facts = (0, 0, value.size, value.itemsize)
    found = [(f"{name}.{fact}", np.int64(n)) for fact, n in zip(_ARRAY, facts, strict=True)]
    found.append((name, value))
    for fact, numbers in (("shape", value.shape), ("strides", value.strides)):
        found += [(f"{name}.{fact}[{i}]", np.int64(n)) for i, n in enumerate(numbers)]
    return found


def _shown(value) -> str:
    return f"{type(value).__name__} {str(value)[:40]!r}"


def _refusal(where: str, name: str, reason: str) -> ArgumentError:
    return ArgumentError(f"{where}, argument {name}: {' '.join(reason.split())}")
