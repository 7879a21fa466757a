// Idea:          Few queries, large head dim: a cluster of blocks splits the head dim, adds up its
//                partial scores through distributed shared memory, and each block keeps its slice
//                of the output.
// Changes from:  09_rows_online.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        rows_split: grid (CLUSTER * ceil(n/BR) * batch*heads) in clusters of CLUSTER,
//                block (32*WARPS), dynamic shared
//                (2*(BC + BR)*STRIDE + (WARPS + 3)*BR*P_STRIDE + 3*BR)*4 bytes
// Needs:         sm_90 (sm_80 with CLUSTER=1); d <= CLUSTER*CHUNKS*32*WARPS; CLUSTER 1, 2, 4 or 8;
//                ROWS x KEYS scores a thread; ROWS <= 8*WARPS; WARPS <= 32; MIN_BLOCKS blocks an
//                SM; heads a multiple of kv_heads
// Expect:        as many blocks at work as the GPU has SMs where 09 had n; each element of K and V
//                read from memory once a row tile, by the one block whose slice it is in
// Limits:        every block of a cluster computes the same softmax; one cluster barrier a key
//                tile; CLUSTER * ceil(n/BR) * batch*heads < 2^31

#ifndef CLUSTER
#define CLUSTER 8  // blocks that share a tile of rows: each has a slice of the head dim
#endif
#ifndef CHUNKS
#define CHUNKS 1  // tiles along the slice of a block, one after the other
#endif
#ifndef WARPS
#define WARPS 8  // warps a block, each with 32 columns of a chunk
#endif
#ifndef ROWS
#define ROWS 4  // query rows a thread
#endif
#ifndef KEYS
#define KEYS 8  // keys a thread and tile
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1  // blocks an SM that the compiler leaves registers for
#endif
#if CLUSTER > 1
#define CLUSTERED __cluster_dims__(CLUSTER, 1, 1)
#else
#define CLUSTERED  // a block alone: sm_80 has no clusters
#endif
#define MINUS_INFINITY __int_as_float(0xff800000)  // NVRTC has no <math.h> to name it

constexpr int THREADS = 32 * WARPS;
constexpr int BR = 4 * ROWS;               // query rows a cluster: 4 lanes of a warp along the rows
constexpr int BC = 8 * KEYS;               // keys a tile: 8 lanes of a warp along the keys
constexpr int LANE_KEYS = (BC + 31) / 32;  // keys a lane in the softmax, where a warp has a row
constexpr int WIDTH = 32 * WARPS;          // columns of a chunk
constexpr int SLICE = WIDTH * CHUNKS;      // columns of a block
constexpr int STRIDE = WIDTH + 4;          // pad: 8 rows at one column are 8 groups of 4 banks
constexpr int P_STRIDE = BC + 8;           // pad: 4 rows x 8 keys are 32 banks (where KEYS is even)
constexpr float LOG2E = 1.4426950408889634f;  // exp(x) = exp2(x * LOG2E): the GPU has exp2 only

static_assert(THREADS <= 1024, "a block has at most 32 warps");
static_assert(BR <= THREADS, "one thread each sets m and l of a row at the start");

// Starts copying rows [0, rows) x columns [0, cols) of a (.., d) matrix into a tile of `count`
// rows; a copy that reads 0 bytes fills its place with zeros. Nothing has arrived until
// copies_arrived().
__device__ __forceinline__ void start_copy(float* tile,       // (count, STRIDE), shared
                                           const float* src,  // (rows, d)
                                           int count, int rows, int cols, int d, bool vector)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(tile);
    if (vector) {
        for (int i = threadIdx.x; i < count * (WIDTH / 4); i += THREADS) {
            const int row = i / (WIDTH / 4);
            const int col = i % (WIDTH / 4) * 4;
            const bool inside = row < rows && col < cols;
            const float* from = inside ? src + (long long)row * d + col : src;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                         :: "r"(to + (row * STRIDE + col) * 4), "l"(from), "r"(inside ? 16 : 0)
                         : "memory");
        }
    } else {
        for (int i = threadIdx.x; i < count * WIDTH; i += THREADS) {
            const int row = i / WIDTH;
            const int col = i % WIDTH;
            const bool inside = row < rows && col < cols;
            const float* from = inside ? src + (long long)row * d + col : src;
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                         :: "r"(to + (row * STRIDE + col) * 4), "l"(from), "r"(inside ? 4 : 0)
                         : "memory");
        }
    }
}

