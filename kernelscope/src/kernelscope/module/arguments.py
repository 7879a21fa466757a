"""The check and conversion of a kernel call's arguments, the same for both backends.

CuPy passes the bytes of a value unchecked: a Python number has 8 bytes, a NumPy scalar its own, an
array the address of its first element. The kernel reads as many bytes as the parameter has. So a
float64 array read as float, or a Python float read as a 4-byte parameter, gives wrong numbers
without a message. With strict checks both are refused. Without them the kernel gets the bytes that
CuPy passes, and a warning names the trap.
"""

import warnings
from functools import lru_cache

import numpy as np
from kernelscope.backend import is_device_array

from ..errors import (
    Advice,
    ArgumentError,
    ArgumentWarning,
    InputTypeError,
    levels_to_caller,
)
from ..ptx.c_types import NARROW_FLOATS
from ..tensor_map import TensorMap
from .interop import check_no_gradient, is_cupys, is_foreign, is_on_gpu, native
from .signature import Entry, Parameter

_FLOAT_DTYPES = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
_HALVES = ("float16", "bfloat16")  # often kept as their raw bits, in 16-bit integers
# The NumPy scalars that CuPy passes for Python's numbers; a bool is an int there too.
_PASSED = ((int, np.int64), (float, np.float64), (complex, np.complex128))
# Values that PTX sees as bytes, but that are one number: what makes them.
_HALF_VALUES = {
    "__half": "np.float16",
    **{ctype: f"ml_dtypes.{dtype}" for ctype, dtype in NARROW_FLOATS.items()},
}


def bind(kernel: str, entry: Entry, arguments, backend: str, strict: bool = True) -> list:
    """Return one value per parameter, ready to launch.

    An array stays the array; None is a null pointer, np.uint64 an address; a number becomes a NumPy
    scalar, and a struct a zero-dimensional array, of exactly the parameter's size.
    strict: whether to refuse a value whose type, size or layout is not the parameter's own. Else it
    is passed as CuPy passes it, with an ArgumentWarning where the kernel reads another number.
    Raises ArgumentError naming the kernel, the parameter and the remedy.
    """
    expected = entry.parameters
    if not strict and is_array(arguments) and arguments.ndim and expected:
        arguments = _items_of(kernel, arguments, len(expected))
    if not isinstance(arguments, (tuple, list)):
        raise ArgumentError(
            f"{kernel}: the arguments must come as a tuple; for a single one write (x,)"
        )
    if len(arguments) != len(expected):
        listed = ", ".join(parameter.text for parameter in expected) or "none"
        raise ArgumentError(
            f"{kernel} takes {len(expected)} argument{'s' * (len(expected) != 1)}, "
            f"got {len(arguments)}. Its parameters: {listed}"
        )
    bound = []
    for position, (parameter, value) in enumerate(zip(expected, arguments, strict=True), start=1):
        refuse = _Refusal(kernel, position, parameter, strict)
        if is_foreign(type(value)):
            value = _shared(refuse, parameter.name, value, backend)
        bound.append(_bind_one(refuse, parameter, value, backend))
    return bound


def _shared(refuse, name: str, value, backend: str):
    """Return the array of NumPy or CuPy on the memory of another library's array."""
    on_gpu = is_on_gpu(value)
    if on_gpu and backend == "simulator":
        refuse(
            "got an array in GPU memory; the simulator works in the memory of the CPU: "
            "pass array.cpu() or cupy.asnumpy(...)"
        )
    if backend == "gpu" and not on_gpu:
        refuse("got an array in host memory; the GPU needs array.cuda() or cupy.asarray(...)")
    try:
        check_no_gradient(name, value)
        return native(name, value)
    except InputTypeError as error:
        refuse(str(error))


def is_array(value) -> bool:
    """Return whether a value is an array of NumPy or in GPU memory."""
    return isinstance(value, np.ndarray) or _is_array_of_cupy(type(value)) or is_device_array(value)


