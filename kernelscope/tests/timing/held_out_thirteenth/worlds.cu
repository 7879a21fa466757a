// Worlds: waves in rock, proteins, prices of shares, points that are far from each other.

// A step of the acoustic wave equation, of eighth order in space, with a border of four cells on
// all sides. A block of 32 x 8 marches along z: a thread keeps nine planes of its column in
// registers, and the middle one is a tile in shared memory. `next` has the step before.
extern "C" __global__ void __launch_bounds__(256) acoustic_wave_25_point(
    const float* __restrict__ now, const float* __restrict__ speed, float* __restrict__ next,
    int width, int height, int depth)
{
    constexpr float C0 = -2.8472222f, C1 = 1.6f, C2 = -0.2f, C3 = 0.025396825f, C4 = -0.0017857143f;
    __shared__ float tile[16][40];
    const int tx = threadIdx.x + 4, ty = threadIdx.y + 4;
    const int x = blockIdx.x * 32 + tx, y = blockIdx.y * 8 + ty;
    const size_t plane = (size_t)width * height;
    const size_t at = (size_t)y * width + x;
    float column[9];
#pragma unroll
    for (int i = 0; i < 8; ++i) column[i + 1] = now[at + i * plane];
    for (int z = 4; z < depth - 4; ++z) {
#pragma unroll
        for (int i = 0; i < 8; ++i) column[i] = column[i + 1];
        column[8] = now[at + (z + 4) * plane];
        const size_t here = at + z * plane;
        __syncthreads();
        tile[ty][tx] = column[4];
        if (threadIdx.y < 4) {
            tile[threadIdx.y][tx] = now[here - 4 * (size_t)width];
            tile[ty + 8][tx] = now[here + 8 * (size_t)width];
        }
        if (threadIdx.x < 4) {
            tile[ty][threadIdx.x] = now[here - 4];
            tile[ty][tx + 32] = now[here + 32];
        }
        __syncthreads();
        float sum = 3.0f * C0 * column[4];
        sum += C1 * (tile[ty][tx - 1] + tile[ty][tx + 1] + tile[ty - 1][tx] + tile[ty + 1][tx] +
                     column[3] + column[5]);
        sum += C2 * (tile[ty][tx - 2] + tile[ty][tx + 2] + tile[ty - 2][tx] + tile[ty + 2][tx] +
                     column[2] + column[6]);
        sum += C3 * (tile[ty][tx - 3] + tile[ty][tx + 3] + tile[ty - 3][tx] + tile[ty + 3][tx] +
                     column[1] + column[7]);
        sum += C4 * (tile[ty][tx - 4] + tile[ty][tx + 4] + tile[ty - 4][tx] + tile[ty + 4][tx] +
                     column[0] + column[8]);
        next[here] = 2.0f * column[4] - next[here] + speed[here] * sum;
    }
}

// Smith and Waterman's best score of a query of 128 residues in each of many proteins, gaps by
// Gotoh. A block takes a protein and goes over its anti-diagonals; a thread has a residue of the
// query. Residues are one of 16 classes.
extern "C" __global__ void __launch_bounds__(128) smith_waterman_block(
    const unsigned char* __restrict__ query, const unsigned char* __restrict__ protein,
    const int* __restrict__ table, int* __restrict__ best, int length, int open, int extend)
{
    __shared__ int similar[256], score[2][129], gap[2][129], of_warp[4];
    const int t = threadIdx.x;
    const unsigned char* target = protein + (size_t)blockIdx.x * length;
    similar[t] = table[t] - 4;
    similar[t + 128] = table[t + 128] - 4;
    for (int i = t; i < 129; i += 128) {
        score[0][i] = score[1][i] = 0;
        gap[0][i] = gap[1][i] = -1000;
    }
    const int* row = &similar[(query[t] & 15) * 16];
    int left = 0, gap_left = -1000, diagonal = 0, most = 0;
    __syncthreads();
    for (int step = 0; step < length + 127; ++step) {
        const int now = step & 1, j = step - t;
        if (j >= 0 && j < length) {
            const int up = score[now ^ 1][t];
            const int gap_up = max(gap[now ^ 1][t] - extend, up - open);
            gap_left = max(gap_left - extend, left - open);
            int here = diagonal + row[target[j] & 15];
            here = max(max(here, 0), max(gap_up, gap_left));
            diagonal = up;
            left = here;
            most = max(most, here);
            score[now][t + 1] = here;
            gap[now][t + 1] = gap_up;
        }
        __syncthreads();
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes >>= 1)
        most = max(most, __shfl_xor_sync(0xFFFFFFFF, most, lanes));
    if (t % 32 == 0) of_warp[t / 32] = most;
    __syncthreads();
    if (t == 0) best[blockIdx.x] = max(max(of_warp[0], of_warp[1]), max(of_warp[2], of_warp[3]));
}

