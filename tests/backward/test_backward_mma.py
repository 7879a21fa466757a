"""Kernel 24: gradients of 16-bit elements against float64, in every tile, and in a fixed order."""

from dataclasses import replace
from functools import partial

import gradient_runs
import numpy as np
import pytest
from gradient_runs import A100, BFLOAT16, H200, HALF, inputs
from kernelscope import Counters, Sanitizer, observe
from kernelscope.backend import asnumpy

from attn_course.backward import METHODS
from attn_course.backward.mma import MMA_STEPS, TILES, mma_bytes, mma_config, suits_mma
from attn_course.backward.verify import backward_call
from attn_course.clinic.edits import edited
from attn_course.ladder import Device, Problem
from attn_course.ladder.choose import simulating
from attn_course.ladder.headers import KERNEL_FOLDER
from attn_course.ladder.methods import UnsupportedOption
from attn_devtools.agreement import assert_agrees
from attn_devtools.shares import crossed, in_turns

FORCED = ("-DKEY_TILES=2", "-DPAIRS=2")  # the simulator's A100 has too few blocks to choose it
DETERMINISTIC = "-DDETERMINISTIC=1"
RTX = Device("GeForce RTX 4090", (8, 9), 128, 99 * 1024)
run = partial(gradient_runs.run, "backward_mma")


@pytest.mark.turns(29)
@pytest.mark.system
@pytest.mark.parametrize(
    ("dtype", "shape", "m", "kv_heads", "how"),
    in_turns(
        [
            (BFLOAT16, (1, 1, 1, 1), 1, 1, {}),
            (HALF, (1, 2, 196, 64), 196, 2, {"causal": True}),
            (BFLOAT16, (2, 4, 70, 63), 130, 2, {"causal": True}),
            (HALF, (1, 3, 130, 80), 70, 1, {"causal": True, "scale": -0.2}),
            (BFLOAT16, (1, 1, 65, 128), 129, 1, {}),
            (BFLOAT16, (2, 1, 33, 200), 40, 1, {"causal": True}),
        ],
        3,
    ),
    ids=str,
)
def test_gradients(dtype, shape, m, kv_heads, how):
    run(inputs(dtype, shape, m, kv_heads, **how), **how)


@pytest.mark.turns(37)
@pytest.mark.system
@pytest.mark.parametrize(
    ("tile", "fixed"),
    in_turns(crossed([(2, 4, 64), (2, 2, 64), (3, 1, 64), (2, 4, 128)], [False, True]), 2),
    ids=str,
)
def test_every_tile_in_any_order_and_a_fixed_one(tile, fixed):
    """Two tiles of queries, two of keys or three; heads that share keys follow each other.

    On the simulator with the code for an H200, which adds four sums at once.
    """
    options = [f"-D{x}={y}" for x, y in zip(TILES.names, tile, strict=True)]
    keys, queries = 16 * tile[0] * tile[1], tile[2]
    shape, m = (1, 2, queries + 22, 48), min(2 * keys + 19, 170)
    arrays = inputs(shape=shape, m=m, kv_heads=1, causal=True)
    with simulating(H200):
        run(arrays, causal=True, deterministic=fixed, options=options)


@pytest.mark.turns(23)
@pytest.mark.system
def test_many_keys():
    """Half a thousand queries and keys of one head."""
    run(inputs(HALF, (1, 1, 500, 16), 500), options=FORCED)


@pytest.mark.parametrize("m", [84, 7])
def test_a_diagonal_that_just_misses_a_tile(m):
    """The first query sees all keys of a warp but one; or of its tile the last alone sees a key."""
    run(inputs(HALF, (1, 1, 70, 16), m, causal=True), causal=True)


def test_rows_that_see_no_key_have_zero_gradients():
    found = run(inputs(m=9, causal=True), causal=True)
    assert not found["dq"][:, :, :61].any() and found["dq"][:, :, 61:].all()


