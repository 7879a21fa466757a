"""Warp-level instructions on the simulator, against plain Python over 32 lanes."""

import numpy as np
import pytest
from kernelscope.errors import ShuffleWarning
from kernelscope.machine.warps import shuffle
from machine_harness import listen, run, zeros

CODE = r"""
#define FULL 0xffffffffu
#define ID (blockIdx.x * blockDim.x + threadIdx.x)
extern "C" {
__global__ void shuffles(const int* a, const int* by, int* out, int n) {
    int i = ID;
    int v = a[i], b = by[0];
    out[i] = __shfl_sync(FULL, v, by[i % 32]);
    out[n + i] = __shfl_up_sync(FULL, v, b);
    out[2 * n + i] = __shfl_down_sync(FULL, v, b);
    out[3 * n + i] = __shfl_xor_sync(FULL, v, b);
}
#define WIDTH(W, AT) \
    out[(AT) * n + i] = __shfl_sync(FULL, v, by[i % 32], W); \
    out[(AT + 1) * n + i] = __shfl_up_sync(FULL, v, by[0], W); \
    out[(AT + 2) * n + i] = __shfl_down_sync(FULL, v, by[0], W); \
    out[(AT + 3) * n + i] = __shfl_xor_sync(FULL, v, by[0], W);
__global__ void widths(const int* a, const int* by, int* out, int n) {
    int i = ID;
    int v = a[i];
    WIDTH(1, 0) WIDTH(2, 4) WIDTH(4, 8) WIDTH(8, 12) WIDTH(16, 16)
}
__global__ void types(const double* a, long long* big, float* small, int n) {
    int i = ID;
    double d = __shfl_down_sync(FULL, a[i], 3);
    big[i] = __shfl_xor_sync(FULL, (long long)(d * 1e9), 5);
    small[i] = __shfl_up_sync(FULL, (float)a[i], 7, 16);
}
__global__ void votes(const int* a, unsigned* out, int n) {
    int i = ID;
    int x = a[i];
    unsigned some = 0x0ff0f00fu;
    out[i] = __ballot_sync(FULL, x > 5);
    out[n + i] = __any_sync(FULL, x == 9) * 2 + __all_sync(FULL, x < 9);
    out[2 * n + i] = __match_any_sync(FULL, x);
    int agree = 0;
    out[3 * n + i] = __match_all_sync(FULL, x / 16, &agree) ^ (agree << 7);
    out[4 * n + i] = 0;
    if (some >> (i % 32) & 1) {
        out[4 * n + i] = __ballot_sync(some, x & 1);
        out[4 * n + i] ^= __match_any_sync(some, x % 3) + __any_sync(some, x == 2);
    }
    out[5 * n + i] = __match_any_sync(FULL, (unsigned long long)x << 40);
}
__global__ void reductions(const int* a, unsigned* out, int n) {
    int i = ID;
    unsigned u = a[i];
    out[i] = __reduce_add_sync(FULL, u);
    out[n + i] = __reduce_max_sync(FULL, a[i]);
    out[2 * n + i] = __reduce_min_sync(FULL, a[i]);
    out[3 * n + i] = __reduce_and_sync(FULL, u | 4) ^ __reduce_xor_sync(FULL, u);
    out[4 * n + i] = __reduce_or_sync(FULL, u & 0xf0) + __reduce_max_sync(FULL, u);
    if (i % 32 >= 20) out[n + i] = __reduce_min_sync(0xfff00000u, u * 3);
}
__global__ void groups(const unsigned* a, const unsigned* masks, unsigned* out, int n) {
    int i = ID;
    unsigned u = a[i], mask = masks[i], r, p;
    int same = 0;
    out[i] = __reduce_add_sync(mask, u);
    out[n + i] = __reduce_min_sync(mask, (int)u);
    out[2 * n + i] = __reduce_max_sync(mask, u);
    out[3 * n + i] = __reduce_and_sync(mask, u);
    out[4 * n + i] = __reduce_or_sync(mask, u);
    out[5 * n + i] = __reduce_xor_sync(mask, u);
    out[6 * n + i] = __ballot_sync(mask, u & 1);
    out[7 * n + i] = __all_sync(mask, u & 1) * 2 + __any_sync(mask, u & 1);
    out[8 * n + i] = __match_any_sync(mask, u & 3);
    out[9 * n + i] = __match_all_sync(mask, u & 1, &same);
    out[10 * n + i] = same;
    out[11 * n + i] = __shfl_sync(mask, u, __ffs(mask) - 1);
    asm volatile("{.reg .pred q; elect.sync %0|q, %2; selp.u32 %1, 1, 0, q;}"
                 : "=r"(r), "=r"(p) : "r"(mask));
    out[12 * n + i] = r * 2 + p;
}
__global__ void active(unsigned* out, int n) {
    int i = ID;
    out[i] = __activemask();
    if (i % 3 == 1) out[i] = __activemask();
    else if (i % 32 > 25) return;
    __syncwarp(__activemask());
    out[n + i] = __activemask();
}
__global__ void inside_branches(const int* a, int* out) {
    int i = ID, lane = i % 32, v = a[i];
    unsigned mine = __ballot_sync(FULL, v % 2);
    if (v % 2) {
        int next = __shfl_sync(mine, v, __ffs(mine) - 1);
        out[i] = next * 3 + __popc(__ballot_sync(mine, v > 9));
    } else {
        for (int k = 0; k < lane % 5; ++k) v += k;   // lanes arrive at different times
        out[i] = -__reduce_add_sync(~mine, v);
    }
}
__global__ void loop(const int* a, int* out) {   // a sum by shuffles, trips by warp
    int i = ID, v = a[i];
    for (int step = 16 >> (i / 32 % 3); step > 0; step /= 2) v += __shfl_down_sync(FULL, v, step);
    out[i] = v;
}
__global__ void half_missing(const int* a, int* out) {
    int i = ID, v = a[i];
    if (i % 32 < 16) v += __shfl_xor_sync(FULL, v, 16);  // partners never come
    out[i] = v;
}
__global__ void halves(const int* a, int* out, int turns) {  // each half waits for the other
    int i = ID, v = a[i];
    for (int k = 0; k < turns; ++k) {
        if (i % 32 < 16) {
            v += __shfl_xor_sync(FULL, v, 1);
            v = 3 * __shfl_xor_sync(FULL, v, 2) - k;
        } else {
            v -= __shfl_xor_sync(FULL, v, 4);
            v = 5 * __shfl_xor_sync(FULL, v, 8) + k;
        }
    }
    out[i] = v;
}
__global__ void lanes(unsigned* out, int n) {
    int i = ID;
    unsigned r;
    asm("mov.u32 %0, %%laneid;" : "=r"(r)); out[i] = r;
    asm("mov.u32 %0, %%warpid;" : "=r"(r)); out[n + i] = r;
    asm("mov.u32 %0, %%lanemask_lt;" : "=r"(r)); out[2 * n + i] = r;
    asm("mov.u32 %0, %%lanemask_ge;" : "=r"(r)); out[3 * n + i] = r;
    asm("mov.u32 %0, %%lanemask_le;" : "=r"(r)); out[4 * n + i] = r;
    asm("mov.u32 %0, %%lanemask_gt;" : "=r"(r)); out[5 * n + i] = r;
    asm("mov.u32 %0, %%lanemask_eq;" : "=r"(r)); out[6 * n + i] = r;
    asm("mov.u32 %0, %%nwarpid;" : "=r"(r)); out[7 * n + i] = r;
}
}
"""


