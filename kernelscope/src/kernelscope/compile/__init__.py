"""CUDA C to PTX or cubin through NVRTC, without a CUDA toolkit and without a GPU."""

from ..errors import CompileError, CompilerFailedError, CompilerMissingError
from .closure import closure_hash, file_stamp, include_closure, read_text, with_headers
from .includes import include_folders, include_options
from .kept import keep, kept_path, read_kept
from .messages import unset_uses
from .nvrtc import (
    BUILDS,
    Compiled,
    compile_cubin,
    compile_ptx,
    default_arch,
    headers_of,
    requested_arch,
    required_arch,
    standard_options,
)

__all__ = [  # for packages beside this one
    "CompileError",
    "CompilerFailedError",
    "CompilerMissingError",
    "closure_hash",
    "compile_cubin",
    "compile_ptx",
    "file_stamp",
    "include_closure",
    "keep",
    "kept_path",
    "read_kept",
    "with_headers",
]
