// Idea:          Which tile of keys a block takes in a round, which tiles of queries see it, and in
//                which order: blocks at work together on one head start at different queries.
// Used by:       25_backward_wgmma.cu
// Explained in:  16_hopper
#pragma once

struct KeyWork {
    int head;        // of batch*kv_heads; past them where there is no work left
    int tile;        // of keys, in this head
    int first;       // tile of queries that sees a key of this one; so do all after it
    int count;       // these and those
    int turn;        // which of them comes first
    int begin, end;  // tiles of keys of this head with which this one takes turns

    __device__ __forceinline__ int query_tile(int step) const  // step < count
    {
        const int at = step + turn;
        return first + (at < count ? at : at - count);
    }
};

// Takes step(head, query_tile, number) for each tile of queries of each head that shares the keys.
template <typename Step>
__device__ __forceinline__ void each_step(const KeyWork& work, int sharing, Step step)
{
    for (int head = work.head * sharing; head < (work.head + 1) * sharing; ++head) {
        for (int i = 0; i < work.count; ++i) step(head, work.query_tile(i), i);
    }
}

// What this block, of `blocks` at most, does in a round. Causal masks leave the first tiles of keys
// the most queries: in odd rounds the last block is the first, so that who had a long tile of one
// round has a short one of the next.
template <int keys, int rows, int blocks>
__device__ __forceinline__ KeyWork key_work(int round, int heads, int n, int m, int causal)
{
    const int tiles = (m + keys - 1) / keys;  // of a head
    const int number = round * blocks + (round % 2 ? blocks - 1 - blockIdx.x : blockIdx.x);
    KeyWork work;
    work.head = number < heads * tiles ? number / tiles : heads;
    work.tile = number - work.head * tiles;
    work.first = causal ? max(0, work.tile * keys + n - m) / rows : 0;
    work.count = (n + rows - 1) / rows - work.first;
    work.turn = causal ? 0 : work.tile % work.count;
    work.begin = max(0, round * blocks - work.head * tiles);  // this head's tiles of this round
    work.end = min(tiles, (round + 1) * blocks - work.head * tiles);
    if (!causal) {  // of these, as many as can start at different tiles of queries
        work.begin = work.tile - (work.tile - work.begin) % work.count;
        work.end = min(work.end, work.begin + work.count);
    }
    return work;
}

// Takes action(round, work) for each round in which there is work for this block.
template <int keys, int rows, int blocks, typename Action>
__device__ __forceinline__ void each_round(int heads, int n, int m, int causal, Action action)
{
    for (int round = 0;; ++round) {
        const KeyWork work = key_work<keys, rows, blocks>(round, heads, n, m, causal);
        if (work.head >= heads) return;
        action(round, work);
    }
}

// How many tiles of keys some query of a tile sees.
template <int keys, int rows>
__device__ __forceinline__ int tiles_seen(int query_tile, int n, int m, int causal)
{
    const int tiles = (m + keys - 1) / keys;
    return causal ? min(tiles, ((query_tile + 1) * rows - 1 + m - n) / keys + 1) : tiles;
}

// How many tiles of keys add to the gradient of a step's queries before this one does: those of
// earlier rounds, then those of this round in the order in which they get there if all start at
// once. With a causal mask the last keys that these queries see are the first to get there.
__device__ __forceinline__ int earlier_tiles(const KeyWork& work, int step, int seen, int causal)
{
    if (causal) return work.begin + min(work.end, seen) - 1 - work.tile;
    return work.begin + min(step, work.end - 1 - work.tile) +
           max(0, work.tile + step - work.count + 1 - work.begin);
}
