"""Barriers on the simulator: what passes, what hangs, and how it is told."""

import numpy as np
import pytest
from kernelscope.machine import Hang
from machine_harness import listen, run, zeros

CODE = r"""
extern "C" {
__global__ void tree(const int* a, int* out) {   // a sum over the block, any block size
    __shared__ int part[256];
    int t = threadIdx.x, n = blockDim.x;
    part[t] = a[blockIdx.x * n + t];
    __syncthreads();
    for (int step = 128; step > 0; step /= 2) {
        if (t < step && t + step < n) part[t] += part[t + step];
        __syncthreads();
    }
    if (t == 0) out[blockIdx.x] = part[0];
}
__global__ void rotate(int* out, int rounds) {   // a barrier in a loop whose trips differ by block
    __shared__ int ring[128];
    int t = threadIdx.x, n = blockDim.x;
    ring[t] = t * t;
    for (int k = 0; k < rounds + blockIdx.x; ++k) {
        __syncthreads();
        int v = ring[(t + 1) % n];
        __syncthreads();
        ring[t] = v + 1;
    }
    out[blockIdx.x * n + t] = ring[t];
}
__global__ void reduce(const int* a, int* out) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    int count = __syncthreads_count(a[i] > 20);
    int all = __syncthreads_and(a[i] > 2), any = __syncthreads_or(a[i] > 57);
    out[i] = count * 100 + (all ? 10 : 0) + (any ? 1 : 0);
}
__global__ void both_sides(int* out) {           // two in the text, one barrier to hardware
    __shared__ int x[64];
    int t = threadIdx.x;
    x[t] = t + 5;
    if (t < 32) { asm volatile("bar.sync 0;" ::: "memory"); out[t] = x[63 - t]; }
    else { __syncthreads(); out[t] = -x[63 - t]; }
}
__global__ void pairs(int* out) {                // warps 0, 1 and warps 2, 3 meet apart
    __shared__ volatile int x[128];
    int t = threadIdx.x;
    x[t] = 3 * t;
    if (t < 64) { asm volatile("bar.sync 1, 64;" ::: "memory"); out[t] = x[63 - t]; }
    else { asm volatile("bar.sync 2, 64;" ::: "memory"); out[t] = x[127 - (t - 64)]; }
}
__global__ void number(int* out) {               // the barrier's number is a register
    __shared__ volatile int x[128];
    int t = threadIdx.x;
    x[t] = 3 * t;
    asm volatile("bar.sync %0, %1;" :: "r"(t / 64 + 3), "r"(64) : "memory");
    out[t] = x[t ^ 63];
}
__global__ void producer(int* out, int rounds) { // warp 0 fills, warp 1 empties
    __shared__ volatile int slot[32];
    int t = threadIdx.x, lane = t % 32, sum = 0;
    for (int k = 0; k < rounds; ++k) {
        if (t < 32) {
            asm volatile("bar.sync 1, 64;" ::: "memory");     // wait until the slot is empty
            slot[lane] = k * 100 + lane;
            asm volatile("bar.arrive 2, 64;" ::: "memory");   // it is full
        } else {
            asm volatile("bar.arrive 1, 64;" ::: "memory");   // the slot is empty
            asm volatile("bar.sync 2, 64;" ::: "memory");     // wait until it is full
            sum = sum * 3 + slot[31 - lane];
        }
    }
    if (t >= 32) out[lane] = sum;
}
__global__ void some_leave(int* out) {           // threads that have left do not count
    __shared__ int x[96];
    int t = threadIdx.x;
    if (t % 3 == 1) return;
    x[t] = t;
    __syncthreads();
    out[t] = x[t == 95 ? 0 : t + 1 + (t % 3 == 0)];
}
__global__ void divergent(int* out) {
    int t = threadIdx.x;
    if (t < 40) {
        out[t] = 1;
        __syncthreads();  // only some arrive
    } else {
        asm volatile("bar.sync 7;" ::: "memory");
    }
    out[t] += 2;
}
__global__ void waits_in_vain(volatile int* flag, int* out) {
    if (threadIdx.x == 0) {
        while (*flag == 0) ;  // nobody sets it
    }
    __syncthreads();
    out[threadIdx.x] = 1;
}
__global__ void warp_barrier(int* out) {
    __shared__ volatile int x[64];
    int t = threadIdx.x;
    if (t % 32 < 11) {
        x[t] = t * 7;
        __syncwarp(0x7FF);
        out[t] = x[t / 32 * 32 + 10 - t % 32];
    } else {
        x[t] = t;
        __syncwarp(0xFFFFF800);
        out[t] = x[t / 32 * 32 + 42 - t % 32];
    }
}
__global__ void skewed(int* out) {               // warps reach the barrier at different times
    __shared__ int x[100];
    int t = threadIdx.x, s = 0;
    for (int k = 0; k < 3 * (t / 32); ++k) s = s * 5 + k;
    x[t] = s + t;
    __syncthreads();
    if (t >= 64) for (int k = 0; k < t % 9; ++k) s ^= x[(t + k) % 100];
    __syncthreads();
    x[t] = s;
    __syncthreads();
    out[t] = x[99 - t];
}
__global__ void ragged(int* out) {               // a count is of whole warps, full or not
    __shared__ int x[72];
    int t = threadIdx.x;
    x[t] = t * t;
    if (t < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
    else asm volatile("bar.sync 2, 32;" ::: "memory");
    out[t] = x[t < 64 ? 63 - t : 135 - t];
    if (t < 32) asm volatile("bar.sync 3, 64;" ::: "memory");
    else if (t >= 64) asm volatile("bar.sync 3, 64;" ::: "memory");
    if (t >= 64) out[t] += x[t - 64];
}
__global__ void two_numbers(int* out) {          // one line, two barriers, and nobody arrives
    asm volatile("bar.sync %0, 128;" :: "r"(1 + (int)threadIdx.x / 64) : "memory");
    out[threadIdx.x] = 1;
}
__global__ void two_producers(int* out) {        // two warps arrive one after the other
    __shared__ int x[64];
    int t = threadIdx.x;
    if (t < 32) { asm volatile("bar.sync 1, 96;" ::: "memory"); out[t] = x[t] + x[63 - t]; }
    else if (t < 64) { x[t - 32] = 3 * t; asm volatile("bar.arrive 1, 96;" ::: "memory"); }
    else { x[t - 32] = 5 * t; asm volatile("bar.arrive 1, 96;" ::: "memory"); }
}
__global__ void one_too_many(int* out) {         // the first warp comes twice
    if (threadIdx.x < 32) {
        asm volatile("bar.arrive 1, 64;" ::: "memory");
        out[threadIdx.x] = 1;
        asm volatile("bar.sync 1, 64;" ::: "memory");
    } else asm volatile("bar.sync 1, 64;" ::: "memory");
}
__global__ void halves_arrive(int* out) {       // one arrival of a warp, by two instructions
    __shared__ int x[64];
    int t = threadIdx.x, lane = t % 32;
    if (t < 32) { asm volatile("barrier.sync 1, 96;" ::: "memory"); out[t] = x[t] + x[63 - t]; }
    else {
        x[t - 32] = 3 * t;
        if (lane < 11) asm volatile("barrier.arrive 1, 96; // the first lanes" ::: "memory");
        else asm volatile("barrier.arrive 1, 96; // the others" ::: "memory");
    }
}
__global__ void lanes_arrive(int* out, int leave) {  // the others end, or wait elsewhere
    int t = threadIdx.x;
    if (t < 32) asm volatile("barrier.sync 1, 64;" ::: "memory");
    else if (t % 32 < 3) asm volatile("barrier.arrive 1, 64;" ::: "memory");
    else if (leave) return;
    out[t] = 1;
    if (!leave) __syncthreads();
}
__global__ void early_arrival(int* out) {        // for a barrier that others come to much later
    __shared__ int x[32];
    int t = threadIdx.x, lane = t % 32;
    if (t < 32) { x[lane] = t + 7; asm volatile("bar.arrive 2, 64;" ::: "memory"); }
    if (t < 64) asm volatile("bar.sync 1, 64;" ::: "memory");
    bool later = blockIdx.x % 2;
    if (t >= 32 && later) asm volatile("bar.sync 3, 64;" ::: "memory");
    if (t >= 64) { asm volatile("bar.sync 2, 64;" ::: "memory"); out[lane] = x[31 - lane]; }
}
__global__ void leave_one_by_one(int* out) {     // each round some threads end
    int t = threadIdx.x;
    for (int k = 0; k < 5; ++k) {
        if (t % 5 == k) return;
        int left = __syncthreads_count(1);
        if (t % 5 == k + 1) out[t] = left;
    }
}
__global__ void forever(int* out) {
    while (true) { __syncthreads(); if (out[0] == 77) break; }
}
}
"""


