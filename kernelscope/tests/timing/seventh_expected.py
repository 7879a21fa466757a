"""What the kernels of held_out_seventh/ should give at small shapes, by NumPy."""

from statistics import NormalDist

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


@at(rows=3, columns=1100)
def rms_norm_backward(x, dy, gain, _, columns):
    x, dy = (v[: x.size].reshape(-1, columns).astype(np.float64) for v in (x, dy))
    norm = np.sqrt((x**2).mean(1, keepdims=True) + 1e-5)
    slope = dy * gain
    along = (slope * x).mean(1, keepdims=True)
    return {3: (slope / norm - x * along / norm**3).ravel()}


@at(images=2, channels=5, plane=441)
def norm_relu6_nchw(x, shortcut, scale, shift, _, n, channels, plane):
    x, shortcut = (v[:n].reshape(-1, channels, plane).astype(np.float64) for v in (x, shortcut))
    found = np.clip(x * scale[:, None] + shift[:channels, None], 0, 6) + shortcut
    return {4: found.astype(np.float16).ravel()}


@at(planes=3, height=22, width=70)
def max_pool_index(x, _, _place, height, width):
    x = x.reshape(-1, height, width)
    place = np.arange(height * width).reshape(1, height, width)
    border = ((0, 0), (1, 0), (1, 0))

    def around(v, outside):
        padded = np.pad(v, border, constant_values=outside)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(1, 2))
        return windows[:, ::2, ::2].reshape(len(v), height // 2, width // 2, 9)

    values = around(x, -np.inf)
    places = np.broadcast_to(around(place, -1), values.shape)
    best = values.argmax(-1)[..., None]
    found = (np.take_along_axis(v, best, -1).ravel() for v in (values, places))
    return dict(zip((1, 2), found, strict=True))


@at(channels=10, filters=6, length=300, dilation=5)
def wave_gate(x, weight, _, channels, length, dilation):
    x = x.reshape(channels, length).astype(np.float64)
    weight = weight.reshape(2, -1, channels, 3)
    late = [np.pad(x, ((0, 0), (k * dilation, 0)))[:, :length] for k in range(3)]
    a, b = np.einsum("gfck,kct->gft", weight, np.array(late))
    return {2: (np.tanh(a) / (1 + np.exp(-b))).ravel()}


@at(rows=2, length=1500)
def log_cumsum_exp(x, _, length):
    x = x.reshape(-1, length).astype(np.float64)
    return {1: np.logaddexp.accumulate(x, axis=1).ravel()}


@at(sequences=3, length=256)
def paged_scores(query, key, table, _, length, scale):
    query, key = query.reshape(-1, 4, 128).astype(np.float64), key.reshape(-1, 16, 128)
    keys = key[table].reshape(len(query), length, 128)
    return {3: (float(scale) * np.einsum("shd,std->sht", query, keys)).ravel()}


@at(heads=3, n=70)
def alibi_rows(score, _, heads, n, scale):
    score = scale * score.reshape(heads, n, n).astype(np.float64)
    slope = 2.0 ** (-8 * np.arange(1, heads + 1) / heads)
    i = np.arange(n)
    share = np.exp(score - slope[:, None, None] * (i[:, None] - i)) * np.tri(n)
    return {1: (share / share.sum(-1, keepdims=True)).astype(np.float16).ravel()}


@at(m=128, n=256, k=96)
def linear_relu_async(x, w, bias, _, n, k):
    product = x.reshape(-1, k).astype(np.float64) @ w[: n * k].reshape(n, k).T
    return {3: np.maximum(product + bias, 0).astype(np.float16).ravel()}


@at(m=128, k=80)
def lora_down(x, a, _, k, scale):
    return {2: (scale * x.reshape(-1, k).astype(np.float64) @ a.reshape(k, 16)).ravel()}


@at(m=64, n=96, k=48)
def complex_tile(a, b, _, n, k):
    a, b = (v.view(np.complex64).astype(complex) for v in (a, b))
    product = a.reshape(-1, k) @ b[: k * n].reshape(k, n)
    return {2: product.view(np.float64).ravel()}


def turned(v, by):
    return v << np.uint32(by) | v >> np.uint32(32 - by)


@at(n=300, seed=42)
def murmur_records(record, _, n, seed):
    def mixed_in(h, word):
        word = turned(word * np.uint32(0xCC9E2D51), 15) * np.uint32(0x1B873593)
        return turned(h ^ word, 13) * np.uint32(5) + np.uint32(0xE6546B64)

    h = np.full(n, seed, np.uint32)
    for word in record.reshape(n, 16).T:
        h = mixed_in(h, word)
    h ^= np.uint32(64)
    h = (h ^ h >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    h = (h ^ h >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    return {1: h ^ h >> np.uint32(16)}


@at(n=600)
def minimisers(letter, _, n):
    words = np.lib.stride_tricks.sliding_window_view(letter.astype(np.uint64) & np.uint64(3), 21)
    power = np.uint64(4) ** np.arange(20, -1, -1, dtype=np.uint64)
    ahead = (words * power).sum(1)
    back = ((np.uint64(3) - words[:, ::-1]) * power).sum(1)
    assert 0.4 < (back < ahead).mean() < 0.6
    h = np.minimum(ahead, back)
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = (h ^ h >> np.uint64(33)) * np.uint64(factor)
    h ^= h >> np.uint64(33)
    return {1: np.lib.stride_tricks.sliding_window_view(h, 11).min(1)}


@at(n=1280)
def delta_pack_warp(number, packed, *_):
    apart = np.diff(number, prepend=0).reshape(-1, 4, 32).astype(np.uint32)
    bits = np.array([int(some.max()).bit_length() for some in apart], np.int32)
    packed = packed.reshape(len(apart), 128)
    for some, row, width in zip(apart, packed, bits, strict=True):
        planes = some[:, None] >> np.arange(width, dtype=np.uint32)[:, None] & 1
        words = np.packbits(planes.astype(np.uint8), axis=-1, bitorder="little")
        row[: 4 * width] = words.view(np.int32).ravel()
    return {1: packed.ravel(), 2: bits}


@at(blocks=2)
def radix_sort_block(key, _):
    return {1: np.sort(key.reshape(-1, 2048)).ravel().view(np.int32)}


@at(rows=90)
def spmm_csr_32(first, column, value, x, _, rows):
    assert first[-1] <= len(column)
    products = value.astype(np.float64)[:, None] * x.reshape(rows, 32)[column]
    return {4: np.array([products[first[r] : first[r + 1]].sum(0) for r in range(rows)]).ravel()}


@at(rows=300, width=7)
def spmv_ell_double(column, value, x, before, rows, width):
    """The array is a number longer, which stays."""
    found = (value * x[column]).reshape(width, rows).sum(0)
    return {3: np.append(found, before[-1:])}


@at(nodes=700, seed=5)
def luby_round(first, other, _, nodes, seed):
    assert first[-1] <= len(other)
    v = (np.arange(nodes, dtype=np.uint32) ^ np.uint32(seed)) * np.uint32(0x9E3779B1)
    v = (v ^ v >> np.uint32(15)) * np.uint32(0x85EBCA77)
    v ^= v >> np.uint32(13)
    assert len({*v.tolist()}) == nodes
    most = [v[other[a:b]].max(initial=0) for a, b in zip(first[:-1], first[1:], strict=True)]
    chosen = v >= most
    assert 0.03 < chosen.mean() < 0.5
    return {2: chosen.astype(np.int32)}


@at(height=13, width=70)
def shallow_water(rise, u, v, _h, _u, _v, height, width, depth, by):
    h, u, v = (w[: rise.size].reshape(height, width).astype(np.float64) for w in (rise, u, v))
    h, by = h + depth, float(by)

    def apart(flow, axis):
        return np.roll(flow, -1, axis) - np.roll(flow, 1, axis)

    def mean(w):
        return sum(np.roll(w, step, axis) for axis in (0, 1) for step in (-1, 1)) / 4

    press, cross = 9.81 / 2 * h**2, u * v / h
    return {
        3: (mean(h) - depth - by * (apart(u, 1) + apart(v, 0))).ravel(),
        4: (mean(u) - by * (apart(u**2 / h + press, 1) + apart(cross, 0))).ravel(),
        5: (mean(v) - by * (apart(v**2 / h + press, 0) + apart(cross, 1))).ravel(),
    }


@at(n=300, steps=12, seed=11)
def heston_paths(_, n, steps, seed, strike):
    state = np.uint64(seed) << np.uint64(32) | np.arange(n, dtype=np.uint64)
    price, variance, dt = np.zeros(n), np.full(n, 0.04), 1 / steps
    for _step in range(steps):
        state = state + np.uint64(0x9E3779B97F4A7C15)
        bits = (state ^ state >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ bits >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        bits ^= bits >> np.uint64(31)
        one = ((bits & np.uint64(0xFFFFFFFF)) >> np.uint64(9)) / 2**23 + 2**-24
        angle = 2 * np.pi * ((bits >> np.uint64(41)) / 2**23)
        z, free = np.sqrt(-2 * np.log(one)) * (np.cos(angle), np.sin(angle))
        swing = np.sqrt(variance * dt)
        price += (0.03 - variance / 2) * dt + swing * z
        pull = 2 * (0.04 - variance) * dt + 0.3 * swing * (-0.7 * z + np.sqrt(0.51) * free)
        variance = np.maximum(variance + pull, 0)
    pays = np.maximum(100 * np.exp(price) - strike, 0)
    assert 0.3 < (pays > 0).mean() < 0.9
    return {0: pays}


@at(pairs=3000)
def cg_update(x, p, r, q, _x, _r, total, pairs, rate):
    x, p, r, q = (v[: 2 * pairs] for v in (x, p, r, q))
    left = r - float(rate) * q
    return {4: x + float(rate) * p, 5: left, 6: total + (left**2).sum()}


@at(dimensions=3, n=300)
def sobol_normals(direction, _, n):
    i = np.arange(n)
    bits = (i ^ i >> 1)[:, None] >> np.arange(32) & 1
    chosen = np.where(bits, direction.reshape(-1, 1, 32), 0)
    point = np.bitwise_xor.reduce(chosen.astype(np.uint32), axis=-1)
    share = ((point >> np.uint32(9)) + 0.5) / 2**23
    return {1: np.array([NormalDist().inv_cdf(p) for p in share.ravel()])}


@at(height=37, width=45, amount=12)
def unsharp_tile(image, _, height, width, amount):
    pixels = image.view(np.uint8).reshape(height, width).astype(int)
    weights = np.array([1, 6, 15, 20, 15, 6, 1])
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(pixels, 3, mode="edge"), (7, 7))
    blur = windows @ weights @ weights
    sharp = np.clip(pixels + (amount * (4096 * pixels - blur) >> 16), 0, 255)
    assert 0.1 < (sharp == 0).mean() < 0.5
    return {1: sharp.astype(np.uint8).view(np.int8).ravel()}


@at(n=700)
def hsv_planes(rgba, _, n):
    r, g, b, _a = rgba.view(np.uint8).reshape(n, 4).T / 255
    most, least = np.maximum(np.maximum(r, g), b), np.minimum(np.minimum(r, g), b)
    span = np.where(most > least, most - least, 1)
    hue = np.select([most == r, most == g], [(g - b) / span % 6, (b - r) / span + 2])
    hue = np.where((most != r) & (most != g), (r - g) / span + 4, hue)
    return {1: np.concatenate([60 * hue, np.where(most > 0, (most - least) / most, 0), most])}


@at(rays=150, count=128)
def ray_triangles(origin, direction, corner, _distance, _number, rays, count):
    origin, direction = (v.reshape(-1, 4)[:rays, None, :3] for v in (origin, direction))
    a, b, c = np.moveaxis(corner.reshape(count, 3, 4)[..., :3].astype(np.float64), 1, 0)
    matrix = np.stack(np.broadcast_arrays(-direction, b - a, c - a), -1)
    size = np.linalg.det(matrix)
    t, u, v = np.moveaxis(np.linalg.solve(matrix, (origin - a)[..., None])[..., 0], -1, 0)
    hit = (abs(size) >= 1e-3) & (u >= 0) & (v >= 0) & (u + v <= 1) & (t > 1e-3)
    distance = np.where(hit, t, 1e30)
    number = np.where(hit.any(1), distance.argmin(1), -1)
    assert len({*number.tolist()}) > 20
    return {3: distance.min(1), 4: number}
