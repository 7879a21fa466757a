"""How tensor cores add: the model against exact integers, and cases that tell models apart."""

import ml_dtypes
import numpy as np
import pytest
from kernelscope.isa.matrix import SM_80, SM_90, Accumulation, multiplication
from kernelscope.isa.matrix.tensor_core import decode, multiply
from matrix_harness import DTYPES, spread_over

OPCODES = {
    "f16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "bf16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "tf32": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
    "sum f16": "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
}
# bits of the exponent and of the fraction, and the bits below that are ignored
FORMATS = {"f16": (5, 10, 0), "bf16": (8, 7, 0), "tf32": (8, 10, 13), "f32": (8, 23, 0)}
GROUPS = {SM_90: {"f16": 16, "bf16": 16, "tf32": 8}, SM_80: {"f16": 8, "bf16": 8, "tf32": 4}}


def parts(bits: int, kind: str) -> tuple[int, int]:
    """(signed significand, exponent): the number is significand * 2 ** (exponent - fraction)."""
    exponent_bits, fraction_bits, ignored = FORMATS[kind]
    bits >>= ignored
    sign = -1 if bits >> exponent_bits + fraction_bits & 1 else 1
    exponent = bits >> fraction_bits & (1 << exponent_bits) - 1
    fraction = bits & (1 << fraction_bits) - 1
    bias = (1 << exponent_bits - 1) - 1
    hidden = 1 << fraction_bits if exponent else 0
    return sign * (fraction + hidden), max(exponent, 1) - bias


def cut(significand: int, scale: int, unit: int) -> int:
    """significand * 2**scale as a multiple of 2**unit, toward zero."""
    shift = scale - unit
    size = abs(significand) << shift if shift >= 0 else abs(significand) >> -shift
    return size if significand >= 0 else -size


def sum_once(pairs: list[tuple[int, int]], c: int, kind: str, fraction_bits: int) -> int:
    """Bits of .f32 of c + the products of pairs of bits, all aligned, cut and added at once."""
    digits = FORMATS[kind][1]
    terms = []
    for left, right in pairs:
        (s, e), (t, f) = parts(left, kind), parts(right, kind)
        if s * t:
            terms.append((s * t, e + f, 2 * digits))
    start, exponent = parts(c, "f32")
    terms.append((start, exponent if start else -126, 23))
    unit = max(e for _, e, _ in terms) - fraction_bits
    total = sum(cut(s, e - d, unit) for s, e, d in terms)
    size = abs(total)
    if not size:
        return 0
    exponent = max(size.bit_length() - 1 + unit, -126)
    fraction = abs(cut(size, unit, exponent - 23))
    bits = (exponent + 127 << 23) + fraction - (1 << 23) if fraction >> 23 else fraction
    return bits | (1 << 31 if total < 0 else 0)


def expected(a, b, c, kind: str, model: Accumulation) -> np.ndarray:
    """(m, n) bits of D from the bits of A (m, k), B (n, k) and C (m, n)."""
    group, out = GROUPS[model][kind], np.zeros(c.shape, np.uint32)
    for i, j in np.ndindex(*c.shape):
        total = int(c[i, j])
        for first in range(0, a.shape[1], group):
            columns = range(first, first + group)
            pairs = [(int(a[i, k]), int(b[j, k])) for k in columns]
            total = sum_once(pairs, total, kind, model.fraction_bits)
        out[i, j] = total
    return out


def product(opcode: str, a, b, c, model=SM_90) -> np.ndarray:
    """(m, n) bits of D; a (m, k), b (n, k), c (m, n): numbers, or their bits."""
    form = multiplication(opcode)
    raw = [
        spread_over(np.ascontiguousarray(x).view(f"u{x.itemsize}")[None], held)
        for x, held in ((a, form.a), (b, form.b), (c, form.c))
    ]
    left, right = decode(raw[0], form.a.kind, model), decode(raw[1], form.b.kind, model)
    d = multiply(form, left, right, raw[2], model)
    out = np.zeros(form.d.rows * form.d.columns, d.dtype)
    out[form.d.place] = d[0]
    return out.reshape(form.d.rows, form.d.columns)


