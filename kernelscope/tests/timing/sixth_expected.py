"""What the kernels of held_out_sixth/ should give at small shapes, by NumPy."""

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


@at(rows=7, columns=328)
def shares_backward(y, dy, _, rows, columns, scale):
    y, dy = (v[: y.size].reshape(rows, columns).astype(np.float64) for v in (y, dy))
    return {2: (scale * y * (dy - (y * dy).sum(1, keepdims=True))).astype(np.float16).ravel()}


@at(quads=1100)
def gelu_backward(x, dy, *_):
    def gelu(v):
        return v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))) / 2

    x, h = x.astype(np.float64), 1e-5
    return {2: dy[: x.size] * (gelu(x + h) - gelu(x - h)) / (2 * h)}


@at(channels=8, filters=16, height=19, width=21)
def conv_3x3_direct(x, weight, _, channels, height, width):
    x = np.pad(x.reshape(channels, height, width).astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    around = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    return {2: np.einsum("chwij,fcij->fhw", around, weight.reshape(-1, channels, 3, 3)).ravel()}


@at(rows=2, length=1500)
def linear_recurrence(x, gate, _, length):
    x, gate = (v[: x.size].reshape(-1, length).astype(np.float64) for v in (x, gate))
    a, h = 1 / (1 + np.exp(-gate)), np.zeros_like(x)
    for t in range(length):
        h[:, t] = a[:, t] * h[:, t - 1] + x[:, t]  # h is still zero at the end
    return {2: h.ravel()}


@at(splits=5, heads=6)
def merge_splits(partial, lse, _, splits, heads):
    share = np.exp(lse.reshape(splits, heads, 1).astype(np.float64))
    merged = (partial.reshape(splits, heads, 128) * share).sum(0) / share.sum(0)
    return {2: merged.astype(np.float16).ravel()}


@at(heads=2, rows=128)
def online_causal_mma(q, k, v, _, rows):
    q, k, v = (w[: q.size].reshape(-1, rows, 64).astype(np.float64) for w in (q, k, v))
    share = np.exp(q @ k.transpose(0, 2, 1) / 8) * np.tri(rows)
    return {3: (share @ v / share.sum(-1, keepdims=True)).astype(np.float16).ravel()}


@at(n=128, k=48)
def syrk_lower(a, _, n, k):
    a = a.reshape(n, k).astype(np.float64)
    return {1: np.tril(a @ a.T).ravel()}


@at(m=128, n=256, k=192)
def w8a8_scaled(a, b, of_row, of_column, _, n, k, scale):
    product = a.reshape(-1, k).astype(np.float64) @ b[: n * k].reshape(n, k).T
    return {4: (scale * product * of_row[:, None] * of_column).astype(np.float16).ravel()}


@at(n=200)
def inverse_4x4(m, before, n):
    """The array is two numbers longer, which stay."""
    return {1: np.append(np.linalg.inv(m.reshape(n, 4, 4)), before[-2:])}


@at(rows=3, columns=700, k=50)
def kth_largest(x, _, columns, k):
    return {1: np.sort(x.reshape(-1, columns))[:, -k]}


@at(n=320)
def sort_pairs_warp(key, *_):
    return {1: np.sort(key.reshape(-1, 32)).ravel()}


def siphash(text):
    """SipHash-2-4 under the key 00 01 .. 0f, in Python's own numbers."""
    words = bytes(range(16)), b"uespemos", b"modnarod", b"arenegyl", b"setybdet"
    key, *names = (np.frombuffer(word, np.uint64).tolist() for word in words)
    v = [name[0] ^ key[i % 2] for i, name in enumerate(names)]

    def rounds(count):
        for a, b, by, and_b in [(0, 1, 13, 0), (2, 3, 16, 2), (0, 3, 21, 3), (2, 1, 17, 1)] * count:
            v[a] = (v[a] + v[b]) % 2**64
            v[b] = (v[b] << by | v[b] >> (64 - by)) % 2**64 ^ v[a]
            if and_b in (0, 1):
                v[a] = (v[a] << 32 | v[a] >> 32) % 2**64

    text = text + bytes(7 - len(text) % 8) + bytes([len(text) % 256])
    for word in np.frombuffer(text, np.uint64).tolist():
        v[3] ^= word
        rounds(2)
        v[0] ^= word
    v[2] ^= 255
    rounds(4)
    return v[0] ^ v[1] ^ v[2] ^ v[3]


@at(n=200)
def siphash_strings(text, first, *_):
    assert siphash(bytes(range(15))) == 0xA129CA6149BE45E5  # of the paper
    assert first[-1] <= len(text)
    strings = (text[a:b].tobytes() for a, b in zip(first[:-1], first[1:], strict=True))
    return {2: np.array([siphash(s) for s in strings], np.uint64)}


@at(streams=150, words=8, count=20)
def huffman_decode(stream, code, _, streams, words, count):
    big = stream.astype(">u4").view(np.uint8).reshape(streams, 4 * words)
    bits = np.unpackbits(big, axis=1).astype(np.int64)
    place, every = np.zeros(streams, int), np.arange(streams)
    found = np.zeros((streams, count), np.uint8)
    for s in range(count):
        ahead = bits[every[:, None], place[:, None] + np.arange(10)]
        entry = code[ahead @ (1 << np.arange(9, -1, -1))]
        found[:, s] = entry // 8
        place += 2 + entry % 8
    return {2: found.view(np.int32).ravel()}


@at(pairs=6, length=40)
def smith_waterman(query, target, _, pairs, length):
    query, target = query.reshape(pairs, 128) & 3, target[:-1].reshape(pairs, length) & 3
    score = np.zeros((129, length + 1, pairs), int)
    across, down = np.full_like(score, -10000), np.full_like(score, -10000)
    for i in range(1, 129):
        for j in range(1, length + 1):
            across[i, j] = np.maximum(across[i, j - 1] - 1, score[i, j - 1] - 3)
            down[i, j] = np.maximum(down[i - 1, j] - 1, score[i - 1, j] - 3)
            same = query[:, i - 1] == target[:, j - 1]
            one = score[i - 1, j - 1] + np.where(same, 2, -1)
            score[i, j] = np.maximum.reduce([one, across[i, j], down[i, j], np.zeros_like(one)])
    best = score.max((0, 1))
    assert len({*best}) > 2
    return {2: best}


@at(rows=60)
def spmv_bsr_4(first, column, value, x, _, rows):
    assert first[-1] <= len(column)
    value, x = value.reshape(-1, 4, 4).astype(np.float64), x.reshape(rows, 4)
    products = np.einsum("bij,bj->bi", value, x[column])
    return {4: np.concatenate([products[first[r] : first[r + 1]].sum(0) for r in range(rows)])}


@at(nodes=50, edges=333)
def sddmm_edges(source, target, weight, x, y, _, edges):
    x, y = (v[: x.size].reshape(-1, 64).astype(np.float64) for v in (x, y))
    return {5: weight * (x[source] * y[target[:edges]]).sum(1)}


@at(nodes=500)
def bellman_pull(first, source, weight, distance, *_):
    assert first[-1] <= len(source)
    ways = distance[source] + weight[:-1]
    owner = np.repeat(np.arange(len(distance)), np.diff(first))
    found = distance.copy()
    np.minimum.at(found, owner, ways[: first[-1]])
    assert 0.2 < (found < distance).mean() < 0.9
    return {4: found, 5: np.ones(1, np.int32)}


@at(depth=32, height=16, width=32)
def fdtd_radius_4(u, before, after, height, width, speed):
    u, before, after = (
        v[: u.size].reshape(-1, height + 8, width + 8).astype(np.float64)
        for v in (u, before, after)
    )
    weights = [-205 / 72, 8 / 5, -1 / 5, 8 / 315, -1 / 560]
    space = sum(
        weights[r] * (np.roll(u, r, axis) + np.roll(u, -r, axis)) / (2 if r == 0 else 1)
        for r in range(5)
        for axis in range(3)
    )
    inside = (slice(4, -4),) * 3
    after[inside] = (2 * u - before + float(speed) * space)[inside]
    return {2: after.ravel()}


@at(rods=3)
def heat_implicit_pcr(conduct, heat, next_heat, rate):
    rods = len(conduct) // 256
    flow = float(rate) * conduct.reshape(rods, 256) ** 2
    flow[:, 0] = 0
    matrix = np.zeros((rods, 256, 256))
    i = np.arange(256)
    matrix[:, i, i] = 1 + flow
    matrix[:, i[:-1], i[:-1]] += flow[:, 1:]
    matrix[:, i[1:], i[:-1]] = matrix[:, i[:-1], i[1:]] = -flow[:, 1:]
    return {2: np.linalg.solve(matrix, heat[:-1].reshape(rods, 256, 1)).ravel()}


def pcg_hash(v):
    state = v * np.uint32(747796405) + np.uint32(2891336453)
    word = (state >> ((state >> np.uint32(28)) + np.uint32(4)) ^ state) * np.uint32(277803737)
    return word >> np.uint32(22) ^ word


@at(height=12, width=300, seed=17)
def ising_half_sweep(black, white, height, width, seed, coupling):
    def spins(v):
        return np.where(v[: black.size].reshape(height, width) < 0, -1, 1)

    own, other = spins(black), spins(white)
    beside = np.where(np.arange(height)[:, None] % 2, np.roll(other, -1, 1), np.roll(other, 1, 1))
    around = other + np.roll(other, 1, 0) + np.roll(other, -1, 0) + beside
    place = np.arange(black.size, dtype=np.uint32)
    drawn = (pcg_hash(pcg_hash(place) + np.uint32(seed)) >> np.uint32(8)) / 2**24
    chance = np.exp(-2 * float(coupling) * own * around)
    turns = drawn.reshape(height, width) < chance
    assert 0.2 < turns.mean() < 0.8
    return {0: np.where(turns, -own, own).astype(np.int8).ravel()}


@at(n=300)
def bond_yields(quote, coupon, half_years, _, n, tick):
    """By halving: the value falls with the yield."""
    price, paid, periods = 100 + float(tick) * quote, coupon / 2, half_years[:n] + 1
    low, high = np.full(n, 0.2), np.full(n, 3.0)
    for _turn in range(60):
        factor = (low + high) / 2
        value = sum(np.where(p <= periods, paid * factor**p, 0) for p in range(1, 61))
        dear = value + 100 * factor**periods > price
        low, high = np.where(dear, low, factor), np.where(dear, factor, high)
    return {3: 2 * (1 / factor - 1)}


@at(height=10, width=78)
def nv12_to_rgb(luma, chroma, _, height, width):
    light = luma.view(np.uint8).reshape(height, width).astype(int)
    light = 298 * (light - 16)
    colour = chroma.view(np.uint8).reshape(height // 2, width // 2, 2).astype(int) - 128
    u, v = np.moveaxis(colour.repeat(2, 0).repeat(2, 1), -1, 0)
    mixed = light + 409 * v, light - 100 * u - 208 * v, light + 516 * u
    rgb = [np.clip(c + 128 >> 8, 0, 255) for c in mixed]
    rgba = np.stack([*rgb, np.full_like(u, 255)], -1).astype(np.uint8)
    return {2: rgba.ravel().view(np.int32)}


@at(height=21, width=37)
def harris_tile(image, _, height, width, k):
    pixels = np.pad(image.view(np.uint8).reshape(height, width) / 255, 2, mode="edge")
    along = (pixels[:, 2:] - pixels[:, :-2]) / 4
    down = (pixels[2:] - pixels[:-2]) / 4
    along = along[:-2] + 2 * along[1:-1] + along[2:]
    down = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]

    def summed(v):
        return np.lib.stride_tricks.sliding_window_view(v, (3, 3)).sum((2, 3))

    xx, xy, yy = summed(along**2), summed(along * down), summed(down**2)
    return {1: (xx * yy - xy**2 - float(k) * (xx + yy) ** 2).ravel()}


@at(queries=150, count=300)
def knn_8(query, point, *_):
    query, point = (v.reshape(-1, 4)[:, :3].astype(np.float64) for v in (query, point))
    apart = ((query[:, None] - point) ** 2).sum(-1)
    nearest = np.argsort(apart, axis=1)[:, :8]
    distance = np.take_along_axis(apart, nearest, 1)
    return {2: distance.T.ravel(), 3: nearest.T.ravel()}
