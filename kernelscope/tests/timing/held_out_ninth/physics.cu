// Waves, particles, orbits and options.

// A step of the wave equation of eighth order in space: next = 2 now - before + speed * laplacian
// of now, at points of (depth, height, width) at least 4 from every side; width and height multiples
// of 32 and 8. A block of 32 x 8 goes through the planes.
extern "C" __global__ void __launch_bounds__(256) acoustic_25_point(
    const float* __restrict__ now, const float* __restrict__ before,
    const float* __restrict__ speed, float* __restrict__ next, int depth, int height, int width)
{
    __shared__ float tile[8 + 8][32 + 8];
    const float weight[5] = {-205.0f / 72, 8.0f / 5, -1.0f / 5, 8.0f / 315, -1.0f / 560};
    const int tx = threadIdx.x, ty = threadIdx.y;
    const int x = blockIdx.x * 32 + tx, y = blockIdx.y * 8 + ty;
    const size_t plane = (size_t)height * width;
    const bool inside = x >= 4 && x < width - 4 && y >= 4 && y < height - 4;
    size_t at = (size_t)y * width + x;
    float column[9];
#pragma unroll
    for (int i = 0; i < 8; ++i) column[i + 1] = now[at + i * plane];
    for (int z = 4; z < depth - 4; ++z) {
#pragma unroll
        for (int i = 0; i < 8; ++i) column[i] = column[i + 1];
        column[8] = now[at + (z + 4) * plane];
        __syncthreads();
        const float* here = now + z * plane;
        tile[ty + 4][tx + 4] = column[4];
        if (ty < 4) {
            if (y >= 4) tile[ty][tx + 4] = here[at - 4 * (size_t)width];
            if (y + 8 < height) tile[ty + 12][tx + 4] = here[at + 8 * (size_t)width];
        }
        if (tx < 4) {
            if (x >= 4) tile[ty + 4][tx] = here[at - 4];
            if (x + 32 < width) tile[ty + 4][tx + 36] = here[at + 32];
        }
        __syncthreads();
        if (!inside) continue;
        float sum = 3.0f * weight[0] * column[4];
#pragma unroll
        for (int r = 1; r <= 4; ++r)
            sum += weight[r] * (column[4 - r] + column[4 + r] + tile[ty + 4 - r][tx + 4] +
                                tile[ty + 4 + r][tx + 4] + tile[ty + 4][tx + 4 - r] +
                                tile[ty + 4][tx + 4 + r]);
        const size_t i = at + z * plane;
        next[i] = 2.0f * column[4] - before[i] + speed[i] * sum;
    }
}

// American puts with a strike of 1 on prices exp(0.1 z), over a year, by a binomial tree of
// `steps`, at most 1023. A block takes an option.
extern "C" __global__ void __launch_bounds__(128) american_binomial(
    const float* __restrict__ z, float* __restrict__ value, int steps, float volatility, float rate)
{
    __shared__ float v[1024];
    const float dt = 1.0f / steps, up = volatility * sqrtf(dt), start = 0.1f * z[blockIdx.x];
    const float p = (expf(rate * dt) - expf(-up)) / (expf(up) - expf(-up));
    const float later = expf(-rate * dt), rise = later * p, fall = later * (1.0f - p);
    for (int i = threadIdx.x; i <= steps; i += 128)
        v[i] = fmaxf(1.0f - expf(start + (2 * i - steps) * up), 0.0f);
    __syncthreads();
    for (int s = steps - 1; s >= 0; --s) {
        for (int first = 0; first <= s; first += 128) {
            const int i = first + threadIdx.x;
            float held = 0.0f;
            if (i <= s) {
                held = rise * v[i + 1] + fall * v[i];
                held = fmaxf(held, 1.0f - expf(start + (2 * i - s) * up));
            }
            __syncthreads();
            if (i <= s) v[i] = held;
            __syncthreads();
        }
    }
    if (threadIdx.x == 0) value[blockIdx.x] = v[0];
}

// Lennard-Jones forces with a soft core, in a cube with sides of `box` that repeats: position (n)
// of (x, y, z, unused), neighbour (slots, n), force (n) of (x, y, z, energy). A thread takes an
// atom.
extern "C" __global__ void lj_neighbour_list(
    const float4* __restrict__ position, const int* __restrict__ neighbour,
    float4* __restrict__ force, int n, int slots, float box, float cutoff)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float4 own = position[i];
    const float over = 1.0f / box;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int s = 0; s < slots; ++s) {
        const float4 other = position[neighbour[(size_t)s * n + i]];
        float dx = own.x - other.x, dy = own.y - other.y, dz = own.z - other.z;
        dx -= box * rintf(dx * over);
        dy -= box * rintf(dy * over);
        dz -= box * rintf(dz * over);
        const float square = dx * dx + dy * dy + dz * dz;
        if (square < cutoff * cutoff) {
            const float r = 1.0f / (square + 0.8f), six = r * r * r;
            const float along = 24.0f * r * six * (2.0f * six - 1.0f);
            sum.x += along * dx;
            sum.y += along * dy;
            sum.z += along * dz;
            sum.w += 2.0f * six * (six - 1.0f);
        }
    }
    force[i] = sum;
}

// The speed of a star towards us at each time, in units of its swing: Kepler's equation
// E - e sin E = rate * time by Newton, in doubles. A thread takes a time.
extern "C" __global__ void kepler_newton(
    const double* __restrict__ time, double* __restrict__ speed, int n, float eccentricity,
    float rate, float angle)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const double e = eccentricity, mean = rate * time[i];
    double sine, cosine, anomaly = mean + e * sin(mean);
    for (int k = 0; k < 20; ++k) {
        sincos(anomaly, &sine, &cosine);
        const double by = (anomaly - e * sine - mean) / (1.0 - e * cosine);
        anomaly -= by;
        if (fabs(by) < 1e-10) break;
    }
    sincos(anomaly, &sine, &cosine);
    const double far = 1.0 / (1.0 - e * cosine);
    const double across = sqrt(1.0 - e * e) * sine * far, along = (cosine - e) * far;
    double down, right;
    sincos((double)angle, &down, &right);
    speed[i] = right * (along + e) - down * across;
}
