// Idea:          A tile of query rows stays on chip while K and V stream past it; the softmax is
//                kept as a running maximum m and sum l, so the n x m scores never reach memory.
// Changes from:  09_rows_online.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major
//                float32; bias null or (.., n, m) at batch*bias_batch + head*bias_head;
//                lse null or (batch*heads, n)
// Launch:        flash_fp32: grid (batch*heads, ceil(n/BR)), block (32*ROW_WARPS*KEY_WARPS),
//                dynamic shared ((BR + 2*TILE)*STRIDE + BR*KEY_WARPS*P_STRIDE)*4 bytes
// Needs:         sm_50; d <= D; D a multiple of 32; ROWS x KEYS scores a thread; at most 32 warps,
//                ROW_WARPS along the rows and KEY_WARPS along the keys; where KEY_WARPS > 1,
//                ROW_WARPS*ROWS <= 4*KEYS; MIN_BLOCKS blocks an SM; heads a multiple of kv_heads
// Expect:        K and V are read once for BR queries where 09 read them for each; reads q, k and v
//                and writes out, nothing of size n x m; FFMA bound at n = 2048
// Limits:        K and V are loaded, waited for, then used: nothing overlaps (see 12);
//                ceil(n/BR) <= 65535

#ifndef D
#define D 64  // floats of the head dim that a tile holds; those past d are zeros
#endif
#ifndef ROWS
#define ROWS 8  // query rows a thread
#endif
#ifndef KEYS
#define KEYS 8  // keys a thread and tile
#endif
#ifndef ROW_WARPS
#define ROW_WARPS 4  // warps along the rows
#endif
#ifndef KEY_WARPS
#define KEY_WARPS 1  // warps along the keys: they share rows and join what they found at the end
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1  // blocks an SM that the compiler leaves registers for
#endif
#define MINUS_INFINITY __int_as_float(0xff800000)  // NVRTC has no <math.h> to name it

constexpr int THREADS = 32 * ROW_WARPS * KEY_WARPS;
constexpr int WARP_ROWS = 4 * ROWS;        // query rows a warp: 4 of its lanes along the rows
constexpr int BR = WARP_ROWS * ROW_WARPS;  // query rows a block
constexpr int BC = 8 * KEYS;               // keys a warp: 8 of its lanes along the keys
constexpr int TILE = BC * KEY_WARPS;       // keys a block loads at once
constexpr int COLS = D / 32;               // float4 columns of the output a thread
constexpr int STRIDE = D + 4;              // pad: 8 rows at one column are 8 groups of 4 banks
constexpr int P_STRIDE = BC + 8;           // pad: 4 rows x 8 keys are 32 banks (where KEYS is even)
constexpr float LOG2E = 1.4426950408889634f;  // exp(x) = exp2(x * LOG2E): the GPU has exp2 only

static_assert(D % 32 == 0, "8 lanes take a float4 of an output row each: 32 columns at once");
static_assert(THREADS <= 1024, "a block has at most 32 warps");
static_assert(THREADS >= D / 4, "a row of a tile is loaded at once");
static_assert(KEY_WARPS == 1 || BR * KEY_WARPS <= 2 * TILE, "parts are joined where K and V lay");

// Copies rows [0, rows) of a (.., d) matrix into a tile of `count` rows; the rest becomes zero.
__device__ __forceinline__ void load_tile(float* tile,       // (count, STRIDE), shared
                                          const float* src,  // (rows, d)
                                          int count, int rows, int d, bool vector)
{
    constexpr int LANES = D / 4;           // threads a row
    constexpr int STEP = THREADS / LANES;  // rows the block loads at once
    const int col = threadIdx.x % LANES * 4;
    int row = threadIdx.x / LANES;
    if (row == STEP) return;  // where THREADS is no multiple of LANES, the last threads are left
    src += (long long)row * d + col;
    for (; row < count; row += STEP, src += STEP * d) {
        float4 x = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row < rows) {
            if (vector) {
                if (col < d) x = *reinterpret_cast<const float4*>(src);
            } else {
                if (col < d) x.x = src[0];
                if (col + 1 < d) x.y = src[1];
                if (col + 2 < d) x.z = src[2];
                if (col + 3 < d) x.w = src[3];
            }
        }
        *reinterpret_cast<float4*>(tile + row * STRIDE + col) = x;
    }
}

__device__ __forceinline__ float row_max(float value)  // over the 8 lanes that share a query row
{
    for (int offset = 8; offset > 1; offset /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, offset));
    }
    return value;
}

