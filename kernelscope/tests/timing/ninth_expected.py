"""What the kernels of held_out_ninth/ should give at small shapes, by NumPy."""

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


@at(n=1500)
def lion_step(weight, gradient, mean, _weight, _mean, quads, rate, decay):
    w, g, m = (v[: 4 * quads].astype(np.float64) for v in (weight, gradient, mean))
    step = np.sign(0.9 * m + 0.1 * g)
    assert 0.4 < (step > 0).mean() < 0.6
    return {3: w - float(rate) * (step + float(decay) * w), 4: 0.99 * m + 0.01 * g}


@at(images=2, channels=3, size=1204)
def instance_norm_plane(x, scale, shift, _, channels, size):
    x = x.reshape(-1, channels, size).astype(np.float64)
    apart = x - x.mean(-1, keepdims=True)
    normal = apart / np.sqrt((apart**2).mean(-1, keepdims=True) + 1e-5)
    return {3: (normal * scale[:, None] + shift[:channels, None]).ravel()}


@at(channels=3, height=11, width=14)
def deformable_columns(x, offset, mask, _, channels, height, width):
    x = x.reshape(channels, height, width).astype(np.float64)
    row, column = np.indices((height, width))
    found = []
    for tap, (y, z) in enumerate(offset.reshape(9, 2, height, width).astype(np.float64)):
        h, w = row - 1 + tap // 3 + y, column - 1 + tap % 3 + z
        share = 0
        for i in range(height):
            for j in range(width):
                near = np.maximum(1 - abs(h - i), 0) * np.maximum(1 - abs(w - j), 0)
                share = share + near * x[:, i, j, None, None]
        found.append(share * mask.reshape(9, height, width)[tap])
    return {3: np.stack(found, 1).ravel()}


@at(batch=2, length=12, channels=70)
def wkv_forward(decay, bonus, k, v, _, batch, length, channels):
    decay, bonus = np.exp(decay.astype(np.float64)), bonus[:channels].astype(np.float64)
    k, v = (w[: k.size].reshape(batch, length, channels).astype(np.float64) for w in (k, v))
    found = np.empty_like(k)
    for t in range(length):
        age = np.arange(t - 1, -1, -1)[:, None]
        share = np.exp(k[:, : t + 1])
        share[:, :t] *= np.exp(-age * decay)
        share[:, t] *= np.exp(bonus)
        found[:, t] = (share * v[:, : t + 1]).sum(1) / share.sum(1)
    return {4: found.ravel()}


@at(heads=2, n=48)
def linear_attention_causal(q, k, v, _, n):
    q, k, v = (w[: q.size].reshape(-1, n, 64).astype(np.float64) for w in (q, k, v))
    return {3: (q @ k.swapaxes(1, 2) * np.tri(n) @ v).ravel()}


@at(rows=45)
def rows_dot_half(dy, y, _, rows):
    dy, y = (v[: 64 * rows].reshape(rows, 64).astype(np.float64) for v in (dy, y))
    return {2: (dy * y).sum(1)}


@at(rows=3)
def hadamard_rows(x, _):
    signs = np.ones((1, 1))
    while len(signs) < 1024:
        signs = np.block([[signs, signs], [signs, -signs]])
    return {1: (x.reshape(-1, 1024) @ signs / 32).astype(np.float16).ravel()}


@at(rows=21, k=1024)
def gemv_int8_half(weight, scale, x, _, rows, k):
    weight = weight.reshape(rows, k).astype(np.float64)
    return {3: (scale * (weight @ x)).astype(np.float16)}


@at(tokens=96, m=64, n=128)
def weight_gradient_wmma(dy, x, _, tokens, m, n):
    dy = dy.reshape(tokens, m).astype(np.float64)
    return {2: (dy.T @ x[: tokens * n].reshape(tokens, n)).ravel()}


@at(n=300, count=5)
def mixture_density(x, log_weight, mean, lower, _, n, count):
    x, mean = (v.reshape(-1, 16).astype(np.float64) for v in (x, mean))
    roots = np.tril(lower.reshape(count, 16, 16).astype(np.float64))
    square = (np.einsum("ngd,gde->nge", x[:, None] - mean, roots) ** 2).sum(-1)
    return {4: np.logaddexp.reduce(log_weight - square / 2, axis=1)}


