"""layer_norm, bias_gelu and mlp against float64, on whichever backend is chosen."""

import math
import re

import numpy as np
import pytest
from kernelscope.backend import array_module, asnumpy
from kernelscope.events import observe
from kernelscope.watch import Sanitizer

from attn_course import bias_gelu, layer_norm, mlp, reference
from attn_course.layers import steps
from attn_course.layers.launches import Launches
from attn_course.layers.operations import add_bias_gelu, add_layer_norm, add_parts
from attn_course.layers.products import PRECISIONS, WeightMatrix, numpy_product, tf32_high
from attn_course.layers.steps import BIAS_ADD, BIAS_GELU, LAYER_NORM, WIDEST, Rows
from attn_course.reference.comparison import poisoned
from attn_devtools.agreement import assert_agrees

pytestmark = pytest.mark.system

xp = array_module()
NORM, GELU = 2e-6, 1e-6  # relative errors that are allowed
MARGIN = 36  # floats before and after an output; a multiple of 4, so that float4 paths are taken


def guarded(*shape):
    """An output of NaN inside a larger block of NaN; returns the block and the output."""
    size = math.prod(shape)
    block = poisoned(size + 2 * MARGIN, np.float32, xp)
    return block, block[MARGIN : MARGIN + size].reshape(shape)


def check_margins(block):
    edges = asnumpy(block)
    assert np.isnan(edges[:MARGIN]).all() and np.isnan(edges[-MARGIN:]).all()


def normal(*shape, seed=0, mean=0.3, spread=1.4):
    rng = np.random.default_rng(seed)
    return rng.normal(mean, spread, shape).astype(np.float32)


def device(*arrays):
    return [None if array is None else xp.asarray(array) for array in arrays]


def run_norm(x, gamma, beta, *, options=(), parts=1, **more):
    """Kernel 16 into guarded outputs; returns y and the sum, on the host."""
    launches, rows, d = Launches(), *x.shape
    block, y = guarded(rows, parts * d)
    sum_block, total = guarded(rows, d)
    more = dict(zip(more, device(*more.values()), strict=True))
    arrays = device(x, gamma, beta)
    how = {"options": options, "parts": parts, "total": total}
    add_layer_norm(launches, arrays[0], y, (*arrays[1:], 1e-5), **how, **more)
    launches.run()
    check_margins(block)
    check_margins(sum_block)
    return asnumpy(y), asnumpy(total)


# -- layer norm ------------------------------------------------------------------------------------
@pytest.mark.turns(37)
@pytest.mark.parametrize(
    ("d", "mean"),
    [(1, 0.3), (3, 1e4), (63, 0.3), (512, 1e4), (1000, 0.3), (1024, 1e4), (1025, 0.3), (4097, 1e4)]
    + [(WIDEST, 0.3)],
)
def test_layer_norm(d, mean):
    """Also of a mean so large that float32 rounds it by more than the result may be off."""
    x, gamma, beta = normal(5, d, mean=mean), normal(d, seed=1), normal(d, seed=2)
    y, total = run_norm(x, gamma, beta)
    np.testing.assert_array_equal(total, x)
    expected = reference.layer_norm(x, gamma, beta)
    assert_agrees(y, expected, relative=NORM, name=f"width {d}, mean {mean}")


@pytest.mark.turns(37)
@pytest.mark.parametrize(
    ("d", "plain"),
    [(1, 0), (63, 0), (80, 1), (128, 1), (256, 2), (512, 2), (516, 1), (768, 2), (1000, 1)]
    + [(1024, 2), (1028, 0), (2048, 2), (3000, 0), (4096, 2), (8192, 0)],
)
@pytest.mark.parametrize("mean", [0.3, 1e4])
def test_layer_norm_of_x_alone(d, plain, mean):
    """The forms of kernel 16 that add nothing, with a last block that has rows past the end."""
    x, gamma, beta = device(normal(5, d, mean=mean), normal(d, seed=1), normal(d, seed=2))
    launches, (block, y) = Launches(), guarded(5, d)
    add_layer_norm(launches, x, y, (gamma, beta, 1e-5))
    assert launches.launches[0].geometry.constants["PLAIN"] == plain
    launches.run()
    check_margins(block)
    expected = reference.layer_norm(*map(asnumpy, (x, gamma, beta)))
    assert_agrees(y, expected, relative=NORM, name=f"width {d}, mean {mean}")


