"""CUDA C of kernels that copy through pipelines, for the tests."""

CODE = r"""
// kernelscope: sm_90a
struct alignas(64) Map { char bytes[128]; };
typedef unsigned long long u64;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void start(u64* bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(bar)), "r"(count) : "memory");
}
__device__ void arrive(u64* bar) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" :: "r"(at(bar)) : "memory");
}
__device__ void expect(u64* bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
        :: "r"(at(bar)), "r"(bytes) : "memory");
}
__device__ void wait(u64* bar, int parity) {
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 p, [%0],"
        " %1, 1000; @p bra D; bra W; D: }" :: "r"(at(bar)), "r"(parity) : "memory");
}
__device__ void load(const Map* map, int x, int y, void* to, u64* bar) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%2, %3}], [%4], %5;"
        :: "r"(at(to)), "l"(map), "r"(x), "r"(y), "r"(at(bar)), "l"(0ull) : "memory");
}
__device__ void store(const Map* map, int x, int y, const void* from) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%1, {%2, %3}], [%0];"
        :: "r"(at(from)), "l"(map), "r"(x), "r"(y) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ void add(const Map* map, int x, int y, const void* from) {
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
        " [%1, {%2, %3}], [%0];" :: "r"(at(from)), "l"(map), "r"(x), "r"(y) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
__device__ bool elected() {
    int mine;
    asm volatile("{ .reg .pred p; elect.sync _|p, -1; selp.b32 %0, 1, 0, p; }" : "=r"(mine));
    return mine;
}
#define FENCE asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define STAGES 3
#ifndef ADD
#define ADD store
#endif
extern "C" {
// Each block adds up the column tiles of its 16 rows: a producer warp, two warpgroups.
__global__ void __launch_bounds__(384, 1) sums(const __grid_constant__ Map in,
        const __grid_constant__ Map out, int tiles, int missing) {
    extern __shared__ __align__(1024) int tile[];  // (STAGES, 16, 32), and (16, 32) for the sums
    __shared__ u64 full[STAGES], empty[STAGES];
    int t = threadIdx.x, group = t / 128, row = blockIdx.x * 16;
    if (t == 0) {
        for (int i = 0; i < STAGES; ++i) { start(full + i, 1); start(empty + i, 256); }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("prefetch.tensormap [%0];" :: "l"(&in) : "memory");
    }
    __syncthreads();
    if (group == 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        if (t < 32 && elected())
            for (int k = 0; k < tiles; ++k) {
                int s = k % STAGES;
                wait(empty + s, k / STAGES % 2 ^ 1);
                expect(full + s, 2048 + ((k == missing) - (k == -2 - missing)) * 16);
                load(&in, k * 32, row, tile + s * 512, full + s);
            }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        int me = t - 128, first = 0, second = 0;
        for (int k = 0; k < tiles; ++k) {
            int s = k % STAGES;
            wait(full + s, k / STAGES % 2);
            first += tile[s * 512 + me]; second += tile[s * 512 + me + 256];
            arrive(empty + s);
        }
        tile[STAGES * 512 + me] = first; tile[STAGES * 512 + me + 256] = second;
        FENCE;
        asm volatile("bar.sync 1, 256;" ::: "memory");
        if (me == 0) {
            store(&out, 0, row, tile + STAGES * 512);
            asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
        }
    }
}
// Reads without waiting, then after the wait, then after a wait of the wrong parity.
__global__ void early(const __grid_constant__ Map in, int* seen) {
    extern __shared__ __align__(1024) int tile[];
    __shared__ u64 bar;
    volatile int* now = tile;
    tile[0] = -1; start(&bar, 1); FENCE;
    expect(&bar, 2048);
    load(&in, 0, 0, tile, &bar);
    seen[0] = now[0];
    wait(&bar, 1);
    seen[1] = now[0];
    wait(&bar, 0);
    seen[2] = now[0];
}
// Overwrites what is stored before and after shared memory has been read; looks for the result.
__global__ void late(const __grid_constant__ Map out, volatile int* data, int* seen) {
    extern __shared__ __align__(1024) int tile[];
    for (int i = 0; i < 512; ++i) tile[i] = 5;
    FENCE;
    store(&out, 0, 0, tile);
    tile[0] = 6;
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    tile[1] = 7;
    seen[0] = data[0];
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    seen[1] = data[0]; seen[2] = data[1];
    store(&out, 0, 0, tile);                    // nobody waits for this one
}
// Two groups in flight: a wait for all but the newest one.
__global__ void groups(const __grid_constant__ Map out, volatile int* data, int* seen) {
    extern __shared__ __align__(1024) int tile[];
    for (int i = 0; i < 1024; ++i) tile[i] = 1 + i / 512;
    store(&out, 0, 0, tile); store(&out, 0, 16, tile + 512);
    asm volatile("cp.async.bulk.wait_group 1;" ::: "memory");
    seen[0] = data[0]; seen[1] = data[16 * 32];
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
    seen[2] = data[16 * 32];
}
__constant__ Map kept;
__global__ void held(const Map* maps, const Map* made, int where, int* seen) {
    extern __shared__ __align__(1024) int tile[];
    __shared__ u64 bar;
    Map own = maps[0];
    start(&bar, 1); FENCE; expect(&bar, 2048);
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" :: "l"(maps) : "memory");
    load(where == 0 ? maps + 1 : where == 1 ? &kept : where == 2 ? &own : made, 0, 0, tile, &bar);
    wait(&bar, 0);
    seen[0] = tile[0];
}
__global__ void misplaced(const __grid_constant__ Map in, int offset, int raw, int axes) {
    extern __shared__ __align__(1024) char bytes[];
    __shared__ u64 bar, other;
    start(&bar, 1); FENCE;
    if (axes == 2) load(&in, 0, 0, bytes + offset, raw ? &other : &bar);
    else asm volatile("cp.async.bulk.tensor.1d.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1, {%2}], [%3];" :: "r"(at(bytes)), "l"(&in), "r"(0), "r"(at(&bar)) : "memory");
}
__global__ void plainly(const char* data, int offset, int size, int to) {
    extern __shared__ __align__(1024) char bytes[];
    __shared__ u64 bar;
    start(&bar, 1); FENCE;
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2,"
        " [%3];" :: "r"(at(bytes) + to), "l"(data + offset), "r"(size), "r"(at(&bar)) : "memory");
}
__global__ void pushed(char* data, int offset) {
    extern __shared__ __align__(1024) char bytes[];
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%1], [%0], 64;"
        :: "r"(at(bytes)), "l"(data + offset) : "memory");
    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
}
// Two blocks of a cluster: each loads half of a tile for both, and tells both when it is done.
__global__ void __cluster_dims__(2, 1, 1) shared_loads(const __grid_constant__ Map in, int* out,
                                                       int tiles) {
    extern __shared__ __align__(1024) int tile[];  // (2 stages, 16, 32)
    __shared__ u64 full[2], empty[2];
    int t = threadIdx.x, rank = blockIdx.x % 2;
    if (t == 0) {
        for (int i = 0; i < 2; ++i) { start(full + i, 1); start(empty + i, 2 * 64); }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
        ::: "memory");
    if (t < 32) {
        if (elected())
            for (int k = 0; k < tiles; ++k) {
                int s = k % 2;
                wait(empty + s, k / 2 % 2 ^ 1);
                expect(full + s, 2048);
                asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global"
                    ".mbarrier::complete_tx::bytes.multicast::cluster"
                    " [%0], [%1, {%2, %3}], [%4], %5;" :: "r"(at(tile + s * 512 + rank * 256)),
                    "l"(&in), "r"(k * 32), "r"(rank * 8), "r"(at(full + s)), "h"((short)3)
                    : "memory");
            }
    } else if (t >= 64) {
        int sum = 0, me = t - 64;
        for (int k = 0; k < tiles; ++k) {
            int s = k % 2;
            wait(full + s, k / 2 % 2);
            for (int i = me; i < 512; i += 64) sum = 3 * sum + tile[s * 512 + i];
            for (int to = 0; to < 2; ++to)
                asm volatile("{ .reg .b32 far; mapa.shared::cluster.u32 far, %0, %1;"
                    " mbarrier.arrive.release.cluster.shared::cluster.b64 _, [far]; }"
                    :: "r"(at(empty + s)), "r"(to) : "memory");
        }
        out[blockIdx.x * 64 + me] = sum;
    }
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
        ::: "memory");
}
// Two warpgroups take turns by named barriers, as a producer and a consumer of one buffer.
__global__ void turns(int* out, int rounds) {
    __shared__ int box[128];
    int t = threadIdx.x % 128;
    for (int k = 0; k < rounds; ++k)
        if (threadIdx.x < 128) {
            if (k) asm volatile("barrier.cta.sync.aligned 2, 256;" ::: "memory");
            box[t] = k * 1000 + t;
            asm volatile("barrier.cta.arrive.aligned 1, 256;" ::: "memory");
        } else {
            asm volatile("bar.sync 1, 256;" ::: "memory");
            out[k * 128 + t] = box[127 - t];
            if (k + 1 < rounds) asm volatile("bar.arrive 2, 256;" ::: "memory");
        }
}
__global__ void rows(const __grid_constant__ Map in, const __grid_constant__ Map out, int tiles,
                     int* waste) {
    extern __shared__ __align__(1024) int tile[];
    __shared__ u64 bar;
    int x = waste[0];
    if (threadIdx.x == 0) start(&bar, 1);
    __syncthreads();
    for (int k = 0; k < tiles; ++k) {
        if (threadIdx.x == 0) {
            expect(&bar, 2048);
            load(&in, k * 32, blockIdx.x * 16, tile, &bar);
        }
        wait(&bar, k % 2);
        for (int i = 0; i < 40; ++i) x = x * 3 + i;
        for (int i = threadIdx.x; i < 512; i += blockDim.x) tile[i] += 1 + 0 * x;
        FENCE;
        __syncthreads();
        if (threadIdx.x == 0) {
            ADD(&out, k * 32, blockIdx.x * 16, tile);
            asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        }
        __syncthreads();
    }
}
// What never ends: who waits for whom?
__global__ void ring(int* out) {                // each waits for what the other would do next
    __shared__ u64 full, empty;
    if (threadIdx.x == 0) { start(&full, 1); start(&empty, 32); }
    __syncthreads();
    if (threadIdx.x < 32) {
        wait(&full, 0);
        arrive(&empty);
    } else if (threadIdx.x == 32) {
        wait(&empty, 0);
        arrive(&full);
    } else {
        asm volatile("bar.sync 3, 96;" ::: "memory");
    }
    out[threadIdx.x] = 1;
}
__global__ void __launch_bounds__(384, 1) greedy(int* out) {
    int group = threadIdx.x / 128;
    if (group == 0) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
    else asm volatile("setmaxnreg.inc.sync.aligned.u32 248;");
    out[threadIdx.x] = 1;
}
__global__ void __launch_bounds__(256, 1) partly(int* out) {
    if (threadIdx.x < 96) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    __syncthreads();
    out[threadIdx.x] = 1;
}
__global__ void __launch_bounds__(128, 1) backwards(int* out) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 24;");
    out[threadIdx.x] = 1;
}
__global__ void __launch_bounds__(128) unbounded(int* out) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 24;");
    out[threadIdx.x] = 1;
}
}
"""
