"""Errors on the way from CUDA C to PTX."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Diagnostic:
    """One message of the compiler: where it points, what it says, and what it prints below."""

    file: str
    line: int
    severity: str  # "error", "catastrophic error" or "warning"
    message: str
    snippet: tuple[str, ...] = ()  # the source line and the caret line


class CompileError(RuntimeError):
    """CUDA C that does not compile.

    `diagnostics` holds the compiler's errors in order, `log` its whole output; `file` and
    `line` are those of the first error ("" and 0 when the compiler gives none).
    """

    def __init__(self, message: str, diagnostics: tuple[Diagnostic, ...] = (), log: str = ""):
        super().__init__(message)
        self.diagnostics = diagnostics
        self.log = log
        self.file = diagnostics[0].file if diagnostics else ""
        self.line = diagnostics[0].line if diagnostics else 0


class CompilerMissingError(RuntimeError):
    """CuPy or NVRTC is not installed; the message names the pip package to install."""
