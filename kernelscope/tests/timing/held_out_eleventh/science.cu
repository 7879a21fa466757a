// Simulation: a stencil of 27 points, a fluid's dye, a molecule's angles, random numbers.

// y = A x of the matrix of HPCG, without storing it: 26 on the diagonal, -1 for each of up to 26
// neighbours in a cube of side^3. A thread takes a cell.
extern "C" __global__ void hpcg_27_point(
    const double* __restrict__ x, double* __restrict__ y, int side)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    const int j = blockIdx.y * blockDim.y + threadIdx.y, k = blockIdx.z;
    if (i >= side || j >= side) return;
    const size_t at = ((size_t)k * side + j) * side + i;
    double sum = 27.0 * x[at];
    for (int c = max(k - 1, 0); c <= min(k + 1, side - 1); ++c)
        for (int b = max(j - 1, 0); b <= min(j + 1, side - 1); ++b) {
            const double* row = x + ((size_t)c * side + b) * side;
            if (i > 0) sum -= row[i - 1];
            sum -= row[i];
            if (i + 1 < side) sum -= row[i + 1];
        }
    y[at] = sum;
}

// Dye carried by a fluid, traced back for a time step (Stam's stable fluids), between four cells.
// A thread takes a cell.
extern "C" __global__ void advect_semi_lagrangian(
    const float2* __restrict__ velocity, const float* __restrict__ dye, float* __restrict__ moved,
    int height, int width, float dt)
{
    const int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    const float2 v = velocity[(size_t)y * width + x];
    const float px = fminf(fmaxf(x - dt * v.x, 0.0f), width - 1.0f);
    const float py = fminf(fmaxf(y - dt * v.y, 0.0f), height - 1.0f);
    const int left = min((int)px, width - 2), top = min((int)py, height - 2);
    const float fx = px - left, fy = py - top;
    const float *above = dye + (size_t)top * width + left, *below = above + width;
    moved[(size_t)y * width + x] = (1.0f - fy) * ((1.0f - fx) * above[0] + fx * above[1]) +
                                   fy * ((1.0f - fx) * below[0] + fx * below[1]);
}

// Forces of angles i-j-k with the energy stiffness / 2 (cos - cos0)^2, as in GROMOS, added to
// force (atoms, 3). A thread takes an angle.
extern "C" __global__ void bond_angle_forces(
    const float4* __restrict__ position, const int* __restrict__ angle, float* __restrict__ force,
    int angles, float stiffness, float cosine)
{
    const int n = blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= angles) return;
    const int i = angle[3 * n], j = angle[3 * n + 1], k = angle[3 * n + 2];
    if (i == j || k == j) return;
    const float4 a = position[i], b = position[j], c = position[k];
    float u[3] = {a.x - b.x, a.y - b.y, a.z - b.z}, v[3] = {c.x - b.x, c.y - b.y, c.z - b.z};
    const float p = rsqrtf(u[0] * u[0] + u[1] * u[1] + u[2] * u[2]);
    const float q = rsqrtf(v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
    float dot = 0.0f;
#pragma unroll
    for (int d = 0; d < 3; ++d) {
        u[d] *= p;
        v[d] *= q;
        dot += u[d] * v[d];
    }
    const float pull = -stiffness * (dot - cosine);
#pragma unroll
    for (int d = 0; d < 3; ++d) {
        const float on_i = pull * p * (v[d] - dot * u[d]), on_k = pull * q * (u[d] - dot * v[d]);
        atomicAdd(&force[3 * i + d], on_i);
        atomicAdd(&force[3 * j + d], -on_i - on_k);
        atomicAdd(&force[3 * k + d], on_k);
    }
}

// Numbers from 0 to 1 of L'Ecuyer's MRG32k3a, in doubles as he wrote it: uniform (steps, streams),
// seed (6, streams). A thread takes a stream.
extern "C" __global__ void mrg32k3a_uniforms(
    const unsigned* __restrict__ seed, double* __restrict__ uniform, int streams, int steps)
{
    const double m1 = 4294967087.0, m2 = 4294944443.0;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= streams) return;
    double a[3], b[3];
#pragma unroll
    for (int j = 0; j < 3; ++j) {
        a[j] = seed[(size_t)j * streams + i] % 4294967087u;
        b[j] = seed[(size_t)(j + 3) * streams + i] % 4294944443u;
    }
    for (int step = 0; step < steps; ++step) {
        double p = 1403580.0 * a[1] - 810728.0 * a[0];
        p -= (long long)(p / m1) * m1;
        if (p < 0.0) p += m1;
        a[0] = a[1];
        a[1] = a[2];
        a[2] = p;
        double q = 527612.0 * b[2] - 1370589.0 * b[0];
        q -= (long long)(q / m2) * m2;
        if (q < 0.0) q += m2;
        b[0] = b[1];
        b[1] = b[2];
        b[2] = q;
        uniform[(size_t)step * streams + i] = (p <= q ? p - q + m1 : p - q) / (m1 + 1.0);
    }
}
