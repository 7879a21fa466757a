"""The value of one kernel parameter, from the text of its --arg."""

import math
import re
from pathlib import Path

import numpy as np

from ..errors import InputError
from ..module.signature import Parameter

KINDS = ("normal", "zeros", "ones", "arange", "output")
MOST_ELEMENTS = 1 << 28
_SHAPE = re.compile(r"[0-9]{1,9}(x[0-9]{1,9}){0,7}")


def is_pointer(parameter: Parameter) -> bool:
    """Whether a parameter takes an array, as far as the compiler says."""
    ctype = parameter.ctype
    return ctype.kind == "pointer" if ctype else parameter.kind in ("u64", "b64", "s64")


def takes(parameter: Parameter) -> str:
    """What a parameter takes, in words, for messages."""
    return "KIND:SHAPE or FILE.npy" if is_pointer(parameter) else "a number"


def value_of(parameter: Parameter, text: str, seed: int) -> object:
    """Return the value that an --arg gives a parameter: an array, a number, None for `null`.

    seed: of `normal`. Raises InputError that names the parameter and what it takes.
    """
    try:
        return _array(parameter, text, seed) if is_pointer(parameter) else _number(parameter, text)
    except InputError as error:
        raise InputError(f"--arg {text} for {parameter.text}: {error}") from None


def _array(parameter: Parameter, text: str, seed: int) -> np.ndarray | None:
    if text == "null":
        return None
    if text.endswith(".npy"):
        return read_array(Path(text))
    kind, colon, shape = text.partition(":")
    if not colon or kind not in KINDS or not _SHAPE.fullmatch(shape):
        raise InputError(
            f"a pointer takes KIND:SHAPE such as normal:33x70, with one of {', '.join(KINDS)}, or "
            "FILE.npy, or null"
        )
    return make(kind, tuple(map(int, shape.split("x"))), _dtype(parameter), seed)


def make(kind: str, shape: tuple[int, ...], dtype: np.dtype, seed: int) -> np.ndarray:
    """Return an array of one of KINDS. Raises InputError for a kind that the dtype has not."""
    size = math.prod(shape)
    if not 0 < size <= MOST_ELEMENTS:
        raise InputError(f"{size:,} elements; an array has 1 to {MOST_ELEMENTS:,}")
    if kind == "arange":
        with np.errstate(over="ignore"):
            return np.arange(size).astype(dtype).reshape(shape)
    if kind == "normal":
        if dtype.kind not in "fc":
            raise InputError(
                f"normal makes floats, not {dtype}; take arange, zeros, ones or a file"
            )
        return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    if kind == "output":
        if dtype.kind not in "fciu":
            raise InputError(f"{dtype} has no value that marks unwritten elements; take zeros")
        return _unwritten(shape, dtype)
    return np.full(shape, 1 if kind == "ones" else 0, dtype)


def _unwritten(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Integers of the largest value; signalling NaNs, which all that is computed with them changes.

    So an element that a kernel has added to, as by an atomic, is a NaN that counts as written.
    """
    if dtype.kind not in "fc":
        return np.full(shape, np.iinfo(dtype).max, dtype)
    real = dtype.type(0).real.dtype
    bits = np.array(np.inf, real).view(f"u{real.itemsize}") + 1
    return np.full((*shape, dtype.itemsize // real.itemsize), bits).view(dtype)[..., 0]


def _dtype(parameter: Parameter) -> np.dtype:
    """The dtype of the elements that a pointer parameter takes."""
    named = parameter.dtypes[:1]
    if named and named[0] != "bfloat16":
        dtype = np.dtype(named[0])
        if dtype.kind in "fciub":
            return dtype
    raise InputError(
        "NumPy has no dtype for this element type: give FILE.npy with its bytes"
        + (", as uint16" if named else "")
    )


def read_array(path: Path) -> np.ndarray:
    """Return the array of a .npy file, in C's order. Raises InputError."""
    try:
        array = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise InputError(
            "no such file. Make it with numpy.save, or give an array as KIND:SHAPE, such as "
            "normal:33x70"
        ) from None
    except (OSError, EOFError, ValueError) as error:
        raise InputError(f"the file cannot be read as an array: {error}") from None
    return np.ascontiguousarray(array).reshape(array.shape)


def _number(parameter: Parameter, text: str) -> object:
    ctype, size = parameter.ctype, parameter.size
    half = parameter.is_struct and ctype is not None and ctype.name == "__half"
    if parameter.is_struct and not half:
        raise InputError("a struct is passed from Python: RawModule(path=...).get_function(...)")
    floats = half or parameter.kind[0] == "f" or ctype is not None and ctype.kind == "float"
    try:
        if floats:
            return np.dtype(f"f{size}").type(float(text))
        return {"true": 1, "false": 0}[text] if text in ("true", "false") else int(text, 0)
    except ValueError:
        wanted = "a number such as 0.5" if floats else "a whole number such as 70"
        raise InputError(f"the parameter takes {wanted}") from None