def shuffled(mode, values, by, width):
    """CUDA's __shfl_* over one warp of values; by: a list of source lanes, or the distance."""
    out = []
    for lane in range(len(values)):
        start = lane // width * width
        if mode == "idx":
            source = start + by[lane] % width
        elif mode == "up":
            source = lane - by if lane - by >= start else lane
        elif mode == "down":
            source = lane + by if lane + by < start + width else lane
        else:
            source = lane ^ by if lane ^ by < start + width else lane
        out.append(values[source])
    return out


def expect_shuffles(a, by, width):
    rows = []
    for mode in ("idx", "up", "down", "xor"):
        parts = [
            shuffled(mode, warp, by if mode == "idx" else by[0], width)
            for warp in a.reshape(-1, 32).tolist()
        ]
        rows.append(sum(parts, []))
    return rows


@pytest.mark.parametrize("distance", [1, 5, 16, 31])
def test_shuffles(distance, build):
    rng = np.random.default_rng(distance)
    n = 192
    a, by = rng.integers(-99, 99, n).astype(np.int32), rng.integers(0, 40, 32).astype(np.int32)
    by[0] = distance
    out = zeros(4 * n)
    run(CODE, "shuffles", 2, 96, a, by, out, np.int32(n), build=build)
    assert out.reshape(4, n).tolist() == expect_shuffles(a, by.tolist(), 32)


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_whole_warps_and_parts_of_them_shuffle_alike(mode):
    """Lanes that agree on the distance move together; others, and parts of warps, one by one."""
    lanes = np.concatenate([np.arange(32), np.arange(96, 160)])
    value = np.random.default_rng(1).integers(0, 2**32, 96).astype(np.uint32)
    for b in (0, 1, 7, 31, 35):
        for c in (31, 0, 0x1F00, 0x181F, 0x1007):
            uniform = shuffle(mode, value, np.uint32(b), np.uint32(c), lanes)
            each = np.full(96, b, np.uint32)
            for one, other in zip(
                uniform, shuffle(mode, value, each, np.uint32(c), lanes), strict=True
            ):
                np.testing.assert_array_equal(np.resize(one, 96), other)
            part = shuffle(mode, value[:-1], np.uint32(b), np.uint32(c), lanes[:-1])
            kept = ~part[3]
            for one, other in zip(uniform[:2], part[:2], strict=True):
                np.testing.assert_array_equal(one[:-1][kept], other[kept])
    halves = shuffle(mode, value[:32], np.uint32(1), np.uint32(31), np.arange(16, 48))
    assert halves[3].sum() == {"up": 0, "down": 1, "bfly": 0, "idx": 16}[mode]


