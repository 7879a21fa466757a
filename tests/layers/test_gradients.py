"""Gradients of the layers and the block against float64, differences and PyTorch."""

import math
import types

import numpy as np
import pytest
from kernelscope.backend import array_module, asnumpy
from kernelscope.events import observe
from kernelscope.watch import Sanitizer

from attn_course import (
    SwinStage,
    TransformerBlock,
    bias_gelu,
    bias_gelu_backward,
    layer_norm,
    layer_norm_backward,
    mlp_backward,
    reference,
)
from attn_course.backward.methods import BackwardRequest
from attn_course.layers import launches, steps
from attn_course.layers.gradients import (
    add_bias_gelu_backward,
    add_column_sums,
    add_layer_norm_backward,
)
from attn_course.layers.launches import Launches
from attn_course.layers.swin import relative_bias, shift_mask
from attn_course.reference.comparison import poisoned
from attn_devtools.agreement import assert_agrees
from attn_devtools.bench import torch_layers
from attn_devtools.bench.layers import LayerRow, seeded_rows, seeded_weights
from attn_devtools.bench.torch_layers import torch_state

pytestmark = pytest.mark.system

xp = array_module()
NORM, GELU, BLOCK = 2e-6, 2e-6, 1e-5  # relative errors that are allowed
MARGIN = 36  # floats before and after an output; a multiple of 4, so that float4 paths are taken


def normal(*shape, seed=0, mean=0.3, spread=1.4):
    rng = np.random.default_rng(seed)
    return rng.normal(mean, spread, shape).astype(np.float32)


def device(*arrays):
    return [None if array is None else xp.asarray(array) for array in arrays]


class Guarded:
    """Outputs of NaN, each inside a larger block of NaN."""

    def __init__(self):
        self.blocks = []

    def array(self, *shape):
        size = math.prod(shape)
        self.blocks.append(poisoned(size + 2 * MARGIN, np.float32, xp))
        return self.blocks[-1][MARGIN : MARGIN + size].reshape(shape)

    def check(self):
        for block in map(asnumpy, self.blocks):
            assert np.isnan(block[:MARGIN]).all() and np.isnan(block[-MARGIN:]).all()


def check_norm(x, gamma, dout, *, dsum=None, eps=1e-5, options=(), relative=NORM):
    """Kernels 26 and 28 into guarded outputs, against float64."""
    launches, outputs, (rows, d) = Launches(), Guarded(), x.shape
    dx, dvectors = outputs.array(rows, d), outputs.array(2, d)
    on_device = device(x, gamma, dout, dsum)
    norm = on_device[1], None, eps
    how = (on_device[2], dx, dvectors, on_device[3], options)
    add_layer_norm_backward(launches, on_device[0], norm, *how)
    launches.run()
    outputs.check()
    expected = reference.layer_norm_backward(x, gamma, dout, eps=eps)
    whole = expected[0] if dsum is None else expected[0] + dsum
    for name, found, one in zip(
        ("dx", "dgamma", "dbeta"), (dx, *dvectors), (whole, *expected[1:]), strict=True
    ):
        assert_agrees(found, one, relative=relative, name=f"{name} of {x.shape}")


# -- layer norm ------------------------------------------------------------------------------------
@pytest.mark.turns(23)
@pytest.mark.parametrize(
    ("d", "mean"),
    [(3, 1e4), (63, 0.3), (512, 1e4), (516, 0.3), (1000, 0.3), (1025, 0.3), (4097, 1e4)]
    + [(9001, 0.3), (steps.WIDEST, 0.3)],
)
def test_layer_norm(d, mean):
    """Also of a mean so large that float32 rounds it by more than the result may be off."""
    x, gamma = normal(5, d, mean=mean), normal(d, seed=1)
    check_norm(x, gamma, normal(5, d, seed=2), dsum=normal(5, d, seed=3))


def test_a_single_column_has_no_gradient():
    """What is left of it is what reaches x past the norm."""
    x, dout, dsum = device(normal(5, 1), normal(5, 1, seed=1), normal(5, 1, seed=2))
    dx, dgamma, dbeta = layer_norm_backward(x, None, dout, dsum=dsum)
    np.testing.assert_array_equal(asnumpy(dx), asnumpy(dsum))
    assert asnumpy(dgamma) == 0 and abs(float(dbeta[0]) - float(dout.sum())) < 1e-5