__device__ __forceinline__ void end_group()  // of the copies that this thread started
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `newer` of this thread's groups, the newest, are still under way.
template <int newer>
__device__ __forceinline__ void copies_arrived()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(newer) : "memory");
}

// All threads of all blocks of the cluster; what they stored before is visible after.
__device__ __forceinline__ void cluster_barrier()
{
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;\n\t"
                 "barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();  // barrier: a cluster of one block is the block
#endif
}

// What `mine`, in shared memory, is in block `rank` of the cluster.
__device__ __forceinline__ float read_from(const float* mine, int rank)
{
#if CLUSTER > 1
    const unsigned here = (unsigned)__cvta_generic_to_shared(mine);
    unsigned there;
    float value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(here), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(there) : "memory");
    return value;
#else
    return *mine;
#endif
}

__device__ __forceinline__ float warp_max(float value)  // every lane gets the warp's maximum
{
    for (int offset = 16; offset > 0; offset /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, offset));
    }
    return value;
}

__device__ __forceinline__ float warp_sum(float value)  // every lane gets the sum over the warp
{
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(0xffffffff, value, offset);
    }
    return value;
}

__device__ __forceinline__ float4 load4(const float* x)  // x[0] to x[3]; 16-byte aligned
{
    return *reinterpret_cast<const float4*>(x);
}

