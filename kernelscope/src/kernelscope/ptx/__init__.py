"""Reads PTX text: syntax, debug names, shapes of shared arrays."""

from ..lazy import lazy

_NAMES = {"source_module": "SourceModule lines_of"}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
