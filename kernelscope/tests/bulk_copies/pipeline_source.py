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
__device__ bool elected() {
    int mine;
    asm volatile("{ .reg .pred p; elect.sync _|p, -1; selp.b32 %0, 1, 0, p; }" : "=r"(mine));
    return mine;
}
#define FENCE asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define STAGES 3
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
                expect(full + s, 2048 + (k == missing) * 16);
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
