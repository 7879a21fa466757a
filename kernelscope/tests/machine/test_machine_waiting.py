"""Threads that wait for each other without a block barrier: who goes on, and what is a hang."""

import types

import numpy as np
import pytest
from kernelscope.machine import Hang, launch
from kernelscope.machine.scheduler import Scheduler
from machine_harness import listen, run, zeros

CODE = r"""
#define SYNC(n, count) asm volatile("bar.sync " #n ", " #count ";" ::: "memory")
extern "C" {
// The last warp counts while it polls, so that it never stands still.
__global__ void warps(volatile int* flag, int* out) {
    int t = threadIdx.x;
    if (t < 16) { __syncwarp(); out[t] = 2; if (t == 0) *flag = 1; }
    else if (t < 32) { __syncwarp(); out[t] = 3; }
    else { int n = 0; while (*flag == 0) ++n; out[t] = n > 0 ? 4 : 5; }
}
__global__ void barriers(volatile int* flag, int* out) {
    int t = threadIdx.x;
    if (t < 32) { SYNC(1, 64); out[t] = 2; if (t == 0) *flag = 1; }
    else if (t < 64) { SYNC(1, 64); out[t] = 3; }
    else { int n = 0; while (*flag == 0) ++n; out[t] = n > 0 ? 4 : 5; }
}
__global__ void spinner(volatile int* flag, int* out) {   // each waits for what the other writes
    int t = threadIdx.x;
    if (t < 32) { while (flag[1] == 0) ; out[t] = 2; flag[0] = 1; }
    else { int n = 0; while (*flag == 0) { ++n; flag[1] = n; } out[t] = n > 0 ? 4 : 5; }
}
__global__ void another_block(volatile int* flag, int* out) {
    int t = threadIdx.x;
    if (blockIdx.x == 0) { if (t == 0) while (*flag == 0) ; __syncwarp(); out[t] = *flag; }
    else if (t == 0 && blockIdx.x == 2) *flag = 4;
}
__global__ void early(int* a, int* out) {            // partners return before the instruction
    int t = threadIdx.x;
    if (t >= 20) { a[t] = 1; return; }
    __syncwarp();
    out[t] = __shfl_xor_sync(0xffffffffu, t, 1);
}
__global__ void late(int* a, int* out) {             // half the partners return, half come later
    int t = threadIdx.x;
    if (t >= 24) return;
    if (t < 8) { __syncwarp(); out[t] = a[t + 8]; }
    else { a[t] = 3 * t; __syncwarp(); out[t] = 1; }
}
__global__ void around(int* a, int* out) {           // partners do something else, and end
    int t = threadIdx.x;
    if (t < 16) { __syncwarp(); out[t] = 1; }
    a[t] = 2;
}
__global__ void two_masks(int* out) {    // the upper half waits for what the lower does behind it
    __shared__ volatile int go;
    int t = threadIdx.x;
    unsigned half = t < 16 ? 0xffffu : 0xffff0000u;
    if (t == 0) go = 0;
    __syncwarp();
    if (t == 16) while (go == 0) ;
    int x = __shfl_xor_sync(half, t, 1);
    if (t == 0) go = x + 1;
    out[t] = x;
}
__global__ void in_vain(int* out) {      // lane 16 waits for lane 0, which waits for its warp
    __shared__ volatile int go;
    int t = threadIdx.x;
    if (t == 0) go = 0;
    __syncwarp();
    if (t == 16) while (go == 0) ;       // before lane 0 can come
    __syncwarp();
    if (t == 0) go = 1;
    out[t] = 1;
}
__global__ void locked(int* lock, int* out, int held) {   // the classical deadlock of a warp
    if (threadIdx.x == 0 && held) *lock = 1;
    __syncthreads();
    while (atomicCAS(lock, 0, 1) != 0) ;                  // nobody lets go
    out[threadIdx.x] = 1;
}
__global__ void in_turns(volatile int* flag, int* out) {   // the loop comes back to where it was
    int t = threadIdx.x, x = 0;
    do {
        if (t % 2) { x ^= 1; if (flag[1]) x ^= 4; }
        else { x ^= 2; if (flag[2]) x ^= 8; }
    } while (*flag == x / 99);                            // it never will be
    out[t] = x;
}
__global__ void many_flags(volatile int* flag, int* out) {  // looks at many between two jumps
    int t = threadIdx.x;
    while (true) {
        #pragma unroll
        for (int i = 0; i < 24; ++i) if (flag[i] == t + 1) { out[t] = i; return; }
    }
}
__global__ void stores_nan(volatile float* flag, int* out) {
    while (flag[1] == 0) flag[0] = __int_as_float(0x7fffffff);
    out[threadIdx.x] = 1;
}
__global__ void exchanges_nan(float* flag, int* out) {
    while (*(volatile float*)(flag + 1) == 0) atomicExch(flag, __int_as_float(0x7fffffff));
    out[threadIdx.x] = 1;
}
__global__ void adds_up(long long cycles, long long* out) {   // times of a loop that writes nothing
    long long sum = 0;
    while (sum < cycles) { clock_t start = clock(); clock_t end = clock(); sum += end - start; }
    out[threadIdx.x] = sum;
}
__global__ void counts_rounds(long long cycles, long long* out) {
    clock_t start = clock();
    long long rounds = 0;
    while (clock() - start < cycles) ++rounds;
    out[threadIdx.x] = rounds;
}
__global__ void gives_up(volatile int* flag, long long cycles, long long* out) {
    clock_t start = clock();
    long long rounds = 0;
    while (*flag == 0) { ++rounds; if (clock() - start > cycles) break; }
    out[threadIdx.x] = rounds;
}
__global__ void adds_nothing(long long cycles, long long* out) {
    long long sum = 0;
    while (sum < cycles) { clock_t start = clock(); sum += start - start; }
    out[threadIdx.x] = sum;
}
__global__ void once(int* a, int* out) {               // partners come once, and then end
    int t = threadIdx.x;
    if (t < 16) { __syncwarp(); __syncwarp(); out[t] = 1; }
    else { a[t] = 1; __syncwarp(); }
}
__global__ void second_round(int* a, int* out) {       // partners come once, and leave before more
    int t = threadIdx.x;
    for (int k = 0; k < 2; ++k) {
        if (k == 1 && t >= 16) return;
        if (t < 16) { __syncwarp(); out[t] += 1; }
        else { a[t] = 5; __syncwarp(); out[t] = a[t]; }
    }
}
__global__ void rounds(int* a, int* out) {             // lanes leave the loop before the barrier
    int t = threadIdx.x;
    for (int k = 0; k < 9; ++k) {
        if (k > t % 9) return;
        __syncwarp();
        if ((t + k) % 2) a[t] += 1; else { a[t] *= 3; if (a[t] > 100) a[t] -= 99; }
        out[t] = k;
    }
}
}
"""
ORDERS = pytest.mark.parametrize("order", [None, 1, 2])


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_TIMEOUT", "2")


