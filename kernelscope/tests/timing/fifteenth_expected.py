"""What the kernels of held_out_fifteenth/ should give at small shapes, by NumPy."""

from math import erf

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


def _double(*arrays, shape, size=None):
    """Each array, or its first `size` numbers, as doubles of a shape."""
    return [w[:size].astype(np.float64).reshape(shape) for w in arrays]


@at(rows=3, columns=600)
def geglu_erf_half2(x, _, pairs):
    value, gate = np.moveaxis(*_double(x, shape=(-1, 2, 2 * pairs)), 1, 0)
    return {1: (value * gate * (1 + np.vectorize(erf)(gate / 2**0.5)) / 2).ravel()}


@at(rows=3, classes=4800)
def cross_entropy_gradient_bf16(logits, label, _, gradient, classes, ignored, smoothing, scale):
    assert not np.any(label == ignored)
    x = (logits.astype(np.uint32) << 16).view(np.float32).astype(np.float64).reshape(-1, classes)
    log_p = x - np.logaddexp.reduce(x, 1, keepdims=True)
    wanted = np.full(x.shape, float(smoothing) / classes)
    wanted[np.arange(label.size), label] += 1 - float(smoothing)
    found = float(scale) * (np.exp(log_p) - wanted)
    bits = found.astype(np.float32).view(np.uint32).ravel()
    bits = ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    return {2: -(wanted * log_p).sum(1), 3: np.append(bits, gradient[-8:])}


@at(tokens=13, queries=3, keys=2, length=40)
def qk_norm_rotary_half(qkv, of_query, of_key, cosine, sine, position, _, tokens, queries, keys):
    (x,) = _double(qkv, shape=(tokens, queries + 2 * keys, 128))
    x = x[:, : queries + keys] / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-6)[:, :-keys]
    x[:, :queries] *= of_query
    x[:, queries:] *= of_key[:128]
    c, s = (w[position, None] for w in _double(cosine, sine, shape=(-1, 64), size=cosine.size))
    first, second = x[..., :64], x[..., 64:]
    turned = np.concatenate([first * c - second * s, second * c + first * s], -1)
    return {6: turned.ravel()}


@at(batch=2, side=14, channels=8, blocks=1)
def avg_pool_backward_nhwc(gradient, _, count, side, fours):
    (gradient,) = _double(gradient, shape=(-1, side // 2, side // 2, 4 * fours))
    wide = np.zeros((len(gradient), side + 2, side + 2, 4 * fours))
    for row in range(3):
        for column in range(3):
            wide[:, row : row + side : 2, column : column + side : 2] += gradient / 9
    return {1: wide[:, 1:-1, 1:-1].ravel()}


@at(m=128, n=64, k=96)
def gemm_tf32_wmma(a, b, _, n, k):
    a, b = (((w.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32) for w in (a, b))
    (a,), (b,) = _double(a, shape=(-1, k)), _double(b, shape=(k, n), size=k * n)
    return {2: (a @ b).ravel()}


@at(rows=200, blocks=2)
def gram_32_columns(x, _, rows):
    (x,) = _double(x, shape=(rows, 32))
    return {1: (x.T @ x).ravel()}


@at(tokens=16, k=320, n=300)
def lora_rank_16_half(x, a, b, y, out, k, n, scale):
    (x, a), (b,) = _double(x, a, shape=(16, k)), _double(b, shape=(n, 16), size=16 * n)
    (y,) = _double(y, shape=(-1, n), size=-16)
    found = (y + float(scale) * x @ a.T @ b.T).ravel()
    return {4: np.append(found, out[found.size :])}


@at(batch=2, before=3, after=8, side=16)
def conv_3x3x3_volumes(x, weight, _, before, after, side):
    (x,) = _double(x, shape=(-1, before, side, side, side))
    (weight,) = _double(weight, shape=(after, before, 3, 3, 3))
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1), (1, 1)))
    near = np.lib.stride_tricks.sliding_window_view(x, (3, 3, 3), (2, 3, 4))
    return {2: np.einsum("bidrcxyz,oixyz->bodrc", near, weight, optimize=True).ravel()}


@at(n=3072, queries=3000, blocks=3)
def lower_bound_splitters(key, query, _, _n, _queries):
    assert query.max() > key[-1]
    return {2: np.searchsorted(key, query)}


@at(n=3000)
def decimals_from_ints(number, _, _n):
    lines = b"".join(b"%11d\n" % own for own in number.view(np.int32).tolist())
    return {1: np.frombuffer(lines, np.int32)}


