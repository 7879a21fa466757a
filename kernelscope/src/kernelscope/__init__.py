"""Run, count, check and trace CUDA kernels, on a GPU through CuPy or on a CPU, thread by thread.

ptx reads PTX, isa knows its operations, translate turns it into NumPy, machine runs it, compile
calls NVRTC, module offers CuPy's RawModule on either backend, watch observes a simulated run.
"""

from .lazy import lazy

__version__ = "0.1.0"

_NAMES = {
    # kernels and where they run
    "module": "RawModule RawKernel Kernel allow_shared",
    "module.graphs": "GraphLaunch capture_graph",
    "module.limits": "DEFAULT_SHARED_BYTES OPT_IN_SHARED_KIB",
    "module.arguments": "bind",
    "backend": "BACKENDS array_module asnumpy gpu_count resolve_backend xp",
    "address_space": "device_address",
    "budget": "call_budget",
    # who watches a simulated launch
    "events": "InstructionEvent Launch Observer observe",
    "watch": "Counters Sanitizer Tracer",
    # sources and compiled code
    "compile": "closure_hash compile_cubin file_stamp include_closure with_headers",
    "compile.kept": "keep kept_path read_kept",
    "ptx.demangle": "demangle",
    "ptx.source_module": "lines_of",
    # what goes wrong
    "errors": """ArgumentError ArgumentWarning BackendError CompileError CompilerFailedError
        CompilerMissingError
        Diagnostic Hang InputError InputTypeError Interrupted KernelAssertion KernelNotFoundError
        LaunchError MemoryFault MissingFileError OutOfTime ParseError SimulatorError TooLarge Trap
        UnknownNameError UnsupportedKernel UserError hide_frames""",
    # what a project says once
    "project": "add_arch_comment add_kernel_folder",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
