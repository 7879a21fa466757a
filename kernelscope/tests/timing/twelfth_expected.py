"""What the kernels of held_out_twelfth/ should give at small shapes, by NumPy."""

import math

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


@at(rows=40)
def bias_hardswish_half2(x, bias, _, pairs):
    v = x.reshape(-1, 64).astype(np.float64) + bias
    return {2: (v * np.clip(v + 3, 0, 6) / 6).astype(np.float16).ravel()}


@at(rows=3)
def distill_kl_rows(small, large, _, temperature):
    s, t = (w[: small.size].reshape(-1, 1000) / float(temperature) for w in (small, large))
    s, t = (w - np.log(np.exp(w).sum(1, keepdims=True)) for w in (s, t))
    return {2: float(temperature) ** 2 * (np.exp(t) * (t - s)).sum(1)}


@at(batch=2)
def prelu_backward_nchw(x, dy, slope, _dx, _):
    x, dy = (w[: x.size].reshape(-1, 64, 3136).astype(np.float64) for w in (x, dy))
    dx = np.where(x > 0, dy, slope[:, None] * dy)
    return {3: dx.ravel(), 4: (np.minimum(x, 0) * dy).sum((0, 2))}


@at(batch=1)
def patchify_16_half(picture, _, quads):
    apart = picture.reshape(-1, 3, 14, 16, 14, 16).transpose(0, 2, 4, 1, 3, 5)
    return {1: apart.astype(np.float16).ravel()}


@at(m=64, n=128, k=128, splits=2)
def hgemm_wmma_split_k(a, b, _, n, k):
    b = b[: n * k].reshape(k, n)
    return {2: (a.reshape(-1, k).astype(np.float64) @ b).ravel()}


@at(heads=2, tokens=64)
def flash_minimal_forward(q, k, v, _, tokens, scale):
    q, k, v = (w[: q.size].reshape(-1, tokens, 64).astype(np.float64) for w in (q, k, v))
    share = np.exp(float(scale) * q @ k.swapaxes(1, 2))
    return {3: (share @ v / share.sum(-1, keepdims=True)).ravel()}


@at(batch=2, channels=48, to=64, pixels=128)
def conv_1x1_nchw(x, weight, bias, _, channels, pixels):
    x = x.reshape(-1, channels, pixels).astype(np.float64)
    return {3: (weight.reshape(-1, channels) @ x + bias[:, None]).ravel()}


@at(n=90)
def dger_rank_1(a, x, y, n, pairs, alpha):
    return {0: a + float(alpha) * np.outer(x, y[:n]).ravel()}


@at(height=21, width=45)
def gaussian_7x7_bytes(x, _, height, width):
    wide = np.pad(x.view(np.uint8).reshape(height, width).astype(int), 3, mode="edge")
    by = np.array([1, 6, 15, 20, 15, 6, 1])
    blurred = np.lib.stride_tricks.sliding_window_view(wide, (7, 7)) @ by @ by
    return {1: ((blurred + 2048) >> 12).astype(np.uint8).view(np.int8).ravel()}


@at(height=21, width=45)
def ssim_map_7x7(x, y, _, height, width):
    def mean(v):
        wide = np.pad(v.reshape(height, width), 3, mode="edge")
        return np.lib.stride_tricks.sliding_window_view(wide, (7, 7)).mean((2, 3))

    x, y = x.astype(np.float64), y[: x.size].astype(np.float64)
    mx, my = mean(x), mean(y)
    vx, vy, both = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    over = (mx * mx + my * my + 1e-4) * (vx + vy + 9e-4)
    return {2: ((2 * mx * my + 1e-4) * (2 * both + 9e-4) / over).ravel()}


@at(height=18, width=40)
def over_composite_rgba(above, below, _, quads):
    above, below = (w[: above.size].view(np.uint8).reshape(-1, 4) for w in (above, below))
    alpha = above[:, 3:].astype(int)
    above = np.append(above[:, :3], np.full_like(above[:, :1], 255), 1)
    both = np.floor((above * alpha + below * (255 - alpha)) / 255 + 0.5)
    return {2: both.astype(np.uint8).view(np.int32).ravel()}


@at(steps=9, worlds=200)
def gae_advantages(reward, value, done, _, steps, worlds, gamma, by):
    reward, value, goes_on = (w.reshape(-1, worlds) for w in (reward, value, 1.0 - done))
    last, found = np.zeros(worlds), np.zeros((steps, worlds))
    for step in reversed(range(steps)):
        delta = reward[step] + float(gamma) * value[step + 1] * goes_on[step] - value[step]
        found[step] = last = delta + float(gamma) * float(by) * goes_on[step] * last
    return {3: found.ravel()}


@at(side=37)
def poisson_residual_double(x, b, _, norm, side):
    wide = np.pad(x.reshape(side, side), 1)
    near = wide[2:, 1:-1] + wide[:-2, 1:-1] + wide[1:-1, 2:] + wide[1:-1, :-2]
    r = b[: x.size] - 4 * x + near.ravel()
    return {2: r, 3: norm + r @ r}


