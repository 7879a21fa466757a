// Idea:          Few queries, large head dim: a cluster of blocks splits the head dim, adds up its partial
//                scores through distributed shared memory, and each block keeps its slice of the output.
// Changes from:  09_rows_online.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major float32;
//                bias null or (.., n, m) at batch*bias_batch + head*bias_head; lse null or (batch*heads, n)
// Launch:        rows_split: grid (CLUSTER * ceil(n/BR) * batch*heads), clusters of CLUSTER blocks, block 32*WARPS,
//                dynamic shared SMEM_FLOATS*4 bytes
// Needs:         sm_90 (sm_80 with CLUSTER=1); d <= CLUSTER*CHUNKS*32*WARPS; heads a multiple of kv_heads;
//                ROWS x KEYS scores a thread; MIN_BLOCKS blocks an SM
// Expect:        as many blocks at work as the GPU has SMs where 09 had n; each element of K and V
//                read from memory once a row tile, by the one block whose slice it is in
// Limits:        every block of a cluster computes the same softmax; one cluster barrier a key tile

#ifndef CLUSTER
#define CLUSTER 8
#endif
#ifndef CHUNKS
#define CHUNKS 1
#endif
#ifndef WARPS
#define WARPS 8
#endif
#ifndef ROWS
#define ROWS 4
#endif
#ifndef KEYS
#define KEYS 8
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif

#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED
#endif
#define NEG_INF __int_as_float(0xff800000)
constexpr int BR = 4 * ROWS;               // query rows a cluster
constexpr int BC = 8 * KEYS;               // keys a tile
constexpr int THREADS = 32 * WARPS;
constexpr int WIDTH = 32 * WARPS;          // dims of one chunk: 32 a warp
constexpr int SLICE = WIDTH * CHUNKS;      // dims of one block
constexpr int STRIDE = WIDTH + 4;          // pad: 8 rows at one column fall into 8 different bank groups
constexpr int P_STRIDE = BC + 8;
constexpr float LOG2E = 1.4426950408889634f;

// Starts copying rows [0, rows) x columns [0, cols) of a (.., d) matrix into a tile of `count` padded
// rows; what is outside becomes zero. Nothing has arrived until copies_arrived().
__device__ __forceinline__ void start_copy(float* tile,        // (count, STRIDE), shared
                                           const float* src,  // (rows, d)
                                           int count, int rows, int cols, int d, bool vector)
{
    unsigned to = (unsigned)__cvta_generic_to_shared(tile);
    if (vector) {
        for (int i = threadIdx.x; i < count * (WIDTH / 4); i += THREADS) {
            int row = i / (WIDTH / 4), col = i % (WIDTH / 4) * 4;
            bool inside = row < rows && col < cols;
            const float* from = inside ? src + (long long)row * d + col : src;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                         :: "r"(to + (row * STRIDE + col) * 4), "l"(from), "r"(inside ? 16 : 0) : "memory");
        }
    } else {
        for (int i = threadIdx.x; i < count * WIDTH; i += THREADS) {
            int row = i / WIDTH, col = i % WIDTH;
            bool inside = row < rows && col < cols;
            const float* from = inside ? src + (long long)row * d + col : src;
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                         :: "r"(to + (row * STRIDE + col) * 4), "l"(from), "r"(inside ? 4 : 0) : "memory");
        }
    }
}
__device__ __forceinline__ void end_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `newer` of this thread's groups of copies, the newest, are still under way.
template <int newer>
__device__ __forceinline__ void copies_arrived()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(newer) : "memory");
}

// All threads of all blocks of the cluster; what they stored before is visible after.
__device__ __forceinline__ void cluster_barrier()
{
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();  // barrier: a cluster of one block is the block
#endif
}

// The float that `mine` is in block `rank` of the cluster.
__device__ __forceinline__ float read_from(const float* mine, int rank)
{
#if CLUSTER > 1
    unsigned there;
    float value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there) : "r"((unsigned)__cvta_generic_to_shared(mine)), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
    return value;
#else
    return *mine;
#endif
}

