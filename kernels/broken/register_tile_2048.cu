// Idea:          THREADS * REG_TILE = 2048 elements of a row are computed, whatever d is.
// Changes from:  clean/output_register_tile.cu
// Shapes:        p (BH, n, m), v (BH, m, d), out (BH, n, d); row-major float32
// Launch:        output_register_tile: grid (n, BH), block (THREADS)
// Needs:         sm_50; THREADS <= 1024
// Expect:        a weight is read once for REG_TILE elements
// Limits:        BH <= 65535; a row is walked in pieces of THREADS * REG_TILE elements

// Clean:    clean/output_register_tile.cu
// Defect:   wrong-result
// Symptom:  right up to d = 2048; at 4096 and 8192 the rest of out is never written
// Story:    256 threads with 8 registers each, written for one head dimension and called for all
// Case:     BH=1, n=2, m=3, d=2051

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

    const int base = threadIdx.x;
    {  // <- defect
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