@pytest.mark.turns(23)
@pytest.mark.parametrize("rows", [1, 7, 8, 9, 70])
@pytest.mark.parametrize("options", [(), ("-DBLOCKS=2",), ("-DBLOCKS=3", "-DROWS=2")], ids=str)
def test_blocks_that_take_rows_in_turn(rows, options):
    x = normal(rows, 44)
    check_norm(x, None, normal(rows, 44, seed=2), options=options)


@pytest.mark.turns(17)
@pytest.mark.parametrize(("warps", "rows"), [(1, 1), (2, 3), (5, 2), (32, 1)])
def test_any_number_of_warps_shares_a_row(warps, rows):
    """Every warp's sums count, also those of warps that have no columns."""
    x, options = normal(7, 130), ("-DVECTORS=2", f"-DWARPS={warps}", f"-DROWS={rows}", "-DBLOCKS=2")
    check_norm(x, normal(130, seed=1), normal(7, 130, seed=2), options=options)


@pytest.mark.parametrize("shift", [1, 2])
def test_arrays_that_float4_does_not_fit(shift):
    """d % 4 == 0, but the arrays begin anywhere."""
    arrays = normal(4, 64), normal(64, seed=1), normal(4, 64, seed=2)
    moved = [
        xp.asarray(np.pad(array.ravel(), (shift, 0)))[shift:].reshape(array.shape)
        for array in arrays
    ]
    for found, one in zip(
        layer_norm_backward(*moved), reference.layer_norm_backward(*arrays), strict=True
    ):
        assert_agrees(found, one, relative=NORM, name=f"shift {shift}")
    x, bias, dout = arrays
    expected = reference.gelu_backward(x.astype(np.float64) + bias, dout)
    assert_agrees(bias_gelu_backward(*moved)[0], expected, relative=GELU, name=f"shift {shift}")


def test_constant_rows():
    """The deviation is 0: eps alone decides how steep the norm is; with eps 0 rows past the last
    one, which a block computes as zeros, leave no NaN.
    """
    x = np.repeat(np.float32([[0.0], [7.25], [-3e4]]), 40, axis=1)
    check_norm(x, normal(40, seed=1), normal(3, 40, seed=2), eps=0.25)
    check_norm(normal(3, 40), None, normal(3, 40, seed=2), eps=0.0)


def test_squares_that_overflow_give_no_finite_gradient():
    x = np.float32([[1, 2, 3, 4], [1e25, -1e25, 3e25, 0], [-3e38, 3e38, 1, 2]])
    dx, dgamma, _ = layer_norm_backward(*device(x, None, np.ones_like(x)))
    assert np.isnan(asnumpy(dx)[1:]).all() and np.isfinite(asnumpy(dx)[0]).all()
    assert np.isnan(asnumpy(dgamma)).all()


def test_the_shape_is_kept_and_a_plan_reads_again():
    x, dout = device(normal(2, 3, 20), normal(2, 3, 20, seed=1))
    plan = layer_norm_backward.plan(x, None, dout, eps=0.5)
    x[...] = 2 * x
    dx, dgamma, dbeta = plan()
    expected = reference.layer_norm_backward(asnumpy(x), None, asnumpy(dout), eps=0.5)
    assert dx.shape == x.shape and dgamma.shape == dbeta.shape == (20,)
    for found, one in zip((dx, dgamma, dbeta), expected, strict=True):
        assert_agrees(found, one, relative=NORM, name="plan")


@pytest.mark.turns(23)
def test_the_same_bits_in_every_run(monkeypatch):
    arrays = device(normal(90, 200), normal(200, seed=1), normal(90, 200, seed=2))
    first = [asnumpy(one).copy() for one in layer_norm_backward(*arrays)]
    first += [asnumpy(one).copy() for one in bias_gelu_backward(*arrays)]
    for order in ("1", "2", "3"):
        monkeypatch.setenv("KERNELSCOPE_WARP_ORDER", order)  # what runs first on the simulator
        again = (*layer_norm_backward(*arrays), *bias_gelu_backward(*arrays))
        for one, other in zip(first, again, strict=True):
            np.testing.assert_array_equal(one, asnumpy(other))


