"""Registers of products, mbarriers and warp groups used in a wrong way, and the remedies."""

from functools import cache

import numpy as np
import pytest
from async_source import HEAD, check, kernels_of

# Tiles that are there and fenced, sums and operands in registers, two mbarriers.
BEGIN = """    __shared__ __align__(1024) int4 tile[256]; __shared__ u64 full, other;
    const int t = threadIdx.x; float c[4] = {}; float d[8] = {}; unsigned a[4] = {};
    const u64 m = tile_of(tile); tile[t % 128] = {}; tile[t % 128 + 128] = {}; FENCE;
    if (t == 0) { start(&full, 1); start(&other, 128); started(); }
    __syncthreads();
"""
# name -> (code, kind, severity, what the message says, what the remedy says)
MISUSES = {
    "sums used before the wait": (
        "READY; multiply(c, m, m, 0); COMMIT; out[t] = c[0] * 2; DONE(0);",
        "race", "error", "uses sums of the wgmma of line", "wgmma.wait_group",
    ),
    "sums stored before the wait": (
        "READY; multiply(c, m, m, 0); COMMIT; out[t] = c[1]; DONE(0);",
        "race", "error", "stores sums of the wgmma", "wgmma.wait_group",
    ),
    "a group too few waited for": (
        "READY; multiply(c, m, m, 0); COMMIT; multiply16(d, m, m, 0); COMMIT; DONE(1);"
        " out[t] = d[0] + c[0]; DONE(0);",
        "race", "error", "uses sums", "newer groups",
    ),
    "waited for without a commit": (
        "READY; multiply(c, m, m, 0); DONE(0); out[t] = c[0] + 1; COMMIT; DONE(0);",
        "race", "error", "uses sums", "close the group",
    ),
    "sums overwritten": (
        "READY; multiply(c, m, m, 0); COMMIT; c[2] = 1; DONE(0); out[t] = c[2];",
        "race", "error", "overwrites sums", "wgmma.wait_group",
    ),
    "sums taken as A": (
        "READY; multiply(c, m, m, 0); COMMIT; a[0] = *(unsigned*)&c[0]; READY;"
        " multiply(d4, a, m, 0); COMMIT; DONE(0); out[t] = d4[0];",
        "race", "error", "takes as A", "wgmma.wait_group",
    ),
    "sums in another shape": (
        "READY; multiply(*(float(*)[4])d, m, m, 0); multiply16(d, m, m, 1); COMMIT; DONE(0);"
        " out[t] = d[0];",
        "race", "error", "in another shape", "wgmma.wait_group",
    ),
    "A overwritten": (
        "READY; multiply(c, a, m, 0); COMMIT; a[1] = t; DONE(0); out[t] = c[0] + a[1];",
        "race", "warning", "takes as A, and has not waited", "registers of its own",
    ),
    "no wgmma.fence at all": (
        "multiply(c, m, m, 0); COMMIT; DONE(0); out[t] = c[0];",
        "race", "error", "no wgmma.fence lies before", "wgmma.fence.sync.aligned",
    ),
    "no wgmma.fence behind a write to the sums": (
        "READY; multiply(c, m, m, 0); COMMIT; DONE(0); for (int i = 0; i < 4; ++i) c[i] *= 2;"
        " multiply(c, m, m, 1); COMMIT; DONE(0); out[t] = c[0];",
        "race", "error", "has written since its last wgmma.fence", "last write to the registers",
    ),
    "no wgmma.fence behind a write to A": (
        "READY; for (int i = 0; i < 4; ++i) a[i] = t; multiply(c, a, m, 0); COMMIT; DONE(0);"
        " out[t] = c[0];",
        "race", "error", "has written since its last wgmma.fence", "last write to the registers",
    ),
    "bytes too many": (
        "if (t == 0) { expect(&full, 2048 + 16); load(tile, x, 2048, &full); } wait(&full, 0);",
        "divergent-barrier", "error", "it expects 16 more than are copied", "expect_tx",
    ),
    "bytes too few": (
        "if (t == 0) { expect(&full, 2048 - 16); load(tile, x, 2048, &full); } wait(&full, 0);",
        "divergent-barrier", "error", "more are copied than it expects, by 16", "expect_tx",
    ),
    "bytes that nobody waits for": (
        "if (t == 0) expect(&full, 64);",
        "divergent-barrier", "error", "it expects 64 more than are copied", "expect_tx",
    ),
    "arrivals too few": (
        "if (t < 100) arrive(&other); wait(&other, 0);",
        "divergent-barrier", "error", "waits for 28 of 128 arrivals", "count what each phase gets",
    ),
    "arrivals too many": (
        """if (t == 0) asm volatile("{ .reg .b64 s; mbarrier.arrive.shared.b64 s, [%0], 129; }"
            :: "r"(at(&other)) : "memory");""",
        "divergent-barrier", "error", "expects no more arrivals", "count what each phase gets",
    ),
    "never initialised": (
        "if (t == 0) expect((u64*)&tile[9], 16);",
        "uninitialised-read", "error", "not initialised", "",
    ),
    "read as memory": (
        "if (t == 0) { expect(&full, 0); out[0] = *(volatile u64*)&full >> 63; }",
        "race", "error", "where the mbarrier of line", "mbarrier.test_wait",
    ),
    "written as memory": (
        "if (t == 0) *(volatile unsigned*)&full = 0;",
        "race", "error", "where the mbarrier of line", "mbarrier.inval",
    ),
    "initialised again": (
        "if (t == 0) { arrive(&full); start(&full, 1); started(); }",
        "race", "error", "initialises the mbarrier at full[0] again", "once, before the loop",
    ),
    "initialised again under a copy": (
        """if (t == 0) { expect(&full, 2048); load(tile, x, 2048, &full); start(&full, 1); }""",
        "race", "error", "has yet to count its bytes", "mbarrier.inval",
    ),
    "initialised again while waited for": (
        """if (t >= 32) wait(&full, 0);
        else { __nanosleep(1000); for (volatile int i = 0; i < 20; ++i) { }
               if (t == 0) { start(&full, 1); arrive(&full); } }""",
        "race", "error", "other threads wait for its phase", "mbarrier.inval",
    ),
    "no fence behind the init": (
        """__shared__ u64 bar; if (t == 0) { start(&bar, 1); expect(&bar, 2048);
            load(tile, x, 2048, &bar); wait(&bar, 0); }""",
        "race", "error", "no fence lies between its init", "fence.mbarrier_init.release.cluster",
    ),
    "no barrier behind the init": (
        """__shared__ u64 bar; if (t == 32) { start(&bar, 1); started(); }
        if (t == 0) { expect(&bar, 2048); load(tile, x, 2048, &bar); wait(&bar, 0); }""",
        "race", "error", "", "",
    ),
    "a tile outside": (
        "READY; multiply(c, m, m + 0x3000, 0); COMMIT; DONE(0); out[t] = c[0];",
        "out-of-bounds", "error", "the tile of B", "",
    ),
    "a copy outside": (
        "if (t == 0) { expect(&full, 65536); load(tile, x, 65536, &full); }",
        "out-of-bounds", "error", "copies 65536 bytes", "",
    ),
    "a copy that is not aligned": (
        "if (t == 0) { expect(&full, 16); load((char*)tile + 8, x, 16, &full); }",
        "misaligned", "error", "multiple of 16", "",
    ),
    "a tile that is not aligned": (
        "READY; multiply(c, m + (1ull << 62) + 8, m, 0); COMMIT; DONE(0); out[t] = c[0];",
        "misaligned", "error", "the tile of A", "",
    ),
    "registers for some warps": (
        """if (t < 96) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;"); else return;""",
        "divergent-barrier", "error", "warp 3 of its warp group does not", "threadIdx.x / 128",
    ),
    "a product of some warps": (
        "if (t < 96) { READY; multiply(c, m, m, 0); COMMIT; DONE(0); out[t] = c[0]; }",
        "divergent-barrier", "error", "needs the four warps", "",
    ),
}  # fmt: skip


