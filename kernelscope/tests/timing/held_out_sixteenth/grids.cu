// Grids, graphs, matrices: a product by diagonals, an independent set, fields, eigenvalues.

// y = A * x of doubles, A by its diagonals: `place` has their distances to the middle one.
extern "C" __global__ void spmv_dia_double(
    const double* __restrict__ a, const int* __restrict__ place, const double* __restrict__ x,
    double* __restrict__ y, int n, int diagonals)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= n) return;
    const int middle = place[diagonals / 2];
    double sum = 0.0;
    for (int d = 0; d < diagonals; ++d) {
        const int column = row + place[d] - middle;
        if (column >= 0 && column < n) sum += a[(size_t)d * n + row] * x[column];
    }
    y[row] = sum;
}

__device__ __forceinline__ unsigned drawn(unsigned x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

// A step of Luby's independent set: a node that is still there joins if its draw is above those of
// its neighbours that are still there. 2: gone before, 1: joins, 0: waits.
extern "C" __global__ void luby_join_step(
    const int* __restrict__ from, const int* __restrict__ neighbour,
    const signed char* __restrict__ state, signed char* __restrict__ out, int nodes, unsigned seed)
{
    const int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node >= nodes) return;
    if (state[node] < 0) {
        out[node] = 2;
        return;
    }
    const unsigned own = drawn(node ^ seed);
    const int end = from[node + 1];
    signed char joins = 1;
    for (int i = from[node]; i < end; ++i) {
        const int other = neighbour[i];
        if (other == node || state[other] < 0) continue;
        if (drawn(other ^ seed) > own) {
            joins = 0;
            break;
        }
    }
    out[node] = joins;
}

// The magnetic half of a step of Yee's scheme for Maxwell's equations.
extern "C" __global__ void __launch_bounds__(256) yee_magnetic_3d(
    const float* __restrict__ ex, const float* __restrict__ ey, const float* __restrict__ ez,
    float* __restrict__ hx, float* __restrict__ hy, float* __restrict__ hz, int width, int height,
    int depth, float c)
{
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 4 + threadIdx.y;
    const int z = blockIdx.z * 2 + threadIdx.z;
    if (x >= width - 1 || y >= height - 1 || z >= depth - 1) return;
    const int plane = width * height, at = z * plane + y * width + x;
    const float a = ex[at], b = ey[at], d = ez[at];
    hx[at] += c * ((ey[at + plane] - b) - (ez[at + width] - d));
    hy[at] += c * ((ez[at + 1] - d) - (ex[at + plane] - a));
    hz[at] += c * ((ex[at + width] - a) - (ey[at + 1] - b));
}

template <int P, int Q>
__device__ __forceinline__ void turn(float (&a)[3][3], float (&v)[3][3])
{
    constexpr int R = 3 - P - Q;
    if (fabsf(a[P][Q]) < 1e-12f) return;
    const float theta = (a[Q][Q] - a[P][P]) / (2.0f * a[P][Q]);
    const float t = copysignf(1.0f, theta) / (fabsf(theta) + sqrtf(theta * theta + 1.0f));
    const float c = rsqrtf(t * t + 1.0f), s = t * c, p = a[P][R], q = a[Q][R];
    a[P][P] -= t * a[P][Q];
    a[Q][Q] += t * a[P][Q];
    a[P][Q] = a[Q][P] = 0.0f;
    a[P][R] = a[R][P] = c * p - s * q;
    a[Q][R] = a[R][Q] = s * p + c * q;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        const float u = v[i][P], w = v[i][Q];
        v[i][P] = c * u - s * w;
        v[i][Q] = s * u + c * w;
    }
}

// Eigenvalues of symmetric 3x3 matrices by Jacobi's turns, in order, and the vector of the least:
// normals of points from covariances. xx, xy, xz, yy, yz, zz are arrays one after the other.
extern "C" __global__ void __launch_bounds__(128) eigen_3x3_jacobi(
    const float* __restrict__ m, float* __restrict__ values, float* __restrict__ normal, int n)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    const float xx = m[i], xy = m[n + i], xz = m[2 * n + i];
    const float yy = m[3 * n + i], yz = m[4 * n + i], zz = m[5 * n + i];
    float a[3][3] = {{xx, xy, xz}, {xy, yy, yz}, {xz, yz, zz}};
    float v[3][3] = {{1.0f, 0.0f, 0.0f}, {0.0f, 1.0f, 0.0f}, {0.0f, 0.0f, 1.0f}};
    for (int sweep = 0; sweep < 5; ++sweep) {
        turn<0, 1>(a, v);
        turn<0, 2>(a, v);
        turn<1, 2>(a, v);
    }
    const float p = a[0][0], q = a[1][1], r = a[2][2];
    const float least = fminf(p, fminf(q, r)), most = fmaxf(p, fmaxf(q, r));
    values[i] = least;
    values[n + i] = fmaxf(fminf(p, q), fminf(fmaxf(p, q), r));
    values[2 * n + i] = most;
    const bool first = p == least, second = q == least;
    float x = first ? v[0][0] : second ? v[0][1] : v[0][2];
    float y = first ? v[1][0] : second ? v[1][1] : v[1][2];
    float z = first ? v[2][0] : second ? v[2][1] : v[2][2];
    const float sign = z < 0.0f ? -1.0f : 1.0f;
    normal[i] = sign * x;
    normal[n + i] = sign * y;
    normal[2 * n + i] = sign * z;
}