# -- GELU and columns ------------------------------------------------------------------------------
@pytest.mark.parametrize(("approximate", "name"), [("none", "erf"), ("tanh", "tanh")])
@pytest.mark.parametrize("shape", [(1, 1), (9, 7), (50, 96), (3, 516)], ids=str)
def test_bias_gelu(shape, approximate, name):
    """In place, with the output computed again, by two blocks along the rows."""
    x, bias, dout = normal(*shape, spread=2.5), normal(shape[1], seed=1), normal(*shape, seed=2)
    launches, outputs = Launches(), Guarded()
    dx, out, dbias = outputs.array(*shape), outputs.array(*shape), outputs.array(shape[1])
    dx[...] = xp.asarray(dout)
    arrays = (*device(x, bias), dx, dx, dbias)
    options = ("-DBLOCKS=2", "-DROWS=4", "-DLANES=32")
    add_bias_gelu_backward(launches, *arrays, approximate, out=out, options=options)
    launches.run()
    outputs.check()
    hidden = x.astype(np.float64) + bias
    expected = reference.gelu_backward(hidden, dout, approximation=name)
    assert_agrees(dx, expected, relative=GELU, name=name)
    # Sums of few terms may nearly cancel: what counts is the distance.
    assert_agrees(dbias, expected.sum(axis=0), relative=GELU, absolute=1e-5, name=f"dbias {name}")
    assert_agrees(out, reference.gelu(hidden, approximation=name), relative=GELU, name="again")


@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_of_large_numbers(approximate):
    x = np.float32([[-np.inf, -1e30, -1e4, -60, 60, 1e4, 1e30, np.inf, np.nan]])
    dx, _ = bias_gelu_backward(*device(x, None, np.full_like(x, 3)), approximate)
    np.testing.assert_array_equal(asnumpy(dx), [[0, 0, 0, 0, 3, 3, 3, 3, np.nan]])


def test_the_tails_of_gelu_keep_their_digits():
    """The distribution function at -6 is 1e-9: 1 + erf would leave nothing of it."""
    x = np.linspace(-9, 9, 400, dtype=np.float32)[None]
    out, launches = xp.empty(x.shape, np.float32), Launches()
    dx, dbias = xp.empty_like(out), xp.empty(400, np.float32)
    add_bias_gelu_backward(launches, *device(x, None, np.ones_like(x)), dx, dbias, "none", out=out)
    launches.run()
    wide = x.astype(np.float64)
    share = 0.5 * np.vectorize(math.erfc)(-wide / math.sqrt(2))
    slope = share + wide * np.exp(-0.5 * wide**2) / math.sqrt(2 * math.pi)
    far = np.abs(wide + 0.7518) > 0.1  # near it the derivative is 0, and only its distance counts
    assert np.abs(asnumpy(out) / (wide * share) - 1).max() < 1e-5
    assert np.abs(asnumpy(dx) / slope - 1)[far].max() < 1e-5


@pytest.mark.parametrize("shape", [(1, 1), (31, 33), (513, 40), (1100, 5)], ids=str)
def test_column_sums(shape):
    x, launches, outputs = normal(*shape), Launches(), Guarded()
    out = outputs.array(shape[1])
    add_column_sums(launches, xp.asarray(x), out)
    launches.run()
    outputs.check()
    assert len(launches.calls) == (2 if shape[0] > 512 else 1)
    assert_agrees(out, x.astype(np.float64).sum(axis=0), relative=NORM, name=str(shape))