// Four random words of Philox 4 x 32, ten rounds.
__device__ __forceinline__ uint4 philox(uint4 c, uint2 key)
{
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        const unsigned p = __umulhi(0xD2511F53u, c.x), q = __umulhi(0xCD9E8D57u, c.z);
        c = make_uint4(q ^ c.y ^ key.x, 0xCD9E8D57u * c.z, p ^ c.w ^ key.y, 0xD2511F53u * c.x);
        key.x += 0x9E3779B9u;
        key.y += 0xBB67AE85u;
    }
    return c;
}

__device__ __forceinline__ float2 normals(unsigned u, unsigned v)
{
    const float radius = sqrtf(-2.0f * logf(((float)u + 1.0f) * 2.3283064e-10f));
    float s, c;
    __sincosf((float)v * 1.4629181e-9f, &s, &c);
    return make_float2(radius * c, radius * s);
}

// What a call pays along paths of Heston's model: the share's price and its variance, full
// truncation, two steps of a path from four random words. A thread takes a path.
extern "C" __global__ void heston_paths(
    float* __restrict__ payoff, int paths, int steps, float strike, float years, int seed)
{
    const int path = blockIdx.x * blockDim.x + threadIdx.x;
    if (path >= paths) return;
    constexpr float KAPPA = 1.5f, THETA = 0.04f, SIGMA = 0.3f, RHO = -0.9f, RATE = 0.025f;
    const float dt = years / steps, root = sqrtf(dt), other = sqrtf(1.0f - RHO * RHO);
    float log_price = 0.0f, variance = 0.04f;
    for (int i = 0; i < steps; i += 2) {
        const uint4 word = philox(make_uint4(path, i, 0, 0), make_uint2(seed, 0));
        const float2 pair[2] = {normals(word.x, word.y), normals(word.z, word.w)};
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float v = fmaxf(variance, 0.0f), deviation = sqrtf(v) * root;
            const float of_price = RHO * pair[j].x + other * pair[j].y;
            log_price += (RATE - 0.5f * v) * dt + deviation * of_price;
            variance += KAPPA * (THETA - v) * dt + SIGMA * deviation * pair[j].x;
        }
    }
    payoff[path] = expf(-RATE * years) * fmaxf(100.0f * expf(log_price) - strike, 0.0f);
}

// PointNet++'s samples: of 1024 points, one after the other the farthest from those taken. A block
// of 256 takes a cloud, a thread four points with their distances in registers.
extern "C" __global__ void __launch_bounds__(256) farthest_points(
    const float* __restrict__ cloud, int* __restrict__ chosen, int samples)
{
    __shared__ float place[1024][3];
    __shared__ float far_of[8];
    __shared__ int index_of[8];
    const int t = threadIdx.x;
    const float* from = cloud + (size_t)blockIdx.x * 3072;
    for (int i = t; i < 3072; i += 256) (&place[0][0])[i] = from[i];
    __syncthreads();
    float x[4], y[4], z[4], nearest[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        x[j] = place[t + 256 * j][0];
        y[j] = place[t + 256 * j][1];
        z[j] = place[t + 256 * j][2];
        nearest[j] = 1e10f;
    }
    int last = 0;
    for (int s = 0; s < samples; ++s) {
        if (t == 0) chosen[blockIdx.x * samples + s] = last;
        const float px = place[last][0], py = place[last][1], pz = place[last][2];
        float most = -1.0f;
        int at = 0;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const float dx = x[j] - px, dy = y[j] - py, dz = z[j] - pz;
            nearest[j] = fminf(nearest[j], dx * dx + dy * dy + dz * dz);
            if (nearest[j] > most) {
                most = nearest[j];
                at = t + 256 * j;
            }
        }
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes >>= 1) {
            const float other = __shfl_xor_sync(0xFFFFFFFF, most, lanes);
            const int other_at = __shfl_xor_sync(0xFFFFFFFF, at, lanes);
            if (other > most || (other == most && other_at < at)) {
                most = other;
                at = other_at;
            }
        }
        if (t % 32 == 0) {
            far_of[t / 32] = most;
            index_of[t / 32] = at;
        }
        __syncthreads();
        most = far_of[0];
        last = index_of[0];
#pragma unroll
        for (int w = 1; w < 8; ++w)
            if (far_of[w] > most || (far_of[w] == most && index_of[w] < last)) {
                most = far_of[w];
                last = index_of[w];
            }
        __syncthreads();
    }
}
