"""Attention in one kernel: every method of the kind against float64, with all that it can be asked.

Shapes are ragged, outputs start as NaN between NaN margins, and what a mask leaves of a row may be
nothing. The same tests run on the simulator and on a GPU.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
from kernelscope.backend import array_module, asnumpy, resolve_backend
from kernelscope.compile import with_headers
from kernelscope.module import LaunchError, RawModule, allow_shared

from attn_course import reference
from attn_course.ladder.call import StepLaunch, numbers_of
from attn_course.ladder.checks import check_bias
from attn_course.ladder.choose import choose, current_device
from attn_course.ladder.matrix_tiles import MATRIX_TILES
from attn_course.ladder.methods import (
    AUTO,
    METHODS,
    attention,
    dtypes_of,
    problem_of,
    steps_of,
    supports,
)
from attn_course.ladder.steps import EXPERIMENTS, LARGEST_D, ROW_KEYS, Device, Problem, step
from attn_course.ladder.tiles import (
    CLUSTER_TILES,
    FLASH_TILES,
    flash_shared_bytes,
    joined_bytes,
    split_candidates,
    split_shared_bytes,
    tile_config,
)
from attn_course.reference.comparison import poisoned
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.agreement import assert_agrees
from attn_devtools.shares import crossed, in_turns

pytestmark = pytest.mark.system

xp = array_module()
RELATIVE = 2e-6
MARGIN = 36  # floats before and after an output; a multiple of 4, so that float4 paths are taken
# Those of tensor cores have tests of their own: other dtypes, other tiles.
SINGLE = [
    method
    for method in METHODS
    if supports(method, "bias") and method not in MATRIX_TILES and "float32" in dtypes_of(method)
]
EXPERIMENT_NAMES = [row.entry for row in EXPERIMENTS]
GPUS = [
    Device(),
    Device("sm_61", (6, 1), 28, 48 * 1024),
    Device("sm_75", (7, 5), 40, 64 * 1024),
    Device("sm_86", (8, 6), 84, 99 * 1024),
    Device("sm_90", (9, 0), 132, 227 * 1024),
]


def guarded(shape):
    """An output of NaN inside a larger block of NaN; returns the block and the output."""
    size = math.prod(shape)
    block = poisoned(size + 2 * MARGIN, np.float32, xp)
    return block, block[MARGIN : MARGIN + size].reshape(shape)


def device(array):
    return None if array is None else xp.asarray(np.ascontiguousarray(array, dtype=np.float32))


def check(method, q, k, v, *, relative=RELATIVE, bias=None, options=(), **asked):
    """Run a method into a guarded output and compare it and its log-sum-exp with float64."""
    block, out = guarded(q.shape)
    given, lse = attention(
        *map(device, (q, k, v)),
        method=method,
        bias=device(bias),
        return_lse=True,
        out=out,
        options=options,
        **asked,
    )
    assert given is out
    edges = asnumpy(block)
    assert np.isnan(edges[:MARGIN]).all() and np.isnan(edges[-MARGIN:]).all(), method
    expected, expected_lse = reference.attention(q, k, v, bias=bias, return_lse=True, **asked)
    assert_agrees(out, expected, name=method, relative=relative)
    # A log-sum-exp near zero has no relative accuracy: what counts is its distance.
    assert_agrees(lse, expected_lse, name=f"{method} lse", relative=relative, absolute=relative)
    return asnumpy(out)


def taken_by(method, d):
    return d <= LARGEST_D or not (method.startswith("flash") or method == "split_tf32x3")


# (B, H, n, d), keys
SHAPES = [
    ((1, 1, 1, 1), 1),
    ((2, 3, 5, 63), 5),
    ((1, 2, 1, 64), 37),
    ((1, 2, 37, 64), 1),
    ((2, 1, 9, 1), 70),
    ((1, 1, 196, 64), 131),
    ((1, 2, 13, 512), 66),
    ((1, 1, 3, 2048), 5),
    ((1, 1, 2, 1001), 7),
]


@pytest.mark.turns(37)
@pytest.mark.parametrize(("method", "shape"), crossed(SINGLE, SHAPES, each=5), ids=str)
def test_shapes(method, shape):
    extents, keys = shape
    if not taken_by(method, extents[3]):
        with pytest.raises(ValueError, match="head dim .* rows_split or rows_online"):
            check(method, *seeded_qkv(extents, kv_length=keys))
        return
    check(method, *seeded_qkv(extents, kv_length=keys, seed=11))


@pytest.mark.turns(37)
@pytest.mark.parametrize("keys", [12, 35, 80], ids=lambda keys: f"{keys}keys")
@pytest.mark.parametrize("method", [*SINGLE, *EXPERIMENT_NAMES])
def test_causal(method, keys):
    """35 queries: with 12 keys the first 23 see nothing at all and give zeros and -inf."""
    q, k, v = seeded_qkv((1, 2, 35, 36), kv_length=keys, seed=3)
    relative = max(RELATIVE, step(method).relative) if method in EXPERIMENT_NAMES else RELATIVE
    out = check(method, q, k, v, causal=True, relative=relative)
    assert (out[:, :, : max(0, 35 - keys)] == 0).all()


@pytest.mark.turns(29)
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("method", [*SINGLE, "multi_query", "register_tile"])
def test_grouped_heads(method, kv_heads):
    q, k, v = seeded_qkv((2, 6, 7, 20), kv_length=9, seed=4)
    check(method, q, k[:, :kv_heads].copy(), v[:, :kv_heads].copy(), causal=True)


def swin_bias(heads, windows, side, shift):
    """Relative position bias (H) and shifted-window mask (B), each row with a key left to see.

    As in Swin (Liu et al., arXiv:2103.14030): a bias for each of (2 side - 1)^2 displacements, and
    -inf between tokens that were not neighbours before the image was rolled by `shift`.
    """
    place = np.stack(np.meshgrid(*[np.arange(side)] * 2, indexing="ij"), -1).reshape(-1, 2)
    apart = place[:, None] - place[None, :] + side - 1
    table = np.random.default_rng(8).normal(0, 1, (heads, 2 * side - 1, 2 * side - 1))
    relative = table[:, apart[..., 0], apart[..., 1]]  # (H, tokens, tokens)
    masks = []
    for window in range(windows):  # the last row and column of windows hold rolled tokens
        rolled = (place >= side - shift) & (np.array([window // 2, window % 2]) == 1)
        region = rolled @ np.array([2, 1])
        masks.append(np.where(region[:, None] == region[None, :], 0.0, -np.inf))
    return relative[None] + np.array(masks)[:, None]  # (B, H, tokens, tokens)


@pytest.mark.turns(23)
@pytest.mark.parametrize("method", [*SINGLE, *EXPERIMENT_NAMES])
def test_swin_windows(method):
    """Windows of 7 x 7 tokens with the bias and mask that Swin adds to the scores."""
    q, k, v = seeded_qkv((4, 2, 49, 32), seed=5)
    bias = swin_bias(2, 4, 7, 3)
    assert np.isneginf(bias[3]).any() and np.isfinite(bias[0]).all()
    relative = max(RELATIVE, step(method).relative) if method in EXPERIMENT_NAMES else RELATIVE
    check(method, q, k, v, bias=bias, relative=relative)


@pytest.mark.turns(23)
@pytest.mark.parametrize("method", SINGLE)
def test_bias_is_shared_over_batch_and_heads(method):
    q, k, v = seeded_qkv((2, 3, 5, 8), kv_length=9, seed=6)
    for extents in [(5, 9), (3, 5, 9), (2, 1, 5, 9), (2, 3, 5, 9)]:
        bias = np.random.default_rng(1).normal(0, 2, extents).astype(np.float32)
        check(method, q, k, v, bias=bias, causal=True)


@pytest.mark.turns(29)
@pytest.mark.parametrize("method", SINGLE)
def test_a_row_with_every_key_masked_by_the_bias_gives_zeros(method):
    q, k, v = seeded_qkv((1, 2, 6, 16), kv_length=130, seed=7)
    bias = np.zeros((6, 130))
    bias[2] = -np.inf
    bias[4, :129] = -np.inf  # only the very last key is left
    bias[5, :64] = -np.inf  # the first block of keys gives nothing
    out = check(method, q, k, v, bias=bias)
    only = abs(out[:, :, 4] - v[:, :, 129]) / abs(v[:, :, 129])
    assert (out[:, :, 2] == 0).all() and only.max() <= (6e-7 if method == "split_tf32x3" else 0)


@pytest.mark.turns(23)
@pytest.mark.parametrize("method", SINGLE)
def test_huge_logits(method):
    """exp of a raw logit would overflow. A float32 score near 1000 is off by about 1e-4, which is
    a relative error of its weight: hence the wider tolerance."""
    q, k, v = seeded_qkv((1, 2, 21, 24), kv_length=90, seed=5)
    q = (q * 300).astype(np.float32)
    assert np.abs(reference.attention_scores(q, k)).max() > 500
    check(method, q, k, v, relative=3e-4)
    check(method, -np.abs(q), np.abs(k), v, relative=3e-4)  # every score is far below zero


@pytest.mark.turns(23)
@pytest.mark.parametrize("method", SINGLE)
def test_scale(method):
    q, k, v = seeded_qkv((1, 2, 6, 9), kv_length=11, seed=2)
    for scale in (0.0, -0.8, 2.5):
        check(method, q, k, v, scale=scale)


@pytest.mark.turns(37)
@pytest.mark.parametrize("method", in_turns([*SINGLE, *EXPERIMENT_NAMES], 2))
def test_unaligned_arrays(method, shift=2):
    """d % 4 == 0, but arrays may start anywhere: 16-byte accesses would be misaligned."""
    q, k, v = seeded_qkv((1, 2, 5, 32), kv_length=11, seed=shift)
    (row,) = steps_of(method)
    problem = problem_of(q, k)
    blocks = [xp.asarray(np.pad(array.ravel(), (shift, 0))) for array in (q, k, v)]
    size = q.size
    block = poisoned(shift + size, np.float32, xp)
    # The kernel moves its own pointers, so that they are unaligned wherever the arrays begin.
    moved = with_headers(row.path.read_text(), row.path.parent).replace(
        "float scale, int causal)\n{",
        f"float scale, int causal)\n{{ q += {shift}; k += {shift}; v += {shift}; out += {shift};",
    )
    assert f"out += {shift};" in moved
    launch = row.launch(problem, device=current_device())
    kernel = RawModule(code=moved, options=launch.options()).get_function(launch.entry)
    allow_shared(kernel, launch.shared_bytes)
    buffers = dict(zip(("q", "k", "v", "out"), (*blocks, block), strict=True))
    StepLaunch(row, launch, kernel, numbers_of(problem, 1 / math.sqrt(32))).run(buffers)
    assert np.isnan(asnumpy(block)[:shift]).all()
    relative = max(RELATIVE, row.relative) if method in EXPERIMENT_NAMES else RELATIVE
    expected = reference.attention(q, k, v)
    assert_agrees(block[shift:].reshape(q.shape), expected, name=method, relative=relative)


# rows_atomic is left out: on a GPU its atomics add in an order that varies.
@pytest.mark.turns(29)
@pytest.mark.parametrize("method", [method for method in SINGLE if method != "rows_atomic"])
def test_lse_is_optional_and_nothing_else_changes(method):
    q, k, v = map(device, seeded_qkv((1, 2, 5, 24), kv_length=70, seed=3))
    alone = attention(q, k, v, method=method)
    out, lse = attention(q, k, v, method=method, return_lse=True)
    assert lse.shape == (1, 2, 5) and lse.dtype == np.float32
    np.testing.assert_array_equal(asnumpy(alone), asnumpy(out))


TILE_NAMES = ("ROWS", "KEYS", "ROW_WARPS", "KEY_WARPS")
TILES = {  # method -> its constants, tile by tile, for a head dim that they hold
    method: {
        width: [dict(zip(names, tile, strict=True)) | {"D": width} for tile in tiles]
        for width, tiles in table.items()
    }
    for method, names, table in (
        ("flash_fp32", TILE_NAMES, FLASH_TILES),
        ("flash_async", TILE_NAMES, FLASH_TILES),
        ("flash_split", ("CLUSTER", *TILE_NAMES), CLUSTER_TILES),
    )
}


def as_options(config):
    return tuple(f"-D{name}={value}" for name, value in config.items())


@pytest.mark.turns(29)
@pytest.mark.parametrize(("method", "width"), crossed(list(TILES), list(FLASH_TILES)))
def test_flash_tiles(method, width):
    """Tiles of the table on shapes that they do not divide. The large ones take seconds to compile
    and differ in numbers only: without a GPU the last one has to do."""
    for config in TILES[method][width][0 if resolve_backend() == "gpu" else -1 :]:
        if flash_shared_bytes(config) > current_device().shared_bytes:
            continue
        rows = 4 * config["ROWS"] * config["ROW_WARPS"] + 1
        keys = config.get("CLUSTER", 1) * 8 * config["KEYS"] * config["KEY_WARPS"] + 3
        q, k, v = seeded_qkv((1, 1, rows, width - 3), kv_length=keys, seed=rows)
        check(method, q, k, v, causal=True, options=as_options(config))


@pytest.mark.turns(29)
@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_clusters_that_split_the_head_dim(cluster):
    """A head dim that leaves the last block of a cluster a ragged slice, or with 8 blocks none."""
    q, k, v = seeded_qkv((1, 2, 9, 100 * min(cluster, 4)), kv_length=21, seed=cluster)
    config = {"CLUSTER": cluster, "COLS": 2, "WARPS": 2, "ROWS": 1, "KEYS": 2}
    check("rows_split", q, k, v, causal=True, options=as_options(config))


@pytest.mark.turns(29)
@pytest.mark.parametrize("keys", [1, 16, 130])
@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_clusters_that_split_the_keys(cluster, keys):
    """Keys that leave some blocks of a cluster none, rows that a cluster does not divide."""
    q, k, v = seeded_qkv((1, 2, 21, 40), kv_length=keys, seed=cluster)
    config = {"CLUSTER": cluster, "D": 64, "ROWS": 3, "KEYS": 1, "ROW_WARPS": 1, "KEY_WARPS": 2}
    for causal in (False, True):
        check("flash_split", q, k, v, causal=causal, options=as_options(config))


@pytest.mark.parametrize("gpu", GPUS, ids=lambda gpu: gpu.name)
def test_tuned_constants_fit_the_device(gpu):
    for d in (1, 31, 64, 65, 100, 128, 200, 256, 257, 512, 640, 2048, 4096, 5000, 8192):
        for n in (1, 64, 5000):
            problem = Problem(8, n, n, d)
            for entry in ("flash_async", "flash_split") if d <= LARGEST_D else ():
                config = tile_config(entry, problem, gpu)
                assert d <= config["D"] <= d + 31 and config["D"] % 32 == 0
                assert flash_shared_bytes(config) <= gpu.shared_bytes
                assert config.get("CLUSTER", 1) == 1 or gpu.capability >= (9, 0)
            if d <= LARGEST_D and gpu.capability >= (8, 0):
                config = tile_config("split_tf32x3", problem, gpu)
                assert d <= config["D"] <= d + 15 and config["D"] % 16 == 0
                assert joined_bytes(config) <= gpu.shared_bytes
                assert config["CLUSTER"] == 1 or gpu.capability >= (9, 0)
            if not split_candidates(problem, gpu):
                assert gpu.capability < (9, 0) and d > 512
                with pytest.raises(ValueError, match=rf"head dim {d}.*{gpu.name}.*rows_online"):
                    tile_config("rows_split", problem, gpu)
                continue
            config = tile_config("rows_split", problem, gpu)
            width = config["CLUSTER"] * config["COLS"] * 32 * config["WARPS"]
            assert d <= width and config["CLUSTER"] in (1, 2, 4, 8)
            assert config["CLUSTER"] == 1 or gpu.capability >= (9, 0)
            assert split_shared_bytes(config) <= gpu.shared_bytes


def test_few_rows_get_smaller_tiles_than_many():
    few, many = (tile_config("flash_fp32", Problem(1, n, n, 64), Device()) for n in (64, 100_000))
    assert few["ROWS"] * few["ROW_WARPS"] < many["ROWS"] * many["ROW_WARPS"]


def test_long_rows_are_refused_by_the_methods_that_keep_them():
    q, k, v = map(device, seeded_qkv((1, 1, 1, 1), kv_length=ROW_KEYS + 1))
    for method in ("rows_atomic", "rows_warp"):
        with pytest.raises(ValueError, match=rf"{ROW_KEYS + 1} keys.*rows_online"):
            attention(q, k, v, method=method)


@pytest.mark.turns(29)
@pytest.mark.parametrize("method", ["rows_atomic", "rows_warp", "rows_online"])
def test_the_longest_rows(method):
    q, k, v = seeded_qkv((1, 1, 1, 2), kv_length=ROW_KEYS, seed=9)
    check(method, q, k, v)


EXPERIMENT_SHAPES = [
    ((1, 2, 21, 64), 70),
    ((2, 1, 5, 63), 33),
    ((1, 1, 3, 1), 1),
    ((1, 1, 17, 130), 65),
]


@pytest.mark.turns(23)
@pytest.mark.parametrize("shape", EXPERIMENT_SHAPES, ids=str)
@pytest.mark.parametrize("name", EXPERIMENT_NAMES)
def test_experiments(name, shape):
    extents, keys = shape
    q, k, v = seeded_qkv(extents, kv_length=keys, seed=12)
    check(name, q, k, v, relative=max(RELATIVE, step(name).relative))


@pytest.mark.turns(29)
@pytest.mark.parametrize("d", [2300, 4100])
@pytest.mark.parametrize("name", ["register_tile", "double_buffer_slices", "half2_tiles"])
def test_experiments_cover_every_column_of_long_rows(name, d):
    q, k, v = seeded_qkv((1, 1, 2, d), kv_length=3, seed=d)
    check(name, q, k, v, relative=2e-3 if name == "half2_tiles" else RELATIVE)


@pytest.mark.parametrize("options", [("-DVECTORS=2",), ("-DVECTORS=1",)], ids=str)
def test_wide_vectors_in_other_widths(options):
    q, k, v = seeded_qkv((1, 2, 5, 44), kv_length=13, seed=2)
    check("wide_vectors", q, k, v, options=options)


@pytest.mark.turns(11)
def test_half2_rounds_to_half():
    """The error is that of operands with 11 bits: more than float32's, less than 2^-8."""
    q, k, v = seeded_qkv((1, 2, 21, 64), kv_length=70, seed=3)
    out = asnumpy(attention(*map(device, (q, k, v)), method="half2_tiles"))
    expected = reference.attention(q, k, v)
    error = np.linalg.norm(out - expected) / np.linalg.norm(expected)
    assert 1e-5 < error < 2**-8
    rounded = (array.astype(np.float16).astype(np.float64) for array in (q, k))
    assert_agrees(out, reference.attention(*rounded, v), name="rounded first", relative=RELATIVE)