def _items_of(kernel: str, array, count: int) -> tuple:
    """Return the arguments of a call `kernel(grid, block, (x))`, without a comma, as CuPy has them.

    CuPy takes the items of any sequence: of an array those along its first axis, each of which is
    passed by its address, and those beyond the parameters are not read.
    """
    if len(array) < count:
        raise ArgumentError(
            f"{kernel} takes {count} argument{'s' * (count != 1)}, and got an array in the place "
            f"of the tuple, whose {len(array)} items are the arguments in CuPy. Write (x,)"
        )
    return tuple(array[item:] for item in range(count))


class _Refusal:
    """Raises ArgumentError with the kernel and the parameter in front of the message.

    `strict` tells whether a call that CuPy would make is refused too.
    """

    def __init__(self, kernel: str, position: int, parameter: Parameter, strict: bool):
        self.where = f"{kernel}, argument {position} ({parameter.text})"
        self.strict = strict

    def __call__(self, message: str | Advice):
        raise ArgumentError(f"{self.where}: " + message)

    def or_warn(self, problem: str, remedy: str | Advice, passed: str) -> None:
        """Refuse when strict; else warn. passed: the consequence of CuPy's rule."""
        if self.strict:
            self(f"{problem}. " + remedy)
        text = f"{self.where}: {problem}. As in CuPy, {passed}. {remedy}"
        warnings.warn(text, ArgumentWarning, stacklevel=levels_to_caller())


def _bind_texture(refuse, parameter: Parameter, value, backend: str):
    """The handle of a texture object; on a GPU the object, whose handle CuPy passes."""
    if parameter.size != 8 or parameter.is_struct:
        refuse("got a texture object; it is for a parameter of type cudaTextureObject_t")
    if backend == "gpu":
        return value
    if is_cupys(type(value)):
        refuse("got a texture object of CuPy's; the simulator takes those of kernelscope.texture")
    return np.uint64(value.ptr)


def _image_of_map(refuse, value: TensorMap, backend: str):
    if value.backend != backend:
        refuse(f"got a tensor map of an array on the {value.backend}; this is the {backend}")
    return value.image


def _bind_one(refuse, parameter, value, backend):
    if type(value).__name__ in ("TextureObject", "SurfaceObject"):
        return _bind_texture(refuse, parameter, value, backend)
    if isinstance(value, TensorMap):
        value = _image_of_map(refuse, value, backend)
    array = is_array(value)
    known_pointer = parameter.ctype is not None and parameter.ctype.kind == "pointer"
    known_value = parameter.ctype is not None and not known_pointer
    if parameter.kind not in ("u64", "b64", "s64"):
        known_pointer, known_value = False, True
    if known_pointer or (not known_value and (array or value is None)):
        return _bind_pointer(refuse, parameter, value, array, backend)
    if parameter.is_struct:
        return _bind_struct(refuse, parameter, value)
    if array:
        if refuse.strict or not isinstance(value, np.ndarray) or value.ndim:
            refuse(
                f"got an array of shape {value.shape}; this parameter is a single value. "
                "Pass array.item() or the number itself"
            )
        value = value[()]
    return _bind_scalar(refuse, parameter, value)


