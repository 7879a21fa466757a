"""CUDA C for tests of the asynchronous proxy, and programs written as lists of operations."""

import numpy as np
from kernelscope.module import RawModule
from kernelscope.watch import Sanitizer
from watch_harness import launch

HEAD = r"""// kernelscope: sm_90a
typedef unsigned long long u64;
__device__ unsigned at(const void* p) { return (unsigned)__cvta_generic_to_shared(p); }
__device__ void start(u64* bar, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(at(bar)), "r"(count) : "memory");
}
__device__ void started() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ void arrive(u64* bar) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(at(bar)) : "memory");
}
__device__ void expect(u64* bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
        :: "r"(at(bar)), "r"(bytes) : "memory");
}
__device__ void wait(u64* bar, int parity) {
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;"
        " @p bra D; bra W; D: }" :: "r"(at(bar)), "r"(parity) : "memory");
}
__device__ void load(void* to, const void* from, int bytes, u64* bar) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
        " [%0], [%1], %2, [%3];" :: "r"(at(to)), "l"(from), "r"(bytes), "r"(at(bar)) : "memory");
}
__device__ void store(void* to, const void* from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
        :: "l"(to), "r"(at(from)), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
#define SOURCE_READ asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory")
#define STORED asm volatile("cp.async.bulk.wait_group 0;" ::: "memory")
#define FENCE asm volatile("fence.proxy.async.shared::cta;" ::: "memory")
#define FENCE_ALL asm volatile("fence.proxy.async;" ::: "memory")
#define READY asm volatile("wgmma.fence.sync.aligned;" ::: "memory")
#define COMMIT asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory")
#define DONE(n) asm volatile("wgmma.wait_group.sync.aligned " #n ";" ::: "memory")
// 16 columns of halves: chunks of 8 x 16 bytes, one after another
__device__ u64 tile_of(const void* p) { return (at(p) & 0x3ffff) >> 4 | 8ull << 16 | 16ull << 32; }
__device__ void multiply(float (&c)[4], u64 a, u64 b, int sum) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %6, 0;"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, %4, %5,"
        " p, 1, 1, 0, 0; }"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "l"(a), "l"(b), "r"(sum));
}
__device__ void multiply(float (&c)[4], const unsigned (&a)[4], u64 b, int sum) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %9, 0;"
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%0, %1, %2, %3}, {%4, %5, %6, %7}, %8,"
        " p, 1, 1, 0; }"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(sum));
}
__device__ void multiply16(float (&c)[8], u64 a, u64 b, int sum) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %10, 0;"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7},"
        " %8, %9, p, 1, 1, 0, 0; }"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]),
          "+f"(c[7]) : "l"(a), "l"(b), "r"(sum));
}
"""
# and for clusters of blocks
CLUSTER_HEAD = (
    HEAD
    + r"""
#define FENCE_BLOCK asm volatile("fence.acq_rel.cta;" ::: "memory")
__device__ void meet(bool relaxed) {
    if (relaxed) asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
    else asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ unsigned there(const void* mine, int block) {
    unsigned r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at(mine)), "r"(block));
    return r;
}
__device__ void arrive(unsigned bar) {
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"
        :: "r"(bar) : "memory");
}
__device__ void copy(unsigned to, const void* from, int bytes, unsigned bar) {
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
        " [%0], [%1], %2, [%3];" :: "r"(to), "r"(at(from)), "r"(bytes), "r"(bar) : "memory");
}
__device__ void post(unsigned to, int x, unsigned bar) {
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
        :: "r"(to), "r"(x), "r"(bar) : "memory");
}
"""
)
# Four warps, and a thread of a fifth one, share a tile of 2,048 bytes and two mbarriers.
BEGIN = """    __shared__ __align__(1024) int4 tile[128]; __shared__ u64 full, free_;
    const int t = threadIdx.x; int4 got = {}; float c[4] = {};
    if (t == 0) { start(&full, 1); start(&free_, 128); started(); }
    __syncthreads();
"""
OPERATIONS = {
    "W": "tile[t % 128] = make_int4(t, 1, 2, 3);",
    "R": "got = tile[t % 128];",
    "Wy": "((int4*)(x + 1024))[t % 128] = make_int4(t, 1, 2, 3);",
    "Rx": "got = ((int4*)x)[t % 128];",
    "F": "FENCE_ALL;",
    "B": "__syncthreads();",
    "L": "expect(&full, 2048); load(tile, x + 1024, 2048, &full);",
    "A0": "wait(&full, 0);",
    "A1": "wait(&full, 1);",
    "S": "store(x, tile, 2048);",
    "Sr": "SOURCE_READ;",
    "Sw": "STORED;",
    "M": "READY; multiply(c, tile_of(tile), tile_of(tile), 0); COMMIT;",
    "Mw": "DONE(0);",
    "D": "arrive(&free_);",
    "E0": "wait(&free_, 0);",
}
END = "\n    if (t < 128) { out[t] = got.x; out[t + 128] = c[0]; }"


def program(text: str) -> str:
    """The body of a kernel of two lists of operations, "W; F; B | B; S": of 128 threads, of one.

    Barriers are for all, so both lists have as many of them.
    """
    parts = [[one.strip() for one in part.split(";") if one.strip()] for part in text.split("|")]
    lines = [BEGIN]
    sections = [" ".join(part).split("B") for part in parts]
    assert len(sections[0]) == len(sections[1]), text
    for number, (group, single) in enumerate(zip(*sections, strict=True)):
        for condition, names in (("t < 128", group), ("t == 128", single)):
            code = "\n        ".join(OPERATIONS[name] for name in names.split())
            if code:
                lines.append(f"    if ({condition}) {{\n        {code}\n    }}")
        if number + 1 < len(sections[0]):
            lines.append("    __syncthreads();")
    return "\n".join(lines) + END


def kernels_of(bodies, head=HEAD, attributes=""):
    """{body: kernel} of `void k0(int* x, float* out) { body }`, compiled at once."""
    start = f'\nextern "C" __global__ void {attributes}__launch_bounds__(288, 1)'
    code = head + "".join(
        f"{start} k{at}(int* x, float* out) {{\n{body}\n}}" for at, body in enumerate(bodies)
    )
    module = RawModule(code=code, options=("-arch=sm_90a",), backend="simulator")
    return {body: module.get_function(f"k{at}") for at, body in enumerate(bodies)}


def check(kernel, block=160, grid=1, shared=0, order=None, x=None):
    """The findings of a launch on 4,096 ints of 0 and as many floats."""
    kernel.warp_order = order
    arrays = (np.zeros(4096, np.int32) if x is None else x, np.zeros(4096, np.float32))
    return launch(
        kernel, Sanitizer(), arrays=arrays, grid=grid, block=block, shared=shared
    ).findings
