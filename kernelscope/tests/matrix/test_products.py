"""mma and wmma.mma: products of whole fragments against NumPy, layouts against the PTX manual."""

import numpy as np
import pytest
from kernelscope.differential.matrix import kernels as matrix_kernels
from kernelscope.errors import UnknownInstruction
from kernelscope.isa.matrix import multiplication
from kernelscope.isa.matrix.layouts import layout
from matrix_harness import DTYPES, run, small_integers, spread_over

MMA = """
m16n8k16.row.col.f32.f16.f16.f32  m16n8k8.row.col.f32.f16.f16.f32
m16n8k16.row.col.f16.f16.f16.f16  m16n8k8.row.col.f16.f16.f16.f16
m16n8k16.row.col.f32.bf16.bf16.f32  m16n8k8.row.col.f32.bf16.bf16.f32
m16n8k8.row.col.f32.tf32.tf32.f32  m16n8k4.row.col.f32.tf32.tf32.f32
m8n8k16.row.col.s32.s8.u8.s32  m16n8k16.row.col.s32.u8.s8.s32
m16n8k32.row.col.s32.s8.s8.s32  m16n8k32.row.col.satfinite.s32.u8.u8.s32
m16n8k32.row.col.f32.e4m3.e5m2.f32  m8n8k4.row.col.f64.f64.f64.f64
""".split()
TYPES = "f32.f32 f16.f16 f16.f32 f32.bf16.bf16.f32 s32.s8.s8.s32 s32.u8.u8.s32.satfinite".split()
WMMA = [f"{s}.{types}" for s in ("m16n16k16", "m32n8k16", "m8n32k16") for types in TYPES]
WMMA += ["m16n16k8.f32.tf32.tf32.f32", "m8n8k4.rn.f64.f64.f64.f64"]
OPCODES = [f"mma.sync.aligned.{one}" for one in MMA]
OPCODES += [f"wmma.mma.sync.aligned.row.col.{one}" for one in WMMA]
ENTRIES = tuple(matrix_kernels.multiply(f"k{i}", opcode) for i, opcode in enumerate(OPCODES))
WARPS = 3


def multiplied(number: int, a, b, c):
    """(warps, m, n) D of the opcode, as float64; a (warps, m, k), b (warps, k, n)."""
    form = multiplication(OPCODES[number])
    fragments = [
        spread_over(matrix.astype(DTYPES[held.kind]), held)
        for matrix, held in ((a, form.a), (b.swapaxes(1, 2), form.b), (c, form.c))
    ]
    d = np.zeros((a.shape[0], form.d.place.size), DTYPES[form.d.kind])
    run(ENTRIES, f"k{number}", a.shape[0], *fragments, d)
    out = np.zeros((a.shape[0], form.d.rows * form.d.columns))
    out[:, form.d.place] = d.astype(np.float64)
    out = out.reshape(-1, form.d.rows, form.d.columns)
    return out.swapaxes(1, 2) if form.d.transposed else out


@pytest.mark.parametrize("number", range(len(OPCODES)), ids=OPCODES)
def test_small_integers_are_exact(number):
    form, rng = multiplication(OPCODES[number]), np.random.default_rng(number)
    m, n, k = form.shape
    a = small_integers(rng, form.a.kind, (WARPS, m, k))
    b = small_integers(rng, form.b.kind, (WARPS, k, n))
    c = small_integers(rng, form.c.kind, (WARPS, m, n))
    expected = a.astype(float) @ b.astype(float) + c.astype(float)
    np.testing.assert_array_equal(multiplied(number, a, b, c), expected)


@pytest.mark.parametrize("kind, digits", [("f16", 10), ("bf16", 7), ("tf32", 10)])
def test_random_numbers_are_near_the_float64_product(kind, digits):
    number = next(i for i, one in enumerate(OPCODES) if f"f32.{kind}.{kind}.f32" in one)
    m, n, k = multiplication(OPCODES[number]).shape
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(WARPS, m, k)), rng.normal(size=(WARPS, k, n))
    a, b = (np.round(x * 2.0 ** (digits - 2)) * 2.0 ** (2 - digits) for x in (a, b))
    c = rng.normal(size=(WARPS, m, n)).astype(np.float32)
    expected = a @ b + c
    # each of the k + 1 terms is cut by less than 2^-25 of the largest one, the sum by 2^-23
    bound = (k + 1) * 2.0**-25 * 2 * np.maximum(np.abs(a).max() * np.abs(b).max(), 4)
    assert np.abs(multiplied(number, a, b, c) - expected).max() < bound + 2.0**-23 * 16


def test_a_product_of_doubles_takes_many_warps_at_once():
    """More sums than the engine multiplies and adds at a time, with signs and exact results."""
    number = next(i for i, one in enumerate(OPCODES) if "m8n8k4" in one and "f64" in one)
    rng, warps = np.random.default_rng(8), 130
    a, b, c = (rng.integers(-99, 99, (warps, *shape)) for shape in ((8, 4), (4, 8), (8, 8)))
    np.testing.assert_array_equal(multiplied(number, a, b, c), a @ b + c)


