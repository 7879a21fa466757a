// Idea:          Which tiles of keys a block takes, which tiles of queries see them, and in which
//                order: blocks at work on one head add to the gradients of different queries.
// Used by:       25_backward_wgmma.cu
// Explained in:  16_hopper
#pragma once

struct KeyWork {
    int head;        // of batch*kv_heads
    int tile;        // of keys, in this head
    int first;       // tile of queries that sees a key of this one; so do all after it
    int count;       // these and those
    int turn;        // which of them comes first, the rest in a circle; -1: from the last backwards
    int begin, end;  // of this head's shares of tiles: of those that start together

    __device__ __forceinline__ int query_tile(int step) const  // step < count
    {
        const int at = step + turn;
        return first + (turn < 0 ? count - 1 - step : at < count ? at : at - count);
    }
};

// Takes step(head, query_tile) for each tile of queries of each head that shares the keys.
template <typename Step>
__device__ __forceinline__ void each_step(const KeyWork& work, int sharing, Step step)
{
    for (int head = work.head * sharing; head < (work.head + 1) * sharing; ++head) {
        for (int i = 0; i < work.count; ++i) step(head, work.query_tile(i));
    }
}

// Of a head whose keys are `tiles` tiles: one tile a share or, with a causal mask, the first and
// the last, the second and the last but one, and so on, so that all shares have as many queries.
__device__ __forceinline__ int shares_of(int tiles, int causal)
{
    return causal ? (tiles + 1) / 2 : tiles;
}

// With a causal mask, by how much the first tile of a share starts later than its first queries.
template <int rows>
__device__ __forceinline__ int causal_turn(int n, int m)
{
    return ((n + rows - 1) / rows - max(0, n - m) / rows) / 2;
}

// Takes action(number, work) for each tile of keys of this block, of `blocks` at most. As long as
// all steps take the same time, blocks of a round hardly ever reach the same queries in one step.
template <int keys, int rows, int blocks, typename Action>
__device__ __forceinline__ void each_tile(int heads, int n, int m, int causal, Action action)
{
    const int tiles = (m + keys - 1) / keys;  // of a head
    const int shares = shares_of(tiles, causal);
    bool second = false;  // tile of a share
    for (int number = 0, share = blockIdx.x; share < heads * shares; ++number) {
        const int at = share % shares, round = share / blocks * blocks;
        KeyWork work{share / shares, second ? tiles - 1 - at : at};
        work.first = causal ? max(0, work.tile * keys + n - m) / rows : 0;
        work.count = (n + rows - 1) / rows - work.first;
        work.begin = max(0, round - work.head * shares);
        work.end = min(shares, round + blocks - work.head * shares);
        if (causal) {
            work.turn = second ? -1 : causal_turn<rows>(n, m);
        } else {  // tiles of this round start `keys` apart; who does not fit starts with the first
            const int fitting = (work.count + keys / rows - 1) / (keys / rows);
            work.begin = at - (at - work.begin) % fitting;
            work.end = min(work.end, work.begin + fitting);
            work.turn = (at - work.begin) * (keys / rows);
        }
        action(number, work);
        second = causal && !second && tiles - 1 - at != at;
        if (!second) share += blocks;
    }
}

// How many tiles of keys some query of a tile sees, with a causal mask.
template <int keys, int rows>
__device__ __forceinline__ int tiles_seen(int query_tile, int n, int m)
{
    const int last = (query_tile + 1) * rows - 1 + m - n;  // key that its last query sees
    return last < 0 ? 0 : min((m + keys - 1) / keys, last / keys + 1);
}

struct Place {
    int earlier;  // tiles of keys that add to the gradient of the same queries before this one
    int all;      // that do so at all
};

// The place of a tile of keys among those that the queries of a step see: those of earlier rounds
// come first, then first tiles of shares, then second ones, either in the order in which they get
// there if all start at once. So who waits does so for an earlier step, and never in a circle.
template <int keys, int rows>
__device__ __forceinline__ Place place_of(const KeyWork& work, int query_tile, int n, int m,
                                          int causal)
{
    const int tiles = (m + keys - 1) / keys;
    const int all = causal ? tiles_seen<keys, rows>(query_tile, n, m) : tiles;
    const int end = min(work.end, all), from = tiles - work.end;  // first and second tiles: ends
    const int before =  // in earlier rounds
        min(work.begin, all) + (causal ? max(0, all - tiles + work.begin) : 0);
    if (work.turn < 0) return {before + end - work.begin + work.tile - max(work.end, from), all};
    const int started =  // tiles that start at these queries or earlier ones: the last comes first
        causal ? tiles_seen<keys, rows>(query_tile - causal_turn<rows>(n, m), n, m)
               : work.begin + query_tile / (keys / rows) + 1;
    const int at = max(work.begin, min(end, started)) - 1 - work.tile;
    return {before + (at < 0 ? at + end - work.begin : at), all};
}
