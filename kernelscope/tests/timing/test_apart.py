"""Lanes of a warp that run the same code one after another."""

from collections import Counter

import numpy as np
import pytest
from kernelscope import RawKernel, observe
from kernelscope.events import InstructionEvent
from kernelscope.ptx.syntax import Instruction
from kernelscope.timing import Time
from kernelscope.timing.executions import BlockPlace, Places
from kernelscope.timing.executions.places import Exit
from kernelscope.timing.warps import TURNS, Apart

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


@pytest.mark.parametrize("seed", range(20))
def test_lanes_grouped_before_are_those_grouped_anew(seed):
    """Random instructions of a step, an exit, a barrier and others, by some lanes or all."""
    random = np.random.default_rng(seed)
    opcodes = ("add.s32", "bra", "bar.sync", "mul.f32", "sub.s32")
    step, leaving, *others = code = [Instruction(opcode, ()) for opcode in opcodes]
    blocks = {id(one): BlockPlace(1 + (one is others[-1])) for one in code}
    places = Places(blocks, {id(leaving): Exit(True, frozenset({1, 2}), range(1, 3))})
    known, anew = Apart(places, {id(step)}), Apart(places, {id(step)})
    lanes = [np.arange(64), np.arange(0, 64, 2), np.arange(40), np.arange(5, 9)]
    found = 0
    for one in (known, anew):
        one.begin(64)
    for _ in range(60):
        instruction = code[random.choice(5, p=(0.3, 0.15, 0.05, 0.3, 0.2))]
        own = lanes[random.choice(4, p=(0.7, 0.1, 0.1, 0.1))]
        taken = random.random(own.size) < 0.2 if instruction is leaving else None
        event = InstructionEvent(instruction, 1, own, (), None, taken)
        anew._known = None
        cut = [[part.lanes.tolist() for part, _ in apart.parts(event)] for apart in (known, anew)]
        assert cut[0] == cut[1]
        found = max(found, len(cut[0]))
        if instruction is leaving:
            known.leave(event), anew.leave(event)
    assert found > 1


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