@pytest.mark.parametrize("token", [None, [3, 0, 5, 1, 4, 2]])
def test_merging_is_the_inverse_of_splitting(token):
    """Of three arrays and of one, with and without windows."""
    numbers, launches = {"n": 3, "heads": 2, "d": 5}, Launches()
    token = None if token is None else xp.asarray(np.int32(token))
    for count in (3, 1):
        x = xp.asarray(normal(6, count * 10, seed=count))
        parts = {name: poisoned((2, 2, 3, 5), np.float32, xp) for name in "qkv"[:count]}
        arrays = dict.fromkeys(("k", "v", "bias")) | parts | {"token": token}
        launches.kernel(steps.SPLIT_HEADS, steps.Rows(6, 10), {**arrays, "qkv": x}, numbers)
        del arrays["bias"]
        out = poisoned(x.shape, np.float32, xp)
        launches.kernel(steps.MERGE_HEADS, steps.Rows(6, 10), {**arrays, "out": out}, numbers)
        launches.run()
        np.testing.assert_array_equal(asnumpy(out), asnumpy(x))
        heads = asnumpy(x).reshape(6, count, 2, 5)[0 if token is None else 3]
        for i, name in enumerate("qkv"[:count]):
            np.testing.assert_array_equal(asnumpy(parts[name])[0, :, 0], heads[i])


# -- MLP and block ---------------------------------------------------------------------------------
@pytest.mark.parametrize(("approximate", "name"), [("none", "erf"), ("tanh", "tanh")])
def test_mlp(approximate, name):
    x, w_1, w_2 = normal(2, 5, 24), normal(24, 50, seed=1), normal(50, 24, seed=2)
    b_1, dout = normal(50, seed=3), normal(2, 5, 24, seed=4)
    for bias in (b_1, None):
        found = mlp_backward(*device(x, w_1, bias, w_2, dout), approximate)
        rows, down = x.reshape(10, 24).astype(np.float64), dout.reshape(10, 24).astype(np.float64)
        hidden = rows @ w_1 + (0 if bias is None else bias)
        dhidden = reference.gelu_backward(hidden, down @ w_2.T, approximation=name)
        active = reference.gelu(hidden, approximation=name)
        dx = (dhidden @ w_1.T).reshape(x.shape)
        expected = (dx, rows.T @ dhidden, dhidden.sum(0), active.T @ down, down.sum(0))
        for one, right, what in zip(
            found, expected, ("x", "w_1", "b_1", "w_2", "b_2"), strict=True
        ):
            assert_agrees(one, right, relative=2e-6, name=f"d{what}")


def differences(function, arrays, step=1e-4):
    """Central differences of a function of arrays by each of their elements, in float64."""
    found = {}
    for name, array in arrays.items():
        found[name] = np.empty(array.shape)
        for at in np.ndindex(array.shape):
            moved = [array.copy(), array.copy()]
            moved[0][at] += step
            moved[1][at] -= step
            high, low = (function({**arrays, name: one}) for one in moved)
            found[name][at] = (high - low) / (2 * step)
    return found


@pytest.mark.turns(23)
@pytest.mark.parametrize(
    "options",
    [{}, {"causal": True, "approximate": "tanh"}, {"precision": "tf32x3", "method": "flash_rows"}],
    ids=str,
)
def test_block_by_differences(options):
    row = LayerRow((1, 3, 6), 4, 2)
    (x,), weights = seeded_rows(row.shape, seed=2), seeded_weights(row, 2)
    dout = normal(*row.shape, seed=5)
    block = TransformerBlock(weights, 2, **options)
    out, saved = block.forward(xp.asarray(x))
    np.testing.assert_array_equal(asnumpy(out), asnumpy(block(xp.asarray(x))))
    dx, found = block.backward(saved, xp.asarray(dout))
    assert set(found) == set(weights)
    how = {"causal": options.get("causal", False), "heads": 2}
    how["approximation"] = "tanh" if "approximate" in options else "erf"

    def loss(arrays):
        given = {name: array for name, array in arrays.items() if name != "x"}
        return float((dout * reference.transformer_block(arrays["x"], given, **how)).sum())

    inputs = {"x": x, **weights}
    expected = differences(loss, {name: np.float64(array) for name, array in inputs.items()})
    scale = max(np.abs(one).max() for one in expected.values())
    for name, one in (found | {"x": dx}).items():
        # b_k adds the same to all scores of a row: its gradient is 0.
        assert_agrees(one, expected[name], relative=BLOCK, absolute=1e-6 * scale, name=name)


