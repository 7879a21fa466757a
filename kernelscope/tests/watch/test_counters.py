"""Counters on kernels small enough to count by hand; each expected number is derived beside it."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernelscope.compile import compile_cubin
from kernelscope.events import observe
from kernelscope.module import RawModule
from kernelscope.timing.machine_code import disassembled
from kernelscope.watch.counters.counters import DESCRIPTIONS, NAMES, Counters, tensor_instructions
from kernelscope.watch.counters.line_table import KernelLines, LineTable
from kernelscope.watch.counters.merging import Merge
from kernelscope.watch.counters.patterns import Pattern, TouchedBytes
from kernelscope.watch.counters.traffic import Lanes, count_wavefronts
from watch_harness import count, merges

SCORES = Path(__file__).resolve().parents[1] / "kernels" / "scores_tiled.cu"

DESIGNED = """instructions thread_instructions ffma_thread_instructions global_load_requests
    global_load_sectors global_store_requests global_store_sectors shared_load_requests
    shared_load_wavefronts shared_load_conflicts shared_store_requests shared_store_wavefronts
    shared_store_conflicts atomic_requests barriers branches divergent_branches
    unique_global_bytes_read unique_global_bytes_written""".split()


def test_every_counter_has_its_place_in_totals_and_lines():
    seen = count('extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1.0f; }', _zeros(32))
    assert set(DESIGNED) <= set(seen.totals) and tuple(seen.totals) == NAMES
    assert all(type(value) is int for value in seen.totals.values())
    assert all(tuple(line.counts) == NAMES for line in seen.by_line.values())
    assert all(DESCRIPTIONS.values())


def _zeros(count, dtype=np.float32):
    return np.zeros(count, dtype)


# -- global memory ---------------------------------------------------------------------------------
COPY = """extern "C" __global__ void k(const T* x, T* out, int stride, int start, int active)
{
    int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t < active) out[t] = x[t * stride + start];
}"""


def copy_counts(type_name, dtype, stride, start=0, active=32, threads=32, blocks=1):
    size = stride * threads * blocks + start + 1
    arguments = (_zeros(size * 4, dtype), _zeros(threads * blocks * 4, dtype))
    integers = tuple(np.int32(v) for v in (stride, start, active))
    return count(
        COPY.replace("T*", f"{type_name}*"), *arguments, *integers, threads=threads, blocks=blocks
    ).totals


@pytest.mark.system
@pytest.mark.parametrize(
    ("type_name", "stride", "start", "sectors"),
    [
        ("float", 1, 0, 4),  # 32 x 4 = 128 bytes in a row = 4 sectors
        ("float", 2, 0, 8),  # 8 bytes apart: 4 lanes a sector
        ("float", 3, 0, 12),  # bytes 0 .. 31*12+3 = 375: all of sectors 0 .. 11 are met
        ("float", 8, 0, 32),  # 32 bytes apart: a sector a lane
        ("float", 32, 0, 32),
        ("float", 0, 0, 1),  # every lane reads one float
        ("float", 1, 1, 5),  # bytes 4 .. 131: sectors 0 .. 4
        ("float", 1, 8, 4),  # starts at byte 32, a sector's beginning
        ("float", 2, 7, 9),  # bytes 28 .. 28+31*8+3 = 279: sectors 0 .. 8
        ("float2", 1, 0, 8),  # 256 bytes
        ("float2", 1, 3, 9),  # bytes 24 .. 279: sectors 0 .. 8
        ("float4", 1, 0, 16),  # 512 bytes
        ("float4", 2, 0, 32),  # 32 bytes apart
        ("float4", 1, 1, 17),  # bytes 16 .. 527: sectors 0 .. 16
        ("float4", 0, 1, 1),
        ("double", 1, 0, 8),
        ("short", 1, 0, 2),  # 64 bytes
        ("char", 1, 0, 1),  # 32 bytes
        ("char", 1, 31, 2),  # bytes 31 .. 62
    ],
)
def test_sectors_of_one_full_warp(type_name, stride, start, sectors):
    dtype = {"double": np.float64, "short": np.int16, "char": np.int8}.get(type_name, np.float32)
    totals = copy_counts(type_name, dtype, stride, start)
    assert totals["global_load_requests"] == 1
    assert totals["global_load_sectors"] == sectors
    assert totals["global_store_requests"] == 1
    width = {"float2": 8, "float4": 16}.get(type_name, np.dtype(dtype).itemsize)
    assert totals["global_store_sectors"] == width  # 32 lanes x width bytes / 32
    assert totals["unique_global_bytes_written"] == 32 * width
    # Distinct bytes: 32 elements, or one where every lane reads the same.
    assert totals["unique_global_bytes_read"] == (32 if stride else 1) * width


@pytest.mark.parametrize(
    ("threads", "active", "requests", "sectors"),
    [
        (40, 40, 2, 5),  # 32 lanes: 4 sectors; 8 lanes: 32 bytes, 1 sector
        (32, 20, 1, 3),  # 80 bytes
        (64, 33, 2, 5),  # the second warp reads one float
        (64, 32, 1, 4),  # the second warp makes no request
        (7, 7, 1, 1),  # 28 bytes
        (1, 1, 1, 1),
    ],
)
def test_partial_warps(threads, active, requests, sectors):
    totals = copy_counts("float", np.float32, 1, active=active, threads=threads)
    assert totals["global_load_requests"] == totals["global_store_requests"] == requests
    assert totals["global_load_sectors"] == totals["global_store_sectors"] == sectors
    assert totals["unique_global_bytes_read"] == 4 * active


def test_warps_do_not_share_sectors_and_blocks_of_odd_size_start_new_warps():
    # 3 blocks of 40: each block has warps of 32 and 8 lanes. Block b starts at byte 160 b = 5
    # sectors, so every block sees 4 + 1 sectors.
    totals = copy_counts("float", np.float32, 1, active=120, threads=40, blocks=3)
    assert totals["global_load_requests"] == 6
    assert totals["global_load_sectors"] == 15


def test_lanes_in_any_order_make_the_same_sectors():
    code = """extern "C" __global__ void k(const float* x, const int* where, float* out)
    { out[threadIdx.x] = x[where[threadIdx.x]]; }"""
    where = np.random.default_rng(3).permutation(32).astype(np.int32)
    totals = count(code, _zeros(32), where, _zeros(32)).totals
    assert totals["global_load_requests"] == 2
    assert totals["global_load_sectors"] == 8  # 4 for the indices and 4 for the permuted floats


def test_unique_bytes_count_each_byte_once_over_the_whole_launch():
    code = """extern "C" __global__ void k(const float* x, float* out, int n)
    {
        float sum = 0.0f;
        for (int i = 0; i < n; ++i) sum += x[threadIdx.x + i];
        out[threadIdx.x] = sum;
        out[threadIdx.x] = sum + x[threadIdx.x];
    }"""
    seen = count(code, _zeros(64), _zeros(32), np.int32(10), blocks=5)
    # Lanes 0 .. 31 read elements t .. t+9: elements 0 .. 40, in every one of the 5 blocks.
    assert seen.totals["unique_global_bytes_read"] == 41 * 4
    assert seen.totals["unique_global_bytes_written"] == 32 * 4
    loop = seen.by_line[4]
    assert loop["unique_global_bytes_read"] == 41 * 4
    assert loop["global_load_requests"] == 50  # 10 passes x 5 blocks
    # A pass that starts at element i covers bytes 4i .. 4i+127: 4 sectors for i = 0 and 8, else 5.
    assert loop["global_load_sectors"] == 5 * (2 * 4 + 8 * 5)
    assert loop.per_request("global_load_sectors") == pytest.approx(4.8)


def test_atomics_are_requests_of_their_own_and_touch_bytes_both_ways():
    code = """extern "C" __global__ void k(int* x, int* out)
    {
        __shared__ int s;
        if (threadIdx.x == 0) s = 0;
        __syncthreads();
        atomicAdd(&s, (int)threadIdx.x);
        out[threadIdx.x] = atomicExch(&x[threadIdx.x % 4], (int)threadIdx.x);
    }"""
    totals = count(code, _zeros(8, np.int32), _zeros(64, np.int32), threads=64).totals
    assert totals["atomic_requests"] == 4  # 2 warps, one shared and one global each
    assert totals["global_load_requests"] == 0
    assert totals["unique_global_bytes_read"] == 16
    assert totals["unique_global_bytes_written"] == 16 + 64 * 4


def test_constants_and_parameters_are_not_global_loads():
    code = """__constant__ float c[64];
    extern "C" __global__ void k(float* out) { out[threadIdx.x] = c[threadIdx.x]; }"""
    totals = count(code, _zeros(32)).totals
    assert totals["global_load_requests"] == totals["unique_global_bytes_read"] == 0


# -- shared memory ---------------------------------------------------------------------------------
SHARED = """extern "C" __global__ void k(T* out, int stride, int start, int active)
{
    extern __shared__ __align__(16) char memory[];
    T* s = reinterpret_cast<T*>(memory);
    int t = threadIdx.x;
    if (t < active) s[t * stride + start] = out[t];
    __syncthreads();
    if (t < active) out[t] = s[t * stride + start];
}"""


@pytest.mark.system
@pytest.mark.parametrize(
    ("type_name", "stride", "start", "active", "wavefronts", "minimum"),
    [
        ("float", 1, 0, 32, 1, 1),  # 32 lanes, 32 banks
        ("float", 0, 5, 32, 1, 1),  # one word for all
        ("float", 2, 0, 32, 2, 1),  # even banks only: 2 words each
        ("float", 4, 0, 32, 4, 1),
        ("float", 32, 0, 32, 32, 1),  # all on bank 0
        ("float", 33, 0, 32, 1, 1),  # a row of 32 padded by one word: bank t
        ("float", 33, 7, 32, 1, 1),  # the start only renames the banks
        ("float", 16, 0, 32, 16, 1),  # banks 0 and 16 take 16 words each
        ("float", 32, 0, 20, 20, 1),  # 20 active lanes, 20 words of one bank
        ("float2", 1, 0, 32, 2, 2),  # half a warp fills the banks: 2 passes
        ("float2", 2, 0, 32, 4, 2),  # words 4t, 4t+1: lanes t and t+8 of a half meet
        ("float2", 16, 0, 32, 32, 2),  # 16 lanes of a half on banks 0 and 1
        ("float2", 17, 0, 32, 2, 2),  # words 34t: lane t on banks 2t, 2t+1: no two of a half meet
        ("float2", 1, 0, 8, 1, 1),  # 8 lanes are in one half
        ("float4", 1, 0, 32, 4, 4),  # 8 lanes fill the banks
        ("float4", 8, 0, 32, 32, 4),  # rows of 32 words: 8 lanes of a quarter on the same banks
        ("float4", 9, 0, 32, 4, 4),  # rows padded by 4 words: quarter by quarter conflict-free
        ("float4", 8, 0, 20, 20, 3),  # quarters of 8, 8 and 4 lanes
        ("char", 1, 0, 32, 1, 1),  # 4 lanes share each of 8 words
        ("char", 4, 1, 32, 1, 1),
        ("char", 128, 0, 32, 32, 1),  # 32 words of bank 0
        ("short", 2, 1, 32, 1, 1),
        ("double", 1, 0, 32, 2, 2),
    ],
)
def test_wavefronts_of_one_warp(type_name, stride, start, active, wavefronts, minimum):
    width = {"float": 4, "float2": 8, "float4": 16, "char": 1, "short": 2, "double": 8}[type_name]
    dtype = {"char": np.int8, "short": np.int16, "double": np.float64}.get(type_name, np.float32)
    totals = count(
        SHARED.replace("T*", f"{type_name}*"),
        _zeros(32 * 4, dtype),
        *(np.int32(v) for v in (stride, start, active)),
        shared_mem=(31 * stride + start + 1) * width,
    ).totals
    for kind in ("load", "store"):
        assert totals[f"shared_{kind}_requests"] == 1
        assert totals[f"shared_{kind}_wavefronts"] == wavefronts
        assert totals[f"shared_{kind}_conflicts"] == wavefronts - minimum


WIDE = """extern "C" __global__ void k(T* out, const int* where)
{
    extern __shared__ __align__(16) char memory[];
    T* s = reinterpret_cast<T*>(memory);
    s[where[threadIdx.x]] = out[0];
    __syncthreads();
    out[threadIdx.x] = s[where[threadIdx.x]];
}"""


@pytest.mark.parametrize(
    ("type_name", "where", "threads", "loads", "stores"),
    [
        # One address: the two halves, or each two quarters, come together; stores go alone.
        ("float4", lambda t: 0 * t, 32, 2, 4),
        ("float2", lambda t: 0 * t, 32, 1, 2),
        ("float", lambda t: 0 * t, 32, 1, 1),
        # Lanes t and t^1 alike: 16 float2 = 32 words in one pass; 8 float4 a half warp.
        ("float2", lambda t: t // 2, 32, 1, 2),
        ("float4", lambda t: t // 2, 32, 2, 4),
        # Lanes t and t^2 alike: 0 1 0 1 2 3 2 3 ...
        ("float4", lambda t: t // 4 * 2 + t % 2, 32, 2, 4),
        # t and t^4 alike is not enough.
        ("float4", lambda t: t // 8 * 4 + t % 4, 32, 4, 4),
        # The first half warp alike, the second not: each half warp is judged for itself.
        ("float4", lambda t: np.where(t < 16, 0, t), 32, 1 + 2, 4),
        ("float2", lambda t: np.where(t < 16, 0, t), 32, 2, 2),
        # Rows of 32 words, two lanes each: 8 rows of a half warp meet on the same 4 banks.
        ("float4", lambda t: t // 2 * 8, 32, 16, 16),
        # 20 lanes: a full half warp in one pass, and 4 lanes of which neighbours are alike.
        ("float4", lambda t: 0 * t, 20, 2, 3),
        # 17 lanes with neighbours alike: the last one has no neighbour and agrees.
        ("float4", lambda t: t // 2, 17, 2, 3),
    ],
)
def test_neighbours_that_want_the_same_share_a_wide_pass(type_name, where, threads, loads, stores):
    places = where(np.arange(32)).astype(np.int32)
    width = {"float": 1, "float2": 2, "float4": 4}[type_name]
    totals = count(
        WIDE.replace("T*", f"{type_name}*"),
        _zeros(32 * width),
        places,
        threads=threads,
        shared_mem=4096,
    ).totals
    assert totals["shared_load_wavefronts"] == loads
    assert totals["shared_store_wavefronts"] == stores


def test_the_tiled_kernel_with_keys_stored_down_columns():
    # One block of 32 warps, one step of 32 along d. Both operands become 128-bit loads: 8 a warp
    # and operand. tile_key[tx][i]: the 8 lanes of a quarter are on the same banks, 8 passes a
    # quarter = 32 a request, 28 more than needed; tile_query[ty][i] is one address: quarters share,
    # 2 passes.
    totals = tiled_scores("-DTILE=32", "-DK_TILE=1", "-DPAD=0")
    assert totals["shared_load_requests"] == 32 * (8 + 8)
    assert totals["shared_loads_merged"] == 32 * (24 + 24)
    assert totals["shared_load_wavefronts"] == 32 * 8 * (32 + 2)
    assert totals["shared_load_conflicts"] == 32 * 8 * 28
    # tile_query[ty][tx] in one pass, tile_key[tx][ty] in 32.
    assert totals["shared_store_wavefronts"] == 32 * (1 + 32)
    assert totals["shared_store_conflicts"] == 32 * 31


def test_padding_ends_the_conflicts_and_the_merging():
    # A row of 33 words is aligned to 4 bytes only: the keys stay 32-bit loads, one pass each.
    totals = tiled_scores("-DTILE=32", "-DK_TILE=1", "-DPAD=1")
    assert totals["shared_load_requests"] == 32 * (8 + 32)
    assert totals["shared_load_wavefronts"] == 32 * (8 * 2 + 32)
    assert totals["shared_load_conflicts"] == totals["shared_store_conflicts"] == 0


def tiled_scores(*options):
    module = RawModule(path=SCORES, options=options, backend="simulator")
    kernel = module.get_function("scores_tiled")
    arrays = (np.ones((1, 32, 32), np.float32) for _ in "qks")
    with observe(Counters()) as seen:
        kernel((1,), (32, 32), (*arrays, *(np.int32(32),) * 3))
    assert seen.totals["ffma_thread_instructions"] == 32**3
    assert seen.totals["barriers"] == 2 * 32
    return seen.totals


# -- merging ---------------------------------------------------------------------------------------
def loads(*offsets, base="%r2", kind="f32"):
    return [f"ld.shared.{kind} %f{i}, [{base}+{offset}];" for i, offset in enumerate(offsets)]


def test_four_words_of_an_aligned_base_become_one_load():
    assert merges(" ".join(loads(0, 4, 8, 12))) == [Merge(0, 16, 4), None, None, None]


def test_the_first_load_stands_for_the_others_wherever_it_is():
    assert merges(" ".join(loads(8, 0, 12, 4))) == [Merge(-8, 16, 4), None, None, None]


def test_windows_are_aligned_and_what_is_left_joins_in_pairs():
    # 4 .. 19: words 4, 8, 12 and 16 span two 16-byte windows; 8 and 12 are an aligned pair.
    assert merges(" ".join(loads(4, 8, 12, 16))) == ["alone", Merge(0, 8, 2), None, "alone"]


@pytest.mark.parametrize(
    ("base", "found"),
    [
        ("mad.lo.s32 %r2, %r1, 8, %r0;", [Merge(0, 8, 2), None, Merge(0, 8, 2), None]),
        ("mad.lo.s32 %r2, %r1, 4, %r0;", ["alone"] * 4),
        ("mad.lo.s32 %r2, %r1, 132, %r0;", ["alone"] * 4),
        ("shl.b32 %r3, %r1, 7; add.s32 %r2, %r0, %r3;", [Merge(0, 16, 4), None, None, None]),
        ("and.b32 %r3, %r1, -16; add.s32 %r2, %r0, %r3;", [Merge(0, 16, 4), None, None, None]),
        (
            "shl.b32 %r3, %r1, 4; or.b32 %r4, %r3, 8; add.s32 %r2, %r4, %r0;",
            [Merge(0, 8, 2), None, Merge(0, 8, 2), None],
        ),
        ("ld.param.u32 %r2, [out];", ["alone"] * 5),  # that load is listed too
        ("mov.u32 %r2, %r0; @%p1 mov.u32 %r2, %r1;", ["alone"] * 4),  # one of two values
    ],
)
def test_alignment_must_be_provable(base, found):
    assert merges(" ".join(loads(0, 4, 8, 12)), base) == found


def test_a_pointer_that_a_loop_moves_stays_aligned():
    body = f"""mov.u32 %r5, 0;
    LOOP: {" ".join(loads(0, 4, 8, 12))}
    add.s32 %r2, %r2, 64; add.s32 %r5, %r5, 1; setp.lt.s32 %p2, %r5, 9; @%p2 bra LOOP;"""
    assert merges(body) == [Merge(0, 16, 4), None, None, None]
    assert merges(body.replace("64", "72")) == [Merge(0, 8, 2), None, Merge(0, 8, 2), None]


@pytest.mark.parametrize(
    ("between", "joins"),
    [
        ("st.shared.f32 [%r0], %f9;", False),
        ("st.f32 [%rd1], %f9;", False),  # a generic store may be a shared one
        ("atom.shared.add.u32 %r6, [%r0], 1;", False),
        ("bar.sync 0;", False),
        ("bar.warp.sync -1;", False),
        ("membar.cta;", False),
        ("@%p1 bra NEXT; NEXT:", False),
        ("NEXT:", False),  # others may come from elsewhere
        ("add.s32 %r2, %r2, 8;", False),  # the base is another value now
        ("st.global.f32 [%rd1], %f9;", True),
        ("fma.rn.f32 %f9, %f0, %f0, %f0;", True),
        ("ld.shared.f32 %f9, [%r0+400];", True),
    ],
)
def test_what_stands_between_two_loads(between, joins):
    first, second = loads(0, 4)
    found = merges(f"{first} {between} {second}")
    assert (found[0] == Merge(0, 8, 2) and found[-1] is None) is joins
    assert joins or found[0] == found[-1] == "alone"


def test_other_loads_are_left_alone():
    assert merges(" ".join(loads(0, 4, 8))) == [Merge(0, 8, 2), None, "alone"]
    assert merges(" ".join(loads(0, 4, kind="volatile.f32"))) == ["alone", "alone"]
    assert merges("@%p1 " + " @%p1 ".join(loads(0, 4))) == ["alone", "alone"]
    assert merges(" ".join(loads(0, 2, kind="u16"))) == ["alone", "alone"]
    twice = merges(" ".join(loads(0, 4, 0)))
    assert twice == [Merge(0, 8, 2), None, "alone"]


def test_pairs_that_are_vectors_already_join_and_bases_may_be_chained():
    assert merges("ld.shared.v2.f32 {%f0, %f1}, [%r2]; ld.shared.v2.f32 {%f2, %f3}, [%r2+8];") == [
        Merge(0, 16, 2),
        None,
    ]
    chained = "add.s32 %r7, %r2, 4; ld.shared.f32 %f0, [%r2]; ld.shared.f32 %f1, [%r7];"
    assert merges(chained) == [Merge(0, 8, 2), None]
    named = "ld.shared.f32 %f0, [s+16]; ld.shared.f32 %f1, [s+20];"
    assert merges(named) == [Merge(0, 8, 2), None]


def test_merged_loads_are_counted_as_one_wide_request():
    code = """extern "C" __global__ void k(float* out)
    {
        __shared__ float s[32][20];
        int t = threadIdx.x;
        for (int i = 0; i < 20; ++i) s[t][i] = out[t];
        __syncthreads();
        out[t] = s[t][0] * s[t][1] + s[t][2] * s[t][3] + s[t][5];
    }"""
    totals = count(code, _zeros(32), threads=32).totals
    # Rows of 80 bytes are aligned to 16: words 0 .. 3 are one 128-bit load, word 5 is alone.
    assert totals["shared_load_requests"] == 2
    assert totals["shared_loads_merged"] == 3
    # 128 bit: rows of 20 words put the 8 lanes of a quarter on banks 20t mod 32 = 0, 20, 8, 28,
    # 16, 4, 24, 12: no two meet, 4 passes. Word 5 alone: the 32 lanes meet 4 at a bank, 4 passes.
    assert totals["shared_load_wavefronts"] == 4 + 4
    assert totals["shared_load_conflicts"] == 0 + 3


# -- control flow and arithmetic -------------------------------------------------------------------
BRANCHES = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 limit)
{
    .reg .pred %p<2>; .reg .b32 %r<6>; .reg .f32 %f<4>; .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [limit];
    mov.u32 %r2, %tid.x;
    mul.wide.u32 %rd2, %r2, 4;
    add.s64 %rd3, %rd1, %rd2;
    mov.f32 %f1, 0f3F800000;
    setp.lt.u32 %p1, %r2, %r1;
    @%p1 bra THEN;
    fma.rn.f32 %f1, %f1, %f1, %f1;
    bra.uni END;
THEN:
    fma.rn.ftz.f32 %f1, %f1, %f1, %f1;
    fma.rn.f32 %f1, %f1, %f1, %f1;
END:
    bar.sync 0;
    st.global.f32 [%rd3], %f1;
    ret;
}"""


