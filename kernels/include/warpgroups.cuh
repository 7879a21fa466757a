// Idea:          A block that stays on its multiprocessor, tile after tile, and whose warpgroups,
//                four warps each, do different work: they share out registers, and take turns.
// Used by:       18_flash_wgmma.cu, 25_backward_wgmma.cu, 33_flash_fp16x3.cu
// Explained in:  16_hopper
#pragma once

// A thread of this warpgroup has `count` registers from here on, a multiple of 8: less than before.
template <int count>
__device__ __forceinline__ void give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(count));
}

// More than before: waits until other warpgroups have given them.
template <int count>
__device__ __forceinline__ void take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(count));
}

// Waits until the group before this one has ended its turn. Barrier 1 + group is passed by 256
// threads: those that wait, and those that end their turn and go on.
__device__ __forceinline__ void my_turn(int group)
{
    asm volatile("bar.sync %0, 256;" :: "r"(1 + group) : "memory");
}

template <int groups>
__device__ __forceinline__ void end_turn(int group)
{
    asm volatile("bar.arrive %0, 256;" :: "r"(1 + (group + 1) % groups) : "memory");
}

// Waits for the other threads of this warpgroup; 8 and on are the numbers of these barriers.
__device__ __forceinline__ void meet(int group)
{
    asm volatile("bar.sync %0, 128;" :: "r"(8 + group) : "memory");
}

struct Work {
    int head;  // of batch*heads; past them where there is no work left
    int row0;  // first row of the tile
};

// What this block, of `blocks` at most, does in a round. Heads go in groups, one group after the
// other, so that K and V of those that blocks are at stay in L2. In a group the last rows of all
// heads come first, which in causal attention see the most keys; in odd rounds the last block is
// the first, so that who had the longest tile of one round has the shortest of the next. In groups
// of one head every other head's rows go in reverse, long ones after short ones.
template <int rows, int blocks, int group>
__device__ __forceinline__ Work work_of(int round, int heads, int n)
{
    const int tiles = (n + rows - 1) / rows;  // of a head
    const bool turned = group > 1 && round % 2;
    const int number = round * blocks + (turned ? blocks - 1 - blockIdx.x : blockIdx.x);
    if (number >= heads * tiles) return {heads, 0};
    const int first = number / tiles / group * group;  // head of the group
    const int width = min(group, heads - first);       // heads in it: fewer in the last one
    const int in_group = number - first * tiles;
    const int at = in_group / width;
    const bool reversed = group > 1 || first % 2 == 0;
    return {first + in_group % width, (reversed ? tiles - 1 - at : at) * rows};
}
