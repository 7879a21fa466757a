"""NVRTC's messages, made readable: file and line, the line's text, a caret, and a hint."""

import difflib
import os
import re

from ..errors import CompileError, CompilerFailedError, Diagnostic
from ..ptx.source_module import lines_of
from .includes import NVCC_HEADERS, cuda_major, package_name

_HEAD = re.compile(
    r"^(?:(?P<file>.+?)\((?P<line>\d+)\)|At end of source): "
    r"(?P<severity>(?:catastrophic )?error|warning)(?: #[\w-]+)?: (?P<message>.*)$"
)
_MISSING_HEADER = re.compile(r'cannot open source file "([^"]+)"')
_ASSEMBLER = re.compile(r"^ptxas (?:error|fatal)\s*: (.*)$", re.MULTILINE)
_CUB = re.compile(r"^[ \t]*#[ \t]*include[ \t]*<cub/cub\.cuh>", re.MULTILINE)
_UNSET = re.compile(r'variable "([^"]+)" is used before its value is set')

_PYTHON = re.compile(r"\s*(?:for\s+\w+\s+in\b|(?:if|elif|else|while|def)\b).*:\s*(?://.*|#.*)?$")
_MAIN = re.compile(r"\s*(?:int|void|auto)\s+main\s*\(")
_HOST_CALL = re.compile(r"\bcuda[A-Z]\w*\s*\(|\bstd::(?:cout|cerr|endl|vector|string)\b")

PYTHON_HINT = (
    "this is Python: C++ has the condition in parentheses and the body in braces, as in "
    "for (int i = 0; i < n; ++i) { ... }"
)
HOST_HINT = (
    "The compiler takes device code only: kernels and what they call. Keep the host's part in "
    "another file, or between #ifndef __CUDACC_RTC__ and #endif"
)
CUDA_HEADER_HINT = (
    "this header of CUDA is not yours to edit: the part that you include is for the host's "
    "compiler too. Include only the headers of what the kernel uses, such as "
    "<cub/block/block_reduce.cuh>"
)
MAX_SHOWN = 5
MOST_NAMES = 10000  # of a source, in which a misspelt name is looked for

# Header -> the wheel that has it.
HEADER_PACKAGES = {
    "cuda_fp16.h": "nvidia-cuda-runtime",
    "cuda_bf16.h": "nvidia-cuda-runtime",
    "cuda_fp8.h": "nvidia-cuda-runtime",
    "cuda_runtime.h": "nvidia-cuda-runtime",
    "cuda_pipeline.h": "nvidia-cuda-runtime",
    "cooperative_groups.h": "nvidia-cuda-runtime",
    "mma.h": "nvidia-cuda-runtime",
    "crt/mma.h": "nvidia-cuda-nvcc",
    "curand_kernel.h": "nvidia-curand",
    "cublas_v2.h": "nvidia-cublas",
    "nv/target": "nvidia-cuda-cccl",
    "cuda/pipeline": "nvidia-cuda-cccl",
    "cuda/barrier": "nvidia-cuda-cccl",
}

# What this package itself installs, or CuPy brings; the others are a choice of the source.
OWN_PACKAGES = {"nvidia-cuda-runtime", "nvidia-cuda-nvcc", "nvidia-cuda-cccl"}

# Replies of NVRTC that say nothing of the source.
NO_VERDICT = {
    "NVRTC_ERROR_OUT_OF_MEMORY",
    "NVRTC_ERROR_PROGRAM_CREATION_FAILURE",
    "NVRTC_ERROR_BUILTIN_OPERATION_FAILURE",
    "NVRTC_ERROR_INTERNAL_ERROR",
}

DEVICE_NAMES = """
    threadIdx blockIdx blockDim gridDim warpSize __syncthreads __syncwarp __shfl_sync
    __shfl_down_sync __shfl_up_sync __shfl_xor_sync __ballot_sync __shared__ __global__
    __device__ __constant__ __restrict__ __launch_bounds__ atomicAdd atomicMax atomicMin
    atomicCAS atomicExch fmaxf fminf expf exp2f logf sqrtf rsqrtf fmaf tanhf erff printf float2
    float4
""".split()

# Names that nvcc declares before the first line of a source.
_OF_NVCC = re.compile(
    r"INFINITY|NAN|HUGE_VALF?|M_\w+|(?:CHAR|SCHAR|UCHAR|SHRT|USHRT|INT|UINT|LONG|ULONG|LLONG|ULLONG|SIZE"
    r"|FLT|DBL|LDBL)_\w+|u?int(?:_fast|_least)?(?:8|16|32|64)_t|u?int(?:ptr|max)_t|U?INT\d+_\w+"
)
_UNDEFINED = re.compile(r'identifier "(\w+)" is undefined')
_NOT_IN_STD = re.compile(r'namespace "std" has no member "(\w+)"')
# What an undeclared name is declared in.
HEADER_OF_NAME = (
    (re.compile(r"^(__)?half2?$|^__(half|float)\w*(half|float)\w*$"), "cuda_fp16.h"),
    (re.compile(r"bfloat16"), "cuda_bf16.h"),
    (re.compile(r"^nvcuda$|^wmma$"), "mma.h"),
    (re.compile(r"^cooperative_groups$"), "cooperative_groups.h"),
    (re.compile(r"^__pipeline_"), "cuda_pipeline.h"),
    (re.compile(r"^(CUDART_\w+)$"), "math_constants.h"),
)


