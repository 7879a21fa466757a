"""Boxes of tensor maps on the simulator: loads, stores, reductions, checked against a model."""

from itertools import product

import numpy as np
import pytest
from copy_model import before, loaded, stored
from kernelscope.differential.copies import CopyCase, cases, run_case
from kernelscope.differential.machines import Machine
from kernelscope.errors import SimulatorError
from kernelscope.machine.copy_engine.places import RowLayout, SharedPlaces

SIMULATOR = Machine("simulator")
BOXES = [case for case in cases() if case.what in ("load", "store") and not case.operation]
# One in five of those that differ in rank, swizzle and edges; all types and strides.
PLACES = [case for case in BOXES if case.kind == "uint16" and not case.steps]
CHOSEN = PLACES[::5] + [case for case in BOXES if case not in PLACES]


def test_the_chosen_cases_have_every_rank_swizzle_type_and_stride():
    for name, least in (("swizzle", 4), ("kind", 13), ("steps", 3), ("fill", 2), ("offset", 4)):
        assert len({getattr(case, name) for case in CHOSEN}) >= least
    assert {len(case.shape) for case in CHOSEN} == {1, 2, 3, 4, 5}
    assert any(min(case.first) < 0 for case in CHOSEN)


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("case", CHOSEN, ids=lambda case: case.name)
def test_a_box_is_copied_element_by_element(case):
    shared, data = before(case)
    io, array, arrived = run_case(SIMULATOR, case)
    wanted = loaded(case, shared, data) if case.what == "load" else shared
    np.testing.assert_array_equal(io.view(np.uint8), wanted)
    wanted = stored(case, shared, data) if case.what == "store" else data
    np.testing.assert_array_equal(array, wanted)
    assert arrived.tolist() == [1]


# Rows that are shorter than the swizzle, as an H200 lays them out: 16 bytes, 32, ... less than it.
SHORT_ROWS = [
    CopyCase(what, shape, "uint32", (*more, 3, 4 * chunks), first, swizzle, offset=256)
    for swizzle in (32, 64, 128)
    for chunks in range(1, swizzle // 16)
    for what in ("load", "store")
    for shape, more, first in (((7, 40), (), (4, 2)), ((4, 6, 32), (4,), (0, 1, 0)))
]


@pytest.mark.turns(17)
@pytest.mark.system
@pytest.mark.parametrize("case", SHORT_ROWS, ids=lambda case: case.name)
def test_rows_shorter_than_the_swizzle_are_as_far_apart_as_it_is_long(case):
    test_a_box_is_copied_element_by_element(case)


def test_a_box_needs_no_memory_behind_its_last_row():
    for swizzle, rows, start in product((32, 64, 128), (1, 3, 7), range(0, 2048, 128)):
        one = SharedPlaces(*np.array([[start], [0], [0]]))
        for row in range(16, swizzle + 1, 16):
            layout = RowLayout(swizzle, row)
            assert layout.room(rows * row) == rows * swizzle
            last = one.chunk_addresses(rows * row, layout).max()
            assert last + 16 <= start + rows * swizzle


COMBINE = {
    "add": lambda a, b: a + b,
    "min": min,
    "max": max,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "inc": lambda a, b: 0 if a >= b else a + 1,
    "dec": lambda a, b: b if a == 0 or a > b else a - 1,
}
REDUCTIONS = [
    CopyCase("store", (20, 32), kind, (8, 16), (24, 15), operation=operation, values="small")
    for operation in COMBINE
    for kind in ("uint32", "int32", "float32", "uint64", "float16")
    if kind == "uint32" or operation in ("add", "min", "xor")
    if (operation, kind) not in (("min", "float32"), ("xor", "float32"), ("xor", "float16"))
]


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("case", REDUCTIONS, ids=lambda case: case.name)
def test_a_reduction_combines_what_is_there(case):
    shared, data = before(case)
    combine = COMBINE[case.operation]

    def by_type(old, new):
        both = np.array([old, new], data.dtype).view(case.kind)
        with np.errstate(over="ignore"):
            return np.array([combine(*both)]).astype(case.kind).view(data.dtype)[0]

    array = run_case(SIMULATOR, case)[1]
    np.testing.assert_array_equal(array, stored(case, shared, data, by_type))


def test_a_reduction_that_the_type_has_not_is_named():
    case = CopyCase("store", (20, 32), "float32", (8, 16), (0, 0), operation="min")
    with pytest.raises(SimulatorError, match=r"reduces a box of float32: \.min takes \.s32"):
        run_case(SIMULATOR, case)


PLAIN = [case for case in cases() if case.what.startswith("plain")]
PLAIN = [case for case in PLAIN if case.values == "bits" and "f" not in case.kind][::2]


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.name)
def test_plain_copies_and_reductions(case):
    shared, data = before(case)
    count, raw = case.box[0], data.ravel().view(np.uint8).copy()
    tile = shared.copy()
    if case.what == "plain load":
        tile[case.offset : case.offset + count] = raw[:count]
    elif case.operation:
        kind = case.kind.replace("b", "u").replace("s", "i").replace("64", "8").replace("32", "4")
        old = raw[:count].view(kind)
        new = tile[case.offset : case.offset + count].view(kind)
        with np.errstate(over="ignore"):
            found = [COMBINE[case.operation](a, b) for a, b in zip(old, new, strict=True)]
        raw[:count] = np.array(found).astype(kind).view(np.uint8)
    else:
        raw[:count] = tile[case.offset : case.offset + count]
    io, array, _ = run_case(SIMULATOR, case)
    np.testing.assert_array_equal(array, raw)
    np.testing.assert_array_equal(io.view(np.uint8), tile)


