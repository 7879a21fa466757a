"""Arguments of a Triton kernel: what Triton's launcher asks of them, and what a launch takes."""

import numpy as np

from ..address_space import SPACE
from ..errors import ArgumentError, InputTypeError
from ..module.interop import is_on_gpu, native
from ..ptx.c_types import dtype_of

_WIDTHS = (8, 16, 32, 64)
_DTYPES = {
    "bool": "u1",
    **{f"{sign}int{width}": f"{sign or 'i'}{width}" for width in _WIDTHS for sign in ("", "u")},
    **{f"float{width}": f"fp{width}" for width in _WIDTHS[1:]},
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8e4nv",
    "float8_e5m2": "fp8e5",
}
# Triton's type of a scalar -> the NumPy dtype of its bytes.
_SCALARS = {"i1": "bool", **{text: name for name, text in _DTYPES.items()}}


class Pointer:
    """An array as Triton's launcher sees one: its dtype and its address.

    Triton specialises a kernel for addresses that 16 divides.
    """

    def __init__(self, array: np.ndarray, name: str):
        self.array, self.dtype = array, array.dtype.name
        self._name = name

    def data_ptr(self) -> int:
        return SPACE.give(self.array, self._name)[0]


def as_passed(kernel: str, name: str, value):
    """Return an argument as Triton's launcher takes it: arrays as a Pointer, numbers as Python's.

    value: a NumPy array, or an array on the CPU of another library, which shares its memory.
    Raises ArgumentError that names the parameter.
    """
    if isinstance(value, tuple):
        parts = [as_passed(kernel, f"{name}[{i}]", part) for i, part in enumerate(value)]
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if isinstance(value, np.generic):
        return value.item() if value.dtype.kind in "biuf" else float(value)
    if type(value).__name__ == "TensorDescriptor":
        raise ArgumentError(
            f"{kernel}, argument {name}: a tensor descriptor made by the caller is not supported; "
            "make it in the kernel with tl.make_tensor_descriptor"
        )
    array = _as_array(kernel, name, value)
    if array is None:
        return value
    if array.dtype.name not in _DTYPES or not array.dtype.isnative:
        raise ArgumentError(
            f"{kernel}, argument {name}: Triton has no pointer to {array.dtype}; it has "
            f"{', '.join(_DTYPES)}"
        )
    if not array.flags.writeable:
        raise ArgumentError(
            f"{kernel}, argument {name}: the array is read-only and the kernel may write to it. "
            "Pass a copy (array.copy())"
        )
    return Pointer(_memory(kernel, name, array), name)


def _as_array(kernel: str, name: str, value) -> np.ndarray | None:
    """The NumPy array of a value, which shares its memory; None for what is no array."""
    if isinstance(value, np.ndarray):
        return value
    if not hasattr(value, "__dlpack__"):
        if isinstance(value, list):
            raise ArgumentError(
                f"{kernel}, argument {name}: got a list; pass an array: np.array(values, dtype=...)"
            )
        return None
    if is_on_gpu(value):
        raise ArgumentError(
            f"{kernel}, argument {name}: the array is on 'cuda'; the simulator works in the "
            "memory of the CPU: pass array.cpu()"
        )
    try:
        return native(name, value)
    except InputTypeError as error:
        raise ArgumentError(f"{kernel}, argument {error}") from None


def _memory(kernel: str, name: str, array: np.ndarray) -> np.ndarray:
    """The array, or the stretch of memory that a view with strides of its own covers."""
    if array.flags.c_contiguous:
        return array
    if min(array.strides) < 0 or any(step % array.itemsize for step in array.strides):
        raise ArgumentError(
            f"{kernel}, argument {name}: strides of {array.strides} bytes are negative or no "
            "multiple of an element; pass np.ascontiguousarray(...)"
        )
    reach = sum((n - 1) * step for n, step in zip(array.shape, array.strides, strict=True))
    count = reach // array.itemsize + 1
    return np.lib.stride_tricks.as_strided(array, (count,), (array.itemsize,))


def image(kernel: str, name: str, kind: str, value, size: int, is_float: bool):
    """Return an argument as a launch of PTX takes it.

    kind: Triton's type of the parameter ("i32", "*fp16"); size, is_float: of the PTX's parameter.
    """
    if value is None or isinstance(value, Pointer):
        return value.array if value is not None else None
    try:
        number = np.array(value, dtype_of(_SCALARS[kind]))
    except (OverflowError, TypeError, ValueError, KeyError):
        raise ArgumentError(f"{kernel}, argument {name}: {value!r} is no {kind}") from None
    if is_float:
        return number[()]
    bits = number.reshape(1).view(f"u{number.itemsize}").astype(f"u{size}")
    return bits[0]
