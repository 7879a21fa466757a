// Idea:          A tile of query rows stays on chip while K and V stream past it; the softmax is kept
//                as a running maximum m and sum l, so the n x m scores never reach memory.
// Changes from:  09_rows_online.cu
// Shapes:        q (batch*heads, n, d), k and v (batch*kv_heads, m, d), out like q; row-major float32;
//                bias null or (.., n, m) at batch*bias_batch + head*bias_head; lse null or (batch*heads, n)
// Launch:        flash_fp32: grid (ceil(n/BR) * batch*heads), block 32*ROW_WARPS*KEY_WARPS,
//                dynamic shared SMEM_FLOATS*4 bytes
// Needs:         sm_50; d <= D, D a multiple of 32 (the padded head dim); heads a multiple of kv_heads;
//                ROWS x KEYS scores a thread; ROW_WARPS warps along the rows, KEY_WARPS along the keys;
//                MIN_BLOCKS blocks an SM that the compiler leaves registers for
// Expect:        reads q, k, v and writes out, nothing of size n x m; FFMA bound at n = 2048
// Limits:        K and V are loaded, waited for, then used: nothing overlaps (see 12)

#ifndef D
#define D 64
#endif
#ifndef ROWS
#define ROWS 8
#endif
#ifndef KEYS
#define KEYS 8
#endif
#ifndef ROW_WARPS
#define ROW_WARPS 4
#endif
#ifndef KEY_WARPS
#define KEY_WARPS 1
#endif
#ifndef MIN_BLOCKS
#define MIN_BLOCKS 1
#endif

constexpr int BR = 4 * ROWS * ROW_WARPS;  // query rows a block: 4 lanes of a warp along the rows
constexpr int BC = 8 * KEYS;               // keys a warp: 8 lanes of a warp along the keys
constexpr int TILE = BC * KEY_WARPS;       // keys a block loads at once
constexpr int COLS = D / 32;               // float4 columns of the output a thread holds
constexpr int THREADS = 32 * ROW_WARPS * KEY_WARPS;
constexpr int STRIDE = D + 4;              // pad: 8 rows at one column fall into 8 different bank groups
constexpr int P_STRIDE = BC + 8;           // pad: 4 rows x 8 neighbouring keys fall into 32 banks
constexpr float LOG2E = 1.4426950408889634f;
#define NEG_INF __int_as_float(0xff800000)

// Copies rows [0, rows) of a (.., d) matrix into a tile of `count` padded rows; the rest becomes zero.
__device__ __forceinline__ void load_tile(float* tile,        // (count, STRIDE), shared
                                          const float* src,  // (rows, d)
                                          int count, int rows, int d, bool vector)
{
    for (int i = threadIdx.x; i < count * (D / 4); i += THREADS) {
        int row = i / (D / 4), col = i % (D / 4) * 4;
        float4 x = make_float4(0.f, 0.f, 0.f, 0.f);
        if (row < rows) {
            const float* from = src + (long long)row * d + col;
            if (vector) {
                if (col < d) x = *reinterpret_cast<const float4*>(from);
            } else {
                if (col < d) x.x = from[0];
                if (col + 1 < d) x.y = from[1];
                if (col + 2 < d) x.z = from[2];
                if (col + 3 < d) x.w = from[3];
            }
        }
        *reinterpret_cast<float4*>(tile + row * STRIDE + col) = x;
    }
}