def test_tf32_ignores_the_low_bits_of_its_operands():
    number = OPCODES.index("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")
    a = np.full((1, 16, 8), 1 + 2.0**-11 + 2.0**-12, np.float32)
    out = multiplied(number, a, np.ones((1, 8, 8)), np.zeros((1, 16, 8)))
    np.testing.assert_array_equal(out, 8.0)


@pytest.mark.parametrize("saturate", [False, True])
def test_integer_sums_wrap_or_clamp(saturate):
    middle = ".satfinite" if saturate else ""
    kinds = "u8.u8" if saturate else "s8.s8"
    opcode = f"mma.sync.aligned.m16n8k32.row.col{middle}.s32.{kinds}.s32"
    top = 2**31 - 1
    a, b = np.full((1, 16, 32), 1), np.full((1, 32, 8), 1)
    out = multiplied(OPCODES.index(opcode), a, b, np.full((1, 16, 8), top - 5))
    np.testing.assert_array_equal(out, top if saturate else top - 5 + 32 - 2**32)


@pytest.mark.parametrize(
    "opcode, word",
    [
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", "m8n8k4 of type .f16"),
        ("mma.sync.aligned.m16n8k16.row.row.f32.f16.f16.f32", "only .row.col"),
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32", ".f16 and .bf16"),
        ("mma.sync.aligned.m16n8k16.row.col.f16.bf16.bf16.f16", "to .f16"),
        ("mma.sync.aligned.m8n8k128.row.col.s32.b1.b1.s32.xor.popc", "types of d, a, b and c"),
        ("mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", ".sp"),
        ("wmma.mma.sync.aligned.row.col.m16n8k16.f32.f32", "m16n8k16 of type .f16"),
    ],
)
def test_other_forms_are_refused_by_name(opcode, word):
    with pytest.raises(UnknownInstruction) as refusal:
        multiplication(opcode)
    assert word in str(refusal.value) and opcode in str(refusal.value)


# Row and column of element i of each lane, as the manual's formulas give them.
def _group(lane):
    return lane >> 2, lane % 4


def _f16_a16(lane, i):
    g, t = _group(lane)
    return g if i < 2 or 4 <= i < 6 else g + 8, t * 2 + (i & 1) + (8 if i >= 4 else 0)


def _f16_b16(lane, i):
    g, t = _group(lane)
    return t * 2 + (i & 1) + (8 if i >= 2 else 0), g


def _f16_a8(lane, i):
    g, t = _group(lane)
    return g if i < 2 else g + 8, t * 2 + (i & 1)


def _sum(lane, i):
    g, t = _group(lane)
    return g if i < 2 else g + 8, t * 2 + (i & 1)


def _tf32_a8(lane, i):
    g, t = _group(lane)
    return g if i in (0, 2) else g + 8, t if i < 2 else t + 4


def _s8_a32(lane, i):
    g, t = _group(lane)
    return g if i < 4 or 8 <= i < 12 else g + 8, t * 4 + (i & 3) + (16 if i >= 8 else 0)


def _s8_b32(lane, i):
    g, t = _group(lane)
    return t * 4 + (i & 3) + (16 if i >= 4 else 0), g


@pytest.mark.parametrize(
    "operand, shape, kind, formula",
    [
        ("a", (16, 8, 16), "f16", _f16_a16),
        ("b", (16, 8, 16), "bf16", _f16_b16),
        ("a", (16, 8, 8), "bf16", _f16_a8),
        ("a", (16, 8, 8), "tf32", _tf32_a8),
        ("b", (16, 8, 8), "tf32", lambda lane, i: (lane % 4 + 4 * i, lane >> 2)),
        ("a", (16, 8, 4), "tf32", lambda lane, i: ((lane >> 2) + 8 * i, lane % 4)),
        ("a", (16, 8, 32), "s8", _s8_a32),
        ("b", (16, 8, 32), "u8", _s8_b32),
        ("c", (16, 8, 16), "f32", _sum),
        ("c", (16, 8, 32), "s32", _sum),
        ("a", (8, 8, 4), "f64", lambda lane, i: (lane >> 2, lane % 4)),
        ("c", (8, 8, 4), "f64", lambda lane, i: (lane >> 2, lane % 4 * 2 + i)),
    ],
)
def test_the_layouts_are_those_of_the_manual(operand, shape, kind, formula):
    held = layout(operand, shape, kind)
    for lane in range(32):
        for i in range(held.row.shape[1]):
            place = int(held.row[lane, i]), int(held.column[lane, i])
            assert (place[::-1] if operand == "b" else place) == formula(lane, i)
