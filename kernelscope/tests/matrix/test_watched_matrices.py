"""Observers of matrix instructions: counters of tensor cores and of shared memory, the sanitizer,
and warps that are not whole.
"""

from functools import cache

import ml_dtypes
import numpy as np
import pytest
from kernelscope.errors import SimulatorError
from kernelscope.events import observe
from kernelscope.module import RawModule
from kernelscope.watch import Counters, Sanitizer

CODE = r"""
#include <mma.h>
using namespace nvcuda;

__device__ void load_x4(unsigned* r, const half* p) {
    unsigned at = (unsigned)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

// rows of 16 numbers, STRIDE apart; WRONG moves every address
template <int STRIDE, int WRONG, bool SYNC, bool FILL>
__device__ void rows(const half* a, unsigned* out) {
    __shared__ __align__(16) half tile[16 * STRIDE];
    __shared__ __align__(16) unsigned behind[64];
    int lane = threadIdx.x;
    behind[lane] = lane;
    if (FILL)
        for (int i = lane; i < 16 * STRIDE; i += 32) tile[i] = a[i];
    if (SYNC) __syncwarp();
    unsigned r[4];
    load_x4(r, tile + (lane % 16) * STRIDE + lane / 16 * 8 + WRONG);
    for (int i = 0; i < 4; ++i) out[4 * lane + i] = r[i] + behind[lane];
}

extern "C" {
__global__ void packed(const half* a, unsigned* out) { rows<16, 0, true, true>(a, out); }
__global__ void padded(const half* a, unsigned* out) { rows<24, 0, true, true>(a, out); }
__global__ void moved(const half* a, unsigned* out) { rows<24, 4, true, true>(a, out); }
__global__ void beyond(const half* a, unsigned* out) { rows<16, 16, true, true>(a, out); }
__global__ void unordered(const half* a, unsigned* out) { rows<24, 0, false, true>(a, out); }
__global__ void unwritten(const half* a, unsigned* out) { rows<24, 0, true, false>(a, out); }

__global__ void product(const half* a, const half* b, float* c, int n) {
    if (threadIdx.x >= n) return;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
    wmma::load_matrix_sync(fa, a, 16);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::fill_fragment(fc, 0.0f);
    wmma::mma_sync(fc, fa, fb, fc);
    wmma::store_matrix_sync(c, fc, 16, wmma::mem_row_major);
}
__global__ void half_a_warp(const half* a, const half* b, float* c) {
    if (threadIdx.x % 32 < 16) {
        unsigned x = threadIdx.x; float s[4] = {0, 0, 0, 0};
        asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %4},"
            " {%4}, {%0, %1, %2, %3};" : "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]) : "r"(x));
        c[threadIdx.x] = s[0];
    }
}
__global__ void through_shared(const __nv_bfloat16* a, float* c, int late) {
    __shared__ __align__(32) __nv_bfloat16 tile[256];
    __shared__ __align__(32) float sums[256];
    for (int i = threadIdx.x; i < 256; i += 64) tile[i] = a[i];
    __syncthreads();
    if (threadIdx.x < 32) {
        wmma::fragment<wmma::matrix_a, 16, 16, 16, __nv_bfloat16, wmma::row_major> fa;
        wmma::fragment<wmma::matrix_b, 16, 16, 16, __nv_bfloat16, wmma::row_major> fb;
        wmma::fragment<wmma::accumulator, 16, 16, 16, float> fc;
        wmma::fill_fragment(fc, 0.0f);
        wmma::load_matrix_sync(fa, tile, 16);
        wmma::load_matrix_sync(fb, tile, 16);
        wmma::mma_sync(fc, fa, fb, fc);
        wmma::store_matrix_sync(sums, fc, 16, wmma::mem_row_major);
    }
    if (late) __syncthreads();
    for (int i = threadIdx.x; i < 256; i += 64) c[i] = sums[i];
}
}
"""


@cache
def module():
    return RawModule(code=CODE, backend="simulator", options=("-std=c++17", "-arch=compute_90"))


def launch(name, *arguments, observer=None, threads=32):
    kernel = module().get_function(name)
    with observe(*([observer] if observer else [])):
        kernel((1,), (threads,), arguments)
    return observer


