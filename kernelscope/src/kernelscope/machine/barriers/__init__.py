"""What threads wait for: barriers of blocks, mbarrier objects, and asynchronous copies."""

from .block import Barriers
from .copies import AsyncCopies
from .mbarriers import Mbarriers
