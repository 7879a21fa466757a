"""Attention kernels on a GPU and on a CPU: one CUDA C source for both."""

from .engine.lazy import lazy

__version__ = "0.1.0"

_NAMES = {
    "engine": """RawModule RawKernel observe Observer Counters Sanitizer Tracer array_module asnumpy
        xp resolve_backend ArgumentError ArgumentWarning BackendError CompileError
        CompilerFailedError CompilerMissingError KernelNotFoundError LaunchError""",
    "ladder": "attention",
    "layers": "layer_norm bias_gelu mlp TransformerBlock SwinStage",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
