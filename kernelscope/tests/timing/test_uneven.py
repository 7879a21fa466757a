"""Blocks and warps of unequal work: when the last of them is done."""

from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from kernelscope import RawKernel, observe
from kernelscope.ptx.syntax import Instruction
from kernelscope.timing import Time
from kernelscope.timing.executions import PtxCounts
from kernelscope.timing.machine_code import Code, Segment
from kernelscope.timing.warps import Unevenness, WarpShares, uneven, unevenness


def of(work, sms=4, resident=2, blocks=None):
    work = np.array(work, float)
    numbers = np.arange(work.size)
    return unevenness(numbers, work, work, blocks or work.size, sms, resident)


def test_equal_blocks_are_even():
    assert of([7.0] * 50) == Unevenness(1.0, 1.0)


def test_one_long_block_is_waited_for():
    """8 blocks on 4 SMs: one has 9 times the work of each other, of 16 in all."""
    found = of([9.0, *[1.0] * 7])
    mean = 16 / 8
    assert found.chain == pytest.approx(9 / mean)  # alone: as long as it takes
    assert found.busy == pytest.approx((9 + 1) / mean / 2)  # beside the second block of its SM


def test_blocks_go_where_there_is_room():
    """Two SMs, one block at a time: 4, then 1, 1, 1, 1 on the other one."""
    found = of([4.0, 1.0, 1.0, 1.0, 1.0], sms=2, resident=1)
    assert found == Unevenness(1.0, 1.0)  # both are done after 4: no later than three equal ones
    late = of([1.0, 1.0, 1.0, 1.0, 4.0], sms=2, resident=1)
    assert late.busy == late.chain == pytest.approx(6.0 / 1.6 / 3)


def test_sampled_blocks_stand_for_their_neighbours():
    """Of 100 blocks the first and the last ran: half are long."""
    found = unevenness(np.array([0, 99]), np.array([1.0, 3.0]), np.array([1.0, 3.0]), 100, 100, 1)
    assert found.chain == pytest.approx(1.5)


def test_very_many_blocks_even_out():
    assert of([1.0, 5.0], blocks=1 << 20) == Unevenness()


SEARCH = """extern "C" __global__ void search(const int* next, int* out, int steps)
{
    __shared__ int found;
    if (WHO) {
        int at = threadIdx.x % 32;
        for (int i = 0; i < steps; ++i) at = next[at];
        if (threadIdx.x % 32 == 0) found = at;
    }
    __syncthreads();
    int sum = found;
    MORE
    out[threadIdx.x] = sum;
}"""


def latency(who: str, more: str = "") -> float:
    kernel = RawKernel(
        SEARCH.replace("WHO", who).replace("MORE", more), "search", backend="simulator"
    )
    with observe(Time("h200")) as seen:
        kernel((1,), (256,), (np.arange(256, dtype=np.int32), np.zeros(256, np.int32), 50))
    return seen.launches[0].bounds["latency"]


@pytest.mark.turns(5)
def test_a_block_waits_for_its_longest_warp():
    """One warp of eight follows a chain of loads: the others wait for it at the barrier."""
    every, one, none = latency("true"), latency("threadIdx.x >= 224"), latency("steps < 0")
    assert 0.9 * every < one < 1.5 * every
    assert none < 0.3 * one


def test_warps_that_are_long_by_turns_add_up():
    """One warp is long before the barrier, another behind it."""
    more = "if (threadIdx.x < 32) for (int i = 0; i < steps; ++i) sum = next[sum];"
    before, both = latency("threadIdx.x >= 224"), latency("threadIdx.x >= 224", more)
    assert both > 1.4 * before


@pytest.mark.parametrize(("guarded", "called"), [(False, False), (True, False), (False, True)])
def test_what_one_warp_alone_runs_elsewhere_does_not_make_it_longer(guarded, called):
    """Three instructions that all warps run, and one that ptxas has moved out of a loop of the last
    warp, that has a predicate, or is of a slow path.
    """
    times = [np.full(4, 10)] * 3 + [np.array([0, 0, 0, 4 if guarded or called else 4000])]
    counted = [
        PtxCounts(Instruction("xor.b32", ()), 1, 40, Counter(), False, of_warps=each, origin=at)
        for at, each in enumerate(times)
    ]
    code = [Code("LOP3", (), "", False, 1, 1, 7, 7, 0, "", origin=at) for at in range(4)]
    code[3].guarded, code[3].called = guarded, called
    chain, _ = WarpShares((Segment(code, []),), counted).longest(({1: 100.0},))
    assert chain == ({1: 100.0},)
    once, _ = WarpShares((Segment(code[:3], []),), counted[:2]).longest(({1: 100.0},))
    assert once == chain