// Maximum or sum over the 8 lanes that share a query row.
__device__ __forceinline__ float row_max(float x)
{
    for (int lane = 4; lane > 0; lane >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, lane));
    return x;
}
__device__ __forceinline__ float row_sum(float x)
{
    for (int lane = 4; lane > 0; lane >>= 1) x += __shfl_xor_sync(0xffffffffu, x, lane);
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) flash_fp32(
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
    float* q_tile = reinterpret_cast<float*>(shared);  // (BR, STRIDE)
    float* k_tile = q_tile + BR * STRIDE;               // (TILE, STRIDE)
    float* v_tile = k_tile + TILE * STRIDE;             // (TILE, STRIDE)
    float* p_all = v_tile + TILE * STRIDE;              // (warps, 4*ROWS, P_STRIDE)

    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int tx = lane % 8, ty = lane / 8;
    int row_warp = warp / KEY_WARPS, key_warp = warp % KEY_WARPS;
    float* p_tile = p_all + warp * (4 * ROWS) * P_STRIDE;

    int tiles = (n + BR - 1) / BR;
    int bh = blockIdx.x / tiles;
    int row0 = (tiles - 1 - blockIdx.x % tiles) * BR;  // last rows first: under causal they work longest
    int batch = bh / heads, head = bh % heads;
    long long kv = (long long)batch * kv_heads + head / (heads / kv_heads);
    q += ((long long)bh * n + row0) * d;
    k += kv * m * d;
    v += kv * m * d;
    bool vector = d % 4 == 0 && ((size_t)q | (size_t)k | (size_t)v) % 16 == 0;

    load_tile(q_tile, q, BR, n - row0, d, vector);

    float o[ROWS][COLS][4] = {};           // this thread's rows x columns of the output, not yet divided by l
    float row_m[ROWS], row_l[ROWS];
#pragma unroll
    for (int i = 0; i < ROWS; ++i) { row_m[i] = NEG_INF; row_l[i] = 0.f; }

    const float* q_mine = q_tile + (row_warp * 4 * ROWS + ty) * STRIDE;  // row i is at i*4*STRIDE
    const float* k_mine = k_tile + (key_warp * BC + tx) * STRIDE;         // key j is at j*8*STRIDE
    const float* v_mine = v_tile + key_warp * BC * STRIDE + tx * 4;
    int first_row = row0 + row_warp * 4 * ROWS + ty;
    int last_key = causal ? min(m, row0 + BR + m - n) : m;  // keys past it are masked for every row here

    for (int key0 = 0; key0 < last_key; key0 += TILE) {
        __syncthreads();  // barrier: the last tile is still being read by slower warps
        load_tile(k_tile, k + (long long)key0 * d, TILE, m - key0, d, vector);
        load_tile(v_tile, v + (long long)key0 * d, TILE, m - key0, d, vector);
        __syncthreads();  // barrier: the tiles must be whole before anyone reads them

        float s[ROWS][KEYS] = {};
#pragma unroll 4
        for (int c = 0; c < D; c += 4) {
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

        int key = key0 + key_warp * BC + tx;  // key j is at key + 8*j
        bool edge = key0 + TILE > m || (causal && key0 + TILE > row0 + m - n);
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            int row = first_row + 4 * i;
#pragma unroll
            for (int j = 0; j < KEYS; ++j) s[i][j] *= scale;
            if (bias && row < n) {
                const float* b = bias + batch * bias_batch + head * bias_head + (long long)row * m;
#pragma unroll
                for (int j = 0; j < KEYS; ++j)
                    if (key + 8 * j < m) s[i][j] += b[key + 8 * j];
            }
            if (edge) {
                int limit = causal ? min(m, row + 1 + m - n) : m;  // keys this row may see
#pragma unroll
                for (int j = 0; j < KEYS; ++j)
                    if (key + 8 * j >= limit) s[i][j] = NEG_INF;
            }
            float top = s[i][0];
#pragma unroll
            for (int j = 1; j < KEYS; ++j) top = fmaxf(top, s[i][j]);
            float new_m = fmaxf(row_m[i], row_max(top));
            float base = new_m == NEG_INF ? 0.f : new_m * LOG2E;  // a row with no key yet: exp2(-inf) = 0
            float rescale = exp2f(row_m[i] * LOG2E - base);        // what was summed under the old maximum
            float sum = 0.f;
#pragma unroll
            for (int j = 0; j < KEYS; ++j) {
                float p = exp2f(s[i][j] * LOG2E - base);
                sum += p;
                p_tile[(4 * i + ty) * P_STRIDE + tx + 8 * j] = p;
            }
            row_m[i] = new_m;
            row_l[i] = row_l[i] * rescale + sum;  // each lane sums its own keys; joined at the end
#pragma unroll
            for (int c = 0; c < COLS; ++c)
#pragma unroll
                for (int x = 0; x < 4; ++x) o[i][c][x] *= rescale;
        }
        __syncwarp();  // P is written and read by this warp alone

#pragma unroll 2
        for (int j = 0; j < BC; j += 4) {
            float4 p[ROWS];
#pragma unroll
            for (int i = 0; i < ROWS; ++i)
                p[i] = *reinterpret_cast<const float4*>(p_tile + (4 * i + ty) * P_STRIDE + j);
#pragma unroll
            for (int jj = 0; jj < 4; ++jj)
#pragma unroll
                for (int c = 0; c < COLS; ++c) {
                    float4 b = *reinterpret_cast<const float4*>(v_mine + (j + jj) * STRIDE + 32 * c);
#pragma unroll
                    for (int i = 0; i < ROWS; ++i) {
                        float w = jj == 0 ? p[i].x : jj == 1 ? p[i].y : jj == 2 ? p[i].z : p[i].w;
                        o[i][c][0] += w * b.x; o[i][c][1] += w * b.y;
                        o[i][c][2] += w * b.z; o[i][c][3] += w * b.w;
                    }
                }
        }
        __syncwarp();  // the next tile's P must not overwrite this one while it is read
    }

#pragma unroll
    for (int i = 0; i < ROWS; ++i) row_l[i] = row_sum(row_l[i]);

    if (KEY_WARPS > 1) {  // warps that saw different keys of the same rows join (m, l, o) in shared memory
        __syncthreads();  // barrier: the tiles are free to be overwritten
        float* part = k_tile + row_warp * KEY_WARPS * (4 * ROWS) * STRIDE;  // (KEY_WARPS, 4*ROWS, STRIDE)
        float* mine = part + key_warp * (4 * ROWS) * STRIDE;
#pragma unroll
        for (int i = 0; i < ROWS; ++i) {
            float* at = mine + (4 * i + ty) * STRIDE;
#pragma unroll
            for (int c = 0; c < COLS; ++c)
                *reinterpret_cast<float4*>(at + 32 * c + tx * 4) =
                    make_float4(o[i][c][0], o[i][c][1], o[i][c][2], o[i][c][3]);
            if (tx == 0) { at[D] = row_m[i]; at[D + 1] = row_l[i]; }
        }
        __syncthreads();  // barrier: every part must be there before it is joined
        for (int r = key_warp * 4 + ty; r < 4 * ROWS; r += 4 * KEY_WARPS) {
            float top = NEG_INF, total = 0.f;
#pragma unroll
            for (int w = 0; w < KEY_WARPS; ++w) top = fmaxf(top, part[(w * 4 * ROWS + r) * STRIDE + D]);
            float base = top == NEG_INF ? 0.f : top;
            float sum[COLS][4] = {};
#pragma unroll
            for (int w = 0; w < KEY_WARPS; ++w) {
                const float* at = part + (w * 4 * ROWS + r) * STRIDE;
                float weight = exp2f((at[D] - base) * LOG2E);
                total += weight * at[D + 1];
#pragma unroll
                for (int c = 0; c < COLS; ++c)
#pragma unroll
                    for (int x = 0; x < 4; ++x) sum[c][x] += weight * at[32 * c + tx * 4 + x];
            }
            int row = row0 + row_warp * 4 * ROWS + r;
            float inverse = total > 0.f ? 1.f / total : 0.f;  // a row with every key masked gives zeros
            if (row < n) {
                float* to = out + ((long long)bh * n + row) * d;
#pragma unroll
                for (int c = 0; c < COLS; ++c)
#pragma unroll
                    for (int x = 0; x < 4; ++x)
                        if (32 * c + tx * 4 + x < d) to[32 * c + tx * 4 + x] = sum[c][x] * inverse;
                if (lse && tx == 0) lse[(long long)bh * n + row] = top + logf(total);
            }
        }
        return;
    }

#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
        int row = first_row + 4 * i;
        if (row >= n) continue;
        float inverse = row_l[i] > 0.f ? 1.f / row_l[i] : 0.f;  // a row with every key masked gives zeros
        float* to = out + ((long long)bh * n + row) * d;
#pragma unroll
        for (int c = 0; c < COLS; ++c) {
            int col = 32 * c + tx * 4;
            if (vector && (size_t)out % 16 == 0) {
                if (col < d)
                    *reinterpret_cast<float4*>(to + col) = make_float4(
                        o[i][c][0] * inverse, o[i][c][1] * inverse, o[i][c][2] * inverse, o[i][c][3] * inverse);
            } else {
#pragma unroll
                for (int x = 0; x < 4; ++x) if (col + x < d) to[col + x] = o[i][c][x] * inverse;
            }
        }
        if (lse && tx == 0) lse[(long long)bh * n + row] = row_m[i] + logf(row_l[i]);
    }
}