def swin_loss(dout, side, shifts):
    """The function of x and of the weights, "number name", that backward() is the gradient of."""

    def loss(arrays):
        x = arrays["x"]
        for number, shift in enumerate(shifts):
            own = {n.split()[1]: a for n, a in arrays.items() if n.startswith(f"{number} ")}
            x = reference.swin_block(x, own, heads=2, side=side, shift=shift)
        return float((dout * x).sum())

    return loss


@pytest.mark.turns(41)
@pytest.mark.parametrize("table", [True, False])
def test_swin_stage_by_differences(table):
    """Two images of 4 x 2 windows of 2; the second block is shifted by 1."""
    row = LayerRow((2, 8, 4, 4), 3, 2, side=2, blocks=2)
    (x,), weights = seeded_rows(row.shape, seed=3), [seeded_weights(row, s) for s in (1, 2)]
    if not table:
        weights[0].pop("bias_table")
        weights[1].pop("bias_table")
    dout = normal(*row.shape, seed=6)
    stage = SwinStage(weights, row.heads, row.side)
    out, saved = stage.forward(xp.asarray(x))
    np.testing.assert_array_equal(asnumpy(out), asnumpy(stage(xp.asarray(x))))
    dx, found = stage.backward(saved, xp.asarray(dout))
    assert [set(one) for one in found] == [set(one) for one in weights]
    inputs = {f"{i} {n}": np.float64(a) for i, one in enumerate(weights) for n, a in one.items()}
    expected = differences(swin_loss(dout, 2, (0, 1)), {"x": np.float64(x), **inputs})
    scale = max(np.abs(one).max() for one in expected.values())
    given = {f"{i} {n}": a for i, one in enumerate(found) for n, a in one.items()} | {"x": dx}
    for name, one in given.items():
        assert_agrees(one, expected[name], relative=BLOCK, absolute=1e-6 * scale, name=name)


class Foreign:
    """An array of a library that has DLPack and a namespace."""

    def __init__(self, array):
        self.array = np.asarray(array)
        self.shape, self.reshape = self.array.shape, lambda *s: Foreign(self.array.reshape(*s))

    def __dlpack__(self, **how):
        return self.array.__dlpack__(**how)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()

    def __array_namespace__(self):
        return types.SimpleNamespace(from_dlpack=Foreign)


@pytest.mark.turns(23)
def test_swin_stage_gives_gradients_of_the_callers_kind(no_gpu):
    row = LayerRow((1, 4, 4, 4), 3, 2, side=2, blocks=2)
    (x,), weights = seeded_rows(row.shape, seed=3), [seeded_weights(row, s) for s in (1, 2)]
    stage, dout = SwinStage(weights, row.heads, row.side), normal(*row.shape, seed=6)
    saved = stage.forward(x)[1]
    dx, expected = stage.backward(saved, dout)
    given, found = stage.backward(saved, Foreign(dout))
    np.testing.assert_array_equal(given.array, dx)
    for one, other in zip(found, expected, strict=True):
        for name, array in other.items():
            assert isinstance(one[name], Foreign)
            np.testing.assert_array_equal(one[name].array, array)