def halves(count=512):
    return np.arange(count).astype(np.float16)


def findings(name, *arguments, **options):
    found = launch(name, *arguments, observer=Sanitizer(), **options).findings
    return [(one.kind, one.array) for one in found]


# -- counters --------------------------------------------------------------------------------------
@pytest.mark.parametrize("name, conflicts", [("packed", 4), ("padded", 0)])
def test_ldmatrix_passes_over_the_banks_eight_rows_at_a_time(name, conflicts):
    """Rows 32 bytes apart: of the 8 rows of a matrix, the last 4 need the banks of the first 4."""
    totals = launch(name, halves(), np.zeros(128, np.uint32), observer=Counters()).totals
    assert totals["shared_load_requests"] == 1 + 1  # the other one loads from behind
    assert totals["shared_load_conflicts"] == conflicts
    assert totals["shared_load_wavefronts"] == 4 + conflicts + 1


def test_a_wmma_product_is_two_instructions_of_the_tensor_cores():
    a, b, c = halves(256), halves(256), np.zeros(256, np.float32)
    totals = launch("product", a, b, c, np.int32(32), observer=Counters()).totals
    assert totals["tensor_instructions"] == 2
    # ptxas: four 32-bit loads each for A and B, four 64-bit stores of C
    assert totals["global_load_requests"] == 8
    assert totals["global_store_requests"] == 4
    assert totals["global_store_sectors"] == 32


# -- the sanitizer ---------------------------------------------------------------------------------
def test_right_kernels_have_no_findings():
    out = np.zeros(128, np.uint32)
    assert findings("packed", halves(), out) == []
    a, c = np.zeros(256, ml_dtypes.bfloat16), np.zeros(256, np.float32)
    assert findings("through_shared", a, c, np.int32(1), threads=64) == []
    assert findings("product", halves(256), halves(256), c, np.int32(32)) == []


@pytest.mark.parametrize(
    "name, kind",
    [
        ("moved", "misaligned"),
        ("beyond", "out-of-bounds"),
        ("unordered", "race"),
        ("unwritten", "uninitialised-read"),
    ],
)
def test_wrong_rows_of_ldmatrix(name, kind):
    found = findings(name, halves(), np.zeros(128, np.uint32))
    assert [(one, array) for one, array in found if array == "tile"] == [(kind, "tile")]


def test_a_fragment_read_before_the_barrier_is_a_race():
    a, c = np.zeros(256, ml_dtypes.bfloat16), np.zeros(256, np.float32)
    found = findings("through_shared", a, c, np.int32(0), threads=64)
    assert ("race", "sums") in found


def test_a_fragment_beyond_its_array_is_out_of_bounds():
    found = findings("product", halves(248), halves(256), np.zeros(256, np.float32), np.int32(32))
    assert found == [("out-of-bounds", "a")]


# -- warps that are not whole ----------------------------------------------------------------------
def test_a_product_by_a_part_of_a_warp_is_an_error():
    with pytest.raises(SimulatorError, match="24 of the 32 lanes of a warp"):
        launch("product", halves(256), halves(256), np.zeros(256, np.float32), np.int32(24))
    with pytest.raises(SimulatorError, match="16 of the 32 lanes.*half_a_warp|half_a_warp.*16 of"):
        launch("half_a_warp", halves(), halves(), np.zeros(32, np.float32))


def test_a_product_by_a_part_of_a_warp_is_a_finding():
    kinds = findings("half_a_warp", halves(), halves(), np.zeros(32, np.float32))
    assert [kind for kind, _ in kinds] == ["divergent-barrier"]
    a, c = halves(256), np.zeros(256, np.float32)
    kinds = findings("product", a, a, c, np.int32(24))
    assert {kind for kind, _ in kinds} == {"divergent-barrier"}


def test_bfloat16_arrays_are_arguments():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(16, 16)).astype(ml_dtypes.bfloat16)
    c = np.zeros((16, 16), np.float32)
    launch("through_shared", a, c, np.int32(1), threads=64)
    np.testing.assert_allclose(c, a.astype(float) @ a.astype(float), atol=1e-5)