def body(code):
    return BEGIN.replace("unsigned a[4]", "float d4[4] = {}; unsigned a[4]") + code


@cache
def compiled():
    return kernels_of(tuple(body(one[0]) for one in MISUSES.values()))


def findings(code, **launched):
    return check(compiled()[body(code)], block=128, **launched)


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("name", MISUSES)
def test_misuse(name):
    code, kind, severity, says, remedy = MISUSES[name]
    found = findings(code)
    matching = [f for f in found if (f.kind, f.severity) == (kind, severity) and says in f.message]
    assert matching, found
    assert any(remedy in one.remedy for one in matching), found
    assert all(one.line and one.line_text and one.remedy for one in matching)
    only = {"race", "divergent-barrier", "uninitialised-read", "out-of-bounds", "misaligned"}
    assert {one.kind for one in found} <= only


def test_moves_pass_values_on():
    """A copy of sums is no use of them, and neither is an empty asm that holds on to a register."""
    code = """READY; multiply(c, m, m, 0); COMMIT; float e[4];
        for (int i = 0; i < 4; ++i) { e[i] = c[i]; asm volatile("" : "+f"(e[i]) :: "memory"); }
        DONE(0); out[t] = e[0] + e[1];"""
    (kernel,) = kernels_of((body(code),)).values()
    assert check(kernel, block=128) == []


