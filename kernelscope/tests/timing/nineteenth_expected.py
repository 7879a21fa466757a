"""What the kernels of held_out_nineteenth/ should give at small shapes, by NumPy."""

import zlib

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


def _double(*arrays, shape, size=None):
    """Each array, or its first `size` numbers, as doubles of a shape."""
    return [w[:size].astype(np.float64).reshape(shape) for w in arrays]


@at(n=4 * 700)
def rmsprop_centred_step(parameter, gradient, square, mean, fours, rate, kept, epsilon):
    rate, kept, epsilon = float(rate), float(kept), float(epsilon)
    parameter, gradient = _double(parameter, gradient, shape=-1, size=4 * fours)
    square, mean = (1 - kept) * gradient**2, (1 - kept) * gradient
    step = rate * gradient / (np.sqrt(square - mean**2) + epsilon)
    return {0: parameter - step, 2: square, 3: mean}


@at(batch=3, channels=12, groups=4, side=11)
def group_norm_input_gradient(x, gradient, weight, mean, inverse, _, channels_each, plane):
    groups = weight.size // channels_each
    x, gradient = _double(x, gradient, shape=(-1, groups, channels_each, plane), size=x.size)
    mean, inverse = _double(mean, inverse, shape=(-1, groups, 1, 1), size=mean.size)
    (weight,) = _double(weight, shape=(groups, channels_each, 1))
    gradient, x = gradient * weight, (x - mean) * inverse
    middle, slope = (w.mean((2, 3), keepdims=True) for w in (gradient, gradient * x))
    return {5: (inverse * (gradient - middle - x * slope)).ravel()}


@at(rows=30)
def latent_draw_kl_128_bf16(mean, log_variance, noise, *_):
    size = mean.size
    mean, log = ((w[:size].astype(np.uint32) << 16).view(np.float32) for w in (mean, log_variance))
    mean, log, noise = _double(mean, log, noise, shape=(-1, 128))
    loss = (mean**2 + np.exp(log) - 1 - log).sum(1) / 2
    return {3: (mean + np.exp(log / 2) * noise).ravel(), 4: loss}


@at(batch=2, time=12, channels=100)
def wkv_over_time(decay, bonus, key, value, _, time, channels):
    decay, bonus = _double(decay, bonus, shape=-1, size=channels)
    key, value = _double(key, value, shape=(-1, time, channels), size=key.size)
    right = np.empty_like(key)
    for now in range(time):
        age = np.arange(now, 0, -1)[:, None] - 1
        share = np.exp(key[:, : now + 1])
        share[:, :now] *= np.exp(-np.exp(decay) * age)
        share[:, now] *= np.exp(bonus)
        right[:, now] = (share * value[:, : now + 1]).sum(1) / share.sum(1)
    return {4: right.ravel()}


@at(heads=2, n=530)
def add_bias_of_distance_half(score, bias, out, n):
    (score,), (bias,) = _double(score, shape=(-1, n, n)), _double(bias, shape=(32, -1))
    ahead = np.arange(n) - np.arange(n)[:, None]
    away = np.abs(ahead)
    # From 8 on, two buckets for each doubling: 8, 8 * sqrt(2), 16, ...
    far = 7 + (away[..., None] ** 2 >= 64 * 2 ** np.arange(8)).sum(-1)
    bucket = np.where(away < 8, away, far) + 16 * (ahead > 0)
    assert np.unique(bucket).size == 31
    return {2: np.append((score + bias[bucket].transpose(2, 0, 1)).ravel(), out[-8:])}


@at(planes=3, side=13)
def max_unpool_2x2(pooled, corner, _, width, height):
    pooled, corner = (w.reshape(-1, height, width) for w in (pooled, corner))
    right = np.zeros((pooled.shape[0], height, 2, width, 2))
    for place in range(4):
        right[:, :, place // 2, :, place % 2] = np.where(corner == place, pooled, 0)
    return {2: right.ravel()}


def _bfloat(x):
    """Floats, rounded to bfloat16."""
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


@at(m=64, n=128, k=48)
def sgemm_nt_bf16x3_mma(a, b, _, n, k):
    halves = []
    for whole in (a.reshape(-1, k), b[: n * k].reshape(n, k)):
        high = _bfloat(whole)
        halves.append(_double(high, _bfloat(whole - high), shape=whole.shape))
    (a_high, a_low), (b_high, b_low) = halves
    right = a_high @ b_high.T + a_high @ b_low.T + a_low @ b_high.T
    assert np.allclose(right, a.reshape(-1, k) @ b[: n * k].reshape(n, k).T, atol=5e-4)
    return {2: right.ravel()}


@at(batch=2, channels=3, side=37)
def depthwise_7x7_planes(x, weight, bias, _, side, channels):
    (x,) = _double(x, shape=(-1, channels, side, side))
    (weight,) = _double(weight, shape=(channels, 7, 7))
    near = np.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3)))
    near = np.lib.stride_tricks.sliding_window_view(near, (7, 7), (2, 3))
    right = np.einsum("bcyxij,cij->bcyx", near, weight, optimize=True)
    return {3: (right + bias.astype(np.float64)[:, None, None]).ravel()}


