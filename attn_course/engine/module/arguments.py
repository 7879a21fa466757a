"""The check and conversion of a kernel call's arguments, the same for both backends.

CuPy passes the bytes of a value unchecked: a float64 array read as float, or a Python float
(8 bytes) read as a 4-byte parameter, gives wrong numbers without a message. Here both are refused.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from attn_course.engine.backend import is_device_array

from ..errors import ArgumentError
from .signature import Entry, Parameter

_FLOAT_DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}


def bind(kernel: str, entry: Entry, arguments, backend: str) -> list:
    """Return one value per parameter, ready to launch.

    An array stays the array; None is a null pointer; a number becomes a NumPy scalar, and a struct
    a zero-dimensional array, of exactly the parameter's size.
    Raises ArgumentError naming the kernel, the parameter and the remedy.
    """
    if not isinstance(arguments, (tuple, list)):
        raise ArgumentError(
            f"{kernel}: the arguments must come as a tuple; for a single one write (x,)"
        )
    expected = entry.parameters
    if len(arguments) != len(expected):
        listed = ", ".join(parameter.text for parameter in expected) or "none"
        raise ArgumentError(
            f"{kernel} takes {len(expected)} argument{'s' * (len(expected) != 1)}, "
            f"got {len(arguments)}. Its parameters: {listed}"
        )
    return [
        _bind_one(kernel, position, parameter, value, backend)
        for position, (parameter, value) in enumerate(
            zip(expected, arguments, strict=True), start=1
        )
    ]


class _Refusal:
    """Raises ArgumentError with the kernel and the parameter in front of the message."""

    def __init__(self, kernel: str, position: int, parameter: Parameter):
        self.where = f"{kernel}, argument {position} ({parameter.text})"

    def __call__(self, message: str):
        raise ArgumentError(f"{self.where}: {message}")


def _bind_one(kernel, position, parameter, value, backend):
    refuse = _Refusal(kernel, position, parameter)
    is_array = (
        isinstance(value, np.ndarray) or _is_array_of_cupy(type(value)) or (is_device_array(value))
    )
    known_pointer = parameter.ctype is not None and parameter.ctype.kind == "pointer"
    known_value = parameter.ctype is not None and not known_pointer
    if parameter.kind not in ("u64", "b64", "s64"):
        known_pointer, known_value = False, True
    if known_pointer or (not known_value and (is_array or value is None)):
        return _bind_pointer(refuse, parameter, value, is_array, backend)
    if parameter.is_struct:
        return _bind_struct(refuse, parameter, value)
    if is_array:
        refuse(
            f"got an array of shape {value.shape}; this parameter is a single value. "
            "Pass array.item() or the number itself"
        )
    return _bind_scalar(refuse, parameter, value)


def _bind_pointer(refuse, parameter: Parameter, value, is_array: bool, backend: str):
    if value is None:
        return None
    if not is_array:
        return _bind_address(refuse, value, backend)
    _check_place(refuse, value, backend)
    _check_dtype(refuse, parameter, value)
    if not value.flags.c_contiguous:
        library = "cupy" if backend == "gpu" else "np"
        refuse(
            f"the array (shape {value.shape}, strides {value.strides}) is not contiguous, and a "
            f"kernel sees memory, not strides. Pass {library}.ascontiguousarray(...)"
        )
    reads_only = parameter.ctype is not None and parameter.ctype.target.const
    if isinstance(value, np.ndarray) and not value.flags.writeable and not reads_only:
        refuse(
            "the array is read-only and the kernel may write to it. Pass a copy (array.copy()), "
            "or declare the parameter as a pointer to const"
        )
    return value


def _check_place(refuse, value, backend: str) -> None:
    on_host = isinstance(value, np.ndarray)
    if backend == "gpu" and on_host:
        refuse("got a NumPy array, which is in host memory; the GPU needs cupy.asarray(...)")
    if backend == "gpu" and not _is_cupys(type(value)):
        refuse(f"got a {type(value).__name__}; pass it as a CuPy array: cupy.asarray(...)")
    if backend == "simulator" and not on_host:
        refuse(
            "got an array in GPU memory; the simulator works on NumPy arrays: "
            "pass cupy.asnumpy(...)"
        )


@lru_cache(maxsize=64)
def _is_cupys(kind: type) -> bool:
    """Return whether the type or a base of it is CuPy's, without importing CuPy."""
    packages = {base.__module__.split(".")[0] for base in kind.__mro__}
    return bool(packages & {"cupy", "cupy_backends"})


@lru_cache(maxsize=64)
def _is_array_of_cupy(kind: type) -> bool:
    """Told by the type: CuPy builds the interface, in microseconds, whenever it is read."""
    return _is_cupys(kind) and hasattr(kind, "__cuda_array_interface__")


def _check_dtype(refuse, parameter: Parameter, value) -> None:
    accepted = parameter.dtypes
    dtype = np.dtype(value.dtype)
    if not accepted or _is_one_of(dtype, accepted):
        return
    numpy_name = next((n for n in accepted if n != "bfloat16"), accepted[0])
    remedy = f"Pass .astype(np.{numpy_name})"
    if dtype.kind in "iu" and np.dtype(numpy_name).kind in "iu":
        same_size = dtype.itemsize == np.dtype(numpy_name).itemsize
        remedy += f", or .view(np.{numpy_name}) for the same bits" if same_size else ""
    if accepted[0] == "bfloat16":
        remedy = (
            "NumPy has no bfloat16 of its own: pass an array of ml_dtypes.bfloat16, or the "
            "raw bits as np.uint16"
        )
    refuse(
        f"the array holds {dtype.name if dtype.isnative else dtype.str}, "
        f"the kernel reads {accepted[0]}. {remedy}"
    )


