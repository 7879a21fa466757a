// Idea:          The product P V in shared-memory tiles; both operands are read along their rows.
// Changes from:  02_scores_tiled.cu
// Shapes:        p (BH, n, m), v (BH, m, d), out (BH, n, d); row-major float32
// Launch:        output_tiled: grid (ceil(d/TILE), ceil(n/TILE), BH), block (TILE, TILE),
//                static shared 2*TILE*TILE*4 bytes
// Needs:         sm_50; 2 <= TILE <= 32
// Expect:        TILE times fewer elements requested from global memory than one thread an element
//                would; V needs no transpose, so its tile needs no padding
// Limits:        BH <= 65535 and n <= 65535*TILE a launch; the loop over m is not split, so short
//                outputs leave most of a large GPU idle

#ifndef TILE
#define TILE 32  // threads a side of the block, and how far along m one step goes
#endif

extern "C" __global__ void __launch_bounds__(TILE * TILE) output_tiled(
    const float* p,  // (BH, n, m)
    const float* v,  // (BH, m, d)
    float* out,      // (BH, n, d)
    int n, int m, int d)
{
    __shared__ float tile_weight[TILE][TILE];  // (query, j)
    __shared__ float tile_value[TILE][TILE];   // (j, column)

    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int bh = blockIdx.z;
    const int row = blockIdx.y * TILE + ty;  // query
    const int col = blockIdx.x * TILE + tx;  // column of V
    // No early return: a thread outside still loads for the others and must meet every barrier.

    // size_t: BH*n*m and BH*m*d can pass 2^31, where int would wrap around.
    const float* p_row = p + ((size_t)bh * n + row) * m;  // (m,)
    const float* v_head = v + (size_t)bh * m * d;         // (m, d)

    float sum = 0.0f;
    for (int start = 0; start < m; start += TILE) {
        // Zeros past the edges: they add nothing to an output.
        tile_weight[ty][tx] = (row < n && start + tx < m) ? p_row[start + tx] : 0.0f;
        tile_value[ty][tx] =
            (col < d && start + ty < m) ? v_head[(size_t)(start + ty) * d + col] : 0.0f;
        __syncthreads();  // barrier: a fast warp would read elements that are not stored yet

        for (int i = 0; i < TILE; ++i) {
            sum = fmaf(tile_weight[ty][i], tile_value[i][tx], sum);  // j ascending, as in 04
        }
        __syncthreads();  // barrier: a fast warp would overwrite tiles that others still read
    }
    if (row < n && col < d) out[((size_t)bh * n + row) * d + col] = sum;
}
