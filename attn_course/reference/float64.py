"""Attention and the rest of a transformer block in plain float64 NumPy.

This is the oracle that every kernel is checked against, so it favours formulas over speed and
imports nothing of the course. All functions take array-likes and return float64.
"""

import math

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])


def _as_float64(name: str, array, dimensions: int) -> np.ndarray:
    array = np.asarray(array, dtype=np.float64)
    if array.ndim != dimensions:
        raise ValueError(f"{name} has shape {array.shape}; it needs {dimensions} dimensions")
    return array


def _repeat_heads(name: str, array: np.ndarray, query_heads: int) -> np.ndarray:
    """(B, H_kv, m, d) -> (B, H, m, d): each key/value head serves H / H_kv query heads in a row."""
    heads = array.shape[1]
    if heads == 0 or query_heads % heads:
        raise ValueError(f"q has {query_heads} heads, not a multiple of the {heads} of {name}")
    return np.repeat(array, query_heads // heads, axis=1)


def causal_mask(queries: int, keys: int) -> np.ndarray:
    """(n, m) bool, True where query i may see key j: j <= i + (m - n).

    The last query sees every key (aligned to the end). With more queries than keys the first
    n - m queries see nothing at all.
    """
    return np.arange(keys)[None, :] <= np.arange(queries)[:, None] + (keys - queries)


def attention_scores(q, k, *, causal=False, scale=None, bias=None) -> np.ndarray:
    """Scaled, biased and masked scores, float64 (B, H, n, m); -inf where a key is masked.

    q (B, H, n, d), k (B, H_kv, m, d); scale defaults to 1/sqrt(d); bias broadcasts to
    (B, H, n, m) and is added after scaling.
    """
    q = _as_float64("q", q, 4)
    k = _repeat_heads("k", _as_float64("k", k, 4), q.shape[1])
    if q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise ValueError(f"q {q.shape} and k {k.shape} differ in batch or head dimension")
    scale = 1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    scores = (q @ k.swapaxes(-1, -2)) * scale
    if bias is not None:
        scores = scores + np.asarray(bias, dtype=np.float64)
    if causal:
        scores = np.where(causal_mask(q.shape[2], k.shape[2]), scores, -np.inf)
    return scores


def softmax(scores) -> np.ndarray:
    """Softmax over the last axis; a row of -inf gives zeros."""
    scores = np.asarray(scores, dtype=np.float64)
    maximum = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isneginf(maximum), 0.0, maximum))
    total = weights.sum(axis=-1, keepdims=True)
    return weights / np.where(total == 0.0, 1.0, total)


def log_sum_exp(scores) -> np.ndarray:
    """Natural logarithm of the sum of exponentials over the last axis; -inf for a row of -inf."""
    scores = np.asarray(scores, dtype=np.float64)
    maximum = scores.max(axis=-1)
    shift = np.where(np.isneginf(maximum), 0.0, maximum)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(scores - shift[..., None]).sum(axis=-1)) + shift


def attention(q, k, v, *, causal=False, scale=None, bias=None, return_lse=False):
    """softmax(q k^T * scale + bias) v in float64.

    Args:
        q: (B, H, n, d).  k: (B, H_kv, m, d).  v: (B, H_kv, m, d_v); H a multiple of H_kv.
        causal: query i sees key j only where j <= i + (m - n).
        scale: defaults to 1/sqrt(d).
        bias: added to the scaled scores; broadcasts to (B, H, n, m); -inf masks a key.
        return_lse: also return the log-sum-exp of the scores, (B, H, n).

    Returns:
        (B, H, n, d_v), zeros in rows that see no key; with ``return_lse`` a pair.

    Raises:
        ValueError: shapes that do not belong together.
    """
    scores = attention_scores(q, k, causal=causal, scale=scale, bias=bias)
    v = _repeat_heads("v", _as_float64("v", v, 4), scores.shape[1])
    if v.shape[0] != scores.shape[0] or v.shape[2] != scores.shape[3]:
        raise ValueError(f"v {v.shape} does not fit scores of shape {scores.shape}")
    out = softmax(scores) @ v
    return (out, log_sum_exp(scores)) if return_lse else out