def test_swin_stage_by_autograd(no_gpu, monkeypatch):
    """Against PyTorch's own operations on the same stage, in float64."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch_layers, "torch_module", lambda: torch)
    row = LayerRow((2, 8, 12, 12), 20, 3, side=4, blocks=2)
    (x,), weights = seeded_rows(row.shape), [seeded_weights(row, seed) for seed in (4, 5)]
    dout, stage = normal(*row.shape, seed=7), SwinStage(weights, row.heads, row.side)
    _, saved = stage.forward(x)
    dx, found = stage.backward(saved, dout)

    def leaf(array):
        return torch.tensor(np.float64(array), requires_grad=True)

    image, tables = leaf(x), [leaf(one["bias_table"]) for one in weights]
    states = [{key: leaf(array) for key, array in torch_state(one).items()} for one in weights]
    distances = torch.tensor(relative_bias(np.arange(49)[:, None], 4)[0])
    masks = []
    for table, shift in zip(tables, (0, 2), strict=True):
        hidden = torch.tensor(np.float64(shift_mask(8, 12, 4, shift)))[:, None]
        masks.append((table[distances].permute(2, 0, 1) + hidden).repeat(2, 1, 1, 1))
    out = torch_layers.swin_stage(states, masks, row.heads, row.side, image)
    (out * torch.tensor(np.float64(dout))).sum().backward()
    pairs = [(dx, image)]
    for own, state, table in zip(found, states, tables, strict=True):
        pairs.append((own["bias_table"], table))
        pairs += [(array, state[key]) for key, array in torch_state(own).items()]
    for one, tensor in pairs:
        assert_agrees(one, tensor.grad.numpy(), relative=BLOCK, absolute=1e-6)


def test_block_with_weights_left_out():
    row = LayerRow((2, 5, 24), 40, 4)
    (x,), weights = seeded_rows(row.shape), seeded_weights(row, 1)
    few = {name: array for name, array in weights.items() if name[0] == "w" or name == "b_v"}
    full = few | {name: np.zeros_like(weights[name]) for name in weights if name not in few}
    full |= {f"gamma_{i}": np.ones(24, np.float32) for i in "12"}
    gradients = []
    for one in (few, full):
        block = TransformerBlock(one, 4)
        _, saved = block.forward(xp.asarray(x))
        dx, found = block.backward(saved, xp.asarray(x))
        assert set(found) == set(one)
        gradients.append({**found, "x": dx})
    for name, one in gradients[0].items():
        assert_agrees(one, asnumpy(gradients[1][name]), relative=1e-6, name=name)


# -- training --------------------------------------------------------------------------------------
WIDTH, HIDDEN, HEADS = 16, 32, 2
STEPS, RATE, MOMENTUM = 12, 0.01, 0.8


def shades():
    """Windows of the MRI slice, 16 tokens of 4 x 4 pixels, and each window's mean shade.

    Returns x (8, 16, WIDTH) and the means (8,), float32; tokens are embedded with seeded weights.
    """
    image = reference.mri_slice().astype(np.float64)
    windows = image.reshape(16, 16, 16, 16).swapaxes(1, 2).reshape(256, 16, 16)
    chosen = np.argsort(windows.mean(axis=(1, 2)), kind="stable")[80::22]  # dark ones to bright
    windows = (windows[chosen] - image.mean()) / image.std()
    tokens = windows.reshape(8, 4, 4, 4, 4).swapaxes(2, 3).reshape(8, 16, 16)
    rng = np.random.default_rng(0)
    places = 0.5 * rng.standard_normal((1, 16, WIDTH))
    x = tokens @ rng.normal(0, 0.25, (16, WIDTH)) + places
    return x.astype(np.float32), windows.mean(axis=(1, 2)).astype(np.float32)


def training_losses(x, target, weights):
    """Gradient descent with momentum on a block whose first column, averaged, is the shade."""
    weights = {name: array.copy() for name, array in weights.items()}
    velocity = {name: np.zeros_like(array) for name, array in weights.items()}
    losses = []
    for _ in range(STEPS):
        block = TransformerBlock(weights, HEADS)
        out, saved = block.forward(xp.asarray(x))
        error = asnumpy(out)[..., 0].mean(axis=1) - target
        losses.append(float(np.square(error, dtype=np.float64).mean()))
        dout = np.zeros(x.shape, np.float32)
        dout[..., 0] = (2 * error / error.size / x.shape[1])[:, None]
        _, gradients = block.backward(saved, xp.asarray(dout))
        for name, array in weights.items():
            velocity[name] = MOMENTUM * velocity[name] + asnumpy(gradients[name])
            array -= np.float32(RATE) * velocity[name]
    return losses


def torch_losses(torch, x, target, weights):
    """The same by PyTorch."""
    layer = torch.nn.TransformerEncoderLayer(
        WIDTH, HEADS, HIDDEN, 0.0, "gelu", batch_first=True, norm_first=True
    )
    with torch.no_grad():
        for name, array in torch_state(weights).items():
            layer.get_parameter(name).copy_(torch.from_numpy(array))
    optimizer = torch.optim.SGD(layer.parameters(), lr=RATE, momentum=MOMENTUM)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        shade = layer(torch.from_numpy(x))[..., 0].mean(dim=1)
        loss = ((shade - torch.from_numpy(target)) ** 2).mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture(scope="module")
def training():
    """x, target, weights and the losses of the course's block."""
    x, target = shades()
    weights = seeded_weights(LayerRow(x.shape, HIDDEN, HEADS), 1)
    return x, target, weights, training_losses(x, target, weights)


