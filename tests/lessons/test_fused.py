"""Runs, traces and records of fused kernels, checked against sums done by hand."""

import numpy as np
import pytest
from kernelscope.watch import InFlight, WarpWork
from record_harness import stamped

from attn_course import Counters, Tracer, reference
from attn_course.ladder.problem import Device
from attn_course.ladder.steps import EXPERIMENTS, step
from attn_course.ladder.tiles import tile_label as label
from attn_course.lessons import fused
from attn_course.lessons.fused import REPORT_SHAPES, tile_options
from attn_course.reference import compare
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.record import tile_model

pytestmark = pytest.mark.system

TINY = ("-DD=32", "-DROWS=1", "-DKEYS=1", "-DROW_WARPS=1", "-DKEY_WARPS=1")  # 4 rows, 8 keys


def inputs(n, m, d, heads=1, kv_heads=1):
    q = seeded_qkv((1, heads, n, d))[0][0]
    _, k, v = seeded_qkv((1, kv_heads, n, d), kv_length=m)
    return q, k[0], v[0]


@pytest.fixture(scope="module")
def traced():
    """Kernel 09 on one query and 21 keys in blocks of 8."""
    q, k, v = inputs(1, 21, 12)
    trace = Tracer(block=(0, 0, 0))
    fused.run(9, q, k, v, trace, options=("-DKEYS=8", "-DWARPS=1"))
    return fused.key_blocks(trace), (q @ k.swapaxes(1, 2))[0, 0] / 12**0.5, v[0]


@pytest.mark.turns(17)
def test_key_blocks_hold_the_running_maximum_sum_and_output(traced):
    blocks, scores, v = traced
    assert [block["key0"] for block in blocks] == [0, 8, 16]
    assert [len(block["scores"]) for block in blocks] == [8, 8, 5]
    for block in blocks:
        seen = scores[: block["key0"] + len(block["scores"])]
        np.testing.assert_allclose(block["row_m"], seen.max(), rtol=1e-5)
        weights = np.exp(seen - seen.max())
        np.testing.assert_allclose(block["row_l"], weights.sum(), rtol=1e-5)
        np.testing.assert_allclose(block["o"], weights @ v[: len(seen)], rtol=1e-4, atol=1e-5)
        rescale = np.exp(block["old_m"] - block["row_m"])
        np.testing.assert_allclose(block["rescale"], rescale, rtol=1e-5)


@pytest.mark.turns(17)
def test_key_blocks_that_a_bias_hides_add_nothing():
    q, k, v = inputs(1, 21, 12)
    bias = np.zeros((1, 1, 21), np.float32)
    bias[..., :8] = -np.inf
    trace = Tracer(block=(0, 0, 0))
    fused.run(9, q, k, v, trace, bias=bias, options=("-DKEYS=8", "-DWARPS=1"))
    first, second, _ = fused.key_blocks(trace)
    assert first["row_l"] == first["rescale"] == 0.0 and (first["o"] == 0).all()
    assert first["row_m"] == second["old_m"] == -np.inf
    assert second["rescale"] == 0.0 and second["row_l"] >= 1.0


def test_a_budget_is_used_up_and_not_exceeded():
    for which, options in (("double_buffer_rows", ()), ("double_buffer_slices", ())):
        for size in (99 * 1024, 227 * 1024):
            d = fused.largest_dim(which, size, options)
            assert fused.shared_need(which, d, options) <= size
            assert fused.shared_need(which, d + 4, options) > size
    # Two tiles of 32 rows of 132 floats, 64 floats of scores and weights, 64 of output.
    assert fused.shared_need("double_buffer_slices", 64) == 4 * (2 * 32 * 132 + 64 + 64)


