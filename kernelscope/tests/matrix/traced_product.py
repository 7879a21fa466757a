"""A traced kernel of two matrix products, for the tests of the tracer and of its page."""

from functools import cache

import numpy as np
from kernelscope.events import observe
from kernelscope.isa.matrix.layouts import layout
from kernelscope.module import RawModule
from kernelscope.watch import Tracer
from matrix_harness import spread_over

CODE = r"""
extern "C" __global__ void product(const unsigned* a, const unsigned* b, float* c) {
    int lane = threadIdx.x % 32;
    float sums[4] = {0, 0, 0, 0};
    for (int step = 0; step < 2; ++step) {
        const unsigned* at = a + (128 * step + 4 * lane);
        const unsigned* bt = b + (64 * step + 2 * lane);
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
            : "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(bt[0]), "r"(bt[1]));
    }
    for (int i = 0; i < 4; ++i) c[4 * threadIdx.x + i] = sums[i];
}
"""
SHAPE = (16, 8, 16)


@cache
def module():
    return RawModule(code=CODE, backend="simulator", options=("-arch=compute_90",))


def traced(warp=None):
    """(tracer, A, B) of two warps that both compute A B, (16, 32) and (32, 8) small integers."""
    rng = np.random.default_rng(4)
    a, b = rng.integers(-4, 5, (16, 32)), rng.integers(-4, 5, (32, 8))
    a_parts = np.stack([a[:, :16], a[:, 16:]]).astype(np.float16)
    b_parts = np.stack([b[:16].T, b[16:].T]).astype(np.float16)
    held = [
        spread_over(parts, layout(name, SHAPE, "f16"))
        for name, parts in (("a", a_parts), ("b", b_parts))
    ]
    with observe(Tracer(warp=warp)) as tracer:
        arguments = [one.view(np.uint32).ravel() for one in held]
        out = np.zeros(256, np.float32)
        module().get_function("product")((1,), (64,), (*arguments, out))
    return tracer, a, b
