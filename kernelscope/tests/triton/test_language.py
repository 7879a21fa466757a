"""Triton's language, operation by operation."""

import ml_dtypes
import numpy as np
import pytest
import triton
import triton.language as tl
from kernelscope.compile.kept import FOLDER
from kernelscope.triton import run
from triton.language.extra import libdevice
from triton_harness import assert_close, normal, poisoned

HALF, BRAIN = np.dtype("float16"), np.dtype(ml_dtypes.bfloat16)
FP8 = np.dtype(ml_dtypes.float8_e5m2)

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("clean")]


# -- dtypes -------------------------------------------------------------------------------------
@triton.jit
def doubled(x, out, N, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at, at < N)
    tl.store(out + at, value + value, at < N)


@pytest.mark.turns(11)
@pytest.mark.parametrize(
    "dtype",
    [*"int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64".split(), BRAIN],
)
def test_arrays_of_every_dtype(dtype):
    x = (np.arange(45) - 7 * (np.dtype(dtype).kind != "u")).astype(dtype)
    out = poisoned(45, dtype=dtype)
    run(doubled, (2,), x, out, 45, B=32, num_warps=1)
    assert_close(out, 2 * x.astype(np.float64))


@triton.jit
def flipped(x, out, N, B: tl.constexpr):
    at = tl.arange(0, B)
    tl.store(out + at, tl.load(x + at, at < N) == 0, at < N)


def test_arrays_of_bool():
    x, out = np.arange(20) % 3 == 0, np.ones(20, bool)
    run(flipped, (1,), x, out, 20, B=32, num_warps=1)
    assert (out == ~x).all()


@triton.jit
def narrowed(x, out, back, N, B: tl.constexpr):
    at = tl.arange(0, B)
    small = tl.load(x + at, at < N).to(out.dtype.element_ty)
    tl.store(out + at, small, at < N)
    tl.store(back + at, small.to(tl.float32), at < N)


@pytest.mark.parametrize(
    ("dtype", "target"),
    [(HALF, "sm_80"), (BRAIN, "sm_80"), (FP8, "sm_80"), (ml_dtypes.float8_e4m3fn, "sm_89")],
)
def test_conversions_round_as_ml_dtypes_does(dtype, target):
    x, out, back = normal(90), np.zeros(90, dtype), poisoned(90)
    run(narrowed, (1,), x, out, back, 90, B=128, target=target)
    assert (out == x.astype(dtype)).all()
    assert_close(back, x.astype(dtype))


@triton.jit
def scalars(out, i, j, x, on, none, one):
    at = tl.arange(0, 8)
    value = tl.where(at == 0, i.to(tl.float64), 0.0)
    value = tl.where(at == 1, j.to(tl.float64), value)
    value = tl.where(at == 2, x.to(tl.float64), value)
    if on:
        value = tl.where(at == 3, 1.0, value)
    if none is None:
        value = tl.where(at == 4, 1.0, value)
    value = tl.where(at == 5, one, value)
    tl.store(out + at, value)


def test_scalars_of_python_and_numpy():
    expected = [-3, 2**40, np.float32(1.1), 1, 1, 1, 0, 0]
    for kind in (int, np.int64):
        out = poisoned(8, dtype="float64")
        run(scalars, (1,), out, kind(-3), kind(2**40), 1.1, True, None, kind(1), num_warps=1)
        assert_close(out, np.array(expected, np.float64), 0)


@triton.jit
def annotated(
    out, half: tl.float16, brain: tl.bfloat16, wide: tl.float64, small: tl.int8, far: tl.int64
):
    tl.store(out, half.to(tl.float64))
    tl.store(out + 1, brain.to(tl.float64))
    tl.store(out + 2, wide)
    tl.store(out + 3, small.to(tl.float64))
    tl.store(out + 4, far.to(tl.float64))


def test_scalars_with_annotated_types():
    out = poisoned(5, dtype="float64")
    run(annotated, (1,), out, 1.1, 1.1, 1.1, -5, 7, num_warps=1)
    rounded = [HALF.type(1.1), BRAIN.type(1.1), 1.1, -5, 7]
    assert_close(out, np.array(rounded, np.float64), 0)


# -- products -----------------------------------------------------------------------------------
@triton.jit
def tile_product(x, y, out, K: tl.constexpr, PRECISION: tl.constexpr):
    i, k = tl.arange(0, 16), tl.arange(0, K)
    a = tl.load(x + i[:, None] * K + k[None, :])
    b = tl.load(y + k[:, None] * 16 + i[None, :])
    c = tl.dot(a, b, input_precision=PRECISION)
    tl.store(out + i[:, None] * 16 + i[None, :], c.to(out.dtype.element_ty))


