"""The inputs are what they say they are."""

import numpy as np
import pytest

from attn_course import reference
from attn_course.reference import inputs as data


@pytest.fixture(scope="module")
def windows():
    return data.mri_windows()


def test_slice():
    image = data.mri_slice()
    assert image.shape == (256, 256) and image.dtype == np.uint16
    assert image[0, 0] == 0 or image.max() > 100 * image[0, 0]  # a dark corner, a bright head
    assert image.max() > 10_000


def test_windows_have_the_swin_shape(windows):
    for array in (windows.q, windows.k, windows.v):
        assert array.shape == (2, 12, 196, 64)
        assert array.dtype == np.float32 and array.flags.c_contiguous
        assert np.isfinite(array).all() and 0.5 < array.std() < 2.0
    assert not np.array_equal(windows.q, windows.k)
    assert not np.array_equal(windows.q[0], windows.q[1])
    assert not np.array_equal(windows.q[:, 0], windows.q[:, 1])


def test_windows_are_seeded(windows):
    again, other = data.mri_windows(), data.mri_windows(seed=1)
    np.testing.assert_array_equal(again.q, windows.q)
    assert not np.array_equal(other.q, windows.q)


def test_no_window_looks_at_a_few_tokens_only(windows):
    """Maps over the slice tell something: attention neither collapses nor spreads evenly."""
    for window in range(2):
        q, k = windows.q[window].astype(np.float64), windows.k[window].astype(np.float64)
        p = reference.softmax(q @ k.swapaxes(-1, -2) / 8)  # (12, 196, 196)
        spread = np.exp(-(p * np.log(p)).sum(axis=-1))  # tokens a query looks at, in effect
        assert 30 < spread.mean() < 100 and np.percentile(spread, 5) > 10
        taken = p.mean(axis=(0, 1)) * 196  # what a token gets, 1 when all get alike
        assert taken.max() < 5


def test_tokens_are_layer_normed():
    tokens = np.stack([data.window_tokens(data.mri_slice(), (72, column)) for column in (72, 128)])
    embedded = data.embedded_tokens(tokens, np.random.default_rng(3))
    assert embedded.shape == (2, 196, data.EMBEDDED)
    np.testing.assert_allclose(embedded.mean(axis=-1), 0, atol=1e-12)
    np.testing.assert_allclose(embedded.std(axis=-1), 1, rtol=1e-3)
    brighter = data.embedded_tokens(tokens * 1.5 + 100, np.random.default_rng(3))
    np.testing.assert_allclose(brighter, embedded, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("grey", [0, 41_000])
def test_a_window_without_contrast_gives_places_only(grey):
    tokens = np.full((1, 196, 16), grey, np.uint16)
    embedded = data.embedded_tokens(tokens, np.random.default_rng(3))
    assert np.isfinite(embedded).all()
    dark = data.embedded_tokens(np.zeros_like(tokens), np.random.default_rng(3))
    np.testing.assert_array_equal(embedded, dark)


def test_close_places_are_alike():
    place = data.place_pattern(np.random.default_rng(3))
    assert place.shape == (196, data.EMBEDDED)
    likeness = np.corrcoef(place)
    middle = 14 * 7 + 7
    assert likeness[middle, middle + 1] > 0.9 > 0.5 > likeness[middle, middle + 6]
    assert likeness[middle, middle + 14] > 0.9 and abs(likeness[0, 195]) < 0.4


def test_windows_are_the_brightest(windows):
    image = windows.slice.astype(np.int64)
    cells = [(16 + 56 * row, 16 + 56 * column) for row in range(4) for column in range(4)]
    sums = {(r, c): image[r : r + 56, c : c + 56].sum() for r, c in cells}
    ranked = sorted(sums, key=sums.get, reverse=True)
    assert list(windows.window_origins) == ranked[:2]
    with pytest.raises(ValueError, match="1 to 16"):
        data.brightest_windows(windows.slice, 17)


def test_tokens_are_patches_row_by_row():
    image = np.arange(256 * 256).reshape(256, 256)
    tokens = data.window_tokens(image, (16, 72))
    assert tokens.shape == (196, 16)
    for token in (0, 1, 14, 195):
        row, column = 16 + 4 * (token // 14), 72 + 4 * (token % 14)
        expected = image[row : row + 4, column : column + 4].ravel()
        np.testing.assert_array_equal(tokens[token], expected)


def test_seeded_qkv():
    q, k, v = data.seeded_qkv((2, 3, 5, 7), kv_length=4, seed=3)
    assert q.shape == (2, 3, 5, 7) and k.shape == v.shape == (2, 3, 4, 7)
    assert q.dtype == k.dtype == v.dtype == np.float32
    values = np.concatenate([q.ravel(), k.ravel(), v.ravel()])
    assert np.unique(values).size == values.size  # nothing repeats: a swap cannot go unseen
    np.testing.assert_array_equal(q, data.seeded_qkv((2, 3, 5, 7), kv_length=4, seed=3)[0])
    assert data.seeded_qkv((1, 1, 5, 2))[1].shape == (1, 1, 5, 2)
