"""Why a launch takes as long as predicted, and what to try: named by line, and true when tried."""

import numpy as np
import pytest
from kernelscope import RawModule, observe
from kernelscope.timing import Time
from kernelscope.timing.bounds import NAMES, TRY
from kernelscope.timing.reasons import BANKS, SIDE_BY_SIDE

SOURCE = """
extern "C" __global__ void columns(const float* x, float* y, int n)
{
    const int row = blockIdx.x * 256 + threadIdx.x;
    for (int i = 0; i < 64; i++)
        y[row * 64 + i] = x[i * n + row];
}
extern "C" __global__ void rows(const float* x, float* y, int n)
{
    const int row = blockIdx.x * 256 + threadIdx.x;
    for (int i = 0; i < 64; i++)
        y[i * n + row] = x[i * n + row];
}
extern "C" __global__ void banks(const float* x, float* y, int n)
{
    __shared__ float tile[64 * (32 + PAD)];
    const int row = threadIdx.x / 32, column = threadIdx.x % 32;
    for (int i = threadIdx.x; i < 64 * (32 + PAD); i += 256) tile[i] = x[i % n];
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < 256; i++)
        sum += tile[column * (32 + PAD) + (i + row) % 32];
    y[blockIdx.x * 256 + threadIdx.x] = sum;
}
extern "C" __global__ void sums(const float* x, float* y, int n)
{
    atomicAdd(y + threadIdx.x % 2, x[blockIdx.x * 256 + threadIdx.x]);
}
extern "C" __global__ void empty(const float* x, float* y, int n) {}
"""


def line_of(text: str) -> int:
    return next(at for at, line in enumerate(SOURCE.splitlines(), 1) if text in line)


def predicted(name: str, pad: int = 0, blocks: int = 256):
    module = RawModule(code=SOURCE, options=(f"-DPAD={pad}",), backend="simulator")
    n = 256 * blocks
    x = np.zeros(64 * n, np.float32)
    with observe(Time("h200", blocks=16)) as seen:
        module.get_function(name)((blocks,), (256,), (x, np.zeros_like(x), np.int32(n)))
    return seen.launches[0], str(seen)


def test_lanes_side_by_side_are_advised_and_help():
    """Each lane stores a row of its own: 4 bytes of each sector, so a store has 32 of them."""
    slow, shown = predicted("columns")
    (why, *more), line = slow.reasons[slow.limit], line_of("y[row * 64 + i]")
    assert why == f"{slow.limit}: 100% of it by line {line}"
    assert "its loads ask for 1 line each, and use 32 of the 32 bytes of a sector" in more
    assert "its stores ask for 32 lines each, and use 4 of the 32 bytes of a sector" in more
    assert more[-1] == f"to try: {SIDE_BY_SIDE}" and f"    {more[-1]}\n" in shown
    better, _ = predicted("rows")
    assert SIDE_BY_SIDE not in str(better.reasons) and better.us < 0.7 * slow.us


def test_other_banks_are_advised_and_help():
    slow, _ = predicted("banks")
    why, *more = slow.reasons["shared memory and L1"]
    assert slow.limit == "shared memory and L1" and f"by line {line_of('sum += tile')}" in why
    said = "its loads of shared memory take 32 wavefronts each, 97% of them for conflicts of banks"
    assert more == [said, f"to try: {BANKS}"]
    better, _ = predicted("banks", pad=1)
    assert BANKS not in str(better.reasons) and better.us < 0.2 * slow.us


def test_dram_says_what_is_read_and_written():
    """Copies of 67 MB: more than half of L2."""
    found, _ = predicted("rows", blocks=1024)
    assert found.busiest in ("DRAM", "L2 to DRAM")
    _, *more = found.reasons[found.busiest]
    assert "in all: 67.1 MB read, 67.1 MB written" in more
    assert more[-1] == f"to try: {TRY['DRAM']}"


def test_atomics_are_advised_against():
    """By the lines that wait for each other, and by L2, the busiest unit."""
    found, _ = predicted("sums")
    assert found.limit == "atomics" and found.busiest == "L2"
    for why, *_, advice in found.reasons.values():
        assert f"100% of it by line {line_of('atomicAdd')}" in why
        assert advice == f"to try: {TRY['atomics']}"


def test_a_wait_and_the_busiest_unit_have_reasons():
    """An empty kernel has none by a line."""
    found, shown = predicted("empty")
    assert found.limit == "launch and starts" and {*found.reasons} == {found.limit, found.busiest}
    assert found.reasons[found.limit] == [f"to try: {TRY[found.limit]}"]
    assert shown.count("to try: ") == 2


def test_every_bound_has_something_to_try():
    found, _ = predicted("empty")
    assert {*TRY} == {*found.bounds} and {*NAMES.values()} < {*TRY}
    assert {*found.record()["reasons"]} == {found.limit, found.busiest}


@pytest.mark.parametrize(
    ("shared", "blocks", "least"), [(0, 8, "warps"), (50_000, 4, "shared memory")]
)
def test_what_an_sm_has_no_more_of(shared, blocks, least):
    """8 warps a block: eight such blocks have all 64 warps, four have all shared memory."""
    module = RawModule(code=SOURCE, options=("-DPAD=0",), backend="simulator")
    kernel = module.get_function("empty")
    kernel.max_dynamic_shared_size_bytes = shared
    with observe(Time("h200", blocks=16)) as seen:
        kernel((64,), (256,), (np.zeros(4, np.float32),) * 2 + (np.int32(4),), shared_mem=shared)
    (one,) = seen.launches
    assert one.resident == blocks == one.room[least]
    said = f"  {blocks} blocks of 8 warps fit on an SM at a time: it has {least} for no more; "
    assert said in str(seen)
