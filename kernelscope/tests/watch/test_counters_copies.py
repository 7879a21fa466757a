"""Counters of cp.async, of a cluster's shared memory and of joined stores; numbers by hand."""

import numpy as np
import pytest
from kernelscope.events import observe
from kernelscope.machine import Program
from kernelscope.machine.launch import launch
from kernelscope.module import RawModule
from kernelscope.watch.counters.counters import Counters
from kernelscope.watch.counters.merging import Merge
from watch_harness import count, merges

COPY = """extern "C" __global__ void k(const float* x, float* out, int rows)
{
    extern __shared__ float4 tile4[];  // (2, STRIDE) floats
    float* tile = (float*)tile4;
    int t = threadIdx.x, row = t / 16, col = t % 16 * 4;
    unsigned to = (unsigned)__cvta_generic_to_shared(tile + row * STRIDE + col);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(to), "l"(x + 64 * row + col), "r"(row < rows ? 16 : 0) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    out[t] = tile[t];
}"""


def copied(stride, rows=2):
    x = np.arange(128, dtype=np.float32)
    return count(
        COPY.replace("STRIDE", str(stride)),
        x,
        np.zeros(32, np.float32),
        np.int32(rows),
        shared_mem=4 * 2 * stride,
    ).totals


def test_a_copy_past_l1_counts_pieces_of_shared_memory():
    # Two rows of 256 bytes, 16 sectors. Unpadded, each fills a 32-byte piece of shared memory.
    assert copied(64)["global_load_sectors"] == 16
    # 68 floats a row: the second row starts 16 bytes off, and each of its two lines of 128 bytes
    # reaches into 5 pieces. An H200 counts the same (results/h200/counters.json, kernel 12).
    assert copied(68)["global_load_sectors"] == 8 + 2 * 5
    assert copied(72)["global_load_sectors"] == 16  # 32 bytes off: whole pieces again


def test_a_copy_of_zero_bytes_reads_no_sector():
    assert copied(68, rows=1)["global_load_sectors"] == 8
    none = copied(68, rows=0)
    assert none["global_load_sectors"] == 0 and none["unique_global_bytes_read"] == 0


def test_a_copy_is_a_load_and_no_store_to_shared_memory():
    totals = copied(68)
    assert totals["async_copy_requests"] == totals["global_load_requests"] == 1
    assert totals["shared_store_requests"] == totals["shared_store_wavefronts"] == 0
    assert totals["unique_global_bytes_read"] == 512


def test_a_copy_through_l1_counts_sectors():
    code = """extern "C" __global__ void k(const float* x, float* out)
    {
        __shared__ float s[36];
        unsigned to = (unsigned)__cvta_generic_to_shared(s + 1 + threadIdx.x);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;"
                     :: "r"(to), "l"(x + 3 + threadIdx.x) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        out[threadIdx.x] = s[1 + threadIdx.x];
    }"""
    totals = count(code, np.zeros(64, np.float32), np.zeros(32, np.float32)).totals
    assert totals["global_load_sectors"] == 5  # 128 bytes from byte 12 on
    assert totals["async_copy_requests"] == 1 and totals["shared_store_requests"] == 0


SEND = """extern "C" __global__ void __cluster_dims__(2, 1, 1) k(float* out)
{
    __shared__ float s[64];
    unsigned to = (unsigned)__cvta_generic_to_shared(s + 32 * (blockIdx.x % 2) + threadIdx.x);
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    asm volatile("mapa.shared::cluster.u32 %0, %0, TARGET;" : "+r"(to));
    asm volatile("st.shared::cluster.f32 [%0], %1;" :: "r"(to), "f"(1.0f) : "memory");
    asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory");
    out[blockIdx.x * 32 + threadIdx.x] = s[threadIdx.x] + s[32 + threadIdx.x];
}"""


@pytest.mark.parametrize(("target", "at_home"), [("0", 1), ("%%cluster_ctarank", 2)])
def test_stores_by_way_of_the_cluster(target, at_home):
    """Each of two blocks sends one request; a pass is counted where it stays in its own block."""
    module = RawModule(
        code=SEND.replace("TARGET", target), options=("-arch=sm_90",), backend="simulator"
    )
    with observe(Counters()) as seen:
        module.get_function("k")((2,), (32,), (np.zeros(64, np.float32),))
    totals = seen.totals
    assert totals["cluster_shared_requests"] == 2
    assert totals["shared_store_requests"] == totals["shared_store_conflicts"] == 0
    assert totals["shared_store_wavefronts"] == at_home


