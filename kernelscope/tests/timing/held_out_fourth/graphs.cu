// Graphs, sorted lists, and sorting.

// Breadth-first search: nodes with frontier 0 give `level` to neighbours that are not visited.
extern "C" __global__ void bfs_level(
    const int* first, const int* edge, const int* frontier, const int* visited, int* cost,
    int* next, int nodes, int level)
{
    int node = blockIdx.x * blockDim.x + threadIdx.x;
    if (node < nodes && frontier[node] == 0) {
        for (int e = first[node]; e < first[node + 1]; e++) {
            int id = edge[e];
            if (!visited[id]) {
                cost[id] = level;
                next[id] = 1;
            }
        }
    }
}

// Ranks go along edges from -> to; four edges at a time, `from` in order.
extern "C" __global__ void push_ranks(
    const int4* __restrict__ from, const int4* __restrict__ to, const float* __restrict__ rank,
    float* next, int quads, float damping)
{
    const int threads = gridDim.x * blockDim.x;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < quads; i += threads) {
        const int4 source = from[i], target = to[i];
        atomicAdd(next + target.x, damping * __ldg(rank + source.x));
        atomicAdd(next + target.y, damping * __ldg(rank + source.y));
        atomicAdd(next + target.z, damping * __ldg(rank + source.z));
        atomicAdd(next + target.w, damping * __ldg(rank + source.w));
    }
}

// Lists of documents of two words each, as gaps (lists, length) between their numbers: how many
// documents are in both. A thread walks along two lists.
extern "C" __global__ void common_documents(
    const int* gaps, const int* other_gaps, int* common, int lists, int length)
{
    const int list = blockIdx.x * blockDim.x + threadIdx.x;
    if (list >= lists) return;
    const int* a = gaps + (size_t)list * length;
    const int* b = other_gaps + (size_t)list * length;
    int i = 0, j = 0, count = 0, left = a[0], right = b[0];
    while (true) {
        const bool pass_left = left <= right, pass_right = right <= left;
        if (pass_left && pass_right) count++;
        if (pass_left) {
            if (++i == length) break;
            left += a[i] + 1;
        }
        if (pass_right) {
            if (++j == length) break;
            right += b[j] + 1;
        }
    }
    common[list] = count;
}

// How many of the first `diagonal` numbers of two merged lists come from a.
__device__ int split(const int* a, int a_count, const int* b, int b_count, int diagonal)
{
    int low = max(0, diagonal - b_count), high = min(diagonal, a_count);
    while (low < high) {
        const int middle = (low + high) / 2;
        if (a[middle] <= b[diagonal - 1 - middle])
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

// Two sorted lists become one: a block merges 1,024 numbers, a thread 8 of them.
extern "C" __global__ void merge_sorted(
    const int* __restrict__ a, const int* __restrict__ b, int* __restrict__ merged, int a_count,
    int b_count)
{
    __shared__ int bounds[2], tile[1024];
    const int first = blockIdx.x * 1024, last = min(first + 1024, a_count + b_count);
    if (threadIdx.x < 2)
        bounds[threadIdx.x] = split(a, a_count, b, b_count, threadIdx.x ? last : first);
    __syncthreads();
    const int from_a = bounds[0], count_a = bounds[1] - from_a;
    const int from_b = first - from_a, count = last - first;
    for (int i = threadIdx.x; i < count; i += 128)
        tile[i] = i < count_a ? a[from_a + i] : b[from_b + i - count_a];
    __syncthreads();
    const int* tile_b = tile + count_a;
    const int diagonal = min((int)threadIdx.x * 8, count);
    int i = split(tile, count_a, tile_b, count - count_a, diagonal);
    int j = diagonal - i, taken[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const bool of_a = j >= count - count_a || (i < count_a && tile[i] <= tile_b[j]);
        if (diagonal + k < count) taken[k] = of_a ? tile[i++] : tile_b[j++];
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < 8; ++k)
        if (diagonal + k < count) tile[diagonal + k] = taken[k];
    __syncthreads();
    for (int k = threadIdx.x; k < count; k += 128) merged[first + k] = tile[k];
}

// One pass of a radix sort: keys of a block are put in order of four of their bits.
template <int ITEMS, int WARPS>
__device__ void sort_by_digit(
    unsigned (&key)[ITEMS], int bit, unsigned* exchange, unsigned (*counts)[16])
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int i = threadIdx.x; i < 16 * WARPS; i += 32 * WARPS) counts[i / 16][i % 16] = 0;
    __syncthreads();
    unsigned place[ITEMS];
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) {
        const unsigned digit = key[k] >> bit & 15;
        const unsigned same = __match_any_sync(~0u, digit);
        const unsigned before = counts[warp][digit];
        __syncwarp();
        if (lane == __ffs(same) - 1) counts[warp][digit] = before + __popc(same);
        __syncwarp();
        place[k] = before + __popc(same & ((1u << lane) - 1));
    }
    __syncthreads();
    if (warp == 0) {  // all warps' counts of a digit stand side by side in this scan
        unsigned own[WARPS / 2], sum = 0;
        for (int i = 0; i < WARPS / 2; ++i) {
            const int at = lane * (WARPS / 2) + i;
            own[i] = sum;
            sum += counts[at % WARPS][at / WARPS];
        }
        unsigned all = sum;
        for (int step = 1; step < 32; step *= 2) {
            const unsigned lower = __shfl_up_sync(~0u, all, step);
            if (lane >= step) all += lower;
        }
        for (int i = 0; i < WARPS / 2; ++i) {
            const int at = lane * (WARPS / 2) + i;
            counts[at % WARPS][at / WARPS] = all - sum + own[i];
        }
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) exchange[counts[warp][key[k] >> bit & 15] + place[k]] = key[k];
    __syncthreads();
#pragma unroll
    for (int k = 0; k < ITEMS; ++k) key[k] = exchange[(warp * ITEMS + k) * 32 + lane];
    __syncthreads();
}

// Every 1,024 keys are sorted by their lowest 16 bits; equal ones keep their order.
extern "C" __global__ void __launch_bounds__(256) sort_1024(const unsigned* in, unsigned* out)
{
    __shared__ unsigned exchange[1024], counts[8][16];
    const size_t first = (size_t)blockIdx.x * 1024 + threadIdx.x / 32 * 128 + threadIdx.x % 32;
    unsigned key[4];
    for (int k = 0; k < 4; ++k) key[k] = in[first + k * 32];
    for (int bit = 0; bit < 16; bit += 4) sort_by_digit<4, 8>(key, bit, exchange, counts);
    for (int k = 0; k < 4; ++k) out[first + k * 32] = key[k];
}