@pytest.mark.parametrize(
    ("limit", "divergent", "second_side"),
    [
        (40, 1, 2),  # warps 1 and 2 of three have lanes that fall through
        (32, 0, 2),  # the border between two warps divides none
        (96, 0, 0),
        (0, 0, 3),
    ],
)
def test_divergence_is_counted_by_warp(tmp_path, limit, divergent, second_side):
    path = tmp_path / "branches.ptx"
    path.write_text(BRANCHES)
    kernel = RawModule(path=str(path), backend="simulator").get_function("k")
    with observe(Counters()) as seen:
        kernel((1,), (96,), (_zeros(96), np.uint32(limit)))
    totals = seen.totals
    first_side = -(-limit // 32)
    assert totals["divergent_branches"] == divergent
    assert totals["branches"] == 3 + second_side  # every warp's `@p bra`, and `bra.uni` of some
    assert totals["barriers"] == 3
    assert totals["ffma_thread_instructions"] == 2 * limit + (96 - limit)
    # 8 before the split, 2 on each side, 3 after it.
    assert totals["instructions"] == 3 * 11 + 2 * first_side + 2 * second_side
    assert totals["thread_instructions"] == 96 * 13


def test_only_float32_fused_multiply_adds_are_ffma():
    code = """extern "C" __global__ void k(float* x, double* y)
    {
        int t = threadIdx.x;
        x[t] = __fmul_rn(x[t], x[t]);
        y[t] = fma(y[t], y[t], y[t]);
    }"""
    totals = count(code, _zeros(32), _zeros(32, np.float64)).totals
    assert totals["ffma_thread_instructions"] == 0


# -- several launches, reports ---------------------------------------------------------------------
TWO = """extern "C" __global__ void a(float* x) { x[threadIdx.x] += 1.0f; }
extern "C" __global__ void b(float* x)
{
    x[0] = 2.0f;
}"""


def test_launches_add_up_and_kernels_stay_apart():
    module = RawModule(code=TWO, backend="simulator")
    x = _zeros(32)
    with observe(Counters()) as seen:
        for name in "aba":
            module.get_function(name)((1,), (32,), (x,))
    assert list(seen.by_kernel) == ["a", "b"]
    assert seen.by_kernel["a"].launches == 2
    assert seen.by_kernel["a"].totals["global_load_sectors"] == 8
    assert seen.totals["global_store_sectors"] == 9  # twice 4, and one word by b
    assert seen.totals["unique_global_bytes_written"] == 128 + 4 + 128  # by launch, then added
    assert seen.by_line[4]["global_store_requests"] == 1
    with pytest.raises(KeyError, match="nothing was counted on line 3"):
        seen.by_line[3]


def test_by_line_asks_for_the_file_where_two_share_a_line(tmp_path):
    with observe(Counters()) as seen:
        for name in ("one.cu", "two.cu"):
            (tmp_path / name).write_text(TWO)
            module = RawModule(path=str(tmp_path / name), backend="simulator")
            module.get_function("b")((1,), (32,), (_zeros(32),))
    with pytest.raises(KeyError, match="several files"):
        seen.by_line[4]
    key = next(k for k in seen.by_line if k[0].endswith("two.cu") and k[1] == 4)
    assert seen.by_line[key]["global_store_requests"] == 1
    assert len(seen.by_kernel) == 2


def test_report_shows_the_source_with_its_counts_in_text_and_html():
    seen = count(TWO, _zeros(32), name="b")
    text = str(seen)
    line = next(line for line in text.splitlines() if "x[0] = 2.0f" in line)
    assert line.split()[0] == "4" and "1 x 1" in line
    assert "atomics" not in text and "shared" not in text  # nothing to show
    integers = tuple(map(np.int32, (4, 0, 32)))
    seen = count(SHARED.replace("T*", "float*"), _zeros(32), *integers, shared_mem=512)
    page = seen._repr_html_()
    assert "<table" in page and "1 x 4" in page and "t &lt; active" in page
    assert str(Counters()) == "no kernel ran"


def test_a_launch_that_fails_keeps_its_counts():
    code = """extern "C" __global__ void k(float* x, int n)
    {
        x[threadIdx.x] = 1.0f;
        x[n] = 1.0f;
    }"""
    kernel = RawModule(code=code, backend="simulator").get_function("k")
    with observe(Counters()) as seen, pytest.raises(RuntimeError, match="valid elements"):
        kernel((1,), (32,), (_zeros(32), np.int32(5000)))
    assert seen.totals["global_store_sectors"] == 4
    assert seen.totals["unique_global_bytes_written"] == 128


# -- against plain Python --------------------------------------------------------------------------
def oracle_sectors(lanes, address):
    return len({(lane // 32, a // 32) for lane, a in zip(lanes, address, strict=True)})


def oracle_passes(lanes, address, size, width):
    """lanes in groups of `width`: group -> the most distinct words of one bank."""
    groups = {}
    for lane, start in zip(lanes, address, strict=True):
        banks = groups.setdefault(lane // width, {})
        for word in {(start + byte) // 4 for byte in range(size)}:
            banks.setdefault(word % 32, set()).add(word)
    return {group: max(map(len, banks.values())) for group, banks in groups.items()}


def oracle_wavefronts(lanes, address, size, kind):
    """(wavefronts, minimum) with sets, group by group."""
    width = min(32, 128 // max(size, 4))
    passes = oracle_passes(lanes, address, size, width)
    place = dict(zip(lanes, address, strict=True))
    if size > 4 and kind == "load":
        for group, wavefronts in oracle_passes(lanes, address, size, 2 * width).items():
            members = [lane for lane in lanes if lane // (2 * width) == group]
            if any(
                all(place.get(t ^ step, place[t]) == place[t] for t in members) for step in (1, 2)
            ):
                passes.pop(2 * group, None)
                passes.pop(2 * group + 1, None)
                passes["pair", group] = wavefronts
    return sum(passes.values()), len(passes)


@st.composite
def accesses(draw):
    size = draw(st.sampled_from([1, 2, 4, 8, 16]))
    lanes = draw(
        st.one_of(
            st.integers(1, 3).map(lambda warps: list(range(32 * warps))),
            st.sets(st.integers(0, 130), min_size=1).map(sorted),
        )
    )
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    spread = draw(st.sampled_from([1, 8, 40, 4000]))
    shared = draw(st.sampled_from([1, 2, 4]))  # so many neighbours want the same
    affine = np.array(lanes) // shared * draw(st.integers(0, 40)) + draw(st.integers(0, 40))
    scattered = rng.integers(0, spread, len(lanes))
    address = size * (affine if draw(st.booleans()) else scattered)
    return size, np.array(lanes), address.astype(np.uint64)


@settings(max_examples=150, deadline=None)
@given(accesses())
def test_sectors_and_wavefronts_agree_with_sets(access):
    size, lanes, address = access
    cut, plain = Lanes(lanes), address.tolist()
    assert cut.warps == len({lane // 32 for lane in lanes.tolist()})
    pattern = Pattern(cut, address)
    assert pattern.sectors(0) == oracle_sectors(lanes.tolist(), plain)
    for kind in ("load", "store"):
        expected = oracle_wavefronts(lanes.tolist(), plain, size, kind)
        assert count_wavefronts(cut, address, size, kind) == expected
        assert pattern.wavefronts(0, size, kind) == expected
    taken = address % np.uint64(3) == 0
    sides = {(lane // 32, bool(side)) for lane, side in zip(lanes.tolist(), taken, strict=True)}
    assert cut.mixed(taken) == sum((w, True) in sides and (w, False) in sides for w, _ in sides) / 2


@settings(max_examples=60, deadline=None)
@given(accesses(), st.lists(st.integers(-4, 60), min_size=1, max_size=6))
def test_a_moved_pattern_counts_as_its_addresses_do(access, moves):
    size, lanes, address = access
    address = address + np.uint64(4 * size)
    pattern, touched = Pattern(Lanes(lanes), address), TouchedBytes([(0, 1 << 18)])
    bytes_met = set()
    for move in moves:
        moved = (address.astype(np.int64) + move * size).astype(np.uint64)
        delta = pattern.delta(lanes.copy(), moved)
        assert delta == move * size
        assert pattern.sectors(delta) == oracle_sectors(lanes.tolist(), moved.tolist())
        for kind in ("load", "store"):
            expected = count_wavefronts(Lanes(lanes), moved, size, kind)
            assert pattern.wavefronts(delta, size, kind) == expected
        pattern.touch(7, "read", size, delta)
        bytes_met |= {int(a) + byte for a in moved for byte in range(size)}
    touched.mark(pattern)
    assert touched.count("read") == touched.count("read", 7) == len(bytes_met)
    assert touched.count("written") == touched.count("read", 8) == 0
    other = np.array([1 << 17], np.uint64)  # by another line, once all lines have been counted
    for line in (7, 8, 9):
        touched.touch(line, "read", other + np.uint64(line), 1)
        assert touched.count("read") == len(bytes_met) + line - 6


def test_a_pattern_knows_what_it_is_not():
    lanes = np.arange(32)
    pattern = Pattern(Lanes(lanes), np.arange(32, dtype=np.uint64) * 4)
    swapped = np.arange(32, dtype=np.uint64) * 4
    swapped[[3, 4]] = swapped[[4, 3]]
    assert pattern.delta(lanes, swapped) is None
    assert pattern.delta(lanes + 1, pattern.address) is None
    assert pattern.delta(lanes[:31], pattern.address[:31]) is None


def test_a_table_of_many_counters_stays_within_120_columns():
    counts = {name: 1_000_000 + n for n, name in enumerate(NAMES)}
    source = ("a = b;", "    " + "longer + " * 12, "c = d;")
    lines = {n: counts if n == 2 else dict.fromkeys(NAMES, 0) for n in (1, 2, 3)}
    lines[1] = lines[1] | {"barriers": 7}
    text = LineTable((KernelLines("k", "k.cu", source, "debug", 1, counts, lines),)).text()
    assert max(map(len, text.splitlines())) <= 120
    assert text.count(f"{counts['instructions']:,}") == 2  # line 2 and all lines, once
    assert text.count("longer") >= 3 and text.count("a = b") == 2  # where it has a count
    assert all(f"{counts[name]:,}" in text for name in ("atomic_requests", "divergent_branches"))


PRODUCTS = """#include <mma.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
using namespace nvcuda::wmma;
extern "C" __global__ void product(const IN* a, const IN* b, OUT* c)
{
    fragment<matrix_a, M, N, K, TYPE, row_major> x;
    fragment<matrix_b, M, N, K, TYPE, row_major> y;
    fragment<accumulator, M, N, K, OUT> sum;
    fill_fragment(sum, (OUT)0);
    load_matrix_sync(x, a, K);
    load_matrix_sync(y, b, N);
    mma_sync(sum, x, y, sum);
    store_matrix_sync(c, sum, N, mem_row_major);
}"""


@pytest.mark.turns(7)
@pytest.mark.parametrize(
    ("kind", "given", "out", "shape"),
    [
        ("__half", "__half", "float", (16, 16, 16)), ("__half", "__half", "__half", (16, 16, 16)),
        ("__nv_bfloat16", "__nv_bfloat16", "float", (32, 8, 16)),
        ("precision::tf32", "float", "float", (16, 16, 8)),
        ("signed char", "signed char", "int", (16, 16, 16)),
        ("double", "double", "double", (8, 8, 4)),
    ],
    ids=str,
)  # fmt: skip
def test_products_of_wmma_are_as_many_instructions_as_ptxas_makes(kind, given, out, shape):
    sizes = [f"-D{name}={size}" for name, size in zip("MNK", shape, strict=True)]
    options = ("-std=c++17", f"-DTYPE={kind}", f"-DIN={given}", f"-DOUT={out}", *sizes)
    module = RawModule(code=PRODUCTS, options=(*options, "-arch=compute_90"), backend="simulator")
    body = module.program().module.functions["product"].body
    counted = sum(tensor_instructions(one.opcode.split(".")) for one in body)
    text = disassembled(compile_cubin(PRODUCTS, "product.cu", options, "sm_90a").cubin)
    assert counted == len(re.findall(r"\s[HID]MMA\.", text)) > 0
