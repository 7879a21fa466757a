"""The call of NVRTC: options, architecture, cache.

NVRTC comes as a pip wheel. The library that CuPy loads is called in a process of its own, with
the options of `cupy.RawModule`, so that the simulator and the GPU run the same code.
"""

import os
import re
import signal
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

from ..backend import make_room_for_cupy
from ..budget import TIMEOUT, Budget, call_budget
from ..errors import CompileError, CompilerFailedError, CompilerMissingError, InputError
from ..project import arch_comment
from .allowed import check_includes
from .closure import MOST_SOURCE_BYTES, Closure, include_closure
from .compiler import ask_compiler
from .includes import (
    NVCC_HEADERS,
    NVCC_OPTIONS,
    cuda_major,
    include_folders,
    include_options,
    package_name,
    real_folders,
)
from .kept import keep, kept_file, read_kept
from .messages import describe_failure, lacked_of_nvcc

DEFAULT_ARCH = "compute_80"
BUILDS = {"optimised": ("-lineinfo",), "debug": ("-G",)}

# What CuPy adds to every RawModule: flush-to-zero, and unannotated functions run on the device.
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")

LONGEST_SECONDS = 1e6  # of one compilation, where the limit is infinite
LEAST_BYTES, COMPILER_BYTES = 256 << 20, 4 << 30  # of memory for one compilation

_ARCH_NAME = re.compile(r"\bsm_(\d+)([af]?)")
_ARCH_OPTION = re.compile(r"^(?:-arch|--gpu-architecture|-gpu-architecture)(?:=(.*))?$")
_STD_OPTION = re.compile(r"^--?std\b")
_INCLUDE_OPTION = re.compile(r"^(?:-I|--?include-path)(?:=?(.+))?$")


@dataclass(frozen=True)
class Compiled:
    """The result of one compilation.

    `ptx` is the PTX text, `cubin` the binary (b"" for a PTX build), `lowered_names` maps each
    name expression to its mangled name, `log` holds NVRTC's warnings, `arch` what it compiled for.
    `added` are options that gave it declarations of nvcc's, for want of which it did not compile;
    `lacked` names what it lacked first, `lacked_at` says where, as "scale.cu:1".
    """

    ptx: str
    lowered_names: dict[str, str] = field(default_factory=dict)
    log: str = ""
    arch: str = DEFAULT_ARCH
    cubin: bytes = b""
    added: tuple[str, ...] = ()
    lacked: str = ""
    lacked_at: str = ""


def required_arch(source: str) -> tuple[int, str]:
    """The largest architecture that a comment of the source names, as (90, "a"); (0, "") if none.

    >>> required_arch("// kernelscope: sm_90a")
    (90, 'a')
    """
    found = _ARCH_NAME.findall(arch_comment(source))
    return max(((int(number), suffix) for number, suffix in found), default=(0, ""))


def default_arch(source: str) -> str:
    """The simulator's target: compute_80, or what a comment of the source asks beyond it."""
    number, suffix = required_arch(source)
    return f"compute_{number}{suffix}" if number > 80 else DEFAULT_ARCH


def requested_arch(options: tuple[str, ...]) -> str | None:
    """The architecture the user's own options name ("sm_90a", "compute_80"), or None."""
    chosen = None
    for position, option in enumerate(options):
        match = _ARCH_OPTION.match(option)
        if match:
            following = options[position + 1] if position + 1 < len(options) else ""
            chosen = match.group(1) or following
    return chosen


def compile_ptx(
    source: str,
    name: str = "kernel.cu",
    options: tuple[str, ...] = (),
    arch: str = DEFAULT_ARCH,
    build: str = "optimised",
    name_expressions: tuple[str, ...] = (),
    folder: str | None = None,
) -> Compiled:
    """Compile CUDA C to PTX.

    `name` is the file's name or path, which errors and `.loc` lines show. Quoted includes are
    looked for in `folder`, or, when that is None, in the folder that `name` contains. `options`
    are NVRTC's; an `-arch` or `-std` among them wins over `arch` and C++17. `build` is
    "optimised" (with line information) or "debug" (`-G`).

    Raises CompileError with file, line and hint, CompilerFailedError where the compiler gave no
    verdict, CompilerMissingError when NVRTC is not there.
    """
    if build not in BUILDS:
        raise InputError(f"build is {build!r}; it must be one of {', '.join(map(repr, BUILDS))}")
    chosen = requested_arch(tuple(options)) or arch
    # A virtual architecture yields PTX; a real one would run ptxas as well, for nothing.
    target = chosen.replace("sm_", "compute_")
    return _compile(
        source, name, tuple(options), target, BUILDS[build], tuple(name_expressions), folder
    )


