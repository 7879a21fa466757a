"""What the kernels of held_out_seventeenth/ should give at small shapes, by NumPy."""

import hashlib

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


def _double(*arrays, shape, size=None):
    """Each array, or its first `size` numbers, as doubles of a shape."""
    return [w[:size].astype(np.float64).reshape(shape) for w in arrays]


@at(pictures=2, side=5)
def group_norm_silu_nhwc_half(x, weight, bias, out, pixels):
    (x,) = _double(x, shape=(-1, pixels, 32, 10))
    mean, variance = (f(x, axis=(1, 3), keepdims=True) for f in (np.mean, np.var))
    x = (x - mean) / np.sqrt(variance + 1e-5)
    x = x * weight.reshape(32, 10) + bias[:320].reshape(32, 10)
    return {3: np.append((x / (1 + np.exp(-x))).ravel(), out[-16:])}


@at(rows=5, vocabulary=3000)
def gumbel_argmax_rows(logit, token, vocabulary, inverse, seed):
    rows = np.arange(token.size, dtype=np.uint32)[:, None] * np.uint32(0x9E3779B9)
    drawn = (rows ^ np.uint32(seed)) + np.arange(vocabulary, dtype=np.uint32)
    for by, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        drawn = (drawn ^ drawn >> np.uint32(by)) * np.uint32(factor)
    drawn = ((drawn ^ drawn >> np.uint32(16)) >> np.uint32(9)) + 0.5
    (logit,) = _double(logit, shape=drawn.shape)
    found = (logit * float(inverse) - np.log(-np.log(drawn / 2**23))).argmax(1)
    assert (found != logit.argmax(1)).any()
    return {1: found.astype(np.int32)}


@at(n=3000, blocks=2)
def lamb_moments_norms(weight, gradient, mean, square, update, norms, fours, first, second, decay):
    n, first, second = 4 * fours, float(first), float(second)
    w, g, m, v = _double(weight, gradient, mean, square, shape=-1, size=n)
    m = first * m + (1 - first) * g
    v = second * v + (1 - second) * g * g
    u = m / (np.sqrt(v) + 1e-6) + float(decay) * w
    return {2: m, 3: v, 4: u, 5: np.array([w @ w, u @ u])}


@at(batch=2, channels=7, side=17)
def local_response_norm_nchw(x, _, channels, plane, alpha, beta, k):
    (x,) = _double(x, shape=(-1, channels, plane))
    squares = np.pad(x * x, ((0, 0), (2, 2), (0, 0)))
    sums = sum(squares[:, i : i + channels] for i in range(5))
    return {1: (x * (float(k) + float(alpha) / 5 * sums) ** -float(beta)).ravel()}


@at(m=128, n=128, k=96)
def gemm_bf16_mma_three_stages(a, b, _, n, k):
    a, b = ((w.astype(np.uint32) << 16).view(np.float32) for w in (a, b[: n * k]))
    (a,), (b,) = _double(a, shape=(-1, k)), _double(b, shape=(k, n))
    return {2: (a @ b).ravel()}


