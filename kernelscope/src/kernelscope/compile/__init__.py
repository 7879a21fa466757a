"""CUDA C to PTX or cubin through NVRTC, without a CUDA toolkit and without a GPU."""

from ..errors import CompileError, CompilerFailedError, CompilerMissingError
from .closure import closure_hash, file_stamp, include_closure, read_text, with_headers
from .includes import include_folders, include_options
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
