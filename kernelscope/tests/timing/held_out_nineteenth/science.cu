// Science: rates of interest, hidden states of sequences, tracks of things that move.

__device__ __forceinline__ unsigned squares(unsigned long long counter, unsigned long long key)
{
    unsigned long long x = counter * key;
    const unsigned long long y = x, z = y + key;
    x = x * x + y;
    x = x >> 32 | x << 32;
    x = x * x + z;
    x = x >> 32 | x << 32;
    x = x * x + y;
    x = x >> 32 | x << 32;
    return (x * x + z) >> 32;
}

// Discounts of a bond along paths of a rate by Cox, Ingersoll and Ross, with random numbers of
// the generator Squares. A thread takes a path.
extern "C" __global__ void __launch_bounds__(256) cir_discount_paths(
    float* __restrict__ discount, int paths, int pairs, float rate, float pull, float mean,
    float spread, float step)
{
    const int path = blockIdx.x * 256 + threadIdx.x;
    if (path >= paths) return;
    const float scale = spread * sqrtf(step);
    float sum = 0.0f;
    for (int i = 0; i < pairs; ++i) {
        const unsigned long long counter = 2ull * ((unsigned long long)i * paths + path);
        const float u = (squares(counter, 0xC58EFD154CE32F6DULL) + 0.5f) * 2.3283064e-10f;
        const float v = squares(counter + 1, 0xC58EFD154CE32F6DULL) * 4.6566129e-10f;
        const float radius = sqrtf(-2.0f * logf(fminf(u, 0.99999994f)));
        float sine, cosine;
        sincospif(v, &sine, &cosine);
        float now = fmaxf(rate, 0.0f);
        sum += now;
        rate += pull * (mean - now) * step + scale * sqrtf(now) * radius * cosine;
        now = fmaxf(rate, 0.0f);
        sum += now;
        rate += pull * (mean - now) * step + scale * sqrtf(now) * radius * sine;
    }
    discount[path] = expf(-sum * step);
}

// The likeliest of 32 hidden states at each of 64 bases of a sequence (Viterbi). A warp takes a
// sequence, a lane a state.
extern "C" __global__ void __launch_bounds__(128) viterbi_32_states(
    const float* __restrict__ move, const float* __restrict__ emit,
    const unsigned* __restrict__ bases, unsigned char* __restrict__ path,
    float* __restrict__ score, int sequences)
{
    __shared__ float emits[4][32];
    __shared__ unsigned char from[4][64][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    emits[warp][lane] = emit[threadIdx.x];
    __syncthreads();
    const int sequence = blockIdx.x * 4 + warp;
    if (sequence >= sequences) return;
    float moves[32];
#pragma unroll
    for (int i = 0; i < 32; ++i) moves[i] = move[32 * i + lane];
    const unsigned word = lane < 4 ? bases[sequence * 4 + lane] : 0;
    float own = emits[__shfl_sync(~0u, word, 0) & 3][lane];
    for (int time = 1; time < 64; ++time) {
        float best = -3.0e38f;
        int before = 0;
#pragma unroll
        for (int i = 0; i < 32; ++i) {
            const float candidate = __shfl_sync(~0u, own, i) + moves[i];
            if (candidate > best) {
                best = candidate;
                before = i;
            }
        }
        from[warp][time][lane] = before;
        const unsigned base = __shfl_sync(~0u, word, time / 16) >> 2 * (time % 16) & 3;
        own = best + emits[base][lane];
    }
    float best = own;
    int state = lane;
    for (int step = 16; step; step /= 2) {
        const float other = __shfl_xor_sync(~0u, best, step);
        const int other_state = __shfl_xor_sync(~0u, state, step);
        if (other > best || (other == best && other_state < state)) {
            best = other;
            state = other_state;
        }
    }
    __syncwarp();
    int first = 0, second = 0;
    for (int time = 63; time >= 0; --time) {
        if (lane == time % 32) (time < 32 ? first : second) = state;
        if (time) state = from[warp][time][state];
    }
    path[(size_t)sequence * 64 + lane] = first;
    path[(size_t)sequence * 64 + 32 + lane] = second;
    if (lane == 0) score[sequence] = best;
}

// A Kalman filter of points that move in a plane, seen by two sensors. A thread takes a track.
extern "C" __global__ void __launch_bounds__(128) kalman_plane_tracks(
    const float2* __restrict__ seen, const float* __restrict__ sensor,
    float4* __restrict__ last, float* __restrict__ doubt, int tracks, int steps, float time,
    float drift, float noise)
{
    const int track = blockIdx.x * 128 + threadIdx.x;
    if (track >= tracks) return;
    float h[2][4], x[4] = {}, p[4][4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        h[0][i] = sensor[i];
        h[1][i] = sensor[4 + i];
        p[i][i] = 10.0f;
    }
    for (int step = 0; step < steps; ++step) {
        const float2 z = seen[(size_t)step * tracks + track];
        x[0] += time * x[2];
        x[1] += time * x[3];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            p[0][i] += time * p[2][i];
            p[1][i] += time * p[3][i];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            p[i][0] += time * p[i][2];
            p[i][1] += time * p[i][3];
        }
        p[2][2] += drift;
        p[3][3] += drift;
        float ph[4][2];
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 2; ++j)
                ph[i][j] = p[i][0] * h[j][0] + p[i][1] * h[j][1] + p[i][2] * h[j][2] +
                           p[i][3] * h[j][3];
        float s[2][2], wrong[2] = {z.x, z.y};
#pragma unroll
        for (int i = 0; i < 2; ++i) {
#pragma unroll
            for (int j = 0; j < 2; ++j)
                s[i][j] = h[i][0] * ph[0][j] + h[i][1] * ph[1][j] + h[i][2] * ph[2][j] +
                          h[i][3] * ph[3][j] + (i == j ? noise : 0.0f);
            wrong[i] -= h[i][0] * x[0] + h[i][1] * x[1] + h[i][2] * x[2] + h[i][3] * x[3];
        }
        const float inverse = 1.0f / (s[0][0] * s[1][1] - s[0][1] * s[1][0]);
        float gain[4][2];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            gain[i][0] = (ph[i][0] * s[1][1] - ph[i][1] * s[1][0]) * inverse;
            gain[i][1] = (ph[i][1] * s[0][0] - ph[i][0] * s[0][1]) * inverse;
            x[i] += gain[i][0] * wrong[0] + gain[i][1] * wrong[1];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) p[i][j] -= gain[i][0] * ph[j][0] + gain[i][1] * ph[j][1];
    }
    last[track] = make_float4(x[0], x[1], x[2], x[3]);
    doubt[track] = p[0][0] + p[1][1] + p[2][2] + p[3][3];
}