@pytest.mark.turns(23)
@pytest.mark.parametrize(("m", "tiles"), [(8, 1), (30, 4)])
def test_kernel_20_meets_once_and_sends_for_each_key_tile(m, tiles):
    options = ("-DCLUSTER=4", "-DCOLS=1", "-DWARPS=4", "-DROWS=2", "-DKEYS=1")  # 8 rows, 8 keys
    use = fused.cluster_use(20, *inputs(5, m, 512), options)
    assert (use.blocks, use.waits) == (4, 1)
    # A tile: each block sends its sums of the 6 rows that others own, and to each of 3 blocks the
    # weights of its own 2 rows, the factor and the sum.
    assert use.sent == tiles * 4 * (6 * 8 + 3 * 2 * (8 + 1 + 1)) * 4


@pytest.mark.turns(17)
@pytest.mark.parametrize("cluster", [1, 2, 4, 8])
def test_kernel_19_meets_once_and_sends_a_part_of_each_row(cluster):
    """However many warps share the keys of a row: their parts are joined before."""
    many = ("-DD=32", "-DROWS=1", "-DKEYS=1", "-DROW_WARPS=1", "-DKEY_WARPS=2")
    for options in (TINY, many):
        use = fused.cluster_use(19, *inputs(3, 64, 32), (*options, f"-DCLUSTER={cluster}"))
        assert (use.blocks, use.waits) == (cluster, 0 if cluster == 1 else 1)
        # Each of 4 rows comes from every block but the one that finishes it: o, m, l and a pad.
        assert use.sent == 4 * (cluster - 1) * (32 + 4) * 4
        # Rows of 4 sectors: 3 of Q a block, and K and V once in all; some more where 512 bytes that
        # a warp copies begin in the middle of a sector.
        least = 4 * (3 * cluster + 2 * 64)
        assert least <= use.sectors <= least * 18 / 16


@pytest.mark.turns(23)
def test_the_device_gives_kernel_20_its_tile():
    device = Device("a GPU with clusters", (9, 0), 132, 227 * 1024)
    q, k, v = inputs(16, 16, 8192)
    assert fused.cluster_use(20, q, k, v, device=device).blocks == 32


@pytest.mark.turns(17)
def test_parts_of_a_row_join_to_its_softmax():
    q, k, v = inputs(3, 29, 20)
    parts = fused.key_parts(q, k, v, 2, TINY)
    scores = (q[0, 0].astype(float) @ k[0].T.astype(float)) / 20**0.5
    assert len(parts) == 2
    assert sorted(first for part in parts for first in part["tiles"]) == list(range(0, 29, 8))
    for part in parts:
        mine = np.concatenate([scores[first : first + 8] for first in part["tiles"]])
        np.testing.assert_allclose(part["row_m"], mine.max(), rtol=1e-5)
        np.testing.assert_allclose(part["row_l"], np.exp(mine - mine.max()).sum(), rtol=1e-5)


@pytest.mark.turns(23)
def test_a_block_without_keys_has_nothing_to_join():
    first, last = fused.key_parts(*inputs(3, 8, 32), 2, TINY)
    assert first["tiles"] == [0]
    lowest = -np.finfo(np.float32).max  # a finite first maximum: -inf - -inf is NaN
    assert last["tiles"] == [] and last["row_m"] == lowest and last["row_l"] == 0


def record(shape, keys, times, blocks):
    """A made-up record of one problem. times and blocks: (method, constants) -> value."""
    row = {
        "shape": list(shape),
        "keys": keys,
        "candidates": {
            label(method, dict(c)): {"median_us": time, "blocks": blocks[method, c]}
            for (method, c), time in times.items()
        },
    }
    return stamped(tile_model.KIND, rows=[row])


