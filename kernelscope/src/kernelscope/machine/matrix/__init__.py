"""The matrix instructions of a chunk: those of warps, and those of groups of four warps."""

from .matrices import Matrices
from .warpgroups import WarpGroups
