"""What the kernels of held_out_eleventh/ should give at small shapes, by NumPy."""

import math

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


@at(n=3000)
def mish_float4(x, _, quads):
    x = x.astype(np.float64)
    return {1: x * np.tanh(np.log1p(np.exp(x)))}


@at(rows=3)
def residual_layer_norm(x, residual, gamma, beta, _sum, _):
    v = (x.astype(np.float64) + residual[: len(x)]).reshape(-1, 1024)
    apart = v - v.mean(1, keepdims=True)
    y = apart / np.sqrt((apart**2).mean(1, keepdims=True) + 1e-5) * gamma + beta[:1024]
    return {4: v.astype(np.float16).ravel(), 5: y.astype(np.float16).ravel()}


@at(heads=3, tokens=37)
def causal_softmax_rows(score, _, rows, tokens, scale):
    score = float(scale) * score.reshape(-1, tokens, tokens).astype(np.float64)
    share = np.exp(np.where(np.tri(tokens) > 0, score, -np.inf))
    return {1: (share / share.sum(-1, keepdims=True)).ravel()}


@at(planes=21)
def global_average_pool(x, _, planes):
    return {1: x.reshape(planes, 49).astype(np.float64).mean(1)}


@at(m=64, n=128, k=48)
def linear_nt_double_buffer(a, b, bias, _, n, k):
    b = b[: n * k].reshape(n, k)
    return {3: (a.reshape(-1, k).astype(np.float64) @ b.T + bias).ravel()}


@at(m=128, n=256, k=64)
def hgemm_wmma_bias_relu(x, weight, bias, _, n, k):
    weight = weight[: n * k].reshape(k, n)
    y = np.maximum(x.reshape(-1, k).astype(np.float64) @ weight + bias, 0)
    return {3: y.astype(np.float16).ravel()}


@at(m=64, n=32, k=48)
def dgemm_register_2x2(a, b, _, n, k):
    return {2: (a.reshape(-1, k) @ b[: n * k].reshape(k, n)).ravel()}


@at(heads=2, windows=2)
def swin_window_attention(q, k, v, bias, _, scale):
    bias = bias.reshape(-1, 49, 49)
    q, k, v = (w[: q.size].reshape(-1, len(bias), 49, 32).astype(np.float64) for w in (q, k, v))
    share = np.exp(float(scale) * q @ k.swapaxes(2, 3) + bias)
    out = share @ v / share.sum(-1, keepdims=True)
    return {4: out.astype(np.float16).ravel()}


@at(height=21, width=45)
def canny_suppress(x, _, height, width):
    wide = np.pad(x.reshape(height, width).astype(np.float64), 2, mode="edge")
    near = np.lib.stride_tricks.sliding_window_view(wide, (3, 3))
    smooth, slope = np.array([1, 2, 1]), np.array([-1, 0, 1])
    gx, gy = near @ slope @ smooth, near.swapaxes(2, 3) @ slope @ smooth
    strength = np.hypot(gx, gy)
    along = np.round(np.arctan2(gy, gx)[1:-1, 1:-1] / (np.pi / 4)).astype(int) % 4
    row, column = np.indices((height, width)) + 1
    dy, dx = np.array([0, 1, 1, 1])[along], np.array([1, 1, 0, -1])[along]
    own = strength[1:-1, 1:-1]
    beside = np.maximum(strength[row + dy, column + dx], strength[row - dy, column - dx])
    return {1: np.where(own >= beside, own, 0).ravel()}


@at(height=22, width=40)
def warp_perspective_planes(picture, h, _, height, width):
    picture = picture.view(np.uint8).reshape(height, width, 4)[..., :3].astype(np.float64)
    a = h.astype(np.float64)
    y, x = np.indices((height, width))
    over = 1 / (1 + 1e-5 * (a[6] * x + a[7] * y))
    u = ((1 + 0.05 * a[0]) * x + 0.05 * a[1] * y + a[2]) * over
    v = (0.05 * a[3] * x + (1 + 0.05 * a[4]) * y + a[5]) * over
    rows, columns = (
        np.maximum(1 - abs(place[..., None] - np.arange(size)), 0)
        for place, size in ((v, height), (u, width))
    )
    found = np.einsum("yxr,yxc,rcp->pyx", rows, columns, picture) / 255
    mean, spread = np.array([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]])[..., None, None]
    return {2: ((found - mean) / spread).ravel()}


@at(height=3, width=600)
def wavelet_53_rows(x, _, width):
    even, odd = x.reshape(-1, width)[:, ::2], x.reshape(-1, width)[:, 1::2]
    detail = odd - (even + np.pad(even, ((0, 0), (0, 1)), mode="edge")[:, 1:]) // 2
    mean = even + (np.pad(detail, ((0, 0), (1, 0)), mode="edge")[:, :-1] + detail + 2) // 4
    return {1: np.concatenate([mean, detail], 1).ravel()}


@at(kept=300)
def fir_decimate_iq(x, tap, _, kept):
    x = x.reshape(-1, 2).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(x, 128, 0)[::8]
    return {2: (windows @ tap).ravel()}


@at(side=9)
def hpcg_27_point(x, _, side):
    wide = np.pad(x.reshape(side, side, side), 1)
    near = np.lib.stride_tricks.sliding_window_view(wide, (3, 3, 3)).sum((3, 4, 5))
    return {1: 27 * x - near.ravel()}


