// Idea:          The engines of Hopper at work on one product: a thread orders tiles of Q and K, a
//                warp group multiplies them, and copies take the scores out of shared memory.
// Changes from:  clean/scores_wgmma.cu
// Shapes:        q (BH, n, d) and k (BH, m, d) as tensor maps, half; s (BH, n, m), float32
// Launch:        scores_wgmma: grid (ceil(n/64), BH), block (160)
// Needs:         sm_90a; d <= 64, a multiple of 8; m a multiple of 4
// Expect:        tiles of K are copied while the ones before are multiplied
// Limits:        BH <= 65535

// Clean:    clean/scores_wgmma.cu
// Defect:   misaligned
// Symptom:  columns of the scores in another order
// Story:    the swizzle goes by the address: padding moves a tile away from where its pattern is
// Case:     BH=1, n=70, m=200, d=40

struct alignas(64) TensorMap {
    unsigned char bytes[128];
};
constexpr int TILE = 64 * 128;  // bytes: 64 rows of 64 halves, whose 16-byte parts are swizzled

__device__ unsigned shared_address(const void* place)
{
    return (unsigned)__cvta_generic_to_shared(place);
}

__device__ void start_barrier(unsigned long long* barrier, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ void arrive(unsigned long long* barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];"
                 :: "r"(shared_address(barrier)) : "memory");
}

__device__ void expect_bytes(unsigned long long* barrier, int bytes)  // and arrives
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
}

// Waits for the end of the phase of this parity: 0 for the first one, then 1, 0, ...; the one
// before the first counts as 1, and as over.
__device__ void wait_for(unsigned long long* barrier, int parity)
{
    for (unsigned over = 0; !over;) {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(over) : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    }
}

__device__ void load_tile(
    void* tile, const TensorMap& from, int column, int row, int head, unsigned long long* barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];"
                 :: "r"(shared_address(tile)), "l"(&from), "r"(column), "r"(row), "r"(head),
                    "r"(shared_address(barrier)) : "memory");
}

__device__ void store_row(float* to, const float* from, int bytes)
{
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
                 :: "l"(to), "r"(shared_address(from)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

__device__ unsigned long long describe(const void* tile)
{
    return 1ull << 62 | 64ull << 32 | (shared_address(tile) & 0x3ffff) >> 4;  // 8 rows: 1024 bytes
}

#define C4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define C16(i) C4(i), C4(i + 4), C4(i + 8), C4(i + 12)

// c = a b^T + (add ? c : 0) of 64 rows, 64 columns and 16 columns of a and b, rows of each.
__device__ __forceinline__ void multiply(
    float (&c)[32], unsigned long long a, unsigned long long b, int add)
{
    asm volatile("{.reg .pred p; setp.ne.b32 p, %34, 0;"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
                 "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 0, 0;}"
                 : C16(0), C16(16) : "l"(a), "l"(b), "r"(add));  // <- found here
}

extern "C" __global__ void __launch_bounds__(160, 1) scores_wgmma(
    const __grid_constant__ TensorMap q,  // (BH, n, d), boxes of 64 rows
    const __grid_constant__ TensorMap k,  // (BH, m, d), the same
    float* s,                             // (BH, n, m)
    int n, int m, int d)
{
    __shared__ __align__(1024) char q_tile[TILE], k_tiles[2][TILE + 128];  // <- defect
    __shared__ __align__(128) float s_tile[64][64];
    __shared__ unsigned long long q_full;    // says that the tile is here
    __shared__ unsigned long long full[2];   // the same of K
    __shared__ unsigned long long empty[2];  // says that all who read it are done

    const int thread = threadIdx.x;
    const int row0 = 64 * blockIdx.x;
    const int head = blockIdx.y;
    const int tiles = (m + 63) / 64;
    if (thread == 0) {
        start_barrier(&q_full, 1);
        for (int i = 0; i < 2; ++i) {
            start_barrier(&full[i], 1);
            start_barrier(&empty[i], 128);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();  // barrier: a thread would use an mbarrier that is not there yet

    if (thread >= 128) {
        for (int j = 0; j < tiles && thread == 128; ++j) {
            if (j == 0) {
                expect_bytes(&q_full, TILE);
                load_tile(q_tile, q, 0, row0, head, &q_full);
            }
            wait_for(&empty[j % 2], j / 2 % 2 ^ 1);
            expect_bytes(&full[j % 2], TILE);
            load_tile(k_tiles[j % 2], k, 0, 64 * j, head, &full[j % 2]);
        }
        return;
    }
    const int row = 16 * (thread / 32) + thread % 32 / 4;  // c is of this one and 8 more
    wait_for(&q_full, 0);
    for (int j = 0; j < tiles; ++j) {
        float c[32];  // two columns of each row in turns
        wait_for(&full[j % 2], j / 2 % 2);
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        for (int i = 0; i < 4; ++i) {  // 16 columns are 32 bytes
            multiply(c, describe(q_tile) + 2 * i, describe(k_tiles[j % 2]) + 2 * i, i);
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
        arrive(&empty[j % 2]);

        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
        asm volatile("bar.sync 1, 128;" ::: "memory");  // barrier: s_tile is still being copied
        for (int i = 0; i < 32; ++i) {
            const int column = i / 4 * 8 + thread % 4 * 2 + i % 2;
            s_tile[row + i / 2 % 2 * 8][column] = c[i];
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        asm volatile("bar.sync 1, 128;" ::: "memory");  // barrier: a row is not whole yet
        if (thread < 64 && row0 + thread < n) {
            float* to = s + ((size_t)head * n + row0 + thread) * m + 64 * j;
            store_row(to, s_tile[thread], min(64, m - 64 * j) * 4);
        }
    }
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
}
