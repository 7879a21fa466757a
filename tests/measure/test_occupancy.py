"""Registers read from a cubin, and how many blocks fit by each of the four limits."""

import pytest
from kernelscope.compile import compile_cubin
from kernelscope.timing import cubin_registers

from attn_course.measure.hardware.devices import MULTIPROCESSORS
from attn_course.measure.hardware.occupancy import compiled_registers, occupancy

HUNGRY = """extern "C" __global__ void __launch_bounds__(THREADS) hungry(float* x)
{
    float a[64];
    for (int i = 0; i < 64; ++i) a[i] = x[threadIdx.x + 1024 * i];
    for (int round = 0; round < 9; ++round)
        for (int i = 0; i < 64; ++i) a[i] = a[i] * a[(i + 17) % 64] + a[(i + 5) % 64];
    for (int i = 0; i < 64; ++i) x[threadIdx.x + 1024 * i] = a[i];
}
extern "C" __global__ void modest(float* x) { x[threadIdx.x] = 1.0f; }
"""


def test_launch_bounds_bound_the_registers():
    """65536 registers for 1024 threads are 64 each; 128 threads may have the full 255."""
    found = {}
    for threads in (1024, 128):
        options = (f"-DTHREADS={threads}",)
        found[threads] = cubin_registers(compile_cubin(HUNGRY, "h.cu", options, "sm_90").cubin)
    assert found[1024]["hungry"] <= 64 < found[128]["hungry"] <= 255
    assert found[128]["modest"] < 32 and set(found[128]) == {"hungry", "modest"}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_kernel_of_the_ladder(arch):
    registers = compiled_registers("01_scores_naive", "scores_naive", arch=arch)
    assert 16 <= registers <= 64
    with pytest.raises(KeyError, match="no kernel 'scores'.*scores_naive"):
        compiled_registers("01_scores_naive", "scores", arch=arch)


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "limited"),
    [
        (1024, 32, 0, 2, ("warps", "registers")),  # 64 warps of 64; 32 * 32 * 64 = 65536
        (1024, 33, 0, 1, ("registers",)),  # a warp gets 33 * 32 = 1056 -> 1280
        (256, 64, 8704, 4, ("registers",)),  # 8 warps of 2048 registers: 16384 a block
        (32, 16, 0, 32, ("blocks",)),
        (128, 32, 100 * 1024, 2, ("shared memory",)),  # 101 KB of 228 twice
        (128, 32, 227 * 1024, 1, ("shared memory",)),
        (33, 255, 0, 4, ("registers",)),  # two warps, of 8192 registers each
    ],
)
def test_blocks_that_fit(threads, registers, shared, blocks, limited):
    found = occupancy(threads, registers, shared)
    assert (found.blocks, found.limited_by) == (blocks, limited)
    assert found.share == blocks * -(-threads // 32) / 64


def test_a_smaller_multiprocessor_holds_less():
    large, small = (occupancy(1024, 32, 0, MULTIPROCESSORS[name]) for name in ("sm_90", "sm_86"))
    assert (large.share, small.share) == (1, pytest.approx(2 / 3))