def line_of(text):
    return next(i for i, line in enumerate(CODE.splitlines(), 1) if text in line)


@pytest.mark.parametrize("threads", [1, 33, 100, 256])
def test_barriers_in_a_loop(threads, build):
    a = np.random.default_rng(threads).integers(-50, 90, (5, threads)).astype(np.int32)
    out = zeros(5)
    run(CODE, "tree", 5, threads, a, out, build=build)
    assert out.tolist() == a.sum(1).tolist()


@pytest.mark.parametrize("order", [None, 1, 2])
def test_trip_counts_that_differ_by_block(build, order):
    n, rounds, blocks = 97, 3, 4
    out = zeros(blocks * n)
    run(CODE, "rotate", blocks, n, out, np.int32(rounds), build=build, warp_order=order)
    t = np.arange(n)
    for block in range(blocks):
        trips = rounds + block
        expected = ((t + trips) % n) ** 2 + trips
        assert out[block * n : (block + 1) * n].tolist() == expected.tolist()


def test_barriers_that_reduce(build, order):
    a = np.random.default_rng(3).integers(0, 60, (6, 70)).astype(np.int32)
    a[2] = np.maximum(a[2], 3)
    out = zeros(a.size)
    run(CODE, "reduce", 6, 70, a, out, build=build, warp_order=order)
    value = (a > 20).sum(1) * 100 + (a > 2).all(1) * 10 + (a > 57).any(1)
    assert out.reshape(6, 70).tolist() == np.repeat(value[:, None], 70, 1).tolist()
    assert len(set(value.tolist())) > 3


