// Idea:          Few queries, large head dim: a cluster of blocks splits the head dim. Each sends
//                its partial scores to the block that owns the row, and gets the row's weights
//                back, both through distributed shared memory; each keeps its slice of the output.
// Changes from:  09_rows_online.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        rows_split: grid (CLUSTER*batch*heads, ceil(n/BR)) in clusters of CLUSTER, block
//                (32*WARPS), dynamic shared
//                ((2*BC + BR)*STRIDE + (CLUSTER*OWN + BR)*P_STRIDE + 2*(BR + OWN))*4 bytes
// Needs:         sm_90 (sm_80 with CLUSTER=1); d <= CLUSTER*32*WARPS*COLS; CLUSTER 1, 2, 4 or 8;
//                COLS 1, 2 or 4; ROWS x KEYS scores a thread; WARPS <= 32; the warps' scores fit
//                where K lay; MIN_BLOCKS blocks an SM; heads a multiple of kv_heads
// Expect:        K and V are read once for BR queries where 09 read them for each, every element by
//                the one block whose slice it is in; CLUSTER SMs work on a tile of rows
// Limits:        two cluster barriers a key tile, in which every block waits for the slowest;
//                ceil(n/BR) <= 65535

#ifndef CLUSTER
#define CLUSTER 8  // blocks that share a tile of rows: each has a slice of the head dim
#endif
#ifndef COLS
#define COLS 1  // float4 columns of a slice a thread
#endif
#ifndef WARPS
#define WARPS 8  // warps a block, each with 32*COLS columns of the slice
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
#define STORE "st.shared::cluster"  // into the shared memory of any block of the cluster
#else
#define CLUSTERED  // a block alone: sm_80 has no clusters
#define STORE "st.shared"
#endif
#define MINUS_INFINITY __int_as_float(0xff800000)  // NVRTC has no <math.h> to name it

constexpr int THREADS = 32 * WARPS;
constexpr int BR = 4 * ROWS;                       // query rows a cluster: 4 lanes along the rows
constexpr int OWN = (BR + CLUSTER - 1) / CLUSTER;  // rows whose softmax a block computes
constexpr int BC = 8 * KEYS;                       // keys a tile: 8 lanes along the keys
constexpr int LANE_KEYS = (BC + 31) / 32;  // keys a lane in the softmax, where a warp has a row
constexpr int WARP_COLS = 32 * COLS;       // columns a warp
constexpr int SLICE = WARP_COLS * WARPS;   // columns a block
constexpr int STRIDE = SLICE + 4;          // pad: 8 rows at one column are 8 groups of 4 banks
constexpr int P_STRIDE = BC + 8;           // pad: 4 rows x 8 keys are 32 banks (where KEYS is even)
constexpr float LOG2E = 1.4426950408889634f;  // exp(x) = exp2(x * LOG2E): the GPU has exp2 only

static_assert(8 % CLUSTER == 0, "a cluster has 1, 2, 4 or 8 blocks");
static_assert(THREADS <= 1024, "a block has at most 32 warps");
static_assert(4 % COLS == 0, "the threads copy whole rows of a tile at a time");
static_assert(WARPS * BR * P_STRIDE <= BC * STRIDE, "the warps' scores lie where K lay");

// Starts copying rows [0, rows) x columns [0, cols) of a (.., d) matrix into a tile of `count`
// rows; a copy that reads 0 bytes fills its place with zeros. Nothing has arrived until
// copies_arrived().
__device__ __forceinline__ void start_copy(float* tile,       // (count, STRIDE), shared
                                           const float* src,  // (rows, d)
                                           int count, int rows, int cols, int d, bool vector)
{
    unsigned to = (unsigned)__cvta_generic_to_shared(tile);
    if (rows <= 0) count = 0;  // past the last tile there is nothing to copy, only a group to end
    if (vector) {
        constexpr int LANES = SLICE / 4;       // threads a row
        constexpr int STEP = THREADS / LANES;  // rows the block copies at once
        const int col = threadIdx.x % LANES * 4;
        int row = threadIdx.x / LANES;
        src += (long long)row * d + col;
        to += (row * STRIDE + col) * 4;
        for (; row < count; row += STEP, src += STEP * d, to += STEP * STRIDE * 4) {
            const int bytes = row < rows && col < cols ? 16 : 0;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                         :: "r"(to), "l"(src), "r"(bytes) : "memory");
        }
    } else {
        for (int i = threadIdx.x; i < count * SLICE; i += THREADS) {
            const int row = i / SLICE;
            const int col = i % SLICE;
            const int bytes = row < rows && col < cols ? 4 : 0;
            asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                         :: "r"(to + (row * STRIDE + col) * 4), "l"(src + (long long)row * d + col),
                            "r"(bytes) : "memory");
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");  // this thread's copies, one group a call
}

