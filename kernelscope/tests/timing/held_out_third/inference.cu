// Parts of a language model that answers.

#include <cuda_fp16.h>

// One query for each head: q (heads, 64), k and v (heads, keys, 64), out (heads, 64) in halves.
// Four warps of a block share the keys and merge their sums; a lane has two numbers of a row.
extern "C" __global__ void decode_query(
    const __half2* q, const __half2* k, const __half2* v, __half2* out, int keys)
{
    __shared__ float maxima[4], totals[4];
    __shared__ float2 sums[4][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const size_t first = (size_t)blockIdx.x * keys * 32;
    const float2 query = __half22float2(q[blockIdx.x * 32 + lane]);
    float most = -1e30f, total = 0.0f;
    float2 sum = make_float2(0.0f, 0.0f);
    for (int j = warp; j < keys; j += 4) {
        const float2 key = __half22float2(k[first + j * 32 + lane]);
        float score = query.x * key.x + query.y * key.y;
        for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(~0u, score, step);
        score *= 0.125f;
        const float higher = fmaxf(most, score);
        const float shrink = __expf(most - higher), weight = __expf(score - higher);
        const float2 value = __half22float2(v[first + j * 32 + lane]);
        sum.x = sum.x * shrink + weight * value.x;
        sum.y = sum.y * shrink + weight * value.y;
        total = total * shrink + weight;
        most = higher;
    }
    if (lane == 0) {
        maxima[warp] = most;
        totals[warp] = total;
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0) return;
    for (int w = 1; w < 4; ++w) most = fmaxf(most, maxima[w]);
    total = 0.0f;
    sum = make_float2(0.0f, 0.0f);
    for (int w = 0; w < 4; ++w) {
        const float weight = __expf(maxima[w] - most);
        total += weight * totals[w];
        sum.x += weight * sums[w][lane].x;
        sum.y += weight * sums[w][lane].y;
    }
    out[blockIdx.x * 32 + lane] = __floats2half2_rn(sum.x / total, sum.y / total);
}

// The threshold of a row of 2,048 logits: exp of those above it has the share p of all.
// A block of 256 holds the row in registers and halves the range 16 times.
extern "C" __global__ void top_p_threshold(const float* logits, float* threshold, float p)
{
    __shared__ float parts[2][8];
    const float* row = logits + (size_t)blockIdx.x * 2048;
    float mine[8], all = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        mine[i] = expf(row[i * 256 + threadIdx.x]);
        all += mine[i];
    }
    float low = 0.0f, high = 128.0f, wanted = 0.0f;
    for (int turn = 0; turn <= 16; ++turn) {
        const float middle = 0.5f * (low + high);
        float sum = turn == 0 ? all : 0.0f;
        if (turn > 0) {
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += mine[i] > middle ? mine[i] : 0.0f;
        }
        for (int step = 16; step > 0; step /= 2) sum += __shfl_down_sync(~0u, sum, step);
        if (threadIdx.x % 32 == 0) parts[turn % 2][threadIdx.x / 32] = sum;
        __syncthreads();
        sum = 0.0f;
        for (int w = 0; w < 8; ++w) sum += parts[turn % 2][w];
        if (turn == 0)
            wanted = p * sum;
        else if (sum > wanted)
            low = middle;
        else
            high = middle;
    }
    if (threadIdx.x == 0) threshold[blockIdx.x] = low;
}

// Each token takes the two best of 16 experts: their numbers, their weights, and the counts.
extern "C" __global__ void route_top_2(
    const float4* score, int2* expert, float2* weight, int* counts, int tokens)
{
    __shared__ int local[16];
    if (threadIdx.x < 16) local[threadIdx.x] = 0;
    __syncthreads();
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < tokens) {
        float best = -1e30f, second = -1e30f;
        int at = 0, then = 0;
        for (int i = 0; i < 4; ++i) {
            const float4 four = score[4 * t + i];
            const float s[4] = {four.x, four.y, four.z, four.w};
            for (int j = 0; j < 4; ++j) {
                if (s[j] > best) {
                    second = best;
                    then = at;
                    best = s[j];
                    at = 4 * i + j;
                } else if (s[j] > second) {
                    second = s[j];
                    then = 4 * i + j;
                }
            }
        }
        const float share = 1.0f / (1.0f + expf(second - best));
        expert[t] = make_int2(at, then);
        weight[t] = make_float2(share, 1.0f - share);
        atomicAdd(&local[at], 1);
        atomicAdd(&local[then], 1);
    }
    __syncthreads();
    if (threadIdx.x < 16) atomicAdd(&counts[threadIdx.x], local[threadIdx.x]);
}

// y (rows,) int32 = A (rows, columns) x of bytes: a warp takes a row, 16 bytes a lane.
extern "C" __global__ void dot_int8(const int4* a, const int4* x, int* y, int rows, int chunks)
{
    const int row = blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows) return;
    int sum = 0;
    for (int c = threadIdx.x; c < chunks; c += 32) {
        const int4 p = a[(size_t)row * chunks + c], q = x[c];
        sum = __dp4a(p.x, q.x, sum);
        sum = __dp4a(p.y, q.y, sum);
        sum = __dp4a(p.z, q.z, sum);
        sum = __dp4a(p.w, q.w, sum);
    }
    sum = __reduce_add_sync(~0u, sum);
    if (threadIdx.x == 0) y[row] = sum;
}

// x + bias, then x / (1 + exp(-1.702 x)), in pairs of halves throughout.
extern "C" __global__ void bias_gelu_half2(
    const __half2* x, const __half2* bias, __half2* y, int pairs, int columns)
{
    const __half2 one = __float2half2_rn(1.0f), slope = __float2half2_rn(-1.702f);
    const int stride = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < pairs; i += stride) {
        const __half2 v = __hadd2(x[i], bias[i % columns]);
        y[i] = __hmul2(v, h2rcp(__hadd2(one, h2exp(__hmul2(slope, v)))));
    }
}
