"""Control flow on the simulator: branches, loops, switches, calls, block shapes."""

import numpy as np
import pytest
from kernelscope.machine import launch
from kernelscope.translate.program import Program
from machine_harness import Listener, run, zeros

CODE = r"""
#define ID (blockIdx.x * blockDim.x + threadIdx.x)
extern "C" {
__global__ void nested(const int* a, int* out, int n) {
    int i = ID;
    if (i >= n) return;
    int x = a[i], r = 0;
    if (x % 2) {
        if (x % 3 == 0) r = 10 + x;
        else if (x > 40) { r = x * 2; if (x % 5 == 0) return; }
        else r = -x;
    } else {
        for (int k = 0; k < x % 7; ++k) if (k != 3) r += k * x;
    }
    out[i] = r + 1;
}
__global__ void trips(const int* a, int* out, int n) {
    int i = ID;
    if (i >= n) return;
    int s = 0;
    for (int k = 0; k < a[i]; ++k)
        for (int j = 0; j <= k % (1 + i % 4); ++j) s = s * 3 + (k ^ j);
    out[i] = s;
}
__global__ void leave(const int* a, int* out, int n) {
    int i = ID;
    if (i >= n) return;
    int s = 0;
    for (int k = 0; k < 50; ++k) {
        if ((k * 7 + i) % 3 == 0) continue;
        s += k;
        if (s > a[i]) break;
        int j = 0;
        while (true) { if (++j > k % 5) break; if (j == 2) continue; s += j; }
    }
    do { s -= 3; } while (s > 5 * (i % 11));
    out[i] = s;
}
__global__ void choose(const int* a, int* out, int n) {
    int i = ID;
    if (i >= n) return;
    int r = 7;
    switch (a[i]) {
        case 0: r = 3 * i; break;
        case 1: r = i * i; break;
        case 2: r = -i;                       // falls through
        case 3: r += 100; break;
        case 4: r = i ^ 0x55; break;
        case 5: for (int k = 0; k < i % 6; ++k) r = r * 5 + 1; break;
        case 6: r = i << 3; break;
        case 7: r = i / 3; break;
        case 8: out[i] = -1; return;
        case 9: r = i % 9; break;
        default: r = 1000 + i;
    }
    out[i] = r;
}
__global__ void jumps(const int* a, int* out, int n) {
    int i = ID, s = 0, k = 0;
    if (i >= n) return;
again:
    s += a[i] % 5 + k;
    if (++k < i % 4) goto again;
    if (s & 1) goto odd;
    s *= 2;
    goto done;
odd:
    s = -s;
    if (s < -6) { ++s; goto again; }
done:
    out[i] = s;
}
__global__ void logic(const int* a, const int* b, int* out, int* calls, int n) {
    int i = ID;
    if (i >= n) return;
    int r = 0;
    if (a[i] > 3 && (calls[i] = 1) && b[i] < 5) r |= 1;
    if (a[i] > 3 || (calls[i] += 2) > 50 || b[i] == a[i]) r |= 2;
    r |= (a[i] > b[i] ? (a[i] & 1 ? 4 : 8) : (b[i] & 1 ? 16 : 32));
    out[i] = r;
}
__global__ void place(int* out) {
    int block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    int at = block * blockDim.x * blockDim.y * blockDim.z + thread;
    out[at] = thread % 3 == 0 ? threadIdx.x * 1000000 + threadIdx.y * 10000 + threadIdx.z * 100
                              : blockIdx.x * 1000000 + blockIdx.y * 10000 + blockIdx.z * 100 + 1;
}
__global__ void unset(const int* a, int* out, int n) {
    int i = ID, v;
    if (i >= n) return;
    if (a[i] > 5) v = a[i] * 2;
    for (int k = 0; k < 3; ++k) if (a[i] > 5) v += k;
    if (a[i] > 5) out[i] = v;
}
__global__ void collatz(const int* a, int* out, int n) {
    int i = ID;
    if (i >= n) return;
    unsigned x = a[i] + 1; int steps = 0;
    while (x != 1) { x = x % 2 ? 3 * x + 1 : x / 2; ++steps; }
    out[i] = steps;
}
__global__ void table(const int* a, int* out, int n) {
    int r = 0;
    asm volatile("{ ts: .branchtargets A, B, C, D; brx.idx %1, ts;\n"
                 "A: mov.s32 %0, 10; bra E; B: add.s32 %0, %0, 20;\n"
                 "E: bra F;\n"
                 "C: mov.s32 %0, 7; bra G; D: mov.s32 %0, 13; F: add.s32 %0, %0, 5; G: }"
                 : "+r"(r) : "r"(a[ID]));
    out[ID] = r + ID;
}
__global__ void guarded(const int* a, int* out, int n) {
    int i = ID;
    if (i >= n) return;
    int r = 5;
    asm volatile("{ .reg .pred p; setp.gt.s32 p, %1, 10;\n"
                 "@p add.s32 %0, %0, %1; @!p mov.s32 %0, -3; }"
                 : "+r"(r) : "r"(a[i]));
    asm volatile("{ .reg .pred p; .reg .s32 t; mov.s32 t, 0;\n"
                 "LOOP: add.s32 t, t, 1; sub.s32 %0, %0, t; setp.lt.s32 p, t, %1; @p bra LOOP; }"
                 : "+r"(r) : "r"(a[i] % 4));
    asm volatile("{ .reg .pred p; .reg .s32 t; mov.s32 t, 0;\n"
                 "LOOP: setp.ge.s32 p, t, %1; @p bra DONE; add.s32 t, t, 2; add.s32 %0, %0, 7;"
                 " bra LOOP; DONE: }" : "+r"(r) : "r"(a[i] % 5));
    out[i] = r;
}
}
"""


