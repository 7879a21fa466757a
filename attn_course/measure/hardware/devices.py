"""GPUs: the rates of their data sheets and the limits of their multiprocessors, in one table.

`ladder.problem.Device` is the part of this that a choice of tiles needs, read from the GPU in use.
"""

from dataclasses import dataclass

from kernelscope import resolve_backend
from kernelscope.errors import UnknownNameError

EXP_LANES = 16  # exp2 results a clock and SM; source as of FP32_LANES
# float32 fused multiply-adds a clock and SM where they are not 128: CUDA C++ Programming Guide,
# "Throughput of Native Arithmetic Instructions".
FP32_LANES = dict.fromkeys(("sm_60", "sm_70", "sm_72", "sm_75", "sm_80"), 64)


@dataclass(frozen=True)
class Multiprocessor:
    """Limits of one multiprocessor: warps, blocks, registers, bytes of shared memory."""

    warps: int
    blocks: int
    registers: int
    shared_bytes: int


# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
MULTIPROCESSORS = {
    "sm_75": Multiprocessor(32, 16, 65536, 64 * 1024),
    "sm_80": Multiprocessor(64, 32, 65536, 164 * 1024),
    "sm_86": Multiprocessor(48, 16, 65536, 100 * 1024),
    "sm_89": Multiprocessor(48, 24, 65536, 100 * 1024),
    "sm_90": Multiprocessor(64, 32, 65536, 228 * 1024),
}


@dataclass(frozen=True)
class Gpu:
    """A GPU's rates.

    Attributes:
        name: as CuPy reports it.
        arch: "sm_90", a key of MULTIPROCESSORS where the limits are known.
        sms: streaming multiprocessors.
        boost_mhz: the clock that the data sheet's rate assumes.
        fp32_tflops: float32 without tensor cores, 10^12 operations a second (an fma is two).
        memory_gbps: device memory, 10^9 bytes a second.
        source: where the figures come from.
        tensor_tflops: products of float16 or bfloat16 summed in float32 by the tensor cores, of
            dense matrices; 0 where it is not known.
        tf32_tflops: as tensor_tflops, of factors in TF32; 0 where there is none or it is not known.
    """

    name: str
    arch: str
    sms: int
    boost_mhz: float
    fp32_tflops: float
    memory_gbps: float
    source: str
    tensor_tflops: float = 0.0
    tf32_tflops: float = 0.0

    @property
    def exp_per_second(self) -> float:
        """exp2 results a second of the special function units."""
        return EXP_LANES * self.sms * self.boost_mhz * 1e6


_SHEET = "https://www.nvidia.com/en-us/data-center/"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("NVIDIA H200", "sm_90", 132, 1980, 67, 4800, f"{_SHEET}h200/", 989, 494.5),
        Gpu("NVIDIA H100 80GB HBM3", "sm_90", 132, 1980, 67, 3350, f"{_SHEET}h100/", 989, 494.5),
        Gpu("NVIDIA A100-SXM4-80GB", "sm_80", 108, 1410, 19.5, 2039, f"{_SHEET}a100/", 312, 156),
        Gpu("NVIDIA A100 80GB PCIe", "sm_80", 108, 1410, 19.5, 1935, f"{_SHEET}a100/", 312, 156),
        Gpu("NVIDIA A100-SXM4-40GB", "sm_80", 108, 1410, 19.5, 1555, f"{_SHEET}a100/", 312, 156),
        Gpu("NVIDIA L4", "sm_89", 58, 2040, 30.3, 300, f"{_SHEET}l4/", 121, 60),
        Gpu("Tesla T4", "sm_75", 40, 1590, 8.1, 320, f"{_SHEET}tesla-t4/", 65),
        Gpu("NVIDIA GeForce RTX 4090", "sm_89", 128, 2520, 82.6, 1008, _ADA, 165.2, 82.6),
    )
}


def peak_of(name: str) -> Gpu:
    """Return the GPU's row of GPUS; for the GPU in use without one, the rates it reports itself.

    name: as CuPy reports it, with or without "NVIDIA".

    Raises:
        KeyError: neither is there; lists the GPUs of the table.
    """
    for known, gpu in GPUS.items():
        if name.removeprefix("NVIDIA ") == known.removeprefix("NVIDIA "):
            return gpu
    here = _reported() if resolve_backend() == "gpu" else None
    if here and here.name == name:
        return here
    raise UnknownNameError(
        f"no peak rates for {name!r}; there are: {', '.join(GPUS)}. Add a row to GPUS "
        "in attn_course/measure/hardware/devices.py with the data sheet it comes from"
    )


def _reported() -> Gpu:
    """The GPU in use, from the attributes that its driver reports."""
    import cupy

    device = cupy.cuda.Device()
    name = cupy.cuda.runtime.getDeviceProperties(device.id)["name"].decode()
    arch, of = f"sm_{device.compute_capability}", device.attributes
    sms, mhz = of["MultiProcessorCount"], of["ClockRate"] / 1000
    tflops = 2 * FP32_LANES.get(arch, 128) * sms * mhz / 1e6
    gbps = 2 * of["MemoryClockRate"] * of["GlobalMemoryBusWidth"] / 8 / 1e6  # two a clock
    return Gpu(name, arch, sms, mhz, tflops, gbps, "the device's attributes")
