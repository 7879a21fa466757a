"""mbarrier objects on the simulator: phases, counts, bytes, copies, and waits that never end."""

import time

import numpy as np
import pytest
from kernelscope import RawModule
from kernelscope.errors import SimulatorError
from kernelscope.machine import Hang
from machine_harness import listen, run, zeros

CODE = r"""
// kernelscope: sm_90
typedef unsigned long long u64;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void start(u64* bar, int count) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: "r"(at(bar)), "r"(count) : "memory");
}
__device__ u64 arrive(u64* bar) {
    u64 state;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(state) : "r"(at(bar)) : "memory");
    return state;
}
__device__ bool ask(u64* bar, u64 state) {
    int done;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2;"
        " selp.b32 %0, 1, 0, p; }" : "=r"(done) : "r"(at(bar)), "l"(state) : "memory");
    return done;
}
__device__ bool ask_parity(u64* bar, int parity) {
    int done;
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2;"
        " selp.b32 %0, 1, 0, p; }" : "=r"(done) : "r"(at(bar)), "r"(parity) : "memory");
    return done;
}
__device__ int pending(u64 state) {
    int n;
    asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(n) : "l"(state));
    return n;
}
#define BYTES(op, bar, n) \
    asm volatile("mbarrier." op ".shared.b64 [%0], %1;" :: "r"(at(bar)), "r"(n) : "memory")
extern "C" {
__global__ void counts(int* out) {              // what each arrival found
    __shared__ u64 bar;
    int t = threadIdx.x;
    if (t == 0) start(&bar, 48);
    __syncthreads();
    out[t] = pending(arrive(&bar));             // 64 arrivals: one phase, and 16 of the next
    __syncthreads();
    if (t == 0) {
        u64 state;
        asm volatile("mbarrier.arrive.shared.b64 %0, [%1], 5;" : "=l"(state) : "r"(at(&bar)));
        out[64] = pending(state);
        asm volatile("mbarrier.arrive_drop.shared.b64 %0, [%1];" : "=l"(state) : "r"(at(&bar)));
        out[65] = pending(state);
        asm volatile("mbarrier.arrive.shared.b64 _, [%0], 26;" :: "r"(at(&bar)));
        out[66] = pending(arrive(&bar));        // the next phase expects one less
        asm volatile("mbarrier.inval.shared.b64 [%0];" :: "r"(at(&bar)));
    }
}
__global__ void parities(int* out) {
    __shared__ u64 bar;
    int n = 0;
    start(&bar, 1);
    for (int k = 0; k < 3; ++k) {
        out[n++] = ask_parity(&bar, 0); out[n++] = ask_parity(&bar, 1);
        u64 state = arrive(&bar);
        out[n++] = ask(&bar, state);
    }
}
__global__ void bytes(int* out) {               // a phase with bytes that are to come
    __shared__ u64 bar;
    u64 state;
    start(&bar, 1);
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 %0, [%1], 100;"
        : "=l"(state) : "r"(at(&bar)) : "memory");
    out[0] = ask(&bar, state);
    BYTES("complete_tx", &bar, 60);
    out[1] = ask(&bar, state);
    BYTES("expect_tx", &bar, 2);
    BYTES("complete_tx", &bar, 42);
    out[2] = ask(&bar, state);
    out[3] = ask_parity(&bar, 1);
}
__global__ void stages(const int* a, int* out, int steps) {  // producers and consumers
    __shared__ u64 full[2], empty[2];
    __shared__ int tile[2][32];
    int t = threadIdx.x, lane = t % 32;
    if (t == 0) for (int i = 0; i < 2; ++i) { start(full + i, 32); start(empty + i, 32); }
    __syncthreads();
    if (t < 32) {
        int sum = 0;
        for (int k = 0; k < steps; ++k) {
            while (!ask_parity(full + k % 2, k / 2 % 2)) ;
            sum = 3 * sum + tile[k % 2][31 - lane];
            arrive(empty + k % 2);
        }
        out[blockIdx.x * 32 + lane] = sum;
    } else {
        for (int k = 0; k < steps; ++k) {
            while (!ask_parity(empty + k % 2, k / 2 % 2 ^ 1)) ;
            tile[k % 2][lane] = a[k * 32 + lane] + blockIdx.x;
            arrive(full + k % 2);
        }
    }
}
__global__ void copies(const int* a, int* out, int noinc) {
    __shared__ u64 bar;
    __shared__ int tile[64];
    int t = threadIdx.x;
    ((volatile int*)tile)[t] = -1;
    if (t == 0) start(&bar, noinc ? 128 : 64);
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at(tile + t)), "l"(a + t)
        : "memory");
    if (noinc) asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(at(&bar)));
    else asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" :: "r"(at(&bar)));
    out[64 + t] = ((volatile int*)tile)[t];    // too early
    u64 state = arrive(&bar);
    while (!ask(&bar, state)) ;
    out[t] = tile[63 - t];
}
__global__ void __cluster_dims__(2, 1, 1) other_block(int* out) {
    __shared__ u64 bar;
    int t = threadIdx.x, rank = blockIdx.x % 2;
    unsigned far;
    if (t == 0) start(&bar, 32);
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;"
        ::: "memory");
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(far) : "r"(at(&bar)), "r"(1 - rank));
    if (rank == 0) {
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
            :: "r"(far) : "memory");
        out[blockIdx.x * 32 + t] = ask_parity(&bar, 0);
    } else {
        while (!ask_parity(&bar, 0)) ;
        out[blockIdx.x * 32 + t] = 5;
    }
}
__global__ void too_few(int* out) {
    __shared__ u64 bar;
    if (threadIdx.x == 0) start(&bar, 64);
    __syncthreads();
    if (threadIdx.x < 40) { u64 s = arrive(&bar); while (!ask(&bar, s)) ; }
    out[threadIdx.x] = 1;
}
__global__ void raw(int* out) {
    __shared__ u64 bar;
    arrive(&bar);
    out[threadIdx.x] = 1;
}
__global__ void too_many(int* out) {
    __shared__ u64 bar;
    start(&bar, 1);
    BYTES("expect_tx", &bar, 4);
    arrive(&bar); arrive(&bar);
    out[threadIdx.x] = 1;
}
__global__ void elsewhere(u64* bar) {
    asm volatile("mbarrier.init.b64 [%0], 1;" :: "l"(bar) : "memory");
}
}
"""
LIBRARY = r"""
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cooperative_groups.h>
using barrier = cuda::barrier<cuda::thread_scope_block>;
extern "C" {
__global__ void drops(const int* a, int* out) {
    __shared__ barrier bar;
    __shared__ int s[64];
    int t = threadIdx.x;
    if (t == 0) init(&bar, blockDim.x);
    __syncthreads();
    s[t] = a[t];
    barrier::arrival_token token = bar.arrive();
    bar.wait(static_cast<barrier::arrival_token&&>(token));
    out[t] = s[63 - t];
    bar.arrive_and_wait();
    s[t] = 2;
    if (t == 5) { bar.arrive_and_drop(); return; }
    for (int k = 0; k < 2; ++k) bar.arrive_and_wait();
    out[t] += s[63 - t];
}
__global__ void pipeline(const int* a, int* out, int steps) {
    auto block = cooperative_groups::this_thread_block();
    __shared__ int s[2][64];
    __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, 2> state;
    auto p = cuda::make_pipeline(block, &state);
    int t = threadIdx.x;
    for (int k = 0; k <= steps; ++k) {
        if (k < steps) {
            p.producer_acquire();
            cuda::memcpy_async(&s[k & 1][t], a + k * 64 + t, sizeof(int), p);
            p.producer_commit();
        }
        if (k > 0) {
            p.consumer_wait();
            out[(k - 1) * 64 + t] = s[(k - 1) & 1][63 - t];
            p.consumer_release();
        }
    }
}
__global__ void hangs(int* out) {
    __shared__ barrier bar;
    if (threadIdx.x == 0) init(&bar, blockDim.x);
    __syncthreads();
    if (threadIdx.x != 7) bar.arrive_and_wait();
    out[threadIdx.x] = 1;
}
}
"""