@at(documents=24)
def minhash_128(token, start, factor, addend, signature):
    factor, addend = factor[:, None] | np.uint64(1), addend[:128, None]
    for document, least in enumerate(signature.view(np.uint32).reshape(-1, 128)):
        own = token[start[document] : start[document + 1]].astype(np.uint64)
        hashes = (factor * own + addend) >> np.uint64(32)
        least[:] = hashes.min(1, initial=0xFFFFFFFF)
    return {4: signature}


@at(streams=200)
def gorilla_decode_16(stream, _, _streams):
    def decoded(bits):
        """The sixteen values of a text of zeros and ones."""
        place, last, leading, length = 64, int(bits[:64], 2), 0, 64
        for _ in range(15):
            yield last
            if bits[place] == "0":
                place += 1
                continue
            if bits[place + 1] == "0":
                place += 2
            else:
                leading = int(bits[place + 2 : place + 7], 2)
                length = min(int(bits[place + 7 : place + 13], 2) + 1, 64 - leading)
                place += 13
            last ^= int(bits[place : place + length], 2) << 64 - leading - length
            place += length
        yield last

    words = stream.reshape(-1, 40).tolist()
    values = [[*decoded("".join(f"{word:032b}" for word in own))] for own in words]
    return {1: np.array(values, np.uint64).T.ravel()}


@at(nodes=2080)
def bfs_bottom_up(start, neighbour, visited, chosen, parent, _, nodes):
    def bits(words):
        return np.unpackbits(words.view(np.uint8), bitorder="little").astype(bool)

    visited, chosen = bits(visited), bits(chosen[:-1])
    found = np.zeros(nodes, bool)
    for node in np.flatnonzero(~visited):
        near = neighbour[start[node] : start[node + 1]]
        near = near[visited[near] & chosen[near]]
        if near.size:
            parent[node], found[node] = near[0], True
    assert 0 < np.count_nonzero(found) < np.count_nonzero(~visited)
    return {4: parent, 5: np.packbits(found, bitorder="little").view(np.int32)}


@at(slices=100)
def spmv_sell_32(start, column, value, x, _, slices):
    products = np.zeros((start[-1] + 1, 32))  # the last row is for a slice without elements
    (own,) = _double(value, shape=(-1, 32))
    products[:-1] = (own * x[column].reshape(-1, 32))[: start[-1]]
    sums = np.zeros((slices, 32))
    np.add.at(sums, np.repeat(np.arange(slices), np.diff(start)), products[:-1])
    return {4: sums.ravel()}


@at(width=50, height=21)
def cahn_hilliard_double(c, out, width, height, kappa, step):
    def laplacian(v):
        return sum(np.roll(v, by, axis) for by in (1, -1) for axis in (0, 1)) - 4 * v

    c = c.reshape(height, width)
    found = c + float(step) * laplacian(c**3 - c - float(kappa) * laplacian(c))
    return {1: np.append(found, out[c.size :])}


@at(matrices=6)
def householder_qr_32x16(a, _to, _factor, _):
    reflections, factor = np.linalg.qr(*_double(a, shape=(-1, 32, 16)), "raw")  # by LAPACK
    return {1: reflections.mT.ravel(), 2: factor.ravel()}


