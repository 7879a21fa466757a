"""Figures and text tables. They take arrays and records, and know nothing of kernels."""

from .tables import table

__all__ = ["table"]
