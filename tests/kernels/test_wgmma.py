"""Kernel 18 on warpgroups: ragged tiles, masks, turns, the order of tiles, what ptxas says."""

import shutil
import subprocess
from dataclasses import replace
from importlib import metadata

import ml_dtypes
import numpy as np
import pytest
from kernelscope.compile import with_headers

from attn_course import Counters, RawModule, attention, observe, reference
from attn_course.ladder.choose import choose
from attn_course.ladder.headers import kernel_path
from attn_course.ladder.problem import Device, Problem
from attn_course.ladder.steps import step
from attn_course.ladder.warpgroup_tiles import (
    FROM_DRAM,
    HELD_BYTES,
    group_bytes,
    longest_block,
    wgmma_bytes,
    wgmma_config,
    wgmma_pays,
)
from attn_devtools.agreement import assert_agrees
from attn_devtools.shares import crossed, in_turns

pytestmark = pytest.mark.system

BFLOAT16, HALF = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
RELATIVE = {BFLOAT16: 4e-3, HALF: 6e-4}
H200 = Device("NVIDIA H200", (9, 0), 132, 227 * 1024)


def inputs(dtype, batch, heads, kv_heads, n, m, d, seed=0):
    """q (batch, heads, n, d), k and v (batch, kv_heads, m, d), rounded to the dtype."""
    rng = np.random.default_rng(seed)
    shapes = ((batch, heads, n, d), *((batch, kv_heads, m, d),) * 2)
    return [rng.normal(0.1, 1.0, shape).astype(dtype) for shape in shapes]


def check(q, k, v, *, options=(), relative=None, **how):
    """Run 18 and compare out and lse with float64; out starts as NaN."""
    out = np.full(q.shape, np.nan, q.dtype)
    how |= {"return_lse": True}
    _, lse = attention(q, k, v, "flash_wgmma", out=out, options=options, **how)
    exact = [array.astype(np.float64) for array in (q, k, v)]
    expected, expected_lse = reference.attention(*exact, **how)
    assert_agrees(lse, expected_lse, relative=2e-6, name="lse")
    assert_agrees(out, expected, relative=relative or RELATIVE[q.dtype], name="out")


RAGGED = [
    (BFLOAT16, (1, 2, 2, 196, 196, 64)),
    (HALF, (1, 1, 1, 1, 1, 8)),
    (BFLOAT16, (2, 4, 2, 33, 300, 80)),
    (HALF, (1, 2, 1, 131, 5, 136)),
    (BFLOAT16, (1, 1, 1, 70, 130, 200)),
]


@pytest.mark.turns(37)
@pytest.mark.parametrize(("given", "causal"), in_turns(crossed(RAGGED, [False, True]), 2), ids=str)
def test_ragged_tiles_and_grouped_heads(given, causal):
    dtype, shape = given
    check(*inputs(dtype, *shape), causal=causal)


@pytest.mark.turns(23)
@pytest.mark.parametrize(("groups", "heads"), in_turns([(2, 1), (3, 2), (2, 2), (3, 1)], 2))
def test_two_warpgroups_and_three(groups, heads):
    """Tiles of 64 columns; three warpgroups take rows of which the first two see few keys."""
    chosen = (f"-DGROUPS={groups}", f"-DHEADS={heads}", "-DBLOCKS=2")
    check(*inputs(BFLOAT16, 1, 3, 1, 250, 250, 40), causal=True, options=chosen)


@pytest.mark.turns(17)
def test_a_block_takes_tile_after_tile():
    """Rings go round several times, for Q too."""
    check(*inputs(HALF, 1, 3, 3, 200, 200, 16), options=("-DBLOCKS=1", "-DGROUPS=2"))


@pytest.mark.turns(23)
@pytest.mark.parametrize("scale", [-0.4, 0.0, 3.0])
def test_other_scales(scale):
    check(*inputs(BFLOAT16, 1, 1, 1, 40, 150, 64), scale=scale)


RISES = [0.05, 2.0, 40.0]  # of d = 256 less than the slack in all, at each second tile, at each


@pytest.mark.turns(37)
@pytest.mark.parametrize("rise", RISES)
@pytest.mark.parametrize("d", [64, 136, 256])
def test_scores_that_rise_from_tile_to_tile(rise, d):
    """Each tile, from the last to the first, raises the maximum, by little and by much."""
    q, k, v = inputs(HALF, 1, 1, 1, 20, 400, d)
    q[..., 0], k[..., 0] = 4.0, np.arange(400)[::-1] // 64 * rise
    check(q, k, v)