@pytest.mark.turns(23)
@pytest.mark.parametrize(
    ("dtype", "precision", "bound"),
    [
        ("float16", "ieee", 1e-6),
        (BRAIN, "ieee", 1e-6),
        (FP8, "ieee", 1e-6),
        ("float32", "tf32", 2e-3),
        ("float32", "tf32x3", 2e-6),
        ("float32", "ieee", 1e-6),
        ("float64", "ieee", 1e-13),
        ("int8", "ieee", 0),
    ],
)
def test_products_of_tiles(dtype, precision, bound):
    x, y = (8 * normal(16, 32)).astype(dtype), (8 * normal(32, 16, seed=1)).astype(dtype)
    kind = {"int8": "int32", "float64": "float64"}.get(dtype, "float32")
    out = poisoned(16, 16, dtype=kind)
    run(tile_product, (1,), x, y, out, K=32, PRECISION=precision)
    assert_close(out, x.astype(np.float64) @ y.astype(np.float64), bound)


@triton.jit
def scaled_product(x, x_scale, y, y_scale, out):
    i, k, group = tl.arange(0, 32), tl.arange(0, 64), tl.arange(0, 2)
    a = tl.load(x + i[:, None] * 64 + k[None, :])
    b = tl.load(y + k[:, None] * 32 + i[None, :])
    place = i[:, None] * 2 + group[None, :]
    scales = tl.load(x_scale + place), tl.load(y_scale + place)
    c = tl.dot_scaled(a, scales[0], "e5m2", b, scales[1], "e5m2")
    tl.store(out + i[:, None] * 32 + i[None, :], c)


def test_scaled_products():
    x, y, out = normal(32, 64).astype(FP8), normal(64, 32, seed=1).astype(FP8), poisoned(32, 32)
    powers = np.random.default_rng(0).integers(125, 130, (2, 32, 2)).astype(np.uint8)
    run(scaled_product, (1,), x, powers[0], y, powers[1], out)
    factors = np.repeat(2.0 ** (powers.astype(int) - 127), 32, 2)
    expected = (x.astype(np.float64) * factors[0]) @ (y.astype(np.float64) * factors[1].T)
    assert_close(out, expected, 1e-6)


# -- atomics --------------------------------------------------------------------------------------
@triton.jit
def accumulated(x, total, least, most, bits, swapped, N, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at, at < N, 0)
    tl.atomic_add(total + at % 3, value, mask=at < N)
    tl.atomic_min(least, tl.min(value))
    tl.atomic_max(most + at * 0, value, at < N)
    tl.atomic_or(bits, 1 << tl.program_id(0))
    tl.atomic_xor(bits + 1, 5)
    tl.atomic_and(bits + 2, ~(1 << tl.program_id(0)))
    tl.atomic_xchg(swapped + tl.program_id(0), 9)


def test_atomics_of_integers():
    x = np.random.default_rng(0).integers(-50, 50, 100).astype(np.int32)
    total, least, most = (
        np.zeros(3, np.int32),
        np.full(1, 999, np.int32),
        np.full(1, -999, np.int32),
    )
    bits, swapped = np.array([0, 0, 15], np.int32), np.zeros(4, np.int32)
    run(accumulated, (4,), x, total, least, most, bits, swapped, 100, B=32, num_warps=1)
    assert total.tolist() == [x[i::3].sum() for i in range(3)]
    assert (least[0], most[0]) == (min(x.min(), 0), x.max())
    assert bits.tolist() == [15, 0, 0] and (swapped == 9).all()


@triton.jit
def atomic_sum(x, total, N, B: tl.constexpr):
    at = tl.program_id(0) * B + tl.arange(0, B)
    value = tl.load(x + at, at < N, 0.0)
    tl.atomic_add(total + at * 0, value, mask=at < N, sem="relaxed")


@pytest.mark.parametrize(
    ("dtype", "bound"), [("float16", 2e-2), (BRAIN, 1e-1), ("float32", 1e-6), ("float64", 1e-14)]
)
def test_atomic_sums_of_floats(dtype, bound):
    x, total = normal(40, dtype=dtype), np.zeros(2, dtype)
    run(atomic_sum, (2,), x, total, 40, B=32, num_warps=1)
    assert_close(total, [x.astype(np.float64).sum(), 0], bound)


