"""Lanes of a warp that run the same code one after another."""

from collections import Counter

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
    assert found[6] == (warps * 32 // TURNS, warps * 32 // TURNS)  # a sector for each store
    assert found[8] == (warps, 4 * warps)  # they have met at the barrier


def test_lanes_that_leave_in_one_step_stay_together():
    """Of each eight lanes one is a root, one has it above, and all others need two steps."""
    lanes = np.arange(32)
    first = lanes // 8 * 8
    up = np.where(lanes - first > 1, first + 1, first)
    found, _ = stores_of("volatile", up)
    assert found[6] == (2, 8)


def test_lanes_that_do_not_yield_wait_for_each_other():
    lanes = np.arange(32)
    found, _ = stores_of("", np.maximum(lanes - 1, 0))
    assert found == {6: (1, 4), 8: (1, 4)}


def test_what_has_all_lanes_meet_brings_them_together():
    lanes = np.arange(32)
    found, _ = stores_of("volatile", np.maximum(lanes - 1, 0), "__syncwarp();")
    assert found[6] == (1, 4)


def test_a_barrier_among_instructions_brings_them_together_there():
    lanes = np.arange(32)
    found, _ = stores_of("volatile", np.maximum(lanes - 1, 0), "root[at + n] = 7; __syncwarp();")
    assert found[5][0] == 32 // TURNS and found[6] == (1, 4)


NESTED = """extern "C" __global__ void nested(const int* x, int* y, int n, int stop)
{
    int found = 0;
    for (int i = 0; i < n; ++i) {
        if (x[i * 32 + threadIdx.x]) {
            for (int k = 0; k < n; ++k) {
                found = found * 5 + y[k];
                if (k == stop && threadIdx.x) {
                    found = y[n + k];
                    break;
                }
            }
            found = found * 7 + y[2 * n];
            break;
        }
        y[3 * n + i] = i;
    }
    y[threadIdx.x + 4 * n] = found;
}"""


def test_lanes_that_are_apart_stay_apart_behind_a_loop_in_that_code():
    """Each lane leaves the outer loop in a step of its own, all but one the inner in its third."""
    n = 32
    x, y = np.eye(n, dtype=np.int32), np.zeros(6 * n, np.int32)
    kernel = RawKernel(NESTED, "nested", backend="simulator")
    with observe(Time("h200")) as seen:
        kernel((1,), (32,), (x, y, np.int32(n), np.int32(2)))
    loads = Counter()
    for one in seen._counted(seen._launch, 1.0):
        loads[one.line] += one.executions * (one.kind == "global load")
    assert (loads[5], loads[7], loads[9], loads[13]) == (n, 3 * 31 + n, 31, 32)