@pytest.mark.turns(23)
@pytest.mark.parametrize("dtype", [HALF, BFLOAT16])
def test_weights_above_one(dtype):
    """At d > 128 a shift stays where scores pass it by less than 8 powers of two: with one key
    that has 2^7.9 times the weight of each key before it, and the rest below half's smallest."""
    q, k, v = (np.zeros((1, 1, n, 256), dtype) for n in (3, 200, 200))
    v[:] = np.random.default_rng(5).normal(1.0, 1.0, v.shape)
    q[..., 0], k[..., 0] = 1.0, -30.0
    k[..., 140:, 0], k[..., 10, 0] = 0.0, 7.9 * np.log(2.0)
    check(q, k, v, scale=1.0)
    check(q, -k, v, scale=-1.0)


@pytest.mark.turns(23)
@pytest.mark.parametrize("given", [{"scale": -0.3}, {"scale": 200.0}, {"causal": True}], ids=str)
def test_wide_rows_with_a_slack(given):
    """Negative scales, huge scores, rows that see no key of the first tiles or none at all."""
    check(*inputs(BFLOAT16, 1, 2, 1, 150, 130, 192, seed=2), **given)


def test_what_it_does_not_take_is_refused_with_the_method_that_does():
    q, k, v = inputs(BFLOAT16, 1, 1, 1, 5, 7, 20)
    with pytest.raises(ValueError, match="multiples of 16; use method flash_mma"):
        attention(q, k, v, "flash_wgmma")
    with pytest.raises(ValueError, match="has no bias; methods that do: .*flash_mma"):
        attention(q, k, v, "flash_wgmma", bias=np.zeros((5, 7), np.float32))
    with pytest.raises(ValueError, match=r"A100 has 8\.0; use method flash_mma"):
        wgmma_config(Problem(1, 64, 64, 64), Device("A100", (8, 0), 108, 163 * 1024))


@pytest.mark.turns(11)
def test_counts():
    """One tile of 128 rows and two of 128 keys: what each engine does."""
    with observe(Counters()) as seen:
        check(*inputs(BFLOAT16, 1, 1, 1, 128, 256, 64), options=("-DGROUPS=2",))
    warps, keys, columns = 8, 256, 64
    products = keys // 128 * columns // 16 + keys // 16  # of a warp: scores, then output
    assert seen.totals["tensor_instructions"] == warps * products
    elements = 128 * columns + 2 * keys * columns
    assert seen.totals["bulk_load_bytes"] == 2 * elements
    assert seen.totals["bulk_store_bytes"] == 2 * 128 * columns
    assert seen.totals["shared_store_conflicts"] == 0


# -- what is chosen --------------------------------------------------------------------------------
def test_auto_takes_it_on_hopper_alone():
    long = Problem(64, 4096, 4096, 128, 16, 16, dtype="bfloat16")
    assert choose(long, H200)[0] == "flash_wgmma"
    assert choose(long, Device())[0] == choose(long, replace(H200, capability=(10, 0)))[0]
    assert choose(long, Device())[0] == "flash_mma"  # the simulator has no room for its tiles
    for other in ({"d": 60}, {"biased": True}, {"n": 64, "m": 64, "bh": 8}):
        assert choose(replace(long, **other), H200)[0] == "flash_mma"
    assert not wgmma_pays(replace(long, d=64, n=512, bh=16), H200)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("d", [8, 64, 96, 128, 192, 256])
def test_constants_fit_an_h200(d, causal):
    for bh, n in ((1, 1), (64, 1024), (16, 4096), (70000, 3000)):
        problem = Problem(bh, n, n, d, causal=causal, dtype="float16")
        geometry = step("flash_wgmma").launch(problem, (), H200)
        assert geometry.shared_bytes == wgmma_bytes(wgmma_config(problem, H200))
        assert geometry.shared_bytes <= H200.shared_bytes and geometry.grid[0] <= 132


