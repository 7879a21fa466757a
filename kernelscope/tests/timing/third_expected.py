"""What the kernels of held_out_third/ should give at small shapes, by NumPy."""

import base64
import zlib

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


def bits_of(words):
    """(..., words) uint32 -> (..., 32 * words) of 0 and 1, the lowest bit first."""
    bits = words[..., None] >> np.arange(32, dtype=np.uint32) & 1
    return bits.reshape(*words.shape[:-1], -1)


def words_of(bits):
    words = bits.reshape(*bits.shape[:-1], -1, 32).astype(np.uint32)
    return (words << np.arange(32, dtype=np.uint32)).sum(-1, dtype=np.uint32)


def windows(image, reach, **how):
    """(2 reach + 1, 2 reach + 1, height, width): what stands around each pixel."""
    around = np.pad(image, reach, **how)
    seen = np.lib.stride_tricks.sliding_window_view(around, image.shape)
    return seen.astype(np.float64)


@at(rows=3, columns=300)
def cross_entropy(logits, label, _, columns):
    logits = logits.reshape(-1, columns).astype(np.float64)
    own = logits[np.arange(len(logits)), label]
    return {2: np.log(np.exp(logits).sum(1)) - own}


@at(samples=2, groups=3, channels=2, area=64)
def group_norm(x, gamma, beta, _, groups, channels, area):
    x = x.reshape(-1, groups, channels * area).astype(np.float64)
    unit = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    unit = unit.reshape(-1, groups * channels, area)
    beta = beta[: groups * channels]
    return {3: (unit * gamma[:, None] + beta[:, None]).ravel()}


def philox(counter, seed):
    """Ten rounds of Philox 4x32: (n,) counters -> (n, 4) uint32."""
    low = np.uint64(0xFFFFFFFF)
    c = [counter.astype(np.uint64)] + [np.zeros_like(counter, np.uint64)] * 3
    keys = [seed, 0x5EED]
    for _ in range(10):
        first, second = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        high, high_2 = first >> np.uint64(32), second >> np.uint64(32)
        k0, k1 = (np.uint64(key) for key in keys)
        c = [high_2 ^ c[1] ^ k0, second & low, high ^ c[3] ^ k1, first & low]
        keys = [(keys[0] + 0x9E3779B9) % 2**32, (keys[1] + 0xBB67AE85) % 2**32]
    return np.stack(c, 1)


@at(quads=300)
def dropout_philox(x, _, quads, seed, share):
    stays = philox(np.arange(quads), int(seed)).ravel() < share * 2.0**32
    assert 0.85 < stays.mean() < 0.95
    return {1: np.where(stays, x / share, 0.0)}


@at(n=1100)
def adam_step(p, m, v, g, n, rate, decay):
    grad = g[:n] + decay * p
    first, second = 0.9 * m[:n] + 0.1 * grad, 0.999 * v + 0.001 * grad**2
    return {0: p - rate * first / (np.sqrt(second) + 1e-8), 2: second}


@at(channels=2, height=10, width=40)
def depthwise_3x3(x, weight, _, height, width):
    images = x.reshape(-1, height, width)
    pairs = zip(images, weight.reshape(-1, 3, 3), strict=True)
    return {2: np.concatenate([np.einsum("ijhw,ij", windows(i, 1), w).ravel() for i, w in pairs])}


@at(heads=2, keys=13)
def decode_query(q, k, v, _, keys):
    heads = len(q) // 64
    q, k = q.reshape(heads, 64), k.reshape(heads, keys, 64)
    v = v[: k.size].reshape(k.shape).astype(np.float64)
    weights = np.exp(np.einsum("hd,hkd->hk", q.astype(np.float64), k) / 8)
    out = np.einsum("hk,hkd->hd", weights, v) / weights.sum(1, keepdims=True)
    return {3: np.append(out, _[-2:])}


@at(rows=2)
def top_p_threshold(logits, _, p):
    found = []
    for row in np.exp(logits.reshape(-1, 2048).astype(np.float64)):
        low, high = 0.0, 128.0
        for _turn in range(16):
            middle = (low + high) / 2
            low, high = (middle, high) if row[row > middle].sum() > p * row.sum() else (low, middle)
        found.append(low)
    return {1: np.array(found)}