def attention_backward(q, k, v, dout, *, causal=False, scale=None, bias=None, return_dbias=False):
    """Gradients of the sum of dout * attention(q, k, v, ...), in float64.

    Args:
        q, k, v, causal, scale, bias: as for attention().
        dout: (B, H, n, d_v), the gradient of its output.
        return_dbias: also return the gradient of the biased scores, (B, H, n, m); that of a bias
            is its sum over the axes along which the bias was broadcast.

    Returns:
        dq, dk, dv, like q, k and v.
    """
    q, dout = _as_float64("q", q, 4), _as_float64("dout", dout, 4)
    scale = 1.0 / math.sqrt(q.shape[3]) if scale is None else float(scale)
    p = softmax(attention_scores(q, k, causal=causal, scale=scale, bias=bias))
    wide_k, wide_v = (_repeat_heads("k", np.asarray(x, np.float64), q.shape[1]) for x in (k, v))
    dp = dout @ wide_v.swapaxes(-1, -2)
    ds = p * (dp - (p * dp).sum(axis=-1, keepdims=True))

    def over_groups(gradient):  # (B, H, m, d) -> (B, H_kv, m, d)
        batch, _, keys, width = gradient.shape
        return gradient.reshape(batch, np.shape(k)[1], -1, keys, width).sum(axis=2)

    dk, dv = (over_groups(x.swapaxes(-1, -2) @ y) for x, y in ((ds, scale * q), (p, dout)))
    gradients = scale * (ds @ wide_k), dk, dv
    return (*gradients, ds) if return_dbias else gradients


def layer_norm(x, gamma=None, beta=None, *, eps=1e-5) -> np.ndarray:
    """(x - mean) / sqrt(variance + eps) * gamma + beta over the last axis; biased variance."""
    x = np.asarray(x, dtype=np.float64)
    centred = x - x.mean(axis=-1, keepdims=True)
    out = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    if gamma is not None:
        out = out * np.asarray(gamma, dtype=np.float64)
    return out if beta is None else out + np.asarray(beta, dtype=np.float64)


def gelu(x, *, approximation="erf") -> np.ndarray:
    """x times the normal distribution function of x (Hendrycks and Gimpel, arXiv:1606.08415).

    approximation: ``"erf"``, the definition, or ``"tanh"``, the paper's approximation.
    """
    x = np.asarray(x, dtype=np.float64)
    if approximation == "erf":
        return 0.5 * x * (1.0 + _erf(x / math.sqrt(2.0)))
    if approximation == "tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    raise ValueError(f"approximation {approximation!r}: choose 'erf' or 'tanh'")


def layer_norm_backward(x, gamma, dout, *, eps=1e-5):
    """Gradients of sum(dout * layer_norm(x, gamma, beta)): dx like x, dgamma and dbeta (d,).

    x, dout: (..., d).  gamma: (d,) or None, ones.
    """
    x, dout = np.asarray(x, np.float64), np.asarray(dout, np.float64)
    centred = x - x.mean(axis=-1, keepdims=True)
    inverse = 1.0 / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + eps)
    normed, over = centred * inverse, tuple(range(x.ndim - 1))
    scaled = dout if gamma is None else dout * np.asarray(gamma, np.float64)
    along = (scaled * normed).mean(axis=-1, keepdims=True)
    dx = inverse * (scaled - scaled.mean(axis=-1, keepdims=True) - normed * along)
    return dx, (dout * normed).sum(axis=over), dout.sum(axis=over)


def gelu_backward(x, dout, *, approximation="erf") -> np.ndarray:
    """dout times the derivative of gelu(x, approximation=...), an array like x."""
    x = np.asarray(x, dtype=np.float64)
    if approximation == "erf":
        density = np.exp(-0.5 * x**2) / math.sqrt(2.0 * math.pi)
        slope = 0.5 * (1.0 + _erf(x / math.sqrt(2.0))) + x * density
    elif approximation == "tanh":
        factor = math.sqrt(2.0 / math.pi)
        t = np.tanh(factor * (x + 0.044715 * x**3))
        slope = 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t**2) * factor * (1.0 + 3 * 0.044715 * x**2)
    else:
        raise ValueError(f"approximation {approximation!r}: choose 'erf' or 'tanh'")
    return slope * np.asarray(dout, dtype=np.float64)


def _split_heads(x: np.ndarray, heads: int) -> np.ndarray:
    batch, length, width = x.shape
    if width % heads:
        raise ValueError(f"a width of {width} does not divide into {heads} heads")
    return x.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)


