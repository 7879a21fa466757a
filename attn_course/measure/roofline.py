"""Floors: the least time that a GPU needs for a piece of work, from its bytes and operations.

Nothing here is measured. Operations are counted by the formula of what is computed, bytes by the
arrays that must be read and written at least once, and rates are those of the data sheets. A
kernel can come near a floor and never below it, as long as its inputs come from device memory
(what is in L2 already is not read again) and it does its products in float32 (tensor cores do more
operations a second, in other precisions).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from attn_course.engine.backend import resolve_backend
from attn_course.ladder.attention import steps_of
from attn_course.ladder.steps import FUSED, Problem, Step

from .records import gpu_identity

FLOAT = 4  # bytes


@dataclass(frozen=True)
class Peak:
    """A GPU's rates.

    Attributes:
        name: as CuPy reports it.
        sms: streaming multiprocessors.
        fp32_lanes: float32 fused multiply-adds a clock and SM.
        boost_mhz: the clock that the data sheet's rate assumes.
        fp32_tflops: float32 without tensor cores, 10^12 operations a second (an fma is two).
        memory_gbps: device memory, 10^9 bytes a second.
        source: where the figures stand.
    """

    name: str
    sms: int
    fp32_lanes: int
    boost_mhz: int
    fp32_tflops: float
    memory_gbps: float
    source: str

    @property
    def exp_per_second(self) -> float:
        """exp2 by the special function units: 16 a clock and SM (CUDA C++ Programming Guide,
        "Throughput of Native Arithmetic Instructions", compute capability 5.x to 9.0)."""
        return EXP_LANES * self.sms * self.boost_mhz * 1e6

    @property
    def ridge(self) -> float:
        """Operations a byte above which arithmetic, not memory, sets the floor."""
        return self.fp32_tflops * 1e12 / (self.memory_gbps * 1e9)


EXP_LANES = 16
_SHEET = "https://www.nvidia.com/en-us/data-center/"
PEAKS = {
    peak.name: peak
    for peak in (
        Peak("NVIDIA H200", 132, 128, 1980, 67, 4800, f"{_SHEET}h200/"),
        Peak("NVIDIA H100 80GB HBM3", 132, 128, 1980, 67, 3350, f"{_SHEET}h100/"),
        Peak("NVIDIA A100-SXM4-80GB", 108, 64, 1410, 19.5, 2039, f"{_SHEET}a100/"),
        Peak("NVIDIA A100 80GB PCIe", 108, 64, 1410, 19.5, 1935, f"{_SHEET}a100/"),
        Peak("NVIDIA A100-SXM4-40GB", 108, 64, 1410, 19.5, 1555, f"{_SHEET}a100/"),
        Peak("NVIDIA L4", 58, 128, 2040, 30.3, 300, f"{_SHEET}l4/"),
        Peak("Tesla T4", 40, 64, 1590, 8.1, 320, f"{_SHEET}tesla-t4/"),
        Peak(
            "NVIDIA GeForce RTX 4090",
            128,
            128,
            2520,
            82.6,
            1008,
            "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/"
            "nvidia-ada-gpu-architecture.pdf",
        ),
    )
}


def peak_of(gpu: str) -> Peak:
    """Return a GPU's rates: its row of PEAKS, else from the attributes of the device at hand.

    Raises:
        KeyError: the GPU is neither; the message lists PEAKS.
    """
    for name, peak in PEAKS.items():
        if gpu == name or gpu.removeprefix("NVIDIA ") == name.removeprefix("NVIDIA "):
            return peak
    if resolve_backend() == "gpu" and gpu_identity()["gpu"] == gpu:
        return _device_peak(gpu)
    raise KeyError(
        f"no peak rates for {gpu!r}; there are: {', '.join(PEAKS)}. Add a row to PEAKS "
        "in attn_course/measure/roofline.py with the data sheet it comes from"
    )


# float32 lanes of a multiprocessor: CUDA C++ Programming Guide, "Throughput of Native Arithmetic
# Instructions"; newer ones than listed are taken to have 128.
_FP32_LANES = {(6, 0): 64, (7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}


def _device_peak(gpu: str) -> Peak:
    import cupy

    device = cupy.cuda.Device()
    of = device.attributes
    lanes = _FP32_LANES.get(divmod(int(device.compute_capability), 10), 128)
    sms, mhz = of["MultiProcessorCount"], of["ClockRate"] / 1000
    gbps = 2 * of["MemoryClockRate"] * of["GlobalMemoryBusWidth"] / 8 / 1e6  # two a clock
    return Peak(gpu, sms, lanes, mhz, 2 * lanes * sms * mhz / 1e6, gbps, "the device's attributes")


@dataclass(frozen=True)
class Work:
    """What a computation costs at the least, whoever does it.

    Attributes:
        operations: float32 additions and multiplications of its matrix products (an fma is two).
        exponentials: of its softmax.
        bytes_read, bytes_written: of arrays in device memory, each element once a kernel.
        launches: kernels.
    """

    operations: int = 0
    exponentials: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    launches: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.operations + other.operations,
            self.exponentials + other.exponentials,
            self.bytes_read + other.bytes_read,
            self.bytes_written + other.bytes_written,
            self.launches + other.launches,
        )

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Operations a byte of device memory."""
        return self.operations / self.bytes

    def floors_us(self, peak: Peak) -> dict[str, float]:
        """Microseconds that memory, arithmetic and exponentials need alone, were all else free."""
        return {
            "memory": self.bytes / (peak.memory_gbps * 1e9) * 1e6,
            "arithmetic": self.operations / (peak.fp32_tflops * 1e12) * 1e6,
            "exponentials": self.exponentials / peak.exp_per_second * 1e6,
        }

    def floor_us(self, peak: Peak) -> float:
        """The largest of the floors: they can overlap, so they do not add up."""
        return max(self.floors_us(peak).values())

    def bound(self, peak: Peak) -> str:
        """What sets the floor: "memory", "arithmetic" or "exponentials"."""
        floors = self.floors_us(peak)
        return max(floors, key=floors.get)


