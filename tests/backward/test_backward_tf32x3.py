"""Kernel 30: gradients of float32 in TF32 products against float64, in every tile and any order."""

from dataclasses import replace

import gradient_runs
import numpy as np
import pytest
from gradient_runs import A100, H200
from kernelscope import Counters, Sanitizer, observe
from kernelscope.backend import asnumpy

from attn_course.backward import METHODS, choose_backward
from attn_course.backward.tf32 import TF32_STEPS, TILES, suits_tf32, tf32_bytes, tf32_config
from attn_course.backward.verify import backward_call, backward_inputs
from attn_course.ladder import Device, Problem
from attn_course.ladder.methods import UnsupportedOption
from attn_course.reference.inputs import seeded_qkv
from attn_devtools.agreement import assert_agrees
from attn_devtools.shares import crossed, in_turns

METHOD, FIXED = "backward_tf32x3", "-DDETERMINISTIC=1"


def inputs(shape, m, kv_heads=None, **how):
    return backward_inputs(*seeded_qkv(shape, m, kv_heads=kv_heads), **how)


def run(arrays, **how):
    """Run the method, judge each gradient, and return them on the host."""
    call, oracle = backward_call(METHOD, arrays, **how)
    call.run()
    for name, array in oracle.written.items():
        assert_agrees(array, oracle.expected[name], name=name, relative=4e-6)
    assert not asnumpy(call.arrays["turns"]).any()
    return {name: asnumpy(array) for name, array in oracle.written.items()}


@pytest.mark.turns(29)
@pytest.mark.system
@pytest.mark.parametrize(
    ("tile", "fixed"),
    in_turns(crossed([(4, 64, 2), (4, 32, 2), (2, 32, 3)], [False, True], each=1), 3),
    ids=str,
)
def test_every_tile_in_any_order_and_a_fixed_one(tile, fixed):
    """Two tiles of queries and of keys and more; heads that share keys follow each other."""
    options = [f"-D{x}={y}" for x, y in zip(TILES.names, tile, strict=True)]
    arrays = inputs((1, 2, 150, 20), 170, 1, causal=True)
    run(arrays, causal=True, deterministic=fixed, options=options)


@pytest.mark.turns(41)
@pytest.mark.system
@pytest.mark.parametrize("causal", in_turns([False, True], 2))
def test_the_widest_rows(causal):
    run(inputs((1, 2, 33, 127), 40, 1, causal=causal, scale=-0.2), causal=causal, scale=-0.2)


@pytest.mark.parametrize("m", [84, 7])
def test_a_diagonal_that_just_misses_a_tile(m):
    """The first query sees all keys of a warp but one; or of its tile the last alone sees a key."""
    run(inputs((1, 1, 70, 16), m, causal=True), causal=True)


@pytest.mark.parametrize("name", in_turns(gradient_runs.ARRAYS, 2))
def test_an_address_without_16_bytes_and_its_margins(name):
    call, oracle = backward_call(METHOD, inputs((1, 1, 9, 16), 13))
    gradient_runs.run_with_one_moved(call, name)
    for one in oracle.written:
        assert_agrees(call.arrays[one], oracle.expected[one], name=one)


def test_scores_far_below_zero_beside_keys_that_are_not_there():
    """Past the last key K is zeros, and exp(0 - lse) would overflow: inf * 0 in dq."""
    q, k, v = seeded_qkv((1, 1, 20, 16), 20)
    arrays = backward_inputs(np.full_like(q, 8.0), -8.0 + 0.1 * k, v)
    assert arrays["lse"].max() < -200
    call, _ = backward_call(METHOD, arrays)
    call.run()
    assert all(np.isfinite(asnumpy(call.arrays[name])).all() for name in ("dq", "dk", "dv"))


# -- on the simulator ------------------------------------------------------------------------------
@pytest.mark.turns(107)
@pytest.mark.system
@pytest.mark.parametrize("options", in_turns([(), (FIXED,)], 2), ids=str)
def test_the_sanitizer_is_silent(options):
    arrays = inputs((1, 1, 33, 20), 65, causal=True)
    call, _ = backward_call(METHOD, arrays, "simulator", causal=True, options=options)
    for launch in call.launches:
        fresh = set(launch.step.writes) - ({"dq_sum"} if launch.step.scratch else set())
        with observe(Sanitizer(tuple(fresh))) as seen:
            launch.run(call.arrays)
        assert not seen.findings


@pytest.mark.turns(29)
@pytest.mark.system
def test_counts():
    """Three TF32 products for each of five; no bank conflicts; a sum an instruction on sm_80."""
    call, _ = backward_call(METHOD, inputs((1, 1, 64, 64), 128), "simulator")
    call.launches[0].run(call.arrays)
    with observe(Counters()) as seen:
        call.launches[1].run(call.arrays)
    totals = seen.totals
    assert totals["tensor_instructions"] == 5 * 3 * 64 * 128 * 64 // (16 * 8 * 8)
    assert not totals["shared_load_conflicts"] and not totals["shared_store_conflicts"]
    assert totals["global_atomic_requests"] == 2 * 64 * 64 // 32  # of two blocks


# -- which tile, which method ----------------------------------------------------------------------
def test_tiles_fit_devices():
    for d in (64, 100, 128):
        for device in (H200, A100, Device("GeForce RTX 4090", (8, 9), 128, 99 * 1024)):
            many = Problem(64, 2048, 2048, d, 16, 16)
            assert suits_tf32(many, device)
            c = tf32_config(many, device)
            assert d <= c["D"] and tf32_bytes(c) <= device.shared_bytes


def test_what_it_takes_and_what_auto_picks():
    method = METHODS[METHOD]
    assert method.steps == TF32_STEPS and method.deterministic == (FIXED,)
    many = Problem(64, 2048, 2048, 128, 16, 16)
    assert choose_backward(many, H200) == (METHOD, "float32 in TF32 products")
    for other in (replace(many, d=129), replace(many, biased=True)):
        assert choose_backward(other, H200)[0] == "backward_rows"
    assert choose_backward(many, Device("old", (7, 5), 40, 64 * 1024))[0] == "backward_rows"
    bias = np.zeros((20, 20), np.float32)
    with pytest.raises(UnsupportedOption, match=f"'{METHOD}' has no bias; .* backward_rows"):
        backward_call(METHOD, inputs((1, 1, 20, 8), 20, bias=bias), bias=bias)