@at(width=80, height=16, pictures=2)
def hog_cells_8x8(picture, _, width, height):
    x = picture.view(np.uint8).astype(np.float64).reshape(-1, height, width)
    x = np.pad(x, ((0, 0), (1, 1), (1, 1)), mode="edge")
    along, across = x[:, 1:-1, 2:] - x[:, 1:-1, :-2], x[:, 2:, 1:-1] - x[:, :-2, 1:-1]
    place = np.arctan2(across, along) % np.pi * 9 / np.pi - 0.5  # of the middles of directions
    apart = np.abs(place[..., None] - np.arange(9))
    share = np.maximum(1 - np.minimum(apart, 9 - apart), 0) * np.hypot(along, across)[..., None]
    return {1: share.reshape(-1, height // 8, 8, width // 8, 8, 9).sum((2, 4)).ravel()}


@at(width=152, height=20, frames=2)
def nv12_to_rgb(frames, _, width, height):
    frames = frames.view(np.uint8).astype(int).reshape(-1, height * 3 // 2, width)
    light = 298 * (frames[:, :height] - 16) + 128
    chroma = frames[:, height:].reshape(-1, height // 2, width // 2, 2) - 128
    u, v = np.moveaxis(chroma.repeat(2, 1).repeat(2, 2), -1, 0)
    rgb = np.stack([light + 459 * v, light - 55 * u - 136 * v, light + 541 * u], -1) >> 8
    return {1: rgb.clip(0, 255).astype(np.uint8).ravel().view(np.int32)}


@at(width=75, height=37)
def label_tiles_32x16(picture, _, width, height, threshold):
    bright = picture.view(np.uint8).reshape(height, width) >= threshold
    row, column = np.indices(bright.shape)
    tile = np.where(bright, row // 16 * width + column // 32, -1)
    label, before = (row * width + column + 1).astype(np.int32), None
    while not np.array_equal(label, before):
        before = label.copy()
        for p, q in ((np.s_[1:], np.s_[:-1]), (np.s_[:, 1:], np.s_[:, :-1])):
            for own, other in ((p, q), (q, p)):
                least = np.minimum(label[own], label[other])
                label[own] = np.where(tile[p] == tile[q], least, label[own])
    return {1: np.where(bright, label, np.int32(0)).ravel()}


@at(n=300, planes=20)
def ransac_planes(point, corner, _, _n, near):
    (point,) = _double(point, shape=(-1, 3))
    p, q, r = np.moveaxis(point[corner.reshape(-1, 3)], 1, 0)
    normal = np.cross(q - p, r - p)
    normal /= np.linalg.norm(normal, axis=1, keepdims=True)
    apart = np.abs(normal @ point.T - (normal * p).sum(1, keepdims=True))
    assert np.abs(apart - near).min() > 1e-5  # a float's rounding moves no point to the other side
    return {2: np.count_nonzero(apart < near, 1)}


def _philox(first, second, key):
    """The four words of Philox at each of the counters (first, second, 0, 0)."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    c = [first.astype(np.uint64), *(np.full(first.shape, w, np.uint64) for w in (second, 0, 0))]
    for i in range(10):
        p, q = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        keys = (np.uint64((w + i * by) & 0xFFFFFFFF) for w, by in key)
        c = [q >> half ^ c[1] ^ next(keys), q & low, p >> half ^ c[3] ^ next(keys), p & low]
    return np.stack(c, -1)


@at(rows=6, fours=300)
def ising_half_sweep(own, other, _, rows, fours, colour, beta, seed):
    lattice, (row, column) = np.zeros((rows, 8 * fours)), np.indices((rows, 4 * fours))
    place = row, 2 * column + (row + colour) % 2
    for spins, shift in ((own, 0), (other, 1)):
        spins = np.where(spins[: own.size] < 0, -1, 1).reshape(rows, -1)
        lattice[row, 2 * column + (row + colour + shift) % 2] = spins
    around = sum(np.roll(lattice, by, axis) for by in (1, -1) for axis in (0, 1))[place]
    likely = np.exp(-2 * float(beta) * lattice[place] * around)
    words = _philox(np.arange(rows * fours), colour, ((int(seed), 0x9E3779B9), (0, 0xBB67AE85)))
    drawn = (words.reshape(rows, -1) >> np.uint64(8)) * 2.0**-24
    assert np.abs(drawn - likely).min() > 1e-6  # a float's rounding flips no other spin
    found = np.where(drawn < likely, -1, 1) * lattice[place]
    return {2: found.astype(np.int8).ravel().view(np.int32)}


@at(count=9, length=70)
def dtw_query_64_warp(series, query, _, count, length):
    (series,) = _double(series, shape=(count, length))
    cost = np.full((length + 1, 65, count), np.inf)
    cost[0, 0] = 0
    for i in range(length):
        for j in range(64):
            least = np.minimum(np.minimum(cost[i, j], cost[i, j + 1]), cost[i + 1, j])
            cost[i + 1, j + 1] = (series[:, i] - query[j]) ** 2 + least
    return {2: np.sqrt(cost[-1, -1])}


@at(paths=300)
def libor_market_paths(normal, spread, _, paths, delta, start, strike):
    (normal,), delta = _double(normal, shape=(10, paths)), float(delta)
    volatility = 0.2 + 0.02 * spread.astype(np.float64)[:, None]
    rate = np.full((20, paths), float(start))
    for n, shock in enumerate(np.sqrt(delta) * normal, 1):
        own, late = volatility[: 20 - n], rate[n:]
        drift = np.cumsum(delta * own * late / (1 + delta * late), 0)
        late *= np.exp(delta * own * drift + own * (shock - delta * own / 2))
    bond = np.cumprod(1 / (1 + delta * rate[10:]), 0)
    value = 1 - bond[-1] - float(strike) * delta * bond.sum(0)
    assert 0 < np.count_nonzero(value < 0) < paths
    return {2: 100 * np.maximum(value, 0) / np.prod(1 + delta * rate[:10], 0)}


@at(particles=500, side=16)
def cloud_in_cell_3d(x, y, z, _, particles, side, mass):
    weights = []
    for place in _double(z, y, x, shape=(particles, 1), size=particles):
        apart = np.abs(place % 1 * side - np.arange(side))
        weights.append(np.maximum(1 - np.minimum(apart, side - apart), 0))
    density = float(mass) * np.einsum("nz,ny,nx->zyx", *weights, optimize=True)
    return {3: density.ravel()}
