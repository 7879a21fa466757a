"""What the kernels of held_out_fourteenth/ should give at small shapes, by NumPy."""

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


def _double(*arrays, shape, size=None):
    """Each array, or its first `size` numbers, as doubles of a shape."""
    return [w[:size].astype(np.float64).reshape(shape) for w in arrays]


@at(rows=100, columns=192, parts=3)
def layer_norm_backward_weights(dy, x, mean, inverse, gain, _, rows, columns):
    dy, x = _double(dy, x, shape=(rows, columns), size=rows * columns)
    of_gain = dy * (x - mean[:, None]) * inverse[:rows, None]
    parts = gain.size // columns
    part = np.arange(rows) // 8 % parts
    sums = [np.stack([w[part == p].sum(0) for p in range(parts)]).ravel() for w in (of_gain, dy)]
    return dict(enumerate(sums, 4))


@at(n=300)
def adagrad_embedding_rows(gradient, row, order, weight, state, n, rate):
    gradient, weight = _double(gradient, weight, shape=(-1, 128))
    for own in np.unique(row):
        g = gradient[order[row == own]].sum(0)
        state[own] += (g * g).mean()
        weight[own] -= float(rate) * g / (np.sqrt(state[own]) + 1e-8)
    return {3: weight.ravel(), 4: state}


@at(n=560000)
def smooth_l1_sum(prediction, target, loss, fours, beta, weight):
    apart = np.abs(prediction.astype(np.float64) - target[: 4 * fours])
    each = np.where(apart < beta, apart * apart / (2 * float(beta)), apart - float(beta) / 2)
    return {2: loss + float(weight) * each.sum()}


@at(steps=30, batch=3, classes=20, labels=6)
def ctc_alphas(log_p, label, _alpha, _loss, steps, batch, classes, labels):
    none = -1e30
    own = np.zeros((batch, 2 * labels + 1), int)
    own[:, 1::2] = label.reshape(batch, labels) + 1
    log_p = log_p.reshape(steps, batch, classes)[:, np.arange(batch)[:, None], own]
    skip = np.pad((own[:, 2:] != own[:, :-2]) & (own[:, 2:] > 0), ((0, 0), (2, 0)))
    alpha = np.full(log_p.shape, none)
    alpha[0, :, :2] = log_p[0, :, :2]
    for t in range(1, steps):
        last = np.pad(alpha[t - 1], ((0, 0), (2, 0)), constant_values=none)
        ways = [last[:, 2:], last[:, 1:-1], np.where(skip, last[:, :-2], none)]
        alpha[t] = np.logaddexp.reduce(ways) + log_p[t]
    return {2: alpha.swapaxes(0, 1).ravel(), 3: -np.logaddexp(*alpha[-1, :, -2:].T)}


@at(m=128, n=256, k=48)
def sgemm_warp_tiling(a, b, c, n, k, alpha, beta):
    (a,), (b,) = _double(a, shape=(-1, k)), _double(b, shape=(k, n), size=k * n)
    return {2: (float(alpha) * (a @ b) + float(beta) * c.reshape(-1, n)).ravel()}


@at(m=64, n=256, k=256)
def w4a16_mma_tile(x, w, scale, _, n, k):
    four = w[:, None] >> 4 * np.arange(8, dtype=np.uint32) & 15
    weight = (four.astype(np.float16) - np.float16(8)).reshape(-1, 128) * scale[:, None]
    return {3: (x.reshape(-1, k).astype(np.float64) @ weight.reshape(n, k).T).ravel()}


@at(n=48)
def cgemm_tile(a, b, _, n):
    a, b = (w[: 2 * n * n].view(np.complex64).reshape(n, n) for w in (a, b))
    return {2: (a.astype(np.complex128) @ b).ravel().view(np.float64)}