@at(n=2048, bits=4)
def gear_boundaries(text, gear, _, n, bits):
    h, found = 0, np.zeros(n, np.uint8)
    for i, byte in enumerate(text.view(np.uint8)):
        h = (2 * h + int(gear[byte])) % 2**64
        found[i] = h >> (64 - int(bits)) == 0
    assert 0.03 < found.mean() < 0.1
    return {2: np.packbits(found, bitorder="little").view(np.int32)}


@at(blocks=2)
def merge_sort_block(key, _):
    return {1: np.sort(key.reshape(-1, 1024)).ravel()}


@at(n=500)
def morton_codes_63(point, _, n, low, cells):
    parts = np.clip((point - low) * cells, 0, 2**21 - 1).astype(np.uint64).reshape(n, 3)
    code = np.zeros(n, np.uint64)
    for bit in range(21):
        for axis in range(3):
            one = parts[:, axis] >> np.uint64(bit) & np.uint64(1)
            code |= one << np.uint64(3 * bit + axis)
    return {1: code}


@at(sites=300)
def felsenstein_sites(left, right, step_left, step_right, _, sites):
    found = 1
    for child, step in ((left, step_left), (right, step_right)):
        child = child[: 16 * sites].reshape(4, sites, 4).astype(np.float64)
        found = found * np.einsum("rst,rnt->rns", step[:64].reshape(4, 4, 4), child)
    return {4: found.ravel()}


@at(nodes=150, pairs=45)
def common_neighbours(first, other, pair, _, pairs):
    assert first[-1] <= len(other)
    lists = [other[a:b] for a, b in zip(first[:-1], first[1:], strict=True)]
    found = [(lists[a][:, None] == lists[b]).sum() for a, b in pair.reshape(pairs, 2)]
    assert len({*found}) > 10
    return {3: np.array(found, np.int32)}


@at(side=8)
def spmv_dia_double(value, x, before, side):
    """The array is a number longer, which stays."""
    n = side**3
    found = np.zeros(n)
    offsets = (-(side**2), -side, -1, 0, 1, side, side**2)
    for diagonal, offset in zip(value.reshape(7, n), offsets, strict=True):
        column = np.arange(n) + offset
        inside = (column >= 0) & (column < n)
        found[inside] += diagonal[inside] * x[column[inside]]
    return {2: np.append(found, before[-1:])}


@at(nodes=200, walks=150, steps=6, seed=3)
def random_walks(first, other, _, walks, steps, nodes, seed):
    assert first[-1] <= len(other)
    state = np.uint32(seed) ^ np.arange(walks, dtype=np.uint32) * np.uint32(0x9E3779B9)

    def drawn():
        nonlocal state
        state = state * np.uint32(747796405) + np.uint32(2891336453)
        word = (state >> (state >> np.uint32(28)) + np.uint32(4) ^ state) * np.uint32(277803737)
        return word >> np.uint32(22) ^ word

    start = (drawn() % np.uint32(nodes)).astype(int)
    path = [start]
    for _step in range(steps):
        begin = first[path[-1]]
        edges = (first[path[-1] + 1] - begin).astype(np.uint64)
        place = begin + (drawn() * edges >> np.uint64(32)).astype(int)
        path.append(np.where(edges > 0, other[np.minimum(place, len(other) - 1)], start))
    assert len({*np.ravel(path).tolist()}) > 100
    return {2: np.array(path, np.int32).T.ravel()}


@at(systems=6)
def trsm_32(lower, b, _, systems, omega):
    lower, b = (v[: 1024 * systems].reshape(systems, 32, 32) for v in (lower, b))
    matrix = np.eye(32) + float(omega) * np.tril(lower.astype(np.float64), -1)
    return {2: np.linalg.solve(matrix, b.astype(np.float64)).ravel()}


@at(depth=5, height=7, width=70)
def yee_magnetic(*arguments):
    *fields, _x, _y, _z, depth, height, width, by = arguments
    fields = (v[: depth * height * width].reshape(depth, height, width) for v in fields)
    ex, ey, ez, *h = (v.astype(np.float64) for v in fields)

    def slope(v, axis):
        return np.diff(v, axis=axis, append=0)

    curl = (
        slope(ez, 1) - slope(ey, 0),
        slope(ex, 0) - slope(ez, 2),
        slope(ey, 2) - slope(ex, 1),
    )
    return {
        6 + i: (v - float(by) * c).ravel() for i, (v, c) in enumerate(zip(h, curl, strict=True))
    }


