"""What the kernels of held_out_eighth/ should give at small shapes, by NumPy."""

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


@at(images=3, channels=5, plane=70)
def batch_norm_backward(x, dy, gain, _, images, channels, plane):
    n = images * channels * plane
    x, dy = (v[:n].reshape(images, channels, plane).astype(np.float64) for v in (x, dy))

    def mean(v):
        return v.mean((0, 2), keepdims=True)

    deviation = np.sqrt(x.var((0, 2), keepdims=True) + 1e-5)
    z = (x - mean(x)) / deviation
    found = gain[:, None] / deviation * (dy - mean(dy) - z * mean(dy * z))
    return {3: found.ravel()}


@at(fours=500, blocks=1)
def focal_loss(x, target, _loss, _gradient, fours, alpha):
    """The gradient by differences on both sides."""

    def loss(v):
        right = 1 / (1 + np.exp(np.where(target, -v, v)))
        return np.where(target, alpha, 1 - alpha) * (1 - right) ** 2 * -np.log(right)

    x, alpha = x.astype(np.float64), float(alpha)
    return {2: loss(x), 3: (loss(x + 1e-5) - loss(x - 1e-5)) / 2e-5}


@at(rows=9, pairs=70)
def cosine_pairs(a, b, _, rows, pairs):
    a, b = (v[: a.size].reshape(rows, -1).astype(np.float64) for v in (a, b))
    return {2: (a * b).sum(1) / np.sqrt((a**2).sum(1) * (b**2).sum(1))}


@at(images=2, inputs=7, outputs=3, height=5, width=66)
def deconv_2x2(x, weight, _, inputs, height, width):
    x = x.reshape(-1, inputs, height, width).astype(np.float64)
    found = np.einsum("nihw,ioab->nohawb", x, weight.reshape(inputs, -1, 2, 2))
    return {2: found.ravel()}


@at(heads=2, n=128)
def values_wmma(share, value, _, n):
    return {2: (share.reshape(-1, n, n).astype(np.float64) @ value.reshape(-1, n, 64)).ravel()}


@at(m=32, n=128, k=48)
def hfma2_tile(a, b, _, n, k):
    """Each sum is rounded to a half, after each product."""
    a, b = a.reshape(-1, k).astype(np.float64), b[: k * n].reshape(k, n).astype(np.float64)
    found = np.zeros((len(a), n), np.float16)
    for left, right in zip(a.T, b, strict=True):
        found = (found + np.outer(left, right)).astype(np.float16)
    return {2: found.ravel()}