@pytest.mark.parametrize("distance", [1, 3, 9])
def test_shuffles_of_every_width(distance, build):
    rng = np.random.default_rng(distance)
    n = 64
    a, by = rng.integers(-99, 99, n).astype(np.int32), rng.integers(0, 31, 32).astype(np.int32)
    by[0] = distance
    out = zeros(20 * n)
    run(CODE, "widths", 1, 64, a, by, out, np.int32(n), build=build)
    expected = sum((expect_shuffles(a, by.tolist(), width) for width in (1, 2, 4, 8, 16)), [])
    assert out.reshape(20, n).tolist() == expected


def test_shuffles_of_doubles_and_long_longs(build):
    n = 64
    a = np.random.default_rng(2).standard_normal(n)
    big, small = zeros(n, np.int64), zeros(n, np.float32)
    run(CODE, "types", 1, n, a, big, small, np.int32(n), build=build)
    warps = a.reshape(2, 32)
    down = np.array([shuffled("down", warp, 3, 32) for warp in warps])
    scaled = np.trunc(down * 1e9).astype(np.int64)
    assert big.reshape(2, 32).tolist() == [shuffled("xor", w, 5, 32) for w in scaled.tolist()]
    floats = warps.astype(np.float32)
    assert small.reshape(2, 32).tolist() == [shuffled("up", w, 7, 16) for w in floats.tolist()]


def mask(flags):
    return sum(1 << lane for lane, flag in enumerate(flags) if flag)