@at(height=23, width=35)
def advect_semi_lagrangian(velocity, dye, _, height, width, dt):
    velocity, dye = (v.astype(np.float64) for v in (velocity, dye))
    back = float(dt) * velocity.reshape(height, width, 2)
    y, x = np.indices((height, width))
    rows, columns = (
        np.maximum(1 - abs(np.clip(place, 0, size - 1)[..., None] - np.arange(size)), 0)
        for place, size in ((y - back[..., 1], height), (x - back[..., 0], width))
    )
    return {2: np.einsum("yxr,yxc,rc->yx", rows, columns, dye.reshape(height, width)).ravel()}


@at(atoms=60, angles=200)
def bond_angle_forces(position, angle, _, angles, stiffness, cosine):
    p, angle = position.reshape(-1, 4)[:, :3].astype(np.float64), angle.reshape(-1, 3)
    i, j, k = angle[(angle[:, 0] != angle[:, 1]) & (angle[:, 2] != angle[:, 1])].T
    u, v = p[i] - p[j], p[k] - p[j]
    far_u, far_v = (np.linalg.norm(w, axis=1, keepdims=True) for w in (u, v))
    u, v = u / far_u, v / far_v
    dot = (u * v).sum(1, keepdims=True)
    pull = -float(stiffness) * (dot - float(cosine))
    on_i, on_k = pull / far_u * (v - dot * u), pull / far_v * (u - dot * v)
    force = np.zeros_like(p)
    for atom, push in ((i, on_i), (j, -on_i - on_k), (k, on_k)):
        np.add.at(force, atom, push)
    return {2: force.ravel()}


@at(streams=70, steps=5)
def mrg32k3a_uniforms(seed, _, streams, steps):
    moduli, found = (4294967087, 4294944443), []
    states = seed.reshape(2, 3, streams).astype(np.int64)
    (a0, a1, a2), (b0, b1, b2) = (s % m for s, m in zip(states, moduli, strict=True))
    for _ in range(steps):
        a0, a1, a2 = a1, a2, (1403580 * a1 - 810728 * a0) % moduli[0]
        b0, b1, b2 = b1, b2, (527612 * b2 - 1370589 * b0) % moduli[1]
        found.append(np.where(a2 <= b2, a2 - b2 + moduli[0], a2 - b2) / (moduli[0] + 1))
    return {1: np.concatenate(found)}


@at(words=900)
def kmer_histogram(base, _, words):
    letters = np.lib.stride_tricks.sliding_window_view(base & 3, 8).astype(int)
    return {1: np.bincount(letters @ 4 ** np.arange(7, -1, -1), minlength=65536).astype(np.int32)}


@at(n=150)
def hex_encode(x, _, n):
    return {1: np.frombuffer(x.tobytes().hex().encode(), np.int32)}


@at(rows=2)
def rank_sort_rows(x, _):
    return {1: np.sort(x.reshape(-1, 1024), axis=1).ravel()}


@at(columns=5, words=300)
def bitmap_and_count(column, kept, _, words):
    both = (column.reshape(-1, words) & kept).view(np.uint8)
    return {2: np.unpackbits(both, axis=1).sum(1).astype(np.int32)}


@at(vertices=90, faces=200)
def face_normals(vertex, corner, _normal, _area, faces):
    a, b, c = vertex.reshape(-1, 3).astype(np.float64)[corner.reshape(faces, 3)].swapaxes(0, 1)
    across = np.cross(b - a, c - a)
    length = np.linalg.norm(across, axis=1)
    over = np.where(length > 1e-5, 1 / np.maximum(length, 1e-5), 0)
    return {2: (across * over[:, None]).ravel(), 3: length / 2}


@at(places=70, cities=30)
def haversine_nearest(place, city, _nearest, _kilometres, places, cities):
    (x, y), (u, v) = (w.reshape(-1, 2).T.astype(np.float64) for w in (place, city))
    a = np.sin((u - x[:, None]) / 2) ** 2
    a = a + np.cos(x)[:, None] * np.cos(u) * np.sin((v - y[:, None]) / 2) ** 2
    far = 2 * 6371 * np.arcsin(np.sqrt(np.clip(a.min(1), 0, 1)))
    return {2: a.argmin(1).astype(np.int32), 3: far}


@at(options=40, halvings=30)
def implied_volatility_bisect(money, price, _, options, halvings, years):
    below = np.vectorize(lambda v: math.erfc(-v / math.sqrt(2)) / 2)
    x = 0.1 * money
    seen = np.maximum(np.exp(x) - 1, 0) + 0.1 * abs(price[:options])
    low, high = np.full(options, 0.001), np.full(options, 4.0)
    for _ in range(halvings):
        middle = (low + high) / 2
        spread = middle * math.sqrt(float(years))
        d = x / spread + spread / 2
        rises = np.exp(x) * below(d) - below(d - spread) < seen
        low, high = np.where(rises, middle, low), np.where(rises, high, middle)
    return {2: (low + high) / 2}


@at(rows=300)
def spgemm_row_products(first, column, _, rows):
    assert first[-1] <= len(column)
    lengths = np.diff(first)
    of_entry = lengths[column[: first[-1]]]
    return {2: np.add.reduceat(np.append(of_entry, 0), first[:-1]).astype(np.int32) * (lengths > 0)}
