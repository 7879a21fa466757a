// Idea:          Blocks share an output row and add to it without atomics.
// Changes from:  clean/output_split.cu
// Shapes:        p (BH, n, m), v (BH, m, d), out (BH, n, d); row-major float32; out starts as 0
// Launch:        output_split: grid (ceil(m/KEYS), n, BH), block (THREADS)
// Needs:         sm_50; THREADS <= 1024
// Expect:        ceil(m/KEYS) times more blocks than rows, for GPUs that few rows leave idle
// Limits:        BH and n <= 65535; the order of the additions, and so the last bits, vary

// Clean:    clean/output_split.cu
// Defect:   race
// Symptom:  outputs too small, by another amount in each run
// Story:    two blocks read the same old value, and the sum of one is lost
// Case:     BH=2, n=3, m=37, d=20

#ifndef THREADS
#define THREADS 64  // threads a block
#endif
#ifndef KEYS
#define KEYS 16  // keys a block
#endif

extern "C" __global__ void __launch_bounds__(THREADS) output_split(
    const float* p,  // (BH, n, m)
    const float* v,  // (BH, m, d)
    float* out,      // (BH, n, d)
    int n, int m, int d)
{
    const int start = blockIdx.x * KEYS;  // first key
    const int row = blockIdx.y;           // query
    const int bh = blockIdx.z;
    const float* p_row = p + ((size_t)bh * n + row) * m;  // (m,)
    const float* v_head = v + (size_t)bh * m * d;         // (m, d)
    float* out_row = out + ((size_t)bh * n + row) * d;    // (d,)

    for (int c = threadIdx.x; c < d; c += THREADS) {
        float sum = 0.0f;
        for (int j = start; j < min(start + KEYS, m); ++j) {
            sum = fmaf(p_row[j], v_head[(size_t)j * d + c], sum);
        }
        out_row[c] += sum;  // <- defect
    }
}
