"""Floors: counted by hand at small sizes, and rates that agree with themselves."""

import types

import numpy as np
import pytest

from attn_course.ladder.methods import METHODS
from attn_course.ladder.steps import LADDER, Problem
from attn_course.measure import roofline
from attn_course.measure.hardware import devices
from attn_course.measure.hardware.devices import GPUS, peak_of
from attn_course.measure.roofline import Work, attention_work, method_work, step_work
from attn_course.reference.float64 import causal_mask

P = Problem(bh=6, n=5, m=7, d=3)


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("m", range(1, 7))
def test_visible_pairs_are_those_of_the_mask(n, m):
    assert roofline.visible_pairs(n, m, causal=True) == int(causal_mask(n, m).sum())
    assert roofline.visible_pairs(n, m) == n * m


def test_attention_counted_by_hand():
    work = attention_work(P)
    assert work.operations == 6 * (5 * 7) * (2 * 3 + 2 * 3)  # two products, an fma is two
    assert work.exponentials == 6 * 5 * 7
    assert work.bytes_read == 4 * 6 * (5 * 3 + 7 * 3 + 7 * 3)
    assert work.bytes_written == 4 * 6 * 5 * 3 and work.launches == 1
    assert work.intensity == work.operations / work.bytes


def test_a_causal_mask_leaves_half_the_operations_and_all_of_the_bytes():
    full, causal = (attention_work(Problem(2, 100, 100, 64, causal=c)) for c in (False, True))
    assert causal.operations / full.operations == pytest.approx(0.505)
    assert causal.exponentials == 2 * 5050 and causal.bytes == full.bytes


def test_grouped_heads_share_keys_and_values():
    work = attention_work(Problem(bh=8, n=5, m=7, d=3, heads=4, kv_heads=2))
    assert work.bytes_read == 4 * (8 * 5 * 3 + 2 * 4 * 7 * 3)


def test_separate_kernels_write_and_read_the_scores():
    one, three = attention_work(P), method_work("three_kernels", P)
    scores = 4 * 6 * 5 * 7
    assert three.operations == one.operations and three.exponentials == one.exponentials
    assert three.bytes - one.bytes == 4 * scores  # s written, read; p written, read
    assert three.launches == 3
    naive = method_work("naive", P)
    assert naive.bytes - one.bytes == 3 * scores  # written, read, written again in place
    assert method_work("tiled", P) == three


def test_every_step_and_method_has_its_work():
    for step in LADDER:
        work = step_work(step, P)
        assert work.launches == 1 and work.bytes_written > 0
    for method in METHODS:
        work = method_work(method, P)
        assert work.operations == attention_work(P).operations, method
        assert work.bytes >= attention_work(P).bytes


def lanes_of(peak) -> int:
    return devices.FP32_LANES.get(peak.arch, 128)


def bound_of(work, peak) -> str:
    """The resource that sets the floor."""
    floors = work.floors_us(peak)
    return max(floors, key=floors.get)


@pytest.mark.parametrize("peak", GPUS.values(), ids=GPUS)
def test_the_rates_of_a_row_agree(peak):
    lanes = 2 * peak.sms * lanes_of(peak) * peak.boost_mhz * 1e6 / 1e12
    assert peak.fp32_tflops == pytest.approx(lanes, rel=0.01)
    assert peak.source.startswith("https://") and 300 <= peak.memory_gbps <= 4800
    assert peak.exp_per_second * 2 * lanes_of(peak) / 16 == pytest.approx(
        peak.fp32_tflops * 1e12, rel=0.01
    )


def test_the_largest_floor_counts():
    peak = peak_of("NVIDIA H200")
    assert peak_of("H200") is peak
    memory = Work(operations=67, bytes_read=4800 * 10**6)
    assert memory.floor_us(peak) == pytest.approx(1000) and bound_of(memory, peak) == "memory"
    arithmetic = Work(operations=67 * 10**9, bytes_read=1, bytes_written=1)
    assert arithmetic.floor_us(peak) == pytest.approx(1000)
    assert bound_of(arithmetic, peak) == "arithmetic"
    exponentials = Work(exponentials=int(peak.exp_per_second))
    assert exponentials.floor_us(peak) == pytest.approx(1e6)
    assert bound_of(exponentials, peak) == "exponentials"
    # Just above the ridge arithmetic counts, just below it memory does.
    for share, bound in ((1.01, "arithmetic"), (0.99, "memory")):
        work = Work(
            operations=int(10**9 * peak.fp32_tflops * 1e3 / peak.memory_gbps * share),
            bytes_read=10**9,
        )
        assert bound_of(work, peak) == bound


def test_long_sequences_are_bound_by_arithmetic_short_ones_by_memory():
    peak = peak_of("NVIDIA H200")
    assert bound_of(attention_work(Problem(64, 2048, 2048, 64)), peak) == "arithmetic"
    assert bound_of(attention_work(Problem(64, 1, 2048, 64)), peak) == "memory"  # decoding


def test_an_unknown_gpu_is_named_with_the_way_out():
    with pytest.raises(KeyError, match="Abacus 9.*NVIDIA H200.*data sheet"):
        peak_of("Abacus 9")


def test_rates_of_an_unlisted_gpu_are_those_that_it_reports(monkeypatch):
    import cupy

    attributes = {
        "MultiProcessorCount": 10,
        "ClockRate": 2_000_000,
        "MemoryClockRate": 10_000_000,
        "GlobalMemoryBusWidth": 256,
    }
    device = types.SimpleNamespace(id=0, attributes=attributes, compute_capability="86")
    monkeypatch.setattr(cupy.cuda, "Device", lambda: device)
    monkeypatch.setattr(
        cupy.cuda.runtime, "getDeviceProperties", lambda number: {"name": b"Unheard of"}
    )
    monkeypatch.setattr(devices, "resolve_backend", lambda: "gpu")
    found = peak_of("Unheard of")
    assert found.fp32_tflops == pytest.approx(10 * 128 * 2 * 2e9 / 1e12)
    assert found.memory_gbps == pytest.approx(640)  # 10 GHz, twice a clock, 32 bytes
    for capability, lanes in (("80", 64), ("120", 128)):
        device.compute_capability = capability
        assert lanes_of(peak_of("Unheard of")) == lanes
    with pytest.raises(KeyError, match="Abacus"):
        peak_of("Abacus 9")


def test_rates():
    assert roofline.tflops(10**12, 1e6) == 1.0
    total = Work(1, 2, 3, 4, 5) + Work(10, 20, 30, 40, 50)
    assert total == Work(11, 22, 33, 44, 55) and total.bytes == 77
    assert np.isclose(Work(operations=8, bytes_read=2, bytes_written=2).intensity, 2)