@lru_cache(maxsize=256)
def _is_one_of(dtype: np.dtype, accepted: tuple[str, ...]) -> bool:
    """Return whether a dtype is accepted; a structured one always is. NumPy's names are slow."""
    return (dtype.name in accepted and dtype.isnative) or bool(dtype.fields)


def _bind_address(refuse, value, backend: str):
    """Return a pointer's value that is no array: a device address, or an object of CuPy's."""
    if backend == "gpu" and _is_cupys(type(value)):
        return value
    if backend == "gpu" and isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        return np.uint64(value)
    if isinstance(value, (list, tuple)):
        refuse("got a list; pass an array: np.array(values, dtype=...)")
    refuse(f"got {type(value).__name__} {value!r}; this parameter is a pointer and takes an array")


def _bind_struct(refuse, parameter: Parameter, value):
    """A parameter that PTX sees as bytes: a struct, a vector such as int3, or a half."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = np.frombuffer(bytes(value), dtype=np.uint8)
        value = value.view(f"V{value.size}")[0] if value.size else value
    if isinstance(value, np.generic):
        value = np.array(value)
    if not isinstance(value, np.ndarray) or (value.size != 1 and value.nbytes != parameter.size):
        refuse(
            f"got {type(value).__name__} {value!r}; this parameter is passed as "
            f"{parameter.size} bytes. Pass a NumPy value of that size: a structured scalar, "
            "np.float16(x) for a half, or np.array([x, y, z], dtype) for a vector"
        )
    if value.nbytes != parameter.size:
        refuse(
            f"the value has {value.nbytes} bytes (dtype {value.dtype}), "
            f"the parameter {parameter.size}"
        )
    if parameter.ctype and parameter.ctype.name == "__half" and value.dtype != np.float16:
        refuse(f"got {value.dtype}; pass np.float16(x)")
    image = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    return image.view(f"V{parameter.size}").reshape(())


def _bind_scalar(refuse, parameter: Parameter, value):
    ctype, kind = parameter.ctype, parameter.kind
    if ctype and ctype.kind == "float":
        kind = f"f{8 * ctype.size}"
    if not isinstance(value, (bool, int, float, complex, np.generic)):
        refuse(
            f"got {type(value).__name__}; this parameter is a single "
            f"{'number' if kind in _FLOAT_DTYPES else 'integer'} of {parameter.size} bytes"
        )
    if kind in _FLOAT_DTYPES:
        return _bind_float(refuse, parameter, value, kind)
    return _bind_integer(refuse, parameter, value)


def _bind_float(refuse, parameter: Parameter, value, kind: str):
    wanted = _FLOAT_DTYPES[kind]
    if isinstance(value, wanted) or (kind == "f64" and isinstance(value, float)):
        return wanted(value)
    remedy = f"Pass np.{wanted.__name__}(x)"
    if isinstance(value, (np.generic, complex)):
        refuse(f"got {type(value).__name__}; the kernel reads {wanted.__name__}. {remedy}")
    if isinstance(value, float):  # np.float64 is a float too and was dealt with above
        refuse(
            f"got the Python float {value!r}, which has 8 bytes; the kernel reads "
            f"{parameter.size}. {remedy}"
        )
    refuse(f"got the integer {value!r}; its bits are no floating-point number. {remedy}")


@lru_cache(maxsize=64)
def _integer_type(kind: str, size: int) -> tuple[type, int, int]:
    """The NumPy type of an integer parameter, and the least and the largest value it takes.

    kind: "signed", "unsigned" or "bool"; "" where it is not known: then both readings of the bits
    are allowed.
    """
    wanted = np.dtype(f"{'i' if kind in ('', 'signed') else 'u'}{size}").type
    info = np.iinfo(wanted)
    largest = 1 if kind == "bool" else int(info.max) if kind else 2 ** (8 * size) - 1
    return wanted, int(info.min), largest


def _bind_integer(refuse, parameter: Parameter, value):
    ctype = parameter.ctype
    kind = ctype.kind if ctype and ctype.name else ""  # an enumeration has no name and no sign
    wanted, least, largest = _integer_type(kind, parameter.size)
    if isinstance(value, (float, complex, np.inexact)):
        refuse(
            f"got {value!r}; this parameter is an integer. Pass int(x) or np.{wanted.__name__}(x)"
        )
    if isinstance(value, np.generic) and not isinstance(value, np.bool_):
        if value.dtype.kind not in "iu":
            refuse(f"got {type(value).__name__}; pass np.{wanted.__name__}(x)")
        if value.itemsize != parameter.size:
            refuse(
                f"got {type(value).__name__} ({value.itemsize} bytes); the kernel reads "
                f"{parameter.size}. Pass int(x) or np.{wanted.__name__}(x)"
            )
    number = int(value)
    if not least <= number <= largest:
        refuse(f"{number} does not fit: the parameter takes {least} to {largest}")
    if number < 2 ** (8 * parameter.size - 1):
        return wanted(number)
    return np.array(number, f"u{parameter.size}").view(wanted)[()]  # the same bits
