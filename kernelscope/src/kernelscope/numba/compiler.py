"""Numba's compiler for CUDA, stopped at the PTX: it needs libNVVM, but no GPU and no driver."""

import inspect
import linecache
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from ..compile import compile_ptx
from ..errors import (
    ArgumentError,
    CompileError,
    CompilerMissingError,
    Diagnostic,
    InputError,
    UserError,
)
from .linking import linked

CAPABILITY = (8, 0)
_LOCK = threading.RLock()
# `cuda.cg.this_grid().sync()` calls two functions of libcudadevrt, whose names a header of CUDA has
# declared in other types: here they have names of their own.
_GRID_FUNCTIONS = {
    "cudaCGGetIntrinsicHandle": "kernelscope_grid_handle",
    "cudaCGSynchronize": "kernelscope_grid_barrier",
}
_GRID_BARRIER = """
#include <cooperative_groups.h>
extern "C" __device__ unsigned long long kernelscope_grid_handle(unsigned scope) { return scope; }
extern "C" __device__ int kernelscope_grid_barrier(unsigned long long handle, unsigned flags) {
    cooperative_groups::this_grid().sync();
    return 0;
}
"""
_OF_MANY_KERNELS = {  # types of Numba's objects
    "Reduce": "@cuda.reduce",
    "CUDAUFuncDispatcher": "@vectorize",
    "CUDAGeneralizedUFunc": "@guvectorize",
}
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def import_numba():
    """Return numba.cuda. Raises CompilerMissingError where it is not there, or is the simulator."""
    try:
        import numba_cuda  # noqa: F401  numba's own numba.cuda has no successor to its last version
        from numba import config, cuda
        from numba.cuda import dispatcher
        from numba.cuda.cudadrv import nvvm

        nvvm.NVVM()
    except ImportError as error:
        reason = f"which cannot be imported ({error})"
    except Exception as error:  # libNVVM is not found: an exception of cuda-pathfinder's
        reason = f"and libNVVM, which cannot be loaded ({' '.join(str(error).split())})"
    else:
        if not config.ENABLE_CUDASIM:
            return cuda, dispatcher
        reason = "not its simulator: unset NUMBA_ENABLE_CUDASIM"
        raise CompilerMissingError(f"Numba kernels need Numba's compiler, {reason}")
    raise CompilerMissingError(
        f"Numba kernels need numba-cuda, {reason}: pip install kernelscope[numba]"
    )


@contextmanager
def _replaced(*places) -> Iterator[None]:
    """Set attributes, given as (object, name, value), for a while."""
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in places]
    try:
        for owner, name, value in places:
            setattr(owner, name, value)
        yield
    finally:
        for owner, name, value in before:
            setattr(owner, name, value)


@contextmanager
def without_gpu() -> Iterator[None]:
    """Let `@cuda.jit` with explicit signatures compile on a machine without a GPU.

    Such a decorator compiles at once, for the GPU that the driver names. Inside this block it only
    notes the signatures of a kernel, and compiles device functions for sm_80. A decorator without
    signatures needs no such block. Raises CompilerMissingError.
    """
    _, dispatcher = import_numba()
    from numba.cuda import codegen
    from numba.cuda.core import sigutils

    def declare(self, signature):
        kinds, _ = sigutils.normalize_signature(signature)
        self.overloads[tuple(kinds)] = SimpleNamespace(entry_point=None)

    library, kernels = codegen.CUDACodeLibrary, dispatcher.CUDADispatcher
    with (
        _LOCK,
        _replaced(
            (dispatcher, "get_current_device", _Device),
            (library, "_ensure_cc", lambda self, cc: cc or CAPABILITY),
            (kernels, "compile", declare),
        ),
    ):
        yield


class _Device:
    """What the compiler asks of the current GPU."""

    compute_capability = CAPABILITY


@contextmanager
def _building(build: str, compiled: list) -> Iterator[None]:
    """Compile kernels and the device functions that they call alike, with source lines.

    build: "debug" keeps variables, and all accesses; the arithmetic of errors stays the kernel's
    own. compiled: gets the Python functions in the order in which they are compiled.
    """
    from numba.cuda import compiler, dispatcher

    original, known = compiler.compile_extra, {}
    compile_device = dispatcher.CUDADispatcher.compile_device

    def compile_extra(*given, func, flags, **more):
        flags.debuginfo = True
        flags.dbg_directives_only = build != "debug"
        if build == "debug":
            flags.dbg_extend_lifetimes = True
            flags.nvvm_options = {**flags.nvvm_options, "opt": 0, "g": None}
        found = original(*given, func=func, flags=flags, **more)
        compiled.append(func)
        return found

    def fresh(self, *given, **more):
        if self._can_compile and self not in known:
            known[self], self.overloads = self.overloads, {}
        return compile_device(self, *given, **more)

    kernels = dispatcher.CUDADispatcher
    places = (compiler, "compile_extra", compile_extra), (kernels, "compile_device", fresh)
    try:
        with without_gpu(), _replaced(*places):
            yield
    finally:
        for one, overloads in known.items():
            one.overloads = overloads


def compile_kernel(kernel, kinds: tuple, build: str):
    """Return (Numba's kernel, PTX text, Python functions) for argument types. CompileError."""
    from numba.cuda import dispatcher

    options, functions = dict(kernel.targetoptions), []
    options |= {"lineinfo": not options.get("debug")}
    try:
        with _building(build, functions):
            made = dispatcher._Kernel(kernel.py_func, kinds, **options)
            parts = made._codelibrary.get_asm_strs(CAPABILITY)
            files = list(made._codelibrary._linking_files)
    except UserError:
        raise
    except Exception as error:  # Numba's compiler raises exceptions of any type
        raise compile_error(kernel.py_func, error) from error
    if made.cooperative:
        for called, given in _GRID_FUNCTIONS.items():
            parts = [part.replace(called, given) for part in parts]
        parts.append(_device_code(_GRID_BARRIER, "grid_barrier.cu"))
    return made, linked([*parts, *map(_linkable, files)]), functions


