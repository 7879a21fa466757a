"""CUDA C to PTX or cubin through NVRTC, without a CUDA toolkit and without a GPU."""

from .errors import CompileError, CompilerMissingError
from .includes import include_folders, include_options
from .nvrtc import (
    BUILDS,
    Compiled,
    compile_cubin,
    compile_ptx,
    default_arch,
    header_stamp,
    requested_arch,
    required_arch,
    standard_options,
)

__all__ = [
    "BUILDS",
    "CompileError",
    "Compiled",
    "CompilerMissingError",
    "compile_cubin",
    "compile_ptx",
    "default_arch",
    "header_stamp",
    "include_folders",
    "include_options",
    "requested_arch",
    "required_arch",
    "standard_options",
]
