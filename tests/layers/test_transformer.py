"""The transformer block and the Swin stage against float64, and weights from PyTorch."""

import math
from functools import partial

import numpy as np
import pytest
from kernelscope.backend import array_module, asnumpy
from kernelscope.events import observe
from kernelscope.watch import Sanitizer

from attn_course import SwinStage, TransformerBlock, reference
from attn_course.ladder.methods import UnknownMethod, UnsupportedDtype
from attn_course.layers.swin import relative_bias, shift_mask, window_tokens
from attn_course.layers.transformer import host_weight, torch_weights
from attn_devtools.agreement import assert_agrees
from attn_devtools.bench.layers import LayerRow, seeded_rows, seeded_weights
from attn_devtools.bench.torch_layers import torch_state

pytestmark = pytest.mark.system

xp = array_module()
RELATIVE = 1e-5


def made(row: LayerRow, seed=1):
    """An input and weights."""
    return *seeded_rows(row.shape, seed=seed), seeded_weights(row, seed)


@pytest.mark.turns(23)
@pytest.mark.parametrize(
    ("row", "options"),
    [
        (LayerRow((2, 5, 24), 40, 4), {}),
        (LayerRow((1, 37, 36), 50, 3), {"causal": True, "approximate": "tanh"}),
        (LayerRow((2, 9, 15), 22, 3), {"precision": "tf32x3", "method": "flash_fp32"}),
        (LayerRow((1, 1, 8), 8, 2), {"method": "tiled", "eps": 0.01}),
    ],
    ids=lambda case: getattr(case, "label", str(case)),
)
def test_block(row, options):
    x, weights = made(row)
    block = TransformerBlock(weights, row.heads, **options)
    asked = {name: options[name] for name in ("causal", "eps") if name in options}
    if "approximate" in options:
        asked["approximation"] = options["approximate"]
    expected = reference.transformer_block(x, weights, heads=row.heads, **asked)
    assert_agrees(block(xp.asarray(x)), expected, relative=RELATIVE, name=row.label)


def test_weights_that_are_left_out():
    """No biases and no gammas: zeros and ones. With b_v alone, b_q and b_k are zeros."""
    x, weights = made(LayerRow((2, 5, 24), 40, 4))
    for names in (set(), {"b_v"}):
        few = {n: a for n, a in weights.items() if n.startswith("w_") or n in names}
        out = TransformerBlock(few, 4)(xp.asarray(x))
        expected = reference.transformer_block(x, few, heads=4)
        assert_agrees(out, expected, relative=RELATIVE, name=str(names))


def test_a_plan_reads_its_input_again():
    x, weights = made(LayerRow((2, 5, 24), 40, 4))
    x = xp.asarray(x)
    plan = TransformerBlock(weights, 4).plan(x)
    x *= 2
    expected = reference.transformer_block(asnumpy(x), weights, heads=4)
    assert_agrees(plan(), expected, relative=RELATIVE, name="plan")
    assert [name for name, _ in plan.launches.calls].count("product") == 4


def test_wrong_weights_and_inputs_are_named():
    x, weights = made(LayerRow((2, 5, 24), 40, 4))
    without = {name: array for name, array in weights.items() if name != "w_o"}
    cases = [
        (without, 4, r"lack \['w_o'\]"),
        (weights | {"w_3": x}, 4, r"have \['w_3'\]"),
        (weights | {"w_2": weights["w_1"]}, 4, r"w_2 has shape \(24, 40\), not \(40, 24\)"),
        (weights | {"b_1": weights["b_2"]}, 4, r"b_1 has shape \(24,\), not \(40,\)"),
        (weights | {"w_q": None}, 4, r"lack \['w_q'\]"),
        (weights, 5, "a width of 24 does not divide into 5 heads"),
        (weights, 0, "a width of 24 does not divide into 0 heads"),
    ]
    for given, heads, message in cases:
        with pytest.raises(ValueError, match=message):
            TransformerBlock(given, heads)
    with pytest.raises(ValueError, match=r"x has shape \(2, 24\), not \(B, L, 24\)"):
        TransformerBlock(weights, 4)(xp.asarray(x[:, 0].copy()))


