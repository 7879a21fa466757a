"""What the kernels of held_out_eighteenth/ should give at small shapes, by NumPy."""

import numpy as np
from held_out_set import table_of_expected

EXPECTED, at = table_of_expected()


def _double(*arrays, shape, size=None):
    """Each array, or its first `size` numbers, as doubles of a shape."""
    return [w[:size].astype(np.float64).reshape(shape) for w in arrays]


@at(batch=3, channels=4, side=25)
def batch_norm_backward_nchw(x, gradient, weight, mean, inverse, *rest):
    batch, channels, plane = rest[-3:]
    x, gradient = _double(x, gradient, shape=(batch, channels, plane), size=x.size)
    weight, mean, inverse = _double(weight, mean, inverse, shape=(-1, 1), size=channels)
    x = (x - mean) * inverse
    of_bias, of_weight = gradient.sum((0, 2)), (gradient * x).sum((0, 2))
    part = (of_bias[:, None] + x * of_weight[:, None]) / (batch * plane)
    return {5: (weight * inverse * (gradient - part)).ravel(), 6: of_weight, 7: of_bias}


@at(heads=2, n=530)
def alibi_causal_shares_half(score, share, n, scale):
    heads = score.size // n**2
    (score,) = _double(score, shape=(heads, n, n))
    slope = 2.0 ** (-8 * np.arange(1, heads + 1) / heads)
    away = np.arange(n) - np.arange(n)[:, None]
    score = score * float(scale) + slope[:, None, None] * away
    right = np.exp(np.where(away > 0, -np.inf, score - score.max(2, keepdims=True)))
    right /= right.sum(2, keepdims=True)
    return {1: np.append(right.ravel(), share[-8:])}


@at(n=8 * 700, blocks=2)
def mish_half8(x, out, _):
    (x,) = _double(x, shape=-1)
    return {1: np.append(x * np.tanh(np.log1p(np.exp(x))), out[-8:])}