@pytest.mark.parametrize(
    ("name", "shared_bytes"),
    [
        ("replicated_queries", ((16 + 64) * (2048 + 4) + 2048) * 4),
        ("double_buffer_rows", (4 * 64 * (2048 + 4) + 2048) * 4),
    ],
)
def test_layouts_of_whole_rows_are_refused(name, shared_bytes):
    """The launch that once failed with "invalid argument" says how much is too much."""
    q, k, v = map(device, seeded_qkv((1, 1, 1, 2048), kv_length=2))
    with pytest.raises(LaunchError, match=rf"{shared_bytes} bytes"):
        attention(q, k, v, method=name)


def test_auto_picks_by_head_dim_and_device():
    hopper, ampere, turing = GPUS[4], GPUS[0], GPUS[2]
    picks = [
        (16, 64, hopper, "split_tf32x3"),
        (4, 160, hopper, "flash_async"),
        (4, 256, ampere, "flash_async"),
        (4, 64, turing, "flash_fp32"),
        (4, 512, hopper, "rows_split"),
        (4, 512, turing, "rows_online"),
        (4, 20000, hopper, "rows_online"),
    ]
    for heads, d, gpu, method in picks:
        found, reason = choose(Problem(heads, 64, 64, d), gpu)
        assert found == method and str(d) in reason
        launch = steps_of(found)[0].launch(Problem(heads, 64, 64, d), device=gpu)
        assert launch.shared_bytes <= gpu.shared_bytes
    large = Problem(64, 2048, 2048, 64)
    found, reason = choose(large, hopper)
    assert found == "flash_fp16x3" and "three products" in reason and "sm_90" in reason
    found, reason = choose(replace(large, d=32), hopper)
    assert found == "flash_tf32x3" and "1024 blocks" in reason and "132 SMs" in reason
    assert choose(replace(large, d=200), hopper)[0] == "flash_async"  # no clusters are needed
    small = replace(large, d=32)
    assert choose(replace(small, bh=7), hopper)[0] == "split_tf32x3"  # 112 blocks of 128 rows
    assert choose(replace(small, bh=8), hopper)[0] == "flash_tf32x3"  # 128 of them
    assert choose(replace(large, n=8, bh=8), hopper)[0] == "flash_split"
    assert choose(large, turing)[0] == "flash_fp32"


