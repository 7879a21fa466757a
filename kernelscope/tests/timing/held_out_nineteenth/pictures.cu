// Pictures and shapes: thin edges, colours of a sensor, a skin over bones.

// Keeps of gradients those that are largest across their edge: 255 for strong ones, 128 for weak
// ones. A block takes 32 x 8 pixels.
extern "C" __global__ void __launch_bounds__(256) canny_thin_edges(
    const float* __restrict__ gx, const float* __restrict__ gy, unsigned char* __restrict__ out,
    int width, int height, float weak, float strong)
{
    __shared__ float size[10][34];
    const int left = blockIdx.x * 32, top = blockIdx.y * 8;
    const int t = threadIdx.y * 32 + threadIdx.x;
    for (int i = t; i < 340; i += 256) {
        const int x = left + i % 34 - 1, y = top + i / 34 - 1;
        float s = 0.0f;
        if (x >= 0 && x < width && y >= 0 && y < height) {
            const float p = gx[(size_t)y * width + x], q = gy[(size_t)y * width + x];
            s = sqrtf(p * p + q * q);
        }
        size[i / 34][i % 34] = s;
    }
    __syncthreads();
    const int x = left + threadIdx.x, y = top + threadIdx.y;
    if (x >= width || y >= height) return;
    const size_t place = (size_t)y * width + x;
    const float p = gx[place], q = gy[place], across = fabsf(p), down = fabsf(q);
    int dx = 1, dy = 0;
    if (down > 2.41421356f * across) {
        dx = 0;
        dy = 1;
    } else if (down > 0.41421356f * across) {
        dy = p * q > 0.0f ? 1 : -1;
    }
    const int row = threadIdx.y + 1, column = threadIdx.x + 1;
    const float own = size[row][column];
    const bool most = own > size[row - dy][column - dx] && own >= size[row + dy][column + dx];
    out[place] = !most || own < weak ? 0 : own < strong ? 128 : 255;
}

// Colours of a sensor with a filter in RGGB order, by means of neighbours. A thread takes a
// pixel; the border is repeated in steps of two.
extern "C" __global__ void __launch_bounds__(256) bayer_rggb_to_rgba(
    const unsigned char* __restrict__ raw, uchar4* __restrict__ out, int width, int height)
{
    const int x = blockIdx.x * 32 + threadIdx.x, y = blockIdx.y * 8 + threadIdx.y;
    if (x >= width || y >= height) return;
    const int left = x ? x - 1 : 1, right = x < width - 1 ? x + 1 : width - 2;
    const unsigned char* row = raw + (size_t)y * width;
    const unsigned char* high = raw + (size_t)(y ? y - 1 : 1) * width;
    const unsigned char* low = raw + (size_t)(y < height - 1 ? y + 1 : height - 2) * width;
    const int own = row[x], sides = row[left] + row[right], ends = high[x] + low[x];
    const int corners = high[left] + high[right] + low[left] + low[right];
    int red, green = own, blue;
    if ((x & 1) == (y & 1)) {
        green = (sides + ends + 2) / 4;
        red = x & 1 ? (corners + 2) / 4 : own;
        blue = x & 1 ? own : (corners + 2) / 4;
    } else {
        red = ((y & 1 ? ends : sides) + 1) / 2;
        blue = ((y & 1 ? sides : ends) + 1) / 2;
    }
    out[(size_t)y * width + x] = make_uchar4(red, green, blue, 255);
}

// Moves points and normals with four of 256 bones each. A thread takes a point.
extern "C" __global__ void __launch_bounds__(256) skin_4_bones(
    const float* __restrict__ point, const float* __restrict__ normal,
    const uchar4* __restrict__ bone, const float4* __restrict__ share,
    const float4* __restrict__ matrix, float* __restrict__ point_out,
    float* __restrict__ normal_out, int points)
{
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= points) return;
    const uchar4 b = bone[i];
    const float4 s = share[i];
    const int bones[4] = {b.x, b.y, b.z, b.w};
    const float shares[4] = {s.x, s.y, s.z, s.w};
    float4 m[3] = {};
#pragma unroll
    for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int r = 0; r < 3; ++r) {
            const float4 v = matrix[bones[j] * 3 + r];
            m[r].x += shares[j] * v.x;
            m[r].y += shares[j] * v.y;
            m[r].z += shares[j] * v.z;
            m[r].w += shares[j] * v.w;
        }
    const float x = point[3 * i], y = point[3 * i + 1], z = point[3 * i + 2];
    const float p = normal[3 * i], q = normal[3 * i + 1], o = normal[3 * i + 2];
    float turned[3];
#pragma unroll
    for (int r = 0; r < 3; ++r) {
        point_out[3 * i + r] = m[r].x * x + m[r].y * y + m[r].z * z + m[r].w;
        turned[r] = m[r].x * p + m[r].y * q + m[r].z * o;
    }
    const float factor = rsqrtf(turned[0] * turned[0] + turned[1] * turned[1] +
                                turned[2] * turned[2] + 1e-12f);
#pragma unroll
    for (int r = 0; r < 3; ++r) normal_out[3 * i + r] = turned[r] * factor;
}
