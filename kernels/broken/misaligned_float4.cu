// Idea:          Register-blocked scores; rows are called aligned when the matrix is.
// Changes from:  03_scores_register_blocked.cu
// Shapes:        q (BH, n, d), k (BH, m, d), s (BH, n, m); row-major float32
// Launch:        scores_register_blocked: grid (ceil(m/(4*TILE)), ceil(n/(4*TILE)), BH),
//                block (TILE, TILE), static shared 2*TILE*(4*TILE + PAD)*4 bytes
// Needs:         sm_50; TILE 4, 8, 16 or 32; PAD a multiple of 4: shared rows stay aligned
// Expect:        the bits of 01; a quarter of 02's shared floats an fma, read four at a time;
//                float4 global loads where d % 4 == 0 and q and k are 16-byte aligned,
//                single floats elsewhere
// Limits:        BH <= 65535 and n <= 65535*4*TILE a launch; few blocks when n and m are small

// Clean:    03_scores_register_blocked.cu
// Defect:   misaligned
// Symptom:  a misaligned address as soon as d is no multiple of 4
// Story:    a matrix may start at a multiple of 16 bytes while its second row does not
// Case:     BH=2, n=18, m=19, d=37

#ifndef TILE
#define TILE 16  // threads a side of the block, and how far along d one step goes
#endif
#ifndef PAD
#define PAD 4  // unused floats after each row of a tile: the transposed stores spread over banks
#endif

// Four floats of a row from column i on; zeros past its end. width: how long the row is.
__device__ float4 load4(const float* row, int i, int width, bool aligned)
{
    if (aligned && i < width) return *reinterpret_cast<const float4*>(row + i);
    return make_float4(i < width ? row[i] : 0.0f, i + 1 < width ? row[i + 1] : 0.0f,
                       i + 2 < width ? row[i + 2] : 0.0f, i + 3 < width ? row[i + 3] : 0.0f);
}

__device__ void store4(float* row, int i, int width, bool aligned, float4 value)
{
    if (aligned && i < width) {
        *reinterpret_cast<float4*>(row + i) = value;  // <- found here
        return;
    }
    if (i < width) row[i] = value.x;
    if (i + 1 < width) row[i + 1] = value.y;
    if (i + 2 < width) row[i + 2] = value.z;
    if (i + 3 < width) row[i + 3] = value.w;
}

__device__ float4 fma4(float a, float4 b, float4 c)
{
    return make_float4(fmaf(a, b.x, c.x), fmaf(a, b.y, c.y), fmaf(a, b.z, c.z), fmaf(a, b.w, c.w));
}

__device__ bool rows_aligned(const float* x, int width)  // may every row be read as float4?
{
    return reinterpret_cast<size_t>(x) % sizeof(float4) == 0;  // <- defect
}

extern "C" __global__ void __launch_bounds__(TILE * TILE) scores_register_blocked(
    const float* q,  // (BH, n, d)
    const float* k,  // (BH, m, d)
    float* s,        // (BH, n, m)
    int n, int m, int d)
{
    __shared__ __align__(16) float tile_query[TILE][4 * TILE + PAD];  // (i, query)
    __shared__ __align__(16) float tile_key[TILE][4 * TILE + PAD];    // (i, key)

    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int bh = blockIdx.z;
    const int row = (blockIdx.y * TILE + ty) * 4;  // first of this thread's 4 queries
    const int col = (blockIdx.x * TILE + tx) * 4;  // first of this thread's 4 keys

    // A tile is 4*TILE rows of TILE/4 float4: one float4 a thread, neighbours along a row.
    const int thread = ty * TILE + tx;
    const int load_row = thread / (TILE / 4);
    const int load_i = thread % (TILE / 4) * 4;
    const int query = blockIdx.y * 4 * TILE + load_row;
    const int key = blockIdx.x * 4 * TILE + load_row;
    const float* q_row = q + ((size_t)bh * n + query) * d;  // (d,)
    const float* k_row = k + ((size_t)bh * m + key) * d;    // (d,)
    const int q_width = query < n ? d : 0;  // a row outside is empty: it loads zeros
    const int k_width = key < m ? d : 0;
    const bool q_aligned = rows_aligned(q, d);
    const bool k_aligned = rows_aligned(k, d);

    float4 score[4] = {};  // (query, key) of this thread, in registers
    for (int start = 0; start < d; start += TILE) {
        const float4 from_q = load4(q_row, start + load_i, q_width, q_aligned);
        const float4 from_k = load4(k_row, start + load_i, k_width, k_aligned);
        tile_query[load_i + 0][load_row] = from_q.x;  // transposed: i becomes the row
        tile_query[load_i + 1][load_row] = from_q.y;
        tile_query[load_i + 2][load_row] = from_q.z;
        tile_query[load_i + 3][load_row] = from_q.w;
        tile_key[load_i + 0][load_row] = from_k.x;
        tile_key[load_i + 1][load_row] = from_k.y;
        tile_key[load_i + 2][load_row] = from_k.z;
        tile_key[load_i + 3][load_row] = from_k.w;
        __syncthreads();  // barrier: a fast warp would read elements that are not stored yet

        for (int i = 0; i < TILE; ++i) {
            const float4 queries = *reinterpret_cast<const float4*>(&tile_query[i][4 * ty]);
            const float4 keys = *reinterpret_cast<const float4*>(&tile_key[i][4 * tx]);
            score[0] = fma4(queries.x, keys, score[0]);
            score[1] = fma4(queries.y, keys, score[1]);
            score[2] = fma4(queries.z, keys, score[2]);
            score[3] = fma4(queries.w, keys, score[3]);
        }
        __syncthreads();  // barrier: a fast warp would overwrite tiles that others still read
    }
#pragma unroll  // score[] is indexed by constants only, or it would move to local memory
    for (int r = 0; r < 4; ++r) {
        float* s_row = s + ((size_t)bh * n + row + r) * m;  // (m,)
        if (row + r < n) store4(s_row, col, m, rows_aligned(s, m), score[r]);
    }
}