@pytest.mark.turns(23)
@pytest.mark.parametrize("d", [80, 512, 768, 1000])
def test_rows_of_x_alone_that_are_hard(d):
    """A constant row, an outlier where the pivot is taken, squares that overflow, and NaN."""
    x = np.repeat(normal(1, d, mean=0.0, spread=1e-3), 6, axis=0)
    x[0], x[1, 0], x[2, -1], x[3, 0], x[4, d // 2] = -3e4, 1e4, -2e3, 1e21, np.nan
    found, beta = asnumpy(layer_norm(*device(x, None, normal(d)))), normal(d)
    np.testing.assert_array_equal(found[0], beta)
    assert np.isnan(found[3:5]).all()
    for row in (1, 2, 5):
        expected = reference.layer_norm(x[row : row + 1], None, beta)
        assert_agrees(found[row : row + 1], expected, relative=NORM, name=f"row {row}")


@pytest.mark.parametrize("d", [512, 768, 4096])
def test_a_first_number_that_is_far_off_costs_no_digits(d):
    """Distances from it round the other numbers, so such a row is read again."""
    x, gamma, beta = normal(4, d, mean=0.0), np.ones(d, np.float32), np.zeros(d, np.float32)
    x[:, 0] = 50, 1e4, -1e6, 1e19
    found = asnumpy(layer_norm(*device(x, gamma, beta)))
    exact = reference.layer_norm(x, gamma, beta)
    for row in range(4):
        assert_agrees(found[row, 1:], exact[row, 1:], relative=NORM, name=f"row {row}")


@pytest.mark.turns(23)
@pytest.mark.parametrize("shift", [1, 2])
@pytest.mark.parametrize("moved", range(3))
def test_one_array_that_float4_does_not_fit(shift, moved):
    arrays = [normal(4, 512), normal(512, seed=1), normal(512, seed=2)]
    given = device(*arrays)
    block = xp.asarray(np.pad(arrays[moved].ravel(), (shift, 0)))
    given[moved] = block[shift:].reshape(arrays[moved].shape)
    assert_agrees(layer_norm(*given), reference.layer_norm(*arrays), relative=NORM, name="moved")


@pytest.mark.turns(11)
@pytest.mark.parametrize("d", [40, 1030])
def test_constant_rows_become_beta(d):
    x = np.repeat(np.float32([[0.0], [7.25], [-3e4], [1e-20]]), d, axis=1)
    beta = normal(d, seed=2)
    y, _ = run_norm(x, normal(d, seed=1), beta)
    np.testing.assert_array_equal(y, np.broadcast_to(beta, x.shape))


@pytest.mark.turns(23)
def test_an_outlier_does_not_spoil_the_variance():
    x = normal(3, 2000, mean=0.0, spread=1e-3)
    x[:, 0] = [1e4, -2e3, 1.0]
    expected = reference.layer_norm(x)
    assert_agrees(run_norm(x, None, None)[0], expected, relative=NORM, name="outlier")


@pytest.mark.turns(23)
@pytest.mark.parametrize("d", [77, 128, 1100])
def test_residual_and_bias_are_added_first(d):
    x, residual, bias = normal(6, d), normal(6, d, seed=1), normal(d, seed=2)
    y, total = run_norm(x, None, None, residual=residual, bias=bias)
    np.testing.assert_array_equal(total, x + residual + bias)
    assert_agrees(y, reference.layer_norm(total), relative=NORM, name="with residual")


@pytest.mark.turns(17)
@pytest.mark.parametrize("options", [("-DROWS=1",), ("-DROWS=7",)], ids=str)
def test_rows_of_a_block(options):
    x = normal(9, 50)
    y, _ = run_norm(x, None, None, options=options)
    assert_agrees(y, reference.layer_norm(x), relative=NORM, name=str(options))


@pytest.mark.turns(41)
@pytest.mark.parametrize("lanes", [1, 4, 16, 32])
@pytest.mark.parametrize("d", [30, 64])
def test_lanes_that_share_a_row(lanes, d):
    """Rows of the last warp that are past the end write nothing; see check_margins()."""
    x, residual = normal(37, d), normal(37, d, seed=1)
    options = (f"-DLANES={lanes}", "-DVECTORS=16", "-DROWS=2")
    y, total = run_norm(x, None, None, options=options, residual=residual)
    np.testing.assert_array_equal(total, x + residual)
    assert_agrees(y, reference.layer_norm(total), relative=NORM, name=str(options))


@pytest.mark.turns(23)
@pytest.mark.parametrize("warps", [2, 5, 32])
def test_any_number_of_warps_shares_a_row(warps):
    """Every warp's sums count, also those of warps that have no columns."""
    x = normal(3, 130)
    options = ("-DVECTORS=1", f"-DWARPS={warps}")
    assert LAYER_NORM.launch(Rows(3, 130), options).entry == "layernorm_block"
    y, _ = run_norm(x, None, None, options=options)
    assert_agrees(y, reference.layer_norm(x), relative=NORM, name=f"{warps} warps")


@pytest.mark.parametrize("shift", [1, 2])
def test_arrays_that_float4_does_not_fit(shift):
    """d % 4 == 0, but the arrays begin anywhere."""
    x, gamma = normal(4, 64), normal(64, seed=1)
    moved = [xp.asarray(np.pad(array.ravel(), (shift, 0)))[shift:] for array in (x, gamma)]
    y = layer_norm(moved[0].reshape(x.shape), moved[1])
    assert_agrees(y, reference.layer_norm(x, gamma), relative=NORM, name=f"shift {shift}")


def test_the_shape_is_kept_and_the_sum_returned():
    x, residual = device(normal(2, 3, 20), normal(2, 3, 20, seed=1))
    y, total = layer_norm(x, residual=residual, eps=0.5, return_sum=True)
    assert y.shape == total.shape == x.shape
    expected = reference.layer_norm(asnumpy(x) + asnumpy(residual), eps=0.5)
    assert_agrees(y, expected, relative=NORM, name="eps")
    plan = layer_norm.plan(x)
    x[...] = residual
    assert_agrees(plan(), reference.layer_norm(asnumpy(residual)), relative=NORM, name="plan")


def test_a_plan_returns_the_sum_too():
    x, residual = device(normal(3, 20), normal(3, 20, seed=1))
    plan = layer_norm.plan(x, residual=residual, return_sum=True)
    x[...] = 2 * x
    y, total = plan()
    assert plan.out[1] is total
    np.testing.assert_array_equal(asnumpy(total), asnumpy(x) + asnumpy(residual))
    assert_agrees(y, reference.layer_norm(asnumpy(total)), relative=NORM, name="plan")


def test_arguments_are_refused_by_name():
    x, gamma = device(normal(4, 10), normal(10))
    cases = [
        ((x.astype(np.float64),), {}, TypeError, r"x is float64.*astype"),
        ((x.T,), {}, ValueError, "x is not C-contiguous"),
        ((x, gamma[:9]), {}, ValueError, r"gamma has shape \(9,\), not \(10,\)"),
        ((x,), {"residual": x[:3]}, ValueError, r"residual has shape \(3, 10\), x \(4, 10\)"),
        (
            (xp.zeros((1, WIDEST + 1), np.float32),),
            {},
            ValueError,
            "16385.*holds 16384 at most.*ref",
        ),
        (
            (xp.zeros((1, 600), np.float32),),
            {"options": ["-DVECTORS=1", "-DWARPS=2"]},
            ValueError,
            "600 numbers, and layernorm_block with VECTORS=1 and WARPS=2 holds 256: leave",
        ),
        ((x,), {"options": ["-DVECTORS=64"]}, ValueError, "VECTORS is 64; it can be 1 to 16"),
        ((x,), {"options": ["-DLANES=6"]}, ValueError, "LANES is 6; it can be 1, 2, 4, 8, 16 or"),
        ((x,), {"options": ["-DPLAIN=3"]}, ValueError, "PLAIN is 3; it can be 0 to 2"),
        ((x,), {"options": ["-DPLAIN=1"]}, ValueError, "PLAIN follows from the arrays"),
        ((x,), {"options": ["-DROWS=0"]}, ValueError, "ROWS is 0; it can be 1 to 32"),
        ((x,), {"eps": 10**400}, ValueError, "eps is 10000.*finite number of 0 or more"),
        ((x,), {"eps": "small"}, TypeError, "eps is 'small', a str: pass a number"),
        ((x,), {"eps": -0.5}, ValueError, "eps is -0.5: .* 0 or more"),
        ((xp.zeros((), np.float32),), {}, ValueError, r"x has shape \(\), not \(\.\.\., width\)"),
    ]
    for arguments, more, error, message in cases:
        with pytest.raises(error, match=message):
            layer_norm(*arguments, **more)


# -- GELU ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [44, 45])
def test_fewer_blocks_than_rows_loop(width, monkeypatch):
    """A grid's height is limited; the rest of the rows comes after."""
    monkeypatch.setattr(steps, "MAX_GRID_YZ", 2)
    x, residual, bias = normal(23, width), normal(23, width, seed=1), normal(width, seed=2)
    rows, out = Rows(23, width), {}
    for step, arrays in ((BIAS_GELU, {}), (BIAS_ADD, {"residual": residual})):
        launches, arrays = Launches(), {"x": x, "bias": bias} | arrays
        given = {name: xp.asarray(array) for name, array in arrays.items()}
        block, given["out"] = guarded(23, width)
        launches.kernel(step, rows, given, {"approximate": 0} if step is BIAS_GELU else {})
        assert launches.launches[0].geometry.grid[1] == 2
        launches.run()
        check_margins(block)
        out[step.entry] = asnumpy(given["out"])
    expected = reference.gelu(x.astype(np.float64) + bias)
    assert_agrees(out["bias_gelu"], expected, relative=GELU, name="gelu")
    np.testing.assert_array_equal(out["bias_add"], x + residual + bias)


@pytest.mark.parametrize(("approximate", "name"), [("none", "erf"), ("tanh", "tanh")])
@pytest.mark.parametrize("shape", [(1, 1), (9, 7), (5, 96), (3, 516)], ids=str)
def test_bias_gelu(shape, approximate, name):
    x, bias = normal(*shape, spread=2.5), normal(shape[1], seed=1)
    out = bias_gelu(*device(x, bias), approximate)
    expected = reference.gelu(x.astype(np.float64) + bias, approximation=name)
    assert_agrees(out, expected, relative=GELU, name=f"gelu by {name}")


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_large_numbers(approximate):
    x = np.float32([[-1e4, -60, 0, 60, 1e4, np.inf]])
    out = asnumpy(bias_gelu(xp.asarray(x), approximate=approximate))
    np.testing.assert_array_equal(out, [[0, 0, 0, 60, 1e4, np.inf]])


def test_gelu_writes_its_array_and_no_more():
    x = normal(5, 33)
    launches, (block, out) = Launches(), guarded(5, 33)
    out[...] = xp.asarray(x)
    add_bias_gelu(launches, out, None, out, "none")  # in place
    launches.run()
    check_margins(block)
    assert_agrees(out, reference.gelu(x), relative=GELU, name="in place")
    for unknown in ("erf", ["tanh"]):
        said = re.escape(f"approximate is {unknown!r}; choose one of: none, tanh")
        with pytest.raises(ValueError, match=said):
            bias_gelu(out, approximate=unknown)


# -- parts for tensor cores ------------------------------------------------------------------------
def check_parts(found, whole):
    """[low | high | high], where high has 11 bits and high + low is the number itself."""
    low, high, again = np.split(found, 3, axis=1)
    np.testing.assert_array_equal(high, again)
    np.testing.assert_array_equal(high.view(np.uint32) & 0x1FFF, 0)
    np.testing.assert_array_equal(high.astype(np.float64) + low, whole.astype(np.float64))
    assert (np.abs(low) <= np.abs(whole) * 2.0**-11).all()
    np.testing.assert_array_equal(high, tf32_high(whole))


@pytest.mark.parametrize("d", [64, 35])
def test_parts_add_up_to_the_number(d):
    x, launches, (block, out) = normal(5, d), Launches(), guarded(5, 3 * d)
    add_parts(launches, xp.asarray(x), out, 3)
    launches.run()
    check_margins(block)
    check_parts(asnumpy(out), x)
    check_parts(run_norm(x, None, None, parts=3)[0], run_norm(x, None, None)[0])


@pytest.mark.parametrize("precision", ["fp32", "tf32x3"])
def test_mlp(precision):
    x, w_1, w_2 = normal(2, 5, 24), normal(24, 50, seed=1), normal(50, 24, seed=2)
    b_1, b_2 = normal(50, seed=3), normal(24, seed=4)
    out = mlp(*device(x, w_1, b_1, w_2, b_2), precision=precision)
    expected = reference.gelu(x.astype(np.float64) @ w_1 + b_1) @ w_2 + b_2
    assert_agrees(out, expected, relative=2e-6, name=precision)
    plan = mlp.plan(*device(x, w_1, None, w_2, None), "tanh", precision=precision)
    hidden = reference.gelu(x.astype(np.float64) @ w_1, approximation="tanh")
    assert_agrees(plan(), hidden @ w_2, relative=2e-6, name=precision)


def test_tf32_alone_loses_digits_that_three_products_keep():
    """What one product of 11-bit factors is off by, and three are not."""
    x, weights = normal(20, 300), normal(300, 40, seed=1)
    exact = x.astype(np.float64) @ weights
    one = tf32_high(x).astype(np.float64) @ tf32_high(weights)
    high = tf32_high(x)
    cut = np.concatenate([x - high, high, high], axis=1)
    three = cut.astype(np.float64) @ asnumpy(WeightMatrix(weights, "tf32x3").data)

    def error(found):
        return np.linalg.norm(found - exact) / np.linalg.norm(exact)

    assert error(one) > 1e-4 and error(three) < 1e-6


@pytest.mark.parametrize("precision", list(PRECISIONS))
def test_a_weight_matrix_lies_as_its_products_read_it(precision):
    weights = normal(24, 50)
    matrix = WeightMatrix(xp.asarray(weights), precision)
    along_k = precision != "fp32"
    assert matrix.data.T.flags.c_contiguous is along_k and matrix.data.shape[1] == 50
    np.testing.assert_array_equal(asnumpy(matrix.sum_of_parts()), weights)


def test_products_of_the_simulator_do_not_depend_on_the_order_of_the_sum():
    """BLAS adds in another order on another processor; lessons print digits of what follows."""
    rows, weights = normal(64, 300), normal(300, 40, seed=1)
    found = []
    for order in (np.arange(300), np.random.default_rng(2).permutation(300)):
        found.append(np.empty((64, 40), np.float32))
        matrix = WeightMatrix(weights[order], backend="simulator")
        numpy_product(np.ascontiguousarray(rows[:, order]), matrix.data, found[-1])
    np.testing.assert_array_equal(*found)


def test_products_are_refused_by_name():
    x, w_1, w_2 = device(normal(5, 24), normal(24, 50), normal(50, 24))
    with pytest.raises(ValueError, match=r"w_1 has shape \(50, 24\), not \(24, F\).*transpose"):
        mlp(x, w_2, None, w_1, None)
    with pytest.raises(ValueError, match=r"b_2 has shape \(50,\), not \(24,\)"):
        mlp(x, w_1, None, w_2, xp.zeros(50, np.float32))
    for unknown in ("fp64", ["fp32"]):
        said = re.escape(f"precision is {unknown!r}; choose one of: {', '.join(PRECISIONS)}")
        with pytest.raises(ValueError, match=said):
            mlp(x, w_1, None, w_2, None, precision=unknown)


# -- the sanitizer ---------------------------------------------------------------------------------
@pytest.mark.turns(23)
@pytest.mark.parametrize("d", [80, 512, 768, 1000])
def test_the_sanitizer_finds_nothing_in_a_norm_of_x_alone(d, no_gpu):
    x = normal(5, d)
    x[2:, 0] = 1e4  # these rows are read again
    with observe(Sanitizer(("y",))) as report:
        layer_norm(x, normal(d, seed=1), normal(d, seed=2))
    assert report.findings == []


@pytest.mark.turns(23)
@pytest.mark.parametrize("options", [(), ("-DVECTORS=1", "-DWARPS=2")], ids=str)
def test_the_sanitizer_finds_nothing(options, no_gpu):
    """A warp a row, and a block a row whose second warp has a few columns."""
    x, residual = normal(3, 135), normal(3, 135, seed=1)
    with observe(Sanitizer(("y", "sum"))) as report:
        layer_norm(x, residual[0].copy(), residual=residual, return_sum=True, options=options)
    assert report.findings == []


@pytest.mark.turns(11)
def test_the_sanitizer_finds_nothing_in_gelu(no_gpu):
    with observe(Sanitizer(("out",))) as report:
        bias_gelu(normal(3, 35), normal(35, seed=1))
    assert report.findings == []


def test_options_of_a_layer_are_its_kernels():
    x = np.ones((2, 8), np.float32)
    with pytest.raises(ValueError, match="no constant TILE; theirs, with the defaults, are ROWS=2"):
        layer_norm(x, x[0], x[0], backend="simulator", options=["-DTILE=8"])
    same = layer_norm(x, x[0], x[0], backend="simulator", options=["-DVECTORS=1"])
    assert same.tolist() == np.ones((2, 8)).tolist()


def test_a_masked_array_is_refused(no_gpu):
    x = np.ma.masked_array(np.ones((2, 8), np.float32), np.eye(2, 8))
    with pytest.raises(TypeError, match=r"x is a masked array.*pass x\.filled"):
        layer_norm(x, backend="simulator")


def test_a_plan_keeps_the_matrices_of_its_making():
    """For every precision alike: their parts are copies anyway."""
    x, w_1, w_2 = device(normal(3, 8), normal(8, 12, seed=1), normal(12, 8, seed=2))
    expected = asnumpy(mlp(x, w_1, None, w_2, None))
    plan = mlp.plan(x, w_1, None, w_2, None)
    w_1 *= 2
    w_2 *= 3
    np.testing.assert_array_equal(asnumpy(plan()), expected)


def test_gelu_keeps_the_digits_of_its_tail():
    x = np.linspace(-12.5, 9, 2000, dtype=np.float32)[None]
    wide = x.astype(np.float64)
    by_erf, by_tanh = (asnumpy(bias_gelu(*device(x), None, how)) for how in ("none", "tanh"))
    exact = np.array([0.5 * t * math.erfc(-t / math.sqrt(2)) for t in wide[0]])
    assert abs(by_erf[0] / exact - 1).max() < 1e-5  # of -6 too, where 1 + erf is 0 in float32
    near = wide > -6
    tanh = reference.gelu(wide[near], approximation="tanh")
    assert abs(by_tanh[near] / tanh - 1).max() < 4e-6


def test_gelu_of_numbers_at_the_end_of_the_range():
    x = np.float32([[np.inf, 3e38, -3e38, np.nan]])
    found = asnumpy(bias_gelu(*device(x)))[0]
    assert found[0] == np.inf and found[1] == x[0, 1] and found[2] == 0 and np.isnan(found[3])


@pytest.mark.turns(23)
def test_layer_norm_of_numbers_as_far_apart_as_its_docstring_allows():
    x = 1e17 * np.where(np.arange(WIDEST) % 2, 1, -1)[None].astype(np.float32)
    assert_agrees(layer_norm(*device(x)), reference.layer_norm(x), relative=NORM, name="1e17")


@pytest.mark.turns(23)
@pytest.mark.parametrize("width", [40, 5000])
def test_layer_norm_whose_squares_overflow_is_nan(width):
    x = normal(3, width)
    x[1] *= np.float32(1e21)
    found = asnumpy(layer_norm(*device(x)))
    assert np.isnan(found[1]).all()
    sound = reference.layer_norm(x[::2])
    assert_agrees(np.ascontiguousarray(found[::2]), sound, relative=NORM, name="others")


@pytest.mark.turns(11)
@pytest.mark.parametrize("layer", [layer_norm, bias_gelu])
def test_a_call_is_plain_where_all_arrays_begin_at_16_bytes(layer):
    """Else the vector loads of PLAIN would be misaligned; and a missing array has its own code."""
    room = np.zeros(4 * 64 + 8, np.float32)
    start = -room.ctypes.data % 16 // 4
    vectors = [normal(64, seed=seed) for seed in range(1 + (layer is layer_norm))]
    for off in (0, 1):
        x = room[start + off :][: 4 * 64].reshape(4, 64)
        x[:] = normal(4, 64)
        for given, plain in ((vectors, off == 0), ([None] * len(vectors), False)):
            plan = layer.plan(x, *given, backend="simulator")
            [launch] = plan.launches.launches
            assert bool(launch.geometry.constants["PLAIN"]) == plain, (off, given)
            name = "gelu" if layer is bias_gelu else "layer_norm"
            total = x if name == "layer_norm" or given[0] is None else x + given[0]
            more = given if name == "layer_norm" else ()
            expected = getattr(reference, name)(total.astype(np.float64), *more)
            assert_agrees(plan(), expected, relative=NORM, name=f"{name}, {4 * off} bytes off")
