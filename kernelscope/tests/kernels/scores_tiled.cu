// The dot product of each row of q with each row of k: tiles of both go to shared memory, where the
// whole block reuses each element.
//
// Shapes: q (batch, n, d), k (batch, m, d), s (batch, n, m); row-major float32.
// Launch: grid (ceil(m/TILE), ceil(n/TILE), batch), block (TILE, TILE).
// K_TILE 0: strided read, 1: the same, stored [tx][ty], 2: coalesced read. With TILE=32 and PAD=0,
// K_TILE 1 puts the shared loads of a warp on one bank.

#ifndef TILE
#define TILE 32  // threads a side of the block, and how far along d one step goes
#endif
#ifndef K_TILE
#define K_TILE 2  // how the K tile is read and stored
#endif
#ifndef PAD
#define PAD 1  // unused floats after each row of the K tile: they move the next row one bank on
#endif

extern "C" __global__ void __launch_bounds__(TILE * TILE) scores_tiled(
    const float* q,  // (batch, n, d)
    const float* k,  // (batch, m, d)
    float* s,        // (batch, n, m)
    int n, int m, int d)
{
    __shared__ float tile_query[TILE][TILE];      // (query, i)
    __shared__ float tile_key[TILE][TILE + PAD];  // (i, key); K_TILE 1: (key, i)

    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int at = blockIdx.z;
    const int row = blockIdx.y * TILE + ty;  // query
    const int col = blockIdx.x * TILE + tx;  // key
    // No early return: a thread outside still loads for the others and must meet every barrier.

    // size_t: batch*n*d and batch*n*m can pass 2^31, where int would wrap around.
    const float* q_row = q + ((size_t)at * n + row) * d;  // (d,)

    // The element of the K tile that this thread loads: of row `key`, at `key_i` along d.
#if K_TILE == 2  // neighbouring tx read neighbouring floats
    const int key = blockIdx.x * TILE + ty;
    const int key_i = tx;
#else  // neighbouring tx read d floats apart
    const int key = col;
    const int key_i = ty;
#endif
    const float* k_row = k + ((size_t)at * m + key) * d;  // (d,)

    float score = 0.0f;
    for (int start = 0; start < d; start += TILE) {
        // Zeros past the edges: they add nothing to a score.
        tile_query[ty][tx] = (row < n && start + tx < d) ? q_row[start + tx] : 0.0f;
        const float element = (key < m && start + key_i < d) ? k_row[start + key_i] : 0.0f;
#if K_TILE == 0
        tile_key[ty][tx] = element;  // neighbouring tx store side by side
#else
        tile_key[tx][ty] = element;  // neighbouring tx store TILE + PAD floats apart
#endif
        __syncthreads();  // barrier: a fast warp would read elements that are not stored yet

        for (int i = 0; i < TILE; ++i) {
#if K_TILE == 1
            score = fmaf(tile_query[ty][i], tile_key[tx][i], score);
#else
            score = fmaf(tile_query[ty][i], tile_key[i][tx], score);
#endif
        }
        __syncthreads();  // barrier: a fast warp would overwrite tiles that others still read
    }
    if (row < n && col < m) s[((size_t)at * n + row) * m + col] = score;
}