def transformer_block(x, weights, *, heads, causal=False, eps=1e-5, approximation="erf"):
    """A pre-norm transformer block: x + attention(norm(x)), then y + mlp(norm(y)).

    Args:
        x: (B, L, E).
        weights: mapping of names to arrays. Matrices act from the right: ``w_q``, ``w_k``,
            ``w_v``, ``w_o`` (E, E), ``w_1`` (E, F), ``w_2`` (F, E). Optional: their biases
            ``b_q`` .. ``b_2`` and the norms' ``gamma_1``, ``beta_1``, ``gamma_2``, ``beta_2`` (E,).
        heads: E is divided into this many heads.

    Returns:
        (B, L, E) float64.
    """
    x = _as_float64("x", x, 3)

    def mix(q, k, v):
        q, k, v = (_split_heads(array, heads) for array in (q, k, v))
        mixed = attention(q, k, v, causal=causal)  # (B, H, L, E / H)
        return mixed.transpose(0, 2, 1, 3).reshape(x.shape)

    return _pre_norm(x, weights, mix, eps, approximation)


def _pre_norm(x, weights, mix, eps, approximation) -> np.ndarray:
    """The pre-norm block of x (.., E) whose attention is mix(q, k, v), all (.., E)."""

    def linear(name, value):
        return value @ np.asarray(weights[f"w_{name}"], np.float64) + weights.get(f"b_{name}", 0.0)

    def norm(number, value):
        gamma, beta = weights.get(f"gamma_{number}"), weights.get(f"beta_{number}")
        return layer_norm(value, gamma, beta, eps=eps)

    normed = norm(1, x)
    y = x + linear("o", mix(*(linear(name, normed) for name in "qkv")))
    return y + linear("2", gelu(linear("1", norm(2, y)), approximation=approximation))


def _windows(image: np.ndarray, side: int) -> np.ndarray:
    """(B, height, width, C) -> (B * windows, side * side, C), windows in the order of rows."""
    batch, height, width, channels = image.shape
    cut = image.reshape(batch, height // side, side, width // side, side, channels)
    return cut.transpose(0, 1, 3, 2, 4, 5).reshape(-1, side * side, channels)


def swin_block(x, weights, *, heads, side, shift=0, eps=1e-5, approximation="erf"):
    """A pre-norm block with attention in windows (Liu et al., arXiv:2103.14030).

    Args:
        x: (B, height, width, E), height and width multiples of `side`.
        weights: as for transformer_block; ``bias_table`` ((2 side - 1)^2, heads), optional, holds
            the bias of the scores for each distance (dy, dx) of query and key, dy first.
        shift: the image is rolled by -shift along both axes before it is cut into windows. A token
            sees those of its window that are in the same part of the image.

    Returns:
        (B, height, width, E) float64.
    """
    x = _as_float64("x", x, 4)
    batch, height, width, _ = x.shape
    table = weights.get("bias_table")
    bias = np.zeros((1, heads, side * side, side * side))
    if table is not None:
        for i, j in np.ndindex(side * side, side * side):
            dy, dx = i // side - j // side, i % side - j % side
            bias[0, :, i, j] = table[(dy + side - 1) * (2 * side - 1) + dx + side - 1]
    part = np.zeros((1, height, width, 1))  # a number for each part of the rolled image
    cuts = (slice(0, -side), slice(-side, -shift or None), slice(-shift, None) if shift else None)
    for number, (rows, columns) in enumerate((r, c) for r in cuts for c in cuts):
        if rows is not None and columns is not None:
            part[0, rows, columns] = number
    part = _windows(part, side)[..., 0]  # (windows, n)
    hidden = np.where(part[:, :, None] == part[:, None, :], 0.0, -np.inf)[:, None]

    def cut(array):
        rolled = np.roll(array, (-shift, -shift), axis=(1, 2))
        return _split_heads(_windows(rolled, side), heads)

    def mix(q, k, v):
        mixed = attention(*map(cut, (q, k, v)), bias=bias + np.tile(hidden, (batch, 1, 1, 1)))
        image = mixed.transpose(0, 2, 1, 3).reshape(
            batch, height // side, width // side, side, side, -1
        )
        image = image.transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)
        return np.roll(image, (shift, shift), axis=(1, 2))

    return _pre_norm(x, weights, mix, eps, approximation)