@pytest.mark.parametrize(
    "heads, n, d, method",
    [
        (1, 9, 1, "split_tf32x3"),
        (1, 8, 64, "flash_split"),  # half of the rows of a product would be empty
        (60, 33, 128, "split_tf32x3"),
        (60, 33, 129, "flash_split"),
        (119, 128, 64, "flash_tf32x3"),  # 0.9 full blocks a multiprocessor
        (118, 128, 64, "split_tf32x3"),
        (198, 49, 32, "split_tf32x3"),  # as many blocks, but most of their rows are empty
        (1, 128, 64, "flash_split"),  # few blocks: tensor cores save little
        (8, 128, 64, "split_tf32x3"),
    ],
)
def test_auto_takes_tensor_cores(heads, n, d, method):
    found, reason = choose(Problem(heads, n, n, d), GPUS[4])
    assert found == method
    assert ("tensor cores" in reason) == ("tf32x3" in method)
    assert (f"{heads} blocks are enough" in reason) == (method == "flash_tf32x3")
    launch = steps_of(found)[0].launch(Problem(heads, n, n, d), device=GPUS[4])
    assert launch.shared_bytes <= GPUS[4].shared_bytes


@pytest.mark.turns(23)
@pytest.mark.parametrize("d", [40, 300])
def test_auto_runs_what_it_picks_and_says_so(d, caplog):
    q, k, v = seeded_qkv((1, 4, 9, d), kv_length=11, seed=1)
    with caplog.at_level("INFO", logger="attn_course.ladder.attention"):
        check(AUTO, q, k[:, :2].copy(), v[:, :2].copy(), causal=True)
    method, reason = choose(problem_of(q, k), current_device())
    assert f"auto picks {method}: {reason}" in caplog.text


