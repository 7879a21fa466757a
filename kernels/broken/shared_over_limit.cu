// Idea:          Two buffers of 64 whole rows in shared memory.
// Changes from:  clean/rows_buffered.cu
// Shapes:        p (BH, n, m), v (BH, m, d), out (BH, n, d); row-major float32
// Launch:        rows_buffered: grid (n, BH), block (THREADS), dynamic shared 2*KEYS*d*4 bytes
// Needs:         sm_50; THREADS <= 1024; 2*KEYS*d*4 bytes fit into shared memory
// Expect:        two buffers: rows are fetched into one while the other is used
// Limits:        BH <= 65535; d <= 48 KB / (8*KEYS) without opting in to more shared memory

// Clean:    clean/rows_buffered.cu
// Defect:   bad-launch
// Symptom:  the launch fails with an invalid argument from some head dimension on
// Story:    double buffers of 64 rows of 2048 floats are 1 MB; a block has at most 227 KB
// Case:     BH=1, n=2, m=70, d=512

#ifndef THREADS
#define THREADS 64  // threads a block
#endif
#ifndef KEYS
#define KEYS 64  // <- defect
#endif

__device__ void fetch(
    float* buffer,        // (KEYS, d), shared
    const float* v_head,  // (m, d)
    int start, int m, int d)
{
    for (int i = threadIdx.x; i < KEYS * d; i += THREADS) {
        buffer[i] = start + i / d < m ? v_head[(size_t)start * d + i] : 0.0f;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) rows_buffered(  // <- found here
    const float* p,  // (BH, n, m)
    const float* v,  // (BH, m, d)
    float* out,      // (BH, n, d)
    int n, int m, int d)
{
    extern __shared__ float buffers[];  // (2, KEYS, d)

    const int thread = threadIdx.x;
    const int row = blockIdx.x;  // query
    const int bh = blockIdx.y;
    const float* p_row = p + ((size_t)bh * n + row) * m;  // (m,)
    const float* v_head = v + (size_t)bh * m * d;         // (m, d)
    float* out_row = out + ((size_t)bh * n + row) * d;    // (d,)

    for (int c = thread; c < d; c += THREADS) {
        out_row[c] = 0.0f;
    }
    fetch(buffers, v_head, 0, m, d);
    for (int start = 0, turn = 0; start < m; start += KEYS, turn ^= 1) {
        const float* ready = buffers + turn * KEYS * d;
        __syncthreads();  // barrier: `ready` is complete, and nobody uses the other buffer any more
        fetch(buffers + (turn ^ 1) * KEYS * d, v_head, start + KEYS, m, d);
        for (int c = thread; c < d; c += THREADS) {
            float sum = out_row[c];
            for (int j = 0; j < KEYS && start + j < m; ++j) {
                sum = fmaf(p_row[start + j], ready[j * d + c], sum);
            }
            out_row[c] = sum;
        }
    }
}
