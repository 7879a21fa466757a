// Idea:          An output row in an array of COLUMNS floats, whatever d is.
// Changes from:  clean/output_register_array.cu
// Shapes:        p (BH, n, m), v (BH, m, d), out (BH, n, d); row-major float32
// Launch:        output_register_array: grid (ceil(n/THREADS), BH), block (THREADS)
// Needs:         sm_50; THREADS <= 1024
// Expect:        v is read by all threads of a warp at once, one sector for 32 lanes
// Limits:        BH <= 65535; COLUMNS floats a thread; a row is walked in such pieces

// Clean:    clean/output_register_array.cu
// Defect:   out-of-bounds
// Symptom:  right up to d = 128; above, wrong outputs without any error
// Story:    an array sized for the head dimension of the first tests
// Case:     BH=2, n=5, m=3, d=131

#ifndef THREADS
#define THREADS 32  // rows a block
#endif
#ifndef COLUMNS
#define COLUMNS 128  // elements of the array
#endif

extern "C" __global__ void __launch_bounds__(THREADS) output_register_array(
    const float* p,  // (BH, n, m)
    const float* v,  // (BH, m, d)
    float* out,      // (BH, n, d)
    int n, int m, int d)
{
    const int row = blockIdx.x * THREADS + threadIdx.x;  // query
    const int bh = blockIdx.y;
    if (row >= n) return;

    const float* p_row = p + ((size_t)bh * n + row) * m;  // (m,)
    const float* v_head = v + (size_t)bh * m * d;         // (m, d)
    float* out_row = out + ((size_t)bh * n + row) * d;    // (d,)

    float sum[COLUMNS];
    {
        const int start = 0, count = d;  // <- defect
        for (int c = 0; c < count; ++c) {
            sum[c] = 0.0f;  // <- found here
        }
        for (int j = 0; j < m; ++j) {
            for (int c = 0; c < count; ++c) {
                sum[c] = fmaf(p_row[j], v_head[(size_t)j * d + start + c], sum[c]);
            }
        }
        for (int c = 0; c < count; ++c) {
            out_row[start + c] = sum[c];
        }
    }
}
