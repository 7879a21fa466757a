"""cp.async and clusters of blocks on the simulator."""

import numpy as np
import pytest
from kernelscope.errors import LaunchError
from kernelscope.machine import Hang, MemoryFault, launch
from machine_harness import listen, run, zeros

COPIES = r"""
#define COPY(n, to, from) asm volatile("cp.async.ca.shared.global [%0], [%1], " #n ";" \
    :: "r"((unsigned)__cvta_generic_to_shared(to)), "l"(from) : "memory")
extern "C" {
__global__ void stages(const float* a, float* out, int steps) {   // two tiles in flight
    __shared__ float tile[2][64];
    int t = threadIdx.x;
    float sum = 0;
    COPY(4, &tile[0][t], a + t);
    asm volatile("cp.async.commit_group;");
    for (int k = 0; k < steps; ++k) {
        if (k + 1 < steps) COPY(4, &tile[(k + 1) % 2][t], a + (k + 1) * 64 + t);
        asm volatile("cp.async.commit_group;");
        asm volatile("cp.async.wait_group 1;" ::: "memory");
        __syncthreads();
        sum = sum * 0.5f + tile[k % 2][63 - t];
        __syncthreads();
    }
    out[t] = sum;
}
__global__ void early(const float* a, float* out) {               // reads before it waits
    __shared__ float tile[32];
    volatile float* row = tile;
    int t = threadIdx.x;
    row[t] = -1;
    COPY(4, &tile[t], a + t);
    out[t] = row[t];
    asm volatile("cp.async.wait_all;" ::: "memory");
    out[32 + t] = row[t];
}
__global__ void sizes(const float4* a, float4* out, const int* bytes) {  // zeros past `bytes`
    __shared__ float4 tile[32];
    int t = threadIdx.x;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"((unsigned)__cvta_generic_to_shared(&tile[31 - t])), "l"(a + t), "r"(bytes[t])
        : "memory");
    asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    out[t] = tile[t];
}
__global__ void half_of_them(const double* a, double* out) {      // in a branch
    __shared__ double tile[64];
    int t = threadIdx.x;
    tile[t] = 7;
    __syncthreads();
    if (t % 3) COPY(8, &tile[t], a + 2 * t);
    asm volatile("cp.async.commit_group;");
    if (t % 2) asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    out[t] = ((volatile double*)tile)[t];
}
__global__ void ignoring(const float* a, float* out, int ignore, int bytes) {  // for all lanes
    __shared__ float tile[64];
    int t = threadIdx.x;
    tile[t] = tile[32 + t] = -1;
    asm volatile("{ .reg .pred p; setp.ne.s32 p, %2, 0;"
        " cp.async.ca.shared.global [%0], [%1], 4, p; }"
        :: "r"((unsigned)__cvta_generic_to_shared(&tile[t])), "l"(a + t), "r"(ignore) : "memory");
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
        :: "r"((unsigned)__cvta_generic_to_shared(&tile[32 + t])), "l"(a + t), "r"(bytes)
        : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    out[t] = tile[t]; out[32 + t] = tile[32 + t];
}
__global__ void next_too_early(const float* a, float* out) {      // reads the tile in flight
    __shared__ float tile[64];
    volatile float* row = tile;
    int t = threadIdx.x;
    row[t] = row[32 + t] = -1;
    COPY(4, &tile[t], a + t);
    asm volatile("cp.async.commit_group;");
    COPY(4, &tile[32 + t], a + 32 + t);
    asm volatile("cp.async.commit_group;");
    asm volatile("cp.async.wait_group 1;" ::: "memory");
    out[t] = row[t]; out[32 + t] = row[32 + t];
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    out[64 + t] = row[32 + t];
}
__global__ void outside(const float* a, float* out) {
    __shared__ float tile[32];
    COPY(4, &tile[threadIdx.x], a + threadIdx.x);  // the array is shorter
    asm volatile("cp.async.wait_all;" ::: "memory");
    out[threadIdx.x] = tile[threadIdx.x];
}
}
"""
CLUSTERS = r"""
// kernelscope: sm_90
__device__ unsigned rank() {
    unsigned r;
    asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(r));
    return r;
}
__device__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ void wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
__device__ unsigned there(const void* mine, int block) {
    unsigned r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r)
        : "r"((unsigned)__cvta_generic_to_shared(mine)), "r"(block));
    return r;
}
extern "C" {
__global__ void __cluster_dims__(4, 1, 1) ring(const int* a, int* out) {
    __shared__ int box[33], sum;
    int t = threadIdx.x, i = blockIdx.x * blockDim.x + t, v;
    if (t == 0) sum = 0;
    box[t] = a[i];
    arrive(); wait();
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v)
        : "r"(there(&box[t], (rank() + 1) % 4)));
    asm volatile("red.shared::cluster.add.s32 [%0], %1;" :: "r"(there(&sum, t % 4)), "r"(v));
    arrive(); wait();
    out[i] = v * 1000 + sum;
}
__global__ void __cluster_dims__(2, 2, 1) square(int* out) {
    __shared__ int mine;
    unsigned shape, owner;
    int t = threadIdx.x, block = blockIdx.x + gridDim.x * blockIdx.y, v;
    if (t == 0) mine = block;
    arrive();
    for (int k = 0; k < (int)rank() * 3; ++k) shape = k;    // blocks wait at different times
    wait();
    asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(shape));
    unsigned far = there(&mine, 3 - rank());
    asm("getctarank.shared::cluster.u32 %0, %1;" : "=r"(owner) : "r"(far));
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(v) : "r"(far));
    out[block * 4 + t] = v * 100 + shape * 10 + owner;
    arrive(); wait();
}
__global__ void __cluster_dims__(2, 1, 1) alone(int* out) {
    if (rank() == 0) { arrive(); wait(); }  // the other block only arrives at its own barrier
    else asm volatile("bar.sync 1, 96;");
    out[0] = 1;
}
__global__ void __cluster_dims__(2, 1, 1) no_such_block(int* out) {
    __shared__ int x;
    asm volatile("st.shared::cluster.s32 [%0], %1;" :: "r"(there(&x, 5)), "r"(3));  // there are two
}
}
"""


