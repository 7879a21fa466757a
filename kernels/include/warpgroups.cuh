// Idea:          A block that stays on its multiprocessor, tile after tile, and whose warpgroups,
//                four warps each, do different work: they share out registers, and take turns.
// Used by:       18_flash_wgmma.cu, 25_backward_wgmma.cu
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

// What this block, of `blocks` at most, does in a round. longest_first: from the last rows of all
// heads, which in causal attention see the most keys, to the first; in odd rounds the last block is
// the first, so that who had the longest tile of one round has the shortest of the next. Else head
// by head, so that what blocks at work together read stays in L2, and every other head's rows in
// reverse, long ones after short ones.
template <int rows, int blocks, bool longest_first>
__device__ __forceinline__ Work work_of(int round, int heads, int n)
{
    const int tiles = (n + rows - 1) / rows;  // of a head
    const bool turned = longest_first && round % 2;
    const int number = round * blocks + (turned ? blocks - 1 - blockIdx.x : blockIdx.x);
    if (number >= heads * tiles) return {heads, 0};
    const int head = longest_first ? number % heads : number / tiles;
    const int at = longest_first ? number / heads : number % tiles;
    return {head, (longest_first || head % 2 == 0 ? tiles - 1 - at : at) * rows};
}