@at(heads=2, tokens=192, window=64)
def sliding_window_attention(q, k, v, _, tokens, window, scale):
    q, k, v = _double(q, k, v, shape=(-1, tokens, 64), size=q.size)
    behind = np.arange(tokens)[:, None] - np.arange(tokens)
    score = np.where((behind >= 0) & (behind < window), float(scale) * q @ k.mT, -np.inf)
    p = np.exp(score - score.max(-1, keepdims=True))
    return {3: (p / p.sum(-1, keepdims=True) @ v).ravel()}


@at(batch=2, channels=3, length=3072)
def causal_conv_1d_silu_half(x, weight, bias, _, channels, length):
    (x,) = _double(x, shape=(-1, channels, length))
    near = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (3, 0))), 4, 2)
    y = np.einsum("bctj,cj->bct", near, weight.reshape(channels, 4)) + bias[:, None]
    return {3: (y / (1 + np.exp(-y))).ravel()}


@at(batch=2, length=64, channels=128)
def selective_scan_forward(u, delta, a_log, b, c, skip, bias, _, length, channels):
    u, delta = _double(u, delta, shape=(-1, length, channels), size=u.size)
    b, c = _double(b, c, shape=(-1, length, 1, 16), size=b.size)
    dt = np.logaddexp(0, delta + bias[:channels])[..., None]
    a, h, y = -np.exp(a_log.reshape(channels, 16)), 0, skip * u
    for t in range(length):
        h = np.exp(dt[:, t] * a) * h + dt[:, t] * u[:, t, :, None] * b[:, t]
        y[:, t] += (h * c[:, t]).sum(-1)
    return {7: y.ravel()}


@at(batch=2, channels=3, rois=10, blocks=3)
def roi_align_7x7(feature, image, box, _y, _n, channels, height, width, scale):
    (feature,) = _double(feature, shape=(-1, channels, height, width))
    (box,) = _double(box, shape=(-1, 2, 2))
    low, high = (float(scale) * corner - 0.5 for corner in (box.min(1), box.max(1)))
    place = low[..., None] + (high - low)[..., None] * (np.arange(14) + 0.5) / 14
    assert np.all((place >= -1) & (place <= np.array([[width], [height]])))  # no sample is left out

    def weights(place, size):
        place = np.clip(place, 0, size - 1)
        return np.maximum(1 - np.abs(place[..., None] - np.arange(size)), 0)

    along, across = weights(place[:, 1], height), weights(place[:, 0], width)
    samples = np.einsum("ruh,rchw,rvw->rcuv", along, feature[image], across)
    return {3: samples.reshape(-1, channels, 7, 2, 7, 2).mean((3, 5)).ravel()}


@at(batch=2, channels=3, side=14)
def winograd_input_tiles(x, _, side):
    x = np.pad(x.astype(np.float64).reshape(-1, side, side), ((0, 0), (1, 1), (1, 1)))
    tiles = np.lib.stride_tricks.sliding_window_view(x, (4, 4), (1, 2))[:, ::2, ::2]
    b = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
    return {1: np.einsum("ij,pyxjk,lk->ilpyx", b, tiles, b).ravel()}


@at(n=5000)
def merge_path_sorted(a, b, _c, _count_a, _count_b):
    return {2: np.sort(np.concatenate([a, b]))}


def _times(x, y):
    """The product of two bytes in the field of AES."""
    product = 0
    for bit in range(8):
        product ^= (x << bit) * (y >> bit & 1)
    for bit in reversed(range(8, 15)):
        product ^= (0x11B << bit - 8) * (product >> bit & 1)
    return product