__device__ __forceinline__ float row_sum(float value)  // over the 8 lanes that share a query row
{
    for (int offset = 8; offset > 1; offset /= 2) {
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

// Stores what a warp found of its rows for join_parts(): o, then m and l in the pad.
__device__ __forceinline__ void store_part(float* part,  // (WARP_ROWS, STRIDE), shared
                                           const float (&o)[ROWS][COLS][4],
                                           const float (&row_m)[ROWS], const float (&row_l)[ROWS],
                                           int tx, int ty)
{
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        float* row = part + (4 * i + ty) * STRIDE;
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            *reinterpret_cast<float4*>(row + 32 * c + 4 * tx) =
                make_float4(o[i][c][0], o[i][c][1], o[i][c][2], o[i][c][3]);
        }
        if (tx == 0) *reinterpret_cast<float2*>(row + D) = make_float2(row_m[i], row_l[i]);
    }
}

// Adds up 4 columns of a row's parts, each rescaled to the largest maximum, as the main loop adds
// up tiles; top and total become the row's m and l.
__device__ __forceinline__ float4 join_parts(const float* first,  // (KEY_WARPS, WARP_ROWS, STRIDE),
                                             int col, float& top, float& total)  // from this row on
{
    top = MINUS_INFINITY;
    total = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < KEY_WARPS; ++w) {
        top = fmaxf(top, first[w * WARP_ROWS * STRIDE + D]);
    }
    const float shift = top == MINUS_INFINITY ? 0.0f : top;
#pragma unroll
    for (int w = 0; w < KEY_WARPS; ++w) {
        const float* part = first + w * WARP_ROWS * STRIDE;
        const float rescale = exp2f((part[D] - shift) * LOG2E);
        const float4 o4 = load4(part + col);
        total += rescale * part[D + 1];
        sum.x += rescale * o4.x;
        sum.y += rescale * o4.y;
        sum.z += rescale * o4.z;
        sum.w += rescale * o4.w;
    }
    return sum;
}