@triton.jit
def counted_under_a_lock(lock, count):
    while tl.atomic_cas(lock, 0, 1) == 1:
        pass
    before = tl.load(count)
    tl.debug_barrier()  # every thread loads, the first one stores
    tl.store(count, before + 1)
    tl.debug_barrier()
    tl.atomic_xchg(lock, 0)


def test_a_lock_of_compare_and_swap():
    lock, count = np.zeros(1, np.int32), np.zeros(1, np.int32)
    run(counted_under_a_lock, (7,), lock, count, num_warps=2)
    assert (lock[0], count[0]) == (0, 7)


# -- reductions, scans, orders ------------------------------------------------------------------
@triton.jit
def added(a, b):
    return a + b


@triton.jit
def multiplied(a, b):
    return a * b


@triton.jit
def summaries(x, out, at_most, at_least, N: tl.constexpr):
    i, j = tl.arange(0, 4), tl.arange(0, N)
    value = tl.load(x + i[:, None] * N + j[None, :])
    tl.store(out + i, tl.sum(value, 1))
    tl.store(out + 4 + i, tl.max(value, 1))
    tl.store(out + 8 + i, tl.min(value, 1))
    tl.store(out + 12 + i, tl.reduce(value, 1, added))
    tl.store(at_most + i, tl.argmax(value, 1))
    tl.store(at_least + i, tl.argmin(value, 1))
    tl.store(out + 16, tl.sum(value))


def test_reductions():
    x = normal(4, 64)
    out, most, least = poisoned(17), poisoned(4, dtype="int32"), poisoned(4, dtype="int32")
    run(summaries, (1,), x, out, most, least, N=64)
    wide = x.astype(np.float64)
    expected = [wide.sum(1), wide.max(1), wide.min(1), wide.sum(1), [wide.sum()]]
    assert_close(out, np.concatenate(expected))
    assert (most == x.argmax(1)).all() and (least == x.argmin(1)).all()


@triton.jit
def scanned(x, out, N: tl.constexpr):
    j = tl.arange(0, N)
    value = tl.load(x + j)
    tl.store(out + j, tl.cumsum(value, 0))
    tl.store(out + N + j, tl.cumprod(value, 0))
    tl.store(out + 2 * N + j, tl.associative_scan(value, 0, added, reverse=True))


def test_scans():
    x, out = 1 + normal(128) / 40, poisoned(3, 128)
    run(scanned, (1,), x, out, N=128)
    wide = x.astype(np.float64)
    assert_close(out, [wide.cumsum(), wide.cumprod(), wide[::-1].cumsum()[::-1]])


@triton.jit
def ordered(x, up, down, turned, N: tl.constexpr):
    j = tl.arange(0, N)
    value = tl.load(x + j)
    tl.store(up + j, tl.sort(value))
    tl.store(down + j, tl.sort(value, descending=True))
    tl.store(turned + j, tl.flip(value))


@pytest.mark.turns(23)
def test_sort_and_flip():
    x = normal(64)
    up, down, turned = poisoned(64), poisoned(64), poisoned(64)
    run(ordered, (1,), x, up, down, turned, N=64)
    assert (
        (up == np.sort(x)).all() and (down == np.sort(x)[::-1]).all() and (turned == x[::-1]).all()
    )


@triton.jit
def binned(x, out, N, B: tl.constexpr, BINS: tl.constexpr):
    at = tl.arange(0, B)
    inside = at < N
    tl.store(out + tl.arange(0, BINS), tl.histogram(tl.load(x + at, inside), BINS, mask=inside))


def test_histogram():
    x = np.random.default_rng(1).integers(0, 16, 200).astype(np.int32)
    out = poisoned(16, dtype="int32")
    run(binned, (1,), x, out, 200, B=256, BINS=16)
    assert (out == np.bincount(x, minlength=16)).all()


@triton.jit
def gathered(x, index, out, N: tl.constexpr):
    i, j = tl.arange(0, 4), tl.arange(0, N)
    place = i[:, None] * N + j[None, :]
    tl.store(out + place, tl.gather(tl.load(x + place), tl.load(index + place), 1))


def test_gather():
    x, out = normal(4, 32), poisoned(4, 32)
    index = np.random.default_rng(2).integers(0, 32, (4, 32)).astype(np.int32)
    run(gathered, (1,), x, index, out, N=32)
    assert (out == np.take_along_axis(x, index, 1)).all()