@at(n=300)
def aes_128_ctr(text, round_key, _, n, nonce):
    byte = np.arange(256)
    inverse = (_times(byte[:, None], byte) == 1).argmax(1)  # of 0 it is 0
    box = inverse ^ 99
    for by in range(1, 5):
        box ^= (inverse << by | inverse >> 8 - by) & 255
    assert box[0x53] == 0xED
    key = round_key.view(np.uint8).reshape(11, 4, 4)  # rounds, columns, rows
    state = np.zeros((n, 4, 4), int)
    state[:, 0] = np.array([nonce], "<i4").view(np.uint8)
    state[:, 3] = np.arange(n, dtype=">u4").view(np.uint8).reshape(n, 4)
    state ^= key[0]
    for i in range(1, 11):
        state = box[np.stack([np.roll(state[..., row], -row, 1) for row in range(4)], -1)]
        if i < 10:
            every = np.bitwise_xor.reduce(state, -1, keepdims=True)
            state ^= every ^ _times(state ^ np.roll(state, -1, -1), 2)
        state ^= key[i]
    return {2: text.view(np.int32) ^ state.astype(np.uint8).ravel().view(np.int32)}


@at(n=300)
def automaton_lines(text, table, _, n):
    text = text.view(np.uint8).reshape(n, 64)
    state, found = np.ones(n, int), np.zeros(n, np.int32)
    for column in text.T:
        state = table[state * 256 + column]
        found += state == 0
    return {2: found}


@at(windows=1000)
def minimizers_10_15(genome, _, windows):
    base = (genome.view(np.uint8) & 3).astype(np.uint32)
    mers = np.lib.stride_tricks.sliding_window_view(base, 15)
    place = 4 ** np.arange(15, dtype=np.uint32)
    h = np.minimum(mers @ place[::-1], (3 - mers) @ place)
    h = (h ^ h >> 16) * np.uint32(0x7FEB352D)
    h = (h ^ h >> 15) * np.uint32(0x846CA68B)
    near = np.lib.stride_tricks.sliding_window_view(h ^ h >> 16, 10)
    return {1: (near.argmin(1) + np.arange(windows)).astype(np.int32)}


@at(rows=100)
def spmv_bsr_4x4(start, column, value, x, _, rows):
    (x,), (value,) = _double(x, shape=(-1, 4)), _double(value, shape=(-1, 4, 4))
    end, y = start[-1], np.zeros((rows, 4))
    of = np.repeat(np.arange(rows), np.diff(start))
    np.add.at(y, of, np.einsum("nij,nj->ni", value[:end], x[column[:end]]))
    return {4: y.ravel()}


@at(lines=5)
def pcr_heat_lines(conductivity, heat, after):
    k, heat = _double(np.abs(conductivity), heat, shape=(-1, 256), size=after.size)
    found = []
    for line, right in zip(k, heat, strict=True):
        off = np.diag(-line[1:], 1)
        off += off.T
        found.append(np.linalg.solve(off + np.diag(1 - off.sum(1)), right))
    return {2: np.concatenate(found)}


@at(width=50, height=21)
def shallow_water_step(depth, along, across, _d, _a, _c, width, height, ratio):
    depth = depth.astype(np.float64) + 10

    def flux(p, q):
        u, v = p[1] / p[0], q[1] / q[0]
        speed = np.maximum(np.abs(u) + np.sqrt(9.81 * p[0]), np.abs(v) + np.sqrt(9.81 * q[0]))
        of_p, of_q = (
            np.stack([w[1], w[1] * by + 9.81 / 2 * w[0] ** 2, w[2] * by])
            for w, by in ((p, u), (q, v))
        )
        return (of_p + of_q - speed * (q - p)) / 2

    cells = np.stack(_double(depth, along, across, shape=(height, width), size=depth.size))
    wide = np.pad(cells, ((0, 0), (1, 1), (1, 1)), mode="edge")
    wide[1, :, [0, -1]] *= -1
    wide[2, [0, -1]] *= -1
    row, turned = wide[:, 1:-1], wide[[0, 2, 1], :, 1:-1]
    cells -= float(ratio) * np.diff(flux(row[..., :-1], row[..., 1:]))
    cells -= float(ratio) * np.diff(flux(turned[:, :-1], turned[:, 1:]), axis=1)[[0, 2, 1]]
    cells[0] -= 10
    return dict(enumerate(cells.reshape(3, -1), 3))


