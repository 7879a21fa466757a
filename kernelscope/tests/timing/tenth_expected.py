"""What the kernels of held_out_tenth/ should give at small shapes, by NumPy."""

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


@at(tokens=3, width=520)
def swiglu_backward_half(gate, up, dy, _gate, _up, eights):
    g, u, d = (v[: 8 * eights].astype(np.float64) for v in (gate, up, dy))
    s = 1 / (1 + np.exp(-g))
    found = d * u * s * (1 + g * (1 - s)), d * g * s
    return {3 + i: v.astype(np.float16) for i, v in enumerate(found)}


@at(rows=11)
def l2_normalise_backward(x, dy, _, rows):
    x, dy = (v[: 768 * rows].reshape(rows, 768).astype(np.float64) for v in (x, dy))
    size = np.linalg.norm(x, axis=1, keepdims=True)
    y = x / size
    return {2: ((dy - y * (y * dy).sum(1, keepdims=True)) / size).ravel()}


@at(images=2, height=9, width=11, channels=6)
def depthwise_7x7_nhwc(x, weight, bias, _, images, height, width, channels):
    x = x.reshape(images, height, width, channels).astype(np.float64)
    x = np.pad(x, ((0, 0), (3, 3), (3, 3), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (7, 7), (1, 2))
    found = np.einsum("nhwcij,ijc->nhwc", windows, weight.reshape(7, 7, channels)) + bias
    return {3: found.astype(np.float16).ravel()}


@at(batch=2, channels=3, height=5, width=7)
def pixel_shuffle_2(x, _, total, height, width):
    apart = x.reshape(-1, 2, 2, height, width)
    return {1: apart.transpose(0, 3, 1, 4, 2).ravel()}


@at(n=128, layers=3)
def mlp_fused_wmma(x, weight, _, layers, scale):
    v = x.reshape(-1, 64)
    for matrix in weight.reshape(layers, 64, 64).astype(np.float64):
        v = np.maximum(float(scale) * (v.astype(np.float64) @ matrix), 0).astype(np.float16)
    assert 0.3 < (v > 0).mean() < 0.7
    return {2: v.ravel()}


@at(m=64, n=128, k=96, splits=3)
def sgemm_split_k(a, b, _, m, n, k):
    b = b[: n * k].reshape(k, n)
    return {2: (a.reshape(m, k).astype(np.float64) @ b).ravel()}


@at(batch=2, queries=19, keys=35, depth=64)
def additive_scores(query, key, v, _, queries, keys, depth):
    query = query.reshape(-1, queries, 1, depth).astype(np.float64)
    key = key[: len(query) * keys * depth].reshape(-1, 1, keys, depth)
    return {3: (np.tanh(query + key) @ v).ravel()}


@at(tokens=50, tiles=3, experts=3, k=64, n=128)
def moe_gather_wmma(x, index, expert, weight, _, k, n):
    rows = x.reshape(-1, k)[index].reshape(-1, 64, k).astype(np.float64)
    experts = weight[:-8].reshape(-1, k, n)
    assert len(set(expert.tolist())) > 1
    return {4: (rows @ experts[expert]).ravel()}


@at(blocks=70)
def chacha20_xor(text, key, nonce, _, blocks):
    letters = np.frombuffer(b"expand 32-byte k", np.uint32)
    state = np.empty((16, blocks), np.uint32)
    state[:12] = np.concatenate([letters, key])[:, None]
    state[12] = np.arange(1, blocks + 1)
    state[13:] = nonce[:, None]
    v = state.copy()
    columns = np.arange(4)
    for turn in range(20):
        a, b, c, d = (4 * i + (columns + i * (turn % 2)) % 4 for i in range(4))
        for to, by, other, bits in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            v[to] += v[by]
            mixed = v[other] ^ v[to]
            v[other] = mixed << np.uint32(bits) | mixed >> np.uint32(32 - bits)
    return {3: text ^ (v + state).T.ravel()}


@at(images=2, count=150)
def orb_match(query, train, _, count):
    query, train = (
        np.unpackbits(v[: query.size].view(np.uint8)).reshape(-1, count, 256)
        for v in (query, train)
    )
    apart = (query[:, :, None] != train[:, None]).sum(-1)
    return {2: np.stack([apart.argmin(-1), apart.min(-1)], -1).astype(np.int32).ravel()}


@at(rows=3, n=2500)
def cumsum_rows_i64(x, _, n):
    return {1: np.cumsum(x.reshape(-1, n), axis=1, dtype=np.uint64).ravel()}


@at(n=700, bits=9)
def dictionary_decode(packed, dictionary, _, n, bits):
    flat = np.unpackbits(packed.view(np.uint8), bitorder="little")[: n * bits].reshape(n, bits)
    return {2: dictionary[flat @ (1 << np.arange(bits))]}


@at(nodes=80, entries=900)
def spmv_coo_atomic(row, column, value, x, _, entries):
    found = np.zeros(len(x))
    np.add.at(found, row, value.astype(np.float64) * x[column[:entries]])
    return {4: found}


@at(nodes=300)
def heaviest_neighbour(first, other, weight, taken, _, nodes):
    assert first[-1] <= len(other)
    best = np.full(nodes, -1, np.int32)
    for node in np.flatnonzero(taken == 0):
        edges = slice(first[node], first[node + 1])
        free = (taken[other[edges]] == 0) & (other[edges] != node)
        if free.any():
            best[node] = other[edges][np.where(free, weight[edges], -np.inf).argmax()]
    assert 0.3 < (best >= 0).mean() < 0.7
    return {4: best}


@at(side=7)
def prolong_3d_double(coarse, fine, _, side):
    share = np.zeros((2 * side, side))
    for i, row in enumerate(share):
        row[i // 2] = 0.75
        row[np.clip(i // 2 + (1 if i % 2 else -1), 0, side - 1)] += 0.25
    coarse = coarse.reshape(side, side, side)
    return {2: fine + np.einsum("zk,yj,xi,kji->zyx", share, share, share, coarse).ravel()}


@at(systems=5)
def gauss_jordan_16(matrix, _, shift):
    matrix = matrix.reshape(-1, 16, 16).astype(np.float64)
    return {1: np.linalg.inv(matrix + float(shift) * np.eye(16)).ravel()}


@at(options=6, steps=40)
def binomial_american(z, _, steps, volatility, rate, years):
    dt, spot = float(years) / steps, 100 * np.exp(0.1 * z.astype(np.float64))[:, None]
    up = float(volatility) * np.sqrt(dt)
    rise = (np.exp(float(rate) * dt) - np.exp(-up)) / (np.exp(up) - np.exp(-up))
    value = 0.0
    for step in range(steps, -1, -1):
        now = np.maximum(100 - spot * np.exp(up * (2 * np.arange(step + 1) - step)), 0)
        if step < steps:
            kept = rise * value[:, 1:] + (1 - rise) * value[:, :-1]
            now = np.maximum(kept * np.exp(-float(rate) * dt), now)
        value = now
    return {1: value[:, 0]}


@at(n=1200, seed=7)
def box_muller_pcg(_, quads, seed):
    def pcg(v):
        state = v * np.uint32(747796405) + np.uint32(2891336453)
        word = (state >> (state >> np.uint32(28)) + np.uint32(4) ^ state) * np.uint32(277803737)
        return word >> np.uint32(22) ^ word

    number = np.arange(0, 4 * quads, 2, dtype=np.uint32)
    a = pcg(np.uint32(seed) ^ number)
    b = pcg(a + number + np.uint32(1))
    radius = np.sqrt(-2 * np.log(((a >> np.uint32(8)) + 1.0) / 2**24))
    angle = 2 * np.pi * (b >> np.uint32(8)) / 2**24
    found = np.stack([radius * np.cos(angle), radius * np.sin(angle)], -1).ravel()
    assert abs(found.mean()) < 0.1 and abs(found.std() - 1) < 0.1
    return {0: found}


@at(height=11, width=37)
def cloth_step(position, velocity, _position, _velocity, height, width, rest, stiffness, dt):
    p, v = (w[: position.size].reshape(height, width, 4) for w in (position, velocity))
    p, v = p.astype(np.float64), v.astype(np.float64)
    wide = np.pad(p[..., :3], ((1, 1), (1, 1), (0, 0)), constant_values=np.nan)
    force = np.zeros((height, width, 3)) + (0, -9.81, 0)
    for y, x in np.ndindex(3, 3):
        if (y, x) != (1, 1):
            apart = wide[y : y + height, x : x + width] - p[..., :3]
            length = np.linalg.norm(apart, axis=-1, keepdims=True) + 1e-6
            natural = float(rest) * np.hypot(y - 1, x - 1)
            force += np.nan_to_num(float(stiffness) * (length - natural) / length * apart)
    v[..., :3] = 0.99 * v[..., :3] + float(dt) * force
    p[..., :3] += float(dt) * v[..., :3]
    return {2: p.ravel(), 3: v.ravel()}


@at(sequences=3, length=9)
def viterbi_64(seen, emission, transition, _, _from, length):
    seen = seen.reshape(-1, length) & 15
    emission, transition = (v.reshape(-1, 64).astype(np.float64) for v in (emission, transition))
    score, before = emission[seen[:, 0]], np.zeros((len(seen), length, 64), np.int8)
    for t in range(1, length):
        ways = score[:, :, None] + transition
        before[:, t] = ways.argmax(1)
        score = ways.max(1) + emission[seen[:, t]]
    return {3: score.ravel(), 4: before.ravel()}


def cubic_shares(size, longer):
    """Return the share of each of `size` pixels in each of `longer` ones; -3/4 is their slope."""
    place = (np.arange(longer) + 0.5) * size / longer - 0.5
    share = np.zeros((longer, size))
    for tap in range(-1, 3):
        near = np.floor(place) + tap
        d = abs(place - near)
        inner, outer = (1.25 * d - 2.25) * d * d + 1, -0.75 * (((d - 5) * d + 8) * d - 4)
        column = np.clip(near, 0, size - 1).astype(int)
        np.add.at(share, (np.arange(longer), column), np.where(d <= 1, inner, outer))
    return share


@at(planes=2, height=9, width=13, tall=14, wide=17)
def bicubic_resize(x, _, height, width, tall, wide):
    x = x.reshape(-1, height, width).astype(np.float64)
    return {1: (cubic_shares(height, tall) @ x @ cubic_shares(width, wide).T).ravel()}


@at(height=12, width=38)
def bayer_to_rgb(raw, _, height, width):
    raw = raw.view(np.uint8).reshape(height, width).astype(int)
    row, column = np.indices(raw.shape)
    colour = np.pad(row % 2 + column % 2, 1, mode="reflect")  # 0 red, 1 green, 2 blue
    wide = np.pad(raw, 1, mode="reflect")
    near = np.lib.stride_tricks.sliding_window_view(wide, (3, 3))
    of_near = np.lib.stride_tricks.sliding_window_view(colour, (3, 3))
    found = []
    for one in range(3):
        is_one = of_near == one
        count = is_one.sum((2, 3))
        mean = ((near * is_one).sum((2, 3)) + count // 2) // count
        found.append(np.where(colour[1:-1, 1:-1] == one, raw, mean))
    return {1: np.stack(found, -1).astype(np.uint8).view(np.int8).ravel()}


@at(height=19, width=21)
def non_local_means(x, _, height, width, strength):
    x = x.reshape(height, width).astype(np.float64)
    wide = np.pad(x, 4, mode="edge")
    around = np.lib.stride_tricks.sliding_window_view(wide, (3, 3))
    total = weights = 0
    for y, z in np.ndindex(7, 7):
        other = around[y : y + height, z : z + width]
        apart = ((other - around[3 : 3 + height, 3 : 3 + width]) ** 2).sum((2, 3))
        weight = np.exp(-float(strength) * apart)
        total, weights = total + weight * other[..., 1, 1], weights + weight
    return {1: (total / weights).ravel()}


@at(side=12, size=21)
def volume_projection(volume, _, side, size, cosine, sine):
    volume = volume.reshape(side, side, side).astype(np.float64)
    v, row, u = np.meshgrid(
        np.arange(side), *2 * [(np.arange(size) + 0.5) * side / size], indexing="ij"
    )
    v, u = v - (side - 1) / 2, u - side / 2
    x = (side - 1) / 2 + float(cosine) * u - float(sine) * v
    z = (side - 1) / 2 + float(sine) * u + float(cosine) * v
    y = np.clip(row - 0.5, 0, side - 1.001)
    inside = (np.minimum(x, z) >= 0) & (np.maximum(x, z) < side - 1)
    assert 0.3 < inside.mean() < 0.9
    found = 0
    for corner in np.ndindex(2, 2, 2):
        share, cell = 1, []
        for place, up in zip((z, y, x), corner, strict=True):
            low = np.clip(np.floor(place), 0, side - 2).astype(int)
            share = share * (place - low if up else 1 - (place - low))
            cell.append(low + up)
        found = found + share * volume[tuple(cell)]
    return {1: np.where(inside, found, -1e30).max(0).ravel()}