@at(pairs=150, days=60)
def garch_likelihood(returns, u, v, _, pairs, days, level):
    a, b = (s / (1 + np.exp(-w[:pairs].astype(np.float64))) for s, w in ((0.2, u), (0.8, v)))
    variance, total = np.full(pairs, float(level)), 0
    for square in returns.astype(np.float64) ** 2:
        total = total + np.log(variance) + square / variance
        variance = (1 - a - b) * float(level) + a * square + b * variance
    return {3: total / (2 * days)}


@at(n=200, slots=9)
def lj_neighbour_list(position, neighbour, _, n, slots, box, cutoff):
    position = position.reshape(n, 4)[:, :3].astype(np.float64)
    apart = position - position[neighbour.reshape(slots, n)]
    apart -= box * np.rint(apart / box)
    square = (apart**2).sum(-1)
    near = square < float(cutoff) ** 2
    assert 0.1 < near.mean() < 0.9
    r = near / (square + 0.8)
    along = 24 * r * r**3 * (2 * r**3 - 1)
    force = (along[..., None] * apart).sum(0)
    energy = (2 * r**3 * (r**3 - 1)).sum(0)
    return {2: np.column_stack([force, energy]).ravel()}


@at(n=300)
def kepler_newton(time, _, n, eccentricity, rate, angle):
    e, mean = float(eccentricity), float(rate) * time
    low, high = mean - 1, mean + 1
    for _halving in range(60):
        middle = (low + high) / 2
        after = middle - e * np.sin(middle) > mean
        low, high = np.where(after, low, middle), np.where(after, middle, high)
    place = 2 * np.arctan2(np.sqrt(1 + e) * np.sin(low / 2), np.sqrt(1 - e) * np.cos(low / 2))
    return {1: np.cos(place + float(angle)) + e * np.cos(float(angle))}


@at(height=21, width=45)
def lucas_kanade_5x5(before, after, _, height, width):
    before, after = (
        v[: height * width].reshape(height, width).astype(np.float64) for v in (before, after)
    )
    wide, later = np.pad(before, 3, mode="edge"), np.pad(after, 2, mode="edge")
    x = (wide[1:-1, 2:] - wide[1:-1, :-2]) / 2
    y = (wide[2:, 1:-1] - wide[:-2, 1:-1]) / 2
    slopes = x, y, later - wide[1:-1, 1:-1]
    x, y, t = (np.lib.stride_tricks.sliding_window_view(v, (5, 5)) for v in slopes)
    xx, xy, yy, xt, yt = ((a * b).sum((2, 3)) for a, b in ((x, x), (x, y), (y, y), (x, t), (y, t)))
    size = xx * yy - xy * xy
    assert size.min() > 1e-4
    return {2: np.stack([xy * yt - yy * xt, xy * xt - xx * yt] / size, -1).ravel()}


@at(n=200, levels=5, bits=13)
def hash_grid_encode(point, table, _, n, bits, finer):
    point = point.reshape(n, 3)
    point = point - np.floor(point)
    table = table.reshape(-1, 2**bits, 2).astype(np.float64)
    found, sides = [], []
    for level, features in enumerate(table):
        cells = np.floor(16 * 2 ** (level * float(finer)))
        at_cell = point * cells
        low = np.minimum(np.floor(at_cell), cells - 1)
        part, low, side = at_cell - low, low.astype(np.uint32), np.uint32(cells + 1)
        sides.append(int(side) ** 3)
        total = np.zeros((n, 2))
        for corner in np.ndindex(2, 2, 2):
            x, y, z = (low + np.array(corner, np.uint32)).T
            weight = np.where(corner, part, 1 - part).prod(1)
            place = x ^ y * np.uint32(2654435761) ^ z * np.uint32(805459861)
            place &= np.uint32(2**bits - 1)
            if sides[-1] <= 2**bits:
                place = (z * side + y) * side + x
            total += weight[:, None] * features[place]
        found.append(total)
    assert min(sides) <= 2**bits < max(sides)
    return {2: np.array(found).astype(np.float16).ravel()}
