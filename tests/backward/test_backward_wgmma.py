"""Kernel 25: gradients on warpgroups against float64, ragged and shared; the order of its sums."""

import re
import shutil
import subprocess
from functools import partial
from importlib import metadata

import gradient_runs
import numpy as np
import pytest
from gradient_runs import A100, BFLOAT16, H200, HALF, inputs
from kernelscope import Counters, RawModule, Sanitizer, observe
from kernelscope.compile import with_headers

from attn_course.backward import METHODS, choose_backward
from attn_course.backward.verify import backward_call
from attn_course.backward.wgmma import (
    WGMMA_STEPS,
    backward_wgmma_bytes,
    backward_wgmma_config,
    suits_backward_wgmma,
)
from attn_course.ladder import Problem
from attn_course.ladder.headers import kernel_path
from attn_course.ladder.methods import UnsupportedOption
from attn_devtools.shares import crossed, in_turns

run = partial(gradient_runs.run, "backward_wgmma")


@pytest.mark.turns(29)
@pytest.mark.system
@pytest.mark.parametrize(
    ("dtype", "shape", "m", "kv_heads", "how"),
    in_turns(
        [
            (BFLOAT16, (1, 1, 1, 8), 1, 1, {}),
            (HALF, (1, 2, 196, 64), 196, 2, {"causal": True}),
            (BFLOAT16, (2, 4, 70, 56), 130, 2, {"causal": True}),
            (HALF, (1, 3, 130, 80), 70, 1, {"causal": True, "scale": -0.2}),
            (BFLOAT16, (1, 1, 65, 128), 129, 1, {}),
        ],
        3,
    ),
    ids=str,
)
def test_gradients(dtype, shape, m, kv_heads, how):
    run(inputs(dtype, shape, m, kv_heads, **how), **how)


@pytest.mark.parametrize(("n", "m"), [(70, 132), (130, 3)])
def test_a_diagonal_that_just_misses_a_tile(n, m):
    """The first query sees all of 64 keys but one; or of its tile the last alone sees a key."""
    run(inputs(HALF, (1, 1, n, 16), m, causal=True), causal=True)


# (n, m, d, causal): more queries than keys, odd numbers of tiles, and more keys, of which three
# blocks take a head in two rounds; and for them two tiles of queries to one of keys.
TURNS = [
    (300, 130, 64, False),
    (330, 330, 64, True),
    (70, 400, 64, False),
    (300, 130, 64, True),
    (330, 330, 64, False),
    (70, 400, 64, True),
]
WIDE = [(3, (200, 330, 128, causal)) for causal in (False, True)]


@pytest.mark.turns(29)
@pytest.mark.system
@pytest.mark.parametrize(
    ("blocks", "case"), in_turns(crossed([1, 3, 108], TURNS, each=2) + WIDE, 7), ids=str
)
def test_blocks_take_turns(blocks, case, monkeypatch):
    """Tiles of a head in one round and in two, more and fewer of keys than of queries, and odd."""
    n, m, d, causal = case
    arrays = inputs(shape=(1, 4, n, d), m=m, kv_heads=2, causal=causal)
    how = {"causal": causal, "deterministic": True, "options": (f"-DBLOCKS={blocks}",)}
    found = []
    for order in ("", "7"):  # in which the simulator's warps run
        monkeypatch.setenv("KERNELSCOPE_WARP_ORDER", order)
        found.append(run(arrays, **how))
    for name in ("dq", "dk", "dv"):
        np.testing.assert_array_equal(*(one[name].view(np.uint16) for one in found))


@pytest.mark.turns(13)
@pytest.mark.system
def test_rows_that_see_no_key_have_zero_gradients():
    found = run(inputs(m=9, causal=True), causal=True)
    assert not found["dq"][:, :, :61].any() and found["dq"][:, :, 61:].all()


@pytest.mark.turns(11)
@pytest.mark.system
def test_scores_far_below_zero_beside_keys_that_are_not_there():
    gradient_runs.scores_far_below_zero("backward_wgmma")


# -- on the simulator ------------------------------------------------------------------------------
@pytest.mark.turns(37)
@pytest.mark.system
@pytest.mark.parametrize("deterministic", in_turns([False, True], 2))
def test_the_sanitizer_is_silent(deterministic):
    arrays = inputs(shape=(1, 2, 140, 64), m=140, kv_heads=1, causal=True)
    how = {"causal": True, "deterministic": deterministic}
    call, _ = backward_call("backward_wgmma", arrays, "simulator", **how)
    fresh = set(call.scratch)
    for launch in call.launches:
        writes = set(launch.step.writes)
        with observe(Sanitizer(tuple(writes & fresh - {"turns"}))) as seen:
            launch.run(call.arrays)
        assert not seen.findings
        fresh -= writes


