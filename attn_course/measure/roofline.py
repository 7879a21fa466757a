"""Floors: the least time that a GPU needs for a piece of work, from its bytes and operations.

Nothing here is measured. Operations are counted by the formula of what is computed, bytes by the
arrays that must be read and written at least once, and rates are those of the data sheets. A
kernel can come near a floor and never below it, as long as its inputs come from device memory
(what is in L2 already is not read again) and it does products of float32 without tensor cores
(which do more operations a second, in other precisions).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass
from math import prod

from kernelscope.errors import UnknownNameError

from attn_course.ladder.methods import steps_of
from attn_course.ladder.steps import FUSED, Problem, Step
from attn_course.ladder.verify import FORMULAS
from attn_course.reference.dtypes import HALVES

from .hardware.devices import Gpu


@dataclass(frozen=True)
class Work:
    """The least cost of a computation, by any program.

    Attributes:
        operations: additions and multiplications of its matrix products (an fma is two).
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
        return Work(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    @property
    def bytes(self) -> int:
        return self.bytes_read + self.bytes_written

    @property
    def intensity(self) -> float:
        """Operations a byte of device memory."""
        return self.operations / self.bytes

    def floors_us(self, peak: Gpu, dtype: str = "float32") -> dict[str, float]:
        """Microseconds that memory, arithmetic and exponentials need alone, were all else free.

        dtype: of the products' factors; those of 16 bits are multiplied by tensor cores.

        Raises:
            KeyError: the rate of the GPU's tensor cores is not known.
        """
        rate = peak.tensor_tflops if dtype in HALVES else peak.fp32_tflops
        if not rate:
            raise UnknownNameError(
                f"the rate of {peak.name} with {dtype} is not in the table of GPUs"
            )
        return {
            "memory": self.bytes / (peak.memory_gbps * 1e9) * 1e6,
            "arithmetic": self.operations / (rate * 1e12) * 1e6,
            "exponentials": self.exponentials / peak.exp_per_second * 1e6,
        }

    def floor_us(self, peak: Gpu, dtype: str = "float32") -> float:
        """The largest of the floors: they can overlap, so they do not add up."""
        return max(self.floors_us(peak, dtype).values())


def visible_pairs(n: int, m: int, causal: bool = False) -> int:
    """(query, key) pairs of one head that a mask leaves: n * m, or those with j <= i + (m - n)."""
    if not causal:
        return n * m
    # Row i sees i + (m - n) + 1 keys, none where that is negative: 1 + 2 + .. in arithmetic series.
    first, last = max(1, m - n + 1), m
    return (first + last) * (last - first + 1) // 2


# By what a step computes: how many matrix products of n x m x d it does.
_PRODUCTS = {
    "s = q k^T": 1,
    "s = softmax(scale s), out = s v": 1,
    "p = softmax(scale s)": 0,
    "out = p v": 1,
    FUSED: 2,
}


def step_work(step: Step, problem: Problem) -> Work:
    """One kernel of the ladder: its operations, and the arrays it reads and writes.

    Kernels of a separate softmax know no mask and compute every pair.
    """
    causal = problem.causal and step.computes == FUSED
    pairs = problem.bh * visible_pairs(problem.n, problem.m, causal)
    operations = 2 * _PRODUCTS[step.computes] * pairs * problem.d
    exponentials = pairs if "softmax" in step.computes else 0
    reads = _bytes(FORMULAS[step.computes].reads, problem)
    return Work(operations, exponentials, reads, _bytes(step.writes, problem), 1)


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
    return sum(problem.dtype_of(name).itemsize * prod(problem.shape(name)) for name in names)


def tflops(operations: int, time_us: float) -> float:
    """10^12 operations a second."""
    return operations / time_us / 1e6
