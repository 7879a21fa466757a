// Idea:          Blocks that share a result count themselves, and the last to arrive finishes it in
//                the same launch: nobody waits for a block that may not have started.
// Used by:       23_decode.cu
// Explained in:  17_decoding
#pragma once

// Counts this block after all that it wrote. Returns, to all its threads, whether it is the last
// of `blocks`: it sees what they all wrote, and the counter is zero again for the next launch.
__device__ __forceinline__ bool arrive_last(unsigned* counter, unsigned blocks,
                                            unsigned* before)  // one, shared
{
    __syncthreads();  // barrier: the block would be counted with half of its part written
    if (threadIdx.x == 0) {
        // Release: writes of this block come before its count; acquire: reads of others' after it.
        asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;"
                     : "=r"(*before) : "l"(counter), "r"(blocks - 1) : "memory");
    }
    __syncthreads();  // barrier: the count is not there yet
    return *before == blocks - 1;
}
