"""The four warps of a wgmma: how they meet, what observers hear, and what is refused."""

from functools import cache

import ml_dtypes
import numpy as np
import pytest
from group_harness import IMAGE, plain_tiles
from kernelscope import Counters, Sanitizer, observe
from kernelscope.differential.matrix import group_kernels
from kernelscope.differential.matrix.groups import from_registers, in_registers
from kernelscope.errors import MemoryFault, SimulatorError, UnsupportedKernel
from kernelscope.events import Observer
from kernelscope.isa.matrix import group_multiplication
from kernelscope.machine import Program
from kernelscope.machine.launch import launch
from kernelscope.module import RawModule
from matrix_harness import small_integers

FORM = group_multiplication("wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16")
FENCE = "wgmma.fence.sync.aligned;"
RNG = np.random.default_rng(4)
A, B = small_integers(RNG, "f16", (64, 16)), small_integers(RNG, "f16", (16, 16))
C = small_integers(RNG, "f32", (64, 16))
SUM = A.astype(float) @ B.T.astype(float) + C


@cache
def program(before: str, target: str = "sm_90a") -> Program:
    """One product, with lines of PTX before it; %t is the number of the thread."""
    entry = group_kernels.multiply("k", FORM, IMAGE, False, True, [1, 1, 0, 0])
    text = group_kernels.HEAD.replace("sm_90a", target) + entry.replace(FENCE, before + FENCE)
    return Program(text)


def run(before="", threads=128, blocks=1, observers=(), order=None, target="sm_90a"):
    """(blocks, 64, 16) sums."""
    tile, words = plain_tiles(A, B)
    sums = np.repeat(in_registers(C[None], FORM.held_d), blocks, axis=0)
    arrays = np.tile(tile, (blocks, 1)), np.array([words] * blocks), np.zeros(4, np.uint8), sums
    flat = [np.ascontiguousarray(one).view(np.uint8).reshape(-1) for one in arrays]
    options = {"observers": observers, "warp_order": order}
    launch(program(before, target), "k", (blocks, 1, 1), (threads, 1, 1), flat, **options)
    return from_registers(flat[-1], FORM.held_d, blocks).view(np.float32)


# -- warps that meet -------------------------------------------------------------------------------
LATE = """
  setp.lt.u32 %g, %t, 96; @%g bra NOW; mov.u32 %i, 0;
LOOP: add.u32 %i, %i, 1; setp.lt.u32 %g, %i, 50; @%g bra LOOP;
NOW: """


@pytest.mark.parametrize("order", [None, 0, 1, 2])
def test_a_product_waits_for_the_warp_that_comes_last(order):
    assert (run(LATE, blocks=3, order=order) == SUM).all()


def test_many_groups_are_computed_at_once():
    assert (run(blocks=70) == SUM).all()


@pytest.mark.parametrize(
    "before, threads, warps",
    [
        ("", 96, "of warp 3 not all"),
        ("", 120, "of warp 3 not all"),
        ("setp.ge.u32 %g, %t, 64; @%g exit; ", 128, "of warp 2, 3 not all"),
        ("and.b32 %i, %t, 31; setp.eq.u32 %g, %i, 5; @%g exit; ", 128, "of warp 0, 1, 2, 3 not"),
        ("setp.lt.u32 %g, %t, 32; @%g bar.sync 1, 64; ", 128, "of warp 0 not all"),
    ],
)
def test_a_warp_that_never_comes_is_named(before, threads, warps):
    with pytest.raises(SimulatorError, match=warps) as caught:
        run(before, threads)
    assert "block (0, 0, 0), thread (" in str(caught.value)
    sanitizer = Sanitizer()
    run(before, threads, observers=(sanitizer,))
    assert "divergent-barrier" in {one.kind for one in sanitizer.findings}


SPINS = """
  setp.lt.u32 %g, %t, 96; @%g bra NOW;
SPIN: ld.volatile.shared.u32 %i, [tile+32000]; setp.eq.u32 %g, %i, 0; @%g bra SPIN;
NOW: """


def test_a_warp_that_waits_for_ever_elsewhere_is_named():
    with pytest.raises(SimulatorError, match="of warp 3 not all"):
        run(SPINS)


