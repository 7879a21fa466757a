// Models: an option's tree, random numbers, a cloth, and hidden states.

// The price of an American put by a binomial tree of `steps`, at most 1024, for spots of 100
// exp(0.1 z) and a strike of 100. A block takes an option; the values of a step are in shared
// memory.
extern "C" __global__ void binomial_american(
    const float* __restrict__ z, float* __restrict__ price, int steps, float volatility, float rate,
    float years)
{
    __shared__ float value[2][1025];
    const float dt = years / steps, up = volatility * sqrtf(dt);
    const float spot = 100.0f * expf(0.1f * z[blockIdx.x]);
    const float rise = (expf(rate * dt) - expf(-up)) / (expf(up) - expf(-up));
    const float with = rise * expf(-rate * dt), without = (1.0f - rise) * expf(-rate * dt);
    float *now = value[0], *next = value[1];
    for (int j = threadIdx.x; j <= steps; j += blockDim.x)
        now[j] = fmaxf(100.0f - spot * expf(up * (2 * j - steps)), 0.0f);
    __syncthreads();
    for (int step = steps - 1; step >= 0; --step) {
        for (int j = threadIdx.x; j <= step; j += blockDim.x) {
            const float kept = with * now[j + 1] + without * now[j];
            next[j] = fmaxf(kept, 100.0f - spot * expf(up * (2 * j - step)));
        }
        __syncthreads();
        float* const other = now;
        now = next;
        next = other;
    }
    if (threadIdx.x == 0) price[blockIdx.x] = now[0];
}

__device__ __forceinline__ unsigned pcg(unsigned v)
{
    const unsigned state = v * 747796405u + 2891336453u;
    const unsigned word = ((state >> ((state >> 28) + 4)) ^ state) * 277803737u;
    return (word >> 22) ^ word;
}

// Normal random numbers by Box and Muller, from a hash of their number. A thread makes four.
extern "C" __global__ void box_muller_pcg(float4* __restrict__ normal, int quads, unsigned seed)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= quads) return;
    float v[4];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const unsigned a = pcg(seed ^ (4 * i + 2 * j)), b = pcg(a + 4 * i + 2 * j + 1);
        const float radius = sqrtf(-2.0f * logf(((a >> 8) + 1) / 16777216.0f));
        float sine, cosine;
        sincospif((b >> 8) / 8388608.0f, &sine, &cosine);
        v[2 * j] = radius * cosine;
        v[2 * j + 1] = radius * sine;
    }
    normal[i] = make_float4(v[0], v[1], v[2], v[3]);
}

// A step of a cloth of height x width masses: springs of length `rest`, or sqrt(2) of it, to the
// eight beside it, gravity and damping; position and velocity of (x, y, z, unused). A thread takes
// a mass.
extern "C" __global__ void cloth_step(
    const float4* __restrict__ position, const float4* __restrict__ velocity,
    float4* __restrict__ next_position, float4* __restrict__ next_velocity, int height, int width,
    float rest, float stiffness, float dt)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const int i = y * width + x;
    const float4 p = position[i];
    float4 v = velocity[i];
    float3 force = make_float3(0.0f, -9.81f, 0.0f);
#pragma unroll
    for (int dy = -1; dy <= 1; ++dy)
#pragma unroll
        for (int dx = -1; dx <= 1; ++dx) {
            if (dx == 0 && dy == 0) continue;
            if (x + dx < 0 || x + dx >= width || y + dy < 0 || y + dy >= height) continue;
            const float4 q = position[i + dy * width + dx];
            const float3 d = make_float3(q.x - p.x, q.y - p.y, q.z - p.z);
            const float length = sqrtf(d.x * d.x + d.y * d.y + d.z * d.z) + 1e-6f;
            const float natural = dx != 0 && dy != 0 ? 1.41421356f * rest : rest;
            const float by = stiffness * (length - natural) / length;
            force.x += by * d.x;
            force.y += by * d.y;
            force.z += by * d.z;
        }
    v.x = 0.99f * v.x + dt * force.x;
    v.y = 0.99f * v.y + dt * force.y;
    v.z = 0.99f * v.z + dt * force.z;
    next_velocity[i] = v;
    next_position[i] = make_float4(p.x + dt * v.x, p.y + dt * v.y, p.z + dt * v.z, p.w);
}

// The best way through 64 hidden states, by Viterbi: the score of each last state, and from where
// each state of each time is best reached (sequences, length, 64). seen (sequences, length) of
// signed bytes, of which 4 bits count; emission (16, 64), transition (64, 64), all logs. A block
// takes a sequence, a thread a state.
extern "C" __global__ void __launch_bounds__(64) viterbi_64(
    const signed char* __restrict__ seen, const float* __restrict__ emission,
    const float* __restrict__ transition, float* __restrict__ score, signed char* __restrict__ from,
    int length)
{
    __shared__ __align__(16) float before[2][64];
    const int state = threadIdx.x;
    float way[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) way[i] = transition[i * 64 + state];
    seen += (size_t)blockIdx.x * length;
    from += (size_t)blockIdx.x * length * 64;
    float own = emission[(seen[0] & 15) * 64 + state];
    from[state] = 0;
    for (int t = 1; t < length; ++t) {
        before[t & 1][state] = own;
        __syncthreads();
        float most = -1e30f;
        int best = 0;
#pragma unroll
        for (int i = 0; i < 64; i += 4) {
            const float4 s = *(const float4*)&before[t & 1][i];
            const float four[4] = {s.x + way[i], s.y + way[i + 1], s.z + way[i + 2],
                                   s.w + way[i + 3]};
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (four[j] > most) {
                    most = four[j];
                    best = i + j;
                }
        }
        own = most + emission[(seen[t] & 15) * 64 + state];
        from[t * 64 + state] = best;
    }
    score[blockIdx.x * 64 + state] = own;
}
