"""Which blocks stand for a grid, and what memory and starts of blocks make of a launch."""

import itertools
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from kernelscope import Counters, RawKernel, RawModule, observe
from kernelscope.errors import Hang
from kernelscope.machine import launch as launches
from kernelscope.timing import Time, observer
from kernelscope.timing.executions import executions
from kernelscope.timing.gpus import gpu
from kernelscope.timing.memory import caches
from kernelscope.timing.memory.traffic import (
    ASKED,
    ATOMIC,
    FASTEST,
    LINE_STORE,
    PART_STORED,
    STORED,
    UNEVEN,
)
from kernelscope.timing.model import DEALING_CLOCKS
from kernelscope.timing.observer import STORE_NS
from kernelscope.timing.warps import GROUPS, MORE
from kernelscope.timing.work import CONSTANT_CLOCKS, FAR_ATOMIC, FMA_LANES, MATCH_CLOCKS
from kernelscope.watch.counters.patterns import TouchedBytes

H200 = gpu("h200")
WAYS = """extern "C" __global__ void nothing(float* y) {}
extern "C" __global__ void rows(const float* x, float* y, int n)
{
    const int c = blockIdx.x * 32 + threadIdx.x, r = threadIdx.y;
    y[c * 32 + r] = x[r * n + c];
}
extern "C" __global__ void pick(const int* at, const float* x, float* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[at[i]];
}
extern "C" __global__ void spread(const float* x, float* y, int stride)
{
    y[threadIdx.x * stride] = x[threadIdx.x];
}
extern "C" __global__ void spread_blocks(const float* x, float* y, int each)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    y[each * i] = x[i];
}
extern "C" __global__ void stride(const float* x, float* y, int n)
{
    const int threads = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += threads) y[i] = x[i];
}
extern "C" __global__ void structs(const float* x, float* y, int stride)
{
    float* own = y + threadIdx.x * stride;
    const float v = x[threadIdx.x];
    own[0] = v;
    own[1] = v + 1.0f;
    own[2] = v + 2.0f;
    own[3] = v + 3.0f;
}
extern "C" __global__ void three(const float* x, float* y, int stride)
{
    float* own = y + threadIdx.x * stride;
    const float v = x[threadIdx.x];
    own[0] = v;
    own[1] = v + 1.0f;
    own[2] = v + 2.0f;
}
extern "C" __global__ void count(const int* at, float* y)
{
    atomicAdd(y + at[blockIdx.x * blockDim.x + threadIdx.x], 1.0f);
}
extern "C" __global__ void down(const float* a, const float* x, float* y, int rows, int columns)
{
    const int c = blockIdx.x * blockDim.x + threadIdx.x;
    float sum = 0.0f;
#pragma unroll 1
    for (int r = 0; r < rows; ++r) sum += a[r * columns + c] * x[r];
    y[c] = sum;
}
extern "C" __global__ void swap(const float* x, float* y, int n)
{
    float a = 0.0f, b = 1.0f;
    for (int j = 0; j < n; ++j) {
        if (x[j] > 0.5f) {
            a += x[j] * b;
            __syncthreads();
            b = a;
        } else {
            const float t = a;
            a = b;
            b = t;
        }
        if (a > 5.0f) {
            break;
        }
    }
    y[threadIdx.x] = a + b;
}
extern "C" __global__ void chase(const int* x, int* y, int n)
{
    int at = threadIdx.x;
    for (int j = 0; j < n; ++j) at = *(const volatile int*)(x + at);
    for (int j = 0; j < n; ++j) at = __ldcv(x + at);
    y[threadIdx.x] = at;
}
__constant__ float table[64];
extern "C" __global__ void look_up(const int* at, float* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = table[at[i]];
}
extern "C" __global__ void divide_doubles(const double* x, double* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = x[i] / (3.0 + i);
}
extern "C" __global__ void divide(const float* x, float* y)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    y[i] = __fdiv_rn(x[i], 3.0f + i) + __fsqrt_rn(x[i]);
}"""
MIXED = """extern "C" __global__ void mixed(int* out, int n, int steps, float f)
{
    int a = threadIdx.x, b = a + 1, c = a + 2, d = a + 3;
    float x = a, y = b, z = c, w = d;
    for (int i = 0; i < steps; ++i) {
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            INTEGERS
            FLOATS
        }
    }
    out[blockIdx.x * blockDim.x + threadIdx.x] = a + b + c + d + int(x + y + z + w);
}"""
TELL = """// kernelscope: sm_90
extern "C" __global__ void __cluster_dims__(2, 1, 1) tell(const int* at)
{
    __shared__ int own[256];
    unsigned rank, far = (unsigned)__cvta_generic_to_shared(own + at[threadIdx.x]);
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(far) : "r"(rank ^ (threadIdx.x % 2)));
    asm volatile("red.relaxed.cluster.shared::cluster.add.u32 [%0], 1;" ::"r"(far) : "memory");
}"""
COUNT = 1 << 24  # floats: 64 MiB


