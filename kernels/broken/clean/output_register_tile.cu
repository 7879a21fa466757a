// Idea:          A thread keeps REG_TILE elements of an output row in registers.
// Changes from:  nothing
// Shapes:        p (BH, n, m), v (BH, m, d), out (BH, n, d); row-major float32
// Launch:        output_register_tile: grid (n, BH), block (THREADS)
// Needs:         sm_50; THREADS <= 1024
// Expect:        a weight is read once for REG_TILE elements
// Limits:        BH <= 65535; a row is walked in pieces of THREADS * REG_TILE elements

#ifndef THREADS
#define THREADS 256  // threads a block
#endif
#ifndef REG_TILE
#define REG_TILE 8  // output elements a thread
#endif

extern "C" __global__ void __launch_bounds__(THREADS) output_register_tile(
    const float* p,  // (BH, n, m)
    const float* v,  // (BH, m, d)
    float* out,      // (BH, n, d)
    int n, int m, int d)
{
    const int row = blockIdx.x;  // query
    const int bh = blockIdx.y;
    const float* p_row = p + ((size_t)bh * n + row) * m;  // (m,)
    const float* v_head = v + (size_t)bh * m * d;         // (m, d)
    float* out_row = out + ((size_t)bh * n + row) * d;    // (d,)

    for (int base = threadIdx.x; base < d; base += THREADS * REG_TILE) {
        float sum[REG_TILE] = {};
        for (int j = 0; j < m; ++j) {
#pragma unroll
            for (int r = 0; r < REG_TILE; ++r) {
                const int c = base + r * THREADS;
                if (c < d) sum[r] = fmaf(p_row[j], v_head[(size_t)j * d + c], sum[r]);
            }
        }
#pragma unroll
        for (int r = 0; r < REG_TILE; ++r) {
            const int c = base + r * THREADS;
            if (c < d) out_row[c] = sum[r];
        }
    }
}
