"""Run, count, check and trace CUDA kernels, on a GPU through CuPy or on a CPU, thread by thread.

Here is what a first use needs. More is in the packages that are public beside this one: `errors`,
`watch` (all observers), `timing` (times on a GPU, predicted), `module` (launches, limits of shared
memory), `compile` (CUDA C to PTX or cubin), `ptx` (its text), `project` (what a package with
kernels of its own says once), `numba` and `triton` (kernels in Python), `ranks` (several GPUs, or
threads in their place).

ptx reads PTX, isa knows its operations, translate turns it into NumPy, machine runs it, compile
calls NVRTC, module offers CuPy's RawModule on either backend, watch observes a simulated run.
"""

from .lazy import lazy

__version__ = "0.1.0"

_NAMES = {
    # kernels and where they run
    "module": "RawModule RawKernel Kernel allow_shared capture_graph",
    "backend": "array_module asnumpy gpu_count resolve_backend xp",
    "address_space": "device_address",
    "tensor_map": "TensorMap",
    "budget": "call_budget",
    # who watches a simulated launch
    "events": "InstructionEvent Launch Observer observe",
    "watch": "Counters Sanitizer Tracer",
    # what goes wrong
    "errors": "ArgumentError BackendError CompileError LaunchError SimulatorError UserError",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