@triton.jit
def shaped(x, out, N: tl.constexpr):
    j = tl.arange(0, N)
    even, odd = tl.split(tl.load(x + j).reshape(N // 2, 2))
    tl.store(out + j, tl.interleave(odd, even))
    both = tl.join(even, odd).trans(1, 0).reshape(N)
    tl.store(out + N + j, both)
    tl.store(out + 2 * N + j, tl.cat(even, odd))


def test_shapes():
    x, out = normal(64), poisoned(3, 64)
    run(shaped, (1,), x, out, N=64)
    apart = np.concatenate([x[::2], x[1::2]])
    assert_close(out, [x.reshape(-1, 2)[:, ::-1].ravel(), apart, apart], 0)


# -- functions ------------------------------------------------------------------------------------
@triton.jit
def functions(x, out, N: tl.constexpr):
    j = tl.arange(0, N)
    value = tl.load(x + j)
    tl.store(out + j, tl.exp(value) + tl.log(value) + tl.sin(value) + tl.cos(value))
    tl.store(out + N + j, tl.sqrt(value) + tl.rsqrt(value) + tl.erf(value) + tl.sigmoid(value))
    tl.store(
        out + 2 * N + j, tl.floor(value) + tl.ceil(value) + tl.abs(-value) + tl.clamp(value, 0.5, 1)
    )
    tl.store(
        out + 3 * N + j, tl.fma(value, value, 1.0) + tl.fdiv(1.0, value) + tl.div_rn(2.0, value)
    )


def test_mathematical_functions():
    from math import erf

    x, out = 0.1 + np.abs(normal(128)), poisoned(4, 128)
    run(functions, (1,), x, out, N=128)
    w = x.astype(np.float64)
    expected = [
        np.exp(w) + np.log(w) + np.sin(w) + np.cos(w),
        np.sqrt(w) + 1 / np.sqrt(w) + [erf(one) for one in w] + 1 / (1 + np.exp(-w)),
        np.floor(w) + np.ceil(w) + w + np.clip(w, 0.5, 1),
        w * w + 1 + 3 / w,
    ]
    assert_close(out, expected, 2e-6)


@triton.jit
def from_libdevice(x, out, N: tl.constexpr):
    j = tl.arange(0, N)
    value = tl.load(x + j)
    tl.store(out + j, libdevice.asin(value) + libdevice.tanh(value))
    tl.store(out + N + j, libdevice.pow(value, 1.7) + libdevice.log1p(value) + libdevice.exp(value))
    tl.store(
        out + 2 * N + j,
        libdevice.lgamma(value + 1) + libdevice.fmod(value, 0.3) + libdevice.rint(value),
    )


def test_libdevice():
    from math import lgamma

    x, out = np.random.default_rng(0).uniform(0.01, 0.99, 64).astype(np.float32), poisoned(3, 64)
    run(from_libdevice, (1,), x, out, N=64)
    w = x.astype(np.float64)
    expected = [
        np.arcsin(w) + np.tanh(w),
        w**1.7 + np.log1p(w) + np.exp(w),
        np.array([lgamma(one + 1) for one in w]) + np.fmod(w, np.float32(0.3)) + np.rint(w),
    ]
    assert_close(out, expected, 2e-6)


@triton.jit
def integers(x, y, out, N: tl.constexpr):
    j = tl.arange(0, N)
    a, b = tl.load(x + j), tl.load(y + j)
    tl.store(out + j, a // b + a % b)
    tl.store(out + N + j, (a ^ b) | (a << 2) & (b >> 1))
    tl.store(out + 2 * N + j, tl.umulhi(a.to(tl.uint32), b.to(tl.uint32)).to(tl.int32))
    tl.store(
        out + 3 * N + j,
        tl.inline_asm_elementwise("popc.b32 $0, $1;", "=r,r", [a], tl.int32, True, 1),
    )


def test_integers_and_inline_assembly():
    rng = np.random.default_rng(3)
    x, y = (rng.integers(-(10**6), 10**6, 64).astype(np.int32) | 1 for _ in range(2))
    out = poisoned(4, 64, dtype="int32")
    run(integers, (1,), x, y, out, N=64)
    a, b = x.astype(object), y.astype(object)
    quotient = [
        abs(p) // abs(q) * (1 if (p < 0) == (q < 0) else -1) for p, q in zip(a, b, strict=True)
    ]
    rest = [p - q * r for p, q, r in zip(a, b, quotient, strict=True)]
    high = (x.view(np.uint32).astype(np.uint64) * y.view(np.uint32)) >> np.uint64(32)
    assert (out[0] == np.add(quotient, rest).astype(np.int64)).all()
    assert (out[1] == (x ^ y) | (x << 2) & (y >> 1)).all()
    assert (out[2].view(np.uint32) == high).all()
    assert (out[3] == [bin(one & 0xFFFFFFFF).count("1") for one in x.tolist()]).all()


# -- the compiler's own ---------------------------------------------------------------------------
@triton.jit
def told(x, N, B: tl.constexpr):
    tl.static_assert(B % 2 == 0)
    tl.static_print("compiled with", B)
    at = tl.arange(0, B)
    tl.device_print("value", tl.load(x + at, at < N, 0))
    tl.device_assert(tl.load(x + at, at < N, 0) < 40, "too large")


def test_prints_of_compiler_and_device(capfd, monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)  # a kept kernel is not compiled, and prints nothing
    run(told, (1,), np.arange(30, dtype=np.int32), 30, B=32, num_warps=1)
    shown = capfd.readouterr().out
    assert "compiled with 32" in shown
    assert "pid (0, 0, 0) idx (29) value: 29" in shown


def test_a_device_assertion_is_an_error_with_debug():
    from kernelscope.errors import KernelAssertion

    x = np.arange(30, 60, dtype=np.int32)
    run(told, (1,), x, 30, B=32, num_warps=1)
    with pytest.raises(KernelAssertion, match="too large"):
        run(told, (1,), x, 30, B=32, num_warps=1, debug=True)


@triton.jit
def moments(x, N, B: tl.constexpr):
    at = tl.arange(0, B)
    value = tl.load(x + at, at < N, 0.0)
    return tl.sum(value), tl.sum(value * value)


@triton.jit(noinline=True)
def clipped(value, bound):
    return tl.minimum(value, bound)


@triton.jit
def called(x, out, shape, N, B: tl.constexpr):
    first, second = moments(x, N, B)
    tl.store(out, first)
    tl.store(out + 1, clipped(second, 5.0))
    tl.store(out + 2, shape[0] * shape[1][0])


def test_functions_tuples_and_calls():
    x, out = normal(50), poisoned(3)
    run(called, (1,), x, out, (6, (7, 1)), 50, B=64)
    w = x.astype(np.float64)
    assert_close(out, [w.sum(), min((w * w).sum(), 5), 42])


@triton.jit
def tiles_copied(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [M, N], [N, 1], [BM, BN])
    target = tl.make_tensor_descriptor(out, [M, N], [N, 1], [BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.store([row, column], source.load([row, column]) * 2)


def test_tensor_descriptors_made_in_the_kernel():
    x, out = normal(27, 36), poisoned(27, 36)
    run(tiles_copied, (2, 3), x, out, 27, 36, BM=16, BN=16)
    assert_close(out, 2 * x.astype(np.float64))


@triton.jit
def loops(x, out, N):
    total = 0.0
    i = 0
    while i < N:
        value = tl.load(x + i)
        if value > 0:
            total += value
        i += 1
    tl.store(out, total)


def test_loops_and_branches_of_scalars():
    x, out = normal(33), poisoned(1)
    run(loops, (1,), x, out, 33, num_warps=1)
    assert_close(out, [x[x > 0].astype(np.float64).sum()])


@triton.jit
def joined(mean_a, apart_a, count_a, mean_b, apart_b, count_b):
    step, count = mean_b - mean_a, count_a + count_b
    share = tl.where(count == 0.0, 0.0, count_b / count)
    return mean_a + step * share, apart_a + apart_b + step * step * count_a * share, count


@triton.jit
def variances(x, mean, variance, N: tl.constexpr):
    i, j = tl.arange(0, 2), tl.arange(0, N)
    value = tl.load(x + i[:, None] * N + j[None, :])
    zero = tl.zeros_like(value)
    centre, apart, count = tl.reduce((value, zero, zero + 1), 1, joined)
    tl.store(mean + i, centre)
    tl.store(variance + i, apart / count)


def test_a_reduction_of_several_values_whose_order_shows_in_the_last_digit():
    x, mean, variance = normal(2, 128), poisoned(2), poisoned(2)
    run(variances, (1,), x, mean, variance, N=128)
    assert_close(mean, x.astype(np.float64).mean(1))
    assert_close(variance, x.astype(np.float64).var(1))


@triton.jit
def numbered(out):
    tl.store(out + tl.program_id(0), tl.program_id(0) + 10 * tl.num_programs(0))


def test_programs_that_are_clusters():
    out = poisoned(3, dtype="int32")
    run(numbered, (3,), out, num_ctas=2, target="sm_90")
    assert out.tolist() == [30, 31, 32]
