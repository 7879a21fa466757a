"""Why a launch takes as long as predicted, and what to try: named by line, and true when tried."""

import numpy as np
import pytest
from kernelscope import RawModule, observe
from kernelscope.timing import Time
from kernelscope.timing.bounds import (
    FEWER_BLOCKS,
    FEWER_BYTES,
    FEWER_LAUNCHES,
    KEEP,
    NAMES,
    TRY,
)
from kernelscope.timing.reasons import (
    BANKS,
    MORE_LOADS,
    MORE_WARPS,
    SHORTER,
    SIDE_BY_SIDE,
    reasons,
)

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
extern "C" __global__ void table(const float* x, float* y, int n)
{
    const int row = blockIdx.x * 256 + threadIdx.x;
    for (int i = 0; i < 64; i++) {
        float sum = x[i * n + row];
        sum += x[(row * 97 + i * 1031) % 65536];
        y[i * n + row] = sum;
    }
}
extern "C" __global__ void again(const float* x, float* y, int n)
{
    float sum = 0.0f;
    for (int i = threadIdx.x; i < 16384; i += 256) sum += x[i];
    y[blockIdx.x * 256 + threadIdx.x] = sum;
}
extern "C" __global__ void broadcast(const float* x, float* y, int n)
{
    float sum = 0.0f;
    for (int i = 0; i < 64; i++) sum += x[(i * gridDim.x + blockIdx.x) * 256];
    if (threadIdx.x == 0) y[blockIdx.x] = sum;
}
extern "C" __global__ void histogram(const float* x, float* y, int n)
{
    __shared__ int bins[256];
    bins[threadIdx.x] = 0;
    __syncthreads();
    for (int i = 0; i < 16; i++) atomicAdd(&bins[(int)x[i * n + threadIdx.x] & 255], 1);
    __syncthreads();
    y[blockIdx.x * 256 + threadIdx.x] = bins[threadIdx.x];
}
extern "C" __global__ void chain(const float* x, float* y, int n)
{
    float sum = x[threadIdx.x];
    for (int i = 0; i < 256; i++) sum = sum * 1.5f + 0.5f;
    y[blockIdx.x * 256 + threadIdx.x] = sum;
}
extern "C" __global__ void list(const float* x, float* y, int n)
{
    int at = threadIdx.x;
    for (int i = 0; i < 64; i++) at = (int)x[at] + threadIdx.x + 32 * i;
    y[blockIdx.x * 256 + threadIdx.x] = at;
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


@pytest.mark.turns(7)
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


@pytest.mark.turns(7)
def test_other_banks_are_advised_and_help():
    slow, _ = predicted("banks")
    why, *more = slow.reasons["shared memory and L1"]
    assert slow.limit == "shared memory and L1" and f"by line {line_of('sum += tile')}" in why
    said = "its loads of shared memory take 32 wavefronts each, 97% of them for conflicts of banks"
    assert more == [said, f"to try: {BANKS}"]
    better, _ = predicted("banks", pad=1)
    assert BANKS not in str(better.reasons) and better.us < 0.2 * slow.us


@pytest.mark.turns(5)
def test_dram_says_what_is_read_and_written():
    """Copies of 67 MB: more than half of L2."""
    found, _ = predicted("rows", blocks=1024)
    assert found.busiest in ("DRAM", "L2 to DRAM")
    why, *more = found.reasons[found.busiest]
    assert why == f"{found.busiest}: 100% of it by line {line_of('y[i * n + row]')}"
    assert "67.1 MB read, 67.1 MB written; L2 keeps 31 MB from launch to launch" in more
    assert more[-1] == f"to try: {FEWER_BYTES}"


@pytest.mark.turns(7)
def test_dram_names_no_line_where_l2_has_several():
    """The model takes DRAM's bytes to be of the lines that L2's are of, a table in L2 too."""
    found, _ = predicted("table", blocks=1024)
    (why, moved), advice = reasons(*found._why.args, "DRAM")
    assert why == "DRAM: of several lines" and "MB read" in moved and advice == FEWER_BYTES


@pytest.mark.turns(5)
def test_l2_says_whether_something_is_loaded_again():
    """Of data that L2 keeps: each byte once, and all of them by every block."""
    for name, advice in (("rows", FEWER_BYTES), ("again", KEEP)):
        found, _ = predicted(name, blocks=64)
        work, gpu = found._why.args
        assert reasons(work, gpu, "L2")[1] == advice


def test_a_broadcast_uses_few_bytes_and_is_no_fault():
    """All lanes of a warp read one float, a lane alone reads another: a sector each."""
    found, _ = predicted("broadcast")
    said, advice = reasons(*found._why.args, "L2 to an SM")
    assert "its loads ask for 1 line each, and use 4 of the 32 bytes of a sector" in said[1]
    assert SIDE_BY_SIDE != advice


@pytest.mark.parametrize("name", ["L2", "shared memory and L1"])
def test_atomics_of_shared_memory_are_none_of_l2(name):
    found, _ = predicted("histogram")
    said, _ = reasons(*found._why.args, name)
    assert not any("operations of L2" in one for one in said)
    assert any("atomics of shared memory" in one for one in said) == (name != "L2")


def test_atomics_are_advised_against():
    """By the lines that wait for each other; L2, the busiest unit, has its numbers alone."""
    found, _ = predicted("sums")
    assert found.limit == "atomics" and found.busiest == "L2"
    for why, *_ in found.reasons.values():
        assert f"100% of it by line {line_of('atomicAdd(y')}" in why
    assert found.reasons["atomics"][-1] == f"to try: {TRY['atomics']}"
    assert "its atomics are 16 operations of L2 each" in found.reasons["L2"]
    assert reasons(*found._why.args, "L2")[1] == TRY["atomics"]


@pytest.mark.turns(4)
@pytest.mark.parametrize(
    ("name", "blocks", "advice"),
    [
        ("chain", 12, f"{TRY['few blocks']}, or {SHORTER}"),
        ("chain", 132, f"{MORE_WARPS}, or {SHORTER}"),
        ("chain", 132 * 8, SHORTER),
        ("list", 132, f"{MORE_WARPS}, or {MORE_LOADS}"),
    ],
)
def test_latency_has_more_warps_where_there_is_room(name, blocks, advice):
    """Chains of additions and of loads; eight blocks of eight warps fill an SM."""
    found, _ = predicted(name, blocks=blocks)
    assert reasons(*found._why.args, "latency")[1] == advice


def test_a_wait_has_advice_and_the_busiest_unit_none():
    """Nothing of an empty kernel is by a line."""
    found, shown = predicted("empty")
    assert found.limit == "launch and starts" and {*found.reasons} == {found.limit, found.busiest}
    assert found.reasons[found.limit] == [f"to try: {FEWER_LAUNCHES}, or {FEWER_BLOCKS}"]
    assert shown.count("to try: ") == 1 and " SMs" not in shown
    small, shown = predicted("empty", blocks=1)
    assert small.reasons[small.limit] == [f"to try: {FEWER_LAUNCHES}"]
    assert "a thread; the grid has 1 on 132 SMs\n" in shown


@pytest.mark.turns(3)
def test_every_bound_has_something_to_try():
    found, _ = predicted("rows")
    for name in found.bounds:
        said, advice = reasons(*found._why.args, name)
        assert advice and all(said)
    assert {*NAMES.values(), *found.bounds} - {*TRY} == {
        "L2",
        "L2 to an SM",
        "latency",
        "launch and starts",
    }
    assert {*found.record()["reasons"]} == {found.limit, found.busiest}


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        (0, "8 blocks of 8 warps fit on an SM at a time, by its warps; "),
        (50_000, "4 blocks of 8 warps fit on an SM at a time, by its shared memory; "),
        (150_000, "1 block of 8 warps fits on an SM at a time, by its shared memory; "),
    ],
)
def test_what_an_sm_has_no_more_of(shared, said):
    module = RawModule(code=SOURCE, options=("-DPAD=0",), backend="simulator")
    kernel = module.get_function("empty")
    kernel.max_dynamic_shared_size_bytes = shared
    with observe(Time("h200", blocks=16)) as seen:
        kernel((64,), (256,), (np.zeros(4, np.float32),) * 2 + (np.int32(4),), shared_mem=shared)
    assert f"  {said}" in str(seen)