def test_current_device():
    found = current_device()
    assert found.sm_count > 0 and found.shared_bytes >= 48 * 1024
    if resolve_backend() == "simulator":
        assert found == Device()


def test_a_bias_that_does_not_fit_is_refused():
    q, k, v = map(device, seeded_qkv((2, 4, 5, 8), kv_length=7))
    for extents, message in [
        ((5, 6), "last two extents"),
        ((3, 5, 7), "broadcast_to"),
        ((2, 2, 5, 7), "broadcast_to"),
        ((7,), "reshape"),
    ]:
        with pytest.raises(ValueError, match=rf"bias has shape .*{message}"):
            attention(q, k, v, method="rows_warp", bias=xp.zeros(extents, np.float32))
    with pytest.raises(TypeError, match="bias is float64"):
        attention(q, k, v, method="rows_warp", bias=xp.zeros((5, 7)))
    strides = [
        check_bias(xp.zeros(extents, np.float32), q, k, xp)
        for extents in ((5, 7), (4, 5, 7), (2, 1, 5, 7), (2, 4, 5, 7), (1, 1, 5, 7))
    ]
    assert strides == [(0, 0), (0, 35), (35, 0), (140, 35), (0, 0)]


def test_too_many_rows_are_refused(monkeypatch):
    monkeypatch.setattr("attn_course.ladder.call.MAX_ROWS", 10)
    q, k, v = map(device, seeded_qkv((1, 3, 4, 8)))
    with pytest.raises(ValueError, match="3 heads of 4 queries"):
        attention(q, k, v, method="rows_warp")