@at(tokens=300)
def route_top_2(score, *_):
    score = score.reshape(-1, 16).astype(np.float64)
    best = np.argsort(-score, axis=1)[:, :2]
    two = np.exp(np.take_along_axis(score, best, 1))
    counts = np.bincount(best.ravel(), minlength=16)
    return {1: best.ravel(), 2: (two / two.sum(1, keepdims=True)).ravel(), 3: counts}


@at(rows=6, chunks=40)
def dot_int8(a, x, *_):
    a, x = a.view(np.int8).astype(np.int32), x.view(np.int8).astype(np.int32)
    return {2: a.reshape(-1, len(x)) @ x}


@at(pairs=700, columns=50)
def bias_gelu_half2(x, bias, y, *_):
    v = (x.reshape(-1, len(bias)) + bias).astype(np.float64).ravel()
    return {2: np.append(v / (1 + np.exp(-1.702 * v)), y[-2:])}


@at(height=9, width=40)
def median_3x3(image, out, height, width):
    seen = windows(image.view(np.uint8).reshape(height, width), 1, mode="edge")
    middle = np.median(seen.reshape(9, -1), axis=0)
    return {1: np.append(middle.astype(np.uint8).view(np.int8), out[-1])}


@at(height=20, width=18)
def bilateral(image, _, height, width, space, scale):
    image = image.reshape(height, width)
    seen = windows(image, 2, mode="edge")
    square = np.arange(-2, 3) ** 2
    apart = space * (square[:, None] + square)[..., None, None] + scale * (seen - image) ** 2
    return {1: ((seen * np.exp(-apart)).sum((0, 1)) / np.exp(-apart).sum((0, 1))).ravel()}


@at(height=18, width=20)
def sobel_tile(image, out, height, width):
    seen = windows(image.view(np.uint8).reshape(height, width), 1)
    across = np.outer([1, 2, 1], [-1, 0, 1])
    gx, gy = (np.einsum("ijhw,ij", seen, by) for by in (across, across.T))
    length = np.minimum(np.sqrt(gx**2 + gy**2), 255).astype(np.uint8)
    return {1: np.append(length.ravel().view(np.int8), out[-1])}


@at(height=30, width=40)
def turn_bilinear(image, _, height, width, cosine, sine):
    y, x = np.mgrid[:height, :width]
    dx, dy = x - width / 2, y - height / 2
    u, v = cosine * dx - sine * dy + width / 2, sine * dx + cosine * dy + height / 2
    left, top = np.floor(u).astype(int), np.floor(v).astype(int)
    inside = (left >= 0) & (left + 1 < width) & (top >= 0) & (top + 1 < height)
    left, top = np.where(inside, left, 0), np.where(inside, top, 0)
    a, b, image = u - left, v - top, image.reshape(height, width)
    upper = (1 - a) * image[top, left] + a * image[top, left + 1]
    lower = (1 - a) * image[top + 1, left] + a * image[top + 1, left + 1]
    return {1: np.where(inside, (1 - b) * upper + b * lower, 0).ravel()}


