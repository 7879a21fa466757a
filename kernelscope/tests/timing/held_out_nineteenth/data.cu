// Data: running maxima, a sort by ranks, checksums, packed numbers.

// The largest number of a row so far, and its place (of equal ones the last). A block takes a
// row.
extern "C" __global__ void __launch_bounds__(256) running_maxima_rows(
    const float4* __restrict__ x, float4* __restrict__ top, int4* __restrict__ place, int fours)
{
    __shared__ float of_warp[8];
    __shared__ int place_of_warp[8];
    const int t = threadIdx.x, lane = t & 31, warp = t / 32;
    const size_t first = (size_t)blockIdx.x * fours;
    float carried = -3.0e38f;
    int carried_place = 0;
    for (int start = 0; start < fours; start += 256) {
        const int own = start + t;
        float4 v = make_float4(-3.0e38f, -3.0e38f, -3.0e38f, -3.0e38f);
        if (own < fours) v = x[first + own];
        float* number = &v.x;
        int4 at = make_int4(4 * own, 4 * own, 4 * own, 4 * own);
        int* where = &at.x;
#pragma unroll
        for (int j = 1; j < 4; ++j) {
            if (number[j] >= number[j - 1])
                where[j] = 4 * own + j;
            else {
                number[j] = number[j - 1];
                where[j] = where[j - 1];
            }
        }
        float most = v.w;
        int most_place = at.w;
        for (int step = 1; step < 32; step *= 2) {
            const float other = __shfl_up_sync(~0u, most, step);
            const int other_place = __shfl_up_sync(~0u, most_place, step);
            if (lane >= step && other > most) {
                most = other;
                most_place = other_place;
            }
        }
        if (lane == 31) {
            of_warp[warp] = most;
            place_of_warp[warp] = most_place;
        }
        __syncthreads();
        float before = __shfl_up_sync(~0u, most, 1);
        int before_place = __shfl_up_sync(~0u, most_place, 1);
        if (lane == 0) before = -3.0e38f;
        float all = carried;
        int all_place = carried_place;
        for (int i = 0; i < 8; ++i) {
            if (i == warp && all > before) {
                before = all;
                before_place = all_place;
            }
            if (of_warp[i] >= all) {
                all = of_warp[i];
                all_place = place_of_warp[i];
            }
        }
        carried = all;
        carried_place = all_place;
#pragma unroll
        for (int j = 0; j < 4; ++j)
            if (before > number[j]) {
                number[j] = before;
                where[j] = before_place;
            }
        if (own < fours) {
            top[first + own] = v;
            place[first + own] = at;
        }
        __syncthreads();
    }
}

// Sorts 512 keys and their values by the number of smaller keys. A block takes 512, a thread two.
extern "C" __global__ void __launch_bounds__(256) rank_sort_512_pairs(
    const unsigned* __restrict__ key, const unsigned* __restrict__ value,
    unsigned* __restrict__ key_out, unsigned* __restrict__ value_out)
{
    __shared__ __align__(16) unsigned keys[512];
    const int t = threadIdx.x;
    const size_t first = (size_t)blockIdx.x * 512;
    const unsigned low = key[first + t], high = key[first + 256 + t];
    keys[t] = low;
    keys[256 + t] = high;
    __syncthreads();
    int low_rank = 0, high_rank = 0;
#pragma unroll 8
    for (int i = 0; i < 512; ++i) {
        const unsigned other = keys[i];
        low_rank += other < low || (other == low && i < t);
        high_rank += other < high || (other == high && i < 256 + t);
    }
    key_out[first + low_rank] = low;
    value_out[first + low_rank] = value[first + t];
    key_out[first + high_rank] = high;
    value_out[first + high_rank] = value[first + 256 + t];
}

// Adler-32 of chunks of 4096 bytes. A warp takes a chunk.
extern "C" __global__ void __launch_bounds__(256) adler32_chunks_4096(
    const uint4* __restrict__ text, unsigned* __restrict__ checksum, int chunks)
{
    const int chunk = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x & 31;
    if (chunk >= chunks) return;
    unsigned sum = 0, weighted = 0;
#pragma unroll 4
    for (int i = lane; i < 256; i += 32) {
        const uint4 v = text[(size_t)chunk * 256 + i];
        const unsigned words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const unsigned of_word = __dp4a(words[j], 0x01010101u, 0u);
            sum += of_word;
            weighted += (4096 - 16 * i - 4 * j) * of_word - __dp4a(words[j], 0x03020100u, 0u);
        }
    }
    sum = __reduce_add_sync(~0u, sum);
    weighted = __reduce_add_sync(~0u, weighted);
    if (lane == 0) checksum[chunk] = (weighted + 4096) % 65521 << 16 | (sum + 1) % 65521;
}

// Packs 128 numbers as their distances from the least, in as few bits as the largest needs. A
// warp takes 128 numbers; their words begin at each 128th.
extern "C" __global__ void __launch_bounds__(128) pack_frame_of_128(
    const int4* __restrict__ number, int* __restrict__ least, int* __restrict__ bits,
    unsigned* __restrict__ packed, int frames)
{
    __shared__ unsigned words[4][128];
    const int warp = threadIdx.x / 32, lane = threadIdx.x & 31, frame = blockIdx.x * 4 + warp;
    if (frame >= frames) return;
    const int4 v = number[(size_t)frame * 32 + lane];
    const int low = __reduce_min_sync(~0u, min(min(v.x, v.y), min(v.z, v.w)));
    const int high = __reduce_max_sync(~0u, max(max(v.x, v.y), max(v.z, v.w)));
    const int width = 32 - __clz(high - low);
#pragma unroll
    for (int i = 0; i < 4; ++i) words[warp][32 * i + lane] = 0;
    __syncwarp();
    const unsigned own[4] = {(unsigned)v.x - low, (unsigned)v.y - low, (unsigned)v.z - low,
                             (unsigned)v.w - low};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const int bit = (4 * lane + i) * width, shift = bit & 31;
        if (width) atomicOr(&words[warp][bit / 32], own[i] << shift);
        if (shift + width > 32) atomicOr(&words[warp][bit / 32 + 1], own[i] >> (32 - shift));
    }
    __syncwarp();
    for (int i = lane; i < 4 * width; i += 32) packed[(size_t)frame * 128 + i] = words[warp][i];
    if (lane == 0) {
        least[frame] = low;
        bits[frame] = width;
    }
}