def test_a_pipeline_of_copies(build, order):
    a = np.random.default_rng(1).integers(-9, 9, (5, 64)).astype(np.float32)
    out = zeros(64, np.float32)
    run(COPIES, "stages", 2, 64, a, out, np.int32(5), build=build, warp_order=order)
    expected = np.zeros(64, np.float32)
    for row in a:
        expected = expected * np.float32(0.5) + row[::-1]
    assert out.tolist() == expected.tolist()


def test_a_copy_arrives_when_it_is_waited_for(build):
    a, out = np.arange(1, 33, dtype=np.float32), zeros(64, np.float32)
    run(COPIES, "early", 1, 32, a, out, build=build)
    assert out.tolist() == [-1] * 32 + a.tolist()


def test_what_is_not_copied_is_zero(build):
    rng = np.random.default_rng(2)
    a, bytes_of = rng.standard_normal((32, 4)).astype(np.float32), zeros(32)
    bytes_of[:] = rng.choice([0, 16, 16, 4, 12, 7], 32)
    out = zeros((32, 4), np.float32)
    run(COPIES, "sizes", 1, 32, a, out, bytes_of, build=build)
    expected = a.copy().view(np.uint8)
    for row, count in zip(expected, bytes_of, strict=True):
        row[count:] = 0
    assert out[::-1].tobytes() == expected.tobytes()


def test_copies_of_some_lanes(build):
    a, out = np.random.default_rng(3).standard_normal(128), zeros(64, float)
    run(COPIES, "half_of_them", 1, 64, a, out, build=build)
    assert out.tolist() == [a[2 * t] if t % 3 and t % 2 else 7 for t in range(64)]


def test_a_copy_from_outside_is_named_and_told(build):
    a, out = np.ones(20, np.float32), zeros(32, np.float32)
    with pytest.raises(MemoryFault, match="the array is shorter.*reads element 20 of a"):
        run(COPIES, "outside", 1, 32, a, out, build=build)
    listener = listen(COPIES, "outside", 1, 32, a, out, build=build)
    assert [fault.index for fault in listener.faults] == [20]
    assert out.tolist() == [1] * 20 + [0] * 12
    (event,) = [e for e in listener.events if e.instruction.opcode.startswith("cp.async.ca")]
    kinds = [(access.space, access.kind, access.size) for access in event.accesses]
    assert kinds == [("global", "load", 4), ("shared", "store", 4)]


def test_blocks_of_a_cluster_read_each_other(build, order):
    a = np.random.default_rng(4).integers(-9, 9, (8, 33)).astype(np.int32)
    out = zeros((8, 33))
    run(CLUSTERS, "ring", 8, 33, a, out, build=build, warp_order=order)
    for block in range(8):
        start = block // 4 * 4
        sent = [a[start + (k + 1) % 4] for k in range(4)]
        total = sum(row[block % 4 :: 4].sum() for row in sent)
        assert out[block].tolist() == (sent[block % 4] * 1000 + total).tolist()


def test_a_cluster_of_two_dimensions(build, monkeypatch):
    monkeypatch.setattr(launch, "LANES_PER_CHUNK", 64)
    out = zeros((4, 6, 4))
    run(CLUSTERS, "square", (6, 4), 4, out, build=build)
    for y in range(4):
        for x in range(6):
            rank = x % 2 + 2 * (y % 2)
            other = (x ^ 1) + 6 * (y ^ 1)
            assert out[y, x].tolist() == [other * 100 + 40 + 3 - rank] * 4


def test_what_clusters_can_not_do_is_named(build):
    with pytest.raises(Hang, match="the cluster's.*bar.sync 1|bar.sync 1.*the cluster's"):
        run(CLUSTERS, "alone", 2, 32, zeros(1), build=build)
    with pytest.raises(LaunchError, match="alone: grid .3, 1, 1. .*clusters of .2, 1, 1."):
        run(CLUSTERS, "alone", 3, 32, zeros(1), build=build)
    with pytest.raises(MemoryFault, match="there are two"):
        run(CLUSTERS, "no_such_block", 2, 32, zeros(1), build=build)


def test_a_copy_that_all_lanes_ignore(build):
    a, out = np.arange(1, 33, dtype=np.float32), zeros(64, np.float32)
    for ignore in (0, 1):
        size = 4 * (1 - ignore)
        run(COPIES, "ignoring", 1, 32, a, out, np.int32(ignore), np.int32(size), build=build)
        assert out.tolist() == 2 * (a * (1 - ignore)).tolist()


def test_the_newest_group_has_not_arrived_when_the_one_before_has(build):
    a, out = np.arange(1, 65, dtype=np.float32), zeros(96, np.float32)
    run(COPIES, "next_too_early", 1, 32, a, out, build=build)
    assert out.tolist() == [*a[:32], *[-1] * 32, *a[32:]]