@pytest.mark.turns(23)
@pytest.mark.system
def test_counts():
    """Five products of a tile of keys and two of queries, and what the copy engine moves."""
    call, _ = backward_call("backward_wgmma", inputs(shape=(1, 1, 128, 128), m=128), "simulator")
    call.launches[0].run(call.arrays)
    with observe(Counters()) as seen:
        call.launches[1].run(call.arrays)
    totals = seen.totals
    groups = 2 * (8 + 8 + 4 + 4 + 8)  # S, dP, dV, dK and dQ of a warpgroup, a tile of queries
    assert totals["tensor_instructions"] == 2 * 4 * groups
    elements = 128 * 128
    assert totals["bulk_load_bytes"] == 4 * 2 * elements + 2 * 128 * 4
    assert totals["bulk_store_bytes"] == 2 * 2 * elements + 4 * elements
    assert not totals["shared_load_conflicts"] and not totals["shared_store_conflicts"]


# -- which tile, which method ----------------------------------------------------------------------
def test_tiles_fit_an_h200():
    for d, width, rows in ((8, 64, 128), (64, 64, 128), (72, 128, 64), (128, 128, 64)):
        c = backward_wgmma_config(Problem(4, 300, 300, d, dtype="bfloat16"), H200)
        assert c == {"BFLOAT16": 1, "D": width, "BR": rows, "BLOCKS": 132}
        assert backward_wgmma_bytes(c) <= H200.shared_bytes


def test_what_it_takes_and_what_auto_picks():
    method = METHODS["backward_wgmma"]
    assert method.steps == WGMMA_STEPS and method.deterministic == ("-DDETERMINISTIC=1",)
    problem = Problem(64, 4096, 4096, 128, 16, 16, dtype="bfloat16")
    assert choose_backward(problem, H200) == ("backward_wgmma", "bfloat16 on warpgroups")
    assert choose_backward(problem, A100)[0] == "backward_mma"
    assert not suits_backward_wgmma(Problem(1, 8, 8, 60, dtype="float16"), H200)
    assert not suits_backward_wgmma(Problem(1, 8, 8, 192, dtype="float16"), H200)
    with pytest.raises(ValueError, match=r"A100 has 8\.0; use method backward_mma"):
        backward_wgmma_config(problem, A100)
    with pytest.raises(ValueError, match="rows of 60 elements, .* use method backward_mma"):
        backward_wgmma_config(Problem(1, 8, 8, 60, dtype="float16"), H200)
    bias = np.zeros((70, 70), np.float32)
    with pytest.raises(UnsupportedOption, match="'backward_wgmma' has no bias; .* backward_rows"):
        backward_call("backward_wgmma", inputs(bias=bias), bias=bias)


# -- what ptxas makes of it ------------------------------------------------------------------------
def ptxas() -> str:
    """Of the package with nvcc's headers, else of a toolkit on the PATH."""
    files = metadata.files("nvidia-cuda-nvcc-cu12") or ()
    found = [str(file.locate()) for file in files if file.name == "ptxas"]
    return found[0] if found else shutil.which("ptxas") or pytest.skip("no ptxas here")


@pytest.mark.system
@pytest.mark.parametrize(
    ("d", "deterministic", "most"),
    in_turns([(64, 0, 0), (64, 1, 16), (128, 0, 0), (128, 1, 0)], 4),
)
def test_ptxas_spills_little_and_serialises_nothing(d, deterministic, most, tmp_path):
    """No C7508 (setmaxnreg ignored), C7510 to C7515 (products one after the other).

    most: bytes of spill stores. In a fixed order, 64 columns spill 16, and are still faster on an
    H200 than with a turn for each part of dq, which spills nothing: docs/backward_log.md.
    """
    row, problem = WGMMA_STEPS[1], Problem(64, 4096, 4096, d, 16, 16, dtype="bfloat16")
    options = (
        *row.flags,
        *row.launch(problem, (f"-DDETERMINISTIC={deterministic}",), H200).options(()),
    )
    path = kernel_path(row.file)
    ptx = RawModule(
        code=with_headers(path.read_text(), path.parent), options=options, backend="simulator"
    ).ptx()
    (tmp_path / "25.ptx").write_text(ptx)
    command = [ptxas(), "-arch=sm_90a", "-v", "25.ptx", "-o", "25.cubin"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    said = done.stdout + done.stderr
    assert "C75" not in said and "warning" not in said.lower(), said
    stores = re.search(r"backward_wgmma' for .*?(\d+) bytes spill stores", said, re.DOTALL)
    assert int(stores[1]) <= most, said
