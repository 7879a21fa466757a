"""What the kernels of held_out_fourth/ should give at small shapes, by NumPy."""

import hashlib

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


@at(batch=2, channels=3, length=1300)
def causal_conv_4(x, weight, bias, _, length):
    x = x.reshape(-1, len(bias), length).astype(np.float64)
    padded = np.pad(x, ((0, 0), (0, 0), (3, 0)))
    weight = weight.reshape(-1, 4)
    v = bias[:, None] + sum(weight[:, i : i + 1] * padded[..., i : i + length] for i in range(4))
    return {3: (v * sigmoid(v)).ravel()}


@at(batch=2, length=5, channels=70)
def selective_scan(x, step, b, c, _, length, channels):
    x, step = (v[: x.size].reshape(-1, length, channels).astype(np.float64) for v in (x, step))
    b, c = (v[: b.size].reshape(-1, length, 8) for v in (b, c))
    delta, state = np.log1p(np.exp(step)), np.zeros((len(x), channels, 8))
    y = np.zeros_like(x)
    for t in range(length):
        decay = np.exp(-np.arange(1, 9) * delta[:, t, :, None])
        state = decay * state + (delta * x)[:, t, :, None] * b[:, t, None]
        y[:, t] = (state * c[:, t, None]).sum(-1)
    return {4: y.ravel()}


@at(batch=3, hidden=100)
def lstm_cell(x, h, bias, cell, *_):
    hidden = len(bias) // 4
    x, h = (v[: 4 * cell.size].reshape(-1, 4, hidden).astype(np.float64) for v in (x, h))
    gates = x + h + bias.reshape(4, hidden)
    entry, kept, new, shown = gates.transpose(1, 0, 2)
    cell = sigmoid(kept) * cell.reshape(-1, hidden) + sigmoid(entry) * np.tanh(new)
    return {4: cell.ravel(), 5: (sigmoid(shown) * np.tanh(cell)).ravel()}


@at(n=100)
def nms_mask(box, mask, n, limit):
    center, half = np.split(box.reshape(-1, 4).astype(np.float64), 2, axis=1)
    low, high = 2 * center - 1 - abs(half), 2 * center + 1 + abs(half)
    sides = np.minimum(high[:, None], high) - np.maximum(low[:, None], low)
    common, area = np.maximum(sides, 0).prod(-1), (high - low).prod(-1)
    over = np.triu(common / (area[:, None] + area - common) > limit, 1)
    assert 10 < over.sum() < 1000
    rows = np.packbits(np.pad(over, ((0, 0), (0, -n % 64))), axis=1, bitorder="little")
    return {1: np.ascontiguousarray(rows).view(np.int32).ravel()}


@at(regions=3, channels=2, height=14, width=18)
def roi_align(features, region, _, _total, _channels, height, width):
    found = []
    for x, y, wide, high in region.reshape(-1, 4).astype(np.float64):
        w, h = np.maximum(1, 0.2 * np.array([width, height]) * np.exp([0.3 * wide, 0.3 * high]))
        part = (np.arange(14) + 0.5) / 14
        x = width * (0.5 + 0.15 * x) + w * (part - 0.5)
        y = height * (0.5 + 0.15 * y) + h * (part - 0.5)
        for plane in features.reshape(-1, height, width):
            values = weights(y, height) @ plane @ weights(x, width).T
            found.append(values.reshape(7, 2, 7, 2).mean((1, 3)))
    return {2: np.array(found).ravel()}


def weights(place, size):
    """(places, size): how much of each pixel is at places between them; 0 outside."""
    tent = np.maximum(0, 1 - abs(np.clip(place, 0, size - 1)[:, None] - np.arange(size)))
    return tent * ((place >= -1) & (place <= size))[:, None]


@at(nodes=500)
def bfs_level(first, edge, frontier, visited, *_):
    reached = np.zeros(len(frontier), int)
    for node in np.flatnonzero(frontier == 0):
        reached[edge[first[node] : first[node + 1]]] = 1
    reached[visited[:-1] != 0] = 0
    assert first[-1] <= len(edge) and 50 < reached.sum() < 300
    return {4: 3 * reached, 5: reached}


@at(quads=300)
def push_ranks(source, target, rank, *_):
    given = 0.85 * rank[source].astype(np.float64)
    return {3: np.bincount(target, given, len(rank))}