def visible_pairs(n: int, m: int, causal: bool = False) -> int:
    """(query, key) pairs of one head that a mask leaves: n * m, or those with j <= i + (m - n)."""
    if not causal:
        return n * m
    # Row i sees i + (m - n) + 1 keys, none where that is negative: 1 + 2 + .. in arithmetic series.
    first, last = max(1, m - n + 1), m
    return (first + last) * (last - first + 1) // 2


# By what a step computes: the arrays it reads, how many matrix products of n x m x d it does, and
# whether it takes the exponential of every score.
_COSTS = {
    "s = q k^T": (("q", "k"), 1, False),
    "s = softmax(scale s), out = s v": (("s", "v"), 1, True),
    "p = softmax(scale s)": (("s",), 0, True),
    "out = p v": (("p", "v"), 1, False),
    FUSED: (("q", "k", "v"), 2, True),
}


def step_work(step: Step, problem: Problem) -> Work:
    """One kernel of the ladder: its operations, and the arrays it reads and writes.

    Kernels of a separate softmax know no mask and compute every pair.
    """
    reads, products, has_softmax = _COSTS[step.computes]
    causal = problem.causal and step.computes == FUSED
    pairs = problem.bh * visible_pairs(problem.n, problem.m, causal)
    operations = 2 * products * pairs * problem.d
    exponentials = pairs if has_softmax else 0
    return Work(operations, exponentials, _bytes(reads, problem), _bytes(step.writes, problem), 1)


def attention_work(problem: Problem) -> Work:
    """All of attention in one kernel: q, k, v read once, the output written once."""
    return method_work("rows_online", problem)


def method_work(method: str, problem: Problem) -> Work:
    """The steps of a method together; what one kernel hands to the next is written and read."""
    total = Work()
    for step in steps_of(method):
        total += step_work(step, problem)
    return total


def _bytes(names: Iterable[str], problem: Problem) -> int:
    total = 0
    for name in names:
        count = FLOAT
        for extent in problem.shape(name):
            count *= extent
        total += count
    return total


def tflops(operations: int, time_us: float) -> float:
    """10^12 operations a second."""
    return operations / time_us / 1e6