@ORDERS
@pytest.mark.parametrize("name", ["warps", "barriers", "spinner"])
def test_a_thread_that_polls_gives_way_to_all_that_may_go_on(impatient, name, build, order):
    out = zeros(96)
    run(CODE, name, 1, 96, zeros(2), out, build=build, warp_order=order)
    assert out[0] == 2 and out[64] in (4, 5)


def test_a_warp_waits_for_a_lane_that_waits_for_a_later_block(monkeypatch, build):
    """Those blocks run in another chunk: the warp stands still until they have."""
    monkeypatch.setattr(launch, "LANES_PER_CHUNK", 32)
    out = zeros(32)
    listener = listen(CODE, "another_block", 3, 32, zeros(1), out, build=build)
    assert out.tolist() == [4] * 32 and not listener.faults


@ORDERS
def test_lanes_that_have_ended_are_not_waited_for(build, order):
    a, out = zeros(32), zeros(32)
    run(CODE, "early", 1, 32, a, out, build=build, warp_order=order)
    assert out.tolist() == [t ^ 1 for t in range(20)] + [0] * 12
    assert not listen(CODE, "early", 1, 32, a, out, build=build).faults
    run(CODE, "late", 1, 32, a, out, build=build, warp_order=order)
    assert out[:8].tolist() == [3 * (t + 8) for t in range(8)]
    assert not listen(CODE, "late", 1, 32, a, out, build=build).faults


def test_lanes_that_went_around_and_ended_are_told(build):
    a, out = zeros(64), zeros(64)
    listener = listen(CODE, "around", 1, 64, a, out, build=build)
    (fault,) = listener.faults
    assert fault.kind == "divergent-barrier" and "16 threads wait" in fault.message
    assert a.tolist() == [2] * 64 and out.tolist() == [1] * 16 + [0] * 48


def test_partners_that_come_once_too_few_are_told(build):
    (fault,) = listen(CODE, "once", 1, 32, zeros(32), zeros(32), build=build).faults
    assert "16 threads wait" in fault.message


def test_what_partners_did_in_an_earlier_round_does_not_count(build):
    out = zeros(32)
    assert not listen(CODE, "second_round", 1, 32, zeros(32), out, build=build).faults
    assert out.tolist() == [2] * 16 + [5] * 16


def test_lanes_that_leave_a_loop_before_its_barrier():
    out = zeros(32)
    assert not listen(CODE, "rounds", 1, 32, zeros(32), out, build="debug").faults
    assert out.tolist() == [t % 9 for t in range(32)]


