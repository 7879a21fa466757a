"""Every kernel and every method against float64, on whichever backend is chosen.

The shapes are small and ragged: a single query, rows that end inside a tile, a head dimension of
one. Outputs start as NaN between NaN margins, so an element left out and an element written too
many both show.
"""

import math

import numpy as np
import pytest
from kernelscope.backend import array_module, asnumpy
from kernelscope.module import RawModule

from attn_course import reference
from attn_course.ladder import methods
from attn_course.ladder.call import StepLaunch, compiled, numbers_of, run_steps
from attn_course.ladder.methods import METHODS, attention, steps_of
from attn_course.ladder.steps import LADDER, LONG_ROW, Geometry, Problem, step
from attn_course.reference.comparison import poisoned
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.agreement import assert_agrees
from attn_devtools.shares import crossed

pytestmark = pytest.mark.system

xp = array_module()
PIPELINES = [method for method in METHODS if not methods.supports(method, "causal")]
MARGIN = 37  # floats before and after a guarded buffer; odd, so that a GPU sees it unaligned

# (BH, n, m, d): queries, keys and head dim that divide no tile, and the smallest of each
SHAPES = [
    (1, 1, 1, 1),
    (2, 5, 7, 3),
    (1, 1, 40, 63),
    (3, 33, 18, 20),
    (1, 18, 70, 80),
    (2, 34, 1, 5),
]
SCORE_KERNELS = ["01_scores_naive", "02_scores_tiled", "03_scores_register_blocked"]
WEIGHT_SHAPES = [(1, 1), (3, 31), (5, 32), (2, 33), (4, 196)]  # (rows, m)


class Guarded:
    """An output full of NaN inside a larger block of NaN."""

    def __init__(self, shape):
        size = math.prod(shape)
        self.block = poisoned(size + 2 * MARGIN, np.float32, xp)
        self.array = self.block[MARGIN : MARGIN + size].reshape(shape)

    def check(self, expected, name, **tolerance):
        block = asnumpy(self.block)
        assert np.isnan(block[:MARGIN]).all() and np.isnan(block[-MARGIN:]).all(), name
        return assert_agrees(self.array, expected, name=name, **tolerance)


def inputs(bh, n, m, d, seed=0):
    """q (BH, n, d), k and v (BH, m, d) on the host."""
    return [array[0] for array in seeded_qkv((1, bh, n, d), kv_length=m, seed=seed)]


def on_device(**arrays):
    return {name: xp.asarray(np.ascontiguousarray(array)) for name, array in arrays.items()}


def run_scores(file, q, k, options=()):
    out = Guarded((q.shape[0], q.shape[1], k.shape[1]))
    run_steps([step(file)], {**on_device(q=q, k=k), "s": out.array}, 1.0, options=options)
    expected = q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2)
    out.check(expected, f"{file} {options}")
    return asnumpy(out.array)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("file", SCORE_KERNELS)
def test_scores(file, shape):
    q, k, _ = inputs(*shape)
    run_scores(file, q, k)


@pytest.mark.turns(11)
@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("k_tile", [0, 1, 2])
@pytest.mark.parametrize("tile", [5, 16, 32])
def test_tiled_scores_in_every_layout(tile, k_tile, pad):
    q, k, _ = inputs(2, 13, 19, 37, seed=tile)
    run_scores("02_scores_tiled", q, k, (f"-DTILE={tile}", f"-DK_TILE={k_tile}", f"-DPAD={pad}"))


@pytest.mark.parametrize("tile", [4, 8, 32])
def test_register_blocked_scores_in_other_tiles(tile):
    q, k, _ = inputs(2, 37, 41, 28, seed=tile)
    run_scores("03_scores_register_blocked", q, k, (f"-DTILE={tile}",))


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_register_blocked_scores_of_unaligned_arrays(shift):
    """d % 4 == 0, but an array may start anywhere: float4 loads and stores would be misaligned."""
    bh, n, m, d = 2, 6, 8, 16
    row = step(3)
    # The kernel moves its own pointers, so that they are unaligned wherever the arrays begin.
    moved = row.path.read_text().replace(
        "int n, int m, int d)\n{",
        f"int n, int m, int d)\n{{ q += {shift}; k += {shift}; s += {shift};",
    )
    assert f"s += {shift};" in moved
    kernel = RawModule(code=moved).get_function(row.entry)
    q, k, _ = inputs(bh, n, m, d, seed=shift)
    blocks = [xp.asarray(np.pad(array.ravel(), (shift, 0))) for array in (q, k)]
    s = poisoned(shift + bh * n * m, np.float32, xp)
    launch = row.launch(Problem(bh, n, m, d))
    kernel(launch.grid, launch.block, (*blocks, s, *map(np.int32, (n, m, d))))
    assert np.isnan(asnumpy(s)[:shift]).all()
    expected = q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2)
    assert_agrees(s[shift:].reshape(bh, n, m), expected, name=f"unaligned by {shift} floats")


