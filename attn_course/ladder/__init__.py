"""The ladder: which kernel files there are, how each is launched, and `attention()` over them."""

from .call import Call, StepLaunch, call_steps, run_steps
from .choose import current_device
from .methods import METHODS, Plan, Request, attention, steps_of
from .problem import Device, Geometry, Problem
from .steps import EXPERIMENTS, LADDER, Step, step
from .tiles import FLASH_TILES
from .verify import verify_method, verify_step