@at(lists=130, length=12)
def common_documents(gaps, other_gaps, _, lists, length):
    both = [v[: lists * length].reshape(lists, length) for v in (gaps, other_gaps)]
    numbers = [np.cumsum(v, 1) + np.arange(length) for v in both]
    found = [len(np.intersect1d(a, b)) for a, b in zip(*numbers, strict=True)]
    assert len({*found}) > 3
    return {2: np.array(found)}


@at(a=1900, b=1500)
def merge_sorted(a, b, *_):
    return {2: np.sort(np.concatenate([a, b]))}


@at(blocks=2)
def sort_1024(keys, _):
    rows = keys.reshape(-1, 1024)
    order = np.argsort(rows & np.uint32(0xFFFF), axis=1, kind="stable")
    return {1: np.take_along_axis(rows, order, 1).view(np.int32).ravel()}


@at(n=1100)
def aes_rounds(text, _, table, key, n):
    def turned(v, bits):
        return v << np.uint32(bits) | v >> np.uint32(32 - bits)

    def bytes_of(state):
        """Byte r of column c after the rows have shifted: [r] -> (n, 4)."""
        shifts = enumerate((24, 16, 8, 0))
        return [np.roll(state, -r, 1) >> np.uint32(shift) & np.uint32(255) for r, shift in shifts]

    state, key = text.reshape(-1, 4) ^ key[:4], key.reshape(-1, 4)
    for own in key[1:10]:
        columns = [table[b] for b in bytes_of(state)]
        columns = [columns[0]] + [turned(columns[r], 32 - 8 * r) for r in (1, 2, 3)]
        state = columns[0] ^ columns[1] ^ columns[2] ^ columns[3] ^ own
    box = table >> np.uint32(8) & np.uint32(255)
    last = [box[b] << np.uint32(24 - 8 * r) for r, b in enumerate(bytes_of(state))]
    return {1: ((last[0] | last[1] | last[2] | last[3]) ^ key[10]).view(np.int32).ravel()}


@at(n=130)
def sha256_short(message, _, n):
    rows = message.reshape(n, 13).astype(">u4")
    sums = [hashlib.sha256(row.tobytes()).digest() for row in rows]
    return {1: np.frombuffer(b"".join(sums), ">i4").astype(np.int32)}


PRIME = 2**256 - 2**32 - 977


@at(n=150, turns=3)
def montgomery_256(a, b, _, n, turns):
    def numbers(limbs):
        rows = np.ascontiguousarray(limbs[: 8 * n].reshape(8, n).T)
        return [int.from_bytes(row.tobytes(), "little") for row in rows]

    inverse, found = pow(-PRIME, -1, 2**256), []
    for x, y in zip(numbers(a), numbers(b), strict=True):
        for _turn in range(turns):
            x = (x * y + (x * y * inverse % 2**256) * PRIME) >> 256
            x -= PRIME if x >= PRIME else 0
        found.append(x)
    limbs = np.frombuffer(b"".join(x.to_bytes(32, "little") for x in found), np.int32)
    return {2: limbs.reshape(n, 8).T.ravel()}


@at(n=300, words=256, steps=5)
def walk_index(words, ones, start, _, n, count, steps):
    bits = (words[:, None] >> np.arange(32, dtype=np.uint32) & 1).ravel().astype(int)
    before = np.cumsum(bits.reshape(-1, 256), axis=1) - bits.reshape(-1, 256)
    rank = (ones[:, None] + before).ravel()
    place, mask = start.astype(np.int64) & 32 * count - 1, 32 * count - 1
    for _step in range(steps):
        up = 16 * count + rank[place]
        place = np.where(bits[place], up, place - rank[place]) & mask
    return {3: place}


@at(blocks=3, width=11)
def unpack_deltas(packed, base, _, width):
    bits = (packed[:-1, None] >> np.arange(32, dtype=np.uint32) & 1).reshape(-1, width)
    raw = (bits.astype(int) << np.arange(width)).sum(1)
    deltas = np.where(raw & 1, -1 - (raw >> 1), raw >> 1).reshape(-1, 1024)
    return {2: (base[:, None] + np.cumsum(deltas, 1)).ravel()}