__device__ __forceinline__ float warp_max(float x)
{
    for (int lane = 16; lane > 0; lane >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
    return x;
}
__device__ __forceinline__ float warp_sum(float x)
{
    for (int lane = 16; lane > 0; lane >>= 1) x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, MIN_BLOCKS) rows_split(
    const float* __restrict__ q,     // (batch*heads, n, d)
    const float* __restrict__ k,     // (batch*kv_heads, m, d)
    const float* __restrict__ v,     // (batch*kv_heads, m, d)
    const float* __restrict__ bias,  // (.., n, m), added to the scaled scores; may be null
    float* __restrict__ out,         // (batch*heads, n, d)
    float* __restrict__ lse,         // (batch*heads, n): log of a row's sum of exponentials; or null
    int heads, int kv_heads, int n, int m, int d, long long bias_batch, long long bias_head,
    float scale, int causal)
{
    extern __shared__ float4 shared[];
    float* tiles = reinterpret_cast<float*>(shared);    // (2, BC, STRIDE): K or V, the next one arriving
    float* q_tiles = tiles + 2 * BC * STRIDE;           // (2, BR, STRIDE)
    float* parts = q_tiles + 2 * BR * STRIDE;           // (WARPS, BR, P_STRIDE): scores over a warp's dims
    float* sums = parts + WARPS * BR * P_STRIDE;        // (2, BR, P_STRIDE): scores over this block's slice
    float* p_tile = sums + 2 * BR * P_STRIDE;           // (BR, P_STRIDE)
    float* row_m = p_tile + BR * P_STRIDE;              // (BR,)
    float* row_l = row_m + BR;                          // (BR,)
    float* rescale = row_l + BR;                        // (BR,)

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int tx = lane % 8, ty = lane / 8;
    int rank = blockIdx.x % CLUSTER;
    int row_tiles = (n + BR - 1) / BR;
    int bh = blockIdx.x / CLUSTER / row_tiles;
    int row0 = blockIdx.x / CLUSTER % row_tiles * BR;
    int batch = bh / heads, head = bh % heads;
    long long kv = (long long)batch * kv_heads + head / (heads / kv_heads);
    int dim0 = rank * SLICE;                            // this block's slice of the head dim
    int dims = min(SLICE, d - dim0);                    // may be <= 0: then it only adds zeros
    q += ((long long)bh * n + row0) * d + dim0;
    k += kv * m * d + dim0;
    v += kv * m * d + dim0;
    bool vector = d % 4 == 0 && ((size_t)q | (size_t)k | (size_t)v) % 16 == 0;
    int last_key = causal ? min(m, row0 + BR + m - n) : m;

    if (threadIdx.x < BR) { row_m[threadIdx.x] = NEG_INF; row_l[threadIdx.x] = 0.f; }
    float o[CHUNKS][ROWS][4] = {};                      // rows ty + 4*i x columns warp*32 + tx*4 of a chunk

    // The tiles arrive in the order K chunk 0, 1, .., V chunk 0, 1, .., next key tile; `step` counts them.
    int key_tiles = last_key > 0 ? (last_key + BC - 1) / BC : 0, steps = key_tiles * 2 * CHUNKS;
    auto start = [&](int step) {
        if (step < steps) {
            int key0 = step / (2 * CHUNKS) * BC, chunk = step % CHUNKS * WIDTH;
            bool is_k = step / CHUNKS % 2 == 0;
            const float* from = (is_k ? k : v) + (long long)key0 * d + chunk;
            start_copy(tiles + step % 2 * BC * STRIDE, from, BC, m - key0, dims - chunk, d, vector);
            if (is_k) start_copy(q_tiles + step % 2 * BR * STRIDE, q + chunk, BR, n - row0, dims - chunk, d, vector);
        }
        end_group();
    };
    auto wait_for = [&](int step) {
        start(step + 1);
        copies_arrived<1>();
        __syncthreads();  // barrier: the other threads' copies must be here too
        return tiles + step % 2 * BC * STRIDE;
    };

    start(0);
    int step = 0;
    for (int tile = 0; tile < key_tiles; ++tile) {
        int key0 = tile * BC;
        float s[ROWS][KEYS] = {};
        for (int chunk = 0; chunk < CHUNKS; ++chunk, ++step) {
            const float* k_mine = wait_for(step) + tx * STRIDE + warp * 32;
            const float* q_mine = q_tiles + step % 2 * BR * STRIDE + ty * STRIDE + warp * 32;
#pragma unroll
            for (int c = 0; c < 32; c += 4) {
                float4 a[ROWS];
#pragma unroll
                for (int i = 0; i < ROWS; ++i) a[i] = *reinterpret_cast<const float4*>(q_mine + i * 4 * STRIDE + c);
#pragma unroll
                for (int j = 0; j < KEYS; ++j) {
                    float4 b = *reinterpret_cast<const float4*>(k_mine + j * 8 * STRIDE + c);
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) {
                        s[i][j] += a[i].x * b.x; s[i][j] += a[i].y * b.y;
                        s[i][j] += a[i].z * b.z; s[i][j] += a[i].w * b.w;
                    }
                }
            }
            __syncthreads();  // barrier: the copy after next overwrites this tile
        }

        // Scores: sum over the block's warps, then over the cluster's blocks.
#pragma unroll
        for (int i = 0; i < ROWS; ++i)
#pragma unroll
            for (int j = 0; j < KEYS; ++j) parts[(warp * BR + ty + 4 * i) * P_STRIDE + tx + 8 * j] = s[i][j];
        __syncthreads();  // barrier: every warp's part must be there
        float* sum_mine = sums + tile % 2 * BR * P_STRIDE;
        for (int e = threadIdx.x; e < BR * BC; e += THREADS) {
            int at = e / BC * P_STRIDE + e % BC;
            float sum = 0.f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) sum += parts[w * BR * P_STRIDE + at];
            sum_mine[at] = sum;
        }
        cluster_barrier();  // every block's sums must be there; two buffers: the next tile's do not disturb
        for (int r = warp; r < BR; r += WARPS) {
            int row = row0 + r, limit = causal ? min(m, row + 1 + m - n) : m;
            float x[(BC + 31) / 32], top = NEG_INF;
#pragma unroll
            for (int j = 0; j < (BC + 31) / 32; ++j) {
                int col = lane + 32 * j, key = key0 + col;
                x[j] = NEG_INF;
                if (col < BC && key < limit) {
                    float sum = 0.f;
#pragma unroll
                    for (int other = 0; other < CLUSTER; ++other) sum += read_from(sum_mine + r * P_STRIDE + col, other);
                    x[j] = sum * scale;
                    if (bias && row < n)
                        x[j] += bias[batch * bias_batch + head * bias_head + (long long)row * m + key];
                }
                top = fmaxf(top, x[j]);
            }
            float new_m = fmaxf(row_m[r], warp_max(top));
            float base = new_m == NEG_INF ? 0.f : new_m * LOG2E;  // a row with no key yet: exp2(-inf) = 0
            float sum = 0.f;
#pragma unroll
            for (int j = 0; j < (BC + 31) / 32; ++j) {
                float p = exp2f(x[j] * LOG2E - base);
                sum += p;
                if (lane + 32 * j < BC) p_tile[r * P_STRIDE + lane + 32 * j] = p;
            }
            sum = warp_sum(sum);
            float factor = exp2f(row_m[r] * LOG2E - base);
            __syncwarp();  // row_m is read by the whole warp before lane 0 replaces it
            if (lane == 0) { rescale[r] = factor; row_m[r] = new_m; row_l[r] = row_l[r] * factor + sum; }
        }
        __syncthreads();  // barrier: P and the rescale factors must be whole

#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float factor = rescale[ty + 4 * i];
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
                for (int x = 0; x < 4; ++x) o[chunk][i][x] *= factor;
        }
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk, ++step) {
            const float* v_mine = wait_for(step) + warp * 32 + tx * 4;
#pragma unroll 4
            for (int j = 0; j < BC; j += 4) {
                float4 p[ROWS];
#pragma unroll
                for (int i = 0; i < ROWS; ++i)
                    p[i] = *reinterpret_cast<const float4*>(p_tile + (ty + 4 * i) * P_STRIDE + j);
#pragma unroll
                for (int jj = 0; jj < 4; ++jj) {
                    float4 b = *reinterpret_cast<const float4*>(v_mine + (j + jj) * STRIDE);
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) {
                        float w = jj == 0 ? p[i].x : jj == 1 ? p[i].y : jj == 2 ? p[i].z : p[i].w;
                        o[chunk][i][0] += w * b.x; o[chunk][i][1] += w * b.y;
                        o[chunk][i][2] += w * b.z; o[chunk][i][3] += w * b.w;
                    }
                }
            }
            __syncthreads();  // barrier: the copy after next overwrites this tile
        }
    }
    copies_arrived<0>();

    __syncthreads();  // barrier: row_l of rows that other warps summed
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        int r = ty + 4 * i, row = row0 + r;
        float inverse = row_l[r] > 0.f ? 1.f / row_l[r] : 0.f;  // a row with every key masked gives zeros
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk)
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                int col = chunk * WIDTH + warp * 32 + tx * 4 + x;
                if (row < n && col < dims) out[((long long)bh * n + row) * d + dim0 + col] = o[chunk][i][x] * inverse;
            }
        if (lse && rank == 0 && warp == 0 && tx == 0 && row < n) lse[(long long)bh * n + row] = row_m[r] + logf(row_l[r]);
    }
    cluster_barrier();  // no block may end while another still reads its shared memory
}
