"""Atomic operations over many lanes leave what one lane after another leaves."""

import numpy as np
import pytest
from kernelscope.isa.atomics import operation

LANES = 700
PLACES = {
    "one place": np.zeros(LANES, int),
    "three places": np.arange(LANES) % 3,
    "one crowded place": np.where(np.arange(LANES) % 3, 5, np.arange(LANES) % 90),
    "many places": np.arange(LANES) * 7 % 300,
    "places in runs": np.arange(LANES) // 100,
}
INTEGERS = "add and or xor min max inc dec exch cas"
OPERATIONS = [
    *(f"atom.global.{name}.{kind}" for name in INTEGERS.split()[:6] for kind in ("u32", "s64")),
    *(f"atom.shared.{name}.u32" for name in ("inc", "dec")),
    *(f"atom.{name}.b{bits}" for name in ("exch", "cas") for bits in (32, 64)),
    *(f"atom.global.{name}.f{bits}" for name in ("add", "exch") for bits in (32, 64)),
]


def one_after_another(atomic, view, index, operands):
    """Each lane alone, by the operation's definition for one lane."""
    old = np.empty(index.size, view.dtype)
    for lane in range(index.size):
        at = index[lane : lane + 1]
        old[lane : lane + 1] = view[at]
        view[at] = atomic.fn(view[at], *(operand[lane : lane + 1] for operand in operands))
    return old


def same_bits(a, b):
    np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


def operands_of(opcode, dtype, random):
    if dtype.kind == "f":
        return (random.standard_normal(LANES).astype(dtype),)
    if ".cas" in opcode:  # chains: many lanes find what they expect
        expected = random.integers(0, 4, LANES)
        return expected.astype(dtype), ((expected + 1) % 4).astype(dtype)
    if ".inc" in opcode or ".dec" in opcode:
        return (random.integers(0, 9, LANES).astype(dtype),)
    return (random.integers(-(2**31), 2**31, LANES).astype(dtype),)


@pytest.mark.parametrize("opcode", OPERATIONS)
def test_lanes_go_in_order(opcode):
    kind, random = opcode.rpartition(".")[2], np.random.default_rng(7)
    dtype = np.dtype(kind[0].translate(str.maketrans("bs", "ui")) + str(int(kind[1:]) // 8))
    atomic = operation(opcode, kind)
    for index in PLACES.values():
        operands, start = operands_of(opcode, dtype, random), np.zeros(300, dtype)
        start[::2] = operands[0][:150]
        expected, view, unused = start.copy(), start.copy(), start.copy()
        with np.errstate(all="ignore"):
            old = one_after_another(atomic, expected, index, operands)
            same_bits(atomic.update(view, index, operands), old)
            same_bits(view, expected)
            if atomic.in_order(unused, index, operands):
                same_bits(unused, expected)


SPECIAL = np.array([1e-40, -1e-40, 3e-39, 1.1754944e-38, np.inf, -np.inf, np.nan, -0.0, 0, 1.5])


@pytest.mark.turns(11)
@pytest.mark.system
@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize("kept", [slice(0, 4), slice(3, 5), slice(4, 6), slice(6, 10), slice(7, 9)])
def test_sums_of_special_numbers_have_the_bits_of_single_sums(space, kept):
    """Flushed subnormals, NaN (the hardware's own bits) and minus zero."""
    atomic = operation("atom.add.f32", "f32")
    atomic = atomic.in_shared if space == "shared" else atomic
    values = np.random.default_rng(3).choice(SPECIAL[kept], LANES).astype(np.float32)
    for index in PLACES.values():
        expected = np.full(300, -0.0, np.float32)
        view, unused = expected.copy(), expected.copy()
        with np.errstate(all="ignore"):
            old = one_after_another(atomic, expected, index, (values,))
            same_bits(atomic.update(view, index, (values,)), old)
            same_bits(view, expected)
            if atomic.in_order(unused, index, (values,)):
                same_bits(unused, expected)
