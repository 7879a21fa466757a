"""GPUs: the rates of their data sheets and the limits of their multiprocessors, in one table.

`ladder.problem.Device` is the part of this that a choice of tiles needs, read from the GPU in use.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

import msgspec
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


class _Table(TypedDict):
    """The content of devices.toml."""

    multiprocessors: dict[str, Multiprocessor]
    gpus: list[Gpu]


_FILE = Path(__file__).with_name("devices.toml")
_TABLE = msgspec.toml.decode(_FILE.read_bytes(), type=_Table)
MULTIPROCESSORS = _TABLE["multiprocessors"]
GPUS = {gpu.name: gpu for gpu in _TABLE["gpus"]}


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
        f"no peak rates for {name!r}; there are: {', '.join(GPUS)}. Add it to {_FILE} "
        "with the data sheet it comes from"
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
