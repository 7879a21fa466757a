"""How fast: timing, benchmarks, records, and models of what the hardware allows."""

from kernelscope.lazy import lazy

_NAMES = {
    "candidates": "Kernels Part",
    "records": "caption newest_record recorded row_of layer_times times_on_each_gpu",
    "roofline": "attention_work method_work step_work tflops",
    "hardware.devices": "MULTIPROCESSORS peak_of",
    "hardware.disassembly": "count_operations machine_code",
    "hardware.occupancy": "compiled_registers occupancy",
    "hardware.nsight": "COUNTER_METRICS SPEED_METRICS STALL_METRICS Target ncu_command",
}
_OTHERS = {
    "kernelscope.contest": "Replay Timing TimingError bootstrap_ratio contest require_gpu",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES, _OTHERS)