// Writes 4 columns of row `at`, divided by the row's sum, and one thread the row's lse.
__device__ __forceinline__ void write4(float* out,  // (batch*heads*n, d)
                                       float* lse,  // (batch*heads*n) or null
                                       long long at, int col, float4 o, float row_m, float row_l,
                                       int d)
{
    const float inverse = row_l > 0.0f ? 1.0f / row_l : 0.0f;  // every key masked: zeros
    float* to = out + at * d + col;
    if (d % 4 == 0 && (size_t)out % 16 == 0) {
        if (col < d) {
            *reinterpret_cast<float4*>(to) =
                make_float4(o.x * inverse, o.y * inverse, o.z * inverse, o.w * inverse);
        }
    } else {
        if (col < d) to[0] = o.x * inverse;
        if (col + 1 < d) to[1] = o.y * inverse;
        if (col + 2 < d) to[2] = o.z * inverse;
        if (col + 3 < d) to[3] = o.w * inverse;
    }
    if (lse && col == 0) lse[at] = row_m + logf(row_l);
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) flash_fp32(
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
    float* k_tile = q_tile + BR * STRIDE;              // (TILE, STRIDE)
    float* v_tile = k_tile + TILE * STRIDE;            // (TILE, STRIDE)
    float* p_tiles = v_tile + TILE * STRIDE;           // (warps, WARP_ROWS, P_STRIDE)

    const int warp = threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    // Lanes t and t^1 read the same of K and V, lanes t and t^2 the same of Q and P: then a warp's
    // 16-byte loads pass over the banks twice, not four times.
    const int tx = lane / 2 % 8;              // along the keys, and along the columns of the output
    const int ty = lane / 16 * 2 + lane % 2;  // along the rows
    const int row_warp = warp / KEY_WARPS;
    const int key_warp = warp % KEY_WARPS;

    const int bh = blockIdx.x;
    // Last rows first: under causal they work longest, and the short ones fill the end.
    const int row0 = (gridDim.y - 1 - blockIdx.y) * BR;
    const int kv_head = heads == kv_heads ? bh : bh / (heads / kv_heads);
    // long long: the offset of a row, or of a head's bias, can pass 2^31.
    if (bias) bias += bh / heads * bias_batch + bh % heads * bias_head;  // (n, m), of this head
    q += ((long long)bh * n + row0) * d;  // (n - row0, d), from this block's first row on
    k += (long long)kv_head * m * d;      // (m, d)
    v += (long long)kv_head * m * d;      // (m, d)
    const bool vector = d % 4 == 0 && ((size_t)q | (size_t)k | (size_t)v) % 16 == 0;

    load_tile(q_tile, q, BR, n - row0, d, vector);

    // This thread's rows are first_row + 4*i, its keys of a tile key + 8*j, and its columns of the
    // output the 4 from 32*c + 4*tx on.
    const float* q_mine = q_tile + (row_warp * WARP_ROWS + ty) * STRIDE;  // row i at 4*i*STRIDE
    const float* k_mine = k_tile + (key_warp * BC + tx) * STRIDE;         // key j at 8*j*STRIDE
    const float* v_mine = v_tile + key_warp * BC * STRIDE + 4 * tx;  // key j at j*STRIDE
    float* p_tile = p_tiles + warp * WARP_ROWS * P_STRIDE;  // (WARP_ROWS, P_STRIDE), this warp's
    const int first_row = row0 + row_warp * WARP_ROWS + ty;
    const int last_key = causal ? min(m, row0 + BR + m - n) : m;  // no row of the block sees more

    float o[ROWS][COLS][4] = {};  // the output so far, not yet divided by row_l
    float row_m[ROWS];            // maximum of the scores so far
    float row_l[ROWS];            // sum of exp(score - row_m) so far, over this lane's keys
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        row_m[i] = MINUS_INFINITY;
        row_l[i] = 0.0f;
    }

    for (int key0 = 0; key0 < last_key; key0 += TILE) {
        __syncthreads();  // barrier: a fast warp would overwrite tiles that others still read
        load_tile(k_tile, k + (long long)key0 * d, TILE, last_key - key0, d, vector);
        load_tile(v_tile, v + (long long)key0 * d, TILE, last_key - key0, d, vector);
        __syncthreads();  // barrier: a fast warp would read elements that are not stored yet

        float s[ROWS][KEYS] = {};  // scores of this thread's rows and keys
#pragma unroll 4
        for (int c = 0; c < D; c += 4) {
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

        const int key = key0 + key_warp * BC + tx;
        const bool edge = key0 + TILE > m || (causal && key0 + TILE > row0 + m - n);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const int row = first_row + 4 * i;
#pragma unroll
            for (int j = 0; j < KEYS; ++j) {
                s[i][j] *= scale;
            }
            if (bias && row < n) {
                const float* bias_row = bias + (long long)row * m;  // (m,)
#pragma unroll
                for (int j = 0; j < KEYS; ++j) {
                    if (key + 8 * j < m) s[i][j] += bias_row[key + 8 * j];
                }
            }
            if (edge) {
                const int keys = causal ? min(m, row + 1 + m - n) : m;  // those this row may see
#pragma unroll
                for (int j = 0; j < KEYS; ++j) {
                    if (key + 8 * j >= keys) s[i][j] = MINUS_INFINITY;
                }
            }

            float top = s[i][0];
#pragma unroll
            for (int j = 1; j < KEYS; ++j) {
                top = fmaxf(top, s[i][j]);
            }
            const float new_m = fmaxf(row_m[i], row_max(top));
            // Before the first key new_m is -inf; shifting by it would give inf - inf = NaN.
            const float shift = new_m == MINUS_INFINITY ? 0.0f : new_m * LOG2E;
            const float rescale = exp2f(row_m[i] * LOG2E - shift);  // of what was summed before
            float sum = 0.0f;
#pragma unroll
            for (int j = 0; j < KEYS; ++j) {
                const float p = exp2f(s[i][j] * LOG2E - shift);  // at most 1
                sum += p;
                p_tile[(4 * i + ty) * P_STRIDE + tx + 8 * j] = p;
            }
            row_l[i] = row_l[i] * rescale + sum;
            row_m[i] = new_m;
#pragma unroll
            for (int c = 0; c < COLS; ++c) {
#pragma unroll
                for (int x = 0; x < 4; ++x) {
                    o[i][c][x] *= rescale;
                }
            }
        }
        __syncwarp();  // barrier: a fast lane would read weights that are not stored yet

#pragma unroll 2
        for (int j = 0; j < BC; j += 4) {
            float4 p4[ROWS];  // weights of keys j to j + 3
#pragma unroll
            for (int i = 0; i < ROWS; ++i) {
                p4[i] = load4(p_tile + (4 * i + ty) * P_STRIDE + j);
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
    }

#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        row_l[i] = row_sum(row_l[i]);
    }

    if constexpr (KEY_WARPS > 1) {
        __syncthreads();  // barrier: the parts would overwrite tiles that others still read
        float* parts = k_tile;  // (ROW_WARPS, KEY_WARPS, WARP_ROWS, STRIDE)
        store_part(parts + warp * WARP_ROWS * STRIDE, o, row_m, row_l, tx, ty);
        __syncthreads();  // barrier: a fast warp would join parts that are not stored yet

        for (int i = threadIdx.x; i < BR * (D / 4); i += THREADS) {
            const int r = i / (D / 4);
            const int col = i % (D / 4) * 4;
            const int first = r / WARP_ROWS * KEY_WARPS * WARP_ROWS + r % WARP_ROWS;
            float top, total;
            const float4 sum = join_parts(parts + first * STRIDE, col, top, total);
            if (row0 + r < n) {
                write4(out, lse, (long long)bh * n + row0 + r, col, sum, top, total, d);
            }
        }
    } else {
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            const int row = first_row + 4 * i;
            const long long at = (long long)bh * n + row;
#pragma unroll
            for (int c = 0; c < COLS; ++c) {
                const float4 o4 = make_float4(o[i][c][0], o[i][c][1], o[i][c][2], o[i][c][3]);
                if (row < n) write4(out, lse, at, 32 * c + 4 * tx, o4, row_m[i], row_l[i], d);
            }
        }
    }
}