IN_TURNS = """extern "C" __global__ void in_turns(
    const float* x, float* y, int steps, int apart, int gone)
{
    const int warp = threadIdx.x / 32;
    if (warp >= blockDim.x / 32 - gone) return;
    float sum = 0.0f;
    for (int step = 0; step < steps; ++step) {
        if (warp == step * apart % (blockDim.x / 32 - gone))
            for (int k = 0; k < 20; ++k) sum = sum * x[k] + 1.0f;
        __syncthreads();
    }
    y[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}"""


def in_turns(apart, steps=16, blocks=1, gone=0):
    x, y = np.ones(32, np.float32), np.zeros(256 * blocks, np.float32)
    kernel = RawKernel(IN_TURNS, "in_turns", backend="simulator")
    with observe(Time("h200")) as seen:
        kernel((blocks,), (256,), (x, y, *map(np.int32, (steps, apart, gone))))
    return seen.launches[0].bounds["latency"]


@pytest.mark.turns(2)
@pytest.mark.parametrize("blocks", [1, 6])
def test_warps_that_are_long_in_turns_take_as_long_as_one_that_always_is(blocks):
    """Eight warps wait at each barrier for the one that works."""
    assert in_turns(1, blocks=blocks) == pytest.approx(in_turns(0, blocks=blocks), rel=0.1)
    assert in_turns(1, 32) == pytest.approx(2 * in_turns(1, 16), rel=0.2)


def test_warps_that_have_ended_are_not_waited_for():
    """Two of eight end at once; the others take turns, and meet without them."""
    assert in_turns(1, gone=2) == pytest.approx(in_turns(0, gone=2), rel=0.1)


@pytest.mark.parametrize("waiting", [2, uneven.MOST_WAITING])
def test_longest_warps_are_those_of_plain_loops(monkeypatch, waiting):
    """Random instructions by some warps of two chunks, of three and of two blocks, and barriers of
    some blocks; counted one after another, and the same for groups of warps that are counted later.
    """
    monkeypatch.setattr(uneven, "MOST_WAITING", waiting)
    random, warps = np.random.default_rng(5), 4
    longest, of_warps, of_longest = uneven.LongestWarps(warps), Counter(), Counter()
    groups = [np.sort(random.choice(12, size, replace=False)) for size in (1, 3, 5, 8, 11)]
    for blocks in (3, 2):
        machine = SimpleNamespace(first_block=7, block_count=blocks, warps_per_block=warps)
        machine.alive = np.ones(32 * warps * blocks, bool)
        longest.begin(machine)
        since, work = Counter(), np.zeros((blocks, warps), np.int64)
        before = work.copy()
        for step in range(60):
            one = int(random.integers(1, 40))
            group = groups[step % 5][groups[step % 5] < blocks * warps]
            for _ in range(int(random.integers(1, 4))):
                longest.ran(one, group)
                for warp in group.tolist():
                    since[one, warp] += 1
                    work[divmod(warp, warps)] += 1
            if step % 7 == 6 or step == 59:
                meeting = np.arange(blocks) if step % 2 else np.array([step % blocks])
                assert np.array_equal(longest.work(), work)
                for block in meeting.tolist():
                    first = (work[block] - before[block]).argmax()
                    before[block] = work[block]
                    for (number, warp), times in list(since.items()):
                        if warp // warps == block:
                            of_warps[number, warp % warps] += times
                            of_longest[number] += times * (warp % warps == first)
                            del since[number, warp]
                arrived = [(None, np.arange(32 * warps * len(meeting)))]
                event = SimpleNamespace(blocks=7 + meeting, machine=machine, arrivals=arrived)
                longest.end(work) if step == 59 else longest.meet(event, longest.work().copy())
    for number in range(41):
        own = [of_warps[number, at] for at in range(warps)]
        for by_all in (0, 6):
            found, by_longest = longest.shares(number, sum(own) + warps * by_all)
            assert found.tolist() == [by_all + one for one in own]
            assert by_longest == by_all + of_longest[number]
    assert sum(of_longest.values()) > 100
