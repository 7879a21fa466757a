"""The kernels of held_out_third/ are right, at small shapes."""

from collections import Counter

import numpy as np
import pytest
from held_out_set import FOLDERS, NAMES, at_shape, held_out
from third_expected import EXPECTED

FOLDER = "held_out_third"
IN_ANY_ORDER = {"bucket_scatter": 1, "pack_above": 1}  # kernel -> its array; rows are sorted here
CASES = list(held_out(FOLDER))


@pytest.mark.turns(7)
@pytest.mark.system
@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_a_kernel_gives_what_numpy_gives(name):
    shape, expected = EXPECTED[name]
    case = at_shape(FOLDER, name, shape)
    values = case.values(np)
    wanted = expected(*(v.copy() if isinstance(v, np.ndarray) else v for v in values))
    case.kernel("simulator")(case.grid, case.block, values)
    for number, right in wanted.items():
        found = values[number]
        if IN_ANY_ORDER.get(name) == number:
            found = np.sort(found.view(right.dtype).reshape(right.shape), axis=1)
        if np.issubdtype(right.dtype, np.floating):
            close = 4e-3 if found.dtype == np.float16 else 2e-5
            np.testing.assert_allclose(found, right, rtol=close, atol=close)
        else:
            np.testing.assert_array_equal(found, right)


def test_every_kernel_is_checked_and_has_a_small_and_a_large_shape():
    assert {case.name for case in CASES} == {*EXPECTED}
    assert set(Counter(case.name for case in CASES).values()) == {2}
    assert len({case.label for case in CASES}) == len(CASES) == 80


def test_the_sets_have_no_name_in_common():
    names = [{case.name for case in held_out(folder)} for folder in NAMES]
    assert len(set().union(*names)) == sum(map(len, names))
    assert {path.name for path in FOLDERS[FOLDER].glob("*.cu")} == {case.file for case in CASES}