@at(samples=30)
def feature_pairs_27_wmma(feature, out, samples):
    (feature,) = _double(feature, shape=(samples, 27, 64))
    pairs = (feature @ feature.transpose(0, 2, 1))[:, *np.tril_indices(27, -1)]
    right = np.concatenate([feature[:, 0], pairs, np.zeros((samples, 1))], 1)
    return {1: np.append(right.ravel(), out[-8:])}


@at(rows=3, columns=2300)
def running_maxima_rows(x, top, place, fours):
    x = x.reshape(-1, 4 * fours)
    right = np.maximum.accumulate(x, axis=1)
    where = np.where(x == right, np.arange(4 * fours, dtype=np.int32), 0)
    return {1: right.ravel(), 2: np.maximum.accumulate(where, axis=1).ravel()}


@at(n=3 * 512)
def rank_sort_512_pairs(key, value, key_out, value_out):
    order = np.argsort(key.reshape(-1, 512), axis=1, kind="stable")
    order = (order + 512 * np.arange(order.shape[0])[:, None]).ravel()
    key, value = key[order], value[: order.size][order]
    return {2: np.append(key, key_out[-8:]), 3: np.append(value, value_out[-12:])}


@at(chunks=11)
def adler32_chunks_4096(text, *_):
    return {1: np.array([zlib.adler32(w.tobytes()) for w in text.reshape(-1, 1024)], np.uint32)}


@at(frames=50)
def pack_frame_of_128(number, least, bits, packed, frames):
    number, packed = number.reshape(frames, 128), packed.reshape(frames, 128)
    for frame, own in enumerate(number):
        apart = own - own.min()
        width = int(apart.max()).bit_length()
        places = (apart[:, None] >> np.arange(width) & 1).astype(np.uint8)
        packed[frame, : 4 * width] = np.packbits(places, bitorder="little").view(np.uint32)
        least[frame], bits[frame] = own.min(), width
    assert np.unique(bits).size > 1
    return {1: least, 2: bits, 3: packed.ravel()}


@at(n=500)
def spmv_csc_atomic_16(start, row, number, x, *_):
    assert start[-1] <= row.size
    column, entries = np.repeat(np.arange(x.size), np.diff(start)), slice(start[-1])
    right = np.zeros(x.size)
    np.add.at(right, row[entries], number[entries].astype(np.float64) * x[column])
    return {4: right}


@at(nodes=500)
def label_vote_32(start, neighbour, label, *_):
    assert start[-1] <= neighbour.size and (np.diff(start) == 0).any()
    votes = np.zeros((label.size, label.max() + 1), int)
    node = np.repeat(np.arange(label.size), np.diff(start))
    np.add.at(votes, (node, label[neighbour[: start[-1]]]), 1)
    return {3: np.where(np.diff(start) == 0, label, votes.argmax(1)).astype(np.int32)}


@at(width=70, height=30)
def elastic_stress_step(*arguments):
    *fields, width, height, step = arguments
    fields = _double(*fields[:4], shape=(height, width), size=width * height)
    step = float(step)

    def slope(field, axis, forward):
        back = 1 - forward
        near = np.roll(field, back - 1, axis) - np.roll(field, back, axis)
        far = np.roll(field, back - 2, axis) - np.roll(field, back + 1, axis)
        return (1.125 * near - far / 24)[2:-2, 2:-2]

    vx, vz, lame, shear = fields
    dx, dz = slope(vx, 1, 0), slope(vz, 0, 0)
    lame, shear = (w[2:-2, 2:-2] for w in (lame, shear))
    both = lame * (dx + dz)
    turned = shear * (slope(vx, 0, 1) + slope(vz, 1, 1))
    wanted = [both + 2 * shear * dx, both + 2 * shear * dz, turned]
    return {4 + i: np.pad(step * w, 2).ravel() for i, w in enumerate(wanted)}


@at(matrices=5)
def inverse_16_pivots(matrix, _):
    (matrix,) = _double(matrix, shape=(-1, 16, 16))
    return {1: np.linalg.inv(matrix).ravel()}


@at(batch=2, columns=150)
def strsm_unit_lower_32(lower, right, _, columns, scale):
    (lower,), (right,) = _double(lower, shape=(-1, 32, 32)), _double(right, shape=(-1, 32, columns))
    return {2: np.linalg.solve(np.eye(32) + float(scale) * np.tril(lower, -1), right).ravel()}


@at(width=70, height=21)
def canny_thin_edges(gx, gy, _, width, height, weak, strong):
    gx, gy = _double(gx, gy, shape=(height, width), size=gx.size)
    size = np.hypot(gx, gy)
    wide = np.pad(size, 1)
    # In eighths of a turn, the nearest direction of an edge's gradient.
    eighth = np.rint(np.arctan2(gy, gx) / (np.pi / 4)).astype(int) % 4
    y, x = np.indices((height, width)) + 1
    dx, dy = (np.array(w)[eighth] for w in ([1, 1, 0, 1], [0, 1, 1, -1]))
    most = (size > wide[y - dy, x - dx]) & (size >= wide[y + dy, x + dx])
    right = np.where(size < float(strong), 128, 255) * (most & (size >= float(weak)))
    assert np.unique(right).size == 3
    return {2: right.astype(np.uint8).view(np.int8).ravel()}