def test_a_float_reduction_adds_with_one_rounding():
    case = CopyCase(
        "plain store", (512,), "f32", (1024,), operation="add", values="small", offset=16
    )
    shared, data = before(case)
    array = run_case(SIMULATOR, case)[1].view(np.float32)
    wanted = data.view(np.float32).copy()
    wanted[:256] += shared[16:1040].view(np.float32)
    np.testing.assert_array_equal(array, wanted)


@pytest.mark.parametrize("mask", [1, 6, 15])
def test_a_multicast_reaches_the_blocks_of_its_mask(mask):
    case = CopyCase("multicast", box=(1040,), mask=mask, offset=16)
    shared, data = before(case)
    wanted = shared.reshape(4, -1).copy()
    ranks = [rank for rank in range(4) if mask >> rank & 1]
    wanted[ranks, 16:1056] = data[:1040]
    io, _, arrived = run_case(SIMULATOR, case)
    np.testing.assert_array_equal(io.view(np.uint8).reshape(4, -1), wanted)
    assert np.flatnonzero(arrived).tolist() == ranks


@pytest.mark.parametrize("operation", ["", "add", "inc"])
def test_a_copy_to_another_block_of_the_cluster(operation):
    kind = "u32" if operation else "uint8"
    case = CopyCase("send", (512,), kind, (512,), operation=operation, offset=64)
    shared, _ = before(case)
    wanted = shared.reshape(2, -1).copy()
    source, there = wanted[0, 4160:4672].view(np.uint32), wanted[1, 64:576].view(np.uint32)
    combine = COMBINE.get(operation, lambda old, new: new)
    with np.errstate(over="ignore"):
        there[:] = [combine(a, b) for a, b in zip(there, source, strict=True)]
    io, _, arrived = run_case(SIMULATOR, case)
    np.testing.assert_array_equal(io.view(np.uint8).reshape(2, -1), wanted)
    assert arrived.tolist() == [0, 1]


def test_elect_takes_the_lowest_lane_of_the_mask():
    (out,) = run_case(SIMULATOR, CopyCase("elect"))
    masks = np.random.default_rng(5).integers(1, 1 << 32, 64, np.uint32)
    for mask, found in zip(masks.tolist(), out, strict=True):
        lowest = (mask & -mask).bit_length() - 1
        named = [2 * lowest + (lane == lowest) for lane in range(32)]
        assert found.tolist() == [named[i] if mask >> i & 1 else 198 for i in range(32)]


@pytest.mark.parametrize("what", ["load", "store"])
def test_a_box_begins_at_a_multiple_of_16_bytes_of_a_row(what):
    """An H200 ends with an illegal instruction."""
    case = CopyCase(what, (37, 80), "uint16", (16, 32), (-3, 30))
    with pytest.raises(SimulatorError, match="at element -3 of a row .* multiple of 16 bytes"):
        run_case(SIMULATOR, case)
    run_case(SIMULATOR, CopyCase(what, (37, 80), "uint16", (16, 32), (8, 30)))


@pytest.mark.parametrize("first", [(-8, 0), (0, -1)])
def test_a_box_that_is_stored_begins_inside_of_the_array(first):
    """An H200 ends with an illegal instruction; past the end it stores nothing."""
    with pytest.raises(SimulatorError, match="stores a box at .* no coordinate may be negative"):
        run_case(SIMULATOR, CopyCase("store", (37, 80), "uint16", (16, 32), first))
    run_case(SIMULATOR, CopyCase("store", (37, 80), "uint16", (16, 32), (96, 40)))


def test_sums_of_copies_keep_subnormals(monkeypatch):
    """As an H200's do; those of red.global do not."""
    case = CopyCase("plain store", (512,), "f32", (1024,), operation="add")
    small = np.full(256, 1e-40, np.float32)
    monkeypatch.setattr(
        CopyCase, "numbers", lambda _, shape, seed: np.resize(small, shape).view(np.uint32)
    )
    array = run_case(SIMULATOR, case)[1].view(np.float32)
    assert (array[:256] == small + small).all() and small.all()


@pytest.mark.parametrize("operation", ("add", "and", "or", "xor"))
def test_int64_in_a_box_has_a_minimum_and_a_maximum_alone(operation):
    case = CopyCase("store", (20, 32), "int64", (8, 16), (24, 15), operation=operation)
    with pytest.raises(SimulatorError, match=rf"reduces a box of int64: \.{operation} takes"):
        run_case(SIMULATOR, case)