@pytest.mark.turns(23)
def test_a_block_learns_the_mean_shade_of_windows(training):
    x, target, weights, losses = training
    expected = reference.transformer_block(x, weights, heads=HEADS)[..., 0].mean(axis=1)
    assert abs(losses[0] / np.square(expected - target).mean() - 1) < 1e-5
    assert losses[-1] < 0.25 * losses[0]


@pytest.mark.turns(23)
def test_the_loss_curve_is_that_of_pytorch(training):
    torch = pytest.importorskip("torch")
    *problem, losses = training
    np.testing.assert_allclose(losses, torch_losses(torch, *problem), rtol=1e-4)


def test_gradients_of_tensors_are_tensors(no_gpu):
    torch = pytest.importorskip("torch")
    weights = seeded_weights(LayerRow((1, 4, 8), 12, 2), 1)
    block, x = TransformerBlock(weights, 2, backend="simulator"), torch.randn(1, 4, 8)
    out, saved = block.forward(x)
    dx, found = block.backward(saved, torch.ones_like(out))
    assert {type(one) for one in (out, dx, *found.values())} == {torch.Tensor}
    np.testing.assert_allclose(found["b_2"].numpy(), np.full(8, 4.0), rtol=1e-6)


# -- refusals and the sanitizer --------------------------------------------------------------------
def test_arguments_are_refused_by_name():
    x, gamma, w_1 = device(normal(4, 10), normal(10), normal(10, 6))
    wide = xp.zeros((1, steps.WIDEST + 1), np.float32)
    held = ["-DVECTORS=1", "-DWARPS=2", "-DROWS=1"]
    cases = [
        (layer_norm_backward, (x, gamma[:9], x), {}, r"gamma has shape \(9,\), not \(10,\)"),
        (layer_norm_backward, (x, gamma, x[:3]), {}, r"dout has shape \(3, 10\), x \(4, 10\)"),
        (layer_norm_backward, (x, gamma, x), {"dsum": x[:3]}, r"dsum has shape \(3, 10\)"),
        (layer_norm_backward, (x, gamma, x), {"eps": -1}, "eps is -1: .* 0 or more"),
        (layer_norm_backward, (x, gamma, x), {"options": ["-DROWS=64"]}, "ROWS is 64; it can be 1"),
        (
            layer_norm_backward,
            (wide, None, wide),
            {},
            "16385.*_backward holds 16384 at most.*refer",
        ),
        (
            layer_norm_backward,
            (x, None, x),
            {"options": ["-DWARPS=8", "-DROWS=8"]},
            "8 rows of 256 threads are more than 1024: lower ROWS",
        ),
        (
            layer_norm_backward,
            (wide[:, :600].copy(),) * 1 + (None, wide[:, :600].copy()),
            {"options": held},
            "600 numbers, and layernorm_backward with VECTORS=1 and WARPS=2 holds 256: leave",
        ),
        (bias_gelu_backward, (x, gamma[:3], x), {}, r"bias has shape \(3,\), not \(10,\)"),
        (bias_gelu_backward, (x, None, x), {"approximate": "erf"}, "approximate is 'erf'; choose"),
        (mlp_backward, (x, w_1, gamma, w_1.T.copy(), x), {}, r"b_1 has shape \(10,\), not \(6,\)"),
        (mlp_backward, (x, w_1, None, w_1, x), {}, r"w_2 has shape \(10, 6\), not \(6, 10\)"),
    ]
    for function, arguments, more, message in cases:
        with pytest.raises(ValueError, match=message):
            function(*arguments, **more)
    with pytest.raises(TypeError, match=r"dout is float64.*astype"):
        layer_norm_backward(x, None, x.astype(np.float64))


