"""Lanes of a warp that run the same code one after another."""

import numpy as np
import pytest
from kernelscope import RawKernel, observe
from kernelscope.timing import Time
from kernelscope.timing.warps import TURNS

ROOTS = """extern "C" __global__ void roots(KIND int* up, int* root, int n)
{
    int at = threadIdx.x;
    while (up[at] != at) at = up[at];
    BETWEEN
    root[threadIdx.x] = at;
    __syncthreads();
    root[threadIdx.x + n] = at;
}"""


def stores_of(kind, up, between=""):
    """(line -> (executions, sectors) of the stores, the roots) of a block that looks for roots."""
    up, root = np.array(up, np.int32), np.zeros(2 * len(up), np.int32)
    source = ROOTS.replace("KIND", kind).replace("BETWEEN", between)
    kernel = RawKernel(source, "roots", backend="simulator")
    with observe(Time("h200")) as seen:
        kernel((1,), (len(up),), (up, root, np.int32(len(up))))
    stores = [one for one in seen._counted(seen._launch, 1.0) if one.kind == "global store"]
    return {one.line: (one.executions, one.counts["global_store_sectors"]) for one in stores}, root


@pytest.mark.parametrize("warps", [1, 3])
def test_lanes_that_yield_leave_a_loop_one_after_another(warps):
    """A lane of each warp needs no step to its root, the next one a step, and so on. A GPU has to
    expect that lanes wait for others here; it lets those go on that have left.
    """
    lanes = np.arange(32 * warps)
    found, root = stores_of("volatile", np.where(lanes % 32, lanes - 1, lanes))
    assert np.array_equal(root[: lanes.size], lanes // 32 * 32)
    groups = 32 // TURNS + 1  # the first lanes begin with one step
    assert found[6][0] == pytest.approx(warps * groups, abs=warps)
    assert found[6][1] >= found[6][0]
    assert found[8] == (warps, 4 * warps)  # they have met at the barrier


def test_lanes_that_leave_in_one_step_stay_together():
    lanes = np.arange(32)
    found, _ = stores_of("volatile", np.where(lanes % 8, lanes // 8 * 8, lanes))
    assert found[6][0] <= 2


def test_lanes_that_do_not_yield_wait_for_each_other():
    lanes = np.arange(32)
    found, _ = stores_of("", np.maximum(lanes - 1, 0))
    assert found == {6: (1, 4), 8: (1, 4)}


def test_what_has_all_lanes_meet_brings_them_together():
    lanes = np.arange(32)
    found, _ = stores_of("volatile", np.maximum(lanes - 1, 0), "__syncwarp();")
    assert found[6] == (1, 4)
