"""How fast: timing, contests, records, and models of what the hardware allows."""

from kernelscope.lazy import lazy

_NAMES = {
    "timing": "Replay Timing TimingError bootstrap_ratio contest require_gpu",
    "contestants": "Kernels Part",
    "first_calls": "measured",
    "records": "caption measured_or_recorded newest_record",
    "roofline": "attention_work method_work step_work tflops",
    "hardware.devices": "MULTIPROCESSORS peak_of",
    "hardware.disassembly": "count_operations machine_code",
    "hardware.occupancy": "compiled_registers occupancy",
    "pipeline_times": "CHAINS KERNELS NO_RECORD by_size times",
    "experiments": "REPORT_SHAPES",
    "hardware.nsight": "COUNTER_METRICS SPEED_METRICS STALL_METRICS Target ncu_command",
    "hardware": "memory_levels",
    "suites.layers": "layer_times",
    "gpus": "times_on_each_gpu",
}
__all__, __getattr__, __dir__ = lazy(__name__, _NAMES)