extern "C" __global__ void CLUSTERED __launch_bounds__(THREADS, MIN_BLOCKS) rows_split(
    const float* __restrict__ q,     // (batch*heads, n, d)
    const float* __restrict__ k,     // (batch*kv_heads, m, d)
    const float* __restrict__ v,     // (batch*kv_heads, m, d)
    const float* __restrict__ bias,  // (.., n, m), added to the scaled scores, or null
    float* __restrict__ out,         // (batch*heads, n, d)
    float* __restrict__ lse,         // (batch*heads, n), log of each sum of exponentials, or null
    int heads, int kv_heads, int n, int m, int d,
    long long bias_batch, long long bias_head, float scale, int causal)
{
    extern __shared__ float4 shared[];                // float4: aligned for vector loads
    float* tiles = reinterpret_cast<float*>(shared);  // (2, BC, STRIDE), K or V, the next arriving
    float* q_tiles = tiles + 2 * BC * STRIDE;         // (2, BR, STRIDE)
    float* parts = q_tiles + 2 * BR * STRIDE;         // (WARPS, BR, P_STRIDE), each warp's scores
    float* sums = parts + WARPS * BR * P_STRIDE;      // (2, BR, P_STRIDE), this block's scores
    float* p_tile = sums + 2 * BR * P_STRIDE;         // (BR, P_STRIDE), weights
    float* row_m = p_tile + BR * P_STRIDE;            // (BR,), maximum of the scores so far
    float* row_l = row_m + BR;                        // (BR,), sum of exp(score - row_m) so far
    float* rescale = row_l + BR;                      // (BR,), of what was summed before this tile

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    const int tx = lane % 8;  // along the keys, and along the columns of the output
    const int ty = lane / 8;  // along the rows
    const int rank = blockIdx.x % CLUSTER;

    const int row_tiles = (n + BR - 1) / BR;
    const int bh = blockIdx.x / CLUSTER / row_tiles;
    const int row0 = blockIdx.x / CLUSTER % row_tiles * BR;
    const int batch = bh / heads;
    const int head = bh % heads;
    const int dim0 = rank * SLICE;          // this block's slice of the head dim
    const int dims = min(SLICE, d - dim0);  // may be <= 0: then it only adds zeros
    // long long: the offset of a row, or of a head's bias, can pass 2^31.
    const long long kv_head = (long long)batch * kv_heads + head / (heads / kv_heads);
    q += ((long long)bh * n + row0) * d + dim0;  // (n - row0, dims), rows d apart
    k += kv_head * m * d + dim0;                 // (m, dims), rows d apart
    v += kv_head * m * d + dim0;                 // (m, dims), rows d apart
    const bool vector = d % 4 == 0 && ((size_t)q | (size_t)k | (size_t)v) % 16 == 0;
    const int last_key = causal ? min(m, row0 + BR + m - n) : m;  // no row of the block sees more

    if (threadIdx.x < BR) {
        row_m[threadIdx.x] = MINUS_INFINITY;
        row_l[threadIdx.x] = 0.0f;
    }
    // The output so far, not yet divided by row_l: rows ty + 4*i, and of each chunk the 4 columns
    // from 32*warp + 4*tx on.
    float o[CHUNKS][ROWS][4] = {};

    // Tiles arrive in the order K chunk 0, 1, .., V chunk 0, 1, .., next key tile; `step` counts.
    const int key_tiles = last_key > 0 ? (last_key + BC - 1) / BC : 0;
    const int steps = key_tiles * 2 * CHUNKS;
    auto start = [&](int step) {
        if (step < steps) {
            const int key0 = step / (2 * CHUNKS) * BC;
            const int chunk = step % CHUNKS * WIDTH;
            const bool is_k = step / CHUNKS % 2 == 0;
            const float* from = (is_k ? k : v) + (long long)key0 * d + chunk;
            const int cols = dims - chunk;
            start_copy(tiles + step % 2 * BC * STRIDE, from, BC, m - key0, cols, d, vector);
            if (is_k) {
                float* q_tile = q_tiles + step % 2 * BR * STRIDE;
                start_copy(q_tile, q + chunk, BR, n - row0, cols, d, vector);
            }
        }
        end_group();
    };
    auto wait_for = [&](int step) {
        start(step + 1);
        copies_arrived<1>();  // this step is here, the next may still be on its way
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write
        return tiles + step % 2 * BC * STRIDE;
    };

    start(0);
    int step = 0;
    for (int tile = 0; tile < key_tiles; ++tile) {
        const int key0 = tile * BC;
        float s[ROWS][KEYS] = {};  // rows ty + 4*i and keys tx + 8*j, over this warp's columns
        for (int chunk = 0; chunk < CHUNKS; ++chunk, ++step) {
            const float* k_mine = wait_for(step) + tx * STRIDE + warp * 32;  // key j at 8*j*STRIDE
            const float* q_mine = q_tiles + step % 2 * BR * STRIDE + ty * STRIDE + warp * 32;
#pragma unroll
            for (int c = 0; c < 32; c += 4) {
                float4 q4[ROWS];  // each is used KEYS times, each k4 ROWS times
#pragma unroll
                for (int i = 0; i < ROWS; ++i) {
                    q4[i] = load4(q_mine + 4 * i * STRIDE + c);
                }
#pragma unroll
                for (int j = 0; j < KEYS; ++j) {
                    const float4 k4 = load4(k_mine + 8 * j * STRIDE + c);
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) {
                        s[i][j] += q4[i].x * k4.x;
                        s[i][j] += q4[i].y * k4.y;
                        s[i][j] += q4[i].z * k4.z;
                        s[i][j] += q4[i].w * k4.w;
                    }
                }
            }
            __syncthreads();  // barrier: the copy after next would overwrite what others still read
        }

        // Scores of the whole head dim: the sum over the block's warps, then over the cluster.
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < KEYS; ++j) {
                parts[(warp * BR + ty + 4 * i) * P_STRIDE + tx + 8 * j] = s[i][j];
            }
        }
        __syncthreads();  // barrier: a fast warp would add up parts that are not stored yet
        float* sum_mine = sums + tile % 2 * BR * P_STRIDE;  // two: others may still read the last
        for (int e = threadIdx.x; e < BR * BC; e += THREADS) {
            const int at = e / BC * P_STRIDE + e % BC;
            float sum = 0.0f;
#pragma unroll
            for (int w = 0; w < WARPS; ++w) {
                sum += parts[w * BR * P_STRIDE + at];
            }
            sum_mine[at] = sum;
        }
        cluster_barrier();  // barrier: a fast block would read sums that are not stored yet

        for (int r = warp; r < BR; r += WARPS) {
            const int row = row0 + r;
            const int keys = causal ? min(m, row + 1 + m - n) : m;  // those this row may see
            float x[LANE_KEYS];
            float top = MINUS_INFINITY;
#pragma unroll
            for (int j = 0; j < LANE_KEYS; ++j) {
                const int col = lane + 32 * j;
                const int key = key0 + col;
                x[j] = MINUS_INFINITY;
                if (col < BC && key < keys) {
                    float sum = 0.0f;
#pragma unroll
                    for (int other = 0; other < CLUSTER; ++other) {
                        sum += read_from(sum_mine + r * P_STRIDE + col, other);
                    }
                    x[j] = sum * scale;
                    if (bias && row < n) {
                        const float* bias_row =  // (m,)
                            bias + batch * bias_batch + head * bias_head + (long long)row * m;
                        x[j] += bias_row[key];
                    }
                }
                top = fmaxf(top, x[j]);
            }
            const float new_m = fmaxf(row_m[r], warp_max(top));
            // Before the first key new_m is -inf; shifting by it would give inf - inf = NaN.
            const float shift = new_m == MINUS_INFINITY ? 0.0f : new_m * LOG2E;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < LANE_KEYS; ++j) {
                const float p = exp2f(x[j] * LOG2E - shift);  // at most 1: cannot overflow
                sum += p;
                if (lane + 32 * j < BC) p_tile[r * P_STRIDE + lane + 32 * j] = p;
            }
            sum = warp_sum(sum);
            const float factor = exp2f(row_m[r] * LOG2E - shift);
            __syncwarp();  // barrier: lane 0 would replace row_m before the others have read it
            if (lane == 0) {
                rescale[r] = factor;
                row_m[r] = new_m;
                row_l[r] = row_l[r] * factor + sum;
            }
        }
        __syncthreads();  // barrier: a fast warp would read weights and factors not stored yet

