"""Attention kernels on a GPU and on a CPU: one CUDA C source for both."""

from kernelscope.errors import hide_frames
from kernelscope.lazy import lazy
from kernelscope.project import add_arch_comment, add_kernel_folder

from .folders import PACKAGE, course_folder

__version__ = "0.1.0"

# Kernels of the course take arguments of their parameters' own types alone.
add_kernel_folder(course_folder("kernels"), strict=True)
add_arch_comment("Needs")  # a field of the kernels' headers
hide_frames(PACKAGE)

_NAMES = {
    "ladder": "attention",
    "backward": "attention_backward",
    "layers": """layer_norm bias_gelu mlp TransformerBlock SwinStage
        layer_norm_backward bias_gelu_backward mlp_backward""",
}
_ENGINE = {
    "kernelscope": """RawModule RawKernel observe Observer Counters Sanitizer Tracer array_module
        asnumpy xp resolve_backend ArgumentError BackendError CompileError LaunchError""",
    "kernelscope.errors": """ArgumentWarning CompilerFailedError CompilerMissingError
        KernelNotFoundError UserError""",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES, _ENGINE)
