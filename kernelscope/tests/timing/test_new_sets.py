"""The kernels of the third and of later sets are right, at small shapes."""

from collections import Counter
from contextlib import nullcontext

import eighteenth_expected
import fifteenth_expected
import fourteenth_expected
import nineteenth_expected
import numpy as np
import pytest
import seventeenth_expected
import sixteenth_expected
import third_expected
import thirteenth_expected
import twelfth_expected
from held_out_set import FOLDERS, NAMES, at_shape, held_out
from kernelscope.errors import ArgumentWarning

EXPECTED = {
    "held_out_third": third_expected.EXPECTED,
    "held_out_twelfth": twelfth_expected.EXPECTED,
    "held_out_thirteenth": thirteenth_expected.EXPECTED,
    "held_out_fourteenth": fourteenth_expected.EXPECTED,
    "held_out_fifteenth": fifteenth_expected.EXPECTED,
    "held_out_sixteenth": sixteenth_expected.EXPECTED,
    "held_out_seventeenth": seventeenth_expected.EXPECTED,
    "held_out_eighteenth": eighteenth_expected.EXPECTED,
    "held_out_nineteenth": nineteenth_expected.EXPECTED,
}
TIMES = {
    "held_out_third": 80,
    "held_out_twelfth": 48,
    "held_out_thirteenth": 48,
    "held_out_fourteenth": 48,
    "held_out_fifteenth": 48,
    "held_out_sixteenth": 48,
    "held_out_seventeenth": 48,
    "held_out_eighteenth": 48,
    "held_out_nineteenth": 48,
}
IN_ANY_ORDER = {"bucket_scatter": 1, "pack_above": 1}  # kernel -> its array; rows are sorted here
# They read arrays as another type than these have, and so they were measured.
OF_ANOTHER_TYPE = {
    "automaton_lines",
    "causal_conv_1d_silu_half",
    "cross_entropy_gradient_bf16",
    "ising_half_sweep",
    "recursive_gaussian_columns",
}
LAST_BIT = {"cross_entropy_gradient_bf16": 3}  # kernel -> its array; exponentials are rounded there
KERNELS = [(folder, name) for folder, kernels in EXPECTED.items() for name in sorted(kernels)]


@pytest.mark.turns(59)
@pytest.mark.system
@pytest.mark.parametrize(("folder", "name"), KERNELS)
def test_a_kernel_gives_what_numpy_gives(folder, name):
    shape, expected = EXPECTED[folder][name]
    case = at_shape(folder, name, shape)
    values = case.values(np)
    wanted = expected(*(v.copy() if isinstance(v, np.ndarray) else v for v in values))
    warned = pytest.warns(ArgumentWarning, match="reads the same bytes as its own type")
    with warned if name in OF_ANOTHER_TYPE else nullcontext():
        case.kernel("simulator")(case.grid, case.block, values)
    for number, right in wanted.items():
        found = values[number]
        if IN_ANY_ORDER.get(name) == number:
            found = np.sort(found.view(right.dtype).reshape(right.shape), axis=1)
        if np.issubdtype(right.dtype, np.floating):
            close = 4e-3 if found.dtype == np.float16 else 2e-5
            np.testing.assert_allclose(found, right, rtol=close, atol=close)
        elif LAST_BIT.get(name) == number:
            np.testing.assert_allclose(found.astype(int), right.astype(int), rtol=0, atol=1)
        else:
            np.testing.assert_array_equal(found, right)


@pytest.mark.parametrize("folder", EXPECTED)
def test_every_kernel_is_checked_and_has_a_small_and_a_large_shape(folder):
    cases = list(held_out(folder))
    assert {case.name for case in cases} == {*EXPECTED[folder]}
    assert set(Counter(case.name for case in cases).values()) == {2}
    assert len({case.label for case in cases}) == len(cases) == TIMES[folder]
    assert {path.name for path in FOLDERS[folder].glob("*.cu")} == {case.file for case in cases}


def test_the_sets_have_no_name_in_common():
    names = [{case.name for case in held_out(folder)} for folder in NAMES]
    assert len(set().union(*names)) == sum(map(len, names))
    assert {*EXPECTED} == {*NAMES[2:]}
