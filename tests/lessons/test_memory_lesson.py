"""The memory probes read what they should; a record's figures are picked right."""

import numpy as np
import pytest
from kernelscope.events import observe
from kernelscope.watch.counters.counters import Counters

from attn_course.ladder.call import compiled
from attn_course.ladder.headers import read_constants
from attn_course.ladder.steps import step
from attn_course.lessons import lesson03_memory as memory_levels


@pytest.mark.parametrize(("count", "warm", "steps"), [(7, 0, 16), (7, 3, 16), (33, 40, 48)])
@pytest.mark.parametrize("chase", [memory_levels.chase_global, memory_levels.chase_shared])
def test_a_chain_ends_where_its_order_says(chase, count, warm, steps):
    order = memory_levels.random_order(count, seed=3)
    walk = chase(order, warm, steps, backend="simulator")
    assert walk.last == order[(warm + steps) % count]
    assert walk.steps == steps and walk.clocks > 0


@pytest.mark.parametrize(
    ("chase", "counter"),
    [
        (memory_levels.chase_global, "global_load_requests"),
        (memory_levels.chase_shared, "shared_load_requests"),
    ],
)
def test_every_step_of_a_chain_is_one_load(chase, counter):
    order = memory_levels.random_order(5)
    counts = []
    for steps in (16, 48):
        with observe(Counters()) as seen:
            chase(order, 2, steps, backend="simulator")
        counts.append(seen.totals[counter])
    assert counts[1] - counts[0] == 32


@pytest.mark.parametrize("entry", ["read_l1", "read_l2", "read_shared"])
def test_a_stream_adds_up_every_byte(entry):
    window = memory_levels.SHARED_FLOATS4 if entry == "read_shared" else 1500
    reading = memory_levels.Reading(entry, 3, window, 2)
    data = memory_levels.small_numbers(4000)
    out = np.full(3 * memory_levels.THREADS, np.nan, np.float32)
    with observe(Counters()) as seen:
        reading.launcher(data, out, "simulator")()
    assert out.sum(dtype=np.float64) == reading.expected(data) > 0
    where = "shared" if entry == "read_shared" else "global"
    loads = seen.totals[f"{where}_load_requests"]
    lanes = -(-window // 32) if where == "global" else window // 32
    assert loads == 3 * 2 * lanes and reading.bytes_read == 3 * 2 * window * 16


def test_expected_notices_a_window_read_elsewhere():
    reading = memory_levels.Reading("read_l1", 2, 100, 1)
    data = memory_levels.small_numbers(200)
    moved = np.concatenate([data[100:150], data[:150]])
    assert reading.expected(data) != reading.expected(moved)


def test_probe_sizes_are_those_of_the_kernel_file():
    constants = read_constants(memory_levels.kernel_path(memory_levels.PROBES))
    assert constants == {
        "NODE": memory_levels.NODE_BYTES,
        "CHAIN": memory_levels.SHARED_NODES,
        "THREADS": memory_levels.THREADS,
        "FLOATS4": memory_levels.SHARED_FLOATS4,
    }
    assert (
        memory_levels.SHARED_FLOATS4 % memory_levels.THREADS == 0 and memory_levels.STEPS % 16 == 0
    )


@pytest.mark.system
def test_every_variant_is_a_build_of_its_own():
    variants = memory_levels.score_variants()
    assert len(set(variants.values())) == len(variants) == 15
    assert memory_levels.variant_name(1, 0) in variants
    for number, options in variants.values():
        row = step(number)
        known = row.constants()
        assert all(option[2:].split("=")[0] in known for option in options)
        assert compiled(row.path, options, entry=row.entry, backend="simulator")


def record():
    chains = [{"space": "shared", "bytes": 4096, "clocks": 23.0, "nanoseconds": 13.1}]
    chains += [
        {"space": "global", "bytes": size, "clocks": clocks, "nanoseconds": clocks / 1.75}
        for size, clocks in ((4096, 33.0), (1 << 20, 250.0), (1 << 23, 260.0), (1 << 29, 800.0))
    ]
    speeds = [
        {"level": name, "median_us": 1.0, "gb_per_s": value}
        for name, value in (("shared", 9.0), ("L1", 8.0), ("L2", 7.0), ("device", 6.0))
    ]
    return {
        "latencies": chains,
        "bandwidths": speeds,
        "l2_bytes": 40 << 20,
        "scores": {"timings": [{"name": "03", "median_us": 12.5}]},
    }


def test_levels_are_told_by_the_size_of_their_chains():
    found = memory_levels.levels(record())
    assert {name: one["clocks"] for name, one in found.items()} == {
        "shared": 23.0,
        "L1": 33.0,
        "L2": 260.0,
        "device": 800.0,
    }
    assert found["L2"]["gb_per_s"] == 7.0
    smaller = record() | {"l2_bytes": 5 << 20}
    assert memory_levels.levels(smaller)["L2"]["clocks"] == 250.0
    assert memory_levels.clock_mhz(record()) == pytest.approx(1750)
    assert memory_levels.medians_us(record()) == {"03": 12.5}