@pytest.mark.turns(23)
@pytest.mark.system
def test_huge_logits():
    """Scores of some hundreds: out, rounded, is what delta, and so dq and dk, can be exact to."""
    arrays = inputs(HALF, factor=60.0)
    call, oracle = backward_call("backward_mma", arrays)
    call.run()
    for name, limit in (("dv", 6e-4), ("dk", 0.05), ("dq", 0.05)):
        found = asnumpy(oracle.written[name]).astype(np.float64)
        error = np.linalg.norm(found - oracle.expected[name])
        assert error < limit * np.linalg.norm(oracle.expected[name]), (name, error)


@pytest.mark.turns(23)
@pytest.mark.system
def test_scores_far_below_zero_beside_keys_that_are_not_there():
    gradient_runs.scores_far_below_zero("backward_mma")


@pytest.mark.turns(23)
@pytest.mark.system
def test_the_same_bits_where_deterministic():
    arrays = inputs(shape=(1, 2, 70, 64), m=135, kv_heads=1)
    found = [run(arrays, deterministic=True, options=FORCED) for _ in range(2)]
    for name in ("dq", "dk", "dv"):
        np.testing.assert_array_equal(*(one[name].view(np.uint16) for one in found))


@pytest.mark.turns(11)
def test_a_fixed_order_with_more_heads_than_start_in_turns():
    """Nine heads of three blocks: eight of them take turns, then the last one follows."""
    options = ("-DKEY_TILES=1", "-DPAIRS=2")
    run(inputs(HALF, (3, 3, 5, 16), 70, 3), deterministic=True, options=options)


@pytest.mark.turns(11)
@pytest.mark.system
@pytest.mark.parametrize("warps", ["true", "!of_k"])
def test_a_fixed_order_waits_for_who_is_late(warps, monkeypatch):
    """The block with the first turn, or a warp of each of its pairs, adds late: the same bits."""
    arrays = inputs(HALF, (1, 1, 70, 16), 128)
    # Polls let others run: as many as would have passed the turn on, if they had not waited for it.
    late = (
        f"if ({warps} && key_tile == key_tiles - 1) for (int i = 0; i < 200; ++i)\n"
        "    if (*(volatile unsigned*)(turns + 1 + tile * PAIRS + pair) > 1) break;"
    )
    first, last, unordered = (
        sums_of_dq(arrays, edits, monkeypatch)
        for edits in ((), ((ADDS, f"{late}\n{ADDS}"),), ((ADDS, f"{late}\n{ADDS}"), NO_WAIT))
    )
    np.testing.assert_array_equal(last, first)
    assert (unordered != first).any()


ADDS = "add_fragments<D, COLUMNS>(dq_sum"
NO_WAIT = ("wait_for_turn(turns + 1 + tile", "if (false) wait_for_turn(turns + 1 + tile")


def sums_of_dq(arrays, edits, monkeypatch):
    """The bits of dq_sum that the edited kernel leaves on the simulator, in a fixed order."""
    text = edited((KERNEL_FOLDER / "24_backward_mma.cu").read_text(), edits, "24_backward_mma")
    steps = tuple(replace(one, text=text) for one in MMA_STEPS)
    monkeypatch.setitem(METHODS, "backward_mma", replace(METHODS["backward_mma"], steps=steps))
    options = ("-DKEY_TILES=1", "-DPAIRS=2", DETERMINISTIC)
    call, _ = backward_call("backward_mma", arrays, "simulator", options=options)
    call.run()
    return call.arrays["dq_sum"].view(np.uint32).copy()


def test_the_order_of_the_sums_of_dq():
    """As Shapes has them: 16 rows, of 8 columns each, as the lanes of a warp hold a fragment."""
    call, oracle = backward_call("backward_mma", inputs(HALF, (1, 2, 70, 48), 30))
    call.run()
    sums = asnumpy(call.arrays["dq_sum"]).reshape(2, 8, 6, 8, 4, 2, 2)
    # head, 16 rows, 8 columns, row of 8, 2 columns, 8 rows of 16, column of 2
    rows = sums.transpose(0, 1, 5, 3, 2, 4, 6).reshape(2, 128, 48)
    assert_agrees(rows[:, :70] / 48**0.5, oracle.expected["dq"][0], name="dq", relative=5e-4)
    assert not rows[:, 70:].any()