// Waits until at most `newer` of this thread's groups, the newest, are still under way.
template <int newer>
__device__ __forceinline__ void copies_arrived()
{
    asm volatile("cp.async.wait_group %0;" :: "n"(newer) : "memory");
}

// Says that this block has started: others may store in its shared memory.
__device__ __forceinline__ void cluster_started()
{
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void cluster_arrive()
{
#if CLUSTER > 1
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

// Waits until all threads of the cluster have arrived; what they stored before is visible then.
__device__ __forceinline__ void cluster_wait()
{
#if CLUSTER > 1
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    __syncthreads();  // barrier: a cluster of one block is the block
#endif
}

// The address of what `mine`, in shared memory, is in block `rank` of the cluster.
__device__ __forceinline__ unsigned address_in(const float* mine, int rank)
{
    unsigned address = (unsigned)__cvta_generic_to_shared(mine);
#if CLUSTER > 1
    asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
#endif
    return address;
}

__device__ __forceinline__ void send4(unsigned to, float4 x)  // to: from address_in()
{
    asm volatile(STORE ".v4.f32 [%0], {%1, %2, %3, %4};"
                 :: "r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}

__device__ __forceinline__ void send(unsigned to, float x)  // to: from address_in()
{
    asm volatile(STORE ".f32 [%0], %1;" :: "r"(to), "f"(x) : "memory");
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

__device__ __forceinline__ float element(float4 x, int i)  // i known when compiled
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
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
    extern __shared__ float4 shared[];                 // float4: aligned for vector loads
    float* q_tile = reinterpret_cast<float*>(shared);  // (BR, STRIDE)
    float* k_tile = q_tile + BR * STRIDE;              // (BC, STRIDE)
    float* v_tile = k_tile + BC * STRIDE;              // (BC, STRIDE)
    float* sums = v_tile + BC * STRIDE;                // (CLUSTER, OWN, P_STRIDE), of rows it owns
    float* p_tile = sums + CLUSTER * OWN * P_STRIDE;   // (BR, P_STRIDE), weights
    float* rescale = p_tile + BR * P_STRIDE;           // (BR,), of what was summed before this tile
    float* row_l = rescale + BR;                       // (BR,), sum of exp(score - m) so far
    float* own_m = row_l + BR;                         // (OWN,), maximum of the scores so far
    float* own_l = own_m + OWN;                        // (OWN,), row_l of the rows it owns
    float* parts = k_tile;                             // (WARPS, BR, P_STRIDE), after K is used

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    // Lanes t and t^1 read the same of K and V, lanes t and t^2 the same of Q and P: then a warp's
    // 16-byte loads pass over the banks twice, not four times.
    const int tx = lane / 2 % 8;              // along the keys, and along the columns of the output
    const int ty = lane / 16 * 2 + lane % 2;  // along the rows

    cluster_started();
    for (int own = threadIdx.x; own < OWN; own += THREADS) {
        own_m[own] = MINUS_INFINITY;
        own_l[own] = 0.0f;
    }

    const int rank = blockIdx.x % CLUSTER;
    const int bh = blockIdx.x / CLUSTER;
    const int row0 = blockIdx.y * BR;
    const int kv_head = heads == kv_heads ? bh : bh / (heads / kv_heads);
    const int dim0 = rank * SLICE;          // this block's slice of the head dim
    const int dims = min(SLICE, d - dim0);  // may be <= 0: then it only adds zeros
    // long long: the offset of a row, or of a head's bias, can pass 2^31.
    if (bias) bias += bh / heads * bias_batch + bh % heads * bias_head;  // (n, m), of this head
    q += ((long long)bh * n + row0) * d + dim0;   // (n - row0, dims), rows d apart
    k += (long long)kv_head * m * d + dim0;       // (m, dims), rows d apart
    v += (long long)kv_head * m * d + dim0;       // (m, dims), rows d apart
    out += ((long long)bh * n + row0) * d + dim0;  // (n - row0, dims), rows d apart
    const bool vector = d % 4 == 0 && ((size_t)q | (size_t)k | (size_t)v) % 16 == 0;
    const int last_key = causal ? min(m, row0 + BR + m - n) : m;  // no row of the block sees more

    start_copy(q_tile, q, BR, n - row0, dims, d, vector);
    start_copy(k_tile, k, BC, last_key, dims, d, vector);
    start_copy(v_tile, v, BC, last_key, dims, d, vector);
    cluster_wait();  // barrier: the other blocks' shared memory may not exist yet

    // This thread's rows are ty + 4*i, its keys of a tile tx + 8*j, and its columns of the output
    // the 4 from 32*c + 4*tx on in those of its warp.
    const float* q_mine = q_tile + ty * STRIDE + warp * WARP_COLS;  // row i at 4*i*STRIDE
    const float* k_mine = k_tile + tx * STRIDE + warp * WARP_COLS;  // key j at 8*j*STRIDE
    const float* v_mine = v_tile + warp * WARP_COLS + 4 * tx;       // key j at j*STRIDE
    float o[ROWS][COLS][4] = {};  // the output so far, not yet divided by row_l

    // A tile has two cluster barriers: sums are sent before the first and read before the second,
    // weights sent between the two and read before the next tile's first. So nothing is sent that
    // could reach a block still reading what it replaces; and since nothing is sent after the last
    // one, a block that leaves is no longer stored into. last_key is the same in all its blocks.
    for (int key0 = 0; key0 < last_key; key0 += BC) {
        copies_arrived<1>();  // Q and K are here, V may still be on its way
        __syncthreads();  // barrier: a fast warp would read what other threads' copies still write

        float s[ROWS][KEYS] = {};  // scores over this warp's columns
#pragma unroll 4
        for (int c = 0; c < WARP_COLS; c += 4) {
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

        // Scores of the whole head dim: the sum over the block's warps, then over the cluster.
        __syncthreads();  // barrier: the parts would overwrite the K that others still read
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
#pragma unroll
            for (int j = 0; j < KEYS; ++j) {
                parts[(warp * BR + ty + 4 * i) * P_STRIDE + tx + 8 * j] = s[i][j];
            }
        }
        __syncthreads();  // barrier: a fast warp would add up parts that are not stored yet
        for (int e = threadIdx.x; e < BR * BC / 4; e += THREADS) {
            const int r = e / (BC / 4);
            const int col = e % (BC / 4) * 4;
            float4 sum = load4(parts + r * P_STRIDE + col);
#pragma unroll
            for (int w = 1; w < WARPS; ++w) {
                const float4 part = load4(parts + (w * BR + r) * P_STRIDE + col);
                sum.x += part.x;
                sum.y += part.y;
                sum.z += part.z;
                sum.w += part.w;
            }
            send4(address_in(sums + (rank * OWN + r % OWN) * P_STRIDE + col, r / OWN), sum);
        }
        cluster_arrive();
        cluster_wait();  // barrier: a fast block would read sums that have not come yet

        const int next = key0 + BC;
        start_copy(k_tile, k + (long long)next * d, BC, last_key - next, dims, d, vector);

        for (int own = warp; own < OWN; own += WARPS) {
            const int r = rank * OWN + own;
            const int row = row0 + r;
            if (r >= BR) break;
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
                    for (int from = 0; from < CLUSTER; ++from) {
                        sum += sums[(from * OWN + own) * P_STRIDE + col];
                    }
                    x[j] = sum * scale;
                    if (bias && row < n) x[j] += bias[(long long)row * m + key];
                }
                top = fmaxf(top, x[j]);
            }
            const float old_m = own_m[own];
            const float new_m = fmaxf(old_m, warp_max(top));
            // Before the first key new_m is -inf; shifting by it would give inf - inf = NaN.
            const float shift = new_m == MINUS_INFINITY ? 0.0f : new_m * LOG2E;
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < LANE_KEYS; ++j) {
                const float p = exp2f(x[j] * LOG2E - shift);  // at most 1: cannot overflow
                sum += p;
                if (lane + 32 * j < BC) {
#pragma unroll
                    for (int to = 0; to < CLUSTER; ++to) {
                        send(address_in(p_tile + r * P_STRIDE + lane + 32 * j, to), p);
                    }
                }
            }
            const float factor = exp2f(old_m * LOG2E - shift);
            const float new_l = own_l[own] * factor + warp_sum(sum);
            __syncwarp();  // barrier: a fast lane would replace m and l before others read them
            if (lane < CLUSTER) {
                send(address_in(rescale + r, lane), factor);
                send(address_in(row_l + r, lane), new_l);
            }
            if (lane == 0) {
                own_m[own] = new_m;
                own_l[own] = new_l;
            }
        }
        copies_arrived<1>();  // V is here, the next K may still be on its way
        cluster_arrive();
        cluster_wait();  // barrier: a fast block would read weights and factors not sent yet

#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const float factor = rescale[ty + 4 * i];
#pragma unroll
            for (int c = 0; c < COLS; ++c) {
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    o[i][c][x] *= factor;
                }
            }
        }
#pragma unroll 2
        for (int j = 0; j < BC; j += 4) {
            float4 p4[ROWS];  // weights of keys j to j + 3
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                p4[i] = load4(p_tile + (ty + 4 * i) * P_STRIDE + j);
            }
#pragma unroll
            for (int y = 0; y < 4; ++y) {
#pragma unroll
                for (int c = 0; c < COLS; ++c) {
                    const float4 v4 = load4(v_mine + (j + y) * STRIDE + 32 * c);
                    // Down the rows and up again: neighbours share v4's element, or at the turn the
                    // weight, and so ask the register file for one value less.
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) o[i][c][0] += element(p4[i], y) * v4.x;
#pragma unroll
                    for (int i = ROWS - 1; i >= 0; --i) o[i][c][1] += element(p4[i], y) * v4.y;
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) o[i][c][2] += element(p4[i], y) * v4.z;
#pragma unroll
                    for (int i = ROWS - 1; i >= 0; --i) o[i][c][3] += element(p4[i], y) * v4.w;
                }
            }
        }
        __syncthreads();  // barrier: the next V tile would overwrite the one that others still read
        start_copy(v_tile, v + (long long)next * d, BC, last_key - next, dims, d, vector);
    }
    copies_arrived<0>();  // where there is no key to see, Q is still on its way

#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        const int r = ty + 4 * i;
        if (row0 + r >= n) break;
        // Every key masked: zeros; without a tile of keys, nobody sent row_l.
        const float inverse = last_key > 0 && row_l[r] > 0.0f ? 1.0f / row_l[r] : 0.0f;
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            const int col = warp * WARP_COLS + 32 * c + 4 * tx;
            float* to = out + (long long)r * d + col;
            if (d % 4 == 0 && (size_t)out % 16 == 0) {
                if (col < dims) {
                    *reinterpret_cast<float4*>(to) =
                        make_float4(o[i][c][0] * inverse, o[i][c][1] * inverse,
                                    o[i][c][2] * inverse, o[i][c][3] * inverse);
                }
            } else {
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    if (col + x < dims) to[x] = o[i][c][x] * inverse;
                }
            }
        }
    }
    if (lse) {
        for (int own = threadIdx.x; own < OWN; own += THREADS) {
            const int r = rank * OWN + own;
            const int row = row0 + r;
            if (r < BR && row < n) lse[(long long)bh * n + row] = own_m[own] + logf(own_l[own]);
        }
    }
}
