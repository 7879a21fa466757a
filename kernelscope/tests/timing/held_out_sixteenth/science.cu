// Science: paths of an average option, orbits, seeds of an alignment, tones.

__device__ __forceinline__ unsigned next_word(unsigned (&v)[5], unsigned& weyl)
{
    const unsigned t = v[0] ^ v[0] >> 2;
    v[0] = v[1];
    v[1] = v[2];
    v[2] = v[3];
    v[3] = v[4];
    v[4] = v[4] ^ v[4] << 4 ^ t ^ t << 1;
    weyl += 362437u;
    return v[4] + weyl;
}

// Calls on the average of a price, by paths of xorwow's numbers, two steps of time a pair.
extern "C" __global__ void __launch_bounds__(256) asian_call_xorwow(
    float* __restrict__ payoff, int paths, int pairs, float drift, float deviation, float strike,
    unsigned seed)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= paths) return;
    unsigned mixed = (i + seed) * 0x9E3779B9u, v[5], weyl = 6615241u;
#pragma unroll
    for (int j = 0; j < 5; ++j) {
        mixed = (mixed ^ mixed >> 15) * 0x85EBCA77u + 0x165667B1u;
        v[j] = mixed ^ mixed >> 13;
    }
    float walk = 0.0f, sum = 0.0f;
    for (int j = 0; j < pairs; ++j) {
        const float u = ((next_word(v, weyl) >> 8) + 0.5f) * 5.9604645e-8f;
        const float angle = (next_word(v, weyl) >> 8) * 1.1920929e-7f;
        const float length = sqrtf(-2.0f * logf(u));
        float s, c;
        sincospif(angle, &s, &c);
        walk += drift + deviation * length * c;
        sum += expf(walk);
        walk += drift + deviation * length * s;
        sum += expf(walk);
    }
    payoff[i] = fmaxf(sum / (2 * pairs) - strike, 0.0f);
}

// Kepler's equation by Newton's steps, of doubles: the eccentric anomaly of a mean one.
extern "C" __global__ void __launch_bounds__(128) kepler_newton_double(
    const double* __restrict__ mean, const double* __restrict__ shape,
    double* __restrict__ anomaly, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double m = mean[i], e = 0.9 * fabs(shape[i]) / (1.0 + fabs(shape[i]));
    double s, c, x = m + copysign(0.85, sin(m)) * e;
    for (int step = 0; step < 20; ++step) {
        sincos(x, &s, &c);
        const double by = (x - e * s - m) / (1.0 - e * c);
        x -= by;
        if (fabs(by) < 1e-12) break;
    }
    anomaly[i] = x;
}

// Seeds of an alignment made longer without gaps, as BLAST does: on either side until the score
// is `drop` under the best so far. Letters are the two low bits of bytes.
extern "C" __global__ void __launch_bounds__(256) xdrop_ungapped_seeds(
    const unsigned char* __restrict__ query, const unsigned char* __restrict__ subject,
    const int* __restrict__ in_query, const int* __restrict__ in_subject, int* __restrict__ score,
    int* __restrict__ length, int seeds, int of_query, int of_subject, int drop)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= seeds) return;
    const int q = in_query[i], s = in_subject[i];
    int total = 0, best = 0, end = 0, start = 0;
    for (int j = 0; q + j < of_query && s + j < of_subject; ++j) {
        total += (query[q + j] ^ subject[s + j]) & 3 ? -4 : 5;
        if (total > best) {
            best = total;
            end = j + 1;
        }
        if (total <= best - drop) break;
    }
    total = best;
    for (int j = 1; j <= q && j <= s; ++j) {
        total += (query[q - j] ^ subject[s - j]) & 3 ? -4 : 5;
        if (total > best) {
            best = total;
            start = j;
        }
        if (total <= best - drop) break;
    }
    score[i] = best;
    length[i] = start + end;
}

__constant__ float tones[8] = {
    697.0f, 770.0f, 852.0f, 941.0f, 1209.0f, 1336.0f, 1477.0f, 1633.0f};

// The power of the eight tones of a telephone's keys in frames of sound, as Goertzel has it: a
// thread takes a tone of a frame.
extern "C" __global__ void __launch_bounds__(256) goertzel_dtmf_frames(
    const float* __restrict__ sound, float* __restrict__ power, int frames, int length)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x, frame = i / 8, tone = i % 8;
    if (frame >= frames) return;
    const float* own = sound + (size_t)frame * length;
    const float c = 2.0f * cospif(tones[tone] / 4000.0f);
    float before = 0.0f, last = 0.0f;
    for (int j = 0; j < length; ++j) {
        const float now = own[j] + c * last - before;
        before = last;
        last = now;
    }
    power[i] = (last * last + before * before - c * last * before) / length;
}
