// Idea:          Tiles in shared memory that are filled and used in turns: two mbarriers each, one
//                says that a tile is full, the other that all who read it are done.
// Used by:       include/tma.cuh
// Explained in:  16_hopper
#pragma once

#include "mbarrier.cuh"

// Step 0, 1, 2, ... of whoever fills or reads it takes tile 0, 1, ..., stages - 1, 0, 1, ...; each
// time round is a phase of both barriers.
template <int stages, int tile_bytes>
struct Ring {
    static constexpr int TILE_BYTES = tile_bytes;

    unsigned tiles;     // (stages, tile_bytes), shared
    unsigned barriers;  // (2, stages), shared: full ones, free ones

    __device__ __forceinline__ unsigned tile(int step) const
    {
        return tiles + step % stages * tile_bytes;
    }
    __device__ __forceinline__ unsigned full(int step) const
    {
        return barriers + step % stages * 8;
    }
    __device__ __forceinline__ unsigned free(int step) const { return full(step) + stages * 8; }

    __device__ __forceinline__ void start(int readers) const  // one fills; readers release
    {
        start_barriers<stages>(full(0), 1);
        start_barriers<stages>(free(0), readers);
    }
    __device__ __forceinline__ void wait_full(int step) const
    {
        wait_for(full(step), step / stages & 1);
    }
    __device__ __forceinline__ void wait_free(int step) const  // the first time round they are
    {
        wait_for(free(step), ~(step / stages) & 1);
    }
    __device__ __forceinline__ void release(int step) const { arrive(free(step)); }
};
