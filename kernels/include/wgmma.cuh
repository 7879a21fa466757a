// Idea:          Four warps together multiply 64 rows: operands come from tiles in shared memory
//                that a descriptor describes, or from registers; the result stays in registers, and
//                the threads go on while the tensor cores work.
// Used by:       18_flash_wgmma.cu, include/half_products.cuh, include/tile_products.cuh
// Explained in:  16_hopper
#pragma once

#if BFLOAT16
#define WGMMA_TYPES ".f32.bf16.bf16"
#else
#define WGMMA_TYPES ".f32.f16.f16"
#endif

// A tile whose rows are 128 bytes, swizzled, as the copy engine writes it. next: bytes to the next
// 64 columns, where rows are what the product sums over (V); it is not read elsewhere.
__device__ __forceinline__ unsigned long long describe(unsigned tile, int next)
{
    constexpr unsigned long long SWIZZLE_128 = 1ull << 62;
    constexpr unsigned long long EIGHT_ROWS = 1024 >> 4;  // bytes from 8 rows to the next 8
    return SWIZZLE_128 | EIGHT_ROWS << 32 | (unsigned long long)(next >> 4) << 16 |
           (tile & 0x3ffff) >> 4;
}

// Operands of an instruction: its %0, %1, ... are the accumulators, c[0][0], c[0][1], ...
#define LIST32 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, " \
    "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define LIST64 LIST32 ", " \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define LIST96 LIST64 ", " \
    "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define LIST128 LIST96 ", " \
    "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, " \
    "%110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, " \
    "%124, %125, %126, %127"
#define C4(j) "+f"(c[j][0]), "+f"(c[j][1]), "+f"(c[j][2]), "+f"(c[j][3])
#define C32(j) \
    C4(j), C4(j + 1), C4(j + 2), C4(j + 3), C4(j + 4), C4(j + 5), C4(j + 6), C4(j + 7)

// c = a b^T + (add ? c : 0); rows of a, 64, and of b, n, lie in shared memory, 16 columns of each
// are taken. c[j][x] is of row 16*warp + g + x / 2 * 8 and of column 8*j + 2t + x % 2.
#define SCORES(n, list, a, b, add, ...)                                                      \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " add ", 0;"                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16" WGMMA_TYPES                    \
                 " {" list "}, " a ", " b ", p, 1, 1, 0, 0;}"                                \
                 : __VA_ARGS__ : "l"(rows), "l"(columns), "r"(sum))

template <int tiles>
__device__ __forceinline__ void multiply(float (&c)[tiles][4], unsigned long long rows,
                                         unsigned long long columns, int sum)
{
    static_assert(tiles == 8 || tiles == 16, "64 or 128 columns");
    if constexpr (tiles == 8) {
        SCORES(64, LIST32, "%32", "%33", "%34", C32(0));
    } else {
        SCORES(128, LIST64, "%64", "%65", "%66", C32(0), C32(8));
    }
}

// The same with a in registers, as mma16() takes it, and b (16, n) as it lies in shared memory.
#define OUTPUT(n, list, a, b, add, ...)                                                      \
    asm volatile("{.reg .pred p; setp.ne.b32 p, " add ", 0;"                                 \
                 "wgmma.mma_async.sync.aligned.m64n" #n "k16" WGMMA_TYPES                    \
                 " {" list "}, {" a "}, " b ", p, 1, 1, 1;}"                                 \
                 : __VA_ARGS__                                                               \
                 : "r"(rows[0]), "r"(rows[1]), "r"(rows[2]), "r"(rows[3]), "l"(columns), "r"(sum))

template <int tiles>
__device__ __forceinline__ void multiply(float (&c)[tiles][4], const unsigned (&rows)[4],
                                         unsigned long long columns, int sum)
{
    static_assert(tiles == 8 || tiles == 16 || tiles == 24 || tiles == 32, "64 to 256 columns");
    if constexpr (tiles == 8) {
        OUTPUT(64, LIST32, "%32, %33, %34, %35", "%36", "%37", C32(0));
    } else if constexpr (tiles == 16) {
        OUTPUT(128, LIST64, "%64, %65, %66, %67", "%68", "%69", C32(0), C32(8));
    } else if constexpr (tiles == 24) {
        OUTPUT(192, LIST96, "%96, %97, %98, %99", "%100", "%101", C32(0), C32(8), C32(16));
    } else {
        OUTPUT(256, LIST128, "%128, %129, %130, %131", "%132", "%133", C32(0), C32(8), C32(16),
               C32(24));
    }
}

// Before the first product that takes registers which this warp has written.
__device__ __forceinline__ void registers_ready()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void end_of_group()  // of products: all since the last end
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most `newer` of this warp's groups, the newest, are still under way.
template <int newer>
__device__ __forceinline__ void products_done()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(newer) : "memory");
}
