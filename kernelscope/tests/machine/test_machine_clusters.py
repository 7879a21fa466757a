"""The barrier of a cluster of blocks on the simulator: who waits for whom, and who has ended."""

import numpy as np
import pytest
from kernelscope.machine import Hang
from machine_harness import listen, run, zeros

CODE = r"""
// kernelscope: sm_90
#define ARRIVE asm volatile("barrier.cluster.arrive.release;" ::: "memory")
#define WAIT asm volatile("barrier.cluster.wait.acquire;" ::: "memory")
__device__ int remote(const int* mine, int block) {   // *mine of another block of the cluster
    unsigned at, value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at)
        : "r"((unsigned)__cvta_generic_to_shared(mine)), "r"(block));
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
    return value;
}
extern "C" {
__global__ void __cluster_dims__(2, 1, 1) one_is_late(int* out) {   // block 3 comes last
    __shared__ int s[32];
    int t = threadIdx.x, g = blockIdx.x * 32 + t, other = blockIdx.x % 2 ^ 1;
    s[t] = -1;
    if (blockIdx.x != 3) { s[t] = g; ARRIVE; WAIT; out[g] = remote(&s[31 - t], other); }
    else { s[t] = 1000 + g; ARRIVE; WAIT; out[g] = remote(&s[31 - t], other); }
    ARRIVE; WAIT;
}
__global__ void __cluster_dims__(2, 1, 1) some_end(int* out) {      // half of block 0 of each
    __shared__ int s[64];
    int t = threadIdx.x, g = blockIdx.x * 64 + t, other = blockIdx.x % 2 ^ 1;
    s[t] = g;
    if (blockIdx.x % 2 == 0 && t >= 20) return;
    ARRIVE; WAIT;
    out[g] = remote(&s[63 - t], other);
    ARRIVE; WAIT;
}
__global__ void __cluster_dims__(2, 1, 1) between(int* out) {       // arrives early, works, waits
    __shared__ int s[32];
    int t = threadIdx.x, g = blockIdx.x * 32 + t, other = blockIdx.x % 2 ^ 1, sum = 0;
    for (int k = 0; k < 3; ++k) {
        s[t] = 10 * g + k;
        ARRIVE;
        for (int i = 0; i < (blockIdx.x + t) % 5; ++i) sum += i;
        WAIT;
        sum += remote(&s[t], other);
        ARRIVE; WAIT;
    }
    out[g] = sum;
}
__global__ void __cluster_dims__(2, 1, 1) divergent(int* out) {     // block 1 never comes
    if (blockIdx.x % 2 == 0) { ARRIVE; WAIT; }  // half of them
    else { __shared__ volatile int x; x = 1; asm volatile("bar.sync 3, 64;" ::: "memory"); }
    out[0] = 1;
}
}
"""
ORDERS = pytest.mark.parametrize("order", [None, 1, 2])


@ORDERS
def test_a_cluster_waits_for_its_own_blocks(build, order):
    out = zeros(128)
    run(CODE, "one_is_late", 4, 32, out, build=build, warp_order=order)
    block, t = np.divmod(np.arange(128), 32)
    other = block ^ 1
    expected = 32 * other + 31 - t + 1000 * (other == 3)
    assert out.tolist() == expected.tolist()


@ORDERS
def test_threads_that_have_ended_count_as_arrived(build, order):
    out = np.full(256, -1, np.int32)
    run(CODE, "some_end", 4, 64, out, build=build, warp_order=order)
    for g in range(256):
        block, t = divmod(g, 64)
        ended = block % 2 == 0 and t >= 20
        assert out[g] == (-1 if ended else (block ^ 1) * 64 + 63 - t)


@ORDERS
def test_work_between_arrival_and_wait(build, order):
    out = zeros(128)
    run(CODE, "between", 4, 32, out, build=build, warp_order=order)
    for g in range(128):
        block, t = divmod(g, 32)
        work = sum(range((block + t) % 5))
        assert out[g] == sum(10 * ((block ^ 1) * 32 + t) + k + work for k in range(3))


def test_a_cluster_that_is_not_whole_hangs(build):
    told = "half of them.*the cluster's.*32 threads wait.*barrier 3 for 64"
    with pytest.raises(Hang, match=told):
        run(CODE, "divergent", 2, 32, zeros(1), build=build)
    listener = listen(CODE, "divergent", 4, 32, zeros(1), build=build)
    assert [fault.kind for fault in listener.faults] == ["divergent-barrier"]
