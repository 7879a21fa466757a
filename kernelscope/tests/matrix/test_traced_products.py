"""Matrix products and narrow floats in the tracer: who holds what, and the page's data."""

from functools import cache

import ml_dtypes
import numpy as np
from kernelscope.events import observe
from kernelscope.module import RawModule
from kernelscope.watch import Tracer
from traced_product import traced

NARROW = r"""
#include <cuda_bf16.h>
#include <cuda_fp8.h>
extern "C" __global__ void widen(const __nv_bfloat16* a, const __nv_fp8_e4m3* b, float* out,
                                 __nv_bfloat16 scale) {
    __shared__ __nv_bfloat16 tile[2][4];
    int t = threadIdx.x;
    tile[t / 4][t % 4] = a[t];
    __syncthreads();
    out[t] = (float)tile[1 - t / 4][t % 4] + (float)b[t] * (float)scale;
}
"""


def test_a_product_is_recorded_with_its_fragments():
    tracer, a, b = traced()
    steps = [frame["step"] for frame in tracer.frames if frame["products"]]
    assert len(steps) == 2  # the loop's two products
    assert [one["warp"] for one in tracer.frames[steps[0]]["products"]] == [0, 1]
    first, second = (tracer.products_at(step)[0] for step in steps)
    np.testing.assert_array_equal(first["A"], a[:, :16])
    np.testing.assert_array_equal(second["B"], b[16:])
    np.testing.assert_array_equal(second["C"], a[:, :16] @ b[:16])
    np.testing.assert_array_equal(second["D"], a @ b)
    (opcode,) = tracer.recording.fragments
    fragment = tracer.recording.fragments[opcode]["A"]
    assert fragment["shape"] == [16, 16] and fragment["kind"] == "f16"
    # lane 5 holds, in its third register, elements 2 and 3 of row 1, 8 columns further on
    places = list(zip(fragment["row"][5], fragment["column"][5], fragment["register"], strict=True))
    assert places[4:6] == [(1, 10, 2), (1, 11, 2)]
    assert any("warp 1: mma.sync" in row[-1] for row in tracer.rows())


def test_one_warp_alone():
    tracer, *_ = traced(warp=1)
    found = [one["warp"] for frame in tracer.frames for one in frame["products"]]
    assert set(found) == {1}


@cache
def narrow():
    return RawModule(code=NARROW, backend="simulator", options=("-arch=compute_90",))


def narrow_arguments():
    a = np.arange(1, 9).astype(ml_dtypes.bfloat16)
    b = np.arange(8).astype(ml_dtypes.float8_e4m3fn)
    return a, b, np.zeros(8, np.float32), ml_dtypes.bfloat16(0.5)


def test_narrow_floats_are_arguments_and_have_their_values_in_the_trace():
    a, b, out, scale = narrow_arguments()
    with observe(Tracer()) as tracer:
        narrow().get_function("widen")((1,), (8,), (a, b, out, scale))
    expected = np.roll(np.arange(1.0, 9), 4) + np.arange(8) / 2
    np.testing.assert_array_equal(out, expected)
    arrays = tracer.recording.arrays
    assert arrays["tile"]["dtype"] == "bfloat16" and arrays["tile"]["shape"] == [2, 4]
    assert arrays["b"]["dtype"] == "float8_e4m3fn"
    tile = tracer.shared_at(len(tracer.frames) - 1)["tile"]
    assert tile.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(tile.astype(float).ravel(), np.arange(1, 9))
    reads = [one for frame in tracer.frames for one in frame["global"] if one["array"] == "b"]
    assert reads[0]["values"] == list(range(8))
    assert "bfloat16" in tracer.to_html()
