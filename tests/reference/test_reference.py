"""The float64 oracle against hand-worked numbers, loops and identities that it does not use."""

import math

import numpy as np
import pytest

from attn_course import reference


def loop_attention(q, k, v, causal, scale, bias):
    """Attention by scalar loops and math.exp: slow, and written without any array formula."""
    batch, heads, n, d = q.shape
    m, group = k.shape[2], heads // k.shape[1]
    out = np.zeros((batch, heads, n, v.shape[3]))
    for b, h, i in np.ndindex(batch, heads, n):
        seen = [j for j in range(m) if not causal or j <= i + m - n]
        scores = [
            math.fsum(q[b, h, i, c] * k[b, h // group, j, c] for c in range(d)) * scale
            + bias[b, h, i, j]
            for j in seen
        ]
        if not seen or max(scores) == -math.inf:
            continue
        weights = [math.exp(score - max(scores)) for score in scores]
        for c in range(v.shape[3]):
            values = [v[b, h // group, j, c] for j in seen]
            out[b, h, i, c] = math.fsum(map(math.prod, zip(weights, values, strict=True)))
            out[b, h, i, c] /= math.fsum(weights)
    return out


def random_inputs(rng, q_heads=4, kv_heads=2, n=5, m=7, d=3, d_v=2):
    q = rng.normal(0.3, 1.0, (2, q_heads, n, d))
    k = rng.normal(-0.1, 1.2, (2, kv_heads, m, d))
    v = rng.normal(0.5, 0.7, (2, kv_heads, m, d_v))
    bias = rng.normal(0.0, 1.0, (2, q_heads, n, m))
    return q, k, v, bias


def test_three_by_two_by_hand():
    q = np.array([[1.0, 0.0], [0.0, 2.0], [1.0, 1.0]])[None, None]
    scores = reference.attention_scores(q, q[..., ::-1], scale=1.0)[0, 0]
    assert scores.tolist() == [[0.0, 2.0, 1.0], [2.0, 0.0, 2.0], [1.0, 2.0, 2.0]]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "m"), [(5, 7), (7, 5), (1, 4), (4, 1), (6, 6)])
def test_against_loops(causal, n, m):
    rng = np.random.default_rng(n * 10 + m)
    q, k, v, bias = random_inputs(rng, n=n, m=m)
    bias[0, 1, 0, :] = -np.inf  # a fully masked row
    bias[1, 0, :, 0] = -np.inf
    expected = loop_attention(q, k, v, causal, 0.7, bias)
    actual = reference.attention(q, k, v, causal=causal, scale=0.7, bias=bias)
    np.testing.assert_allclose(actual, expected, rtol=1e-12, atol=1e-14)


def test_causal_is_aligned_to_the_end():
    assert reference.causal_mask(2, 4).tolist() == [[True, True, True, False], [True] * 4]
    assert reference.causal_mask(3, 1).tolist() == [[False], [False], [True]]


def test_fully_masked_rows_give_zeros_and_minus_infinity():
    q, k, v, _ = random_inputs(np.random.default_rng(1), n=6, m=2)
    out, lse = reference.attention(q, k, v, causal=True, return_lse=True)
    assert np.all(out[:, :, :4] == 0.0) and np.all(np.isneginf(lse[:, :, :4]))
    assert np.all(np.isfinite(lse[:, :, 4:])) and np.all(out[:, :, 4:] != 0.0)


def test_log_sum_exp_survives_huge_scores():
    lse = reference.log_sum_exp(np.array([[1000.0, 1000.0], [-1000.0, -1000.0], [0.0, -np.inf]]))
    np.testing.assert_allclose(lse, [1000 + math.log(2), -1000 + math.log(2), 0.0], rtol=1e-15)


def test_softmax_rows_sum_to_one():
    scores = np.random.default_rng(2).normal(0, 300, (3, 4, 9))
    np.testing.assert_allclose(reference.softmax(scores).sum(-1), 1.0, rtol=1e-14)


def test_default_scale_and_dtype():
    q, k, v, _ = random_inputs(np.random.default_rng(3), d=16)
    out = reference.attention(np.float32(q), np.float32(k), np.float32(v))
    assert out.dtype == np.float64
    same = reference.attention(np.float32(q), np.float32(k), np.float32(v), scale=0.25)
    np.testing.assert_array_equal(out, same)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 3, 2, 4), (1, 2, 2, 4), (1, 2, 2, 4)), "multiple"),
        (((1, 2, 2, 4), (1, 2, 2, 5), (1, 2, 2, 4)), "head dimension"),
        (((1, 2, 2, 4), (1, 2, 3, 4), (1, 2, 2, 4)), "does not fit"),
        (((2, 2, 4), (1, 2, 3, 4), (1, 2, 2, 4)), "q has shape"),
    ],
)
def test_shapes_that_do_not_belong_together(shapes, message):
    with pytest.raises(ValueError, match=message):
        reference.attention(*(np.ones(shape) for shape in shapes))