@at(height=20, width=30, count=12)
def ray_spheres(sphere, _, height, width, count):
    s = sphere.reshape(-1, 4).astype(np.float64)
    center, size = s[:, :3] * (2, 1, 1) + (0, 0, 6), 0.1 + 0.2 * abs(s[:, 3])
    y, x = np.mgrid[:height, :width] + 0.5
    rays = np.stack([(x - width / 2) / height, y / height - 0.5, np.ones_like(x)], -1)
    rays /= np.linalg.norm(rays, axis=-1, keepdims=True)
    along = rays @ center.T
    rest = along**2 - (center**2).sum(1) + size**2
    far = np.where(rest < 0, np.inf, along - np.sqrt(np.maximum(rest, 0)))
    far = np.where(far > 0, far, np.inf)
    nearest = far.argmin(-1)
    hit = np.isfinite(far.min(-1))
    depth = np.where(hit, far.min(-1), 0)
    light = np.maximum(0.1, (center[nearest, 1] - depth * rays[..., 1]) / size[nearest])
    assert 20 < hit.sum() < hit.size - 20
    return {1: np.where(hit, light, 0).ravel()}


@at(columns=2, rows=2, count=90)
def splat_tiles(spot, _, count):
    spots = spot.reshape(2, 2, count, 8).astype(np.float64)
    x, y = np.meshgrid(np.arange(16) - 8.0, np.arange(16) - 8.0)
    image, opaque = np.zeros((2, 16, 2, 16)), 0
    for row, column in np.ndindex(2, 2):
        through, grey = np.ones((16, 16)), np.zeros((16, 16))
        for px, py, opacity, own, a, b, c, _weight in spots[row, column]:
            dx, dy = x - 6 * px, y - 6 * py
            power = 0.045 * ((a * dx + b * dy) ** 2 + (c * dy) ** 2)
            seen = (power <= 5.5) & (through >= 1e-3)
            alpha = np.where(seen, 0.9 * np.exp(-power) * sigmoid(opacity), 0)
            grey, through = grey + through * alpha * own, through * (1 - alpha)
        image[row, :, column] = grey
        opaque += (through < 1e-3).sum()
    assert 0 < opaque < image.size
    return {1: image.ravel()}


@at(height=16, width=256)
def dct_quantise(image, _, width, step):
    pixels = image.view(np.uint8).reshape(-1, 8, width // 8, 8).astype(np.float64) - 128
    k = np.arange(8)
    cosines = np.cos(np.pi * k[:, None] * (2 * k + 1) / 16) * np.where(k, 0.5, 0.5**1.5)[:, None]
    found = np.einsum("ui,ribj,vj->rubv", cosines, pixels, cosines)
    steps = step * (1 + k[:, None, None] + k)
    return {1: np.rint(found / steps).astype(np.int16).ravel().view(np.int32)}


@at(height=12, width=40, most=6)
def stereo_match(left, right, _, height, width, most):
    left, right = (v.view(np.uint8)[: height * width].reshape(height, width) for v in (left, right))
    x = np.pad(np.arange(width), 2, mode="edge")
    costs = []
    for moved in range(most):
        apart = abs(left[:, x].astype(int) - right[:, np.maximum(x - moved, 0)])
        rows = np.pad(apart, ((2, 2), (0, 0)), mode="edge")
        costs.append(sum(rows[j : j + height, i : i + width] for j in range(5) for i in range(5)))
    return {2: np.argmin(costs, axis=0).ravel()}


@at(height=40, width=36, angles=12)
def hough_vote(image, _, height, width, angles):
    y, x = np.nonzero(image.reshape(height, width) >= 115)
    turn = np.pi * np.arange(angles)[:, None] / angles
    apart = np.floor(x * np.cos(turn) + y * np.sin(turn) + 0.25).astype(int) + width + height
    assert len(x) > 30
    size = 2 * (height + width)
    return {1: np.concatenate([np.bincount(row, minlength=size) for row in apart])}


@at(height=7, width=140)
def lattice_boltzmann(f, _, height, width, unit, relax):
    ways = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
    weight = np.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)[:, None, None]
    planes = unit * f.reshape(9, height, width).astype(np.float64)
    here = np.stack([np.roll(v, (y, x), (0, 1)) for v, (x, y) in zip(planes, ways, strict=True)])
    density = 1 + here.sum(0)
    u, v = np.einsum("id,iyx->dyx", np.array(ways), here) / density
    x, y = np.array(ways).T[..., None, None]
    along = 3 * (x * u + y * v)
    rest = weight * (density * (1 + along + along**2 / 2 - 1.5 * (u**2 + v**2)) - 1)
    return {1: ((here + relax * (rest - here)) / unit).ravel()}