@ORDERS
def test_lanes_wait_for_their_own_mask_only(build, order):
    out = zeros(32)
    run(CODE, "two_masks", 1, 32, out, build=build, warp_order=order)
    assert out.tolist() == [t ^ 1 for t in range(32)]
    assert not listen(CODE, "two_masks", 1, 32, out, build=build).faults


def test_lanes_that_wait_for_each_other_are_told_of(build):
    """On hardware this hangs; here the warp goes on without the lane, and the lane then with it."""
    out = zeros(32)
    listener = listen(CODE, "in_vain", 1, 32, out, build=build)
    (fault,) = listener.faults
    assert fault.kind == "divergent-barrier" and "31 threads wait" in fault.message
    assert out.tolist() == [1] * 32


@ORDERS
def test_a_lock_that_nobody_lets_go_is_a_hang(build, order):
    with pytest.raises(Hang, match="nobody lets go") as caught:
        run(CODE, "locked", 2, 64, zeros(1), zeros(64), np.int32(1), build=build, warp_order=order)
    assert "no thread that still runs will write" in str(caught.value)


@ORDERS
def test_a_loop_in_which_lanes_part_is_a_hang_too(impatient, build, order):
    with pytest.raises(Hang, match="no thread that still runs will write"):
        run(CODE, "in_turns", 1, 64, zeros(4), zeros(64), build=build, warp_order=order)


@ORDERS
def test_a_loop_that_looks_at_much_is_a_hang_too(impatient, build, order):
    """No group jumps back often enough before others get a turn to be seen standing still; what
    is seen is that the whole block comes back to an old state."""
    flags = zeros(24)
    with pytest.raises(Hang, match="no thread that still runs will write"):
        run(CODE, "many_flags", 1, 40, flags, zeros(40), build=build, warp_order=order)


@pytest.mark.parametrize("name", ["stores_nan", "exchanges_nan"])
def test_a_loop_that_writes_the_same_nan_is_a_hang_too(impatient, name, build):
    with pytest.raises(Hang, match="no thread that still runs will write"):
        run(CODE, name, 1, 64, zeros(2, np.float32), zeros(64), build=build)


@pytest.fixture
def some_patience(monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_TIMEOUT", "20")


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("threads", [1, 40])
@pytest.mark.parametrize("cycles", [1000, 20_000_000])
def test_a_busy_wait_on_the_clock_ends(some_patience, build, threads, cycles):
    """Whether it adds up times or counts its rounds, neither of which a waiting loop does."""
    for name in ("adds_up", "counts_rounds"):
        out = np.zeros(threads, np.int64)
        run(CODE, name, 1, threads, np.int64(cycles), out, build=build)
        assert (out >= cycles).all() if name == "adds_up" else (out > 0).all()
        assert (out < cycles * 2 + 100).all()


def test_a_wait_for_a_flag_gives_up_by_the_clock(some_patience, build):
    out = np.zeros(8, np.int64)
    run(CODE, "gives_up", 1, 8, zeros(1), np.int64(20_000_000), out, build=build)
    assert (out > 0).all()


def test_a_loop_that_adds_no_time_hangs(some_patience, build):
    with pytest.raises(Hang, match="adds_nothing hangs at"):
        run(CODE, "adds_nothing", 1, 8, np.int64(10), np.zeros(8, np.int64), build=build)


# -- when a chunk only repeats itself --------------------------------------------------------------
def test_a_state_repeats_only_when_every_group_has_had_its_turn():
    """A state seen twice is no hang while a group may be woken, or while another one is next."""
    polls, waits = (1,), (2,)
    scheduler = object.__new__(Scheduler)
    for name, value in {
        "blocks": {
            polls: types.SimpleNamespace(live_in=0),
            waits: types.SimpleNamespace(live_in=0),
        },
        "lanes": types.SimpleNamespace(home=[], local_changes=0),
        "memory": types.SimpleNamespace(local=types.SimpleNamespace(bytes=None)),
        "globals": types.SimpleNamespace(version=7),
        "ready": {polls: np.arange(4)},
        "aside": {waits: np.arange(4, 6)},
        "queue": [],
        "snapshot": None,
        "snapshot_left": 1,
        "turns": 0,
        "suspended": polls,
    }.items():
        setattr(scheduler, name, value)
    scheduler.spinning = [(waits, np.arange(6, 8), 6)]  # set aside before the last write
    assert [scheduler.repeats() for _ in range(9)] == [False] * 9
    scheduler.spinning = [(waits, np.arange(6, 8), 7)]
    assert not scheduler.repeats()  # seen for the first time
    scheduler.suspended = ()
    assert not scheduler.repeats()
    for _ in range(9):
        scheduler.repeats()
    assert scheduler.repeats()