@at(width=70, height=22)
def bayer_rggb_to_rgba(raw, _, width, height):
    raw = raw.view(np.uint8).reshape(height, width).astype(int)
    y, x = np.indices(raw.shape)
    colour = y % 2 + x % 2  # 0: red, 1: green, 2: blue
    right = np.full((height, width, 4), 255)
    for channel in range(3):
        # The mean of those among the pixel, or else its 8 neighbours, that have the colour.
        known = np.where(colour == channel, raw, 0)
        values, have = (np.pad(w, 1, mode="reflect") for w in (known, colour == channel))
        windows = np.lib.stride_tricks.sliding_window_view
        values, have = (windows(w, (3, 3)).copy() for w in (values, have))
        if channel == 1:  # corners are farther away
            have[..., ::2, ::2] = False
        total, count = (values * have).sum((2, 3)), have.sum((2, 3))
        near = (total + count // 2) // np.maximum(count, 1)
        right[..., channel] = np.where(colour == channel, raw, near)
    return {1: right.astype(np.uint8).view(np.int8).ravel()}


@at(points=300)
def skin_4_bones(point, normal, bone, share, matrix, *_):
    point, normal = _double(point, normal, shape=(-1, 3), size=point.size)
    (share,), (matrix,) = _double(share, shape=(-1, 4)), _double(matrix, shape=(256, 3, 4))
    own = np.einsum("ij,ijrc->irc", share, matrix[bone.view(np.uint8).reshape(-1, 4)])
    moved = np.einsum("irc,ic->ir", own[..., :3], point) + own[..., 3]
    turned = np.einsum("irc,ic->ir", own[..., :3], normal)
    turned /= np.linalg.norm(turned, axis=1, keepdims=True)
    return {5: moved.ravel(), 6: turned.ravel()}


def _squares(counter, key):
    """32 random bits for each counter: Widynski's generator Squares, of four rounds."""
    x = counter * key
    y, z = x, x + key
    for more in (y, z, y):
        x = x * x + more
        x = x >> np.uint64(32) | x << np.uint64(32)
    return (x * x + z) >> np.uint64(32)


@at(paths=300, pairs=9)
def cir_discount_paths(_, paths, pairs, *numbers):
    rate, pull, mean, spread, step = map(float, numbers)
    key, total = np.uint64(0xC58EFD154CE32F6D), 0
    for i in range(pairs):
        counter = 2 * np.arange(i * paths, (i + 1) * paths, dtype=np.uint64)
        u, v = _squares(counter, key), _squares(counter + np.uint64(1), key)
        normal = np.sqrt(-2 * np.log((u + 0.5) / 2**32)) * np.exp(2j * np.pi * v / 2**32)
        for one in (normal.real, normal.imag):
            now = np.maximum(rate, 0)
            total = total + now * step
            rate = rate + pull * (mean - now) * step + spread * np.sqrt(now * step) * one
    return {0: np.exp(-total)}


@at(sequences=50)
def viterbi_32_states(move, emit, bases, path, score, sequences):
    move, emit = move.reshape(32, 32), emit.reshape(4, 32)
    shift = np.arange(0, 32, 2, dtype=np.uint32)
    base = (bases.reshape(-1, 4, 1) >> shift & np.uint32(3)).reshape(-1, 64)
    own, before = emit[base[:, 0]], []
    for time in range(1, 64):
        candidate = own[:, :, None] + move
        before.append(candidate.argmax(1))
        own = candidate.max(1) + emit[base[:, time]]
    states = [own.argmax(1)]
    for step in reversed(before):
        states.append(step[np.arange(sequences), states[-1]])
    right = np.array(states[::-1]).T
    assert np.unique(right).size > 1
    return {3: right.astype(np.int8).ravel(), 4: own.max(1)}


@at(tracks=150, steps=5)
def kalman_plane_tracks(seen, sensor, _, __, tracks, steps, time, drift, noise):
    (seen,), (sensor,) = _double(seen, shape=(steps, tracks, 2)), _double(sensor, shape=(2, 4))
    move = np.eye(4) + float(time) * np.eye(4, k=2)
    x, doubt = np.zeros((tracks, 4)), 10 * np.eye(4)
    for step in range(steps):
        x = x @ move.T
        doubt = move @ doubt @ move.T + float(drift) * np.diag([0, 0, 1, 1])
        spread = sensor @ doubt @ sensor.T + float(noise) * np.eye(2)
        gain = doubt @ sensor.T @ np.linalg.inv(spread)
        x = x + (seen[step] - x @ sensor.T) @ gain.T
        doubt = doubt - gain @ sensor @ doubt
    return {2: x.ravel(), 3: np.full(tracks, np.trace(doubt))}