def _linkable(given) -> str:
    """The PTX of what a kernel is linked with."""
    from numba.cuda.cudadrv.linkable_code import LinkableCode

    code = LinkableCode.from_path_or_obj(given)
    text = code.data.decode() if isinstance(code.data, bytes) else code.data
    if code.kind == "ptx":
        return text
    if code.kind != "cu":
        raise InputError(f"{code.name} is machine code ({code.kind}); the simulator links CUDA C")
    return _device_code(text, code.name)


def _device_code(source: str, name: str) -> str:
    return compile_ptx(source, name, ("-rdc=true", "-lineinfo"), "compute_80").ptx


def checked(kernel):
    """Return the dispatcher of a `@cuda.jit` kernel. Raises InputError for anything else."""
    _, dispatcher = import_numba()
    if (name := _OF_MANY_KERNELS.get(type(kernel).__name__)) is not None:
        raise InputError(
            f"{name} makes kernels and launches of its own; write the kernel with @cuda.jit"
        )
    if isinstance(kernel, dispatcher._LaunchConfiguration):
        raise InputError("pass the kernel itself and its grid and block: run(kernel, 4, 32, x)")
    name = getattr(kernel, "__name__", repr(kernel))
    if not isinstance(kernel, dispatcher.CUDADispatcher):
        raise InputError(f"{name} is no Numba kernel: it needs a function with @cuda.jit")
    if kernel.targetoptions.get("device"):
        raise InputError(f"{name} is a device function; pass a kernel that calls it")
    return kernel


# -- sources and errors ----------------------------------------------------------------------------
def file_of(function) -> str:
    return function.__code__.co_filename


def text_of(file: str) -> str:
    """The text of a Python file, or of a notebook's cell."""
    return "".join(linecache.getlines(file))


def definition_line(function) -> int:
    """The line of the file with the word `def`, behind the decorators."""
    try:
        lines, start = inspect.getsourcelines(function)
    except (OSError, TypeError):
        return 0
    return next((at for at, one in enumerate(lines, start) if re.match(r"\s*def\s", one)), 0)


def place_of(function) -> str:
    """`name (file.py:12)`, for messages."""
    return f"{function.__name__} ({Path(file_of(function)).name}:{definition_line(function)})"


def other_files(ptx: str, own: str) -> tuple[tuple[str, str], ...]:
    """(name, text) of the user's other files that the PTX has code of."""
    files = re.findall(r'^\s*\.file\s+\d+\s+"([^"]+)"', ptx, re.MULTILINE)
    others = [one for one in files if one != own and "/numba" not in one and one.endswith(".py")]
    return tuple((Path(file).name, text_of(file)) for file in others)


def compile_error(function, error: Exception) -> CompileError:
    """Return the error for what Numba raised: function, line, its text and the reason."""
    message, file = _COLOUR.sub("", str(error)), file_of(function)
    own, places = re.escape(Path(file).name), r'(?:^|[/" ]){}(?:", line |\s\()(\d+)'
    first = re.search(places.format(own), message)  # of a function that is called, if that is wrong
    line = int(first[1]) if first else _line_of(error, Path(file).name)
    text = linecache.getline(file, line).strip() if line else ""
    reason = _reason(message) or type(error).__name__
    if "numba" not in type(error).__module__:
        reason = f"{type(error).__name__}: {reason}"
    diagnostic = Diagnostic(file, line, "error", reason, (text,) if text else ())
    where = f"{Path(file).name}:{line or definition_line(function)}"
    quoted = f" `{text}`" if text else ""
    said = f"Numba cannot compile {function.__name__}: {where}{quoted}: {diagnostic.message}"
    return CompileError(said, (diagnostic,), message)


def _line_of(error: Exception, own: str) -> int:
    """The line that Numba was at, where its message does not name it: a local of its frames."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        places = map(trace.tb_frame.f_locals.get, ("constraint", "inst", "stmt", "expr"))
        for place in [getattr(one, "loc", None) for one in places]:
            if Path(getattr(place, "filename", "")).name == own:
                line = place.line
        trace = trace.tb_next
    return line


def _reason(message: str) -> str:
    """The sentence of Numba's long message that says what is wrong."""
    inner = re.findall(r"^\s*NumbaTypeError: (?!Failed)(.+)$", message, re.MULTILINE)
    if inner:
        return inner[0]
    head = re.split(r'\n\s*(?:There are \d|During: |File "|Enable logging|This error)', message)
    lines = [one.strip() for one in head[0].splitlines()]
    kept = [one for one in lines if not one.startswith("Failed in")]
    return " ".join(" ".join(kept).replace(">>> ", "").split())[:300]


def signature_for(kernel, kinds: tuple) -> tuple:
    """Return the explicit signature of a kernel that takes these types; else the types themselves.

    Raises ArgumentError where the kernel has signatures and none of them takes the types.
    """
    if kernel._can_compile or kinds in kernel.overloads:
        return kinds
    from numba.cuda.descriptor import cuda_target

    context = cuda_target.typing_context
    for known in kernel.overloads:
        pairs = zip(kinds, known, strict=False)
        if len(known) == len(kinds) and all(context.can_convert(*p) is not None for p in pairs):
            return known
    listed = "; ".join(f"({', '.join(map(str, one))})" for one in kernel.overloads)
    raise ArgumentError(
        f"{place_of(kernel.py_func)} is compiled for {listed}, and got "
        f"({', '.join(map(str, kinds))})"
    )
