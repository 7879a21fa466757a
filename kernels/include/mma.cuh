// Idea:          One warp instruction multiplies small matrices whose elements are spread over the
//                registers of its 32 lanes: a fragment is what one lane has of a matrix.
// Used by:       14_flash_mma.cu, 23_decode.cu, 29_split_tf32x3.cu, 34_decode_cluster.cu,
//                include/fragment_products.cuh, include/tf32x3.cuh
// Explained in:  11_tensor_cores
#pragma once

// In all layouts g = lane / 4 and t = lane % 4.

// Four 8 x 8 matrices of 16-bit elements from shared memory. Lane l gives the address of row l % 8
// of matrix l / 8 (16 bytes, aligned) and receives from matrix i, in r[i], of row g the elements
// 2t and 2t+1. Seen as 8 rows of four 32-bit elements, it receives element t of row g.
__device__ __forceinline__ void load_matrices(unsigned (&r)[4], unsigned address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// The same of the transposed matrices: in r[i], of column g the elements of rows 2t and 2t+1.
__device__ __forceinline__ void load_transposed(unsigned (&r)[4], unsigned address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// c += a b in fp32; a 16 x 16, b 16 x 8, both of 16-bit elements, two a register:
//
//            a: columns                     b: column g             c: columns
//             2t, 2t+1   2t+8, 2t+9          rows 2t, 2t+1: b0       2t     2t+1
//    row g      a[0]        a[2]             rows 2t+8, 2t+9: b1     c[0]   c[1]
//    row g+8    a[1]        a[3]                                     c[2]   c[3]
template <bool bfloat16>
__device__ __forceinline__ void mma16(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                      unsigned b1)
{
    if constexpr (bfloat16) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    }
}

// c += a b in fp32; a 16 x 8, b 8 x 8, both TF32 (fp32 whose last 13 bits are not read):
//
//            a: columns            b: column g      c: columns
//             t      t+4            row t: b0        2t     2t+1
//    row g    a[0]   a[2]           row t+4: b1      c[0]   c[1]
//    row g+8  a[1]   a[3]                            c[2]   c[3]
__device__ __forceinline__ void mma_tf32(float (&c)[4], const unsigned (&a)[4], unsigned b0,
                                         unsigned b1)
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
        "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// x = big + small, big without the last 13 bits of x: cut off, an operation less than rounded. The
// matrix unit reads 11 bits of small; tf32x3.cuh makes up for the others.
// The mask is in memory, where the compiler does not know it. It would see that the last bits are
// not read, pass x itself as big, and move it where the instruction takes pairs of registers.
__constant__ unsigned TF32_BITS = 0xffffe000;

__device__ __forceinline__ void split_tf32(unsigned& big, unsigned& small, float x)
{
    big = __float_as_uint(x) & TF32_BITS;
    small = __float_as_uint(x - __uint_as_float(big));
}