def launched(name, grid, block, *arguments, blocks=None):
    with observe(Time("h200", blocks=blocks)) as seen:
        RawKernel(WAYS, name, backend="simulator")(grid, block, arguments)
    return seen.launches[0]


@pytest.mark.parametrize("grid", [(7, 7, 24), (100, 1, 1), (65, 1, 1), (128, 128, 1)])
@pytest.mark.parametrize("blocks", [8, 16, 64])
def test_sampled_blocks_lie_apart_and_in_the_grid(monkeypatch, grid, blocks):
    monkeypatch.setattr(observer, "_cluster", lambda launch: (1, 1, 1))
    chosen = Time("h200", blocks=blocks).chosen_blocks(SimpleNamespace(grid=grid))
    ordered = sorted(chosen, key=lambda part: part.start)
    for one, after in itertools.pairwise(ordered):
        assert one.stop <= after.start
    assert 0 <= ordered[0].start and ordered[-1].stop <= np.prod(grid)
    first = sorted(part.start for part in chosen[:4])  # a few lie far apart too
    assert np.diff(first).max() < 0.6 * np.prod(grid)
    assert blocks // 2 <= sum(map(len, chosen[:GROUPS])) <= blocks
    assert sum(map(len, chosen)) <= MORE * blocks


@pytest.mark.parametrize("blocks", [8, 16, 64])
def test_sampled_blocks_keep_step_with_no_grid(monkeypatch, blocks):
    """Of 7 x 7 blocks 36 are off the far edges: about as large a share of the sample is."""
    monkeypatch.setattr(observer, "_cluster", lambda launch: (1, 1, 1))
    chosen = Time("h200", blocks=blocks).chosen_blocks(SimpleNamespace(grid=(7, 7, 24)))
    inside = [at % 7 < 6 and at // 7 % 7 < 6 for one in chosen for at in one]
    assert 0.5 < np.mean(inside) < 0.95


@pytest.mark.parametrize("period", [294, 588, 1176])
def test_sampled_blocks_of_a_row_keep_step_with_no_images(monkeypatch, period):
    """A grid of one row, as 32 images one after another: blocks from all over an image."""
    monkeypatch.setattr(observer, "_cluster", lambda launch: (1, 1, 1))
    chosen = Time("h200", blocks=64).chosen_blocks(SimpleNamespace(grid=(18816, 1, 1)))
    within = np.array([one.start % period for one in chosen]) / period
    assert np.histogram(within, 4, (0, 1))[0].min() >= 2


def test_no_more_blocks_run_where_they_are_long(monkeypatch):
    """Four of 256 blocks have as much work as is enough, and say the same as 64 of them."""
    arguments = np.arange(65536, dtype=np.int32), *(np.zeros(65536, np.float32) for _ in "xy")
    all_groups = launched("pick", (256,), (256,), *arguments, blocks=64)
    monkeypatch.setattr(observer, "ENOUGH", 100)
    one_group = launched("pick", (256,), (256,), *arguments, blocks=64)
    assert all_groups.notes[0] == "64 of 256 blocks were run and stand for all"
    assert one_group.notes[0] == "4 of 256 blocks were run and stand for all: they are long"
    assert one_group.us == pytest.approx(all_groups.us, rel=0.02)
    asked_for = launched("pick", (256,), (256,), *arguments, blocks=1)
    assert asked_for.notes[0] == "1 of 256 blocks were run and stand for all"


@pytest.mark.turns(3)
@pytest.mark.parametrize("kind", ["float", "unsigned long long", "int"])
def test_lanes_that_add_to_one_word_of_shared_memory_take_turns(kind):
    """32 turns of a warp, each of some instructions; integers are added by one instruction."""
    kernel = f"""extern "C" __global__ void add(const int* at, {kind}* out) {{
        __shared__ {kind} sums[32];
        sums[threadIdx.x] = 0;
        __syncthreads();
        atomicAdd(&sums[at[threadIdx.x]], ({kind})threadIdx.x);
        __syncthreads();
        out[threadIdx.x] = sums[threadIdx.x]; }}"""
    issued = []
    for at in (np.arange(32), np.zeros(32)):
        with observe(Time("h200")) as seen:
            arrays = at.astype(np.int32), np.zeros(32, {"float": "f4", "int": "i4"}.get(kind, "u8"))
            RawKernel(kernel, "add", backend="simulator")((1,), (32,), arrays)
        issued.append(seen.launches[0].machine_instructions)
    apart, together = issued
    assert together == apart if kind == "int" else together > apart + 31 * 4


@pytest.mark.parametrize(
    ("steps", "more"),
    [
        (np.full(512, 9), False),
        (64 + np.arange(512) // 16, False),  # more from block to block: the mean is as sure
        (np.random.default_rng(1).integers(0, 64, 512), True),
    ],
)
def test_more_blocks_run_where_their_work_differs(steps, more):
    kernel = """extern "C" __global__ void step(const int* steps, int* out) {
        int at = threadIdx.x;
        for (int i = 0; i < steps[blockIdx.x]; ++i) at = at * 5 + 3;
        out[blockIdx.x * 32 + threadIdx.x] = at; }"""
    with observe(Time("h200", blocks=64)) as seen:
        arrays = steps.astype(np.int32), np.zeros(512 * 32, np.int32)
        RawKernel(kernel, "step", backend="simulator")((512,), (32,), arrays)
    note, edge = seen.launches[0].notes
    ran = int(note.split()[0])
    assert note == f"{ran} of 512 blocks were run and stand for all"
    assert edge == "the first block is not among them: what it alone does is left out"
    assert 64 < ran <= MORE * 64 if more else ran == 64


AGAIN = """extern "C" __global__ void again(float* y, int n) {
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    for (int j = 0; j < 5; ++j) y[(at * 33 + j) % n] += j; }"""


def test_a_launch_takes_as_long_again():
    """But for banks of tags, in which lines meet by where the array lies: that changes."""
    kernel, found = RawKernel(AGAIN, "again", backend="simulator"), []
    for _ in range(4):
        with observe(Time("h200")) as seen:
            kernel((8,), (128,), (np.ones(4096, np.float32), np.int32(4096)))
        found.append(seen.total_us)
    with observe(Time("h200")) as seen:
        for _ in range(2):
            kernel((8,), (128,), (np.ones(4096, np.float32), np.int32(4096)))
    found += [one.us for one in seen.launches]
    assert found == pytest.approx([found[0]] * 6, rel=1e-3)
    assert {type(us) for one in seen.launches for us in one.bounds.values()} == {float}
    assert str(seen).startswith("1. again on") and "\n\n2. again on" in str(seen)


MEETING = """extern "C" __global__ void meeting(int* arrived, const int* up, float* y) {
    __shared__ int sums[32];
    sums[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        atomicAdd(arrived, 1);
        while (*(volatile int*)arrived < gridDim.x) {}
    }
    __syncthreads();
    for (int at = threadIdx.x; up[at] != at; at = up[at]) atomicAdd(&sums[at & 3], 1);
    for (int k = 0; k < 99 * blockIdx.x; ++k) sums[8 + (k & 7)] ^= k;
    __syncthreads();
    y[blockIdx.x * 32 + threadIdx.x] = sums[threadIdx.x]; }"""


@pytest.mark.parametrize("blocks", [4, 5, 6])
def test_blocks_that_wait_for_others_are_counted_when_they_go_on(monkeypatch, blocks):
    """In one chunk, or two blocks at a time: what stands behind the meeting counts as often."""
    kernel, found, whose = RawKernel(MEETING, "meeting", backend="simulator"), [], []
    for lanes in (1 << 15, 64):
        monkeypatch.setattr(launches, "LANES_PER_CHUNK", lanes)
        y, up = np.zeros(32 * blocks, np.float32), np.maximum(np.arange(32, dtype=np.int32) - 1, 0)
        with observe(Time("h200")) as seen:
            kernel((blocks,), (32,), (np.zeros(1, np.int32), up, y))
        counted = seen._counted(seen._launch, 1.0)
        of_lines = Counter()
        for one in counted:
            if one.line > 8:  # those before spin, or come to the barrier in parts
                of_lines[one.line] += one.executions
                of_lines[one.line, "swaps"] += one.counts["swaps"]
                of_lines[one.line, "stored"] += one.counts["global_store_sectors"]
        found.append(of_lines)
        work, numbers = seen._work_of_blocks()
        assert numbers.tolist() == list(range(blocks)) and (work > 100).all()
        whose.append(work)
        assert y.reshape(blocks, 32)[:, :4].sum(1).tolist() == [31 * 32 / 2] * blocks
    assert found[0] == found[1] and found[0][9] > blocks
    assert whose[0] == pytest.approx(whose[1], rel=0.1)  # each block's own, but for its spinning
    assert (np.diff(whose[0][:, 0]) > 99).all()


def test_blocks_that_wait_for_such_as_are_not_run_say_so(monkeypatch):
    """Of 256 blocks that wait for each other some are run, two at a time."""
    monkeypatch.setattr(launches, "LANES_PER_CHUNK", 64)
    y, up = np.zeros(32 * 256, np.float32), np.zeros(32, np.int32)
    with observe(Time("h200", blocks=16)) as seen:
        kernel = RawKernel(MEETING, "meeting", backend="simulator")
        with pytest.raises(Hang, match="Not all 256 blocks were run, .*blocks=None of Time"):
            kernel((256,), (32,), (np.zeros(1, np.int32), up, y))
    assert not seen.launches


def test_blocks_keep_their_numbers_beside_another_observer():
    """Observers that choose different blocks see all of them, in the order of the grid."""
    kernel = """extern "C" __global__ void step(int* out) {
        int at = threadIdx.x;
        for (int i = 0; i < (blockIdx.x < 8 ? 200 : 1); ++i) at = at * 5 + 3;
        out[blockIdx.x * 32 + threadIdx.x] = at; }"""

    def predicted(*others):
        with observe(Time("h200", blocks=64 if others else None), *others) as seen:
            RawKernel(kernel, "step", backend="simulator")((512,), (32,), (np.zeros(16384, "i"),))
        return (seen[0] if others else seen).launches[0].us

    assert predicted(Counters()) == predicted()


def test_pieces_by_themselves():
    """Of five pieces two lie next to each other, and one is touched in both halves."""
    touched = TouchedBytes([(0, 1 << 14), (1 << 20, 1 << 21)])
    places = np.array([0, 4096, 4160, 8192, 8224, (1 << 20) + 320, (1 << 20) + 324], np.uint64)
    touched.touch(1, "read", places, 4)
    assert touched.aligned_pieces("read", 64, 16) == [(0, 1 << 14, 4, 1), (1 << 20, 1 << 20, 1, 1)]
    assert touched.aligned_pieces("read", 64, 1) == [(0, 1 << 14, 4, 3), (1 << 20, 1 << 20, 1, 1)]
    assert touched.aligned_pieces("written", 64, 16) == []


@pytest.mark.parametrize("seed", range(8))
def test_pieces_of_random_touches(seed):
    """By several lines, in buffers of many pages of which few are touched."""
    rng, touched, first = np.random.default_rng(seed), None, 16 * seed
    buffers = [(first + (at << 16), first + (at << 16) + int(rng.integers(1, 1 << 16)))
               for at in range(3)]  # fmt: skip
    touched, seen = TouchedBytes(buffers), [[] for _ in buffers]
    for line in range(6):
        at = int(rng.integers(3))
        low, end = buffers[at]
        places = np.arange(-(-low // 4), end // 4) * 4
        if places.size:
            places = rng.choice(places, int(rng.integers(1, 40)))
            touched.touch(line % 3, "read", places.astype(np.uint64), 4)
            seen[at].append(places)
    for apart in (1, 16):
        found = {one[0]: one[2:] for one in touched.aligned_pieces("read", 64, apart)}
        for (low, _), parts in zip(buffers, seen, strict=True):
            halves = np.unique(np.concatenate([[], *parts]) // 32)
            _, of_stretch = np.unique(halves // (2 * apart), return_counts=True)
            alone = np.count_nonzero(of_stretch == 1)
            assert found[low] == (np.unique(halves // 2).size, alone)


def bounds_of(integers: str, floats: str = "") -> dict[str, float]:
    text = MIXED.replace("INTEGERS", integers).replace("FLOATS", floats)
    kernel = RawKernel(text, "mixed", backend="simulator")
    with observe(Time("h200")) as seen:
        kernel((1,), (128,), (np.zeros(128, np.int32), 7, 64, np.float32(0.5)))
    return seen.launches[0].bounds


@pytest.mark.turns(5)
def test_integers_have_half_of_the_lanes_of_multiply_adds():
    """Products, and the sums that ptxas puts beside them; products of floats have all lanes."""
    products = "a = a * n + b; b = b * n + c; c = c * n + d; d = d * n + a;"
    floats = "x = x * f + y; y = y * f + z; z = z * f + w; w = w * f + x;"
    shortest = 64 * 16 * 4 * 32 / FMA_LANES / H200.sms * 1e6 / H200.hz
    for integers, of_floats, times in ((products, "", 2), ("", floats, 1), (products, floats, 3)):
        found = bounds_of(integers, of_floats)["FMA"]
        assert found == pytest.approx(times * shortest, rel=0.1)


@pytest.mark.turns(3)
@pytest.mark.parametrize("values", [2, 4, 32])
def test_a_match_takes_the_clocks_of_its_values(values):
    """The lanes of each warp have so many values."""
    match = f"a += __match_any_sync(~0u, threadIdx.x % {values} + 64 * (4 * i + k));"
    found = bounds_of(match)["matches and sums of a warp"]
    clocks = 64 * 4 * 4 * MATCH_CLOCKS * values  # steps, repeats, warps
    assert found == pytest.approx(clocks / H200.sms * 1e6 / H200.hz, rel=0.02)


@pytest.mark.system
def test_blocks_that_did_not_run_touch_no_more_of_an_array_than_it_has():
    """Words from anywhere in an array of 1 MiB beside two of 32: DRAM moves what it does where
    they are in order.
    """
    count, few = 1 << 23, 1 << 18
    x, y = np.zeros(few, np.float32), np.zeros(count, np.float32)
    anywhere = np.random.default_rng(1).integers(0, few, count, np.int32)
    in_turn = np.arange(count, dtype=np.int32) % few
    found = [
        launched("pick", (count // 256,), (256,), at, x, y, blocks=64).bounds["DRAM"]
        for at in (anywhere, in_turn)
    ]
    assert found[0] == pytest.approx(found[1], rel=0.02)
    assert found[0] > 1e-3 * 8 * count / H200.dram_gbps


def test_an_array_that_begins_inside_a_piece():
    touched = TouchedBytes([(4096 + 40, 4096 + 200)])
    touched.touch(1, "read", np.array([4136, 4160, 4292], np.uint64), 4)
    assert touched.aligned_pieces("read", 64, 1) == [(4128, 176, 3, 3)]
    assert touched.aligned_pieces("read", 64, 16) == [(4128, 176, 3, 0)]


@pytest.mark.parametrize("trips", [7, 31, 33, 63, 127])
def test_a_loop_through_an_array_keeps_its_steps(monkeypatch, trips):
    """The compiler makes two loops of one line: the rest, and four steps at a time."""
    seen, work_of = {}, observer.work_of

    def kept(*arguments):
        seen["machine"], seen["counted"], _, seen["shape"], _ = arguments
        return work_of(*arguments)

    monkeypatch.setattr(observer, "work_of", kept)
    n = 16 * 64 * trips - 50
    x, y = np.zeros(n, np.float32), np.zeros(n, np.float32)
    launched("stride", (16,), (64,), x, y, np.int32(n), blocks=8)
    warps = seen["shape"].blocks * seen["shape"].warps
    counts, _ = executions(seen["machine"].segments, seen["counted"], warps)
    both = zip(seen["machine"].segments, counts, strict=True)
    loads = sum(times * sum(code.name == "LDG" for code in one.code) for one, times in both)
    assert loads == pytest.approx(warps * trips, rel=0.02)


@pytest.mark.parametrize("rows", [64, 256])
def test_of_two_loads_of_a_line_the_longer_counts(rows):
    """Each step waits for its column, where the vector beside it is in L1 seven times of eight."""
    columns = 64
    a, x = np.zeros(rows * columns, np.float32), np.zeros(rows, np.float32)
    y = np.zeros(columns, np.float32)
    found = launched("down", (1,), (columns,), a, x, y, np.int32(rows), np.int32(columns))
    clocks = found.bounds["latency"] * 1e-6 * H200.hz
    assert rows * H200.l2_clocks < clocks < rows * (H200.l2_clocks + 100)


def test_a_sequence_that_is_cut_short_stands_for_the_rest(monkeypatch):
    """A block walks down 64 rows, of which the first half is all that is followed."""
    a, x, y = (np.zeros(64 * 256, np.float32) for _ in "axy")
    call = "down", (1,), (256,), a, x, y, np.int32(64), np.int32(256)
    whole = launched(*call)
    monkeypatch.setattr(caches, "MOST_SECTORS", 32 * 33)
    half = launched(*call)
    assert half.bounds["L2"] == pytest.approx(whole.bounds["L2"], rel=0.02)
    assert half.us == pytest.approx(whole.us, rel=0.02)


def test_loads_past_l1_wait_for_l2_each_time():
    """Two chains of 100 loads of one line: volatile ones, and those that fetch it again."""
    x, y = (np.zeros(32, np.int32) for _ in "xy")
    found = launched("chase", (1,), (32,), x, y, np.int32(100))
    clocks = found.bounds["latency"] * 1e-6 * H200.hz
    assert clocks > 200 * H200.l2_clocks


@pytest.mark.parametrize("count", [256, 512])
def test_a_sm_sends_a_line_in_two_clocks(count):
    """Words a line apart: one block waits for its own way to L2, which has many."""
    x, y = np.zeros(count, np.float32), np.zeros(32 * count, np.float32)
    found = launched("spread", (1,), (count,), x, y, np.int32(32))
    us = STORED * count * 1e6 / H200.hz
    reading = ASKED * count / 32 * 1e6 / H200.hz
    assert H200.sms * found.bounds["an SM to L2"] == pytest.approx(us + reading, rel=0.02)
    assert found.us > us + found.start_us


def test_blocks_that_do_nothing_are_dealt_out_one_after_another():
    blocks = 1 << 16
    found = launched("nothing", (blocks,), (32,), np.zeros(32, np.float32), blocks=16)
    shortest = 1e6 * DEALING_CLOCKS * blocks / H200.hz
    assert shortest < found.us < 1.1 * shortest + 2
    assert found.limit == "launch and starts"


def test_words_of_many_lines_cost_l2_more_than_whole_lines():
    """Each warp loads a line and stores a word to each of 32 lines."""
    n = 32 * 64
    x, y = np.zeros(8 * n, np.float32), np.zeros(32 * n, np.float32)
    found = launched("rows", (n // 32,), (32, 8), x, y, np.int32(n))
    sectors = x.size * (1 + LINE_STORE + PART_STORED) + x.size / 32 * 4 / FASTEST
    assert found.bounds["L2"] == pytest.approx(32 * sectors / H200.l2_gbps / 1e3, rel=0.01)


@pytest.mark.parametrize(("stride", "of_line"), [(1, 5), (2, 9), (8, 9), (16, 5), (32, 3)])
def test_what_a_store_of_a_line_costs_l2(stride, of_line):
    """Words of 256 threads, so far apart: a line has a head, its sectors, and masks of those that
    are filled in part.
    """
    x, y = np.zeros(256, np.float32), np.zeros(256 * 32, np.float32)
    found = launched("spread", (1,), (256,), x, y, np.int32(stride))
    sectors = of_line * 256 * stride / 32 + 8 * 4 / FASTEST  # and the loads, a line a warp
    assert found.bounds["L2"] == pytest.approx(32 * sectors / H200.l2_gbps / 1e3, rel=0.01)


TABLES = """extern "C" __global__ void sectors(
    const float* __restrict__ x, float* y, int n, int apart)
{
    const int warps = blockDim.x / 32, w = threadIdx.x / 32, l = threadIdx.x % 8;
    const float* own = x + blockIdx.x * apart * 8;
    float s = 0;
#pragma unroll 8
    for (int k = w; k < n; k += warps) s += own[k % n * 8 + l];
    y[blockIdx.x * blockDim.x + threadIdx.x] = s;
}
extern "C" __global__ void gather(
    const float4* __restrict__ x, float* y, int n, int apart)
{
    const float4* own = x + blockIdx.x * apart * 2;
    unsigned h = (blockIdx.x * blockDim.x + threadIdx.x) * 2654435761u;
    h ^= h >> 15;
    h *= 2246822519u;
    h ^= h >> 13;
    const float4 a = own[h % (n * 2)], b = own[(h >> 12) % (n * 2)];
    y[blockIdx.x * blockDim.x + threadIdx.x] = a.x + b.y;
}
"""


@pytest.mark.parametrize(("kernel", "sectors", "own", "measured"), [
    ("sectors", 256, 0, 8.23), ("sectors", 256, 1, 8.32), ("gather", 256, 0, 2.51),
    ("gather", 256, 1, 1.84), ("gather", 1024, 0, 3.27), ("gather", 1024, 1, 2.58),
])  # fmt: skip
def test_blocks_that_load_one_table_together(kernel, sectors, own, measured):
    """Microseconds of an H200: 528 blocks wait for a table's sectors together, as long as if each
    had its own; where they gather from it, L2 takes longer.
    """
    x = np.zeros(8 * sectors * (1 + 527 * own) + (1 - own << 18), np.float32)  # and what follows
    y = np.zeros(528 * 256, np.float32)
    call = RawModule(code=TABLES, backend="simulator").get_function(kernel)
    with observe(Time("h200", blocks=64)) as seen:
        call((528,), (256,), (x, y, np.int32(sectors), np.int32(own * sectors)))
    assert seen.total_us == pytest.approx(measured, rel=0.17)


def test_stores_that_fill_their_sectors_together_leave_l1_as_fewer():
    """Four floats of a thread, one after another, or three of them, which leave a part."""
    x, y = np.zeros(256, np.float32), np.zeros(256 * 8, np.float32)
    whole = launched("structs", (1,), (256,), x, y, np.int32(4)).bounds["L2"]
    part = launched("three", (1,), (256,), x, y, np.int32(4)).bounds["L2"]
    lines = 8 * 4  # of a request, with 4 sectors each
    for found, of_line in ((whole, 4 + LINE_STORE), (part, 6 + LINE_STORE)):
        sectors = lines * of_line + 32 / FASTEST
        assert found == pytest.approx(32 * sectors / H200.l2_gbps / 1e3, rel=0.01)


@pytest.mark.parametrize("kib", [16, 64, 1024])
def test_atomics_on_few_lines_find_few_slices_of_l2(kib):
    """65,536 of them, at random words: the fullest slice has more than the mean."""
    words = 256 * kib
    at = np.random.default_rng(1).integers(0, words, 1 << 16, np.int32)
    found = launched("count", (256,), (256,), at, np.zeros(words, np.float32)).bounds["L2"]
    spread = 32 * (ATOMIC + UNEVEN * 96 / (2 * kib)) * at.size / H200.l2_gbps / 1e3
    loads = 32 * at.size / 8 / H200.l2_gbps / 1e3
    assert found == pytest.approx(spread + loads, rel=0.04)  # some of a warp meet in a sector


def test_stores_of_many_warps_on_one_word_wait_for_each_other():
    """16 blocks of 8 warps store a word each to one place, or each to its own."""
    x = np.zeros(4096, np.float32)
    meeting, apart = (
        launched("spread_blocks", (16,), (256,), x, np.zeros(4096, np.float32), np.int32(each))
        for each in (0, 1)
    )
    waited = meeting.bounds["L2"] - apart.bounds["L2"]
    assert waited == pytest.approx(16 * 8 * STORE_NS / 1e3, rel=0.1)


def test_guessed_machine_code_has_blocks_that_only_move_values(monkeypatch):
    monkeypatch.setattr(observer, "machine_code", lambda *_: None)
    short, long = (
        launched("swap", (1,), (64,), np.zeros(64, np.float32), np.zeros(64, np.float32), steps)
        for steps in (np.int32(0), np.int32(60))
    )
    assert "guessed from PTX" in long.notes[-1]
    assert long.machine_instructions > short.machine_instructions + 2 * 60 * 5
    assert long.us > 1.5 * short.us


def test_atomics_on_16_kib_take_between_two_and_three_times_as_long_as_on_one_mib():
    """An H200 took 2.9 times as long."""
    times = {}
    for kib in (16, 1024):
        at = np.random.default_rng(1).integers(0, 256 * kib, 1 << 16, np.int32)
        y = np.zeros(256 * kib, np.float32)
        times[kib] = launched("count", (256,), (256,), at, y).bounds["L2"]
    assert 2 < times[16] / times[1024] < 3


def test_words_from_anywhere_take_dram_a_piece_each():
    """16,384 words of a large array, of 524,288 that the grid asks for."""
    count = 1 << 19
    x, y = np.zeros(COUNT, np.float32), np.zeros(count, np.float32)
    anywhere = np.random.default_rng(1).integers(0, COUNT, count).astype(np.int32)
    in_turn = np.arange(count, dtype=np.int32)
    picked, near = (
        launched("pick", (count // 256,), (256,), at, x, y, blocks=64) for at in (anywhere, in_turn)
    )
    pieces = 64 * count / H200.read_gbps / 1e3  # us, if each were of a stream
    assert 0.2 * pieces < picked.bounds["DRAM"] < pieces
    assert near.bounds["DRAM"] < 0.1 * picked.bounds["DRAM"]


@pytest.mark.turns(11)
@pytest.mark.system
def test_lines_of_several_files_name_theirs(tmp_path):
    """Of two launches of one file the number alone is enough."""
    for name in ("a", "b"):
        (tmp_path / f"{name}.cu").write_text(WAYS)
    modules = [RawModule(path=str(tmp_path / f"{n}.cu"), backend="simulator") for n in ("a", "b")]
    at, x, y = np.zeros(32, np.int32), np.zeros(32, np.float32), np.zeros(32, np.float32)
    for used in (modules, modules[:1] * 2):
        with observe(Time("h200")) as seen:
            for module in used:
                module.get_function("pick")((1,), (32,), (at, x, y))
        shown = str(seen)
        assert shown.count("what one line") == 2
        for name in ("a", "b"):
            assert (f"what one line of {name}.cu does:" in shown) == (used is modules)


@pytest.mark.parametrize("different", [1, 2, 32])
def test_a_constant_for_each_lane_is_a_pass_for_each_address(different):
    at = np.arange(1024, dtype=np.int32) % different
    found = launched("look_up", (4,), (256,), at, np.zeros(1024, np.float32))
    passes = different * at.size / 32 / H200.sms
    us = CONSTANT_CLOCKS * passes * 1e6 / H200.hz
    assert found.bounds["constant cache"] == pytest.approx(us)


@pytest.mark.parametrize(("zeros", "warps"), [(0, 0), (1, 1), (40, 2), (256, 8)])
def test_warps_with_a_zero_take_slow_paths(monkeypatch, zeros, warps):
    """By the division, and by the root; by the division of doubles."""
    found, of_event = [], observer.slow_paths
    monkeypatch.setattr(observer, "slow_paths", lambda e: found.append(of_event(e)) or found[-1])
    x, y = np.ones(256, np.float32), np.zeros(256, np.float32)
    x[:zeros] = 0.0
    launched("divide", (1,), (256,), x, y)
    assert found == [warps, warps]
    found.clear()
    doubles = np.where(x == 0.0, 1e-300, 1.0)  # small numerators are as slow
    launched("divide_doubles", (1,), (256,), doubles, np.zeros(256))
    assert found == [warps]


@pytest.mark.parametrize(("apart", "sectors"), [(0, 16), (1, 4), (8, 16)])
def test_atomics_of_a_cluster_take_clocks_for_each_far_sector(apart, sectors):
    """Every other lane adds in the other block: on one address, side by side, and far apart."""
    at = (np.arange(64) % 32 * apart).astype(np.int32)
    with observe(Time("h200")) as seen:
        RawKernel(TELL, "tell", backend="simulator")((2,), (64,), (at,))
    us = FAR_ATOMIC * 4 * sectors / H200.sms * 1e6 / H200.hz
    reading = 2 * 2 * 4 * 32 / 64 / H200.sms * 1e6 / H200.hz  # of `at`, by way of the same port
    assert seen.launches[0].bounds["L2 to an SM"] == pytest.approx(us + reading)


@pytest.mark.turns(3)
@pytest.mark.parametrize(("kind", "words"), [("float", 1), ("float2", 2), ("float4", 4)])
def test_a_load_takes_a_pass_of_l1_for_each_register(kind, words):
    """All lanes load the same bytes: an H200 takes 1, 2 and 4 clocks. So do stores in the model."""
    text = f"""extern "C" __global__ void same(const {kind}* x, {kind}* y, int n)
    {{
        for (int i = 0; i < n; ++i) y[i * 32 + threadIdx.x] = x[i];
    }}"""
    kernel = RawKernel(text, "same", backend="simulator")
    x, y = np.zeros(1 << 12, np.float32), np.zeros(1 << 14, np.float32)
    with observe(Time("h200")) as seen:
        kernel((1,), (32,), (x, y, 100))
    clocks = seen.launches[0].bounds["shared memory and L1"] * 1e-6 * H200.hz * H200.sms
    assert clocks == pytest.approx(2 * 100 * words, rel=0.1)


@pytest.mark.system
def test_sums_at_random_words_take_l2_what_they_took():
    """A red of each lane on a sector of its own: 4,325,376 of them took 43.3 us on an H200."""
    text = """extern "C" __global__ void sum_up(unsigned* sums, unsigned mask)
    {
        unsigned seed = (blockIdx.x * blockDim.x + threadIdx.x) * 2654435761u + 12345u;
        for (int i = 0; i < 16; ++i) {
            seed = seed * 1664525u + 1013904223u;
            atomicAdd(sums + ((seed >> 5 ^ seed << 7) & mask), 1u);
        }
    }"""
    kernel = RawKernel(text, "sum_up", backend="simulator")
    count = 1 << 20
    with observe(Time("h200", blocks=32)) as seen:
        kernel((1056,), (256,), (np.zeros(count, np.uint32), np.uint32(count - 1)))
    assert seen.launches[0].us == pytest.approx(43.3, rel=0.1)