@pytest.mark.parametrize("name", gradient_runs.ARRAYS)
def test_an_address_without_16_bytes_and_its_margins(name):
    call, oracle = backward_call("backward_mma", inputs(shape=(1, 1, 9, 16), m=13))
    gradient_runs.run_with_one_moved(call, name)
    for one in oracle.written:
        assert_agrees(call.arrays[one], oracle.expected[one], name=one, relative=4e-3)


# -- on the simulator ------------------------------------------------------------------------------
@pytest.mark.turns(41)
@pytest.mark.system
@pytest.mark.parametrize("options", in_turns([FORCED, (*FORCED, DETERMINISTIC)], 2), ids=str)
def test_the_sanitizer_is_silent(options):
    arrays = inputs(shape=(1, 2, 70, 16), m=70, kv_heads=1, causal=True)
    call, _ = backward_call("backward_mma", arrays, "simulator", causal=True, options=options)
    for launch in call.launches:
        with observe(Sanitizer(launch.step.writes)) as seen:
            launch.run(call.arrays)
        assert not seen.findings


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize(("device", "sums"), in_turns([(A100, 1), (H200, 4)], 2), ids=str)
def test_counts(device, sums):
    """Five products, a read of shared memory by ldmatrix for 2 or 4 of them, and no conflicts.

    sums: of dq that an instruction adds for a lane.
    """
    arrays = inputs(shape=(1, 1, 128, 64), m=128)
    with simulating(device):
        call, _ = backward_call("backward_mma", arrays, "simulator", options=FORCED)
        call.launches[0].run(call.arrays)
        with observe(Counters()) as seen:
            call.launches[1].run(call.arrays)
    totals = seen.totals
    assert totals["tensor_instructions"] == 5 * 128 * 128 * 64 // (16 * 8 * 16)
    assert not totals["shared_load_conflicts"] and not totals["shared_store_conflicts"]
    assert totals["global_atomic_requests"] == 2 * 128 * 64 // 32 // sums  # of two blocks


# -- which tile, which method ----------------------------------------------------------------------
def test_tiles_fit_devices():
    many = Problem(64, 4096, 4096, 128, 16, 16, dtype="bfloat16")
    expected = {H200: (2, 4), A100: (2, 2), RTX: (1, 2)}
    for device, tile in expected.items():
        c = mma_config(many, device)
        assert (c["KEY_TILES"], c["PAIRS"]) == tile and mma_bytes(c) <= device.shared_bytes
        half = mma_config(replace(many, d=64), device)
        assert half["BR"] == (128 if device is H200 else 64)
        assert mma_bytes(half) <= device.shared_bytes
        assert mma_config(replace(many, n=64, d=64), device)["BR"] == 64
    few = Problem(4, 1024, 1024, 64, 4, 4, dtype="float16")
    assert mma_config(few, H200) == {
        "BFLOAT16": 0,
        "D": 64,
        "KEY_TILES": 1,
        "PAIRS": 2,
        "BR": 64,
    }
    wide = Problem(64, 4096, 4096, 256, 16, 16, dtype="bfloat16")
    assert mma_config(wide, H200)["PAIRS"] == 4
    with pytest.raises(ValueError, match=r"no tile for head dim 256 on GeForce .* float32 arrays"):
        mma_config(wide, RTX)
    assert suits_mma(wide, A100) and not suits_mma(wide, RTX)
    assert not suits_mma(many, Device("old", (7, 5), 40, 64 * 1024))


def test_what_it_takes_and_what_auto_picks():
    method = METHODS["backward_mma"]
    assert method.steps == MMA_STEPS and method.deterministic == (DETERMINISTIC,)
    call, _ = backward_call("auto", inputs())
    assert call.method == "backward_mma" and call.reason == "bfloat16 on tensor cores"
    bias = np.zeros((70, 70), np.float32)
    with pytest.raises(UnsupportedOption, match="'backward_mma' has no bias; .* backward_rows"):
        backward_call("backward_mma", inputs(bias=bias), bias=bias)