def test_each_arrival_sees_what_was_pending(build, order):
    out = zeros(67)
    run(CODE, "counts", 1, 64, out, build=build, warp_order=order)
    pendings = [*range(48, 0, -1), *range(48, 32, -1)]
    assert sorted(out[:64]) == sorted(pendings)
    if order is None:
        assert out[:64].tolist() == pendings
    assert out[64:].tolist() == [32, 27, 47]


def test_parities_and_states(build):
    out = zeros(9)
    run(CODE, "parities", 1, 1, out, build=build)
    assert out.tolist() == [0, 1, 1, 1, 0, 1, 0, 1, 1]


def test_bytes_that_are_to_come(build):
    out = zeros(4)
    run(CODE, "bytes", 1, 1, out, build=build)
    assert out.tolist() == [0, 0, 1, 0]


def test_a_ring_of_producers_and_consumers(build, order):
    a = np.random.default_rng(6).integers(-9, 9, (7, 32)).astype(np.int32)
    out = zeros((9, 32))
    run(CODE, "stages", 9, 64, a, out, np.int32(7), build=build, warp_order=order)
    for block in range(9):
        wanted = np.zeros(32, np.int32)
        for row in a:
            wanted = 3 * wanted + row[::-1] + block
        assert out[block].tolist() == wanted.tolist()


