// Fields, particles, orbits and the variance of prices.

// A step of the magnetic field on Yee's grid: h - by * curl of e, with zeros of e past the last
// cell, all (depth, height, width), for each of x, y and z. A thread takes a cell.
extern "C" __global__ void yee_magnetic(
    const float* __restrict__ ex, const float* __restrict__ ey, const float* __restrict__ ez,
    const float* __restrict__ hx, const float* __restrict__ hy, const float* __restrict__ hz,
    float* __restrict__ next_x, float* __restrict__ next_y, float* __restrict__ next_z, int depth,
    int height, int width, float by)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x;
    const int y = blockIdx.y * blockDim.y + threadIdx.y, z = blockIdx.z;
    if (x >= width || y >= height) return;
    const size_t i = ((size_t)z * height + y) * width + x, plane = (size_t)height * width;
    const bool has_x = x + 1 < width, has_y = y + 1 < height, has_z = z + 1 < depth;
    const float a = ex[i], b = ey[i], c = ez[i];
    const float a_y = has_y ? ex[i + width] : 0.0f, a_z = has_z ? ex[i + plane] : 0.0f;
    const float b_x = has_x ? ey[i + 1] : 0.0f, b_z = has_z ? ey[i + plane] : 0.0f;
    const float c_x = has_x ? ez[i + 1] : 0.0f, c_y = has_y ? ez[i + width] : 0.0f;
    next_x[i] = hx[i] - by * ((c_y - c) - (b_z - b));
    next_y[i] = hy[i] - by * ((a_z - a) - (c_x - c));
    next_z[i] = hz[i] - by * ((b_x - b) - (a_y - a));
}

// Minus the log likelihood, but for a constant, of returns under a GARCH(1, 1) model, for pairs of
// parameters u, v: the variance of the next day is (1 - a - b) level + a return^2 + b variance,
// where a = 0.2 / (1 + exp(-u)) and b = 0.8 / (1 + exp(-v)). A thread takes a pair.
extern "C" __global__ void garch_likelihood(
    const float* __restrict__ returns, const float* __restrict__ u, const float* __restrict__ v,
    float* __restrict__ likelihood, int pairs, int days, float level)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pairs) return;
    const float a = 0.2f / (1.0f + expf(-u[i])), b = 0.8f / (1.0f + expf(-v[i]));
    const float base = (1.0f - a - b) * level;
    float variance = level, sum = 0.0f;
    for (int day = 0; day < days; ++day) {
        const float square = returns[day] * returns[day];
        sum += logf(variance) + square / variance;
        variance = base + a * square + b * variance;
    }
    likelihood[i] = 0.5f * sum / days;
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
