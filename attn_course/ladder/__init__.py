"""The ladder: which kernel files there are, how each is launched, and `attention()` over them."""

from .attention import METHODS, attention, prepared, run_steps, step_arguments, steps_of
from .choose import current_device
from .problem import Device, Launch, Problem
from .steps import EXPERIMENTS, LADDER, Step, step
from .tiles import FLASH_TILES
from .verify import verify_method, verify_step

__all__ = [
    "EXPERIMENTS",
    "FLASH_TILES",
    "LADDER",
    "METHODS",
    "Device",
    "Launch",
    "Problem",
    "Step",
    "attention",
    "current_device",
    "prepared",
    "run_steps",
    "step",
    "step_arguments",
    "steps_of",
    "verify_method",
    "verify_step",
]
