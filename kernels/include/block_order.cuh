// Idea:          Which tile of rows a block takes. Blocks start in the order of their numbers; the
//                order decides what blocks at work together share, and how long the last ones take.
// Used by:       14_flash_mma.cu, 15_flash_tf32x3.cu
// Explained in:  09_flash_attention
#pragma once

struct RowTile {
    int bh;    // number of the head, of batch*heads
    int row0;  // first row
};

// In a grid (batch*heads, tiles of rows). causal: the last rows of all heads come first; they see
// the most keys, and the short ones fill the end. Else all tiles of a head follow each other: what
// they read of K and V stays in L2.
template <int rows>
__device__ __forceinline__ RowTile row_tile(bool causal)
{
    if (causal) return {(int)blockIdx.x, (int)(gridDim.y - 1 - blockIdx.y) * rows};
    const unsigned block = blockIdx.y * gridDim.x + blockIdx.x;
    return {(int)(block / gridDim.y), (int)(block % gridDim.y) * rows};
}
