"""What threads wait for: barriers of blocks, mbarrier objects, asynchronous copies, registers."""

from .block import Barriers
from .copies import AsyncCopies
from .mbarriers import Mbarriers
from .register_pool import RegisterPool