@at(m=64, n=96, words=32)
def xnor_tile(a, b, _, n, words):
    a, b = (v[: v.size // words * words].reshape(-1, words) for v in (a, b))
    a, b = (2.0 * np.unpackbits(v.view(np.uint8), axis=1) - 1 for v in (a, b))
    return {2: (a @ b.T).astype(np.int32).ravel()}


@at(n=300)
def kalman_double(state, factor, seen, _next, _covariance, n, dt, drift, noise):
    rows = np.tril_indices(4)
    low = np.zeros((n, 4, 4))
    low[:, *rows] = factor.reshape(10, n).T
    moved, seeing = np.eye(4) + float(dt) * np.eye(4, k=2), np.eye(4)[:2]
    before = moved @ low @ low.transpose(0, 2, 1) @ moved.T + float(drift) * np.eye(4)
    gain = before @ seeing.T @ np.linalg.inv(before[:, :2, :2] + float(noise) * np.eye(2))
    x = state.reshape(4, n).T @ moved.T
    x = x + (gain @ (seen.reshape(2, n).T - x[:, :2])[..., None])[..., 0]
    after = before - gain @ seeing @ before
    return {3: x.T.ravel(), 4: after[:, *rows].T.ravel()}


@at(n=320)
def quote_masks(text, _quoted, _mark, n):
    letter = text.view(np.uint8).reshape(-1, 2048)
    quoted = np.cumsum(letter == ord('"'), axis=1) % 2 == 1
    assert 0.2 < quoted.mean() < 0.8
    mark = ((letter == ord(",")) | (letter == ord(":"))) & ~quoted
    return {
        number: np.packbits(bits, bitorder="little").view(np.uint64)
        for number, bits in ((1, quoted), (2, mark))
    }


@at(n=30000, blocks=2)
def hyper_log_log(key, registers, n):
    h = key
    for _ in range(2):
        h = (h ^ h >> np.uint64(32)) * np.uint64(0xD6E8FEB86659FD93)
    h ^= h >> np.uint64(32)
    rest = (h & np.uint64((1 << 52) - 1)).astype(np.float64)  # exact
    least = np.where(rest > 0, 53 - np.frexp(rest)[1], 53)
    np.maximum.at(registers, (h >> np.uint64(52)).astype(int), least.astype(np.int32))
    estimate = 0.7213 / (1 + 1.079 / 4096) * 4096**2 / (2.0**-registers).sum()
    assert 0.9 < estimate / n < 1.1
    return {1: registers}


@at(blocks=3)
def sort_bytes_block(byte, _):
    return {1: np.sort(byte.view(np.uint8).reshape(-1, 4096)).ravel().view(np.uint32)}


@at(n=300, window=70)
def lz_longest_match(text, _, n, window):
    text = text & 3
    ahead = np.lib.stride_tricks.sliding_window_view(text, 32)
    match = []
    for place in range(256, 256 + n):
        before = ahead[place - window : place][::-1]
        length = np.cumprod(before == ahead[place], axis=1).sum(1)
        longest = int(length.max())
        match.append(longest << 16 | (int(length.argmax()) + 1 if longest else 0))
    return {1: np.array(match, np.int32)}


@at(nodes=90)
def sage_max_half2(first, other, x, _, nodes):
    assert first[-1] <= len(other)
    x = x.reshape(nodes, 64)
    found = [x[[i, *other[first[i] : first[i + 1]]]].max(0) for i in range(nodes)]
    return {3: np.array(found).ravel()}


@at(n=3000)
def depth_of_nodes(parent, _depth, _root, n, roots):
    place, depth = np.arange(n), np.zeros(n, np.int32)
    for _step in range(64):
        depth += place >= roots
        place = np.where(place >= roots, parent[place], place).astype(np.int32)
    found = place < roots
    assert 0.5 < found.mean()
    return {1: np.where(found, depth, -1), 2: np.where(found, place, -1)}


@at(n=700)
def motif_scores(letter, weight, _, n):
    letter, weight = letter & 3, weight.reshape(16, 4).astype(np.float64)
    words = np.lib.stride_tricks.sliding_window_view(letter, 16)
    place = np.arange(16)
    ahead, back = weight[place, words].sum(1), weight[place, 3 - words[:, ::-1]].sum(1)
    return {2: np.maximum(ahead, back)}


@at(height=13, width=70)
def gray_scott_tile(u, v, _u, _v, height, width, feed, kill):
    feed, kill = float(feed), float(kill)
    u, v = (w[: height * width].reshape(height, width).astype(np.float64) for w in (u, v))

    def spread(w):
        lines = np.roll(w, 1, 0) + np.roll(w, -1, 0), np.roll(w, 1, 1) + np.roll(w, -1, 1)
        corners = np.roll(lines[0], 1, 1) + np.roll(lines[0], -1, 1)
        return 0.2 * sum(lines) + 0.05 * corners - w

    return {
        2: (u + spread(u) - u * v**2 + feed * (1 - u)).ravel(),
        3: (v + spread(v) / 2 + u * v**2 - (feed + kill) * v).ravel(),
    }


@at(n=300)
def weno_5(u, _, n, by):
    a, b, c, d, e = (np.roll(u, step) for step in (2, 1, 0, -1, -2))
    parabolas = (
        ((2 * a - 7 * b + 11 * c) / 6, a - 2 * b + c, a - 4 * b + 3 * c, 0.1),
        ((-b + 5 * c + 2 * d) / 6, b - 2 * c + d, b - d, 0.6),
        ((2 * c + 5 * d - e) / 6, c - 2 * d + e, 3 * c - 4 * d + e, 0.3),
    )
    weights = [w / (1e-6 + 13 / 12 * x**2 + y**2 / 4) ** 2 for _value, x, y, w in parabolas]
    right = sum(w * one[0] for w, one in zip(weights, parabolas, strict=True)) / sum(weights)
    return {1: float(by) * (np.roll(right, 1) - right)}


@at(n=7)
def restrict_3d(fine, _, n):
    v = fine.reshape(2 * n, 2 * n, 2 * n).astype(np.float64)
    for axis in range(3):
        v = (np.roll(v, 1, axis) + 2 * v + np.roll(v, -1, axis)) / 4
    return {1: v[::2, ::2, ::2].ravel()}


@at(n=300, size=16)
def boris_push(cell, apart, speed, field, _apart, _speed, n, size, dt):
    """The turn by the magnetic field is that of a complex number."""
    apart, speed = apart.reshape(n, 2).astype(np.float64), speed.reshape(n, 4).astype(np.float64)
    field = field.reshape(size, size, 4).astype(np.float64)
    whole = np.floor(apart).astype(int)
    x, y = cell % size + whole[:, 0], cell // size + whole[:, 1]
    s, t = (apart - whole).T[..., None]
    near = [[field[(y + j) % size, (x + i) % size] for i in (0, 1)] for j in (0, 1)]
    f = (near[0][0] * (1 - s) + near[0][1] * s) * (1 - t)
    f += (near[1][0] * (1 - s) + near[1][1] * s) * t
    half = float(dt) / 2 * speed[:, 3:]
    v = speed[:, :3] + half * f[:, :3]
    angle = half[:, 0] * f[:, 3]
    turned = (v[:, 0] + 1j * v[:, 1]) * (1 - 1j * angle) / (1 + 1j * angle)
    v = np.stack([turned.real, turned.imag, v[:, 2]], 1) + half * f[:, :3]
    found = np.concatenate([v, speed[:, 3:]], 1)
    return {4: (apart + float(dt) * v[:, :2]).ravel(), 5: found.ravel()}


@at(days=30, series=150, window=7)
def rolling_zscore(price, _, days, series, window):
    price = price.reshape(days, series).astype(np.float64)
    some = np.lib.stride_tricks.sliding_window_view(price, window, axis=0)
    found = np.zeros_like(price)
    found[window - 1 :] = (price[window - 1 :] - some.mean(-1)) / some.std(-1)
    return {1: found.ravel()}


@at(height=13, width=35)
def erode_bytes(image, _, height, width):
    pixels = np.pad(image.view(np.uint8).reshape(height, 4 * width), 2, constant_values=255)
    windows = np.lib.stride_tricks.sliding_window_view(pixels, (5, 5))
    return {1: windows.min((2, 3)).ravel().view(np.uint32)}


@at(height=20, width=140, octaves=4, seed=17)
def perlin_octaves(_, height, width, octaves, seed):
    def slope(x, y, of, dx, dy):
        h = np.uint32(of) ^ x.astype(np.uint32) * np.uint32(0x27D4EB2D)
        h = h ^ y.astype(np.uint32) * np.uint32(0x165667B1)
        h = (h ^ h >> np.uint32(15)) * np.uint32(0x2C1B3C6D)
        h = (h ^ h >> np.uint32(12)) * np.uint32(0x297A2D39)
        h ^= h >> np.uint32(15)
        a, b = np.where(h & 1, dx, -dx), np.where(h & 2, dy, -dy)
        return np.where(h & 4, a + b / 2, b + a / 2)

    found = np.zeros((height, width))
    for octave in range(octaves):
        y, x = np.mgrid[:height, :width] * 2.0**octave / 64
        left, top = np.floor(x), np.floor(y)
        for i in (0, 1):
            for j in (0, 1):
                dx, dy = x - left - i, y - top - j
                share = 1.0
                for t in (1 - abs(dx), 1 - abs(dy)):
                    share = share * t**3 * (t * (t * 6 - 15) + 10)
                found += share * slope(left + i, top + j, seed + octave, dx, dy) / 2**octave
    assert found.std() > 0.2
    return {0: found.ravel()}


@at(n=300, corners=512)
def point_in_polygon(point, corner, _, n, corners):
    (x, y), (ax, ay) = point.reshape(n, 2).T[..., None], corner.reshape(-1, 2).T.astype(np.float64)
    bx, by = np.roll(ax, -1), np.roll(ay, -1)
    right = ((ay > y) != (by > y)) & (x < (bx - ax) * (y - ay) / (by - ay) + ax)
    inside = right.sum(1) % 2
    assert 0.2 < inside.mean() < 0.8
    return {2: inside.astype(np.int32)}


@at(n=300)
def skin_vertices(vertex, normal, bone, weight, matrix, _moved, _turned, n):
    vertex, normal, weight = (v[: 4 * n].reshape(n, 4) for v in (vertex, normal, weight[: 4 * n]))
    share = abs(weight.astype(np.float64))
    share /= share.sum(1, keepdims=True)
    matrices = matrix.reshape(256, 3, 4)[bone.view(np.uint8).reshape(n, 4)]
    mixed = np.einsum("vb,vbij->vij", share, matrices)
    moved = np.einsum("vij,vj->vi", mixed[..., :3], vertex[:, :3]) + mixed[..., 3]
    turned = np.einsum("vij,vj->vi", mixed[..., :3], normal[:, :3])
    turned /= np.sqrt((turned**2).sum(1, keepdims=True))
    ends = np.ones((n, 1)), np.zeros((n, 1))
    return {5: np.append(moved, ends[0], 1).ravel(), 6: np.append(turned, ends[1], 1).ravel()}