def test_layer_norm():
    x = np.array([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])
    out = reference.layer_norm(x, gamma=[1.0, 2.0, 3.0], beta=[0.5, 0.0, -0.5], eps=0.25)
    first = np.array([-2.0, -1.0, 3.0]) / math.sqrt(14 / 3 + 0.25)
    second = np.array([-1.0, -1.0, 2.0]) / math.sqrt(2.0 + 0.25)
    expected = np.stack([first, second]) * [1.0, 2.0, 3.0] + [0.5, 0.0, -0.5]
    np.testing.assert_allclose(out, expected, rtol=1e-14)


def test_gelu_is_x_times_the_normal_distribution():
    # The distribution function from its density by the trapezoidal rule.
    grid = np.linspace(-12.0, 1.5, 200_001)
    density = np.exp(-grid * grid / 2) / math.sqrt(2 * math.pi)
    expected = 1.5 * np.trapezoid(density, grid)
    assert reference.gelu(1.5) == pytest.approx(expected, abs=1e-9)
    assert reference.gelu(0.0) == 0.0 and reference.gelu(-40.0) == 0.0


def test_gelu_tanh_differs_from_erf_by_about_5e4():
    x = np.linspace(-6, 6, 4001)
    difference = np.abs(reference.gelu(x) - reference.gelu(x, approximation="tanh"))
    assert 4e-4 < difference.max() < 6e-4
    with pytest.raises(ValueError, match="choose 'erf' or 'tanh'"):
        reference.gelu(x, approximation="sigmoid")


def block_weights(rng, width, hidden):
    weights = {f"w_{name}": rng.normal(0, 0.3, (width, width)) for name in "qkvo"}
    weights |= {f"b_{name}": rng.normal(0, 0.3, width) for name in "qkvo"}
    weights |= {"w_1": rng.normal(0, 0.3, (width, hidden)), "b_1": rng.normal(0, 0.3, hidden)}
    weights |= {"w_2": rng.normal(0, 0.3, (hidden, width)), "b_2": rng.normal(0, 0.3, width)}
    return weights | {
        f"{name}_{i}": rng.normal(1, 0.2, width) for name in ("gamma", "beta") for i in (1, 2)
    }


def test_block_head_by_head():
    rng = np.random.default_rng(5)
    weights, x = block_weights(rng, 6, 10), rng.normal(0.2, 1.0, (2, 4, 6))
    normed = reference.layer_norm(x, weights["gamma_1"], weights["beta_1"])
    y = x + weights["b_o"]
    for head in range(3):
        columns = slice(2 * head, 2 * head + 2)
        q, k, v = (
            normed @ weights[f"w_{name}"][:, columns] + weights[f"b_{name}"][columns]
            for name in "qkv"
        )
        mixed = reference.attention(q[:, None], k[:, None], v[:, None], causal=True)[:, 0]
        y = y + mixed @ weights["w_o"][columns]
    hidden = reference.layer_norm(y, weights["gamma_2"], weights["beta_2"]) @ weights["w_1"]
    expected = y + reference.gelu(hidden + weights["b_1"]) @ weights["w_2"] + weights["b_2"]
    actual = reference.transformer_block(x, weights, heads=3, causal=True)
    np.testing.assert_allclose(actual, expected, rtol=1e-12)


def test_block_without_biases_and_with_a_bad_head_count():
    weights = {
        key: value
        for key, value in block_weights(np.random.default_rng(6), 6, 8).items()
        if key.startswith("w_")
    }
    x = np.ones((1, 2, 6)) * np.arange(6)
    assert reference.transformer_block(x, weights, heads=2).shape == (1, 2, 6)
    with pytest.raises(ValueError, match="4 heads"):
        reference.transformer_block(x, weights, heads=4)
