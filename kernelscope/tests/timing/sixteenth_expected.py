"""What the kernels of held_out_sixteenth/ should give at small shapes, by NumPy."""

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


def _double(*arrays, shape, size=None):
    """Each array, or its first `size` numbers, as doubles of a shape."""
    return [w[:size].astype(np.float64).reshape(shape) for w in arrays]


@at(tokens=13, part=5)
def modulate_layer_norm_half(x, scale, shift, out, tokens, part):
    (x,), size = _double(x, shape=(-1, 1152)), scale.size
    scale, shift = (
        np.repeat(w, part, 0)[:tokens] for w in _double(scale, shift, shape=(-1, 1152), size=size)
    )
    x = x - x.mean(1, keepdims=True)
    x = x / np.sqrt((x * x).mean(1, keepdims=True) + 1e-6)
    return {3: np.append((x * (1 + scale) + shift).ravel(), out[-16:])}


@at(pictures=2, channels=3, side=14)
def instance_norm_leaky_nchw(x, weight, bias, _, channels, fours, slope):
    (x,) = _double(x, shape=(-1, channels, 4 * fours))
    x = (x - x.mean(2, keepdims=True)) / np.sqrt(x.var(2, keepdims=True) + 1e-5)
    x = x * weight[:, None] + bias[:channels, None]
    return {3: np.where(x < 0, float(slope) * x, x).ravel()}


@at(n=3000, blocks=2)
def focal_loss_backward(logit, label, _, fours, alpha, gamma):
    sign = np.where(label & 1, 1, -1)
    alpha = np.where(label & 1, float(alpha), 1 - float(alpha))

    def loss(x):
        p = 1 / (1 + np.exp(-sign * x))
        return -alpha * (1 - p) ** float(gamma) * np.log(p)

    x, step = logit.astype(np.float64), 1e-5
    return {2: (loss(x + step) - loss(x - step)) / (2 * step)}