def test_a_copy_of_sums_is_followed():
    code = """READY; multiply(c, m, m, 0); COMMIT; float e = c[3]; out[t] = e + 1; DONE(0);"""
    (kernel,) = kernels_of((body(code),)).values()
    (found,) = check(kernel, block=128)
    assert "uses sums of the wgmma" in found.message and "e + 1" in found.line_text


def test_the_place_in_the_tile_is_named():
    """Thread, lines and element of a store that the copy engine need not see."""
    code = """    __shared__ __align__(128) int4 tile[64];
    if (threadIdx.x < 40) tile[threadIdx.x] = {};
    __syncthreads();
    if (threadIdx.x == 64) { store(x, tile + 32, 512); SOURCE_READ; }"""
    (kernel,) = kernels_of((code,)).values()
    (found,) = check(kernel, block=96)
    first = HEAD.count("\n") + 3
    assert (found.array, found.index) == ("tile", (32, 0))
    assert found.threads == (((0, 0, 0), (32, 0, 0)), ((0, 0, 0), (64, 0, 0)))
    assert found.other_line == first + 1
    assert f"line {first + 3} " in found.called


def test_copies_of_two_blocks_meet_in_global_memory():
    code = """    __shared__ __align__(128) int tile[64];
    tile[threadIdx.x] = 1; FENCE; __syncthreads();
    if (threadIdx.x == 0) { store(x, tile, 256); STORED; }"""
    (kernel,) = kernels_of((code,)).values()
    (found,) = check(kernel, block=64, grid=2)
    assert found.kind == "race" and "may still be writing" in found.message
    assert found.array == "x"


def test_a_fence_between_proxies_is_none_between_threads():
    """A flag behind fence.proxy.async alone publishes nothing."""
    code = """    __shared__ __align__(16) int tile[4];
    if (threadIdx.x == 0) { x[0] = 1; FENCE_ALL; atomicExch(x + 1, 1); }
    if (threadIdx.x == 32) { while (!atomicAdd(x + 1, 0)) { } FENCE_ALL; out[0] = x[0]; }
    if (threadIdx.x == 64) { tile[0] = 1; FENCE; store(x + 64, tile, 16); SOURCE_READ; }"""
    (kernel,) = kernels_of((code,)).values()
    found = check(kernel, block=96)
    assert [(one.kind, one.severity) for one in found] == [("race", "error")], found
    assert found[0].line_text.startswith("if (threadIdx.x == 32)")


def test_boxes_that_are_added_up_do_not_meet():
    code = """    __shared__ __align__(128) int tile[64];
    tile[threadIdx.x] = 1; FENCE; __syncthreads();
    if (threadIdx.x == 0) {
        asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], 256;"
            " cp.async.bulk.commit_group;" :: "l"(x), "r"(at(tile)) : "memory");
        STORED; }"""
    (kernel,) = kernels_of((code,)).values()
    x = np.zeros(4096, np.int32)
    assert check(kernel, block=64, grid=3, x=x) == [] and x[:64].tolist() == [3] * 64