WEIGHTS = made(LayerRow((1, 4, 4, 24), 40, 4, side=2))[1]
BLOCK = {name: array for name, array in WEIGHTS.items() if name != "bias_table"}
NARROW = seeded_weights(LayerRow((1, 4, 4, 12), 20, 4, side=2), 1)
STATE = torch_state(BLOCK)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (partial(TransformerBlock, [BLOCK], 4), TypeError, "weights is list, not a mapping"),
        (partial(TransformerBlock, BLOCK, 4.0), TypeError, "heads is 4.0, a float: pass an int"),
        (partial(TransformerBlock, BLOCK, "4"), TypeError, "heads is '4', a str: pass an int"),
        (
            partial(TransformerBlock, BLOCK | {"w_o": "zeros"}, 4),
            TypeError,
            "w_o is str: pass an array of real numbers",
        ),
        (
            partial(TransformerBlock, BLOCK | {"b_1": np.zeros(40, complex)}, 4),
            TypeError,
            "b_1 is an array of complex128: pass an array of real",
        ),
        (partial(TransformerBlock, BLOCK | {"w_q": [[1.0], [2.0, 3.0]]}, 4), TypeError, "w_q is l"),
        (partial(TransformerBlock, BLOCK, 4, eps="1e-5"), TypeError, "eps is '1e-5', a str: pass"),
        (partial(TransformerBlock, BLOCK, 4, eps=-1e-5), ValueError, "eps is -1e-05.* 0 or more"),
        (partial(TransformerBlock, BLOCK, 4, eps=math.nan), ValueError, "eps is nan: .*1e-5"),
        (partial(TransformerBlock, BLOCK, 4, eps=1e39), ValueError, r"eps is 1e\+39: .*finite"),
        (
            partial(TransformerBlock, BLOCK, 4, method="flash_mma"),
            UnsupportedDtype,
            "'flash_mma' takes bfloat16 or float16, and a block computes in float32: pass "
            'method="auto", or one of naive.*flash_tf32x3',
        ),
        (partial(TransformerBlock, BLOCK, 4, method="flsh_mma"), UnknownMethod, "did you mean"),
        (partial(SwinStage, WEIGHTS, 4, 2), TypeError, "weights is dict, not a sequence of mapp"),
        (partial(SwinStage, [WEIGHTS, "w"], 4, 2), TypeError, r"weights\[1\] is str, not a mapp"),
        (partial(SwinStage, [WEIGHTS], 4.0, 2), TypeError, "heads is 4.0, a float"),
        (partial(SwinStage, [WEIGHTS], 4, 2.0), TypeError, "side is 2.0, a float"),
        (partial(SwinStage, [BLOCK | {"bias_table": "b"}], 4, 2), TypeError, "bias_table is str"),
        (
            partial(SwinStage, [WEIGHTS, NARROW], 4, 2),
            ValueError,
            r"weights\[1\] are of width 12, weights\[0\] of width 24: .*a stage for each",
        ),
        (partial(torch_weights, [1]), TypeError, r"state_dict is list, .*state_dict\(\) returns"),
        (
            partial(torch_weights, STATE | {"self_attn.in_proj_weight": np.ones((70, 24))}),
            ValueError,
            r"self_attn.in_proj_weight has shape \(70, 24\), not \(72, 24\): .*d_model is 24",
        ),
        (
            partial(torch_weights, STATE | {"norm2.bias": np.ones(23)}),
            ValueError,
            r"norm2.bias has shape \(23,\), not \(24,\): .*linear1.weight.*\(40, 24\)",
        ),
        (
            partial(torch_weights, STATE | {"linear1.weight": np.ones(40)}),
            ValueError,
            r"linear1.weight has shape \(40,\)",
        ),
    ],
)
def test_each_refusal_names_the_argument_and_the_way_out(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.turns(23)
def test_the_sanitizer_finds_nothing(no_gpu):
    x, weights = made(LayerRow((1, 5, 6), 7, 2))
    block = TransformerBlock(
        weights, 2, method="flash_rows", precision="tf32x3", backend="simulator"
    )
    with observe(Sanitizer()) as report:
        block(x)
    assert report.findings == []


# -- PyTorch's weights -----------------------------------------------------------------------------
def encoder_layer(x, state, heads):
    """torch.nn.TransformerEncoderLayer(norm_first=True, activation="gelu") in eval(), as its
    documentation defines it: matrices act from the left, heads are cut from the features.
    """

    def linear(value, name):
        return value @ state[f"{name}.weight"].T + state[f"{name}.bias"]

    def norm(value, name):
        return reference.layer_norm(value, state[f"{name}.weight"], state[f"{name}.bias"])

    batch, length, width = x.shape
    joined = norm(x, "norm1") @ state["self_attn.in_proj_weight"].T
    joined = (joined + state["self_attn.in_proj_bias"]).reshape(batch, length, 3, heads, -1)
    q, k, v = joined.transpose(2, 0, 3, 1, 4)
    mixed = reference.attention(q, k, v).transpose(0, 2, 1, 3).reshape(x.shape)
    x = x + linear(mixed, "self_attn.out_proj")
    return x + linear(reference.gelu(linear(norm(x, "norm2"), "linear1")), "linear2")


def test_the_state_of_an_encoder_layer():
    rng = np.random.default_rng(3)
    shapes = {
        "self_attn.in_proj_weight": (72, 24),
        "self_attn.in_proj_bias": (72,),
        "self_attn.out_proj.weight": (24, 24),
        "self_attn.out_proj.bias": (24,),
        "linear1.weight": (40, 24),
        "linear1.bias": (40,),
        "linear2.weight": (24, 40),
        "linear2.bias": (24,),
    } | {f"norm{i}.{name}": (24,) for i in (1, 2) for name in ("weight", "bias")}
    state = {name: rng.normal(0.1, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    (x,) = seeded_rows((2, 7, 24))
    block = TransformerBlock.from_torch_state(state, 4)
    assert_agrees(block(xp.asarray(x)), encoder_layer(x, state, 4), relative=RELATIVE, name="torch")
    again = torch_state(torch_weights(state))
    assert set(again) == set(state)
    assert all((again[name] == array).all() for name, array in state.items())


def test_a_state_without_biases_and_one_of_another_layer():
    _, weights = made(LayerRow((1, 2, 8), 12, 2))
    state = torch_state(weights)
    few = {name: array for name, array in state.items() if "bias" not in name}
    assert set(torch_weights(few)) == {n for n in weights if n[0] in "wg"}
    with pytest.raises(ValueError, match="no 'self_attn.in_proj_weight': it is not that of"):
        torch_weights({"linear1.weight": weights["w_1"]})
    with pytest.raises(ValueError, match=r"\['multihead_attn.weight'\], which no"):
        torch_weights(state | {"multihead_attn.weight": weights["w_1"]})
    for key, words in (
        ("norm2.weight", "it is not that of a torch.nn.TransformerEncoderLayer"),
        ("linear1.bias", "has all of its biases, or with bias=False none"),
    ):
        less = {name: array for name, array in state.items() if name != key}
        with pytest.raises(ValueError, match=f"no '{key}': .*{words}"):
            torch_weights(less)
    stacked = {f"layers.0.{name}": array for name, array in state.items()}
    with pytest.raises(ValueError, match=r"it has 'layers.0.*pass the state_dict\(\) of one"):
        torch_weights(stacked)


class Tensor:
    """As much of PyTorch's as a state is read through; its dtypes have no kind."""

    def __init__(self, array, dtype):
        self.array, self.dtype, self.converted = array, dtype, False

    def detach(self):
        return self

    def cpu(self):
        return self

    def float(self):
        self.converted = True
        return self

    def numpy(self):
        if self.dtype == "torch.bfloat16" and not self.converted:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.array


def test_tensors_of_any_real_dtype_are_read():
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for dtype in ("torch.float32", "torch.bfloat16", "torch.float64"):
        found = host_weight("w", Tensor(array, dtype))
        assert found.tolist() == array.tolist() and not np.shares_memory(found, array)
    with pytest.raises(TypeError, match=r"w is an array of torch.complex64: pass .* real numbers"):
        host_weight("w", Tensor(array, "torch.complex64"))
    with pytest.raises(TypeError, match="w is an array of datetime64"):
        host_weight("w", np.zeros((2, 3), "datetime64[s]"))
    with pytest.raises(TypeError, match=r"w is a masked array.*w.filled"):
        host_weight("w", np.ma.masked_array(array, array > 1))


@pytest.mark.turns(11)
def test_a_block_keeps_the_weights_of_its_making():
    row = LayerRow((1, 2, 8), 12, 2)
    (x,), weights = seeded_rows(row.shape), {n: a.copy() for n, a in seeded_weights(row, 0).items()}
    state = torch_state(weights)
    for made_of, block in (
        (weights, TransformerBlock(weights, 2)),
        (state, TransformerBlock.from_torch_state(state, 2)),
    ):
        expected = asnumpy(block(xp.asarray(x)))
        for array in made_of.values():
            array *= 2
        np.testing.assert_array_equal(asnumpy(block(xp.asarray(x))), expected)


# -- windows ---------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "row",
    [
        LayerRow((2, 8, 12, 12), 20, 3, side=4, blocks=2),
        LayerRow((1, 6, 9, 8), 16, 2, side=3, blocks=2),
        LayerRow((1, 4, 4, 8), 16, 2, side=4, blocks=2),
    ],
    ids=lambda row: row.label,
)
def test_swin_stage(row):
    (x,) = seeded_rows(row.shape)
    weights = [seeded_weights(row, seed) for seed in range(row.blocks)]
    out = SwinStage(weights, row.heads, row.side)(xp.asarray(x))
    expected = x
    for number, one in enumerate(weights):
        shift = row.side // 2 if number % 2 and min(row.shape[1:3]) > row.side else 0
        expected = reference.swin_block(expected, one, heads=row.heads, side=row.side, shift=shift)
    assert_agrees(out, expected, relative=RELATIVE, name=row.label)


def test_windows_without_a_bias_table():
    row = LayerRow((1, 4, 8, 8), 16, 2, side=4)
    (x,) = seeded_rows(row.shape)
    weights = {n: a for n, a in seeded_weights(row, 0).items() if n != "bias_table"}
    plan = SwinStage([weights], 2, 4).plan(xp.asarray(x))
    expected = reference.swin_block(x, weights, heads=2, side=4)
    assert_agrees(plan(), expected, relative=RELATIVE, name="no table")


def test_window_tokens_of_a_shifted_image():
    """4 x 4 tokens, windows of 2, shifted by 1: the first begins at token (1, 1)."""
    tokens = window_tokens(4, 4, 2, 1)
    assert tokens.tolist() == [[5, 6, 9, 10], [7, 4, 11, 8], [13, 14, 1, 2], [15, 12, 3, 0]]
    seen = shift_mask(4, 4, 2, 1) == 0
    assert seen[0].all()
    assert seen[1].tolist() == [[True, False] * 2, [False, True] * 2] * 2
    assert (seen[3] == np.eye(4, dtype=bool)).all()  # its tokens are in four corners of the image


def test_a_bias_for_each_distance():
    table = np.arange(9.0)[:, None]  # side 2: distances -1 to 1 along both axes
    bias = relative_bias(table, 2)[0]
    assert bias[0].tolist() == [4, 3, 1, 0]  # query (0, 0), keys (0, 0), (0, 1), (1, 0), (1, 1)
    assert bias[3].tolist() == [8, 7, 5, 4]


def test_windows_are_refused_by_name():
    row = LayerRow((1, 6, 8, 8), 16, 2, side=4)
    (x,), weights = seeded_rows(row.shape), seeded_weights(row, 0)
    with pytest.raises(
        ValueError, match="x has 6 x 8 tokens, no multiple of windows of 4 x 4: crop"
    ):
        SwinStage([weights], 2, 4)(xp.asarray(x))
    with pytest.raises(ValueError, match=r"bias_table has shape \(49, 2\), not \(25, 2\)"):
        SwinStage([weights], 2, 3)
    with pytest.raises(ValueError, match="w_q") as caught:
        SwinStage([weights, weights | {"w_q": weights["w_k"][:3]}], 2, 4)
    assert "weights[1]" in caught.value.__notes__[0]
    with pytest.raises(ValueError, match=r"bias_table has shape \(49, 2\), not \(25, heads\)"):
        relative_bias(weights["bias_table"], 3)
    with pytest.raises(ValueError, match="another side of 1 or more"):
        window_tokens(4, 4, 0)
    with pytest.raises(ValueError, match="a stage of 0 blocks"):
        SwinStage([], 2, 4)
    with pytest.raises(ValueError, match="side 0: both are at least 1"):
        SwinStage([weights], 2, 0)
    with pytest.raises(ValueError, match="no causal order"):
        SwinStage([weights], 2, 4, causal=True)