def sums(opcode: str, a, b, c=0.0, model=SM_90):
    """The sum that every element of D is, where all rows of A and all columns of B are alike."""
    form = multiplication(opcode)
    m, n, k = form.shape
    rows = [np.zeros(k), np.zeros(k)]
    for row, values in zip(rows, (a, b), strict=True):
        row[: len(values)] = values
    types = [DTYPES[held.kind] for held in (form.a, form.b, form.c, form.d)]
    left, right = (
        np.tile(r, (s, 1)).astype(t) for r, s, t in zip(rows, (m, n), types[:2], strict=True)
    )
    bits = product(opcode, left, right, np.full((m, n), c, types[2]), model)
    found = bits.view(types[3])
    assert (bits == bits[0, 0]).all()
    return float(found[0, 0])


@pytest.mark.parametrize("model", [SM_90, SM_80], ids=["sm_90", "sm_80"])
@pytest.mark.parametrize("kind", ["f16", "bf16", "tf32"])
@pytest.mark.parametrize("spread", [2, 6, 14])
def test_sums_are_those_of_exact_integers(kind, model, spread):
    """Exponents up to 2 * spread apart, zeros and numbers below the normal ones among them."""
    form, rng = multiplication(OPCODES[kind]), np.random.default_rng(spread)
    m, n, k = form.shape
    exponent_bits, fraction_bits, ignored = FORMATS[kind]
    center = 0 if spread == 14 and kind == "f16" else (1 << exponent_bits - 1) - 1

    def numbers(shape):
        exponent = np.clip(center + rng.integers(-spread, spread + 1, shape), 0, 2 * center or 14)
        low = rng.integers(0, 1 << fraction_bits + ignored, shape)
        sign = rng.integers(0, 2, shape) << exponent_bits + fraction_bits + ignored
        bits = sign | exponent << fraction_bits + ignored | low
        return np.where(rng.random(shape) < 0.1, 0, bits).astype(f"u{2 if not ignored else 4}")

    a, b = numbers((m, k)), numbers((n, k))
    c = (rng.normal(size=(m, n)) * 2.0 ** rng.integers(-20, 8, (m, n))).astype(np.float32)
    bits = c.view(np.uint32)
    np.testing.assert_array_equal(
        product(OPCODES[kind], a, b, bits, model), expected(a, b, bits, kind, model)
    )


@pytest.mark.parametrize("model, last", [(SM_90, 25), (SM_80, 24)])
def test_a_small_product_is_cut_below_the_last_bit_kept(model, last):
    """Beside 1, four products of 2^-last add up to a bit of .f32; smaller ones are lost."""
    a = [1, *[2.0**-12] * 4]
    kept = sums(OPCODES["f16"], a, [1, *[2.0 ** (12 - last)] * 4], 0, model)
    assert kept == 1 + 4 * 2.0**-last
    assert sums(OPCODES["f16"], a, [1, *[1.75 * 2.0 ** (11 - last)] * 4], 0, model) == 1


def test_the_sum_is_cut_toward_zero():
    """1 + 0.75 * 2^-23 is nearer to the next number above."""
    b = [1, 2.0**-12, 2.0**-13]
    assert sums(OPCODES["f16"], [1, 2.0**-12, 2.0**-12], b) == 1
    assert sums(OPCODES["f16"], [-1, -(2.0**-12), -(2.0**-12)], b) == -1
    nearest = Accumulation(rounding="rn")
    found = sums(OPCODES["f16"], [1, 2.0**-12, 2.0**-12], b, 0, nearest)
    assert found == 1 + 2.0**-23


def test_the_order_of_the_products_matters_between_groups():
    """sm_90 adds all 16 at once; sm_80 cuts what the second half adds to the sum of the first."""
    small, first, last = [2.0**-13] * 8, [1, *[0] * 7], [*[0] * 7, 1]
    late = first + small, first + [2.0**-12] * 8
    early = small + last, [2.0**-12] * 8 + last
    for values in (late, early):
        assert sums(OPCODES["f16"], *values) == 1 + 2.0**-22
    assert sums(OPCODES["f16"], *late, 0, SM_80) == 1
    assert sums(OPCODES["f16"], *early, 0, SM_80) == 1 + 2.0**-22


def test_zeros_align_nothing_unless_the_model_says_so():
    """0 * 2^15 has the exponent 1 of its operands, if zeros count."""
    small = [0, *[2.0**-12] * 2], [2.0**15, *[2.0**-12] * 2]
    assert sums(OPCODES["f16"], *small) == 2.0**-23
    assert sums(OPCODES["f16"], *small, 0, Accumulation(zeros_align=True)) == 2.0**-23
    tiny = [0, *[2.0**-12] * 2], [2.0**15, *[2.0**-13] * 2]
    assert sums(OPCODES["f16"], *tiny) == 2.0**-24
    assert sums(OPCODES["f16"], *tiny, 0, Accumulation(zeros_align=True)) == 0


