"""Kernels 14 and 15 on fragments: layouts, masks, rescaling, rounding, banks, memory.

The tiles are made small, so that few keys are several tiles. The ladder's tests run the same
kernels on the tiles of their own.
"""

import ml_dtypes
import numpy as np
import pytest
from kernelscope import device_address
from kernelscope.watch.counters.counters import tensor_instructions

from attn_course import Counters, RawModule, Sanitizer, observe, reference
from attn_course.ladder.headers import kernel_path
from attn_course.ladder.matrix_tiles import MATRIX_TILES
from attn_course.ladder.problem import Problem
from attn_course.ladder.steps import step
from attn_course.measure.hardware.disassembly import count_operations, machine_code
from attn_course.reference.comparison import compare
from attn_devtools.agreement import assert_agrees
from attn_devtools.shares import crossed, in_turns

pytestmark = pytest.mark.system

BFLOAT16, HALF, SINGLE = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
RELATIVE = {BFLOAT16: 4e-3, HALF: 6e-4, SINGLE: 2e-6}
SMALL = {"WARPS": 2, "BC": 16}


def inputs(dtype, heads, kv_heads, n, m, d, seed=0):
    """q (heads, n, d), k and v (kv_heads, m, d), rounded to the dtype."""
    rng = np.random.default_rng(seed)
    shapes = ((heads, n, d), (kv_heads, m, d), (kv_heads, m, d))
    return [rng.normal(0.1, 1.0, shape).astype(dtype) for shape in shapes]