@at(n=3000)
def lion_step_bf16_gradient(weight, momentum, gradient, pairs, rate, decay, first, second):
    n = 2 * pairs
    g = (gradient.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    w, m, rate = weight.astype(np.float64), momentum.astype(np.float64), float(rate)
    mixed = float(first) * m[:n] + (1 - float(first)) * g
    w[:n] -= rate * (np.sign(mixed) + float(decay) * w[:n])
    m[:n] += (1 - float(second)) * (g - m[:n])
    return {0: w, 1: m}


@at(m=128, n=128, k=96)
def hgemm_nt_ldmatrix_swizzled(a, b, c, n, k):
    (a,), (b,) = _double(a, shape=(-1, k)), _double(b, shape=(n, k), size=n * k)
    return {2: np.append((a @ b.T).ravel(), c[-16:])}


@at(m=128, n=64, k=48)
def sgemm_tn_64_tile(a, b, _, m, n, k):
    (a,), (b,) = _double(a, shape=(k, m)), _double(b, shape=(k, n), size=k * n)
    return {2: (a.T @ b).ravel()}


@at(tokens=512, heads=2)
def linear_attention_states(key, value, *rest):
    heads = rest[-1]
    key, value = _double(key, value, shape=(-1, 256, heads, 64), size=key.size)
    key = np.where(key > 0, key + 1, np.exp(np.minimum(key, 0)))
    state = np.einsum("cthi,cthj->chij", key, value, optimize=True)
    return {2: state.ravel(), 3: key.sum(1).ravel()}


@at(batch=2, before=16, after=8, side=11)
def conv_transpose_4x4_stride_2(x, weight, _, before, after, side):
    (x,), (weight,) = (
        _double(x, shape=(-1, before, side, side)),
        _double(weight, shape=(before, after, 4, 4)),
    )
    wide = np.zeros((len(x), after, 2 * side + 2, 2 * side + 2))
    for row in range(4):
        for column in range(4):
            there = slice(row, row + 2 * side, 2), slice(column, column + 2 * side, 2)
            wide[:, :, *there] += np.einsum("bcyx,co->boyx", x, weight[:, :, row, column])
    return {2: wide[:, :, 1:-1, 1:-1].ravel()}


@at(n=3000, blocks=3)
def siphash_24_words(word, key, out, n):
    def turned(x, by):
        return x << np.uint64(by) | x >> np.uint64(64 - by)

    def rounds(v, count):
        a, b, c, d = v
        for _ in range(count):
            a, c = a + b, c + d
            b, d = turned(b, 13) ^ a, turned(d, 16) ^ c
            a = turned(a, 32) + d
            d = turned(d, 21) ^ a
            c = c + b
            b, c = turned(b, 17) ^ c, turned(c, 32)
        return [a, b, c, d]

    text = b"somepseudorandomlygeneratedbytes"
    text = [text[i : i + 8] for i in range(0, 32, 8)]
    v = [np.full(n, int.from_bytes(w, "big"), np.uint64) ^ key[i % 2] for i, w in enumerate(text)]
    for block in (word, np.uint64(8 << 56)):
        v[3] = v[3] ^ block
        v = rounds(v, 2)
        v[0] = v[0] ^ block
    v[2] = v[2] ^ np.uint64(0xFF)
    v = rounds(v, 4)
    return {2: np.append(v[0] ^ v[1] ^ v[2] ^ v[3], out[n:])}


@at(strings=70)
def utf8_lengths_warp(text, start, *rest):
    text = text.view(np.uint8)
    parts = [text[a:b] for a, b in zip(start[:-1], start[1:], strict=True)]
    points = np.array([np.count_nonzero(w >> 6 != 2) for w in parts], np.int32)
    fours = np.array([np.count_nonzero(w >= 240) for w in parts], np.int32)
    return {2: points, 3: points + fours}


@at(parts=3)
def batcher_sort_1024_pairs(key, value, *rest):
    key, value = key.reshape(-1, 1024), value[: key.size].reshape(-1, 1024)
    order = np.argsort(key, axis=1)
    key, value = (np.take_along_axis(w, order, 1).ravel().view(np.int32) for w in (key, value))
    return {2: key, 3: value}


@at(n=1000)
def zigzag_varint_256(number, out, length, n):
    packed = np.zeros((length.size, 1280), np.uint8)
    sizes = np.zeros_like(length)
    for i, part in enumerate(packed):
        made, last = bytearray(), 0
        for v in number[256 * i : 256 * i + 256].tolist():
            left = 2 * (v - last) if v >= last else 2 * (last - v) - 1
            last = v
            while left >= 128:
                made.append(left & 127 | 128)
                left >>= 7
            made.append(left)
        part[: len(made)] = bytearray(made)
        sizes[i] = len(made)
    return {1: packed.ravel().view(np.int32), 2: sizes}


@at(n=5000, diagonals=7)
def spmv_dia_double(a, place, x, y, n, diagonals):
    right = np.append(np.zeros(n), y[n:])
    for number, part in zip(a.reshape(diagonals, n), place - place[diagonals // 2], strict=True):
        rows = np.arange(max(0, -part), min(n, n - part))
        right[rows] += number[rows] * x[rows + part]
    return {3: right}


@at(nodes=2000)
def luby_join_step(start, neighbour, state, out, nodes, seed):
    assert start[-1] <= neighbour.size
    draw = np.arange(nodes, dtype=np.uint32) ^ np.uint32(seed)
    for by, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        draw = (draw ^ draw >> np.uint32(by)) * np.uint32(factor)
    draw ^= draw >> np.uint32(16)
    right = np.where(state < 0, 2, 1).astype(np.int8)
    for node in np.flatnonzero(state >= 0):
        near = neighbour[start[node] : start[node + 1]]
        right[node] = not np.any(draw[near[state[near] >= 0]] > draw[node])
    assert np.bincount(right).min() > 100
    return {3: np.append(right, out[nodes:])}


@at(width=37, height=11, depth=7)
def yee_magnetic_3d(x, y, z, *rest):
    width, height, depth, c = rest[-4:]
    size = width * height * depth
    x, y, z = _double(x, y, z, shape=(depth, height, width), size=size)

    def along(field, axis):
        return np.diff(field, axis=axis)[: depth - 1, : height - 1, : width - 1]

    curls = (
        along(y, 0) - along(z, 1),
        along(z, 2) - along(x, 0),
        along(x, 1) - along(y, 2),
    )
    return {
        3 + i: np.pad(float(c) * curl, ((0, 1), (0, 1), (0, 1))).ravel()
        for i, curl in enumerate(curls)
    }


@at(n=300)
def eigen_3x3_jacobi(m, *rest):
    (m,) = _double(m, shape=(6, -1))
    values, vectors = np.linalg.eigh(m[[[0, 1, 2], [1, 3, 4], [2, 4, 5]]].transpose(2, 0, 1))
    normal = vectors[:, :, 0]
    normal = normal * np.where(normal[:, 2:] < 0, -1, 1)
    return {1: values.T.ravel(), 2: normal.T.ravel()}


@at(width=84, height=50, pictures=2)
def pyramid_down_rgb(picture, _, width, height):
    picture = picture.view(np.uint8).astype(np.int32).reshape(-1, height, width, 3)
    edges = np.pad(picture, ((0, 0), (2, 2), (2, 2), (0, 0)), "edge")
    weights, total = (1, 4, 6, 4, 1), 0
    for row, u in enumerate(weights):
        for column, v in enumerate(weights):
            total = total + u * v * edges[:, row : row + height : 2, column : column + width : 2]
    return {1: (total + 128 >> 8).astype(np.uint8).ravel().view(np.int8)}


@at(width=300, height=6)
def distance_along_rows(picture, _, width, height, limit):
    found = picture.view(np.uint8).reshape(height, width) >= limit
    assert found.any(1).all()
    right = [np.abs(np.arange(width)[:, None] - np.flatnonzero(row)).min(1) for row in found]
    return {1: np.concatenate(right).astype(np.int32)}


@at(width=60, height=45, points=500, most=75)
def hough_votes_angle(x, y, votes, points, most):
    angle = np.pi * np.arange(180)[:, None] / 180
    cosine, sine = (np.rint(w * 16384).astype(np.int64) for w in (np.cos(angle), np.sin(angle)))
    line = (x * cosine + y[:points] * sine >> 14) + most
    right = np.zeros((180, 2 * most + 1), np.int32)
    np.add.at(right, (np.arange(180)[:, None], line), 1)
    return {2: right.ravel()}


@at(width=45, height=37)
def lucas_kanade_7x7(first, second, _, width, height):
    first, second = (
        w[: width * height].view(np.uint8).astype(np.float64).reshape(height, width)
        for w in (first, second)
    )
    rows, columns = (np.clip(np.arange(-3, size + 3), 0, size - 1) for size in first.shape)
    edges = np.pad(first, 1, "edge")
    dx = (edges[1:-1, 2:] - edges[1:-1, :-2]) / 2
    dy = (edges[2:, 1:-1] - edges[:-2, 1:-1]) / 2
    dx, dy, dt = (w[rows][:, columns] for w in (dx, dy, second - first))

    def summed(w):
        return np.lib.stride_tricks.sliding_window_view(w, (7, 7)).sum((2, 3))

    matrix = np.array([[summed(dx * dx), summed(dx * dy)], [summed(dx * dy), summed(dy * dy)]])
    wanted = -np.stack([summed(dx * dt), summed(dy * dt)], -1)
    return {2: np.linalg.solve(matrix.transpose(2, 3, 0, 1), wanted[..., None]).ravel()}


@at(paths=300, pairs=8)
def asian_call_xorwow(_, paths, pairs, drift, deviation, strike, seed):
    mixed, words = (np.arange(paths, dtype=np.uint32) + np.uint32(seed)) * np.uint32(0x9E3779B9), []
    for _ in range(5):
        mixed = (mixed ^ mixed >> np.uint32(15)) * np.uint32(0x85EBCA77) + np.uint32(0x165667B1)
        words.append(mixed ^ mixed >> np.uint32(13))
    drawn = []
    for i in range(1, 2 * pairs + 1):
        t, last = words[-5] ^ words[-5] >> np.uint32(2), words[-1]
        words.append(last ^ last << np.uint32(4) ^ t ^ t << np.uint32(1))
        drawn.append((words[-1] + np.uint32(6615241 + 362437 * i)) >> np.uint32(8))
    u, angle = np.array(drawn, np.float64).reshape(pairs, 2, paths).swapaxes(0, 1)
    length, angle = np.sqrt(-2 * np.log((u + 0.5) / 2**24)), 2 * np.pi * angle / 2**24
    normal = np.stack([length * np.cos(angle), length * np.sin(angle)], 1).reshape(-1, paths)
    price = np.exp(np.cumsum(float(drift) + float(deviation) * normal, 0))
    value = price.mean(0) - float(strike)
    assert 0 < np.count_nonzero(value < 0) < paths
    return {0: np.maximum(value, 0)}


@at(n=3000)
def kepler_newton_double(mean, shape, out, n):
    shape = 0.9 * np.abs(shape[:n]) / (1 + np.abs(shape[:n]))
    low, high = mean - 1, mean + 1
    for _ in range(60):
        middle = (low + high) / 2
        above = middle - shape * np.sin(middle) > mean
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return {2: np.append(low, out[n:])}


@at(query=200, subject=5000, seeds=600)
def xdrop_ungapped_seeds(query, subject, in_query, in_subject, score, length, seeds, *rest):
    drop = int(rest[-1])

    def longer(one, other):
        size = min(one.size, other.size)
        sums = np.cumsum(np.where((one[:size] ^ other[:size]) & 3, -4, 5))
        best = np.maximum.accumulate(np.maximum(sums, 0))
        ended = np.flatnonzero(sums <= best - drop)
        sums = np.append(0, sums[: ended[0] if ended.size else size])
        return sums.max(), sums.argmax()

    right = np.zeros((2, seeds), np.int32)
    for i, (q, s) in enumerate(zip(in_query, in_subject[:seeds], strict=True)):
        right[:, i] += longer(query[q:], subject[s:])
        right[:, i] += longer(query[:q][::-1], subject[:s][::-1])
    return dict(enumerate(right, 4))


@at(frames=40, length=205)
def goertzel_dtmf_frames(sound, _, frames, length):
    tones = np.array([697, 770, 852, 941, 1209, 1336, 1477, 1633])
    waves = np.exp(2j * np.pi * np.arange(length)[:, None] * tones / 8000)
    (sound,) = _double(sound, shape=(frames, length))
    return {1: (np.abs(sound @ waves) ** 2 / length).ravel()}