def compile_cubin(
    source: str,
    name: str = "kernel.cu",
    options: tuple[str, ...] = (),
    arch: str = "sm_80",
    name_expressions: tuple[str, ...] = (),
    folder: str | None = None,
) -> Compiled:
    """Compile CUDA C to a cubin for one real architecture such as "sm_90a"; `ptx` is empty.

    Raises CompileError (also for what only the assembler sees, such as too much static shared
    memory) and CompilerMissingError.
    """
    target = arch.replace("compute_", "sm_")
    return _compile(
        source, name, tuple(options), target, BUILDS["optimised"], tuple(name_expressions), folder
    )


def _compile(source, name, options, target, build_options, name_expressions, folder) -> Compiled:
    if folder is None:
        folder = str(Path(name).parent) if os.sep in name else None
    call = source, name, options, target, build_options, name_expressions, folder
    known = _lacking.get(call[:3])
    if known is None:
        try:
            return _compile_with(call, ())
        except CompileError as error:
            lacked = lacked_of_nvcc(error.diagnostics, source)
            if not lacked:
                raise
            known = lacked, f"{os.path.basename(error.file)}:{error.line}"
    compiled = _compile_with(call, NVCC_OPTIONS)
    if len(_lacking) >= _MOST_KNOWN:
        _lacking.clear()
    _lacking[call[:3]] = known
    return replace(compiled, added=NVCC_OPTIONS, lacked=known[0], lacked_at=known[1])


_MOST_KNOWN = 256
# (source, name, options) -> what it lacked, and where
_lacking: dict[tuple, tuple[str, str]] = {}


def _compile_with(call: tuple, added: tuple[str, ...]) -> Compiled:
    source, name, options, target, build_options, name_expressions, folder = call
    arguments = (
        *_without_arch(options),
        *standard_options(options),
        *added,
        *include_options(folder),
        *CUPY_OPTIONS,
        *build_options,
        f"-arch={target}",
    )
    _check_text(source, name)
    search = _search_folders(options)
    own = (folder, *search) if folder else search
    # An edited header is another compilation.
    headers = check_includes(source, name, own, (*include_folders(), *[NVCC_HEADERS][: len(added)]))
    here = os.getcwd()  # where a relative name or folder begins
    on_disk = not search  # what is compiled with `-I` is kept in this process alone
    return _run_nvrtc(
        source, name, arguments, target, name_expressions, headers, own, on_disk, here
    )


def _check_text(source: str, name: str) -> None:
    """Refuse a source that NVRTC would not read as it is written."""
    if len(source) > MOST_SOURCE_BYTES:
        raise CompileError(f"{name}: the source has more than {MOST_SOURCE_BYTES >> 20} MB")
    for place, what in (
        (source.find("\0"), "a NUL character"),
        (_surrogate(source), "half a pair"),
    ):
        if place >= 0:
            line = source.count("\n", 0, place) + 1
            raise CompileError(
                f"{name}:{line}: error: {what} in the text; the compiler reads UTF-8"
            )


def _surrogate(source: str) -> int:
    """The place of a character that UTF-8 does not have; -1 for none."""
    try:
        source.encode("utf-8")
    except UnicodeEncodeError as error:
        return error.start
    return -1


def standard_options(options: tuple[str, ...]) -> tuple[str, ...]:
    """C++17, as CuPy 14 has it, unless the options name a standard of their own."""
    return () if any(map(_STD_OPTION.match, options)) else ("-std=c++17",)


def _without_arch(options: tuple[str, ...]) -> tuple[str, ...]:
    """The options less any `-arch`, whose value the caller passes on as the target."""
    kept, skip = [], False
    for option in options:
        match = _ARCH_OPTION.match(option)
        if not skip and not match:
            kept.append(option)
        skip = bool(match) and match.group(1) is None
    return tuple(kept)


def headers_of(source: str, folder: str | None, options: tuple[str, ...] = ()) -> Closure:
    """Return (name, text) of all headers that a source includes by quotes.

    They are looked for beside the source and in the folders that the options name (`-I`).
    """
    return include_closure(source, folder, _search_folders(options))


