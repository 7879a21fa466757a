// Arithmetic of one element each.

// Prices of European calls: stock, strike, years (n,) float32
extern "C" __global__ void black_scholes(
    const float* stock, const float* strike, const float* years, float* price, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float s = 10.0f + fabsf(stock[i]), k = 10.0f + fabsf(strike[i]);
    const float t = 0.25f + fabsf(years[i]), root = 0.3f * sqrtf(t);
    const float d1 = (logf(s / k) + (0.02f + 0.045f) * t) / root, d2 = d1 - root;
    price[i] = s * normcdff(d1) - k * expf(-0.02f * t) * normcdff(d2);
}

// Share of `steps` random points that are in a quarter of a circle
extern "C" __global__ void quarter_circle(const unsigned* seed, float* share, int n, int steps)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    unsigned state = seed[i];
    int inside = 0;
    for (int j = 0; j < steps; ++j) {
        state = 1664525u * state + 1013904223u;
        const float x = (state >> 8) * (1.0f / 16777216.0f);
        state = 1664525u * state + 1013904223u;
        const float y = (state >> 8) * (1.0f / 16777216.0f);
        inside += x * x + y * y < 1.0f;
    }
    share[i] = (float)inside / steps;
}

// `steps` steps of the logistic map, in double
extern "C" __global__ void logistic_double(const double* x, double* y, int n, int steps)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    double v = fabs(x[i]);
    v = v / (1.0 + v);
    for (int j = 0; j < steps; ++j) v = 3.7 * v * (1.0 - v);
    y[i] = v;
}

// Lengths of n vectors of three, stored one after another: 12 bytes apart
extern "C" __global__ void lengths_of_3(const float* v, float* length, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float x = v[3 * i], y = v[3 * i + 1], z = v[3 * i + 2];
    length[i] = sqrtf(x * x + y * y + z * z);
}

// y[i] = x[n - 1 - i]
extern "C" __global__ void reverse(const float* x, float* y, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[n - 1 - i];
}
