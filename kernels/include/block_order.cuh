// Idea:          Which tile of rows a block takes. Blocks start in the order of their numbers, and
//                those at work together should read the same K and V, which then stay in L2.
// Used by:       14_flash_mma.cu, 15_flash_tf32x3.cu
// Explained in:  09_flash_attention
#pragma once

struct RowTile {
    int bh;    // number of the head, of batch*heads
    int row0;  // first row
};

// In a grid (batch*heads, tiles of rows): all tiles of the first `together` heads, then those of
// the next ones. Last rows first: under causal they work longest, and the short ones fill the end.
template <int together, int rows>
__device__ __forceinline__ RowTile row_tile()
{
    const int block = blockIdx.y * gridDim.x + blockIdx.x;
    const int first = block / (together * gridDim.y) * together;  // head of the group
    const int heads = min(together, (int)gridDim.x - first);
    const int in_group = block - first * gridDim.y;
    return {first + in_group % heads, (int)(gridDim.y - 1 - in_group / heads) * rows};
}
