"""Numba kernels against float64 NumPy, and wrong ones that the sanitizer names."""

import numpy as np
import pytest

pytest.importorskip("numba_cuda")

import good_kernels  # noqa: E402
import wrong_kernels  # noqa: E402
from kernelscope import Sanitizer, observe  # noqa: E402
from kernelscope.numba import run  # noqa: E402

pytestmark = pytest.mark.system

EPSILONS = 64  # of the output's dtype, beside the exact result
APPROXIMATE = {"fast_functions": 2e-6}


def check(found, expected, name):
    """Compare every element; a NaN or an element that nothing has written is wrong."""
    if found.dtype.fields:
        for field in found.dtype.names:
            check(found[field], expected[field], f"{name}.{field}")
        return
    if found.dtype.kind in "biu":
        np.testing.assert_array_equal(found, expected, name)
        return
    limit = APPROXIMATE.get(name, EPSILONS * np.finfo(found.dtype).eps)
    exact = np.asarray(expected, complex if found.dtype.kind == "c" else float)
    np.testing.assert_allclose(found, exact, limit, limit, equal_nan=False, err_msg=name)


@pytest.mark.turns(29)
@pytest.mark.parametrize("case", good_kernels.CASES, ids=lambda case: case.__name__[5:])
def test_a_kernel_computes_what_numpy_does_and_the_sanitizer_is_silent(case):
    for observers in ((), (Sanitizer(),)):
        kernel, grid, block, arguments, expected, shared = case()
        with observe(*observers) as found:
            run(kernel, grid, block, *arguments, shared_mem=shared)
        for place, values in expected.items():
            check(arguments[place], values, kernel.__name__)
        if observers:
            assert not found.findings, str(found)


@pytest.mark.turns(23)
@pytest.mark.parametrize("kernel", wrong_kernels.WRONG, ids=lambda kernel: kernel.__name__)
def test_a_wrong_kernel_is_found_on_its_line_with_its_array(kernel):
    kind, array, index = wrong_kernels.WRONG[kernel]
    with observe(Sanitizer()) as seen:
        run(kernel, 1, wrong_kernels.N, *wrong_kernels.arguments())
    (finding,) = {(one.kind, one.line): one for one in seen.findings}.values()
    assert (finding.kind, finding.array, finding.index) == (kind, array, index)
    assert finding.line_text.endswith(f"# {kind}"), finding
    assert "__sync" not in finding.remedy