@pytest.mark.parametrize(
    "before, what",
    [
        ("setp.ge.u32 %g, %t, 64; @%g add.u64 %db, %db, 16; ", "the descriptor of B"),
        ("setp.eq.u32 %g, %t, 1; @%g add.u64 %da, %da, 16; ", "the descriptor of A"),
        ("setp.lt.u32 %keeps, %t, 64; ", "scale-d"),
    ],
)
def test_operands_that_differ_among_the_threads_of_a_group_are_refused(before, what):
    with pytest.raises(SimulatorError, match=f"{what} of .* is not the same in all threads"):
        run(before)


# -- descriptors -----------------------------------------------------------------------------------
def test_a_tile_beyond_shared_memory_is_out_of_bounds():
    before = "add.u64 %db, %db, 1020; "
    with pytest.raises(MemoryFault, match="the tile of B of .* reads byte 32768 of") as one:
        run(before)
    assert one.value.kind == "out-of-bounds"
    sanitizer = Sanitizer()
    run(before, observers=(sanitizer,))
    assert [found.kind for found in sanitizer.findings] == ["out-of-bounds"]


def test_a_tile_beside_the_pattern_of_its_swizzle_is_misaligned():
    before = "or.b64 %da, %da, 0x4000000000000000; add.u64 %da, %da, 8; "
    with pytest.raises(MemoryFault, match="128-byte swizzle .* __align__.1024.") as caught:
        run(before)
    assert caught.value.kind == "misaligned"


def test_a_swizzle_of_other_architectures_is_refused():
    with pytest.raises(SimulatorError, match="descriptor of A, .* sets bits that sm_90 has no use"):
        run("or.b64 %da, %da, 0x2000000000000000; ")


@pytest.mark.parametrize("target", ["sm_90", "sm_100a", "sm_80"])
def test_another_architecture_has_no_wgmma(target):
    with pytest.raises(UnsupportedKernel, match="sm_90a alone has wgmma.*-arch=sm_90a"):
        run(target=target)


# -- observers -------------------------------------------------------------------------------------
class Heard(Observer):
    """Keeps what is said of asynchronous work, and the last product."""

    def __init__(self):
        super().__init__()
        self.said, self.product = [], None

    def async_issued(self, operation, machine):
        self.said.append(("issued", operation))

    def async_completed(self, operation, machine):
        self.said.append(("completed", operation))

    def instruction(self, event):
        if event.instruction.opcode.startswith("wgmma.mma_async"):
            self.product = event.machine.matrix_product


def test_observers_hear_of_a_product_and_of_the_wait_for_it():
    heard = Heard()
    run(blocks=2, observers=(heard,))
    assert [word for word, _ in heard.said] == ["issued"] * 2 + ["completed"] * 2
    operation = heard.said[1][1]
    assert operation.lanes.tolist() == list(range(128, 256))
    assert operation.completion == "wgmma_group" and operation is heard.said[3][1]
    a, b = operation.accesses
    assert (a.space, a.kind, a.size, a.address.tolist()) == ("shared", "load", 2048, [0])
    assert b.address.size * b.size == 16 * 32 and b.block.tolist() == [1] * b.address.size


def test_a_wait_leaves_the_newest_groups_open():
    line = f"{FORM.opcode} {{%d0,%d1,%d2,%d3,%d4,%d5,%d6,%d7}}, %da, %db, 1, 1, 1, 0, 0; "
    commit, wait = "wgmma.commit_group.sync.aligned; ", "wgmma.wait_group.sync.aligned {}; "
    heard = Heard()
    run(line + commit + line * 2 + commit + wait.format(1) + line + commit, observers=(heard,))
    words = [word for word, _ in heard.said]
    assert words == ["issued"] * 3 + ["completed", "issued", "issued"] + ["completed"] * 4
    assert heard.said[3][1] is heard.said[0][1]


def test_observers_see_the_matrices():
    heard = Heard()
    run(blocks=2, observers=(heard,))
    product = heard.product
    assert product.shape == (64, 16, 16) and product.warps.tolist() == [0, 4]
    a, b, c, d = product.fragments
    assert (a.values[1] == A).all() and (b.values[1] == B.T).all()
    for fragment, expected in ((c, C), (d, SUM)):
        assert (whole(fragment, 1) == expected).all()