@pytest.mark.parametrize("noinc", [0, 1])
def test_copies_arrive_with_the_phase(build, noinc):
    a, out = np.arange(64, dtype=np.int32), zeros(128)
    run(CODE, "copies", 1, 64, a, out, np.int32(noinc), build=build)
    assert out.tolist() == [*range(63, -1, -1), *[-1] * 64]


def test_an_mbarrier_of_another_block_of_the_cluster(build, order):
    out = zeros((4, 32))
    run(CODE, "other_block", 4, 32, out, build=build, warp_order=order)
    assert out.tolist() == [[0] * 32, [5] * 32] * 2


def test_a_phase_that_never_completes_is_a_hang(build):
    with pytest.raises(Hang, match=r"too_few hangs at mbarriers.*waits for 24 of 64 arr"):
        run(CODE, "too_few", 2, 64, zeros(64), build=build)


def test_misuse_is_named_and_told(build):
    with pytest.raises(SimulatorError, match="raw at .*an mbarrier that is not initialised"):
        run(CODE, "raw", 1, 32, zeros(32), build=build)
    with pytest.raises(
        SimulatorError, match="too_many at .*expects no more arrivals: the mbarrier at "
    ):
        run(CODE, "too_many", 1, 1, zeros(1), build=build)
    with pytest.raises(SimulatorError, match="elsewhere at .*outside of shared memory"):
        run(CODE, "elsewhere", 1, 1, zeros(2, np.uint64), build=build)
    out = zeros(32)
    listener = listen(CODE, "raw", 1, 32, out, build=build)
    assert [fault.kind for fault in listener.faults] == ["uninitialised-read"]
    assert out.tolist() == [1] * 32


@pytest.fixture(scope="module")
def library():
    return RawModule(code=LIBRARY, options=("-arch=compute_90",), backend="simulator")


@pytest.mark.turns(13)
@pytest.mark.system
def test_barriers_and_pipelines_of_libcu(library):
    a, out = np.arange(64, dtype=np.int32), zeros(64)
    library.get_function("drops")((1,), (64,), (a, out))
    assert out.tolist() == [63 - t + 2 * (t != 5) for t in range(64)]
    a, out = np.arange(320, dtype=np.int32), zeros((5, 64))
    library.get_function("pipeline")((1,), (64,), (a, out, np.int32(5)))
    assert out.tolist() == a.reshape(5, 64)[:, ::-1].tolist()


@pytest.mark.turns(17)
@pytest.mark.system
def test_a_barrier_of_libcu_that_hangs_is_found_soon(library):
    start = time.monotonic()
    with pytest.raises(Hang, match="hangs hangs at .*arrive_and_wait"):
        library.get_function("hangs")((1,), (64,), (zeros(64),))
    assert time.monotonic() - start < 30