def parse_log(log: str, source: str, name: str) -> list[Diagnostic]:
    """The compiler's messages, in order, each with the source line and caret it printed."""
    found: list[Diagnostic] = []
    lines = lines_of(log)
    for position, text in enumerate(lines):
        match = _HEAD.match(text)
        if match:
            snippet = []
            for following in lines[position + 1 :]:
                if not following.startswith("  "):
                    break
                snippet.append(following[2:])
            at = int(match["line"]) if match["line"] else len(lines_of(source))
            found.append(
                Diagnostic(
                    match["file"] or name, at, match["severity"], match["message"], tuple(snippet)
                )
            )
    return found


def lacked_of_nvcc(diagnostics: tuple[Diagnostic, ...], source: str) -> str:
    """Return what the first error lacks that `headers/` has, such as "<math.h>"; "" for none."""
    message = diagnostics[0].message if diagnostics else ""
    if missing := _MISSING_HEADER.search(message):
        own = os.path.isfile(os.path.join(NVCC_HEADERS, missing[1]))
        return f"<{missing[1]}>" if own else ""
    if "not allowed in JIT mode" in message and _CUB.search(source):
        return "<cub/cub.cuh>"
    if (undefined := _UNDEFINED.search(message)) and _OF_NVCC.fullmatch(undefined[1]):
        return undefined[1]
    member = _NOT_IN_STD.search(message)
    return f"std::{member[1]}" if member else ""


def unset_uses(log: str, source: str, name: str) -> tuple[tuple[int, str, int], ...]:
    """Return (line, variable, column from 0) of each place in the source where the compiler warns
    that a variable is used before its value is set.
    """
    found = []
    for warning in parse_log(log, source, name) if "value is set" in log else ():
        unset = _UNSET.fullmatch(warning.message)
        if unset and os.path.basename(warning.file) == os.path.basename(name) and warning.snippet:
            found.append((warning.line, unset[1], warning.snippet[-1].find("^")))
    return tuple(found)


def describe_failure(
    source: str,
    name: str,
    log: str,
    options: tuple[str, ...],
    code: str = "",
    system: tuple[str, ...] = (),
) -> CompileError:
    """Build the CompileError for a failed run of NVRTC from its log.

    It is a CompilerFailedError where a part of the compiler is missing or failed. code: NVRTC's
    error, such as "NVRTC_ERROR_COMPILATION". system: folders of CUDA's headers.
    """
    diagnostics = parse_log(log, source, name)
    errors = [d for d in diagnostics if "error" in d.severity]
    if not errors:
        kind = CompilerFailedError if code in NO_VERDICT else CompileError
        return kind(_describe_other(name, log, options), (), log)
    lines = lines_of(source)
    first = lines[errors[0].line - 1 : errors[0].line] if errors[0].file == name else ()
    most = 1 if any(map(_PYTHON.match, first)) else MAX_SHOWN
    parts, hints = [], set()
    for diagnostic in errors[:most]:
        text, hint = _describe(diagnostic, source, name, system)
        parts += [text] if not hint or hint in hints else [text, f"hint: {hint}"]
        hints.add(hint)
    if len(errors) > most:
        parts.append(f"... and {len(errors) - most} more errors; the first causes most others")
    missing = any(_is_of_the_machine(error, system) for error in errors)
    kind = CompilerFailedError if missing else CompileError
    return kind("\n".join(parts), tuple(errors), log)


def _is_of_the_machine(error: Diagnostic, system: tuple[str, ...]) -> bool:
    """Whether a header is missing that comes with the compiler, or that one of CUDA's includes."""
    missing = _MISSING_HEADER.search(error.message)
    if not missing:
        return False
    return _is_inside(error.file, system) or HEADER_PACKAGES.get(missing[1]) in OWN_PACKAGES


def _is_inside(file: str, folders: tuple[str, ...]) -> bool:
    return os.path.realpath(file).startswith(tuple(f"{folder}{os.sep}" for folder in folders))