@at(height=12, width=40, step=4)
def flood_step(seed, _, height, width, step):
    y, x = np.mgrid[:height, :width]
    best, nearest = np.full((height, width), -1), np.full((height, width), 1 << 30)
    for j in (-step, 0, step):
        for i in (-step, 0, step):
            there = (y + j >= 0) & (y + j < height) & (x + i >= 0) & (x + i < width)
            s = np.where(there, seed[(y + j) % height * width + (x + i) % width], 0)
            apart = np.where(there, (s % width - x) ** 2 + (s // width - y) ** 2, 1 << 30)
            best, nearest = np.where(apart < nearest, s, best), np.minimum(apart, nearest)
    return {1: best.ravel()}


@at(channels=40, samples=12)
def biquad(x, _, channels, samples, b0, b1, a1, a2):
    x, y = x.reshape(channels, samples), np.zeros((channels, samples + 2))
    before = np.zeros((channels, samples + 2))
    before[:, 2:] = x
    for t in range(2, samples + 2):
        old = b1 * before[:, t - 1] + b0 * before[:, t - 2] - a1 * y[:, t - 1] - a2 * y[:, t - 2]
        y[:, t] = b0 * before[:, t] + old
    return {1: y[:, 2:].ravel()}


@at(steps=6, systems=70)
def thomas(d, b, _c, _x, steps, systems):
    d, b = (v[: steps * systems].reshape(steps, systems).astype(np.float64) for v in (d, b))
    beside = np.eye(steps, k=1) + np.eye(steps, k=-1)
    all_of = np.einsum("is,ij->sij", 4 + np.abs(d), np.eye(steps)) - beside
    return {3: np.linalg.solve(all_of, b.T[..., None])[..., 0].T.ravel()}


@at(count=70)
def cholesky_8(a, *_):
    lower = np.tril(a.reshape(-1, 8, 8).astype(np.float64))
    whole = lower + np.tril(lower, -1).transpose(0, 2, 1) + 16 * np.eye(8)
    return {1: np.linalg.cholesky(whole).ravel()}


@at(count=2)
def lu_32(a, _):
    found = a.reshape(-1, 32, 32).astype(np.float64) + 32 * np.eye(32)
    for m in found:
        for k in range(31):
            m[k + 1 :, k] /= m[k, k]
            m[k + 1 :, k + 1 :] -= np.outer(m[k + 1 :, k], m[k, k + 1 :])
    return {1: found.ravel()}


@at(height=11, width=70)
def red_black(u, f, height, width, colour):
    u, f = u.reshape(height, width).astype(np.float64), f[: u.size].reshape(height, width)
    mean = (np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1) - f) / 4
    y, x = np.mgrid[:height, :width]
    inside = (x > 0) & (x < width - 1) & (y > 0) & (y < height - 1)
    return {0: np.where(inside & ((x + y) % 2 == (colour + 1) % 2), mean, u).ravel()}


@at(n=36)
def heat_march(u, _, n, rate):
    u = u.reshape(n, n, n).astype(np.float64)
    around = sum(np.roll(u, by, axis) for by in (1, -1) for axis in range(3)) - 6 * u
    v = np.zeros_like(u)
    inner = (slice(1, -1),) * 3
    v[inner] = (u + rate * around)[inner]
    return {1: v.ravel()}


@at(n=300, terms=12)
def bessel_series(x, *_):
    angle = (np.arange(2000) + 0.5) * np.pi / 2000
    return {1: np.cos(x[:, None].astype(np.float64) * np.sin(angle)).mean(1)}


@at(n=140, steps=4)
def runge_kutta(_, start, n, steps, h):
    def slope(p):
        x, y, z = p
        return np.array([10 * (y - x), x * (28 - z) - y, x * y - z * 8 / 3])

    p = start.reshape(3, n).astype(np.float64)
    for _step in range(steps):
        a = slope(p)
        b = slope(p + h / 2 * a)
        c = slope(p + h / 2 * b)
        p = p + h / 6 * (a + 2 * b + 2 * c + slope(p + h * c))
    return {0: p.ravel()}


@at(across=5)
def cell_forces(place, count, _, across):
    place = place.reshape(across, across, 8, 2).astype(np.float64)
    count, force = count.reshape(across, across), np.zeros((across, across, 8, 2))
    around = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
    for cy, cx in np.ndindex(across, across):
        for i in range(count[cy, cx]):
            for dy, dx in around:
                oy, ox = (cy + dy) % across, (cx + dx) % across
                chosen = [j for j in range(count[oy, ox]) if (dy, dx, j) != (0, 0, i)]
                apart = (dx, dy) + 0.1 * (place[oy, ox, chosen] - place[cy, cx, i])
                square = (apart**2).sum(1, keepdims=True) + 0.01
                sixth = (0.04 / square) ** 3
                size = np.where(square > 1, 0, sixth * (sixth - 0.5) / square)
                force[cy, cx, i] -= (size * apart).sum(0)
    return {2: force.ravel()}


@at(groups=300)
def base64_encode(text, *_):
    return {1: np.frombuffer(base64.b64encode(text.tobytes()), np.int8)}


@at(messages=260, words=3)
def crc_messages(message, _, messages, words):
    sums = [zlib.crc32(row.tobytes()) for row in message.reshape(messages, words)]
    return {1: np.array(sums, np.uint32).view(np.int32)}


@at(n=700)
def run_lengths(x, *_):
    first = np.flatnonzero(np.append(True, x[1:] != x[:-1]))
    length = np.zeros(len(x), int)
    length[first] = np.diff(np.append(first, len(x)))
    return {1: length}


@at(n=300, slots=256)
def probe_table(key, query, _, n, slots):
    first = query * np.uint32(2654435761)
    first = (first ^ first >> np.uint32(15)) % slots
    looked = np.argmax(key[(first[:, None] + np.arange(64)) % slots] == 0, axis=1)
    return {2: looked}


@at(n=1500, room=256)
def bucket_scatter(x, bucket, *_):
    counts = np.bincount(x >> np.uint32(28), minlength=16)
    sorted_rows = np.zeros((16, len(bucket) // 16), np.uint32)
    for row, count, to in zip(sorted_rows, counts, range(16), strict=True):
        row[len(row) - count :] = np.sort(x[x >> np.uint32(28) == to])
    return {1: sorted_rows, 2: counts}


@at(n=300, log=12)
def bloom_query(table, key, _, n, log):
    found, hashed, bits = np.ones(n, bool), key, bits_of(table)
    for _turn in range(3):
        hashed = (hashed ^ hashed >> np.uint32(16)) * np.uint32(0x7FEB352D)
        found &= bits[hashed >> np.uint32(32 - log)] == 1
    assert 20 < found.sum() < 60
    return {2: found}


@at(words=160)
def bit_transpose(words, *_):
    matrices = bits_of(words.reshape(-1, 32, 1))
    return {1: words_of(matrices.transpose(0, 2, 1)).view(np.int32).ravel()}


@at(pairs=3)
def edit_distance(a, b, _):
    found = []
    pairs = len(a) // 64
    for s, t in zip(a.reshape(-1, 64) & 7, b[: len(a)].reshape(-1, 64) & 7, strict=True):
        row = list(range(65))
        for i, letter in enumerate(s):
            last, row = row, [i + 1]
            for j in range(64):
                row.append(min(last[j + 1] + 1, row[j] + 1, last[j] + int(letter != t[j])))
        found.append(row[64])
    assert len({*found}) > 1 and len(found) == pairs
    return {2: np.array(found)}


@at(height=5, words=3)
def life_bits(words, _, height, width):
    cells = bits_of(words.reshape(height, width)).astype(int)
    around = [np.roll(cells, (y, x), (0, 1)) for y in (-1, 0, 1) for x in (-1, 0, 1)]
    count = sum(around) - cells
    return {1: words_of((count == 3) | ((count == 2) & (cells == 1))).view(np.int32).ravel()}


@at(m=64, n=128, k=64)
def bf16_tile(a, b, _, n, k):
    a, b = ((v.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for v in (a, b))
    return {2: (a.reshape(-1, k) @ b.reshape(k, n)).ravel()}


@at(heads=2, rows=64)
def mma_scores(q, k, _, rows):
    q, k = q.reshape(-1, rows, 64).astype(np.float64), k[:-2].reshape(-1, rows, 64)
    return {2: np.einsum("hqd,hkd->hqk", q, k).ravel() / 8}


@at(blocks=2)
def distances_ahead(point, start, _):
    apart = point.reshape(-1, 256).astype(np.float64) - start
    return {2: (apart**2).sum(1)}


@at(n=300)
def structs_apart(x, *_):
    return {1: x.reshape(-1, 5).T.ravel()}


@at(n=1500)
def pack_above(x, y, count, n, limit):
    parts = [part[part > limit] for part in (x[:1024], x[1024:])]
    front = [np.append(np.zeros(1024 - len(part)), np.sort(part)) for part in parts]
    return {1: np.array(front, np.float32), 2: np.array([len(part) for part in parts])}


@at(rows=2)
def cluster_shares(x, _):
    powers = np.exp(x.reshape(-1, 8192).astype(np.float64))
    return {1: (powers / powers.sum(1, keepdims=True)).ravel()}


@at(n=3000, clusters=2)
def cluster_counts(x, *_):
    return {1: np.bincount(x >> np.uint32(20), minlength=4096)}