def test_one_barrier_written_twice(build, order):
    out = zeros(64)
    run(CODE, "both_sides", 1, 64, out, build=build, warp_order=order)
    assert out.tolist() == [(1 if t < 32 else -1) * (63 - t + 5) for t in range(64)]
    listener = listen(CODE, "both_sides", 1, 64, out, build=build)
    assert not listener.faults
    (event,) = listener.barriers
    assert sorted(len(lanes) for _, lanes in event.arrivals) == [32, 32]
    assert event.complete and event.blocks.tolist() == [0]


@pytest.mark.parametrize("order", [None, 1, 6])
def test_named_barriers(build, order):
    out = zeros(128)
    run(CODE, "pairs", 3, 128, out, build=build, warp_order=order)
    assert out.tolist() == [3 * (63 - t if t < 64 else 191 - t) for t in range(128)]
    run(CODE, "number", 2, 128, out, build=build, warp_order=order)
    assert out.tolist() == [3 * (t ^ 63) for t in range(128)]


@pytest.mark.parametrize("order", [None, 1, 2, 3])
def test_producer_and_consumer(build, order):
    out = zeros(32)
    run(CODE, "producer", 2, 64, out, np.int32(5), build=build, warp_order=order)
    expected = np.zeros(32, np.int32)
    for k in range(5):
        expected = expected * 3 + k * 100 + 31 - np.arange(32)
    assert out.tolist() == expected.tolist()


def test_threads_that_have_left_do_not_count(build):
    out = np.full(96, -1, np.int32)
    run(CODE, "some_leave", 2, 96, out, build=build)
    stay = [t for t in range(96) if t % 3 != 1]
    for place, t in enumerate(stay):
        assert out[t] == stay[(place + 1) % len(stay)]


@pytest.mark.parametrize("order", [None, 1, 2])
def test_counts_are_of_whole_warps(build, order):
    out = zeros(72)
    run(CODE, "ragged", 2, 72, out, build=build, warp_order=order)
    assert out[:64].tolist() == [(63 - t) ** 2 for t in range(64)]
    assert out[64:].tolist() == [(135 - t) ** 2 + (t - 64) ** 2 for t in range(64, 72)]


@pytest.mark.parametrize("order", [None, 1, 2])
def test_arrivals_add_up(build, order):
    out = zeros(32)
    run(CODE, "two_producers", 3, 96, out, build=build, warp_order=order)
    assert out.tolist() == [3 * (t + 32) + 5 * (95 - t) for t in range(32)]


@pytest.mark.parametrize("order", [None, 1, 2])
def test_a_count_is_met_once(build, order):
    """Who completes it lets those go on who wait, and the next to come waits again."""
    with pytest.raises(Hang, match="32 threads wait at .* .barrier 1 for 64 threads"):
        run(CODE, "one_too_many", 1, 64, zeros(64), build=build, warp_order=order)


@pytest.mark.parametrize("order", [None, 1, 2])
def test_an_arrival_stays_until_its_own_barrier(build, order):
    """Other barriers of the block pass meanwhile, and this one in other blocks."""
    out = zeros(32)
    run(CODE, "early_arrival", 3, 96, out, build=build, warp_order=order)
    assert out.tolist() == [31 - t + 7 for t in range(32)]


