"""ReadCounts: how often each element is loaded, against what the code says."""

import numpy as np
import pytest
from kernelscope import RawModule, observe
from kernelscope.watch.reads import ReadCounts

CODE = r"""
extern "C" __global__ void uneven(const float* a, const float* b, float* out, int n)
{
    const int t = blockIdx.x * blockDim.x + threadIdx.x;
    if (t >= n) return;
    float sum = b[0];
    for (int i = 0; i <= t; ++i) sum += a[i];  // a[i] is read by the n - i threads from i on
    out[t] = sum;
}
extern "C" __global__ void wide(const float4* a, float* out)
{
    const float4 four = a[threadIdx.x / 2];
    out[threadIdx.x] = four.x + four.w;
}
"""


@pytest.fixture(scope="module")
def module():
    return RawModule(code=CODE, backend="simulator")


def run_uneven(module, n, reads):
    a, out = np.arange(n, dtype=np.float32), np.zeros(n, np.float32)
    args = (a, np.ones(5, np.float32), out, np.int32(n))
    with observe(reads):
        module.get_function("uneven")((3,), (16,), args)
    np.testing.assert_array_equal(out, 1 + np.cumsum(a))


def test_each_element_is_counted_by_itself(module):
    reads = ReadCounts()
    run_uneven(module, 37, reads)
    np.testing.assert_array_equal(reads.of("a"), 37 - np.arange(37))
    np.testing.assert_array_equal(reads.of("b"), [37, 0, 0, 0, 0])
    assert not reads.of("out").any()  # written, never read


def test_launches_add_up(module):
    reads = ReadCounts()
    run_uneven(module, 20, reads)
    run_uneven(module, 20, reads)
    np.testing.assert_array_equal(reads.of("a"), 2 * (20 - np.arange(20)))


def test_a_wide_load_counts_for_each_of_its_elements(module):
    reads = ReadCounts()
    a = np.arange(24, dtype=np.float32)
    with observe(reads):
        module.get_function("wide")((1,), (8,), (a, np.zeros(8, np.float32)))
    np.testing.assert_array_equal(reads.of("a"), [2] * 16 + [0] * 8)


def test_arrays_are_named_in_errors(module):
    reads = ReadCounts()
    with pytest.raises(KeyError, match="no kernel has run"):
        reads.of("a")
    run_uneven(module, 20, reads)
    with pytest.raises(KeyError, match="a, b, out"):
        reads.of("k")
    with pytest.raises(ValueError, match="ReadCounts"):
        run_uneven(module, 21, reads)