def _bind_pointer(refuse, parameter: Parameter, value, array: bool, backend: str):
    if value is None:
        return None
    if isinstance(value, memoryview) and not refuse.strict:  # x.data, where CuPy has a pointer
        value, array = np.asarray(value), True
    if not array:
        return _bind_address(refuse, value, backend)
    _check_place(refuse, value, backend)
    _check_dtype(refuse, parameter, value)
    if not value.flags.c_contiguous:
        library = "cupy" if backend == "gpu" else "np"
        refuse.or_warn(
            f"the array (shape {value.shape}, strides {value.strides}) is not contiguous, and a "
            "kernel sees memory, not strides",
            f"Pass {library}.ascontiguousarray(...)",
            "the kernel gets the address of the first element and the memory as it is",
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
    if backend == "gpu" and not is_cupys(type(value)):
        refuse(f"got a {type(value).__name__}; pass it as a CuPy array: cupy.asarray(...)")
    if backend == "simulator" and not on_host:
        refuse(
            "got an array in GPU memory; the simulator works on NumPy arrays: "
            "pass cupy.asnumpy(...)"
        )


@lru_cache(maxsize=64)
def _is_array_of_cupy(kind: type) -> bool:
    """Told by the type: CuPy builds the interface, in microseconds, whenever it is read."""
    return is_cupys(kind) and hasattr(kind, "__cuda_array_interface__")


def _check_dtype(refuse, parameter: Parameter, value) -> None:
    accepted = parameter.dtypes
    dtype = np.dtype(value.dtype)
    if not accepted or _is_one_of(dtype, accepted):
        return
    if not refuse.strict and _has_the_same_bits(dtype, accepted):
        return
    narrow = accepted[0] in NARROW_FLOATS.values()
    numpy_name = accepted[-1] if narrow else accepted[0]
    remedy = Advice("Pass", "Save the file with") + f" .astype(np.{numpy_name})"
    same_size = dtype.itemsize == np.dtype(numpy_name).itemsize
    integers = dtype.kind in "iu" and np.dtype(numpy_name).kind in "iu"
    if same_size and (integers or not refuse.strict):
        remedy += f", or .view(np.{numpy_name}) for the same bits"
    if narrow:
        remedy = (
            f"NumPy has no {accepted[0]} of its own: pass an array of ml_dtypes.{accepted[0]}, or "
            f"the raw bits as np.{numpy_name}"
        )
    refuse.or_warn(
        f"the array holds {dtype.name if dtype.isnative else dtype.str}, "
        f"the kernel reads {accepted[0]}",
        remedy,
        "the kernel reads the same bytes as its own type",
    )


@lru_cache(maxsize=256)
def _is_one_of(dtype: np.dtype, accepted: tuple[str, ...]) -> bool:
    """Return whether a dtype is accepted; a structured one always is. NumPy's names are slow."""
    return (dtype.name in accepted and dtype.isnative) or bool(dtype.fields)


@lru_cache(maxsize=256)
def _has_the_same_bits(dtype: np.dtype, accepted: tuple[str, ...]) -> bool:
    """Return whether a kernel that reads one of the accepted dtypes finds a dtype's own numbers.

    Integers of either sign, complex numbers as pairs of floats, the raw bits of halves in 16-bit
    integers, and bytes without a type (`V8`) do.
    """
    if not dtype.isnative:
        return False
    if dtype.kind == "V":
        return True
    if dtype.kind == "c":
        return f"float{4 * dtype.itemsize}" in accepted
    if dtype.kind not in "iu":
        return False
    alike = {f"int{8 * dtype.itemsize}", f"uint{8 * dtype.itemsize}"}
    return bool(alike & set(accepted)) or (
        dtype.itemsize == 2 and not set(_HALVES).isdisjoint(accepted)
    )


def _bind_address(refuse, value, backend: str):
    """Return a pointer's value that is no array: a device address, or an object of CuPy's."""
    if backend == "gpu" and is_cupys(type(value)):
        return value
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if is_integer and (backend == "gpu" or not refuse.strict):
        if not 0 <= int(value) < 2**64:
            refuse(f"got {value}; an address is 0 to {2**64 - 1}")
        return np.uint64(value)
    if isinstance(value, (list, tuple)):
        refuse("got a list; pass an array: np.array(values, dtype=...)")
    refuse(f"got {type(value).__name__} {value!r}; this parameter is a pointer and takes an array")


def _as_passed(value):
    """Return the NumPy scalar that CuPy passes for a Python number; any other value as it is."""
    if isinstance(value, np.generic):
        return value
    for kind, scalar in _PASSED:
        if isinstance(value, kind):
            return scalar(value)
    return value


def _bind_struct(refuse, parameter: Parameter, value):
    """A parameter that PTX sees as bytes: a struct, a vector such as int3, or a half."""
    given, half = value, _HALF_VALUES.get(parameter.ctype.name if parameter.ctype else "")
    if isinstance(value, (bytes, bytearray, memoryview)):
        value = np.frombuffer(bytes(value), dtype=np.uint8)
        value = value.view(f"V{value.size}")[0] if value.size else value
    if isinstance(value, complex) or not refuse.strict:
        value = _as_passed(value)
    if isinstance(value, np.generic):
        value = np.array(value)
    if not isinstance(value, np.ndarray) or (value.size != 1 and value.nbytes != parameter.size):
        refuse(
            f"got {type(value).__name__} {value!r}; this parameter is passed as "
            f"{parameter.size} bytes. Pass a NumPy value of that size: a structured scalar, "
            "np.float16(x) for a half, or np.array([x, y, z], dtype) for a vector"
        )
    image = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
    if value.nbytes != parameter.size:
        problem = (
            f"the value has {value.nbytes} bytes (dtype {value.dtype}), "
            f"the parameter {parameter.size}"
        )
        if value.nbytes < parameter.size or not isinstance(given, (int, float, complex)):
            refuse(problem)
        remedy = f"Pass {half}(x)" if half else f"Pass a NumPy value of {parameter.size} bytes"
        if isinstance(given, complex) and parameter.size == 8:
            remedy = "Pass np.complex64(z)"
        refuse.or_warn(problem, remedy, f"the kernel reads the first {parameter.size}")
        image = image[: parameter.size]
    if refuse.strict and half and value.dtype.name != half.partition(".")[2]:
        refuse(f"got {value.dtype}; pass {half}(x)")
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
        return _bind_float(refuse, value, _FLOAT_DTYPES[kind])
    return _bind_integer(refuse, parameter, value)


def _read_as(refuse, value, wanted: type, problem: str, remedy: str):
    """Return the number of type `wanted` that a kernel reads in the bytes CuPy passes for a value.

    Refuse the value instead where the checks are strict, and where CuPy has no such bytes.
    """
    try:
        image = _as_passed(value).tobytes()
    except OverflowError:
        refuse(f"{problem}. {remedy}")
    size = np.dtype(wanted).itemsize  # what follows a value shorter than that is zero in CuPy
    read = np.frombuffer(image[:size].ljust(size, b"\0"), wanted)[0]
    passed = f"the kernel reads the first {size} of its {len(image)} bytes: {read}"
    if len(image) < size:
        passed = f"the kernel reads {size} bytes where {len(image)} are passed: {read}"
    elif len(image) == size:
        passed = f"the kernel reads the same {size} bytes: {read}"
    refuse.or_warn(problem, remedy, passed)
    return read


def _bind_float(refuse, value, wanted: type):
    size = np.dtype(wanted).itemsize
    if isinstance(value, wanted) or (size == 8 and isinstance(value, float)):
        return wanted(value)
    remedy = f"Pass np.{wanted.__name__}(x)"
    if isinstance(value, (np.generic, complex)):
        problem = f"got {type(value).__name__}; the kernel reads {wanted.__name__}"
    elif isinstance(value, float):  # np.float64 is a float too and was dealt with above
        problem = f"got the Python float {value!r}, which has 8 bytes; the kernel reads {size}"
    else:
        problem = f"got the integer {value!r}; its bits are no floating-point number"
    return _read_as(refuse, value, wanted, problem, remedy)


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
    remedy = f"Pass int(x) or np.{wanted.__name__}(x)"
    if isinstance(value, (float, complex, np.inexact)):
        problem = f"got {value!r}; this parameter is an integer"
        return _read_as(refuse, value, wanted, problem, remedy)
    if isinstance(value, np.generic) and not isinstance(value, np.bool_):
        if value.dtype.kind not in "iu":
            refuse(f"got {type(value).__name__}; pass np.{wanted.__name__}(x)")
        if value.itemsize == parameter.size and not refuse.strict:
            return value.view(wanted)
        if value.itemsize != parameter.size and refuse.strict:
            refuse(
                f"got {type(value).__name__} ({value.itemsize} bytes); the kernel reads "
                f"{parameter.size}. {remedy}"
            )
    number = int(value)
    if not least <= number <= largest:
        problem = f"{number} does not fit: the parameter takes {least} to {largest}"
        return _read_as(refuse, value, wanted, problem, "Pass a number of this range")
    if number < 2 ** (8 * parameter.size - 1):
        return wanted(number)
    return np.array(number, f"u{parameter.size}").view(wanted)[()]  # the same bits