@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_score_kernels_agree_to_the_bit(shape):
    """One fma a step, i ascending, in all three: tiling must not change a single bit."""
    q, k, _ = inputs(*shape, seed=7)
    naive, tiled, blocked = (run_scores(file, q, k).view(np.uint32) for file in SCORE_KERNELS)
    np.testing.assert_array_equal(tiled, naive)
    np.testing.assert_array_equal(blocked, naive)


def score_rows(rows, m, spread=3.0):
    """Asymmetric scores (1, rows, m); the last of several rows is all -inf."""
    s = np.random.default_rng(rows * 1000 + m).normal(0.5, spread, (1, rows, m)).astype(np.float32)
    if rows > 1:
        s[0, -1] = -np.inf
    if rows > 2:
        s[0, 0, : m // 2] = -np.inf
    return s


def run_softmax(entry, s, scale, in_place, options=()):
    """The softmax entry by name, whatever the ladder would pick for this length."""
    row, out = step("softmax_warp"), Guarded(s.shape)
    if in_place:
        out.array[...] = xp.asarray(s)
    buffers = {"s": out.array if in_place else xp.asarray(s), "p": out.array}
    rows, m = s.shape[1], s.shape[2]
    warps = row.constants(options)["WARPS"]
    grid = (rows if entry == "softmax_block" else -(-rows // warps), 1, 1)
    geometry = Geometry(entry, grid, (32, warps, 1))
    kernel = compiled(row.path, options, entry=entry)
    StepLaunch(row, geometry, kernel, numbers_of(Problem(1, rows, m, 1), scale)).run(buffers)
    expected = reference.softmax(s.astype(np.float64) * float(np.float32(scale)))
    out.check(expected, f"{entry} {s.shape} {options}")


@pytest.mark.parametrize("shape", WEIGHT_SHAPES, ids=str)
@pytest.mark.parametrize("entry", ["softmax_warp", "softmax_block"])
def test_softmax(entry, shape):
    run_softmax(entry, score_rows(*shape), 0.37, in_place=False)
    run_softmax(entry, score_rows(*shape), 0.37, in_place=True)


@pytest.mark.parametrize("warps", [1, 3, 32])
@pytest.mark.parametrize("entry", ["softmax_warp", "softmax_block"])
def test_softmax_with_other_block_sizes(entry, warps):
    run_softmax(entry, score_rows(5, 130), 0.37, in_place=True, options=(f"-DWARPS={warps}",))


@pytest.mark.parametrize("spread", [300.0, 1e30])
@pytest.mark.parametrize("entry", ["softmax_warp", "softmax_block"])
def test_softmax_of_huge_scores(entry, spread):
    run_softmax(entry, score_rows(4, 70, spread), 0.5, in_place=False)


def test_long_rows_take_the_block():
    assert step(5).launch(Problem(1, 2, LONG_ROW - 1, 8)).entry == "softmax_warp"
    assert step(5).launch(Problem(1, 2, LONG_ROW, 8)).entry == "softmax_block"
    s = np.stack([score_rows(2, LONG_ROW + 5)[0]] * 2)[:, :2]
    out = Guarded(s.shape)
    placeholders = on_device(q=np.ones((2, 2, 1)), k=np.ones((2, s.shape[2], 1)))
    run_steps([step(5)], {**placeholders, "s": xp.asarray(s), "p": out.array}, 1.0)
    out.check(reference.softmax(s), "softmax of long rows")


def product(weights, v):
    return weights.astype(np.float64) @ v.astype(np.float64)


@pytest.mark.turns(11)
@pytest.mark.parametrize("spread", [3.0, 1e30])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_serial_softmax_and_output(shape, spread):
    bh, n, m, d = shape
    q, k, v = inputs(*shape)
    s = np.stack([score_rows(n, m, spread)[0] + head for head in range(bh)]).astype(np.float32)
    out, weights = Guarded((bh, n, d)), Guarded(s.shape)
    weights.array[...] = xp.asarray(s)
    buffers = {**on_device(q=q, k=k, v=v), "s": weights.array, "out": out.array}
    run_steps([step(4)], buffers, 0.5)
    expected = reference.softmax(s.astype(np.float64) * 0.5)
    weights.check(expected, "weights")
    out.check(product(expected, v), "output")


@pytest.mark.parametrize("options", [(), ("-DTILE=2",), ("-DTILE=7",), ("-DTILE=16",)], ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output(shape, options):
    q, k, v = inputs(*shape)
    p = np.random.default_rng(4).uniform(0.0, 1.0, (shape[0], *shape[1:3])).astype(np.float32)
    out = Guarded(q.shape)
    run_steps([step(6)], {**on_device(q=q, k=k, v=v, p=p), "out": out.array}, 1.0, options=options)
    out.check(product(p, v), f"output {options}")


# (B, H, Lq, D) and Lk; test_single_kernels.py has those of the other methods
CALLS = [
    ((1, 1, 1, 1), 1),
    ((2, 3, 5, 63), 5),
    ((1, 2, 1, 80), 37),
    ((1, 2, 37, 80), 1),
    ((2, 2, 17, 1), 50),
    ((1, 1, 196, 64), 196),
    ((1, 1, 3, 8), 1030),
]


@pytest.mark.parametrize(("call", "method"), crossed(CALLS, PIPELINES), ids=str)
def test_method(call, method):
    shape, keys = call
    q, k, v = seeded_qkv(shape, kv_length=keys, seed=11)
    out = attention(*(xp.asarray(array) for array in (q, k, v)), method=method)
    assert isinstance(out, xp.ndarray) and out.dtype == np.float32
    assert_agrees(out, reference.attention(q, k, v), name=method)


@pytest.mark.parametrize("method", PIPELINES)
def test_method_with_huge_logits(method):
    """exp of a raw logit would overflow. A float32 score near 1000 is off by about 1e-4, and
    that is a relative error of its weight: hence the wider tolerance."""
    q, k, v = seeded_qkv((1, 2, 21, 24), kv_length=30, seed=5)
    q = (q * 300).astype(np.float32)
    assert np.abs(reference.attention_scores(q, k)).max() > 500
    out = attention(*(xp.asarray(array) for array in (q, k, v)), method=method)
    assert_agrees(out, reference.attention(q, k, v), relative=3e-4, name=method)


@pytest.mark.parametrize("scale", [0.0, -0.8, 2.5])
def test_scale(scale):
    q, k, v = seeded_qkv((1, 2, 6, 9), kv_length=11, seed=2)
    for method in PIPELINES:
        out = attention(*(xp.asarray(array) for array in (q, k, v)), method=method, scale=scale)
        assert_agrees(out, reference.attention(q, k, v, scale=scale), name=method)


@pytest.mark.turns(23)
@pytest.mark.parametrize("method", [m for m in METHODS if "float32" in methods.dtypes_of(m)])
def test_more_heads_than_a_grid_holds(method, monkeypatch):
    """The heads go to the GPU in slices; every head of every slice is written, and no more."""
    monkeypatch.setattr("attn_course.ladder.call.MAX_GRID_YZ", 2)
    q, k, v = seeded_qkv((5, 1, 4, 6), kv_length=3, seed=8)
    out = Guarded(q.shape)
    given = attention(*(xp.asarray(array) for array in (q, k, v)), method=method, out=out.array)
    assert given is out.array
    out.check(reference.attention(q, k, v), method)


def test_options_reach_kernel_and_geometry():
    q, k, v = seeded_qkv((1, 1, 9, 5), seed=9)
    out = attention(*(xp.asarray(array) for array in (q, k, v)), options=("-DTILE=4",))
    assert_agrees(out, reference.attention(q, k, v), name="TILE=4")
    assert step(2).launch(Problem(1, 9, 9, 5), ("-DTILE=4",)) == Geometry(
        "scores_tiled", (3, 3, 1), (4, 4, 1), constants={"TILE": 4}
    )


def test_arguments_are_refused_by_name():
    q, k, v = (xp.asarray(array) for array in seeded_qkv((1, 2, 4, 6)))
    cases = [
        ((q.astype(np.float64), k, v), TypeError, r"q is float64.*astype"),
        ((q, k[0], v), ValueError, r"k has shape \(2, 4, 6\).*reshape"),
        ((q, k, v.swapaxes(2, 3).copy().swapaxes(2, 3)), ValueError, "v is not C-contiguous.*asco"),
        ((q, k[:, :1].copy(), v), ValueError, "k has 1 heads, v 2"),
        ((q, k[:, [0, 0, 0]].copy(), v), ValueError, "k has shape .* multiple"),
        ((q, k[[0, 0]].copy(), v), ValueError, "k has shape .* batch"),
        ((q, k, v[:, :, :3].copy()), ValueError, "4 keys, v 3 values"),
        ((q[:, :, :0], k, v), ValueError, "at least 1"),
        ((q, k.tolist(), v), TypeError, "k is builtins.list.*asarray"),
    ]
    for arrays, error, message in cases:
        with pytest.raises(error, match=message):
            attention(*arrays)
    for name in ("causal", "return_lse"):  # True is kept by the first call, and 1.0 is not it
        attention(q, k, v, "rows_online", **{name: True})
        for value in ("yes", None, 2, 1.0, q):
            with pytest.raises(TypeError, match=f"{name} is .*: pass True or False"):
                attention(q, k, v, "rows_online", **{name: value})
        attention(q, k, v, "rows_online", **{name: np.bool_(1)})
    with pytest.raises(ValueError, match="out has shape"):
        attention(q, k, v, out=xp.empty((1, 2, 4, 7), dtype=np.float32))


def test_unknown_methods_and_unsupported_options_are_refused():
    q, k, v = (xp.asarray(array) for array in seeded_qkv((1, 2, 4, 6)))
    with pytest.raises(methods.UnknownMethod, match="naive, three_kernels, tiled"):
        attention(q, k, v, method="fastest")
    assert PIPELINES == ["naive", "three_kernels", "tiled"]
    bias = xp.zeros((4, 4), dtype=np.float32)
    for method in PIPELINES:
        for words, options in [
            ("causal mask", {"causal": True}),
            ("no bias", {"bias": bias}),
            ("log-sum-exp", {"return_lse": True}),
        ]:
            with pytest.raises(methods.UnsupportedOption, match=f"{words}.*rows_online"):
                attention(q, k, v, method=method, **options)
        with pytest.raises(methods.UnsupportedOption, match=r"grouped heads.*flash_fp32"):
            attention(q, k[:, :1].copy(), v[:, :1].copy(), method=method)


def test_methods_use_ladder_steps():
    assert [row.file for row in steps_of("tiled")] == [
        "02_scores_tiled",
        "05_softmax_warp",
        "06_output_tiled",
    ]
    used = {number for numbers in METHODS.values() for number in numbers}
    assert used <= {row.number for row in LADDER}


def test_a_grid_that_no_gpu_takes_is_refused():
    with pytest.raises(ValueError, match="grid z would be 65536"):
        step(1).launch(Problem(65536, 1, 1, 1))
    with pytest.raises(ValueError, match="grid y would be"):
        step(2).launch(Problem(1, 65536 * 32, 1, 1))
    with pytest.raises(KeyError, match="01_scores_naive"):
        step("07_missing")


@pytest.mark.parametrize("name", ["q", "k", "v", "bias"])
def test_an_out_that_is_also_read_is_refused(name):
    xp = array_module(None)
    memory = xp.zeros(2 * 64 + 1, dtype=np.float32)
    one = memory[1:65].reshape(1, 1, 8, 8)
    arrays = {key: xp.zeros((1, 1, 8, 8), dtype=np.float32) for key in ("q", "k", "v", "bias")}
    arrays[name] = one
    bias = arrays.pop("bias")
    with pytest.raises(ValueError, match=f"out shares memory with {name}: .*pass an array of its"):
        attention(**arrays, bias=bias, method="rows_online", out=memory[64:128].reshape(1, 1, 8, 8))
    attention(**arrays, bias=bias, method="rows_online", out=memory[65:].reshape(1, 1, 8, 8))
