"""Barriers: those of blocks, by number, and mbarrier objects in shared memory."""

from .block import Barriers
from .mbarriers import Mbarriers
