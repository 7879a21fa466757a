"""What the kernels of held_out_thirteenth/ should give at small shapes, by NumPy."""

import hashlib

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()
WORD = 0xFFFFFFFF


@at(n=2400)
def gelu_tanh_backward_bf16(x, dy, _, eights):
    x, dy = ((w[: 8 * eights].astype(np.uint32) << 16).view(np.float32) for w in (x, dy))
    x, k = x.astype(np.float64), 0.79788456
    t = np.tanh(k * (x + 0.044715 * x**3))
    slope = 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * k * (1 + 3 * 0.044715 * x * x)
    bits = (dy * slope).astype(np.float32).view(np.uint32)
    return {2: ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)}


@at(rows=3)
def rms_norm_backward_rows(x, gain, dy, _, epsilon):
    x, dy = (w[: x.size].reshape(-1, 2048).astype(np.float64) for w in (x, dy))
    r = 1 / np.sqrt((x * x).mean(1, keepdims=True) + float(epsilon))
    g = dy * gain
    return {3: (r * (g - x * r * r * (x * g).mean(1, keepdims=True))).ravel()}


@at(batch=2, channels=3, pixels=600)
def batch_norm_train_nchw(x, gain, shift, _, mean, var, batch, channels, pixels, momentum):
    x, momentum = x.reshape(batch, channels, pixels).astype(np.float64), float(momentum)
    own_mean, own_var = x.mean((0, 2)), x.var((0, 2))
    gain = gain / np.sqrt(own_var + 1e-5)
    y = (x - own_mean[:, None]) * gain[:, None] + shift[:channels, None]
    mean = mean + momentum * (own_mean - mean)
    return {3: y.ravel(), 4: mean, 5: var + momentum * (x.var((0, 2), ddof=1) - var)}


@at(rows=42)
def triplet_margin_rows(anchor, near, far, _, rows, margin):
    a, p, n = (w[: 128 * rows].reshape(-1, 128).astype(np.float64) for w in (anchor, near, far))
    nearer = np.linalg.norm(a - p, axis=1) - np.linalg.norm(a - n, axis=1)
    return {3: np.maximum(nearer + float(margin), 0)}


@at(m=128, n=256, k=96)
def hgemm_mma_two_stages(a, b, _, n, k):
    b = b[: n * k].reshape(k, n)
    return {2: (a.reshape(-1, k).astype(np.float64) @ b).ravel()}


@at(n=64, k=32)
def dsyrk_lower_tile(a, c, n, k, alpha, beta):
    a, c = a.reshape(n, k), c.reshape(n, n)
    new = float(alpha) * a @ a.T + float(beta) * c
    return {1: np.where(np.tri(n, dtype=bool), new, c).ravel()}


@at(rows=6)
def softmax_backward_half(p, dp, _, rows, scale):
    p, dp = (w[: 512 * rows].reshape(rows, 512).astype(np.float64) for w in (p, dp))
    return {2: (float(scale) * p * (dp - (p * dp).sum(1, keepdims=True))).ravel()}


@at(tokens=7, heads=3)
def merge_attention_states(first, first_log, second, second_log, _out, _log, tokens, heads):
    def log(w):
        return w[: tokens * heads].reshape(heads, tokens).T[..., None].astype(np.float64)

    first, second = (w[: first.size].reshape(tokens, heads, 128) for w in (first, second))
    first_log, second_log = log(first_log), log(second_log)
    both = np.logaddexp(first_log, second_log)
    out = first * np.exp(first_log - both) + second * np.exp(second_log - both)
    return {4: out.ravel(), 5: both[..., 0].T.ravel()}


@at(batch=2, channels=3, outputs=16, side=20)
def conv_3x3_direct_tile(x, weight, bias, _, channels, outputs, side):
    wide = np.pad(x.reshape(-1, channels, side, side), ((0, 0), (0, 0), (1, 1), (1, 1)))
    near = np.lib.stride_tricks.sliding_window_view(wide.astype(np.float64), (3, 3), (2, 3))
    y = np.einsum("ocij,bcyxij->boyx", weight.reshape(outputs, channels, 3, 3), near)
    return {3: (y + bias[:, None, None]).ravel()}


