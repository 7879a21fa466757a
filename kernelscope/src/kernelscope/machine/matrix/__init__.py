"""Matrix instructions on the lanes of a chunk."""

from .matrices import Matrices