@at(charges=150, width=32)
def coulomb_slice(charge, _, charges, width, spacing, z):
    charge = charge.reshape(-1, 4).astype(np.float64)
    y, x = (float(spacing) * w[..., None] for w in np.indices((width, width)))
    far = (x - charge[:, 0]) ** 2 + (y - charge[:, 1]) ** 2 + (float(z) - charge[:, 2]) ** 2
    return {1: (charge[:, 3] / np.sqrt(far)).sum(-1).ravel()}


@at(n=300)
def threefry_2x64_uniforms(key, _, n):
    k = [*key, key[0] ^ key[1] ^ np.uint64(0x1BD11BDAA9FC1A22)]
    a, b = np.arange(n, dtype=np.uint64) + k[0], np.full(n, k[1])
    for part in range(1, 6):
        for by in ((16, 42, 12, 31), (16, 32, 24, 21))[(part - 1) % 2]:
            a = a + b
            b = (b << np.uint64(by) | b >> np.uint64(64 - by)) ^ a
        a, b = a + k[part % 3], b + k[(part + 1) % 3] + np.uint64(part)
    return {1: (np.stack([a, b], 1) >> np.uint64(11)).ravel() * 2.0**-53}


@at(qubits=9, target=3)
def apply_gate_qubit(state, _, target, cosine, sine):
    c, s = float(cosine), float(sine)
    state = state.view(np.complex64).astype(complex).reshape(-1, 2, 2**target)
    turned = np.array([[c, -1j * s], [-1j * s, c]]) @ state
    return {0: turned.ravel().view(np.float64)}


@at(n=3000, segment=500)
def xor_filter_contains(key, fingerprint, _, n, segment):
    def turn(by):
        return (h << np.uint64(by) | h >> np.uint64(64 - by)) & np.uint64(0xFFFFFFFF)

    h = key ^ key >> np.uint64(33)
    for by in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        h = h * np.uint64(by)
        h = h ^ h >> np.uint64(33)
    low = h & np.uint64(0xFFFFFFFF)
    parts = fingerprint.view(np.uint8).reshape(3, segment)
    places = (part * np.uint64(segment) >> np.uint64(32) for part in (low, turn(21), turn(42)))
    kept = np.bitwise_xor.reduce([p[i] for p, i in zip(parts, places, strict=True)])
    found = (h ^ h >> np.uint64(32)).astype(np.uint8) == kept
    assert found.any()
    return {2: found.astype(np.int8)}


@at(n=300)
def ascii_lower_16(text, _, n):
    return {1: np.frombuffer(text.tobytes().lower(), np.int32)}


@at(height=18, width=40)
def median_of_15_frames(frame, _, pixels):
    return {1: np.median(frame.reshape(15, pixels), 0)}


@at(n=2000)
def shuffle_bytes_4(word, _, quads):
    return {1: word.view(np.uint8).reshape(-1, 4).T.ravel().view(np.int32)}


@at(nodes=40, edges=200)
def gcn_scatter_add(x, source, to, weight, _, edges):
    out = np.zeros((x.size // 64, 64))
    np.add.at(out, to[:edges], weight[:, None] * x.reshape(-1, 64)[source].astype(np.float64))
    return {4: out.ravel()}


@at(side=18)
def marching_cubes_cases(field, _cube, _active, side, level):
    inside = field.reshape(side, side, side) < level
    corners = np.lib.stride_tricks.sliding_window_view(inside, (2, 2, 2)).reshape(-1, 8)
    cube = corners @ 2 ** np.arange(8)
    active = np.count_nonzero((cube != 0) & (cube != 255))
    return {1: cube.astype(np.uint8).view(np.int8), 2: np.array([active], np.int32)}


@at(options=40, terms=9)
def merton_jump_call(money, spread, _, options, terms, years):
    below = np.vectorize(lambda v: math.erfc(-v / math.sqrt(2)) / 2)
    x, sigma, years = 0.1 * money, 0.2 + 0.05 * abs(spread[:options]), float(years)
    price = 0
    for n in range(terms):
        root = np.sqrt(sigma**2 * years + n * 0.15**2)
        drift = 0.07 * years + n * math.log(0.9)
        share = math.exp(-0.45 * years) * (0.45 * years) ** n / math.factorial(n)
        d = (x + drift) / root + root / 2
        price += share * (np.exp(x) * below(d) - math.exp(-drift) * below(d - root))
    return {2: price}


@at(pairs=6, length=40)
def pair_hmm_warp(read, haplotype, _, pairs, length):
    read, haplotype = (w.reshape(pairs, -1) & 3 for w in (read, haplotype))
    match, insert, gap = np.zeros((3, pairs, 129, length + 1))
    gap[:, 0] = 1 / length
    for i in range(1, 129):
        for j in range(1, length + 1):
            fits = np.where(read[:, i - 1] == haplotype[:, j - 1], 0.95, 0.05 / 3)
            cross = insert[:, i - 1, j - 1] + gap[:, i - 1, j - 1]
            match[:, i, j] = fits * (0.98 * match[:, i - 1, j - 1] + 0.9 * cross)
            insert[:, i, j] = 0.01 * match[:, i - 1, j] + 0.1 * insert[:, i - 1, j]
            gap[:, i, j] = 0.01 * match[:, i, j - 1] + 0.1 * gap[:, i, j - 1]
    return {2: np.log10((match[:, 128, 1:] + insert[:, 128, 1:]).sum(1))}
