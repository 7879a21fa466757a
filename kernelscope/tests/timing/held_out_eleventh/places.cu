// Places and prices: faces of a mesh, nearest cities, volatilities, the size of a sparse product.

// The normal and the area of each face of a mesh: vertex (vertices, 3), corner (faces, 3), normal
// (faces, 3). A thread takes a face.
extern "C" __global__ void face_normals(
    const float* __restrict__ vertex, const int* __restrict__ corner, float* __restrict__ normal,
    float* __restrict__ area, int faces)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= faces) return;
    const float* a = vertex + 3 * corner[3 * i];
    const float* b = vertex + 3 * corner[3 * i + 1];
    const float* c = vertex + 3 * corner[3 * i + 2];
    const float ux = b[0] - a[0], uy = b[1] - a[1], uz = b[2] - a[2];
    const float vx = c[0] - a[0], vy = c[1] - a[1], vz = c[2] - a[2];
    const float x = uy * vz - uz * vy, y = uz * vx - ux * vz, z = ux * vy - uy * vx;
    const float length = sqrtf(x * x + y * y + z * z), over = length > 1e-5f ? 1.0f / length : 0.0f;
    normal[3 * i] = x * over;
    normal[3 * i + 1] = y * over;
    normal[3 * i + 2] = z * over;
    area[i] = 0.5f * length;
}

// The nearest city of each place on the globe, by the haversine of the angle: place and city
// (latitude, longitude) in radians. A thread takes a place; all read the same city.
extern "C" __global__ void haversine_nearest(
    const float2* __restrict__ place, const float2* __restrict__ city, int* __restrict__ nearest,
    float* __restrict__ kilometres, int places, int cities)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= places) return;
    const float2 own = place[i];
    const float cosine = cosf(own.x);
    float least = 2.0f;
    int best = 0;
    for (int j = 0; j < cities; ++j) {
        const float2 to = city[j];
        const float a = sinf(0.5f * (to.x - own.x)), b = sinf(0.5f * (to.y - own.y));
        const float haversine = a * a + cosine * cosf(to.x) * b * b;
        if (haversine < least) {
            least = haversine;
            best = j;
        }
    }
    nearest[i] = best;
    kilometres[i] = 2.0f * 6371.0f * asinf(sqrtf(fminf(least, 1.0f)));
}

__device__ __forceinline__ double normal_below(double v)
{
    return 0.5 * erfc(-v * 0.70710678118654752);
}

// The volatility at which Black's price of a call is the one seen, by halving between 0.001 and 4:
// money = log(forward / strike), price in strikes. A thread takes an option.
extern "C" __global__ void implied_volatility_bisect(
    const double* __restrict__ money, const double* __restrict__ price,
    double* __restrict__ volatility, int options, int halvings, float years)
{
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= options) return;
    const double x = 0.1 * money[i], seen = fmax(exp(x) - 1.0, 0.0) + 0.1 * fabs(price[i]);
    const double root = sqrt((double)years), forward = exp(x);
    double low = 0.001, high = 4.0;
    for (int step = 0; step < halvings; ++step) {
        const double middle = 0.5 * (low + high), spread = middle * root;
        const double d = x / spread + 0.5 * spread;
        const double now = forward * normal_below(d) - normal_below(d - spread);
        if (now < seen)
            low = middle;
        else
            high = middle;
    }
    volatility[i] = 0.5 * (low + high);
}

// The first step of a product of sparse matrices in CSR form: how many products each row of A A
// has. A thread takes a row.
extern "C" __global__ void spgemm_row_products(
    const int* __restrict__ first, const int* __restrict__ column, int* __restrict__ products,
    int rows)
{
    const int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    int sum = 0;
    const int end = first[row + 1];
    for (int e = first[row]; e < end; ++e) {
        const int to = column[e];
        sum += first[to + 1] - first[to];
    }
    products[row] = sum;
}