@pytest.mark.parametrize("high", [3, 9, 40])
def test_votes_and_matches(high, build):
    n = 96
    a = np.random.default_rng(high).integers(0, high, n).astype(np.int32)
    out = zeros(6 * n, np.uint32)
    run(CODE, "votes", 1, n, a, out, np.int32(n), build=build)
    got = out.reshape(6, 3, 32).tolist()
    some = [0x0FF0F00F >> lane & 1 for lane in range(32)]
    for w, x in enumerate(a.reshape(3, 32).tolist()):
        assert got[0][w] == [mask(v > 5 for v in x)] * 32
        assert got[1][w] == [2 * any(v == 9 for v in x) + all(v < 9 for v in x)] * 32
        same = [mask(v == u for v in x) for u in x]
        assert got[2][w] == same and got[5][w] == same
        agree = len({v // 16 for v in x}) == 1
        assert got[3][w] == [(0xFFFFFFFF if agree else 0) ^ (agree << 7)] * 32
        odd = mask(s and v & 1 for s, v in zip(some, x, strict=True))
        two = any(s and v == 2 for s, v in zip(some, x, strict=True))
        third = [mask(s and v % 3 == u % 3 for s, v in zip(some, x, strict=True)) for u in x]
        voted = [(odd ^ (t + two)) if s else 0 for s, t in zip(some, third, strict=True)]
        assert got[4][w] == voted


def test_reductions(build):
    n = 64
    a = np.random.default_rng(4).integers(-500, 900, n).astype(np.int32)
    out = zeros(5 * n, np.uint32)
    run(CODE, "reductions", 1, n, a, out, np.int32(n), build=build)
    got = out.reshape(5, 2, 32).tolist()
    for w, x in enumerate(a.reshape(2, 32)):
        u = x.view(np.uint32)
        low = int(min((u[20:] * np.uint32(3)).tolist()))
        assert got[0][w] == [int(u.sum(dtype=np.uint32))] * 32
        assert got[1][w] == [int(x.max())] * 20 + [low] * 12
        assert got[2][w] == [int(x.min()) % 2**32] * 32
        both = np.bitwise_and.reduce(u | 4) ^ np.bitwise_xor.reduce(u)
        assert got[3][w] == [int(both)] * 32
        total = int(np.bitwise_or.reduce(u & 0xF0)) + int(u.max())
        assert got[4][w] == [total % 2**32] * 32


def partition(kind, lane):
    """The group of a lane: one mask an instruction is what a group shares."""
    groups = {"halves": lane // 16, "tiles": lane // 4, "odd": lane % 2, "labels": lane * 7 % 5}
    return groups.get(kind, 0 if kind == "one" else lane)


@pytest.mark.parametrize("kind", ["halves", "tiles", "odd", "labels", "one", "alone"])
def test_groups_of_a_warp_with_masks_of_their_own(kind, build):
    """Several groups of a warp are at one instruction, and each gets its own result."""
    n, rows = 83, 13  # the last warp is short
    a = np.random.default_rng(5).integers(0, 2**32, n, dtype=np.uint32) | np.uint32(kind == "odd")
    a[:32] |= np.uint32(1)
    teams = [
        [j for j in range(i // 32 * 32, min(n, i // 32 * 32 + 32)) if partition(kind, j) == mine]
        for i in range(n)
        for mine in [partition(kind, i)]
    ]
    masks = np.array([sum(1 << j % 32 for j in team) for team in teams], np.uint32)
    out = zeros(rows * n, np.uint32)
    run(CODE, "groups", 1, n, a, masks, out, np.int32(n), build=build)
    signed = a.view(np.int32)
    for i, team in enumerate(teams):
        x = a[team]
        ballot = sum(1 << j % 32 for j in team if a[j] & 1)
        every, some = ballot == masks[i], ballot != 0
        leader = team[0] % 32
        expected = [
            x.sum(dtype=np.uint32),
            signed[team].min().view(np.uint32),
            x.max(),
            np.bitwise_and.reduce(x),
            np.bitwise_or.reduce(x),
            np.bitwise_xor.reduce(x),
            ballot,
            2 * every + some,
            sum(1 << j % 32 for j in team if (a[j] ^ a[i]) & 3 == 0),
            masks[i] if every or not some else 0,
            every or not some,
            a[team[0]],
            leader * 2 + (i % 32 == leader),
        ]
        assert out.reshape(rows, n)[:, i].tolist() == [int(e) for e in expected]


@pytest.mark.parametrize("threads", [32, 50])
def test_active_mask(threads, build):
    out = zeros(2 * threads, np.uint32)
    run(CODE, "active", 1, threads, out, np.int32(threads), build=build)
    for start in range(0, threads, 32):
        there = [start + lane < threads for lane in range(32)]
        third = mask(t and (start + lane) % 3 == 1 for lane, t in enumerate(there))
        stay = mask(t and ((start + lane) % 3 == 1 or lane <= 25) for lane, t in enumerate(there))
        for lane in range(min(32, threads - start)):
            i = start + lane
            assert out[i] == (third if i % 3 == 1 else mask(there))
            assert out[threads + i] == (stay if i % 3 == 1 or lane <= 25 else 0)


def test_inside_branches_with_the_right_mask(build, order):
    a = np.random.default_rng(8).integers(0, 30, 96).astype(np.int32)
    out = zeros(96)
    run(CODE, "inside_branches", 1, 96, a, out, build=build, warp_order=order)
    for w, x in enumerate(a.reshape(3, 32).tolist()):
        odd = [v for v in x if v % 2]
        high = sum(v > 9 for v in odd)
        total = sum(v + sum(range(k % 5)) for k, v in enumerate(x) if v % 2 == 0)
        expected = [odd[0] * 3 + high if v % 2 else -total for v in x]
        assert out[32 * w : 32 * w + 32].tolist() == expected


def test_shuffles_in_a_loop(build):
    a = np.random.default_rng(9).integers(0, 30, 128).astype(np.int32)
    out = zeros(128)
    run(CODE, "loop", 1, 128, a, out, build=build)
    for w, x in enumerate(a.reshape(4, 32).tolist()):
        step = 16 >> (w % 3)
        while step:
            x = [v + s for v, s in zip(x, shuffled("down", x, step, 32), strict=True)]
            step //= 2
        assert out[32 * w : 32 * w + 32].tolist() == x


def test_lanes_that_never_come_are_told(build):
    a, out = np.arange(1, 65, dtype=np.int32), zeros(64)
    listener = listen(CODE, "half_missing", 1, 64, a, out, build=build)
    (fault,) = listener.faults
    assert fault.kind == "divergent-barrier" and "partners never come" in fault.message
    assert "32 threads wait" in fault.message and "mask" in fault.message
    assert out.reshape(2, 32)[:, 16:].tolist() == a.reshape(2, 32)[:, 16:].tolist()


def test_halves_that_never_meet_go_on_again_and_again(build):
    """Each place is passed many times, and runs its own instructions each time."""
    turns, a, out = 9, np.random.default_rng(3).integers(-9, 9, 32).astype(np.int32), zeros(32)
    listener = listen(CODE, "halves", 1, 32, a, out, np.int32(turns), build=build)
    low, high = np.arange(16), np.arange(16, 32)
    expected = a.copy()
    for k in range(turns):
        for half, masks, sign, times, step in ((low, (1, 2), 1, 3, -k), (high, (4, 8), -1, 5, k)):
            expected[half] += sign * expected[half ^ masks[0]]
            expected[half] = times * expected[half ^ masks[1]] + step
    assert out.tolist() == expected.tolist()
    assert {fault.kind for fault in listener.faults} == {"divergent-barrier"}


def test_lane_registers(build):
    n = 2 * 70
    out = zeros(8 * n, np.uint32)
    run(CODE, "lanes", 2, 70, out, np.int32(n), build=build)
    for i in range(n):
        lane = i % 70 % 32
        less, full = (1 << lane) - 1, 0xFFFFFFFF
        below = less * 2 + 1
        assert out.reshape(8, n)[:, i].tolist() == [
            lane,
            i % 70 // 32,
            less,
            full & ~less,
            below,
            full & ~below,
            1 << lane,
            3,
        ]


def test_observers_hear_who_was_to_meet(build):
    a, out = np.arange(96, dtype=np.int32), zeros(96)
    events = listen(CODE, "inside_branches", 1, 96, a, out, build=build).events
    odd = sum(1 << lane for lane in range(1, 32, 2))
    heard = set()
    for event in events:
        meets = event.instruction.opcode.startswith(("shfl.sync", "vote.sync", "redux.sync"))
        assert (event.members is not None) == meets
        if meets:
            heard |= set(np.unique(event.members).tolist())
    assert heard == {0xFFFFFFFF, odd, 0xFFFFFFFF ^ odd}


SYNCS = r"""
extern "C" {
__global__ void both_sides(int* out) {     // each side reads what the other has just written
    __shared__ volatile int low, high;
    int t = threadIdx.x;
    if (t < 16) {
        if (t == 0) low = 5;
        __syncwarp();
        out[t] = high;
        __syncwarp();
        if (t == 0) low = out[t] + 1;
        __syncwarp();
    } else {
        if (t == 16) high = 7;
        __syncwarp();
        out[t] = low;
        __syncwarp();
        __syncwarp();
        out[t] += low;
    }
}
__global__ void half_warps(int* out) {     // a mask of 16 lanes does not wait for the others
    __shared__ volatile int x[64];
    int t = threadIdx.x, lane = t % 32;
    unsigned mask = lane < 16 ? 0xffffu : 0xffff0000u;
    x[t] = t;
    if (t % 2) { __syncwarp(mask); __syncwarp(mask); out[t] = x[t ^ 1]; }
    else { __syncwarp(mask); x[t] = 100 + t; __syncwarp(mask); out[t] = x[t ^ 1]; }
}
}
"""


def test_syncwarp_on_both_sides_of_a_branch(build, order):
    out = zeros(32)
    run(SYNCS, "both_sides", 1, 32, out, build=build, warp_order=order)
    assert out.tolist() == [7] * 16 + [5 + 8] * 16
    listener = listen(SYNCS, "both_sides", 1, 32, out, build=build)
    assert not listener.faults
    out = zeros(64)
    run(SYNCS, "half_warps", 1, 64, out, build=build, warp_order=order)
    assert out.tolist() == [t + 1 if t % 2 == 0 else 99 + t for t in range(64)]


def test_observers_hear_who_met(build):
    """Once for each meeting, however many places in the program it has."""
    met = listen(SYNCS, "both_sides", 1, 32, zeros(32), build=build).warp_barriers
    assert [event.lanes.tolist() for event in met] == [list(range(32))] * 3
    assert all(np.all(event.members == 0xFFFFFFFF) for event in met)
    met = listen(SYNCS, "half_warps", 1, 64, zeros(64), build=build).warp_barriers
    seen = np.zeros(64, int)
    for event in met:
        assert (np.diff(event.lanes) > 0).all()
        low = event.lanes % 32 < 16
        assert np.array_equal(event.members, np.where(low, 0xFFFF, 0xFFFF0000))
        seen[event.lanes] += 1
    assert seen.tolist() == [2] * 64


ABSENT = r"""
extern "C" {
__global__ void whole_warps(float* x) {
    float sum = x[threadIdx.x];
    for (int apart = 16; apart; apart /= 2) sum += __shfl_down_sync(0xffffffffu, sum, apart);
    x[threadIdx.x] = sum;
}
__global__ void named_lanes(float* x) {   // lanes 4 to 7 read others, and nobody uses their sums
    float sum = x[threadIdx.x];
    if (threadIdx.x >= 8) return;
    for (int apart = 4; apart; apart /= 2) sum += __shfl_down_sync(0xffu, sum, apart);
    x[threadIdx.x] = sum;
}
}
"""


def test_a_shuffle_that_reads_a_lane_which_is_not_there_warns(recwarn):
    with pytest.warns(ShuffleWarning, match=r"thread \(32, 0, 0\) reads lane 16 .* mask") as warned:
        run(ABSENT, "whole_warps", 3, 48, np.ones(48, np.float32))
    assert len(warned) == 1
    assert warned[0].filename.endswith("machine_harness.py"), "the line of the call"


@pytest.mark.parametrize("name, threads", [("whole_warps", 64), ("named_lanes", 48)])
def test_a_shuffle_among_lanes_that_are_there_does_not_warn(recwarn, name, threads):
    (x,) = run(ABSENT, name, 1, threads, np.ones(threads, np.float32))
    assert x[0] == (8 if name == "named_lanes" else 32) and not recwarn.list