@pytest.mark.parametrize("opcode", OPCODES.values(), ids=OPCODES)
def test_infinities_and_nan(opcode):
    inf, nan = np.inf, np.nan
    assert sums(opcode, [inf, 1], [2, 1]) == inf
    assert sums(opcode, [inf, 1], [-2, 1], 1) == -inf
    assert sums(opcode, [1], [1], -inf) == -inf
    assert np.isnan(sums(opcode, [inf, 1], [0, 1]))
    assert np.isnan(sums(opcode, [inf, inf], [1, -1]))
    assert np.isnan(sums(opcode, [inf], [1], -inf))
    assert np.isnan(sums(opcode, [nan], [0]))
    form = multiplication(opcode)
    m, n, k = form.shape
    left = np.full((m, k), nan, DTYPES[form.a.kind])
    right = np.ones((n, k), DTYPES[form.b.kind])
    bits = product(opcode, left, right, np.zeros((m, n), DTYPES[form.c.kind]))
    assert (bits == (0x7FFF if form.d.kind == "f16" else 0x7FFFFFFF)).all()


def test_only_the_rows_and_columns_of_a_special_number_are_touched():
    form = multiplication(OPCODES["bf16"])
    m, n, k = form.shape
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, (s, k)).astype(ml_dtypes.bfloat16) for s in (m, n))
    c = np.zeros((m, n), np.float32)
    clean = product(form.opcode, a, b, c).view(np.float32)
    a[3, 5] = np.nan
    found = product(form.opcode, a, b, c).view(np.float32)
    assert np.isnan(found[3]).all()
    np.testing.assert_array_equal(np.delete(found, 3, 0), np.delete(clean, 3, 0))


def test_sums_beyond_the_range():
    big = float(np.finfo(np.float32).max)
    assert sums(OPCODES["bf16"], [2.0**100], [2.0**100]) == np.inf
    assert sums(OPCODES["bf16"], [2.0**100], [-(2.0**100)]) == -np.inf
    assert sums(OPCODES["f16"], [1], [1], big) == big
    assert sums(OPCODES["sum f16"], [256], [256]) == np.inf
    assert sums(OPCODES["sum f16"], [255], [256]) == 255 * 256


def test_sums_of_f16_are_rounded_to_nearest_even():
    assert sums(OPCODES["sum f16"], [1, 2.0**-6], [1, 2.0**-5]) == 1  # halfway
    assert sums(OPCODES["sum f16"], [1, 2.0**-6, 2.0**-10], [1, 2.0**-5, 2.0**-10]) == 1 + 2.0**-10


def test_wmma_adds_four_columns_of_tf32_at_once():
    """ptxas makes two instructions of wmma's eight columns; .f32 cannot hold 1 + 2^-24."""
    one = OPCODES["tf32"], "wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32"
    a, b = ([1, x, x, 0, x, x] for x in (2.0**-12, 2.0**-13))
    assert [sums(opcode, a, b) for opcode in one] == [1 + 2.0**-23, 1]


def test_sums_of_8_bit_floats_are_added_to_c_at_the_end():
    """Two groups of 16 products without C, then one addition, rounded to nearest."""
    opcode = "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32"
    assert sums(opcode, [1], [2.0**-6], 2.0**20) == 2.0**20
    assert sums(opcode, [1.5], [2.0**-4], 2.0**20) == 2.0**20 + 2.0**-3
    assert sums(opcode, [1, 1], [1, -1], 2.0**-20) == 2.0**-20


def test_mixed_precision_rounds_twice():
    """C in .f32 and D in .f16: the sum is cut to .f32 first. A tie in .f16 then stays one."""
    opcode = "wmma.mma.sync.aligned.row.col.m16n16k16.f16.f32"
    just_over = [1, 2.0**-6, 2.0**-14, 2.0**-12], [1, 2.0**-5, 2.0**-11, 2.0**-12]
    assert sums(OPCODES["sum f16"], *just_over) == 1 + 2.0**-10
    assert sums(opcode, *just_over) == 1


def test_zero_is_positive():
    for name in ("f16", "sum f16"):
        assert np.signbit(sums(OPCODES[name], [-1], [0], -0.0)) == 0
    tiny = sums(OPCODES["sum f16"], [-(2.0**-14)], [2.0**-14])
    assert tiny == 0 and not np.signbit(tiny)
