// Idea:          Rows of V are staged as in rows_copied, by the copy engine: one thread orders all
//                of them by one instruction, and an mbarrier counts their bytes.
// Changes from:  clean/rows_bulk.cu
// Shapes:        p (BH, n, m), v (BH, m, d), out (BH, n, d); row-major float32
// Launch:        rows_bulk: grid (n, BH), block (THREADS), dynamic shared 2*KEYS*d*4 bytes
// Needs:         sm_90; d a multiple of 4; 2*KEYS*d*4 bytes fit into shared memory
// Expect:        the copies of the next rows are under way while these are used
// Limits:        BH <= 65535; d <= 48 KB / (8*KEYS) without opting in to more shared memory

// Clean:    clean/rows_bulk.cu
// Defect:   race
// Symptom:  right on every run that was ever seen, and promised by nothing
// Story:    the copy engine is another proxy, and need not see what a thread has initialised
// Case:     BH=2, n=3, m=11, d=20

#ifndef THREADS
#define THREADS 64  // threads a block
#endif
#ifndef KEYS
#define KEYS 4  // rows of V in one of the two buffers
#endif

__device__ unsigned shared_address(const void* place)
{
    return (unsigned)__cvta_generic_to_shared(place);
}

__device__ void start_barrier(unsigned long long* barrier)  // of one arrival
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;"
                 :: "r"(shared_address(barrier)) : "memory");
}

// Waits for the end of the phase of this parity: 0 for the first one, then 1, 0, ...
__device__ void wait_for(unsigned long long* barrier, int parity)
{
    for (unsigned over = 0; !over;) {
        asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;"
                     "selp.u32 %0, 1, 0, p;}"
                     : "=r"(over) : "r"(shared_address(barrier)), "r"(parity)
                     : "memory");
    }
}

__device__ void expect_bytes(unsigned long long* barrier, int bytes)  // and arrives
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
                 :: "r"(shared_address(barrier)), "r"(bytes) : "memory");
}

__device__ void copy_bytes(float* to, const float* from, int bytes, unsigned long long* barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1], %2, [%3];"
                 :: "r"(shared_address(to)), "l"(from), "r"(bytes),
                    "r"(shared_address(barrier)) : "memory");  // <- found here
}

// Orders KEYS rows, or as many as there are; the barrier's phase ends when they are here.
__device__ void start_copy(
    float* buffer,        // (KEYS, d), shared
    const float* v_head,  // (m, d)
    int start, int m, int d, unsigned long long* barrier)
{
    const int bytes = min(KEYS, m - start) * d * 4;
    expect_bytes(barrier, bytes);
    copy_bytes(buffer, v_head + (size_t)start * d, bytes, barrier);
}

extern "C" __global__ void __launch_bounds__(THREADS) rows_bulk(
    const float* p,  // (BH, n, m)
    const float* v,  // (BH, m, d)
    float* out,      // (BH, n, d)
    int n, int m, int d)
{
    extern __shared__ __align__(128) float buffers[];  // (2, KEYS, d)
    __shared__ unsigned long long full[2];             // says that a buffer's rows are here

    const int thread = threadIdx.x;
    const int row = blockIdx.x;  // query
    const int bh = blockIdx.y;
    const float* p_row = p + ((size_t)bh * n + row) * m;  // (m,)
    const float* v_head = v + (size_t)bh * m * d;         // (m, d)
    float* out_row = out + ((size_t)bh * n + row) * d;    // (d,)

    for (int c = thread; c < d; c += THREADS) {
        out_row[c] = 0.0f;
    }
    if (thread == 0) {
        start_barrier(&full[0]);
        start_barrier(&full[1]);
        start_copy(buffers, v_head, 0, m, d, &full[0]);
    }
    __syncthreads();  // barrier: a thread would wait at an mbarrier that is not there yet
    for (int start = 0, turn = 0; start < m; start += KEYS, ++turn) {
        const int slot = turn % 2;
        const float* ready = buffers + slot * KEYS * d;
        if (thread == 0 && start + KEYS < m) {
            float* next = buffers + (slot ^ 1) * KEYS * d;
            start_copy(next, v_head, start + KEYS, m, d, &full[slot ^ 1]);
        }
        wait_for(&full[slot], turn / 2 % 2);
        for (int c = thread; c < d; c += THREADS) {
            float sum = out_row[c];
            for (int j = 0; j < KEYS && start + j < m; ++j) {
                sum = fmaf(p_row[start + j], ready[j * d + c], sum);
            }
            out_row[c] = sum;
        }
        __syncthreads();  // barrier: the next copy would overwrite rows that are still in use
    }
}
