"""The record's report: a difference of any section has a line with its name."""

import numpy as np
import pytest
from kernelscope.differential import copies, textures
from kernelscope.differential.record import line_of
from kernelscope.differential.sections import guarded


@pytest.mark.parametrize("key", ["opcode", "matrix", "seed", "program", "function", "file"])
def test_a_difference_is_named_by_its_items_first_entry(key):
    item = guarded({key: 3, "shape": [1, 2], "program_of": "x"}, lambda: {"mismatches": 5})
    assert line_of({"section": "these", **item}).startswith("  these: 3 {'mismatches': 5")


def test_textures_that_differ_or_fail_have_a_line():
    case = textures.cases()[0]
    first = np.zeros((textures.LANES, 4), np.uint32)
    item = guarded({"texture": case.name}, lambda: textures.compare(case, first, first + 1))
    line = line_of({"section": "textures", **item})
    assert line.startswith(f"  textures: {case.name} {{'mismatches': {textures.LANES}")
    failed = guarded({"texture": case.name}, lambda: 1 // 0)
    assert "ZeroDivisionError" in line_of({"section": "textures", **failed})


def test_copies_that_differ_name_the_array_and_its_first_byte():
    case = copies.CopyCase("load", (8, 32), "uint16", (8, 32), (0, 0))
    first = [np.zeros(8, np.uint32), np.zeros((2, 4), np.uint16), np.ones(1, np.int32)]
    second = [first[0], first[1].copy(), first[2]]
    assert copies.compare(case, first, second) == {"bytes": 52, "mismatches": 0}
    second[1][1, 2] = 7
    found = copies.compare(case, first, second)
    assert found["mismatches"] == 1
    assert found["where"] == {"array": [1, 12, [0] * 4, [7, 0, 0, 0]]}