def whole(fragment, group):
    """(rows, columns) of what the lanes hold."""
    matrix = np.zeros((fragment.rows, fragment.columns))
    matrix[fragment.row, fragment.column] = fragment.values[group]
    return matrix


def test_observers_see_which_lane_holds_a():
    heard = Heard()
    line = (
        f"{FORM.opcode} {{%d0,%d1,%d2,%d3,%d4,%d5,%d6,%d7}}, {{%x, %x, 0, %x}}, %db, 1, 1, 1, 0; "
    )
    run(f".reg .b32 %x; add.u32 %x, %t, 0x3C00; {line} exit; ", observers=(heard,))
    a = heard.product.fragments[0]
    words = whole(a, 0).astype(np.float16).view(np.uint16)
    for lane in (0, 37, 127):
        row, column = 16 * (lane // 32) + lane % 32 // 4, lane % 4 * 2
        assert words[row, [column, column + 8]].tolist() == [0x3C00 + lane, 0]
        assert words[row + 8, [column, column + 8]].tolist() == [0x3C00 + lane] * 2
    assert a.register.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_product_is_an_instruction_of_each_warp_and_reads_its_tiles_once():
    counters = Counters()
    run(blocks=2, observers=(counters,))
    assert counters.totals["tensor_instructions"] == 2 * 4
    assert counters.totals["wgmma_shared_bytes"] == 2 * (64 + 16) * 32
    assert counters.totals["shared_load_requests"] == 0


# -- CUDA C ----------------------------------------------------------------------------------------
CODE = r"""
__device__ unsigned long long tile(const void* p) {
    unsigned long long at = (unsigned)__cvta_generic_to_shared(p);
    return (at & 0x3FFFF) >> 4 | 1024ull >> 4 << 32 | 1ull << 62;
}

// rows x 64 numbers in lines of 128 bytes, swizzled
__device__ void fill(unsigned short* to, const unsigned short* from, int rows) {
    for (int i = threadIdx.x; i < rows * 64; i += blockDim.x)
        to[i ^ (i / 64 % 8) * 8] = from[i];
}

// Two warp groups: d[g] = a[g] b^T, a: (2, 64, 64), b: (8, 64)
extern "C" __global__ void product(const unsigned short* a, const unsigned short* b, float* d) {
    __shared__ __align__(1024) unsigned short sa[2][64 * 64], sb[8 * 64];
    int group = threadIdx.x / 128, t = threadIdx.x % 128;
    fill(sa[0], a, 128);
    fill(sb, b, 8);
    asm volatile("fence.proxy.async;");
    __syncthreads();
    float s[4];
    asm volatile("wgmma.fence.sync.aligned;");
    for (int k = 0; k < 4; ++k)
        asm volatile(
            "{ .reg .pred p; setp.ne.b32 p, %6, 0;\n"
            "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16"
            " {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0; }"
            : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3])
            : "l"(tile(sa[group]) + 2 * k), "l"(tile(sb) + 2 * k), "r"((int)(k > 0)));
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;");
    int row = 64 * group + t / 32 * 16 + t % 32 / 4;
    for (int i = 0; i < 4; ++i) d[(row + i / 2 * 8) * 8 + t % 4 * 2 + i % 2] = s[i];
}
"""


@pytest.mark.parametrize("observer", [None, Sanitizer])
def test_a_kernel_for_sm_90a_compiles_and_runs(observer):
    kernel = RawModule(code=CODE, backend="simulator", options=("-arch=sm_90a",))
    a = RNG.normal(size=(128, 64)).astype(ml_dtypes.bfloat16)
    b = RNG.normal(size=(8, 64)).astype(ml_dtypes.bfloat16)
    d = np.zeros((128, 8), np.float32)
    seen = [observer()] if observer else []
    with observe(*seen):
        kernel.get_function("product")((1,), (256,), (a, b, d))
    np.testing.assert_allclose(d, a.astype(float) @ b.T.astype(float), atol=2e-5)
    assert not any(one.findings for one in seen)
