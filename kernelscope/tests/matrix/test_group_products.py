"""wgmma: tiles by descriptor, values, and the registers of a warp group."""

import itertools
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from group_harness import B_START, descriptor, image, plain_tiles, put, run
from kernelscope.differential.matrix.groups import GroupCase, cases
from kernelscope.differential.matrix.kernels import multiply as mma_kernel
from kernelscope.differential.matrix.matrices import FAMILIES, LIMITS, rounded
from kernelscope.errors import UnknownInstruction
from kernelscope.isa.matrix import group_multiplication, multiplication
from kernelscope.isa.matrix.descriptors import runs
from matrix_harness import DTYPES, small_integers, spread_over
from matrix_harness import run as run_warps

RNG = np.random.default_rng(18)
F16 = "m64n16k16.f32.f16.f16"


# -- tiles -----------------------------------------------------------------------------------------
def offsets(rows, k, size, mode, major):
    """(leading, stride) of a tile whose patterns follow one another with a gap."""
    line = 16 << {0: 0, 1: 3, 2: 2, 3: 1}[mode]
    pattern = 8 * line
    if major == "K":
        return (rows // 8 * pattern + 128, pattern) if mode == 0 else (16, pattern * 2)
    across = -(-rows * size // line)
    if mode == 0:
        return (across + 1) * pattern, pattern
    return pattern, (across + 1) * pattern


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("majors", ["KK", "KM", "MK", "MM"])
@pytest.mark.parametrize("n", [8, 40])
def test_each_swizzle_and_order_is_that_of_the_canonical_layouts(mode, majors, n):
    a, b = small_integers(RNG, "f16", (64, 16)), small_integers(RNG, "f16", (n, 16))
    tile, words = image(), []
    for matrix, major, start in zip((a, b), majors, (0, B_START), strict=True):
        leading, stride = offsets(len(matrix), 16, 2, mode, major)
        put(tile, matrix, start, mode, major, leading, stride)
        words.append(descriptor(start, leading, stride, mode))
    c = small_integers(RNG, "f32", (64, n))
    literals = 1, 1, *(int(major == "M") for major in majors)
    found = run(f"m64n{n}k16.f32.f16.f16", tile, words, a, c, literals=literals)
    assert (found == a.astype(float) @ b.T.astype(float) + c).all()


@pytest.mark.parametrize("mode", range(4))
@pytest.mark.parametrize("kind, k, sums", [("tf32", 8, "f32"), ("s8", 32, "s32")])
def test_types_of_other_sizes_are_k_major(mode, kind, k, sums):
    a, b = small_integers(RNG, kind, (64, k)), small_integers(RNG, kind, (24, k))
    tile, words = image(), []
    for matrix, start in ((a, 0), (b, B_START)):
        leading, stride = offsets(len(matrix), k, matrix.itemsize, mode, "K")
        put(tile, matrix, start, mode, "K", leading, stride)
        words.append(descriptor(start, leading, stride, mode))
    c = small_integers(RNG, sums, (64, 24))
    literals = (1, 1) if sums == "f32" else ()
    found = run(f"m64n24k{k}.{sums}.{kind}.{kind}", tile, words, a, c, literals=literals)
    assert (found == a.astype(float) @ b.T.astype(float) + c).all()


@pytest.mark.parametrize("mode, steps", [(1, 4), (2, 2)])
def test_a_tile_may_begin_within_a_line(mode, steps):
    """Each k-step of 16 elements begins 32 bytes further on, in lines of 128 or 64 bytes."""
    line = 32 * steps
    a, b = (small_integers(RNG, "bf16", (rows, line // 2)) for rows in (64, 16))
    tile = image()
    starts = {"a": 0, "b": B_START}
    for matrix, start in ((a, 0), (b, B_START)):
        for step in range(steps):
            part = matrix[:, 16 * step : 16 * step + 16]
            put(tile, part, start + 32 * step, mode, "K", 16, 8 * line)
    for step in range(steps):
        words = [descriptor(at + 32 * step, 16, 8 * line, mode) for at in starts.values()]
        c = small_integers(RNG, "f32", (64, 16))
        some = slice(16 * step, 16 * step + 16)
        found = run("m64n16k16.f32.bf16.bf16", tile, words, a, c)
        assert (found == a[:, some].astype(float) @ b[:, some].T.astype(float) + c).all()


def test_a_base_offset_moves_the_pattern_of_the_swizzle():
    a, b = small_integers(RNG, "f16", (64, 16)), small_integers(RNG, "f16", (16, 16))
    tile, words = plain_tiles(a, b)
    whole = np.zeros_like(tile)
    put(whole, b, 0, 1, "K", 16, 1024)
    tile[B_START + 256 : B_START + 256 + 2048] = whole[:2048]
    words[1] = descriptor(B_START + 256, 16, 1024, 1, base=2)
    c = small_integers(RNG, "f32", (64, 16))
    assert (run(F16, tile, words, a, c) == a.astype(float) @ b.T.astype(float) + c).all()


def test_the_runs_of_a_tile_are_its_bytes():
    words = descriptor(0, 2048, 1024, 1), descriptor(512, 256, 128, 0)
    assert runs(words[0], 16, 16, True)[0].tolist()[:3] == [0, 128, 288]
    assert runs(words[0], 16, 16, True)[1] == 32
    address, size = runs(words[1], 16, 16, True)
    assert (address.tolist(), size) == ([512], 512)
    every = [runs(words[0], 128, 16, major) for major in (True, False)]
    assert [address.size * size for address, size in every] == [128 * 32] * 2


# -- registers -------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind, k", [("f16", 16), ("bf16", 16), ("tf32", 8), ("u8", 32)])
def test_a_may_come_from_registers(kind, k):
    sums = "s32" if kind == "u8" else "f32"
    a, b = small_integers(RNG, kind, (64, k)), small_integers(RNG, kind, (32, k))
    c = small_integers(RNG, sums, (64, 32))
    literals = {"f16": (1, 1, 0), "bf16": (1, 1, 0), "tf32": (1, 1), "u8": ()}[kind]
    tile, words = plain_tiles(a * 0, b)
    form = f"m64n32k{k}.{sums}.{kind}.{kind}"
    found = run(form, tile, words, a, c, held=True, literals=literals)
    assert (found == a.astype(float) @ b.T.astype(float) + c).all()


def test_places_in_registers_are_those_of_the_manual():
    form = group_multiplication(f"wgmma.mma_async.sync.aligned.{F16}")
    places = form.order_d.reshape(64, 16)
    for thread, i in itertools.product(range(128), range(8)):
        row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
        column = 8 * (i // 4) + thread % 4 * 2 + i % 2
        assert places[row, column] == i * 128 + thread
    places = form.order_a.reshape(64, 16)
    for thread, i in itertools.product(range(128), range(8)):
        row = 16 * (thread // 32) + thread % 32 // 4 + 8 * (i // 2 % 2)
        column = 8 * (i // 4) + thread % 4 * 2 + i % 2
        assert places[row, column] == (i // 2 * 128 + thread) * 2 + i % 2


# -- values ----------------------------------------------------------------------------------------
def warp_sums(opcode, a, b, c):
    """(64, n) sums of mma.sync, 16 rows and 8 columns at a time."""
    form = multiplication(opcode)
    out = np.empty(c.shape, DTYPES[form.d.kind])
    rows, columns = c.shape[0] // 16, c.shape[1] // 8
    lefts = np.repeat(a.reshape(rows, 16, -1), columns, axis=0)
    rights = np.tile(b.reshape(columns, 8, -1), (rows, 1, 1))
    starts = c.reshape(rows, 16, columns, 8).swapaxes(1, 2).reshape(-1, 16, 8)
    both = zip((lefts, rights, starts), (form.a, form.b, form.c), strict=True)
    fragments = [spread_over(np.ascontiguousarray(x), held) for x, held in both]
    d = np.zeros((rows * columns, form.d.place.size), out.dtype)
    run_warps((mma_kernel("k", opcode),), "k", rows * columns, *fragments, d)
    sums = np.empty((rows * columns, 16 * 8), out.dtype)
    sums[:, form.d.place] = d
    return sums.reshape(rows, columns, 16, 8).swapaxes(1, 2).reshape(c.shape)


PAIRS = {
    "m64n16k16.f32.f16.f16": "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
    "m64n16k16.f16.f16.f16": "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16",
    "m64n16k16.f32.bf16.bf16": "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
    "m64n16k8.f32.tf32.tf32": "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
}


@pytest.mark.turns(11)
@pytest.mark.system
@pytest.mark.parametrize("form", PAIRS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_bits_are_those_of_mma(form, family):
    product = group_multiplication(f"wgmma.mma_async.sync.aligned.{form}")
    m, n, k = product.shape
    sizes = [(1, m, k), (1, n, k), (1, m, n)]
    numbers = FAMILIES[family](np.random.default_rng(3), sizes, LIMITS[product.a])
    kinds = product.a, product.b, product.d
    with np.errstate(over="ignore", invalid="ignore"):
        a, b, c = (rounded(x[0], kind) for x, kind in zip(numbers, kinds, strict=True))
    tile, words = plain_tiles(a, b)
    literals = (1, 1, 0, 0) if product.transposes else (1, 1)
    found = run(form, tile, words, a, c, literals=literals)
    expected = warp_sums(PAIRS[form], a, b, c)
    bits = f"u{expected.itemsize}"
    assert (found.view(bits) == expected.view(bits)).all()


def exact_float8(a, b, c, sums):
    """One sum by rational numbers: terms cut to 13 bits below the largest exponent."""

    def exponent(x):
        return int(np.frexp(abs(float(x)))[1]) - 1

    used = [(x, y) for x, y in zip(a, b, strict=True) if x and y]
    tops = [max(exponent(x), -6) + max(exponent(y), -6) for x, y in used]
    top = max([*tops, exponent(c)] if c else [*tops, -126])
    unit = Fraction(2) ** (top - 13)
    terms = [Fraction(float(x)) * Fraction(float(y)) for x, y in used] + [Fraction(float(c))]
    total = sum(int(term / unit) for term in terms) * unit
    if sums == "f16":
        return np.float16(float(total))
    if not total:
        return np.float32(0)
    unit = Fraction(2) ** (exponent(float(total)) - 13)
    return np.float32(float(int(total / unit) * unit))


@pytest.mark.parametrize("sums", ["f16", "f32"])
def test_products_of_8_bit_floats_keep_13_bits(sums):
    a = (RNG.normal(size=(64, 32)) * 2.0 ** RNG.integers(-4, 4, (64, 32))).astype(DTYPES["e4m3"])
    b = RNG.normal(size=(8, 32)).astype(DTYPES["e4m3"])
    c = (RNG.normal(size=(64, 8)) * 8).astype(DTYPES[sums])
    tile, words = plain_tiles(a, b)
    found = run(f"m64n8k32.{sums}.e4m3.e4m3", tile, words, a, c, literals=(1, 1))
    expected = [[exact_float8(a[i], b[j], c[i, j], sums) for j in range(8)] for i in range(64)]
    assert (found == np.array(expected)).all()
    assert (found != (a.astype(float) @ b.T.astype(float) + c).astype(found.dtype)).any()


@pytest.mark.parametrize("mixed", ["e4m3.e5m2", "e5m2.e4m3", "e5m2.e5m2"])
def test_types_of_8_bit_floats_mix(mixed):
    kinds = mixed.split(".")
    a, b = (RNG.integers(-4, 5, (r, 32)) for r in (64, 16))
    a, b = a.astype(DTYPES[kinds[0]]), b.astype(DTYPES[kinds[1]])
    c = np.zeros((64, 16), np.float32)
    tile, words = plain_tiles(a, b)
    found = run(f"m64n16k32.f32.{mixed}", tile, words, a, c, literals=(1, 1))
    assert (found == a.astype(float) @ b.T.astype(float)).all()


@pytest.mark.parametrize("types", ["s8.s8", "u8.s8", "s8.u8", "u8.u8"])
def test_integers_wrap_or_clamp(types):
    kinds = types.split(".")
    a, b = (
        RNG.integers(0, 256, (r, 32)).astype(np.uint8).view(DTYPES[kind])
        for r, kind in zip((64, 48), kinds, strict=True)
    )
    c = RNG.choice([-(2**31), 2**31 - 1], (64, 48)).astype(np.int32)
    tile, words = plain_tiles(a, b)
    exact = a.astype(np.int64) @ b.T.astype(np.int64) + c
    for word, expected in (("", exact.astype(np.int32)), (".satfinite", None)):
        if expected is None:
            expected = np.clip(exact, -(2**31), 2**31 - 1)
        form = f"m64n48k32.s32.{types}{word}"
        assert (run(form, tile, words, a, c, literals=()) == expected).all()


@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1), (-1, -1)])
@pytest.mark.parametrize("held", [False, True])
def test_operands_may_be_negated(signs, held):
    a, b = small_integers(RNG, "f16", (64, 16)), small_integers(RNG, "f16", (16, 16))
    c = small_integers(RNG, "f32", (64, 16))
    tile, words = plain_tiles(a, b)
    literals = (*signs, 0, 0)[: 4 - held]
    found = run(F16, tile, words, a, c, held=held, literals=literals)
    expected = a.astype(float) @ b.T.astype(float) * signs[0] * signs[1] + c
    assert (found == expected).all()


def test_without_scale_d_the_registers_of_the_sums_are_not_read():
    a, b = small_integers(RNG, "f16", (64, 16)), small_integers(RNG, "f16", (16, 16))
    tile, words = plain_tiles(a, b)
    c = np.full((64, 16), np.nan, np.float32)
    assert (run(F16, tile, words, a, c, keeps=False) == a.astype(float) @ b.T.astype(float)).all()
    assert np.isnan(run(F16, tile, words, a, c)).all()


@pytest.mark.parametrize("n", [8, 24, 104, 200, 256])
def test_sums_may_have_any_multiple_of_8_columns(n):
    a = RNG.normal(size=(64, 16)).astype(ml_dtypes.bfloat16)
    b = RNG.normal(size=(n, 16)).astype(ml_dtypes.bfloat16)
    c = RNG.normal(size=(64, n)).astype(np.float32)
    tile, words = plain_tiles(a, b)
    found = run(f"m64n{n}k16.f32.bf16.bf16", tile, words, a, c)
    np.testing.assert_allclose(found, a.astype(float) @ b.T.astype(float) + c, atol=2e-6)
    if n == 8:
        opcode = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
        assert (found == warp_sums(opcode, a, b, c)).all()


# -- opcodes ---------------------------------------------------------------------------------------
REFUSED = {
    "m64n12k16.f32.f16.f16": "no shape m64n12k16",
    "m64n264k16.f32.f16.f16": "no shape m64n264k16",
    "m64n16k8.f32.f16.f16": "no shape m64n16k8",
    "m64n16k16.f32.tf32.tf32": "no shape m64n16k16 of type .tf32",
    "m64n40k32.s32.s8.s8": "no shape m64n40k32 of type .s8",
    "m64n16k16.f16.bf16.bf16": "no product of .bf16 and .bf16 to .f16",
    "m64n16k16.f32.f16.bf16": "no product of .f16 and .bf16",
    "m64n16k16.f32.f16": "the types of d, a and b",
    "m64n16k16.satfinite.f32.f16.f16": "satfinite is for sums of .s32",
    "m64n8k256.s32.b1.b1.and.popc": "single bits",
    "m64n16k16.row.f32.f16.f16": "no modifier '.row'",
    "m16n8k16.f32.f16.f16": "no modifier '.m16n8k16'",
}


@pytest.mark.parametrize("form", REFUSED)
def test_other_forms_are_refused_by_name(form):
    with pytest.raises(UnknownInstruction, match=REFUSED[form]):
        group_multiplication(f"wgmma.mma_async.sync.aligned.{form}")
    with pytest.raises(UnknownInstruction, match="sparse"):
        group_multiplication("wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16")


# -- the comparison with a GPU ---------------------------------------------------------------------
def test_every_kind_of_product_is_compared_with_a_gpu():
    found = cases()
    assert len({case.name for case in found}) == len(found) > 100
    types = {(case.product.a, case.product.b, case.product.d) for case in found}
    assert {a for a, _, _ in types} == {"f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8"}
    assert {(case.swizzle, *case.transposed) for case in found} == {
        *itertools.product(range(4), (False, True), (False, True))
    }


def test_a_wrong_sum_is_a_mismatch():
    from kernelscope.differential.machines import Machine
    from kernelscope.differential.matrix.groups import compare, run_cases

    case = GroupCase(F16, swizzle=1, step=1)
    (first,), (second,) = (run_cases(Machine("simulator"), [case]) for _ in range(2))
    assert compare(case, first, second)["mismatches"] == 0
    second[40] ^= 1
    assert compare(case, first, second)["families"] == {"any_bits": 1}