def _search_folders(options: tuple[str, ...]) -> tuple[str, ...]:
    """The folders that the options name."""
    search = []
    for position, option in enumerate(options):
        match = _INCLUDE_OPTION.match(option)
        if match:
            search.append(match.group(1) or "".join(options[position + 1 : position + 2]))
    return tuple(search)


@lru_cache(maxsize=256)
def _run_nvrtc(
    source, name, arguments, target, name_expressions, headers, own, on_disk, working_folder
) -> Compiled:
    library = _load_nvrtc()
    binary = target.startswith("sm_")
    with call_budget() as budget:
        request = {
            "source": source,
            "name": name,
            "options": arguments,
            "name_expressions": name_expressions,
            "binary": binary,
            "working_folder": working_folder,
            "readable": [
                *map(os.path.abspath, own),
                *real_folders((*include_folders(), NVCC_HEADERS)),
                os.path.dirname(library),
            ],
            "memory_bytes": min(max(budget.memory_bytes, LEAST_BYTES), COMPILER_BYTES),
            "seconds": min(budget.remaining(), LONGEST_SECONDS),
        }
        path = kept_file(library, request, headers) if on_disk else None
        kept = read_kept(path)
        reply, image = kept or _answer(library, request, name, budget)
    if reply["error"]:
        log, system = reply["log"].rstrip("\0") or reply["error"], real_folders(include_folders())
        failure = describe_failure(source, name, log, arguments, reply["error"], system)
        if not kept and lacked_of_nvcc(failure.diagnostics, source):
            keep(path, reply, image)  # it compiles otherwise, and need not fail again before
        raise failure
    if not kept:
        keep(path, reply, image)
    ptx = "" if binary else image.decode(errors="replace").rstrip("\0")
    if not binary and ".version" not in ptx:
        raise CompileError(
            f"{name}: the compiler makes no PTX with these options, and the kernels' names "
            f"and parameters are read from it: leave out -dlto (link-time optimisation)"
        )
    return Compiled(
        ptx=ptx,
        lowered_names=dict(zip(name_expressions, reply["lowered"], strict=True)),
        log=reply["log"].strip("\0 \n"),
        arch=target,
        cubin=image if binary else b"",
    )


def _answer(library: str, request: dict, name: str, budget: Budget) -> tuple[dict, bytes]:
    """The compiler's reply; CompilerFailedError where it found no end, or ended before its time."""
    try:
        if not request["seconds"]:
            raise TimeoutError
        reply, image = ask_compiler(library, request, request["seconds"])
    except TimeoutError:
        raise CompilerFailedError(
            f"{name}: the compiler ran longer than {budget.seconds:g} s. Does a template or a "
            f"macro expand without end? If not, set the environment variable {TIMEOUT} to more "
            f"seconds"
        ) from None
    except ChildProcessError as error:
        raise CompilerFailedError(f"{name}: {error}") from None
    if "ended" in reply:
        status = reply["ended"]
        why = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        raise CompilerFailedError(
            f"{name}: the compiler broke down ({why}). Is something nested "
            f"very deeply, or expanded very often?"
        )
    return reply, image


def _load_nvrtc() -> str:
    """The path of the NVRTC library that CuPy loads."""
    make_room_for_cupy()
    try:
        from cupy.cuda import nvrtc
    except ImportError as error:
        raise CompilerMissingError(
            f"CuPy is needed to compile CUDA C and cannot be imported ({error}): "
            f"pip install cupy-cuda12x"
        ) from error
    try:
        nvrtc.getVersion()
    except (RuntimeError, OSError, ImportError) as error:
        raise CompilerMissingError(
            "CUDA's run-time compiler NVRTC cannot be loaded: pip install "
            f"{package_name('nvidia-cuda-nvrtc', cuda_major())}"
        ) from error
    return _loaded_library()


@lru_cache(maxsize=1)
def _loaded_library() -> str:
    """The path of the libnvrtc that CuPy has loaded into this process."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        paths = {line.split(maxsplit=5)[5].strip() for line in maps if "libnvrtc.so" in line}
    if not paths:
        raise CompilerMissingError(
            "CuPy has NVRTC built in; a shared library libnvrtc.so is needed"
        )
    own = f"libnvrtc.so.{cuda_major()}"  # PyTorch may have loaded one of another version
    return max(sorted(paths), key=lambda path: os.path.basename(path).startswith(own))