def _describe_other(name: str, log: str, options: tuple[str, ...]) -> str:
    """A failure without a source line: the assembler's, or an option that NVRTC does not take."""
    assembler = _ASSEMBLER.search(log)
    if assembler:
        message = f"{name}: {assembler.group(1).strip()}"
        if "too much shared data" in message:
            message += (
                "\nhint: static shared memory ends at 48 KB; declare it extern __shared__ "
                "and set kernel.max_dynamic_shared_size_bytes"
            )
        return message
    own = " ".join(option for option in options if not option.startswith("-I"))
    return f"{name}: {log.strip()}\ncompiler options: {own}"


def _describe(
    diagnostic: Diagnostic, source: str, name: str, system: tuple[str, ...]
) -> tuple[str, str]:
    """A message with its source line, and the hint to it or ""."""
    lines = lines_of(source) if diagnostic.file == name else []
    number = diagnostic.line
    text = list(diagnostic.snippet)
    if not text and 0 < number <= len(lines):
        text = [lines[number - 1]]
    shown = [f"{diagnostic.file}:{number}: error: {diagnostic.message}"]
    previous = _previous_code_line(lines, number)
    if previous and 'expected a ";"' in diagnostic.message:
        shown.append(f"{previous:6d} | {lines[previous - 1]}")
    for position, line in enumerate(text):
        shown.append(f"{number:6d} | {line}" if position == 0 else f"       | {line}")
    if _is_inside(diagnostic.file, system) and not _MISSING_HEADER.search(diagnostic.message):
        return "\n".join(shown), CUDA_HEADER_HINT
    return "\n".join(shown), _hint(diagnostic, source, lines, previous)


def _previous_code_line(lines: list[str], number: int) -> int:
    """The number of the last line before `number` that holds code; 0 when there is none."""
    for candidate in range(min(number, len(lines) + 1) - 1, 0, -1):
        text = lines[candidate - 1].strip()
        if text and not text.startswith("//"):
            return candidate
    return 0


def _hint(diagnostic: Diagnostic, source: str, lines: list[str], previous: int) -> str:
    message, text = diagnostic.message, lines[diagnostic.line - 1 : diagnostic.line]
    if any(map(_PYTHON.match, text)):
        return PYTHON_HINT
    main = next((i for i, line in enumerate(lines, 1) if _MAIN.match(line)), len(lines) + 1)
    if lines and diagnostic.line >= main or any(map(_HOST_CALL.search, text)):
        return f"this is host code. {HOST_HINT}"
    if 'expected a ";"' in message:
        return _semicolon_hint(diagnostic, lines, previous)
    missing = _MISSING_HEADER.search(message)
    if missing:
        return _header_hint(missing.group(1))
    if "is undefined" in message or "namespace name" in message:
        return _name_hint(_quoted(message) or _name_at_caret(diagnostic), source)
    if message == "texture is not a template":
        return "CUDA 12 has no texture references; pass a cudaTextureObject_t to the kernel"
    if 'expected a "}"' in message:
        return "a brace is opened and never closed; look for the block that misses its end"
    return ""


def _quoted(message: str) -> str:
    found = re.search(r'identifier "(\w+)"', message)
    return found.group(1) if found else ""


def _name_at_caret(diagnostic: Diagnostic) -> str:
    if len(diagnostic.snippet) < 2:
        return ""
    column = diagnostic.snippet[1].find("^")
    found = re.match(r"\w+", diagnostic.snippet[0][column:]) if column >= 0 else None
    return found.group(0) if found else ""


def _semicolon_hint(diagnostic: Diagnostic, lines: list[str], previous: int) -> str:
    caret = diagnostic.snippet[1].find("^") if len(diagnostic.snippet) > 1 else -1
    before_caret = diagnostic.snippet[0][:caret].strip() if caret >= 0 else "?"
    if previous and not before_caret:
        return f"line {previous} is not finished: does it miss a ; at its end?"
    return "a statement ends before the caret: does it miss a ; there?"


def _header_hint(header: str) -> str:
    if header in HEADER_PACKAGES:
        wheel = package_name(HEADER_PACKAGES[header], cuda_major())
        return f"it is in this package: pip install {wheel}"
    return (
        "put it beside the .cu file, or name its folder with the compiler's option -I/folder; "
        "headers of CUDA come from the nvidia-* packages"
    )


def _name_hint(name: str, source: str) -> str:
    for pattern, header in HEADER_OF_NAME:
        if name and pattern.search(name):
            return f"{name} is declared in <{header}>: add #include <{header}>"
    written = re.findall(r"[A-Za-z_]\w+", source)[:MOST_NAMES]
    known = set(written) - {name} | set(DEVICE_NAMES)
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.75)
    if close:
        return f"did you mean {close[0]}?"
    return f"{name} is not declared before this line" if name else ""


def describe_refusal(file: str, line: int, message: str, text: str, hint: str) -> CompileError:
    """Build the CompileError for a line that is not given to the compiler at all."""
    shown = f"{file}:{line}: error: {message}\n{line:6d} | {text}\nhint: {hint}"
    return CompileError(shown, (Diagnostic(file, line, "error", message, (text,)),))