@at(points=200, samples=150)
def wave_sums(point, sample, *_):
    sample = sample.reshape(-1, 4).astype(np.float64)
    angle = 2 * np.pi * sample[:, :3] @ point.reshape(3, -1)
    return {2: sample[:, 3] @ np.cos(angle), 3: sample[:, 3] @ np.sin(angle)}


@at(options=3, steps=30)
def put_tree(spot, _, steps, move):
    start, up, rate = 100 * np.exp(0.2 * spot.astype(np.float64)), np.exp(float(move)), 1.0001
    share = (rate - 1 / up) / (up - 1 / up)
    value = None
    for last in range(steps, -1, -1):
        own = np.maximum(100 - start[:, None] * up ** (2 * np.arange(last + 1) - last), 0)
        if value is not None:
            kept = (share * value[:, 1:] + (1 - share) * value[:, :-1]) / rate
            own = np.maximum(kept, 100 - start[:, None] * up ** (2 * np.arange(last + 1) - last))
        value = own
    return {1: value[:, 0]}


@at(paths=100, steps=4, rates=14)
def forward_rates(normals, _, paths, steps, rates):
    forward = np.full((rates, paths), 0.05)
    for n, normal in enumerate(normals.reshape(steps, paths).astype(np.float64)):
        drift = 0
        for i in range(n + 1, rates):
            drift = drift + 0.05 * forward[i] / (1 + 0.25 * forward[i])
            forward[i] *= np.exp(0.2 * drift + 0.2 * (0.5 * normal - 0.025))
    bond = np.cumprod(1 / (1 + 0.25 * forward[steps:]), axis=0)
    swaps = bond + 0.045 * 0.25 * np.cumsum(bond, axis=0) - 1
    return {1: np.maximum(swaps, 0).sum(0)}


@at(count=5)
def householder_warp(matrices, *_):
    before = matrices.reshape(-1, 32, 8).astype(np.float64)
    m = before.copy()
    for k in range(8):
        v = np.where(np.arange(32) >= k, m[:, :, k], 0)
        v[:, k] += np.copysign(np.linalg.norm(v, axis=1), v[:, k])
        scale = 2 / (v**2).sum(1)[:, None, None]
        m -= scale * v[..., None] * np.einsum("ni,nij->nj", v, m)[:, None]
    np.testing.assert_allclose(*(v.transpose(0, 2, 1) @ v for v in (m, before)), atol=1e-12)
    return {1: m.ravel()}


@at(particles=700, cells=16)
def deposit_charge(px, py, _, particles, cells):
    x, y = (np.float32(0.25) * v[:particles] for v in (px, py))
    x, y = ((v - np.floor(v)).astype(np.float64) * cells for v in (x, y))
    left, top = x.astype(int), y.astype(int)
    grid = np.zeros((cells, cells))
    for i, a in ((left, 1 - x + left), (left + 1, x - left)):
        for j, b in ((top, 1 - y + top), (top + 1, y - top)):
            np.add.at(grid, (j % cells, i % cells), a * b)
    return {2: grid.ravel()}


def tf32(v):
    """Numbers to the nearest of ten bits, ties away from zero."""
    return (v.view(np.uint32) + 0x1000 & 0xFFFFE000).view(np.float32).astype(np.float64)


@at(m=64, n=128, k=64)
def tf32_staged(a, b, _, n, k):
    return {2: (tf32(a).reshape(-1, k) @ tf32(b).reshape(n, k).T).ravel()}


@at(m=32, n=64, k=24)
def dmma_product(a, b, _, n, k):
    return {2: (a.reshape(-1, k) @ b.reshape(k, n)).ravel()}


@at(images=2, height=3)
def implicit_conv(x, weight, _, height):
    images = np.pad(x.reshape(-1, height, 64, 64), ((0, 0), (1, 1), (1, 1), (0, 0)))
    y = 0
    for place, matrix in enumerate(weight.reshape(9, 64, 64).astype(np.float64)):
        j, i = divmod(place, 3)
        y = y + images[:, j : j + height, i : i + 64] @ matrix
    return {2: y.ravel()}


@at(rods=2, steps=7)
def rods_in_clusters(before, _, steps, rate):
    rods = before.reshape(-1, 1024).astype(np.float64)
    for _step in range(steps):
        padded = np.pad(rods, ((0, 0), (1, 1)), mode="edge")
        rods = rods + rate * (padded[:, :-2] - 2 * rods + padded[:, 2:])
    return {1: rods.ravel()}
