"""What the kernels of held_out_fifth/ should give at small shapes, by NumPy."""

from itertools import permutations

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


@at(rows=3, columns=300)
def layer_norm_backward(dy, x, weight, mean, rstd, _, columns):
    g = dy.reshape(-1, columns).astype(np.float64) * weight
    mean, rstd = (v[: len(g), None].astype(np.float64) for v in (mean, rstd))
    unit = (x[: g.size].reshape(-1, columns) - mean) * rstd
    along = (g * unit).mean(1, keepdims=True)
    return {5: (rstd * (g - g.mean(1, keepdims=True) - unit * along)).ravel()}


@at(rows=70, columns=1024)
def gemv_4bit(packed, scale, x, _y, rows, columns):
    """Products of eight pairs, whose sums are rounded to half each time, and then in full."""
    q = (packed[:, None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15).astype(np.float64) - 8
    q, x = q.reshape(rows, -1, 2, 4), x.astype(np.float64).reshape(-1, 2, 4)
    part = np.zeros(q.shape[:3])
    for i in range(4):
        part = (part + q[..., i] * x[..., i]).astype(np.float16).astype(np.float64)
    groups = part.reshape(rows, columns // 64, -1).sum(2)
    return {3: (groups * scale.reshape(rows, -1)).sum(1).astype(np.float16)}


@at(pages=3, heads=2)
def rope_to_cache(key, value, turn, skipped, key_cache, value_cache, heads):
    keys, values = key_cache.reshape(-1, 16, heads, 128), value_cache.reshape(-1, 16, heads, 64)
    low, high = np.split(key.reshape(-1, 16, heads, 128).astype(np.float64), 2, axis=-1)
    cosine, sine = np.moveaxis(turn.reshape(-1, 16, 1, 64, 2), -1, 0)
    page = np.arange(len(skipped)) + skipped
    turned = low * cosine - high * sine, high * cosine + low * sine
    keys[page] = np.concatenate(turned, -1).astype(np.float16)
    values[page] = value.reshape(-1, 16, heads, 64)
    return {4: key_cache, 5: value_cache}


@at(heads=2, rows=64)
def online_queries(q, k, v, _, rows):
    q, k, v = (w[: q.size].reshape(-1, rows, 32).astype(np.float64) for w in (q, k, v))
    share = np.exp(q @ k.transpose(0, 2, 1) / np.sqrt(32))
    return {3: (share @ v / share.sum(-1, keepdims=True)).ravel()}


@at(channels=3, height=12, width=18)
def winograd_input(x, _, channels, height, width):
    images = np.pad(x.reshape(-1, height, width).astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    tiles = np.lib.stride_tricks.sliding_window_view(images, (4, 4), axis=(1, 2))[:, ::2, ::2]
    left = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    factors = left @ tiles.reshape(channels, -1, 4, 4) @ left.T
    return {1: np.moveaxis(factors.reshape(channels, -1, 16), -1, 0).ravel()}


@at(samples=3, channels=4, area=300)
def channel_moments(x, _mean, _variance, samples, channels, area):
    x = x.reshape(samples, channels, area).astype(np.float64)
    return {1: x.mean((0, 2)), 2: x.var((0, 2))}


@at(words=50, bags=9)
def bag_mean(table, word, first, _, bags):
    rows, found = table.reshape(-1, 64).astype(np.float64), np.zeros((bags, 64))
    assert first[-1] <= len(word)
    for b in range(bags):
        own = word[first[b] : first[b + 1]]
        found[b] = rows[own].sum(0) / max(1, len(own))
    return {3: found.ravel()}


@at(nodes=40, edges=700)
def edge_exponentials(source, target, source_score, target_score, _weight, _total, edges):
    target, a = target[:edges], source_score.reshape(-1, 4).astype(np.float64)
    v = a[source] + target_score[: a.size].reshape(-1, 4)[target]
    weight, total = np.exp(np.where(v > 0, v, 0.2 * v)), np.zeros_like(a)
    np.add.at(total, target, weight)
    return {4: weight.ravel(), 5: total.ravel()}


@at(m=64, n=128, k=128)
def dp4a_tile(a, b, _, n, k):
    a, b = (v.view(np.int8).astype(np.int32) for v in (a, b))
    return {2: (a.reshape(-1, k) @ b[: n * k].reshape(n, k).T).ravel()}


@at(m=128, n=256, k=96)
def hgemm_ldmatrix(a, b, _, n, k):
    product = a.reshape(-1, k).astype(np.float64) @ b.reshape(k, n).astype(np.float64)
    return {2: product.astype(np.float16).ravel()}


@at(n=200)
def eigen_3x3(m, _, n):
    xx, yy, zz, xy, xz, yz = m.reshape(6, n).astype(np.float64)
    full = np.stack([xx, xy, xz, xy, yy, yz, xz, yz, zz], 1).reshape(n, 3, 3)
    return {1: np.linalg.eigvalsh(full).T.ravel()}


@at(rows=6)
def fft_256(x, _, rows):
    found = np.fft.fft(x.view(np.complex64).reshape(rows, 256).astype(np.complex128))
    return {1: np.stack([found.real, found.imag], -1).ravel()}


@at(n=900, queries=300)
def lower_bounds(ordered, query, *_):
    assert len({*ordered}) < len(ordered) and np.isin(query, ordered).sum() > 20
    return {2: np.searchsorted(ordered, query)}


@at(n=2300)
def scan_blelloch(x, _, total, n):
    padded = np.pad(x, (0, 1024 * len(total) - n)).reshape(-1, 1024)
    before = np.cumsum(padded, axis=1) - padded
    return {1: before.ravel()[:n], 2: padded.sum(1)}


@at(n=1300, buckets=64)
def join_buckets(query, first, key, amount, _, n, buckets):
    assert first[-1] <= len(key)
    found = []
    for wanted in query.astype(np.int64):
        bucket = wanted // 8 % buckets
        rows = slice(first[bucket], first[bucket + 1])
        found.append(amount[: len(key)][rows][key[rows] == wanted % 8].sum())
    assert 0 < np.count_nonzero(found) < n
    return {4: np.array(found)}


@at(n=300)
def to_decimal(x, *_):
    lines = "".join(f"{v:>11}\n" for v in x)
    return {1: np.frombuffer(lines.encode(), np.int8)}


@at(n=150, words=3)
def edit_bits(pattern, text, _, n, words):
    def letters(packed):
        """(words, n) -> (16 * words, n)"""
        rows = packed.reshape(-1, 1, n) >> np.arange(0, 32, 2, dtype=np.uint32)[:, None] & 3
        return rows.reshape(-1, n)

    pattern, text = letters(pattern), letters(text)
    column = np.repeat(np.arange(33)[:, None], n, 1)
    least = column[-1]
    for letter in text:
        before, column = column, np.zeros_like(column)
        for i in range(32):
            replaced = before[i] + (pattern[i] != letter)
            column[i + 1] = np.minimum(replaced, 1 + np.minimum(before[i + 1], column[i]))
        least = np.minimum(least, column[-1])
    assert len({*least}) > 3
    return {2: least}


@at(height=3, width=1300)
def integral_rows(image, _, width):
    pixels = image.view(np.uint8).reshape(-1, width)
    return {1: np.cumsum(pixels, axis=1, dtype=np.int32).ravel()}


@at(quads=5000)
def equalise(histogram, image, *_):
    below = np.cumsum(histogram) - histogram[0]
    table = (below * 255 // below[-1]).astype(np.uint8)
    return {2: table[image.view(np.uint8)].view(np.int32)}


@at(height=32, width=48)
def hog_cells(image, _, height, width):
    padded = np.pad(image.view(np.uint8).reshape(height, width), 1, mode="edge").astype(np.float64)
    dx, dy = padded[1:-1, 2:] - padded[1:-1, :-2], padded[2:, 1:-1] - padded[:-2, 1:-1]
    direction = (np.arctan2(dy, dx) / np.pi * 9 % 9).astype(int)
    y, x = np.mgrid[:height, :width] // 8
    cells = np.zeros((height // 8, width // 8, 9))
    np.add.at(cells, (y, x, direction), np.hypot(dx, dy))
    return {1: cells.ravel()}


@at(n=300, most=12)
def sph_density(particle, neighbour, count, _, n, reach):
    p, reach = particle.reshape(-1, 4).astype(np.float64), float(reach)
    others = p[neighbour.reshape(-1, n)]
    apart = np.maximum(reach**2 - ((others - p)[..., :3] ** 2).sum(-1), 0)
    there = np.arange(len(others))[:, None] < count
    assert 0.1 < (apart[there] > 0).mean() < 0.9
    sums = p[:, 3] * reach**6 + np.where(there, others[..., 3] * apart**3, 0).sum(0)
    return {3: sums * 315 / (64 * np.pi * reach**9)}


@at(height=20, width=70)
def eikonal_step(time, slowness, _, height, width):
    time = time.reshape(height, width).astype(np.float64)
    cost = abs(slowness[: time.size].reshape(time.shape).astype(np.float64))
    padded = np.pad(time, 1, constant_values=1e10)
    a = np.minimum(padded[1:-1, :-2], padded[1:-1, 2:])
    b = np.minimum(padded[:-2, 1:-1], padded[2:, 1:-1])
    inside = 2 * cost**2 - (a - b) ** 2
    one, both = np.minimum(a, b) + cost, (a + b + np.sqrt(np.maximum(inside, 0))) / 2
    arrival = np.where(abs(a - b) >= cost, one, both)
    assert 0.2 < (arrival < time).mean() < 0.8
    return {2: np.minimum(time, arrival).ravel()}


@at(blocks=2, steps=6)
def asian_paths(payoff, steps, strike, drift, spread):
    state = np.arange(256 * len(payoff), dtype=np.uint32)
    state = state ^ np.uint32(61) ^ state >> np.uint32(16)
    state = state * np.uint32(9)
    state = (state ^ state >> np.uint32(4)) * np.uint32(0x27D4EB2D)
    state = (state ^ state >> np.uint32(15)) | np.uint32(1)

    def uniform():
        nonlocal state
        state = state ^ state << np.uint32(13)
        state = state ^ state >> np.uint32(17)
        state = state ^ state << np.uint32(5)
        return ((state >> np.uint32(8)) + 0.5) / 2**24

    price, total = 100.0, 0
    for _pair in range(steps // 2):
        length, turn = np.sqrt(-2 * np.log(uniform())), 2 * np.pi * uniform()
        for normal in (length * np.cos(turn), length * np.sin(turn)):
            price = price * np.exp(float(drift) + float(spread) * normal)
            total = total + price
    value = np.maximum(total / steps - float(strike), 0)
    assert 0.2 < (value > 0).mean() < 0.8
    return {0: value.reshape(-1, 256).mean(1)}


@at(size=6)
def queens(ways, size):
    found = np.zeros_like(ways)
    rows = np.arange(size)
    for columns in permutations(range(size)):
        if all(len({*(columns + sign * rows)}) == size for sign in (1, -1)):
            found[columns[:4] @ size ** rows[:4]] += 1
    assert found.sum() == 4  # as is known of a board of 6 x 6
    return {0: found}