@at(planes=3, side=20)
def max_pool_3x3_places(x, _y, _place, n, side):
    def near(v, border):
        wide = np.pad(v, ((0, 0), (1, 1), (1, 1)), constant_values=border)
        windows = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (1, 2))
        return windows[:, ::2, ::2].reshape(n, 9)

    x = x.reshape(-1, side, side)
    place = np.broadcast_to(np.arange(side * side, dtype=np.int32).reshape(side, side), x.shape)
    values, places = near(x, -np.inf), near(place, -1)
    each, largest = np.arange(n), values.argmax(1)
    return {1: values[each, largest], 2: places[each, largest]}


@at(height=16, width=192)
def dct_8x8_quantise(picture, inverse, _, width):
    square = picture.view(np.uint8).reshape(-1, 8, width // 8, 8).swapaxes(1, 2) - 128.0
    cosines = np.cos(np.outer(np.arange(8), 2 * np.arange(8) + 1) * np.pi / 16) / 2
    cosines[0] /= np.sqrt(2)
    found = np.rint(cosines @ square @ cosines.T * inverse.reshape(8, 8))
    return {2: found.astype(np.int16).view(np.uint16).ravel()}


@at(n=3072)
def blelloch_scan_block(x, _y, _total):
    scan = x.reshape(-1, 1024).cumsum(1, dtype=np.int32)
    return {1: scan.ravel() - x, 2: scan[:, -1]}


@at(n=2048)
def radix_sort_block_4bit(keys, _):
    return {1: np.sort(keys.reshape(-1, 1024), 1).view(np.int32).ravel()}


@at(n=300)
def murmur3_strings(text, offset, _, n, seed):
    def turn(v, by):
        return (v << by | v >> 32 - by) & WORD

    def murmur(string, h):
        words = len(string) // 4
        for i in range(words + 1):
            k = int.from_bytes(string[4 * i : 4 * i + 4], "little")
            h ^= turn(k * 0xCC9E2D51 & WORD, 15) * 0x1B873593 & WORD
            if i < words:
                h = turn(h, 13) * 5 + 0xE6546B64 & WORD
        h ^= len(string)
        h = (h ^ h >> 16) * 0x85EBCA6B & WORD
        h = (h ^ h >> 13) * 0xC2B2AE35 & WORD
        return h ^ h >> 16

    assert murmur(b"hello", 0) == 0x248BFA47
    text = text.tobytes()
    found = [murmur(text[offset[i] : offset[i + 1]], int(seed)) for i in range(n)]
    return {2: np.array(found, np.uint32).view(np.int32)}


@at(blocks=19)
def unpack_128_deltas(packed, start, base, _, blocks):
    def deltas(first, end):
        bits = np.unpackbits(packed[4 * first : 4 * end].view(np.uint8), bitorder="little")
        return bits.reshape(128, end - first) @ (1 << np.arange(end - first))

    found = [base[i] + deltas(start[i], start[i + 1]).cumsum() for i in range(blocks)]
    return {3: np.concatenate(found).astype(np.int32)}


@at(n=150)
def sha256_64_bytes(message, _, n):
    text = message.tobytes()
    found = b"".join(hashlib.sha256(text[64 * i : 64 * i + 64]).digest() for i in range(n))
    return {1: np.frombuffer(found, np.int32)}


@at(rows=300, width=16)
def spmv_ell_double(value, column, x, _, rows, width):
    return {3: (value * x[column]).reshape(width, rows).sum(0)}


@at(nodes=30, edges=100)
def sddmm_warp(of_source, of_target, source, target, _, edges):
    p = of_source.reshape(-1, 64).astype(np.float64)
    q = of_target[: of_source.size].reshape(-1, 64)
    return {4: (p[source] * q[target[:edges]]).sum(1)}


@at(nodes=700)
def page_rank_pull(start, source, share, old_rank, _rank, _change, nodes, damping):
    to = np.repeat(np.arange(nodes), np.diff(start))
    into = np.bincount(to, share[source[: start[-1]]], nodes)
    rank = (1 - float(damping)) / nodes + float(damping) * into
    return {4: rank, 5: np.abs(rank - old_rank[:nodes]).sum(keepdims=True)}


@at(n=3000)
def cg_update_double(x, r, p, q, scalars, total, n):
    alpha = scalars[0] / scalars[1]
    r[:n] -= alpha * q[:n]
    return {0: x + alpha * p[:n], 1: r, 5: total + r[:n] @ r[:n]}


@at(width=72, height=24, depth=13)
def acoustic_wave_25_point(now, speed, before, width, height, depth):
    now, speed, new = (
        w[: now.size].reshape(depth, height, width).astype(np.float64) for w in (now, speed, before)
    )
    inner = (slice(4, -4),) * 3
    laplacian = -3 * 205 / 72 * now
    for by, share in enumerate((8 / 5, -1 / 5, 8 / 315, -1 / 560), 1):
        for axis in range(3):
            laplacian += share * (np.roll(now, by, axis) + np.roll(now, -by, axis))
    new[inner] = (2 * now - new + speed * laplacian)[inner]
    return {2: new.ravel()}


@at(proteins=5, length=40)
def smith_waterman_block(query, protein, table, _, length, opening, extend):
    query, protein = query & 15, (protein & 15).reshape(-1, length)
    table = table.reshape(16, 16) - 4
    score = np.zeros((len(protein), 129, length + 1), np.int32)
    across, down = np.full((2, *score.shape), -1000)
    for i in range(1, 129):
        for j in range(1, length + 1):
            before = across[:, i, j - 1] - extend, score[:, i, j - 1] - opening
            above = down[:, i - 1, j] - extend, score[:, i - 1, j] - opening
            across[:, i, j], down[:, i, j] = np.maximum(*before), np.maximum(*above)
            here = score[:, i - 1, j - 1] + table[query[i - 1], protein[:, j - 1]]
            score[:, i, j] = np.maximum.reduce([here, across[:, i, j], down[:, i, j], 0 * here])
    return {3: score.max((1, 2))}


def _philox(counter, key):
    """Four words of Philox 4 x 32, ten rounds, for arrays of 64 bits that hold words."""
    (a, b, c, d), (k, m) = counter, key
    for _ in range(10):
        p, q = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b = q >> np.uint64(32) ^ b ^ np.uint64(k), q & np.uint64(WORD)
        c, d = p >> np.uint64(32) ^ d ^ np.uint64(m), p & np.uint64(WORD)
        k, m = (k + 0x9E3779B9) & WORD, (m + 0xBB67AE85) & WORD
    return a, b, c, d


@at(paths=300, steps=12)
def heston_paths(_, paths, steps, strike, years, seed):
    dt, path = float(years) / int(steps), np.arange(paths, dtype=np.uint64)
    log_price, variance, none = np.zeros(paths), np.full(paths, 0.04), np.zeros_like(path)
    for i in range(0, steps, 2):
        word = _philox((path, none + np.uint64(i), none, none), (int(seed), 0))
        word = [w.astype(np.float32) for w in word]  # as the kernel rounds them
        for u, v in (word[:2], word[2:]):
            radius = np.sqrt(-2 * np.log((u + np.float32(1)).astype(np.float64) * 2.0**-32))
            angle = v.astype(np.float64) * (np.pi * 2.0**-31)
            of_variance, apart = radius * np.cos(angle), radius * np.sin(angle)
            var = np.maximum(variance, 0)
            deviation = np.sqrt(var * dt)
            of_price = -0.9 * of_variance + np.sqrt(1 - 0.81) * apart
            log_price += (0.025 - 0.5 * var) * dt + deviation * of_price
            variance = variance + 1.5 * (0.04 - var) * dt + 0.3 * deviation * of_variance
    paid = np.maximum(100 * np.exp(log_price) - float(strike), 0)
    assert np.count_nonzero(paid) > paths / 3
    return {0: np.exp(-0.025 * float(years)) * paid}


@at(clouds=2, samples=24)
def farthest_points(cloud, _, samples):
    found = []
    for points in cloud.reshape(-1, 1024, 3):
        nearest, last = np.full(1024, np.inf), 0
        for _sample in range(samples):
            found.append(last)
            nearest = np.minimum(nearest, ((points - points[last]) ** 2).sum(1))
            last = nearest.argmax()
    return {1: np.array(found, np.int32)}
