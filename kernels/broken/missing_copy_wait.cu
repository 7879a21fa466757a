// Idea:          Rows of V are copied by cp.async; a barrier is all that comes before their use.
// Changes from:  clean/rows_copied.cu
// Shapes:        p (BH, n, m), v (BH, m, d), out (BH, n, d); row-major float32
// Launch:        rows_copied: grid (n, BH), block (THREADS), dynamic shared 2*KEYS*d*4 bytes
// Needs:         sm_80; THREADS <= 1024; 2*KEYS*d*4 bytes fit into shared memory
// Expect:        the copies of the next rows are under way while these are used
// Limits:        BH <= 65535; d <= 48 KB / (8*KEYS) without opting in to more shared memory

// Clean:    clean/rows_copied.cu
// Defect:   race
// Symptom:  sums of what lay in shared memory before, where a row's copy comes late
// Story:    a barrier makes the threads wait for each other; it waits for nobody's copies
// Case:     BH=2, n=5, m=11, d=20

#ifndef THREADS
#define THREADS 64  // threads a block
#endif
#ifndef KEYS
#define KEYS 4  // rows of V in one of the two buffers
#endif

// Starts copying KEYS rows; those past the last are filled with zeros: nothing is read for them.
__device__ void start_copy(
    float* buffer,        // (KEYS, d), shared
    const float* v_head,  // (m, d)
    int start, int m, int d)
{
    const unsigned to = (unsigned)__cvta_generic_to_shared(buffer);
    for (int i = threadIdx.x; i < KEYS * d; i += THREADS) {
        const bool inside = start + i / d < m;
        const float* from = inside ? v_head + (size_t)start * d + i : v_head;
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                     :: "r"(to + 4 * i), "l"(from), "r"(inside ? 4 : 0) : "memory");
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

extern "C" __global__ void __launch_bounds__(THREADS) rows_copied(
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
    start_copy(buffers, v_head, 0, m, d);
    for (int start = 0, turn = 0; start < m; start += KEYS, turn ^= 1) {
        const float* ready = buffers + turn * KEYS * d;
        __syncthreads();  // barrier: all copied for all, and nobody uses the other buffer any more
        if (start + KEYS < m) {
            start_copy(buffers + (turn ^ 1) * KEYS * d, v_head, start + KEYS, m, d);
        }
        for (int c = thread; c < d; c += THREADS) {
            float sum = out_row[c];
            for (int j = 0; j < KEYS && start + j < m; ++j) {
                sum = fmaf(p_row[start + j], ready[j * d + c], sum);  // <- found here
            }
            out_row[c] = sum;
        }
    }
}
