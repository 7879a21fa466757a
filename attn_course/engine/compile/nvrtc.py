"""The call of NVRTC: options, architecture, cache.

NVRTC comes as a pip wheel and is called through CuPy. The options are those of
`cupy.RawModule`, so that the simulator and the GPU run the same code.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from ..errors import CompileError, CompilerMissingError
from .closure import Closure, include_closure
from .includes import cuda_major, include_options, package_name
from .messages import describe_failure

DEFAULT_ARCH = "compute_80"
BUILDS = {"optimised": ("-lineinfo",), "debug": ("-G",)}

# What CuPy adds to every RawModule: flush-to-zero, and unannotated functions run on the device.
CUPY_OPTIONS = ("-ftz=true", "--device-as-default-execution-space")

_NEEDS = re.compile(r"^\s*//\s*Needs:(.*)$", re.MULTILINE)
_ARCH_NAME = re.compile(r"\bsm_(\d+)([af]?)")
_ARCH_OPTION = re.compile(r"^(?:-arch|--gpu-architecture|-gpu-architecture)(?:=(.*))?$")
_STD_OPTION = re.compile(r"^--?std\b")
_INCLUDE_OPTION = re.compile(r"^(?:-I|--?include-path)(?:=?(.+))?$")


@dataclass(frozen=True)
class Compiled:
    """The result of one compilation.

    `ptx` is the PTX text, `cubin` the binary (b"" for a PTX build), `lowered_names` maps each
    name expression to its mangled name, `log` holds NVRTC's warnings, `arch` what it compiled for.
    """

    ptx: str
    lowered_names: dict[str, str] = field(default_factory=dict)
    log: str = ""
    arch: str = DEFAULT_ARCH
    cubin: bytes = b""


def required_arch(source: str) -> tuple[int, str]:
    """The largest architecture the header's `// Needs:` line names, as (90, "a"); (0, "") if none.

    >>> required_arch("// Needs: sm_90a; TILE <= 32")
    (90, 'a')
    """
    match = _NEEDS.search(source)
    found = _ARCH_NAME.findall(match.group(1)) if match else []
    return max(((int(number), suffix) for number, suffix in found), default=(0, ""))


def default_arch(source: str) -> str:
    """The simulator's target: compute_80, or what the header's `// Needs:` line asks beyond it."""
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

    Raises CompileError with file, line and hint, CompilerMissingError when NVRTC is not there.
    """
    if build not in BUILDS:
        raise ValueError(f"build is {build!r}; it must be one of {', '.join(map(repr, BUILDS))}")
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
    arguments = (
        *_without_arch(options),
        *standard_options(options),
        *include_options(folder),
        *CUPY_OPTIONS,
        *build_options,
        f"-arch={target}",
    )
    headers = headers_of(source, folder, options)  # an edited header is another compilation
    return _run_nvrtc(source, name, arguments, target, name_expressions, headers)


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
    search = []
    for position, option in enumerate(options):
        match = _INCLUDE_OPTION.match(option)
        if match:
            search.append(match.group(1) or "".join(options[position + 1 : position + 2]))
    return include_closure(source, folder, tuple(search))


@lru_cache(maxsize=256)
def _run_nvrtc(source, name, arguments, target, name_expressions, headers) -> Compiled:
    nvrtc = _load_nvrtc()
    program = nvrtc.createProgram(source, name, (), ())
    try:
        for expression in name_expressions:
            nvrtc.addNameExpression(program, expression)
        try:
            nvrtc.compileProgram(program, arguments)
        except nvrtc.NVRTCError as error:
            log = nvrtc.getProgramLog(program).rstrip("\0")
            raise describe_failure(source, name, log or str(error), arguments) from None
        binary = target.startswith("sm_")
        ptx = "" if binary else _text(nvrtc.getPTX(program))
        if not binary and ".version" not in ptx:
            raise CompileError(
                f"{name}: the compiler makes no PTX with these options, and the kernels' names "
                f"and parameters are read from it: leave out -dlto (link-time optimisation)"
            )
        lowered = {text: nvrtc.getLoweredName(program, text) for text in name_expressions}
        return Compiled(
            ptx=ptx,
            lowered_names={text: _text(mangled) for text, mangled in lowered.items()},
            log=_text(nvrtc.getProgramLog(program)).strip("\0 \n"),
            arch=target,
            cubin=nvrtc.getCUBIN(program) if binary else b"",
        )
    finally:
        nvrtc.destroyProgram(program)


def _text(data: bytes | str) -> str:
    return (data.decode(errors="replace") if isinstance(data, bytes) else data).rstrip("\0")


def _load_nvrtc():
    """CuPy's binding of NVRTC, once it has been seen to work."""
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
    return nvrtc