def data(n, high=60, seed=1):
    return np.random.default_rng(seed).integers(0, high, n).astype(np.int32)


def wrap(value):
    return (value + 2**31) % 2**32 - 2**31


def expect_nested(x, _):
    r = 0
    if x % 2:
        if x % 3 == 0:
            r = 10 + x
        elif x > 40:
            r = x * 2
            if x % 5 == 0:
                return None
        else:
            r = -x
    else:
        r = sum(k * x for k in range(x % 7) if k != 3)
    return r + 1


def expect_trips(x, i):
    s = 0
    for k in range(x):
        for j in range(k % (1 + i % 4) + 1):
            s = wrap(s * 3 + (k ^ j))
    return s


def expect_leave(x, i):
    s = 0
    for k in range(50):
        if (k * 7 + i) % 3 == 0:
            continue
        s += k
        if s > x:
            break
        s += sum(j for j in range(1, k % 5 + 1) if j != 2)
    while True:
        s -= 3
        if not s > 5 * (i % 11):
            return s


def expect_choose(x, i):
    r = 7
    if x == 5:
        for _ in range(i % 6):
            r = r * 5 + 1
        return r
    table = [3 * i, i * i, 100 - i, 107, i ^ 0x55, 0, i << 3, i // 3, -1, i % 9]
    return table[x] if x < 10 else 1000 + i


def expect_jumps(x, i):
    s = k = 0
    while True:
        while True:
            s += x % 5 + k
            k += 1
            if not k < i % 4:
                break
        if s % 2 == 0:
            return s * 2
        s = -s
        if not s < -6:
            return s
        s += 1


def expect_collatz(x, _):
    value, steps = x + 1, 0
    while value != 1:
        value, steps = (3 * value + 1 if value % 2 else value // 2), steps + 1
    return steps


def expect_guarded(x, _):
    r = 5 + x if x > 10 else -3
    t = 0
    while True:
        t += 1
        r -= t
        if not t < x % 4:
            break
    return r + 7 * -(-(x % 5) // 2)


EXPECTED = {
    "nested": expect_nested,
    "trips": expect_trips,
    "leave": expect_leave,
    "choose": expect_choose,
    "jumps": expect_jumps,
    "collatz": expect_collatz,
    "guarded": expect_guarded,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_control_flow(name, build):
    n = 237
    a = data(n, 12 if name == "choose" else 60)
    out = np.full(n, -999, np.int32)
    run(CODE, name, 3, 100, a, out, np.int32(n), build=build)
    expected = [EXPECTED[name](int(x), i) for i, x in enumerate(a)]
    assert out.tolist() == [-999 if e is None else e for e in expected]


@pytest.mark.parametrize("threads", [1, 4, 33, 100, 1024])
def test_block_sizes_and_warp_order(threads, order):
    n = 1500
    a, out = data(n, 30, seed=threads), zeros(n)
    run(CODE, "leave", -(-n // threads), threads, a, out, np.int32(n), warp_order=order)
    assert out.tolist() == [expect_leave(int(x), i) for i, x in enumerate(a)]


@pytest.mark.parametrize("lanes", [1, 64, 999])
def test_chunks_of_any_size(lanes, monkeypatch):
    monkeypatch.setattr(launch, "LANES_PER_CHUNK", lanes)
    n = 400
    a, out = data(n, 30), zeros(n)
    run(CODE, "trips", 10, 41, a, out, np.int32(n))
    assert out.tolist() == [expect_trips(int(x), i) for i, x in enumerate(a)]


def test_jump_table(build):
    n = 77
    a, out = data(n, 4), zeros(n)
    run(CODE, "table", 1, n, a, out, np.int32(n), build=build)
    assert out.tolist() == [(15, 25, 7, 18)[x] + i for i, x in enumerate(a.tolist())]


def test_short_circuit_and_ternary(build):
    n = 70
    a, b, calls, out = data(n, 9), data(n, 9, seed=2), zeros(n), zeros(n)
    run(CODE, "logic", 1, 96, a, b, out, calls, np.int32(n), build=build)
    for i in range(n):
        count, r = 0, 0
        if a[i] > 3:
            count, r = 1, r | (b[i] < 5)
        if a[i] > 3:
            r |= 2
        else:
            count += 2
            if count > 50 or b[i] == a[i]:
                r |= 2
        r |= (4 if a[i] & 1 else 8) if a[i] > b[i] else (16 if b[i] & 1 else 32)
        assert (out[i], calls[i]) == (r, count), i


@pytest.mark.parametrize("block", [(3, 5, 2), (1, 1, 7), (33, 2, 1)])
def test_three_dimensional_blocks_and_grids(block, build):
    grid, threads = (2, 3, 2), int(np.prod(block))
    out = zeros(12 * threads)
    run(CODE, "place", grid, block, out, build=build)
    at = 0
    for bz in range(2):
        for by in range(3):
            for bx in range(2):
                for t in range(threads):
                    x, y = t % block[0], t // block[0] % block[1]
                    z = t // (block[0] * block[1])
                    thread = x * 1000000 + y * 10000 + z * 100
                    there = bx * 1000000 + by * 10000 + bz * 100 + 1
                    assert out[at] == (thread if t % 3 == 0 else there)
                    at += 1


def test_a_variable_set_on_one_path_only(build):
    n = 64
    a, out = data(n, 12), zeros(n)
    run(CODE, "unset", 1, n, a, out, np.int32(n), build=build)
    assert out.tolist() == [2 * x + 3 if x > 5 else 0 for x in a.tolist()]


# The block MEET stands before the two that lead to it, as compilers place it at times; a third
# comes from a call, whose blocks have keys of their own.
MEETING = """.version 8.0
.target sm_80
.address_size 64
.visible .func (.param .b32 r) twice(.param .b32 a) {
.reg .b32 %r<3>;
ld.param.b32 %r1, [a]; add.s32 %r2, %r1, %r1; st.param.b32 [r], %r2; ret; }
.visible .entry k(.param .u64 out) {
.reg .pred %p<4>; .reg .b32 %r<9>; .reg .b64 %rd<4>;
mov.u32 %r1, %tid.x; mov.u32 %r2, 0; mov.u32 %r3, 0; bra HEAD;
MEET: add.s32 %r2, %r2, 1; setp.ge.s32 %p1, %r2, 8; @%p1 bra DONE;
HEAD: add.s32 %r4, %r1, %r2; and.b32 %r5, %r4, 3; setp.eq.s32 %p2, %r5, 0; @%p2 bra FIRST;
setp.eq.s32 %p3, %r5, 1; @%p3 bra CALLED;
add.s32 %r3, %r3, 5; bra MEET;
FIRST: xor.b32 %r3, %r3, %r2; bra MEET;
CALLED: { .param .b32 a1; .param .b32 r1; st.param.b32 [a1], %r3;
call.uni (r1), twice, (a1); ld.param.b32 %r3, [r1]; } bra MEET;
DONE: ld.param.u64 %rd1, [out]; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;
st.global.u32 [%rd3], %r3; ret; }
"""


def test_lanes_meet_where_the_text_has_the_meeting_point_first():
    """Each of three ways runs once in each of eight steps, and so does what follows them."""
    out, heard = np.zeros(32, np.int32), Listener()
    launch.launch(Program(MEETING), "k", (1, 1, 1), (32, 1, 1), [out], observers=[heard])
    expected = []
    for lane in range(32):
        value = 0
        for step in range(8):
            way = lane + step & 3
            value = value ^ step if way == 0 else 2 * value if way == 1 else value + 5
        expected.append(value)
    assert out.tolist() == expected
    once = ("add.s32 %r2, %r2, 1", "add.s32 %r4, %r1, %r2", "add.s32 %r3, %r3, 5")
    found = [str(event.instruction).rstrip(";") for event in heard.events]
    assert [found.count(text) for text in (*once, "add.s32 %r2, %r1, %r1")] == [8] * 4
    assert found.count("add.s64 %rd3, %rd1, %rd2") == 1