@at(nodes=200)
def gat_aggregate_warp(start, source, of_source, of_node, feature, _, nodes, slope):
    (feature,), y = _double(feature, shape=(nodes, 64)), np.zeros((nodes, 64))
    for node in range(nodes):
        near = source[start[node] : start[node + 1]]
        score = of_source[near].astype(np.float64) + of_node[node]
        p = np.exp(np.where(score > 0, score, float(slope) * score))
        y[node] = p @ feature[near] / max(p.sum(), 1e-30)
    return {5: y.ravel()}


@at(n=5000, dimensions=3, blocks=4)
def sobol_gray_strides(direction, _, n):
    i = np.arange(n, dtype=np.uint32)
    bits = (i ^ i >> 1) >> np.arange(32, dtype=np.uint32)[:, None] & 1
    x = np.bitwise_xor.reduce(bits * direction.reshape(-1, 32, 1), 1)
    return {1: (x * 2.0**-32).ravel()}


@at(n=1000)
def sabr_volatility_double(log_forward, log_strike, _, n, years, alpha, beta, rho, nu):
    alpha, beta, rho, nu = (float(w) for w in (alpha, beta, rho, nu))
    forward, strike = 0.03 * np.exp(log_forward / 10), 0.03 * np.exp(log_strike[:n] / 5)
    rest = 1 - beta
    log, middle = np.log(forward / strike), (forward * strike) ** (rest / 2)
    z = nu / alpha * middle * log
    chi = np.log((np.sqrt(1 - 2 * rho * z + z**2) + z - rho) / (1 - rho))
    in_time = (rest * alpha / middle) ** 2 / 24 + rho * beta * nu * alpha / (4 * middle)
    in_time += (2 - 3 * rho**2) / 24 * nu**2
    series = 1 + (rest * log) ** 2 / 24 + (rest * log) ** 4 / 1920
    return {2: alpha / (middle * series) * z / chi * (1 + in_time * float(years))}


@at(width=70, height=20, pictures=2)
def recursive_gaussian_columns(source, _, width, height, a0, a1, a2, a3, b1, b2):
    x = source.view(np.uint8).reshape(-1, height, 4 * width).swapaxes(0, 1).astype(np.float64)
    a0, a1, a2, a3, b1, b2 = (float(w) for w in (a0, a1, a2, a3, b1, b2))

    def blend(lines, last, p, q):
        """The filter's sums, each before that of the line itself has moved it on."""
        y = before = (p + q) / (1 + b1 + b2) * last
        for line in lines:
            y, before = p * line + q * last - b1 * y - b2 * before, y
            last = line
            yield y

    def byte(y):
        return np.rint(np.clip(y, 0, 255))

    down = byte(np.stack([*blend(x, x[0], a0, a1)]))
    later = [x[-1], *x[:0:-1]]  # the line behind each, from the last one up
    up = np.stack([*blend(later, x[-1], a2, a3)])[::-1]
    found = byte(down + up).astype(np.uint8).swapaxes(0, 1)
    return {1: found.ravel().view(np.int32)}


@at(rays=500, triangles=100)
def ray_triangles_nearest(origin, direction, corner, _far, _hit, rays, _triangles):
    origin, direction = _double(origin, direction, shape=(-1, 1, 3), size=3 * rays)
    first, second, third = np.moveaxis(*_double(corner, shape=(-1, 3, 3)), 1, 0)
    edges = np.broadcast_arrays(second - first, third - first, -direction)
    met = np.linalg.solve(np.stack(edges, -1), (origin - first)[..., None])
    u, w, far = np.moveaxis(met[..., 0], -1, 0)
    far = np.where((u >= 0) & (w >= 0) & (u + w <= 1) & (far > 1e-5), far, 1e30)
    hit = np.where(far.min(1) < 1e30, far.argmin(1), -1)
    assert 0 < np.count_nonzero(hit < 0) < rays
    return {3: far.min(1), 4: hit.astype(np.int32)}