@at(rows=6, k=1024)
def gemv_q8_blocks_dp4a(w, w_scale, x, x_scale, _, rows, k):
    (w,), (x,) = (_double(v.view(np.int8), shape=(-1, k // 32, 32)) for v in (w, x))
    (w_scale,) = _double(w_scale, shape=(rows, -1))
    return {4: ((w * x).sum(2) * w_scale * x_scale.astype(np.float64)).sum(1)}


@at(pictures=2, tokens=130, heads=2)
def text_keys_77_half(query, key, value, out, tokens, heads, scale):
    size = key.size
    (query,) = _double(query, shape=(-1, tokens, heads, 64))
    key, value = _double(key, value, shape=(-1, 77, heads, 64), size=size)
    share = np.exp(float(scale) * np.einsum("pthd,pkhd->phtk", query, key, optimize=True))
    share /= share.sum(3, keepdims=True)
    mixed = np.einsum("phtk,pkhd->pthd", share, value, optimize=True)
    return {3: np.append(mixed.ravel(), out[-16:])}


@at(batch=2, before=3, after=8, side=9)
def conv_3x3_weight_gradient(x, gradient, _, batch, before, after, side):
    (x,) = _double(x, shape=(batch, before, side, side))
    (gradient,) = _double(gradient, shape=(batch, after, side, side), size=-4)
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    near = np.lib.stride_tricks.sliding_window_view(x, (side, side), (2, 3))
    return {2: np.einsum("bcijyx,boyx->ocij", near, gradient, optimize=True).ravel()}


@at(streams=300)
def prefix_codes_12_bits(word, first_bit, table, out, streams):
    bits = np.unpackbits(word.astype(">u4").view(np.uint8)).astype(np.int32)
    window = np.lib.stride_tricks.sliding_window_view(bits, 12) @ (1 << np.arange(12)[::-1])
    place, symbols = first_bit.copy(), np.zeros((streams, 64), np.uint8)
    for symbol in symbols.T:
        code = table[window[place]]
        symbol[:] = code & 255
        place += (code >> 8) + 1
    return {3: symbols.ravel().view(np.int32)}


@at(rows=5, columns=700, k=50)
def radix_select_rows(x, *rest):
    columns, k = rest[-2:]
    ordered = np.sort(x.reshape(-1, columns), axis=1)
    kth = ordered[:, -k].copy()
    assert (kth > 0).all()
    return {1: kth, 2: np.count_nonzero(ordered > kth[:, None], axis=1).astype(np.int32)}


@at(lines=40)
def json_marks_warp(text, *rest):
    text = text.view(np.uint8).reshape(-1, 2048)
    quotes, hidden = text == ord('"'), np.zeros(text.shape, bool)
    hidden[:, 1:] = text[:, :-1] == ord("\\")
    assert (quotes & hidden).any()
    inside = np.cumsum(quotes & ~hidden, 1) % 2 == 1
    found = np.isin(text, np.frombuffer(b"{}[]:,", np.uint8)) & ~inside
    marks = np.packbits(found, axis=1, bitorder="little").ravel().view(np.uint64)
    return {1: marks, 2: np.count_nonzero(found, axis=1).astype(np.int32)}


@at(n=200)
def sha3_256_seeds(seed, digest, n):
    made = [hashlib.sha3_256(part.tobytes()).digest() for part in seed.reshape(n, 4)]
    return {1: np.append(np.frombuffer(b"".join(made), np.uint64), digest[4 * n :])}


@at(rows=200)
def spmm_csr_64_columns(start, column, number, x, _, rows):
    assert start[-1] <= column.size
    matrix = np.zeros((rows, rows))
    row = np.repeat(np.arange(rows), np.diff(start))
    np.add.at(matrix, (row, column[: row.size]), number[: row.size])
    (x,) = _double(x, shape=(rows, 64))
    return {4: (matrix @ x).ravel()}


@at(nodes=500, walks=300, length=12)
def random_walks_csr(start, neighbour, node, _, walks, length, seed):
    assert start[-1] <= neighbour.size
    state = (np.arange(walks, dtype=np.uint32) + np.uint32(seed)) * np.uint32(0x9E3779B9)
    path, stays = [node], 0
    for _ in range(length - 1):
        first, degree = start[node], start[node + 1] - start[node]
        state = state * np.uint32(747796405) + np.uint32(2891336453)
        drawn = state >> (state >> np.uint32(28)) + np.uint32(4)
        drawn = (drawn ^ state) * np.uint32(277803737)
        drawn ^= drawn >> np.uint32(22)
        place = first + (drawn.astype(np.int64) * degree >> 32)
        node = np.where(degree, neighbour[np.minimum(place, neighbour.size - 1)], node)
        path.append(node)
        stays += np.count_nonzero(degree == 0)
    assert stays
    return {3: np.concatenate(path).astype(np.int32)}


@at(width=64, height=24)
def gray_scott_tile(u, v, *rest):
    width, height, feed, kill = rest[-4:]
    u, v = _double(u, v, shape=(height, width), size=width * height)

    def around(w):
        rows = np.roll(w, 1, 0) + np.roll(w, -1, 0)
        beside = np.roll(w, 1, 1) + np.roll(w, -1, 1)
        return 0.2 * (rows + beside) + 0.05 * (np.roll(rows, 1, 1) + np.roll(rows, -1, 1)) - w

    made, feed = u * v * v, float(feed)
    return {
        2: (u + around(u) - made + feed * (1 - u)).ravel(),
        3: (v + 0.5 * around(v) + made - (feed + float(kill)) * v).ravel(),
    }


@at(lines=130, rows=9)
def pentadiagonal_lines_double(strength, y, first, second, x, lines, rows):
    size = lines * rows
    fourth = sum(
        w * np.eye(rows, k=k) for k, w in zip(range(-2, 3), (1, -4, 6, -4, 1), strict=True)
    )
    strength, y = (w[:size].reshape(rows, lines).T[..., None] for w in (strength, y))
    right = np.linalg.solve(np.eye(rows) + strength**2 * fourth, y)[..., 0].T
    return {4: np.append(right.ravel(), x[size:])}


@at(n=150)
def nms_masks_64(box, mask, n, limit):
    (box,) = _double(box, shape=(n, 4))
    half = np.exp(box[:, 2:]) / 2
    low, high, area = box[:, :2] - half, box[:, :2] + half, np.prod(2 * half, 1)
    both = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
    both = np.prod(np.maximum(both, 0), 2)
    found = both / (area[:, None] + area - both) > float(limit)
    found = np.pad(np.triu(found, 1), ((0, 0), (0, -n % 64)))
    assert found.any()
    words = np.packbits(found, axis=1, bitorder="little").view(np.uint64)
    there = np.arange(n)[:, None] // 64 <= np.arange(words.shape[1])
    return {1: np.where(there, words, mask.reshape(words.shape)).ravel()}


@at(width=37, height=10, depth=7)
def warp_volume_trilinear(volume, field, _, *sizes):
    shape = sizes[::-1]
    (volume,), (field,) = _double(volume, shape=shape), _double(field, shape=(3, *shape))
    place = field + np.indices(shape) + 8  # no shift is as long as the rim
    floor = np.floor(place).astype(int)
    part, volume, right = place - floor, np.pad(volume, 8), np.zeros(shape)
    for corner in np.ndindex(2, 2, 2):
        aside = np.array(corner)[:, None, None, None]
        share = np.where(aside, part, 1 - part).prod(0)
        right += share * volume[tuple(floor + aside)]
    return {2: right.ravel()}


@at(width=20, rows=6)
def sgm_gather_rows(cost, _, width, rows, small, large):
    cost = cost.view(np.uint8).astype(np.int32).reshape(rows, width, 64)
    last, right = np.zeros((rows, 64), np.int32), np.zeros((rows, width, 64), np.uint16)
    for x in range(width):
        edges = np.pad(last, ((0, 0), (1, 1)), constant_values=1 << 20)
        least = last.min(1, keepdims=True)
        beside = np.minimum(edges[:, :-2], edges[:, 2:]) + small
        last = cost[:, x] + np.minimum(np.minimum(last, beside), least + large) - least
        right[:, x] = last
    return {1: right.ravel().view(np.int32)}


@at(pixels=1000)
def rgb_to_lab_planes(pixel, *rest):
    v = pixel.view(np.uint8).reshape(-1, 3) / 255
    v = np.where(v <= 0.04045, v / 12.92, ((v + 0.055) / 1.055) ** 2.4)
    to_xyz = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
    t = v @ np.array(to_xyz).T / [0.95047, 1, 1.08883]
    x, y, z = np.where(t > 216 / 24389, np.cbrt(t), 841 / 108 * t + 4 / 29).T
    return {1: np.concatenate([116 * y - 16, 500 * (x - y), 200 * (y - z)])}


@at(blocks=2, rounds=3)
def mt19937_blocks(state, out, rounds):
    right = []
    for key in state.reshape(-1, 624):
        twister = np.random.MT19937()
        twister.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": 624}}
        right.append(twister.random_raw(624 * rounds).astype(np.uint32))
    return {1: np.concatenate([*right, out[-4:]])}


@at(options=20, steps=80)
def barrier_explicit_block(volatility, strike, _, steps, spot, barrier, apart, rate, maturity):
    volatility, strike = _double(volatility, strike, shape=(-1, 1), size=volatility.size)
    apart, rate, step = float(apart), float(rate), float(maturity) / steps
    sigma = 0.1 + 0.1 * np.abs(volatility) / (1 + np.abs(volatility))
    k = 1 + 0.1 * strike / (1 + np.abs(strike))
    price = float(barrier) * np.exp(apart * np.arange(256))
    value = np.maximum(price - k, 0)
    value[:, 0] = 0
    for i in range(1, steps + 1):
        slope = (value[:, 2:] - value[:, :-2]) / (2 * apart)
        bend = (value[:, 2:] - 2 * value[:, 1:-1] + value[:, :-2]) / apart**2
        change = sigma**2 / 2 * bend + (rate - sigma**2 / 2) * slope
        value[:, 1:-1] = (value[:, 1:-1] + step * change) / (1 + rate * step)
        value[:, -1:] = price[-1] - k * np.exp(-rate * step * i)
    return {2: value[:, spot]}


@at(sites=32, words=18)
def linkage_popcounts_tile(bits, _, sites, words):
    genes = np.unpackbits(bits.view(np.uint8)).reshape(sites, 64 * words)
    right = np.corrcoef(genes) ** 2
    right[16:, :16] = 0
    return {1: right.ravel()}


@at(points=500, corners=300)
def points_in_polygon(x, y, corner_x, corner_y, inside, points, corners):
    x, y = _double(x, y, shape=(-1, 1), size=points)
    px, py = _double(corner_x, corner_y, shape=-1, size=corners)
    qx, qy = np.roll(px, -1), np.roll(py, -1)
    crosses = ((py > y) != (qy > y)) & (x < px + (y - py) * (qx - px) / (qy - py))
    odd = (np.count_nonzero(crosses, axis=1) % 2).astype(np.int8)
    assert 0 < odd.sum() < points
    return {4: odd}