def test_gradients_are_deterministic_where_that_is_asked_for(no_gpu, monkeypatch):
    asked = []

    def request(*given):
        asked.append(given[-1])
        return BackwardRequest(*given)

    monkeypatch.setattr(launches, "BackwardRequest", request)
    row = LayerRow((1, 4, 4, 4), 3, 2, side=2)
    (x,), weights = seeded_rows(row.shape, seed=3), seeded_weights(row, 1)
    block = {name: array for name, array in weights.items() if name != "bias_table"}
    for layer, given in (
        (TransformerBlock(block, row.heads), x[0]),
        (SwinStage([weights], row.heads, row.side), x),
    ):
        _, saved = layer.forward(given)
        layer.backward(saved, given)
        layer.backward(saved, given, deterministic=True)
    assert asked == [False, True, False, True]


def test_a_gradient_of_another_shape_is_refused():
    weights = seeded_weights(LayerRow((1, 4, 8), 12, 2), 1)
    block, x = TransformerBlock(weights, 2), xp.asarray(normal(1, 4, 8))
    _, saved = block.forward(x)
    with pytest.raises(ValueError, match=r"dout has shape \(4, 8\), x \(1, 4, 8\)"):
        block.backward(saved, x[0].copy())
    with pytest.raises(ValueError, match=r"dout has shape \(8,\), .* the last argument that is no"):
        layer_norm_backward(x, x[0, 0], x[0, 0])
    with pytest.raises(TypeError, match=r"not what forward\(\) returns .* out, saved = block.forw"):
        block.backward(x, saved)


@pytest.mark.turns(37)
@pytest.mark.parametrize(
    "options", [(), ("-DVECTORS=1", "-DWARPS=2", "-DROWS=2", "-DBLOCKS=1")], ids=str
)
def test_the_sanitizer_finds_nothing(options, no_gpu):
    """A warp a row, or two of which one has few columns; a block whose last row is missing."""
    x, dx, dvectors = normal(5, 135), np.empty((5, 135), np.float32), np.empty((2, 135), np.float32)
    launches = Launches("simulator")
    norm = x[0].copy(), None, 1e-5
    add_layer_norm_backward(launches, x, norm, normal(5, 135), dx, dvectors, x, options)
    add_bias_gelu_backward(launches, x, x[0].copy(), normal(5, 135), dx, dvectors[0], "none")
    written = (("dx", "sums"), ("out",)) * 2
    for names, (_, call) in zip(written, launches.calls, strict=True):
        with observe(Sanitizer(names)) as report:
            call()
        assert report.findings == []


@pytest.mark.turns(23)
def test_the_sanitizer_finds_nothing_in_a_block(no_gpu):
    row = LayerRow((1, 5, 6), 7, 2)
    (x,), weights = seeded_rows(row.shape), seeded_weights(row, 1)
    block = TransformerBlock(weights, 2, method="flash_rows", backend="simulator")
    with observe(Sanitizer()) as report:
        _, saved = block.forward(x)
        block.backward(saved, x)
    assert report.findings == []


def test_a_gradient_points_uphill():
    """A step along the gradients raises the sum that they are of: layer norm, then GELU."""
    x, gamma, beta, dout = device(*(normal(6, 40, seed=i) for i in range(4)))
    gamma, beta = gamma[0].copy(), beta[0].copy()
    normed = layer_norm(x, gamma, beta)
    dnormed, dbias = bias_gelu_backward(normed, beta, dout)
    dx, dgamma, dbeta = layer_norm_backward(x, gamma, dnormed)
    np.testing.assert_allclose(asnumpy(dbeta), asnumpy(dbias), rtol=1e-5, atol=1e-5)

    def total(*arrays):
        x, gamma, beta, bias = (np.float64(asnumpy(array)) for array in arrays)
        out = reference.gelu(reference.layer_norm(x, gamma, beta) + bias)
        return (asnumpy(dout) * out).sum()

    step, given, slopes = 1e-4, (x, gamma, beta, beta), (dx, dgamma, dbeta, dbias)
    moved = [array + step * slope for array, slope in zip(given, slopes, strict=True)]
    rise = step * sum(float((slope.astype(np.float64) ** 2).sum()) for slope in slopes)
    assert abs((total(*moved) - total(*given)) / rise - 1) < 0.02
    assert bias_gelu(normed, beta).shape == x.shape
