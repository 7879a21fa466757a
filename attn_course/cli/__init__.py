"""The command `attn-course`, one module a subcommand."""

from .main import main

__all__ = ["main"]
