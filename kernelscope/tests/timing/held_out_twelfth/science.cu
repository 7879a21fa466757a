// Simulation: a solver's residual, a potential of charges, random numbers, a gate of qubits.

// r = b - A x of Poisson's equation in a square, by five points, and the sum of r^2 added to norm.
// A thread takes a point.
extern "C" __global__ void __launch_bounds__(256) poisson_residual_double(
    const double* __restrict__ x, const double* __restrict__ b, double* __restrict__ r,
    double* __restrict__ norm, int side)
{
    __shared__ double of_warp[8];
    const int i = blockIdx.x * 32 + threadIdx.x, j = blockIdx.y * 8 + threadIdx.y;
    double v = 0.0;
    if (i < side && j < side) {
        const size_t at = (size_t)j * side + i;
        v = b[at] - 4.0 * x[at];
        if (i > 0) v += x[at - 1];
        if (i + 1 < side) v += x[at + 1];
        if (j > 0) v += x[at - side];
        if (j + 1 < side) v += x[at + side];
        r[at] = v;
    }
    v *= v;
    for (int step = 16; step > 0; step >>= 1) v += __shfl_down_sync(0xFFFFFFFF, v, step);
    if (threadIdx.x == 0) of_warp[threadIdx.y] = v;
    __syncthreads();
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        for (int w = 1; w < 8; ++w) v += of_warp[w];
        atomicAdd(norm, v);
    }
}

// The potential of charges (x, y, z, q) at the points of a plane, summed directly. A thread takes
// four points of a row, a block of 128 loads 128 charges at a time.
extern "C" __global__ void __launch_bounds__(128) coulomb_slice(
    const float4* __restrict__ charge, float* __restrict__ potential, int charges, int width,
    float spacing, float z)
{
    __shared__ float4 some[128];
    const int first = (blockIdx.x * 128 + threadIdx.x) * 4;
    const float x = first % width * spacing, y = first / width * spacing;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int at = 0; at < charges; at += 128) {
        const int here = min(128, charges - at);
        __syncthreads();
        if (threadIdx.x < here) some[threadIdx.x] = charge[at + threadIdx.x];
        __syncthreads();
        for (int i = 0; i < here; ++i) {
            const float4 c = some[i];
            const float dy = y - c.y, dz = z - c.z, rest = dy * dy + dz * dz;
            const float d0 = x - c.x, d1 = d0 + spacing, d2 = d1 + spacing, d3 = d2 + spacing;
            sum.x += c.w * rsqrtf(d0 * d0 + rest);
            sum.y += c.w * rsqrtf(d1 * d1 + rest);
            sum.z += c.w * rsqrtf(d2 * d2 + rest);
            sum.w += c.w * rsqrtf(d3 * d3 + rest);
        }
    }
    *(float4*)&potential[first] = sum;
}

__device__ __forceinline__ unsigned long long turn(unsigned long long v, int by)
{
    return v << by | v >> (64 - by);
}

// Two doubles from 0 to 1 of each counter by Threefry-2x64 of 20 rounds. A thread takes a counter.
extern "C" __global__ void threefry_2x64_uniforms(
    const unsigned long long* __restrict__ key, double2* __restrict__ uniform, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const int by[8] = {16, 42, 12, 31, 16, 32, 24, 21};
    const unsigned long long k[3] = {key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDAA9FC1A22ULL};
    unsigned long long a = i + k[0], b = k[1];
#pragma unroll
    for (int round = 0; round < 20; ++round) {
        a += b;
        b = turn(b, by[round % 8]) ^ a;
        if (round % 4 == 3) {
            const int part = round / 4 + 1;
            a += k[part % 3];
            b += k[(part + 1) % 3] + part;
        }
    }
    uniform[i] = make_double2((a >> 11) * 0x1p-53, (b >> 11) * 0x1p-53);
}

// A turn about x of one qubit of a state, in place: cos and sin of half the angle. A thread takes
// the two amplitudes (real, imaginary) that differ in the qubit.
extern "C" __global__ void apply_gate_qubit(
    float2* __restrict__ state, int pairs, int target, float cosine, float sine)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= pairs) return;
    const int low = i & (1 << target) - 1, at = (i - low) * 2 + low, other = at | 1 << target;
    const float2 a = state[at], b = state[other];
    state[at] = make_float2(cosine * a.x + sine * b.y, cosine * a.y - sine * b.x);
    state[other] = make_float2(cosine * b.x + sine * a.y, cosine * b.y - sine * a.x);
}
