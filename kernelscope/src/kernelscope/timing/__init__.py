"""How long a launch takes on a GPU, and what limits it, from the simulator's counts."""

from ..lazy import lazy

_NAMES = {
    "machine_code": "cubin_registers disassembled",
    "gpus": "GpuConstants gpu names",
    "model": "Prediction",
    "observer": "Time",
    "measure": "measure_gpu replay_times",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
