"""A Triton kernel that is given as text, called as one of CUDA C."""

import builtins
import linecache
from math import prod

from ..errors import CompileError, Diagnostic, KernelNotFoundError, did_you_mean
from .call import TritonCall, compile
from .compiler import import_triton


class TextKernel:
    """The kernel `name` of a Python text, which is executed: it may be no stranger's.

    `kernel(grid, block, args)` compiles it for the arguments, constants included, and launches
    it; a block of 128 threads is Triton's num_warps = 4. Other options of Triton, such as
    num_stages, are `options`. `call` is the last launch's.
    """

    def __init__(self, text: str, name: str, file: str = "kernel.py", **options):
        """Raise CompileError for a text that is no Python or raises, KernelNotFoundError."""
        import_triton()
        self.name, self.options, self.warp_order = name, options, None
        self.call: TritonCall | None = None
        lines, names = text.splitlines(keepends=True), {"__name__": "kernel"}
        self._entry = file, (len(text), None, lines, file)
        self._show()
        try:
            exec(builtins.compile(text, file, "exec"), names)
        except Exception as error:
            raise _refused(error, lines, file) from error
        self.function = names.get(name)
        if not hasattr(self.function, "fn"):
            found = [key for key, value in names.items() if hasattr(value, "fn")]
            raise KernelNotFoundError(
                f"{file} has no Triton kernel {name!r}{did_you_mean(name, found)}; it needs a "
                "function with @triton.jit"
            )

    def __call__(self, grid, block, args, *, shared_mem: int = 0) -> None:
        """Launch the kernel. Raises what `kernelscope.triton.run` raises."""
        self._show()
        threads = block if isinstance(block, int) else prod(block)
        self.call = compile(self.function, *args, num_warps=threads // 32, **self.options)
        self.call.kernel.warp_order = self.warp_order
        self.call(grid)

    def _show(self) -> None:
        """Put the text where Triton and Python look for a file's lines."""
        file, entry = self._entry
        linecache.cache[file] = entry

    @property
    def shared_size_bytes(self) -> int:
        """Shared memory of a block of the last launch."""
        return self.call.shared_bytes if self.call else 0

    max_dynamic_shared_size_bytes = shared_size_bytes  # Triton asks for what it takes

    @property
    def module(self):
        """The engine's module of the last launch."""
        return self.call.kernel.module


def _refused(error: Exception, lines: list[str], file: str) -> CompileError:
    """The error of a text that cannot be executed, with its line."""
    at = getattr(error, "lineno", None) or 0
    trace = error.__traceback__
    while trace:
        at = trace.tb_lineno if trace.tb_frame.f_code.co_filename == file else at
        trace = trace.tb_next
    text = lines[at - 1].strip() if 0 < at <= len(lines) else ""
    reason = f"{type(error).__name__}: {getattr(error, 'msg', None) or error}"
    diagnostic = Diagnostic(file, at, "error", reason, (text,) if text else ())
    quoted = f" `{text}`" if text else ""
    return CompileError(f"{file}:{at}{quoted}: {reason}", (diagnostic,), str(error))
