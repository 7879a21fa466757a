// Idea:          One thread a score, handed on in a shared variable.
// Changes from:  01_scores_naive.cu
// Shapes:        q (BH, n, d), k (BH, m, d), s (BH, n, m); row-major float32
// Launch:        scores_naive: grid (ceil(m/TILE), ceil(n/TILE), BH), block (TILE, TILE),
//                static shared 4 bytes
// Needs:         sm_50; 2 <= TILE <= 32
// Expect:        every row of Q is read m times and every row of K n times; a warp's 32 lanes read
//                32 different rows of K, so each K load touches up to 32 sectors for 32 floats
// Limits:        BH <= 65535 and n <= 65535*TILE a launch (grid z and y)

// Clean:    01_scores_naive.cu
// Defect:   race
// Symptom:  right as the compiler optimises it; in a debug build all scores of a block are alike
// Story:    a temporary of one thread is declared shared, and the block has one of it
// Case:     BH=2, n=18, m=19, d=7

#ifndef TILE
#define TILE 32  // threads a side of the block
#endif

extern "C" __global__ void __launch_bounds__(TILE * TILE) scores_naive(
    const float* q,  // (BH, n, d)
    const float* k,  // (BH, m, d)
    float* s,        // (BH, n, m)
    int n, int m, int d)
{
    const int tx = threadIdx.x;
    const int ty = threadIdx.y;
    const int bh = blockIdx.z;
    const int row = blockIdx.y * TILE + ty;  // query
    const int col = blockIdx.x * TILE + tx;  // key
    if (row >= n || col >= m) return;  // the last blocks reach past a ragged edge

    // size_t: BH*n*d and BH*n*m can pass 2^31, where int would wrap around.
    const float* q_row = q + ((size_t)bh * n + row) * d;  // (d,)
    const float* k_row = k + ((size_t)bh * m + col) * d;  // (d,)

    float sum = 0.0f;
    for (int i = 0; i < d; ++i) {
        sum = fmaf(q_row[i], k_row[i], sum);
    }
    __shared__ float score;  // <- defect
    score = sum;
    s[((size_t)bh * n + row) * m + col] = score;  // <- found here
}