def test_local_memory_and_shuffles_are_counted_by_the_warp():
    """An array whose index is known only when running is in local memory."""
    code = """extern "C" __global__ void k(const int* x, int* out)
    {
        int kept[8], t = threadIdx.x;
        for (int i = 0; i < 8; ++i) kept[(i + x[0]) % 8] = x[i];
        out[t] = __shfl_xor_sync(~0u, t < 32 ? kept[x[t % 8] % 8] : t, 1);
    }"""
    totals = count(code, np.arange(8, dtype=np.int32), _numbers(64), threads=64).totals
    assert totals["local_store_requests"] == 2 * 8 and totals["local_load_requests"] == 1
    assert totals["shuffle_instructions"] == 2
    assert totals["shared_load_requests"] == 0 and totals["global_store_requests"] == 2


def _numbers(count):
    return np.zeros(count, np.int32)


def test_neighbouring_stores_are_joined_as_ptxas_joins_them():
    words = [f"st.shared.f32 [%r2+{offset}], %f{offset // 4};" for offset in range(0, 16, 4)]
    assert merges("".join(words)) == [Merge(0, 16, 4), None, None, None]
    assert merges("".join(words[:3])) == [Merge(0, 8, 2), None, "alone"]
    assert merges("".join(words[1:3])) == ["alone", "alone"]  # no whole aligned window
    pairs = "st.shared.v2.f32 [%r2+8], {%f0, %f1}; st.shared.v2.f32 [%r2], {%f2, %f3};"
    assert merges(pairs) == [Merge(-8, 16, 2), None]


@pytest.mark.parametrize(
    "between",
    [
        "ld.shared.f32 %f9, [%r5];",  # may read what the first store wrote
        "st.shared.f32 [%r5], %f9;",  # may write over it
        "atom.shared.add.u32 %r9, [%r5], 1;",
        "bar.sync 0;",
        "@%p1 bra L; L:",
    ],
)
def test_stores_that_may_not_pass_something_stay_alone(between):
    found = merges(f"st.shared.f32 [%r2], %f0; {between} st.shared.f32 [%r2+4], %f1;")
    assert found[0] == found[-1] == "alone"


def test_stores_pass_what_has_no_part_in_shared_memory():
    between = "ld.global.f32 %f9, [%rd1]; st.global.f32 [%rd2], %f9;"
    found = merges(f"st.shared.f32 [%r2], %f0; {between} st.shared.f32 [%r2+4], %f1;")
    assert found == [Merge(0, 8, 2), "alone", "alone", None]


def test_joined_stores_are_counted_as_one_wide_request():
    ptx = """.version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 out) {
    .reg .b32 %r<4>; .reg .f32 %f<4>;
    .shared .align 16 .b8 s[4096];
    mov.u32 %r0, s;
    mov.u32 %r1, %tid.x;
    mad.lo.s32 %r2, %r1, 16, %r0;
    mov.f32 %f0, 0f3F800000;
    st.shared.f32 [%r2], %f0;
    st.shared.f32 [%r2+4], %f0;
    st.shared.f32 [%r2+8], %f0;
    st.shared.f32 [%r2+12], %f0;
    ret;
}"""
    program = Program(ptx)
    with observe(Counters()) as seen:
        arguments = [np.zeros(1, np.float32)]
        launch(program, "k", (1, 1, 1), (32, 1, 1), arguments, observers=(seen,))
    totals = seen.totals
    assert totals["shared_store_requests"] == 1 and totals["shared_stores_merged"] == 3
    # 128 bits a lane of neighbours: 4 passes, none too many; one by one, 4 passes each.
    assert totals["shared_store_wavefronts"] == 4 and totals["shared_store_conflicts"] == 0


def test_loads_of_an_unrolled_tail_are_joined_over_its_branches():
    """ptxas loads what a branch may skip before it asks the branch."""
    code = """extern "C" __global__ void k(float* out, int n)
    {
        extern __shared__ float4 s4[];
        const float* s = (const float*)s4;
        float sum = s[0];
        if (n > 1) { sum += s[1]; if (n > 2) { sum += s[2]; if (n > 3) sum += s[3]; } }
        out[threadIdx.x] = sum;
    }"""
    totals = count(code, np.zeros(32, np.float32), np.int32(4), shared_mem=64).totals
    assert totals["shared_load_requests"] == 1 and totals["shared_loads_merged"] == 3


def test_an_arrival_when_copies_are_done_is_work_on_an_mbarrier():
    code = r"""extern "C" __global__ void k()
    {
        __shared__ unsigned long long full;
        unsigned at = (unsigned)__cvta_generic_to_shared(&full);
        if (threadIdx.x == 0)
            asm volatile("mbarrier.init.shared.b64 [%0], 64;" :: "r"(at) : "memory");
        __syncthreads();
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(at) : "memory");
    }"""
    totals = count(code, threads=64).totals
    assert totals["mbarrier_arrivals"] == 2  # one of each warp
    assert totals["shared_atomic_requests"] == totals["atomic_requests"] == 0
