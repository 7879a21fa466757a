"""One call of a kernel of a Python file: its arguments made of --arg, then its front's call."""

import argparse
import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
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
    """A launch that is ready: what FileCall has of it, and `launch`, which makes it.

    config: what the autotuner's configuration sets, {} without one; which: that, for the title.
    """

    kernel: Kernel
    name: str
    block: tuple[int, int, int]
    shared_bytes: int
    config: dict[str, object]
    which: str
    texts: dict[str, str]
    given: dict[str, object]
    passed: dict[str, object]
    launch: Callable[[], object]


def python_call(file: Path, name: str, arguments: argparse.Namespace) -> PythonCall:
    """Return the call of a kernel of a Python file that the options of `add_call` describe."""
    if arguments.backend == "gpu":
        raise BackendError(f"{file.name} is Python: on a GPU launch its kernel from Python")
    function = load_kernel(file, name or arguments.kernel or "")
    source = getattr(function, "py_func", None) or [*_layers(function)][-1].fn
    texts = _by_name(source, arguments.arg or [], _set_by_decorators(function))
    if arguments.grid is None:
        raise InputError(f"{source.__name__}{inspect.signature(source)} needs --grid, such as 4,2")
    seeds = range(1000 * arguments.seed, 1000 * arguments.seed + len(texts))
    pairs = zip(texts.items(), seeds, strict=True)
    given = {name: _value(name, text, seed) for (name, text), seed in pairs}
    passed = {name: _copy(value) for name, value in given.items()}
    prepared = _CALLS[front_of(function)](function, passed, arguments)
    kernel, *sizes, launch = prepared
    return PythonCall(kernel, source.__name__, *sizes, texts, given, passed, launch)


def _numba(kernel, passed: dict, arguments: argparse.Namespace) -> tuple:
    from ... import numba

    if arguments.option:
        raise InputError("--option: Numba's options are those of @cuda.jit in the file")
    block, shared = arguments.block or (256, 1, 1), arguments.shared_mem or 0
    if getattr(arguments, "config", None):
        raise InputError("--config: chooses a configuration of @triton.autotune")
    call = numba.compile(kernel, *passed.values())
    return call.kernel, block, shared, {}, "", lambda: call(arguments.grid, block, shared)


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
    text = getattr(arguments, "config", None)
    call = triton.compile(kernel, **passed, **options, config=_config(text))
    which = _which_config(kernel, call.config, text) if call.config else ""
    ready = call.kernel, call.block, call.shared_bytes, call.config, which
    return *ready, lambda: call(arguments.grid)


def _layers(function) -> Iterator:
    """Triton's decorators around a kernel, from the outer one on, and the kernel itself."""
    while hasattr(function, "fn"):
        yield function
        function = function.fn


def _set_by_decorators(function) -> set[str]:
    """The parameters whose values the autotuner or the heuristics of a Triton kernel give."""
    found: set[str] = set()
    for layer in _layers(function):
        found.update(*(one.kwargs for one in getattr(layer, "configs", ())))
        if isinstance(rules := getattr(layer, "values", None), Mapping):
            found.update(rules)
    return found


def _config(text: str | None) -> int | dict | None:
    """The `config` of a Triton call: "1" is a number, "BM=64,num_warps=4" some of the values."""
    if text is None or text.isdecimal():
        return None if text is None else int(text)
    problem = "--config takes a number such as 1, or NAME=VALUE,NAME=VALUE"
    pairs = [_named(part, problem) for part in text.split(",")]
    return {name: _number(f"config {name}", value) for name, value in pairs}


def _which_config(kernel, chosen: dict, text: str | None) -> str:
    """ "config 0 of 2 (BM=64, num_warps=4)", and how to choose where nobody has."""
    from ...triton.call import shown

    tuner = next(layer for layer in _layers(kernel) if hasattr(layer, "configs"))
    number = [one.all_kwargs() for one in tuner.configs].index(chosen)
    asked = "; choose with --config" if text is None and len(tuner.configs) > 1 else ""
    return f"config {number} of {len(tuner.configs)} ({shown(chosen)}{asked})"


_CALLS = {"numba": _numba, "triton": _triton}


# -- arguments ---------------------------------------------------------------------------------
def _by_name(function, given: list[str], set_elsewhere: set[str]) -> dict[str, str]:
    """Parameter -> the text of its --arg, which may name it: `--arg BLOCK=64`.

    set_elsewhere: parameters that need none.
    """
    signature = inspect.signature(function)
    positional = [text for text in given if not _NAMED.fullmatch(text)]
    named = dict(_named(text, "") for text in given if _NAMED.fullmatch(text))
    try:
        found = dict(signature.bind_partial(*positional, **named).arguments)
    except TypeError as error:
        problem = str(error)
    else:
        known = {*found, *set_elsewhere}
        needed = [one.name for one in signature.parameters.values() if one.default is one.empty]
        missing = [name for name in needed if name not in known]
        if not missing:
            return found
        problem = f"missing {', '.join(missing)}"
    set_here = "".join(f"; {name} is set by a decorator" for name in sorted(set_elsewhere))
    raise InputError(
        f"{function.__name__}({', '.join(signature.parameters)}) takes one --arg for each "
        f"parameter{set_here}: {problem}"
    )


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
