"""Kernels for the rows of the feature table: each function runs what its row says."""

import enum
import math

import good_kernels as good
import numpy as np
from kernelscope.numba import run, without_gpu
from numba import cuda, float32, guvectorize, vectorize
from numba.cuda.bf16 import bfloat16

X = np.arange(1, 33, dtype=np.float32)


def runs(*cases):
    """A row whose kernels are cases of good_kernels, compared with NumPy by another test."""

    def row():
        for case in cases:
            kernel, grid, block, arguments, _, shared = case()
            run(kernel, grid, block, *arguments, shared_mem=shared)

    return row


@cuda.jit
def narrow(x, whole, dates, days):
    i = cuda.grid(1)
    x[i] = float32(bfloat16(x[i]) * bfloat16(float32(2)))
    whole[i] = whole[i] * 3
    dates[i] += days


def dtypes():
    runs(good.case_float16, good.case_complex, good.case_bool)()
    for kind in "bBhHiIqQ":
        x, whole, dates = X.copy(), np.arange(32).astype(kind), np.zeros(32, "M8[D]")
        run(narrow, 1, 32, x, whole, dates, np.timedelta64(3, "D"))
        assert (x == 2 * X).all() and (whole == 3 * np.arange(32)).all()
        assert (dates == np.datetime64("1970-01-04")).all()


class Colour(enum.IntEnum):
    RED, BLUE = 1, 2


@cuda.jit
def paint(x, y, colour):
    i = cuda.grid(1)
    y[i] = x[i] if colour == Colour.BLUE else -x[i]


def scalars():
    runs(good.case_tuples_and_scalars)()
    y = np.zeros(32, np.float32)
    run(paint, 1, 32, cuda.In(X), cuda.Out(y), Colour.BLUE)
    assert (y == X).all()


@cuda.jit
def hints(x, masks):
    i = cuda.grid(1)
    cuda.stcs(x, i, cuda.ldcg(x, i) * 2)
    cuda.nanosleep(32)
    masks[i] = cuda.match_any_sync(0xFFFFFFFF, i // 4)


def warps():
    runs(good.case_sum_by_shuffles, good.case_votes_and_barriers, good.case_atomics)()
    x, masks = X.copy(), np.zeros(32, np.int64)
    run(hints, 1, 32, x, masks)
    assert (x == 2 * X).all() and (masks % 2**32 == 15 << np.arange(32) // 4 * 4).all()


@cuda.jit
def halves(x, y):
    i = cuda.grid(1)
    x[i] = cuda.fp16.hsqrt(x[i])
    y[i] = np.sin(y[i])


def functions():
    runs(good.case_math_functions, good.case_libdevice)()
    x, y = X.astype(np.float16), X.astype(float)
    run(halves, 1, 32, x, y)
    np.testing.assert_allclose(x, np.sqrt(X), 1e-3)
    np.testing.assert_allclose(y, np.sin(X.astype(float)), 1e-15)


TWICE = 'extern "C" __device__ int twice(float* r, float x) { *r = 2 * x; return 0; }'
twice = cuda.declare_device("twice", "float32(float32)", link=cuda.CUSource(TWICE))
linked = cuda.declare_device("twice", "float32(float32)", link=cuda.Cubin(b"\x7fELF"))


@cuda.jit(device=True)
def doubled(value):
    return 2 * value


@cuda.jit(device=True)
def factorial(n):
    if n <= 1:
        return 1
    return n * factorial(n - 1)


def by(function):
    @cuda.jit
    def kernel(x):
        i = cuda.grid(1)
        x[i] = function(x[i])

    return kernel


def device_functions():
    runs(good.case_constant_array_and_device_function)()
    for function in (twice, doubled):
        x = X.copy()
        run(by(function), 1, 32, x)
        assert (x == 2 * X).all()
    whole = np.arange(1, 9)
    run(by(factorial), 1, 8, whole)
    assert whole.tolist() == [math.factorial(n) for n in range(1, 9)]


@cuda.jit(launch_bounds=64, lineinfo=True)
def bounded(x):
    x[cuda.grid(1)] = math.pi


def options():
    runs(good.case_explicit_signature, good.case_fastmath)()
    run(bounded, 1, 32, X.copy())


@cuda.jit
def speaks(x):
    if cuda.grid(1) == 2:
        print("third is", x[2])


@cuda.jit(debug=True, opt=False)
def judges(x):
    i = cuda.grid(1)
    if i == 5:
        raise ValueError("five")
    assert x[i] < 20, "too large"


def judged():
    run(judges, 1, 32, np.full(32, 19.0))


@cuda.reduce
def total(a, b):
    return a + b


with without_gpu():

    @vectorize(["float32(float32)"], target="cuda")
    def incremented(a):
        return a + 1

    @guvectorize(["void(float32[:], float32[:])"], "(n)->(n)", target="cuda")
    def copied(a, b):
        b[0] = a[0]


def many_kernels():
    made = [total, incremented, copied]
    for one in made[:-1]:
        try:
            run(one, 1, 32, X)
        except ValueError as error:
            assert "makes kernels and launches of its own" in str(error)
        else:
            raise AssertionError(one)
    run(made[-1], 1, 32, X)


@cuda.jit
def alone(record):
    record.mass = 3


ROWS = {
    "arrays of any rank": runs(
        good.case_add_2d_of_mixed_layouts, good.case_add_2d_of_reversed_views, good.case_slices
    ),
    "float16": dtypes,
    "arrays of records": runs(good.case_records),
    "numbers": scalars,
    "shared arrays": runs(good.case_matmul_tiled, good.case_prefix_sums, good.case_local_window),
    "`cuda.grid`": runs(good.case_histogram, good.case_three_dimensions),
    "shuffles": warps,
    "`cuda.cg": runs(good.case_grid_barrier),
    "`math`": functions,
    "device functions": device_functions,
    "explicit signatures": options,
    "xoroshiro128p": runs(good.case_random_numbers),
    "`print`": lambda: run(speaks, 1, 32, X),
    "`raise`": judged,
    "`@cuda.reduce`": many_kernels,
    "a record alone": lambda: run(alone, 1, 1, np.zeros(2, good.PARTICLE)[0]),
    "lists": lambda: run(good.stencil, 1, 32, X, [1.0, 2.0]),
    "`link=` with machine code": lambda: run(by(linked), 1, 32, X.copy()),
}