def test_rounds_are_whole():
    def tile(rows, keys):
        return "rows_split", (("CLUSTER", 8), ("ROWS", rows), ("KEYS", keys))

    times = {tile(6, 4): 20.0, tile(4, 4): 30.0, tile(4, 2): 40.0, tile(1, 4): 60.0}
    found = record(
        (1, 4, 64, 4096), 64, times, {one: 32 * -(-64 // (4 * one[1][1][1])) for one in times}
    )
    rows = fused.split_rows(found, (1, 4, 64, 4096))
    assert rows == {24: (12, 96, 20.0), 16: (16, 128, 30.0), 4: (64, 512, 60.0)}  # not 2 keys


def test_the_fastest_tile_of_each_cluster_size():
    def tile(method, rows, **cluster):
        rest = {"KEYS": 8, "ROW_WARPS": 1, "KEY_WARPS": 4}
        return method, (*cluster.items(), ("ROWS", rows), *rest.items())

    times = {
        tile("flash_async", 1): 40.0,
        tile("flash_async", 2): 50.0,
        tile("flash_split", 1, CLUSTER=8): 10.0,
        tile("flash_split", 2, CLUSTER=2): 80.0,
    }
    blocks = dict(zip(times, (8, 4, 64, 16), strict=True))
    found = record((1, 8, 1, 64), 8192, times, blocks)
    best = fused.sharing(found, (1, 8, 1, 64), 8192)
    one = "1x8, 1x4"
    assert best == {1: (8, 40.0, one), 2: (16, 80.0, "2x8, 1x4"), 8: (64, 10.0, one)}
    assert list(best) == [1, 2, 8]
    with pytest.raises(KeyError):
        fused.sharing(found, (1, 8, 1, 64), 4096)


def test_changes_of_the_loop_leave_out_those_behind_it():
    places, inside = fused.loop_changes("11_flash_fp32", "12_flash_async")
    shown = "\n".join(inside)
    assert places > len(inside) >= 2 and "V is here" in shown
    assert "where there is no key" not in shown  # behind the loop
    with pytest.raises(ValueError, match="01_scores_naive has no loop"):
        fused.loop_changes("11_flash_fp32", "01_scores_naive")


@pytest.mark.turns(23)
def test_grouped_heads_and_a_bias():
    q, k, v = inputs(19, 40, 64, heads=4, kv_heads=2)
    bias = np.random.default_rng(1).standard_normal((4, 19, 40)).astype(np.float32)
    bias[:, 3, 7:] = -np.inf
    out = fused.run(11, q, k, v, heads=4, bias=bias)
    assert compare(out, reference.attention(q[None], k[None], v[None], bias=bias[None])[0])


def test_warp_work_finds_the_busiest_warp():
    work, seen = WarpWork(), Counters()
    q, k, v = inputs(3, 5, 256)
    fused.run(8, q, k, v, work)
    fused.run(8, q, k, v, seen)
    assert work.instructions.shape == (3, 8)
    assert work.instructions.sum() == seen.totals["instructions"]
    assert work.loads.sum() == seen.totals["global_load_requests"]
    assert (work.loads[:, 0] > work.loads[:, 1]).all()


@pytest.mark.turns(17)
def test_only_the_asynchronous_kernel_multiplies_while_data_travels():
    q, k, v = inputs(32, 96, 64)
    followed = {}
    for number in (11, 12):
        followed[number] = InFlight(warp=1)
        fused.run(number, q, k, v, followed[number], options=tile_options((4, 4, 2, 1)))
    eleven, twelve = followed[11], followed[12]
    assert eleven.products_under_way == 0 and all(one.products == 0 for one in eleven.flights)
    assert 0 < twelve.products_under_way < twelve.products.size
    assert eleven.products.size == twelve.products.size
    assert len(twelve.flights) == 1 + 2 * 3  # Q, and K and V of three tiles


# -- attempts beside the ladder, and recorded times ------------------------------------------------
def test_every_experiment_and_single_kernel_takes_part():
    files = {file for file, _ in fused.VARIANTS.values()}
    assert {row.file for row in EXPERIMENTS} <= files
    assert {step(number).file for number in range(7, 13)} <= files


@pytest.mark.parametrize(("keys", "count"), [(16, 1), (64, 1), (65, 2), (200, 4)])
def test_online_blocks_are_of_64_keys(keys, count):
    assert fused.online_blocks(keys) == count


def test_tile_options_name_every_constant_of_kernel_11():
    constants = step("flash_fp32").constants(tile_options((2, 4, 3, 5), 96))
    chosen = [constants[name] for name in ("ROWS", "KEYS", "ROW_WARPS", "KEY_WARPS", "D")]
    assert chosen == [2, 4, 3, 5, 96]


def test_times_are_of_an_experiments_record_or_of_a_suites():
    shape = REPORT_SHAPES[1]
    row = {"shape": list(shape), "candidates": {"rows_warp": {"median_us": 3.0}}}
    found = stamped("experiments", rows=[row], tiles={"shape": fused.TILE_SHAPE})
    assert fused.times(found, shape) == {"rows_warp": 3.0}
    row = {"shape": list(shape), "causal": False, "timings": {"rows_online": {"median_us": 2.0}}}
    suite = stamped("bench", rows=[row | {"causal": True, "timings": {}}, row])
    assert fused.times(suite, shape, causal=False) == {"rows_online": 2.0}
    with pytest.raises(KeyError, match="no row"):
        fused.times(found, (1, 2, 3, 4))


def test_a_table_of_times_has_a_column_a_shape_and_the_caption():
    rows = [
        {"shape": list(shape), "candidates": {"rows_warp": {"median_us": 10.0 + at}}}
        for at, shape in enumerate(REPORT_SHAPES)
    ]
    heads, _, first, second, caption = fused.time_table(
        stamped("experiments", rows=rows), ("rows_warp", "rows_online")
    ).splitlines()
    assert "1,1,16,8192" in heads and caption.startswith("recorded 2026-01-02 on NVIDIA H200")
    assert first.split() == ["rows_warp", "10.0", "11.0", "12.0", "13.0"]
    assert second.split() == ["rows_online", *"----"]


# -- one block of a lesson's own kernel ------------------------------------------------------------
TAKE_BOX = r"""
#include "include/swizzled_tile.cuh"
#include "include/tma.cuh"
extern "C" __global__ void __launch_bounds__(32, 1) take_box(
    const __grid_constant__ TensorMap map, int row, uint4* places)  // places: (8,), block 32
{
    __shared__ __align__(1024) uint4 tile[8 * 8];
    __shared__ unsigned long long barriers[2];
    const Ring<1, sizeof(tile)> ring{shared_address(tile), shared_address(barriers)};
    if (threadIdx.x == 0) ring.start(1);
    if (threadIdx.x == 0) barriers_started();
    if (threadIdx.x == 0) fill_tile<1>(ring, 0, map, row, 0);
    __syncthreads();
    ring.wait_full(0);
    if (threadIdx.x < 8) places[threadIdx.x] = tile[8 * ROW + threadIdx.x];
}
"""


@pytest.mark.parametrize(("swizzle", "order"), [(0, range(8)), (128, [3, 2, 1, 0, 7, 6, 5, 4])])
def test_a_block_takes_a_box_of_an_array(swizzle, order):
    chunks = np.repeat(np.arange(128, dtype=np.uint32), 4).reshape(1, 16, 32)
    places, seen = np.zeros((8, 4), np.uint32), Counters()
    boxes = fused.Boxes(chunks, (1, 8, 32), swizzle)
    options = ("-DROW=3",)
    fused.run_block(TAKE_BOX, boxes, np.int32(4), places, block=32, options=options, watch=(seen,))
    assert (places == 8 * 7 + np.array(order)[:, None]).all()  # row 4 of the array is the tile's 0
    assert seen.totals["bulk_load_bytes"] == 8 * 128


def test_kernels_of_hopper_run_where_the_device_takes_them(monkeypatch, capsys):
    assert fused.hopper_backend() == "simulator"
    monkeypatch.setattr(fused, "resolve_backend", lambda: "gpu")
    for device, backend in (("X100", "gpu"), ("X80", "simulator")):
        found = Device(device, (9, 0) if backend == "gpu" else (8, 0))
        monkeypatch.setattr(fused, "current_device", lambda found=found: found)
        assert fused.hopper_backend() == backend
    printed = capsys.readouterr().out.splitlines()
    assert printed[-2:] == [
        "kernels run on X100",
        "kernels run on the simulator: X80 has no wgmma",
    ]
