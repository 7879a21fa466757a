// Idea:          Four floats at a time: one 16-byte load where there would be four of 4 bytes.
// Used by:       10_flash_rows.cu, include/base2_parts.cuh, include/cluster_sum.cuh,
//                include/parts.cuh, include/quads.cuh, include/register_tile.cuh,
//                include/row_products.cuh, include/row_softmax.cuh
// Explained in:  03_memory_traffic
#pragma once

__device__ __forceinline__ float4 load4(const float* x)  // x[0] to x[3]; 16-byte aligned
{
    return *reinterpret_cast<const float4*>(x);
}

__device__ __forceinline__ float element(float4 x, int i)  // i known at compile time
{
    return i == 0 ? x.x : i == 1 ? x.y : i == 2 ? x.z : x.w;
}