@at(sequences=2, pages=9)
def gather_pages_half(key, value, page_of, first, key_out, value_out, pages_each):
    lengths = np.diff(first)
    assert lengths.max() <= 16 * pages_each and (lengths % 16).any()
    token = np.concatenate([np.arange(length) for length in lengths])
    sequence = np.repeat(np.arange(lengths.size), lengths)
    page = page_of.reshape(-1, pages_each)[sequence, token // 16]
    for cache, out in ((key, key_out), (value[:-8], value_out)):
        rows = cache.reshape(-1, 16, 1024)[page, token % 16]
        out[first[0] * 1024 : first[-1] * 1024] = rows.ravel()
    return {4: key_out, 5: value_out}


@at(rows=30)
def cosine_pairs_loss_512(a, b, alike, _, gradient, rows, margin):
    a, b = _double(a, b, shape=(rows, 512), size=a.size)
    alike = alike.astype(bool)
    of_a, of_b = (np.linalg.norm(w, axis=1) for w in (a, b))
    cosine = (a * b).sum(1) / (of_a * of_b)
    above = cosine > float(margin)
    assert above[~alike].any() and not above[~alike].all()
    slope = np.where(alike, -1, above)[:, None]
    right = b / (of_a * of_b)[:, None] - a * (cosine / of_a**2)[:, None]
    loss = np.where(alike, 1 - cosine, np.maximum(cosine - float(margin), 0))
    return {3: loss, 4: (slope * right).ravel()}


@at(m=128, n=256, k=128)
def gemm_s8_mma_scales(a, b, a_scale, b_scale, _, n, k, scale):
    a, b = (w.view(np.int8) for w in (a, b[: n * k // 4]))
    (a,), (b,) = _double(a, shape=(-1, k)), _double(b, shape=(n, k))
    (a_scale,), (b_scale,) = _double(a_scale, shape=(-1, 1)), _double(b_scale, shape=-1, size=n)
    return {4: (a @ b.T * a_scale * b_scale * float(scale)).ravel()}


@at(experts=3, n=128, k=96)
def experts_gemm_wmma_half(x, weight, first, out, n, k):
    (x,) = _double(x, shape=(-1, k))
    (weight,) = _double(weight, shape=(-1, k, n), size=-8)
    right = out.astype(np.float64)
    assert (np.diff(first) % 64).any()
    for expert, (start, end) in enumerate(zip(first, first[1:], strict=False)):
        right[start * n : end * n] = (x[start:end] @ weight[expert]).ravel()
    return {3: right}


@at(m=64, n=128, k=48)
def dgemm_64_tile(a, b, c, n, k):
    right = a.reshape(-1, k) @ b[: n * k].reshape(k, n)
    return {2: np.append(right.ravel(), c[-8:])}


@at(batch=2, side=42)
def conv_7x7_stem_relu(x, weight, bias, _, side, channels):
    (x,) = _double(x, shape=(-1, 3, side, side))
    x = np.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3)))
    near = np.lib.stride_tricks.sliding_window_view(x, (7, 7), (2, 3))[:, :, ::2, ::2]
    (weight,) = _double(weight, shape=(channels, 3, 7, 7))
    right = np.einsum("bpyxij,cpij->bcyx", near, weight, optimize=True)
    return {3: np.maximum(right + bias.astype(np.float64)[:, None, None], 0).ravel()}


@at(n=3 * 2048)
def merge_sort_2048(key, out):
    return {1: np.append(np.sort(key.reshape(-1, 2048), axis=1), out[-4:])}


@at(blocks=300)
def chacha20_xor(text, key, nonce, out, blocks, counter):
    start = np.zeros((16, blocks), np.uint32)
    start[:4] = np.frombuffer(b"expand 32-byte k", np.uint32)[:, None]
    start[4:12], start[13:] = key[:, None], nonce[:, None]
    start[12] = np.arange(blocks, dtype=np.uint32) + np.uint32(counter)
    state = start.copy()
    lines = [(j, j + 4, j + 8, j + 12) for j in range(4)]
    lines += [(0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14)]
    for a, b, c, d in 10 * lines:
        for to, other, turned, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
            state[to] += state[other]
            mixed = state[turned] ^ state[to]
            state[turned] = mixed << np.uint32(by) | mixed >> np.uint32(32 - by)
    return {3: np.append((state + start).T.ravel() ^ text, out[-4:])}


@at(runs=200, blocks=2)
def expand_runs(begin, value, out, _):
    lengths = np.diff(begin)
    assert (lengths == 0).any()
    out[: begin[-1]] = np.repeat(value, lengths)
    return {2: out}


@at(parts=1500)
def gear_chunk_marks(text, gear, _, parts, mask):
    of_byte = np.pad(gear[text.view(np.uint8)], (31, 0))
    window = np.lib.stride_tricks.sliding_window_view(of_byte, 32)
    hashes = (window << np.arange(32, dtype=np.uint32)[::-1]).sum(1, dtype=np.uint32)
    found = (hashes & np.uint32(mask)) == 0
    assert found.any()
    return {2: np.packbits(found, bitorder="little").view(np.uint64)}


@at(nodes=500)
def bellman_ford_pull_8(start, source, weight, distance, *_):
    assert start[-1] <= source.size
    node = np.repeat(np.arange(distance.size), np.diff(start))
    right, edges = distance.copy(), slice(start[-1])
    np.minimum.at(right, node, distance[source[edges]] + weight[edges])
    assert (right < distance).any()
    return {4: right}


@at(width=70, height=30)
def advect_colours(colour, flow, _, width, height, time, kept):
    (colour,) = _double(colour, shape=(height, width, 4))
    (flow,) = _double(flow, shape=(height, width, 2))
    y, x = np.indices((height, width))
    x = np.clip(x - float(time) * flow[..., 0], 0, width - 1)
    y = np.clip(y - float(time) * flow[..., 1], 0, height - 1)
    left = np.minimum(x.astype(int), width - 2)
    top = np.minimum(y.astype(int), height - 2)
    p, q = (x - left)[..., None], (y - top)[..., None]
    high = (1 - p) * colour[top, left] + p * colour[top, left + 1]
    low = (1 - p) * colour[top + 1, left] + p * colour[top + 1, left + 1]
    return {2: (float(kept) * ((1 - q) * high + q * low)).ravel()}


@at(side=9)
def restrict_27_double(fine, _, side):
    fine, share = fine.reshape([2 * side + 1] * 3), np.array([0.25, 0.5, 0.25])
    near = np.lib.stride_tricks.sliding_window_view(fine, (3, 3, 3))[::2, ::2, ::2]
    right = np.einsum("zyxkji,k,j,i->zyx", near, share, share, share, optimize=True)
    return {1: right.ravel()}


@at(count=900)
def spmv_coo_warp(row, column, number, x, y, _):
    right = np.zeros(y.size)
    np.add.at(right, row, number.astype(np.float64) * x[column])
    return {4: right}


@at(width=50, height=21)
def non_local_means_7x7(picture, _, width, height, strength):
    (picture,) = _double(picture, shape=(height, width))
    wide = np.pad(picture, 4, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view
    patches = windows(wide, (3, 3))
    own = patches[3:-3, 3:-3]
    total = mean = 0
    for y, x in np.ndindex(7, 7):
        other = patches[y : y + height, x : x + width]
        share = np.exp(-float(strength) * ((own - other) ** 2).sum((2, 3)))
        total = total + share
        mean = mean + share * other[..., 1, 1]
    return {1: (mean / total).ravel()}


@at(width=45, height=20, new_width=90, new_height=40)
def resize_bicubic_rgba(picture, _, width, height, new_width, new_height):
    picture = picture.view(np.uint8).reshape(height, width, 4).astype(np.float64)

    def spline(size, new_size):
        place = (np.arange(new_size) + 0.5) * size / new_size - 0.5
        floor, matrix = np.floor(place).astype(int), np.zeros((new_size, size))
        for tap in range(-1, 3):
            apart = np.abs(place - floor - tap)
            near = 1.5 * apart**3 - 2.5 * apart**2 + 1
            far = -0.5 * apart**3 + 2.5 * apart**2 - 4 * apart + 2
            column = np.clip(floor + tap, 0, size - 1)
            np.add.at(matrix, (np.arange(new_size), column), np.where(apart < 1, near, far))
        return matrix

    down, across = spline(height, new_height), spline(width, new_width)
    right = np.einsum("ay,bx,yxc->abc", down, across, picture, optimize=True)
    return {1: np.rint(np.clip(right, 0, 255)).astype(np.uint8).view(np.int8).ravel()}


@at(volumes=3, depth=3, side=11)
def max_pool_3d_2x2x2(x, _, *sizes):
    width, height, depth = sizes
    x = x.reshape(-1, depth, 2, height, 2, width, 2)
    return {1: x.max((2, 4, 6)).ravel()}


@at(options=50, steps=60)
def american_put_tree_warp(spot, shape, _, options, steps, rate, years):
    spot, shape = _double(spot, shape, shape=(-1, 1), size=options)
    step, rate = float(years) / steps, float(rate)
    move = (0.3 + 0.1 * np.tanh(shape)) * np.sqrt(step)
    up, down = np.exp(move), np.exp(-move)
    chance = (np.exp(rate * step) - down) / (up - down)
    value = 0.0
    for level in range(steps, -1, -1):
        now = 1 - np.exp(0.1 * spot + move * (2 * np.arange(level + 1) - level))
        if level < steps:
            later = chance * value[:, 1:] + (1 - chance) * value[:, :-1]
            value = np.maximum(np.exp(-rate * step) * later, now)
        else:
            value = np.maximum(now, 0)
    assert (value[:, 0] > now[:, 0]).any()
    return {2: value[:, 0]}


@at(atoms=300, neighbours=20)
def lennard_jones_list(place, neighbour, _, atoms, neighbours, side, cut_square):
    (place,) = _double(place, shape=(atoms, 4))
    apart = place[:, :3] - place[neighbour.reshape(neighbours, atoms), :3]
    apart -= float(side) * np.rint(apart / float(side))
    square = (apart**2).sum(2)
    near = square < float(cut_square)
    assert near.any() and not near.all()
    square = np.maximum(square, 1)
    pull = near * (48 * square**-7 - 24 * square**-4)
    energy = near * 2 * (square**-6 - square**-3)
    force = (pull[..., None] * apart).sum(0)
    return {2: np.column_stack([force, energy.sum(0)]).ravel()}


@at(pairs=150, words=3)
def myers_64_bases(pattern, read, *rest):
    pairs, words = rest[-2:]
    shift = np.arange(0, 32, 2, dtype=np.uint32)
    pattern = (pattern.reshape(pairs, 4, 1) >> shift & np.uint32(3)).reshape(pairs, 64)
    read = read.reshape(words, pairs).T[..., None] >> shift & np.uint32(3)
    edits = np.tile(np.arange(65)[:, None], pairs)
    last = [edits[64]]
    for base in read.reshape(pairs, -1).T:
        before, edits = edits, np.zeros_like(edits)
        for i in range(64):
            other = np.minimum(before[i + 1], edits[i]) + 1
            edits[i + 1] = np.minimum(other, before[i] + (pattern[:, i] != base))
        last.append(edits[64])
    return {2: np.min(last, 0).astype(np.int32), 3: np.argmin(last, 0).astype(np.int32)}


@at(channels=2, samples=3000)
def fir_64_decimate_8(x, tap, _, samples):
    (x,) = _double(x, shape=(-1, samples))
    right = [np.convolve(row, tap.astype(np.float64))[7:samples:8] for row in x]
    return {2: np.concatenate(right)}