def test_threads_leave_round_by_round(build, order):
    out = np.full(70, -1, np.int32)
    run(CODE, "leave_one_by_one", 2, 70, out, build=build, warp_order=order)
    assert out.tolist() == [70 - 14 * (t % 5) if t % 5 else -1 for t in range(70)]


def test_a_hang_is_told_of_one_block(build):
    """However many blocks hang, the numbers are those of the first."""
    with pytest.raises(Hang) as caught:
        run(CODE, "divergent", 3, 64, zeros(64), build=build)
    assert "40 threads" in str(caught.value) and "24 threads" in str(caught.value)


def test_a_barrier_that_not_all_reach_hangs(build):
    with pytest.raises(Hang, match=r"kernel\.cu:\d+.*__syncthreads.*only some arrive") as caught:
        run(CODE, "divergent", 1, 64, zeros(64), build=build)
    message = str(caught.value)
    assert f"kernel.cu:{line_of('only some arrive')}" in message and "40 threads" in message
    assert f"kernel.cu:{line_of('bar.sync 7')}" in message and "24 threads" in message


def test_waits_of_one_line_are_told_by_barrier(build):
    with pytest.raises(Hang) as caught:
        run(CODE, "two_numbers", 1, 128, zeros(128), build=build)
    for number in (1, 2):
        assert f"(barrier {number} for 128 threads; first" in str(caught.value)
    assert (
        str(caught.value).count(": 64 threads wait") + str(caught.value).count("; 64 threads") == 2
    )
    assert "count both for each number" in str(caught.value)


def test_an_observer_that_goes_on_hears_of_it(build):
    out = zeros(64)
    listener = listen(CODE, "divergent", 1, 64, out, build=build)
    (fault,) = listener.faults
    assert fault.kind == "divergent-barrier" and fault.line == line_of("only some arrive")
    assert out.tolist() == [3] * 40 + [2] * 24
    assert [event.complete for event in listener.barriers] == [False, False]


def test_a_wait_for_nobody_is_a_hang(build):
    with pytest.raises(Hang, match=r"nobody sets it.*barrier.*63 threads wait at .*__syncthreads"):
        run(CODE, "waits_in_vain", 2, 64, zeros(1), zeros(64), build=build)
    run(CODE, "waits_in_vain", 2, 64, np.array([1], np.int32), zeros(64), build=build)


def test_barriers_of_part_of_a_warp(build):
    out = zeros(64)
    run(CODE, "warp_barrier", 1, 64, out, build=build)
    for t in range(64):
        lane, start = t % 32, t // 32 * 32
        assert out[t] == ((start + 10 - lane) * 7 if lane < 11 else start + 42 - lane)


@pytest.mark.parametrize("order", [None, 1, 2])
def test_warps_that_arrive_at_different_times(build, order):
    out, n = zeros(100), 100
    run(CODE, "skewed", 2, n, out, build=build, warp_order=order)
    s = []
    for t in range(n):
        value = 0
        for k in range(3 * (t // 32)):
            value = value * 5 + k
        s.append(value)
    x = [s[t] + t for t in range(n)]
    for t in range(64, n):
        for k in range(t % 9):
            s[t] ^= x[(t + k) % n]
    assert out.tolist() == s[::-1]


def test_an_endless_loop_of_barriers_ends(monkeypatch, order):
    monkeypatch.setenv("KERNELSCOPE_TIMEOUT", "0.3")
    with pytest.raises(Hang, match=r"kernel.cu:\d+"):
        run(CODE, "forever", 1, 64, zeros(1), warp_order=order)


def test_a_warp_arrives_once_in_how_many_parts_it_comes(order):
    out = zeros(32)
    run(CODE, "halves_arrive", 1, 96, out, warp_order=order)
    assert out.tolist() == [3 * (32 + t) + 3 * (95 - t) for t in range(32)]
    with pytest.raises(Hang, match=r"32 threads wait at .*barrier 1 for 96 threads, 32 more have"):
        run(CODE, "halves_arrive", 1, 64, zeros(32), warp_order=order)


def test_an_arrival_by_a_part_of_a_warp_waits_for_the_others(order):
    out = zeros(64)
    run(CODE, "lanes_arrive", 1, 64, out, np.int32(1), warp_order=order)
    assert out.tolist() == [1] * 35 + [0] * 29
    with pytest.raises(Hang, match=r"3 threads wait at .*, for the other threads of their warp;"):
        run(CODE, "lanes_arrive", 1, 64, zeros(64), np.int32(0), warp_order=order)