def run(q, k, v, *, causal=False, scale=None, bias=None, constants=SMALL):
    """Launch 14, or 15 for float32, on the simulator. Returns out in float32, and lse."""
    (heads, n, d), (kv_heads, m, _) = q.shape, k.shape
    file, width = ("15_flash_tf32x3", 32) if q.dtype == SINGLE else ("14_flash_mma", 16)
    c = {"D": -(-d // width) * width, "ROW_TILES": 1} | constants
    rows = 16 * c["ROW_TILES"] * c["WARPS"]
    row_bytes = 4 * c["D"] if q.dtype == SINGLE else -(-c["D"] // 64) * 128
    if q.dtype != SINGLE:
        c["BFLOAT16"] = int(q.dtype == BFLOAT16)
    options = (*(f"-D{name}={value}" for name, value in c.items()), "-arch=compute_90")
    module = RawModule(path=kernel_path(file), options=options, backend="simulator")
    kernel = module.get_function(file[3:])
    out, lse = np.full(q.shape, np.nan, q.dtype), np.full((heads, n), np.nan, np.float32)
    numbers = (*map(np.int32, (heads, kv_heads, n, m, d)), np.int64(0), np.int64(0))
    scale = np.float32(d**-0.5 if scale is None else scale)
    arguments = (q, k, v, bias, out, lse, *numbers, scale, np.int32(causal))
    shared = (rows + 2 * c["BC"]) * row_bytes
    kernel.max_dynamic_shared_size_bytes = shared
    kernel((heads, -(-n // rows)), (32 * c["WARPS"],), arguments, shared_mem=shared)
    return out.astype(np.float32), lse


def check(q, k, v, *, relative=None, **how):
    """Run and compare out and lse with float64."""
    out, lse = run(q, k, v, **how)
    how.pop("constants", None)
    exact = [array.astype(np.float64)[None] for array in (q, k, v)]
    expected, expected_lse = reference.attention(*exact, return_lse=True, **how)
    assert_agrees(lse, expected_lse[0], relative=2e-6, name="lse")
    return assert_agrees(out, expected[0], relative=relative or RELATIVE[q.dtype], name="out")


@pytest.mark.turns(17)
@pytest.mark.parametrize("dtype", [BFLOAT16, HALF, SINGLE], ids=str)
def test_ragged_tiles_and_grouped_heads(dtype):
    """Rows and keys that end inside a tile, a padded head dim, two heads that share K and V."""
    check(*inputs(dtype, 4, 2, 35, 75, 40))


@pytest.mark.turns(17)
@pytest.mark.parametrize("dtype", [BFLOAT16, SINGLE], ids=str)
def test_causal_rows_that_see_no_key(dtype):
    check(*inputs(dtype, 1, 1, 75, 41, 24), causal=True)


@pytest.mark.turns(23)
@pytest.mark.parametrize("dtype", [BFLOAT16, SINGLE], ids=str)
def test_rows_that_are_not_aligned(dtype):
    check(*inputs(dtype, 2, 2, 19, 21, 23), causal=True)


@pytest.mark.turns(11)
@pytest.mark.parametrize("dtype", [BFLOAT16, SINGLE], ids=str)
def test_a_bias_and_a_negative_scale(dtype):
    bias = np.random.default_rng(1).normal(size=(20, 37)).astype(np.float32)
    bias[3] = bias[5, :35] = -np.inf
    check(*inputs(dtype, 2, 2, 20, 37, 32), bias=bias, scale=-0.4)


@pytest.mark.turns(17)
@pytest.mark.parametrize("dtype", [BFLOAT16, SINGLE], ids=str)
def test_two_tiles_of_rows_a_warp(dtype):
    check(*inputs(dtype, 3, 1, 70, 50, 24), causal=True, constants=SMALL | {"ROW_TILES": 2})


@pytest.mark.turns(17)
@pytest.mark.parametrize("rise", [2.0, 40.0])
@pytest.mark.parametrize("dtype", [HALF, SINGLE], ids=str)
def test_scores_that_rise_from_tile_to_tile(dtype, rise):
    """Each tile raises the maximum, by little and by much."""
    q, k, v = inputs(dtype, 1, 1, 17, 100, 32)
    q[:, :, 0], k[:, :, 0] = 4.0, np.arange(100) // 16 * rise
    check(q, k, v, relative=1e-5 if dtype == SINGLE else None)


@pytest.mark.turns(17)
def test_three_products_are_nearly_as_exact_as_fp32():
    """Without the small parts the error is that of 11 bits: the bound can fail."""
    q, k, v = inputs(SINGLE, 1, 1, 16, 200, 64)
    check(q, k, v)
    cut = [(x.view(np.uint32) & 0xFFFFE000).view(np.float32) for x in (q, k, v)]
    out, _ = run(*cut)
    expected = reference.attention(*(x[None] for x in (q, k, v)))[0]
    assert compare(out, expected).relative_error > 1e-4


@pytest.mark.turns(37)
@pytest.mark.parametrize(
    ("d", "dtype"), in_turns(crossed([8, 16, 64, 96], [SINGLE, BFLOAT16]), 2), ids=str
)
def test_no_bank_conflicts(dtype, d):
    """None, but for 8 of an output of 16 columns in 16 bits, however many keys there are."""
    for keys in (32, 64):
        with observe(Counters()) as seen:
            run(*inputs(dtype, 1, 1, 16, keys, d))
        assert seen.totals["shared_load_wavefronts"] > 0
        assert seen.totals["shared_store_conflicts"] == 0
        assert seen.totals["shared_load_conflicts"] == (8 if (dtype, d) == (BFLOAT16, 16) else 0)


@pytest.mark.turns(37)
@pytest.mark.parametrize("file", in_turns(["13_flash_wmma", "14_flash_mma", "15_flash_tf32x3"], 3))
def test_the_compiler_makes_the_tensor_instructions_that_are_counted(file):
    """Written out in the code as often as in the PTX: every loop of products is unrolled."""
    row = step(file)
    launch = row.launch(Problem(1, 64, 64, 64, dtype=row.dtypes[0]))
    options = launch.options(())
    module = RawModule(path=row.path, options=(*options, "-arch=compute_90"), backend="simulator")
    ptx = module.program().module.functions[row.entry].body
    expected = sum(tensor_instructions(one.opcode.split(".")) for one in ptx)
    assert expected > 0
    code = machine_code(file, row.entry, options)
    assert count_operations(code, "HMMA")["HMMA"] == expected


@pytest.mark.turns(17)
@pytest.mark.parametrize("dtype", [BFLOAT16, SINGLE], ids=str)
def test_memory_is_used_soundly(dtype):
    with observe(Sanitizer()) as report:
        run(*inputs(dtype, 1, 1, 20, 40, 24), causal=True)
    assert report.findings == []


@pytest.mark.turns(11)
@pytest.mark.parametrize("start", [0, 1])
@pytest.mark.parametrize("dtype", [BFLOAT16, SINGLE], ids=str)
def test_a_bias_of_even_rows(dtype, start):
    """Pairs of the bias, to the last row's end; an array that starts between two pairs."""
    block = np.random.default_rng(2).normal(0, 2, start + 20 * 38).astype(np.float32)
    bias = block[start:].reshape(20, 38)
    bias[3] = bias[5, :37] = -np.inf  # 5: only the second of the last pair is left
    assert device_address(bias) % 8 == 4 * start
    check(*inputs(dtype, 2, 2, 20, 38, 32), bias=bias)


def test_pairs_of_the_bias_save_loads():
    q, k, v = inputs(BFLOAT16, 1, 1, 16, 38, 32)
    found = []
    for start in (0, 1):
        bias = np.zeros(start + 16 * 38, np.float32)[start:].reshape(16, 38)
        with observe(Counters()) as seen:
            run(q, k, v, bias=bias)
        found.append(seen.totals["global_load_requests"])
    assert found[0] < found[1]


@pytest.mark.turns(23)
@pytest.mark.parametrize("scale", [-0.4, 0.0])
@pytest.mark.parametrize("dtype", [BFLOAT16, SINGLE], ids=str)
def test_other_scales_without_a_bias(dtype, scale):
    check(*inputs(dtype, 2, 2, 20, 37, 32), scale=scale)


@pytest.mark.turns(23)
def test_higher_maxima_cost_rescaling():
    """Sums are rescaled where a maximum rises, and not where the first tile has it."""
    q, k, v = inputs(HALF, 1, 1, 17, 100, 32)
    q[:, :, 0], k[:, :, 0] = 4.0, np.arange(100) // 16 * 2.0
    found = []
    for keys in (k, k[:, ::-1].copy()):
        check(q, keys, v, constants=SMALL)
        with observe(Counters()) as seen:
            run(q, keys, v, constants=SMALL)
        found.append(seen.totals["instructions"])
    assert found[0] > found[1]


TILES = [
    (dtype, tile)
    for d, (entry, dtype) in crossed(
        (64, 128, 256), (("flash_mma", HALF), ("flash_tf32x3", SINGLE))
    )
    for tile in MATRIX_TILES[entry].of(d)[:1]
]


@pytest.mark.turns(41)
@pytest.mark.parametrize(("dtype", "tile"), in_turns(TILES, 6), ids=str)
def test_tiles_of_the_table(dtype, tile):
    """The first of each width, which the simulator's own device has no use for or no room.

    Among them are one and two tiles of rows, four and eight warps; others differ in numbers only.
    """
    rows = 16 * tile["ROW_TILES"] * tile["WARPS"]
    q, k, v = inputs(dtype, 1, 1, rows + 5, 2 * tile["BC"] + 6, tile["D"] - 9)
    q[:, :, 0], k[:, :, 0] = 4.0, np.arange(k.shape[1]) // tile["BC"] * 7.0
    bias = np.random.default_rng(2).normal(size=(q.shape[1], k.shape[1])).astype(np.float32)
    check(q, k, v, bias=bias, constants=tile)
