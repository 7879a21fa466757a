"""Inputs: windows of the brain MRI slice that matplotlib ships, and seeded random tensors.

The windows are those of a Swin transformer's first stage (Liu et al., arXiv:2103.14030): a token
is a patch of 4 x 4 pixels, a window holds 14 x 14 = 196 tokens, so it spans 56 x 56 pixels.
"""

from dataclasses import dataclass

import numpy as np

from .float64 import layer_norm

SLICE_SHAPE = (256, 256)
PATCH = 4  # pixels a side of a token
WINDOW = 14  # tokens a side of a window
SPAN = PATCH * WINDOW  # pixels a side of a window
TOKENS = WINDOW * WINDOW
EMBEDDED = 96  # channels of an embedded token, as in Swin's smallest model
PLACE_WEIGHT = 0.7  # how much a token's place counts beside its pixels
PLACE_REACH = 4  # tokens over which places look alike


@dataclass(frozen=True)
class MriWindows:
    """Attention inputs cut from the MRI slice.

    Attributes:
        q, k, v: float32 (windows, heads, 196, head_dim).
        window_origins: (row, column) of each window's first pixel, in the order of the batch.
        slice: (256, 256) uint16, the whole image.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    window_origins: tuple[tuple[int, int], ...]
    slice: np.ndarray


def mri_slice() -> np.ndarray:
    """The slice as matplotlib ships it: (256, 256) uint16.

    Raises:
        ValueError: the sample file does not have the size of such a slice.
    """
    from matplotlib.cbook import get_sample_data

    with get_sample_data("s1045.ima.gz") as file:
        content = file.read()
    if len(content) != 2 * SLICE_SHAPE[0] * SLICE_SHAPE[1]:
        raise ValueError(f"s1045.ima.gz holds {len(content)} bytes, not a 256 x 256 uint16 slice")
    return np.frombuffer(content, dtype="<u2").reshape(SLICE_SHAPE)


def brightest_windows(image: np.ndarray, count: int) -> tuple[tuple[int, int], ...]:
    """Origins of the ``count`` windows with the largest sum of pixels, brightest first.

    Candidates do not overlap: they are the cells of a grid of whole windows, centred in the image.
    """
    rows, columns = image.shape[0] // SPAN, image.shape[1] // SPAN
    if not 1 <= count <= rows * columns:
        raise ValueError(f"{count} windows asked for, the image holds 1 to {rows * columns}")
    top, left = (image.shape[0] - rows * SPAN) // 2, (image.shape[1] - columns * SPAN) // 2
    cells = image[top : top + rows * SPAN, left : left + columns * SPAN].astype(np.int64)
    signal = cells.reshape(rows, SPAN, columns, SPAN).sum(axis=(1, 3))
    order = np.argsort(-signal, axis=None, kind="stable")[:count]
    found = (np.unravel_index(cell, signal.shape) for cell in order)
    return tuple((top + SPAN * int(row), left + SPAN * int(column)) for row, column in found)


def window_tokens(image: np.ndarray, origin: tuple[int, int]) -> np.ndarray:
    """The window at ``origin`` as tokens: (196, 16), row by row of 4 x 4 patches."""
    row, column = origin
    window = image[row : row + SPAN, column : column + SPAN]
    patches = window.reshape(WINDOW, PATCH, WINDOW, PATCH).swapaxes(1, 2)
    return patches.reshape(TOKENS, PATCH * PATCH)


def mri_windows(windows=2, heads=12, head_dim=64, seed=0) -> MriWindows:
    """q, k, v of the slice's brightest windows: by default (2, 12, 196, 64), Swin's window case.

    Each token is embedded, a pattern of its place is added and the sum is layer-normed, as a
    vision transformer does; then seeded random weights project it. The key weights are the query
    weights plus noise, so that tokens that are alike and close attend to each other, yet q and k
    differ: a kernel that swaps them is caught.
    """
    image = mri_slice()
    origins = brightest_windows(image, windows)
    tokens = np.stack([window_tokens(image, origin) for origin in origins])
    rng = np.random.default_rng(seed)
    embedded = embedded_tokens(tokens, rng)  # (windows, 196, EMBEDDED)
    size = (heads, EMBEDDED, head_dim)
    spread = EMBEDDED**-0.5  # a projected number is a sum of EMBEDDED terms: variance near 1
    w_q = spread * rng.standard_normal(size)
    w_k = 0.8 * w_q + 0.6 * spread * rng.standard_normal(size)  # 0.8^2 + 0.6^2 = 1
    w_v = spread * rng.standard_normal(size)
    q, k, v = (
        np.ascontiguousarray(embedded[:, None] @ weights, dtype=np.float32)
        for weights in (w_q, w_k, w_v)
    )
    return MriWindows(q, k, v, origins, image)


def embedded_tokens(tokens: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """(windows, 196, 16) pixels -> (windows, 196, EMBEDDED) float64, each token layer-normed.

    Pixels are standardised within their window, so that one window's brightness does not decide
    what another's looks like. A window without contrast keeps its tokens' places, nothing else.
    """
    pixels = tokens.astype(np.float64)
    pixels -= pixels.mean(axis=(1, 2), keepdims=True)
    contrast = pixels.std(axis=(1, 2), keepdims=True)
    pixels /= np.where(contrast > 0, contrast, 1.0)
    weights = rng.standard_normal((PATCH * PATCH, EMBEDDED)) / PATCH
    return layer_norm(pixels @ weights + PLACE_WEIGHT * place_pattern(rng))


def place_pattern(rng: np.random.Generator) -> np.ndarray:
    """(196, EMBEDDED): a pattern for each place of a window; close places have similar ones.

    Every channel is a wave over the window, of random direction, length and phase.
    """
    row, column = np.divmod(np.arange(TOKENS), WINDOW)
    waves = rng.standard_normal((2, EMBEDDED)) / PLACE_REACH
    phases = rng.uniform(0, 2 * np.pi, EMBEDDED)
    return np.sqrt(2) * np.cos(np.stack([row, column], axis=1) @ waves + phases)


def seeded_qkv(
    shape, kv_length=None, seed=0, *, kv_heads=None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random float32 q (B, H, L, D) and k, v (B, kv_heads, kv_length, D) from a seed.

    Asymmetric on purpose: the three differ in mean and spread, no value repeats, so swapped
    operands, heads or axes show in the result.
    """
    batch, heads, length, width = shape
    keys = (batch, kv_heads or heads, length if kv_length is None else kv_length, width)
    rng = np.random.default_rng(seed)
    q = rng.normal(0.1, 1.0, size=(batch, heads, length, width))
    k = rng.normal(-0.2, 0.9, size=keys)
    v = rng.normal(0.3, 1.1, size=keys)
    return q.astype(np.float32), k.astype(np.float32), v.astype(np.float32)
