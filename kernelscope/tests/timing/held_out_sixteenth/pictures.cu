// Pictures: a level of a pyramid, distances along rows, lines by votes, optical flow.

// A picture of three bytes a pixel at half its size, after a 5x5 binomial filter. A block makes
// 16x16 pixels: along rows to shared memory, then down.
extern "C" __global__ void __launch_bounds__(256) pyramid_down_rgb(
    const unsigned char* __restrict__ in, unsigned char* __restrict__ out, int width, int height)
{
    __shared__ unsigned char tile[35][35 * 3];
    __shared__ unsigned short across[35][16 * 3];
    const int t = threadIdx.y * 16 + threadIdx.x, wide = width / 2, high = height / 2;
    const int left = blockIdx.x * 32 - 2, top = blockIdx.y * 32 - 2;
    const unsigned char* picture = in + (size_t)blockIdx.z * width * height * 3;
    for (int i = t; i < 35 * 35; i += 256) {
        const int x = min(max(left + i % 35, 0), width - 1);
        const int y = min(max(top + i / 35, 0), height - 1);
        const unsigned char* pixel = picture + ((size_t)y * width + x) * 3;
        for (int c = 0; c < 3; ++c) tile[i / 35][i % 35 * 3 + c] = pixel[c];
    }
    __syncthreads();
    for (int i = t; i < 35 * 48; i += 256) {
        const int row = i / 48, x = i % 48 / 3, c = i % 3;
        const unsigned char* p = tile[row] + x * 6 + c;
        across[row][x * 3 + c] = p[0] + p[12] + 4 * (p[3] + p[9]) + 6 * p[6];
    }
    __syncthreads();
    const int x = blockIdx.x * 16 + threadIdx.x, y = blockIdx.y * 16 + threadIdx.y;
    if (x >= wide || y >= high) return;
    for (int c = 0; c < 3; ++c) {
        const int at = threadIdx.x * 3 + c, r = threadIdx.y * 2;
        const int sum = across[r][at] + across[r + 4][at] + 6 * across[r + 2][at] +
                        4 * (across[r + 1][at] + across[r + 3][at]);
        out[(((size_t)blockIdx.z * high + y) * wide + x) * 3 + c] = (sum + 128) >> 8;
    }
}

// The distance of each pixel to the nearest one in its row that is at least `limit`: the first
// half of an exact distance transform. A warp takes a row: there by a scan, and back.
extern "C" __global__ void __launch_bounds__(128) distance_along_rows(
    const unsigned char* __restrict__ in, int* __restrict__ out, int width, int height, int limit)
{
    const int row = blockIdx.x * 4 + threadIdx.x / 32, lane = threadIdx.x & 31, far = 1 << 20;
    if (row >= height) return;
    const unsigned char* pixel = in + (size_t)row * width;
    int* to = out + (size_t)row * width;
    int last = -far;
    for (int from = 0; from < width; from += 32) {
        const int x = from + lane;
        const unsigned set = __ballot_sync(~0u, x < width && pixel[x] >= limit);
        const unsigned before = set & (~0u >> (31 - lane));
        const int nearest = before ? from + 31 - __clz(before) : last;
        if (x < width) to[x] = x - nearest;
        if (set) last = from + 31 - __clz(set);
    }
    last = 2 * far;
    for (int from = (width - 1) / 32 * 32; from >= 0; from -= 32) {
        const int x = from + lane;
        const unsigned set = __ballot_sync(~0u, x < width && pixel[x] >= limit);
        const unsigned behind = set & (~0u << lane);
        const int nearest = behind ? from + __ffs(behind) - 1 : last;
        if (x < width) to[x] = min(to[x], nearest - x);
        if (set) last = from + __ffs(set) - 1;
    }
}

// Hough's votes of points for lines. A block has an angle, and its votes in shared memory; a sine
// and a cosine of 14 bits.
extern "C" __global__ void __launch_bounds__(256) hough_votes_angle(
    const int* __restrict__ xs, const int* __restrict__ ys, int* __restrict__ votes, int points,
    int most)
{
    __shared__ int bins[4608];
    const int t = threadIdx.x;
    for (int i = t; i <= 2 * most; i += 256) bins[i] = 0;
    float s, c;
    sincospif((float)blockIdx.x / gridDim.x, &s, &c);
    const int sine = __float2int_rn(s * 16384.0f), cosine = __float2int_rn(c * 16384.0f);
    __syncthreads();
    for (int i = t; i < points; i += 256)
        atomicAdd(&bins[((xs[i] * cosine + ys[i] * sine) >> 14) + most], 1);
    __syncthreads();
    for (int i = t; i <= 2 * most; i += 256)
        votes[(size_t)blockIdx.x * (2 * most + 1) + i] = bins[i];
}

// Optical flow as Lucas and Kanade have it, with windows of 7x7.
extern "C" __global__ void __launch_bounds__(256) lucas_kanade_7x7(
    const unsigned char* __restrict__ first, const unsigned char* __restrict__ second,
    float2* __restrict__ flow, int width, int height)
{
    __shared__ float dx[22][22], dy[22][22], dt[22][22];
    const int t = threadIdx.y * 16 + threadIdx.x;
    const int left = blockIdx.x * 16 - 3, top = blockIdx.y * 16 - 3;
    for (int i = t; i < 22 * 22; i += 256) {
        const int x = min(max(left + i % 22, 0), width - 1);
        const int y = min(max(top + i / 22, 0), height - 1);
        const int before = max(x - 1, 0), after = min(x + 1, width - 1);
        const int above = max(y - 1, 0) * width + x, below = min(y + 1, height - 1) * width + x;
        dx[i / 22][i % 22] = 0.5f * (first[y * width + after] - first[y * width + before]);
        dy[i / 22][i % 22] = 0.5f * (first[below] - first[above]);
        dt[i / 22][i % 22] = second[y * width + x] - first[y * width + x];
    }
    __syncthreads();
    const int column = blockIdx.x * 16 + threadIdx.x, row = blockIdx.y * 16 + threadIdx.y;
    if (column >= width || row >= height) return;
    float xx = 0.0f, xy = 0.0f, yy = 0.0f, xt = 0.0f, yt = 0.0f;
    for (int r = threadIdx.y; r < threadIdx.y + 7; ++r)
#pragma unroll
        for (int j = 0; j < 7; ++j) {
            const float a = dx[r][threadIdx.x + j], b = dy[r][threadIdx.x + j];
            const float d = dt[r][threadIdx.x + j];
            xx += a * a;
            xy += a * b;
            yy += b * b;
            xt += a * d;
            yt += b * d;
        }
    const float size = xx * yy - xy * xy;
    float2 v = make_float2(0.0f, 0.0f);
    if (size > 1.0f) v = make_float2((xy * yt - yy * xt) / size, (xy * xt - xx * yt) / size);
    flow[row * width + column] = v;
}
