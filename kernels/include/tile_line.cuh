// Idea:          The tiles of keys of all sequences and heads follow each other on one line. Each
//                block takes an equal piece of it: all end together, however long sequences are.
// Used by:       23_decode.cu
// Explained in:  17_decoding
#pragma once

struct Place {
    int b;        // sequence
    int kv_head;  // of the sequence
    int tile;     // of the head
};

template <int tile_keys>
struct TileLine {
    const int* lengths;  // (batch), keys of each sequence; null: m each
    int batch, kv_heads, m;

    __device__ __forceinline__ int length(int b) const { return lengths ? lengths[b] : m; }

    __device__ __forceinline__ int tiles(int b) const  // of each head; an empty one has one too
    {
        return max(1, (length(b) + tile_keys - 1) / tile_keys);
    }

    // Tiles of all heads of this lane's sequence of the 32 from b0 on and of those before it there.
    __device__ __forceinline__ int tiles_up_to(int b0) const
    {
        const int lane = threadIdx.x % 32;
        int sum = b0 + lane < batch ? tiles(b0 + lane) * kv_heads : 0;
        for (int offset = 1; offset < 32; offset *= 2) {
            const int before = __shfl_up_sync(0xffffffff, sum, offset);
            if (lane >= offset) sum += before;
        }
        return sum;
    }

    __device__ __forceinline__ int total() const
    {
        int sum = 0;
        for (int b0 = 0; b0 < batch; b0 += 32) {
            sum += __shfl_sync(0xffffffff, tiles_up_to(b0), 31);
        }
        return sum;
    }

    __device__ __forceinline__ Place find(int at) const  // at < total()
    {
        int b = 0;
        while (true) {
            const int sum = tiles_up_to(b);
            const unsigned passed = __ballot_sync(0xffffffff, sum <= at);  // the first ones
            const int count = __popc(passed);
            const int before = __shfl_sync(0xffffffff, sum, max(count - 1, 0));
            if (count) at -= before;
            b += count;
            if (count < 32) break;
        }
        return {b, at / tiles(b), at % tiles(b)};
    }
};