def test_the_longest_block_counts_what_the_kernel_does():
    """Against a loop over the tiles of each group of heads, in the order of work_of()."""
    problem = Problem(6, 700, 900, 64, causal=True, dtype="float16")
    for groups, heads, blocks in ((2, 1, 5), (2, 4, 5), (3, 1, 4), (3, 1024, 7), (2, 2, 4)):
        c = {"GROUPS": groups, "HEADS": heads, "BC": 128, "BLOCKS": blocks}
        rows, order, work = 64 * groups, [], [0.0] * blocks
        for first in range(0, 6, heads):
            tiles = range(-(-700 // rows))
            upwards = heads == 1 and first % 2
            width = min(heads, 6 - first)
            order += [at for at in (tiles if upwards else tiles[::-1]) for _ in range(width)]
        for number, at in enumerate(order):
            turn, block = divmod(number, blocks)
            keys = min(900, (at + 1) * rows + 200)
            work[blocks - 1 - block if heads > 1 and turn % 2 else block] += -(-keys // 128) + 1
        assert longest_block(c, problem) == max(work) * (1.28 if groups == 3 else 1)


@pytest.mark.turns(23)
def test_every_tile_is_taken_once_whatever_the_groups():
    """Groups that do not divide the heads, blocks that do not divide the tiles."""
    for heads, blocks in ((1, 3), (2, 3), (3, 4), (1024, 2)):
        options = (f"-DHEADS={heads}", f"-DBLOCKS={blocks}", "-DGROUPS=2", "-DBC=64")
        check(*inputs(BFLOAT16, 1, 5, 1, 140, 70, 8, seed=heads), causal=True, options=options)


def test_groups_are_as_large_as_l2_holds():
    """Larger ones only where smaller ones keep a block busy for longer than DRAM costs."""
    long = Problem(64, 4096, 4096, 128, 64, 64, causal=True, dtype="bfloat16")
    assert group_bytes({"HEADS": 11}, long) == 11 * 4 * 4096 * 128
    for given in ({}, {"d": 64}, {"d": 256}, {"n": 2048, "m": 2048}):
        problem = replace(long, **given)
        c = wgmma_config(problem, H200)
        assert c["HEADS"] > 1 and group_bytes(c, problem) <= HELD_BYTES
        every = c | {"HEADS": 1024}
        assert longest_block(every, problem) * FROM_DRAM > longest_block(c, problem)
    assert wgmma_config(replace(long, causal=False), H200)["HEADS"] == 1
    shared = replace(long, kv_heads=8)  # eight heads read the same K and V: L2 holds all
    assert group_bytes({"HEADS": 1024}, shared) <= HELD_BYTES
    assert wgmma_config(shared, H200)["HEADS"] == 1024
    few = replace(long, bh=12, heads=12, kv_heads=12, d=256)  # in groups of 11 one is left over
    c = wgmma_config(few, H200)
    assert group_bytes(c, few) <= HELD_BYTES or longest_block(c, few) * FROM_DRAM <= min(
        longest_block(c | {"HEADS": heads}, few) for heads in (1, 2, 3, 4, 6, 8)
    )


# -- what ptxas makes of it ------------------------------------------------------------------------
def ptxas() -> str:
    """Of the package with nvcc's headers, else of a toolkit on the PATH."""
    files = metadata.files("nvidia-cuda-nvcc-cu12") or ()
    found = [str(file.locate()) for file in files if file.name == "ptxas"]
    return found[0] if found else shutil.which("ptxas") or pytest.skip("no ptxas here")


@pytest.mark.turns(47)
@pytest.mark.parametrize("d", [64, 128, 192, 256])
def test_ptxas_spills_nothing_and_serialises_nothing(d, tmp_path):
    """No C7508 (setmaxnreg ignored), C7510 and C7515 (products one after the other); no spills."""
    problem = Problem(64, 4096, 4096, d, 16, 16, dtype="bfloat16")
    row = step("flash_wgmma")
    options = (*row.flags, *row.launch(problem, (), H200).options(()))
    text = with_headers(kernel_path(row.file).read_text(), kernel_path(row.file).parent)
    ptx = RawModule(code=text, options=options, backend="simulator").ptx()
    (tmp_path / "18.ptx").write_text(ptx)
    command = [ptxas(), "-arch=sm_90a", "-v", "18.ptx", "-o", "18.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    said = done.stdout + done.stderr
    assert "C75" not in said and "warning" not in said.lower(), said
    assert "0 bytes spill stores, 0 bytes spill loads" in said and "Used 1" in said