#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const float factor = rescale[ty + 4 * i];
#pragma unroll
            for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    o[chunk][i][x] *= factor;
                }
            }
        }
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk, ++step) {
            const float* v_mine = wait_for(step) + warp * 32 + 4 * tx;  // key j at j*STRIDE
#pragma unroll 4
            for (int j = 0; j < BC; j += 4) {
                float4 p4[ROWS];  // weights of keys j to j + 3
#pragma unroll
                for (int i = 0; i < ROWS; ++i) {
                    p4[i] = load4(p_tile + (ty + 4 * i) * P_STRIDE + j);
                }
#pragma unroll
                for (int y = 0; y < 4; ++y) {
                    const float4 v4 = load4(v_mine + (j + y) * STRIDE);
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) {
                        const float p = y == 0 ? p4[i].x : y == 1 ? p4[i].y
                                      : y == 2 ? p4[i].z : p4[i].w;
                        o[chunk][i][0] += p * v4.x;
                        o[chunk][i][1] += p * v4.y;
                        o[chunk][i][2] += p * v4.z;
                        o[chunk][i][3] += p * v4.w;
                    }
                }
            }
            __syncthreads();  // barrier: the copy after next would overwrite what others still read
        }
    }
    copies_arrived<0>();  // only the empty group of the step after the last is left

    __syncthreads();  // barrier: without a key tile, a fast warp would read m and l not set yet
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int r = ty + 4 * i;
        const int row = row0 + r;
        const float inverse = row_l[r] > 0.0f ? 1.0f / row_l[r] : 0.0f;  // every key masked: zeros
#pragma unroll
        for (int chunk = 0; chunk < CHUNKS; ++chunk) {
#pragma unroll
            for (int x = 0; x < 4; ++x) {
                const int col = chunk * WIDTH + warp * 32 + 4 * tx + x;
                if (row < n && col < dims) {
                    out[((long long)bh * n + row) * d + dim0 + col] = o[chunk][i][x] * inverse;
                }
            }
        }
        if (lse && rank == 0 && warp == 0 && tx == 0 && row < n) {
            lse[(long long)bh * n + row] = row_m[r] + logf(row_l[r]);
        }
    }
    cluster_barrier();  // barrier: a block would leave while others still read its shared memory
}
