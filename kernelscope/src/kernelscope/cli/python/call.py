"""One call of a kernel of a Python file: its arguments made of --arg, then its front's call."""

import argparse
import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import BackendError, InputError
from ...module import Kernel
from ...ptx.c_types import NARROW_FLOATS, dtype_of
from ..values import KINDS, make, read_array
from .module import front_of, load_kernel

_ARRAY = re.compile(r"(\w+):([0-9]+(?:x[0-9]+)*)(?::(\w+))?")
_NAMED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class PythonCall:
    """A launch that is ready: what FileCall has of it, and `launch`, which makes it."""

    kernel: Kernel
    name: str
    block: tuple[int, int, int]
    shared_bytes: int
    texts: dict[str, str]
    given: dict[str, object]
    passed: dict[str, object]
    launch: Callable[[], object]


def python_call(file: Path, name: str, arguments: argparse.Namespace) -> PythonCall:
    """Return the call of a kernel of a Python file that the options of `add_call` describe."""
    if arguments.backend == "gpu":
        raise BackendError(f"{file.name} is Python: on a GPU launch its kernel from Python")
    function = load_kernel(file, name or arguments.kernel or "")
    source = getattr(function, "py_func", None) or inspect.unwrap(getattr(function, "fn", function))
    while hasattr(source, "fn"):  # Triton's decorators, one around the other
        source = source.fn
    texts = _by_name(source, arguments.arg or [])
    if arguments.grid is None:
        raise InputError(f"{source.__name__}{inspect.signature(source)} needs --grid, such as 4,2")
    seeds = range(1000 * arguments.seed, 1000 * arguments.seed + len(texts))
    pairs = zip(texts.items(), seeds, strict=True)
    given = {name: _value(name, text, seed) for (name, text), seed in pairs}
    passed = {name: _copy(value) for name, value in given.items()}
    prepared = _CALLS[front_of(function)](function, passed, arguments)
    return PythonCall(
        prepared[0], source.__name__, *prepared[1:-1], texts, given, passed, prepared[-1]
    )


def _numba(kernel, passed: dict, arguments: argparse.Namespace) -> tuple:
    from ... import numba

    if arguments.option:
        raise InputError("--option: Numba's options are those of @cuda.jit in the file")
    block, shared = arguments.block or (256, 1, 1), arguments.shared_mem or 0
    call = numba.compile(kernel, *passed.values())
    return call.kernel, block, shared, lambda: call(arguments.grid, block, shared)


def _triton(kernel, passed: dict, arguments: argparse.Namespace) -> tuple:
    from ... import triton

    if arguments.block or arguments.shared_mem:
        raise InputError(
            "a Triton kernel has no --block and no --shared-mem: give --option num_warps=4"
        )
    pairs = [_named(text, "--option takes NAME=VALUE") for text in arguments.option or ()]
    options = {
        key: text if text.startswith("sm_") else _number("option " + key, text)
        for key, text in pairs
    }
    call = triton.compile(kernel, **passed, **options)
    return call.kernel, call.block, call.shared_bytes, lambda: call(arguments.grid)


_CALLS = {"numba": _numba, "triton": _triton}


# -- arguments ---------------------------------------------------------------------------------
def _by_name(function, given: list[str]) -> dict[str, str]:
    """Parameter -> the text of its --arg, which may name it: `--arg BLOCK=64`."""
    signature = inspect.signature(function)
    positional = [text for text in given if not _NAMED.fullmatch(text)]
    named = dict(_named(text, "") for text in given if _NAMED.fullmatch(text))
    try:
        return dict(signature.bind(*positional, **named).arguments)
    except TypeError as error:
        raise InputError(
            f"{function.__name__}({', '.join(signature.parameters)}) takes one --arg for each "
            f"parameter: {error}"
        ) from None


def _named(text: str, problem: str) -> tuple[str, str]:
    match = _NAMED.fullmatch(text)
    if match is None:
        raise InputError(f"{problem}, not {text!r}")
    return match[1], match[2]


def _value(name: str, text: str, seed: int) -> object:
    """An array of KIND:SHAPE[:DTYPE], float32 without a dtype, or of FILE.npy; else a number."""
    try:
        match = _ARRAY.fullmatch(text)
        if text.endswith(".npy"):
            return read_array(Path(text))
        if match is None or match[1] not in KINDS:
            return _number(name, text)
        shape = tuple(map(int, match[2].split("x")))
        return make(match[1], shape, _dtype(match[3] or "float32"), seed)
    except InputError as error:
        raise InputError(f"--arg {text} for {name}: {error}") from None


def _dtype(name: str) -> np.dtype:
    known = [*NARROW_FLOATS.values(), *(np.dtype(code).name for code in "?bBhHiIqQefdFD")]
    if name not in known:
        raise InputError(f"{name!r} is no dtype; there are: {', '.join(known)}")
    return dtype_of(name)


def _number(name: str, text: str) -> object:
    if text in ("true", "false", "null"):
        return {"true": True, "false": False, "null": None}[text]
    for kind in (lambda one: int(one, 0), float, ast.literal_eval):
        try:
            return kind(text)
        except (ValueError, SyntaxError):
            pass
    raise InputError(
        "a parameter in Python takes a number, True, None, a string in quotes of its own such as "
        "\"'gelu'\", FILE.npy, or an array as KIND:SHAPE:DTYPE such as normal:33x70:float16, with "
        f"one of {', '.join(KINDS)}"
    )


def _copy(value):
    return value.copy() if isinstance(value, np.ndarray) else value
