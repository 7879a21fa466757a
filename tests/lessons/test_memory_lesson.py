"""Lesson 03's counts and the sentences it makes of records, whichever way they turn out."""

import numpy as np
import pytest

from attn_course.lessons import lesson03_memory
from attn_course.measure.hardware import memory_levels

BASE = {(0, 0): 30.0, (0, 1): 30.1, (1, 0): 112.0, (1, 1): 29.0, (2, 0): 31.0, (2, 1): 22.0}


def record(times=BASE, shared=23.0, device=800.0, bandwidth=(30000, 4000)):
    timings = [
        {"name": memory_levels.variant_name(*pair, tile), "median_us": value}
        for pair, value in times.items()
        for tile in (16, 32)
    ]
    chains = [{"space": "shared", "bytes": 4096, "clocks": shared, "nanoseconds": shared / 2}]
    chains += [
        {"space": "global", "bytes": size, "clocks": clocks, "nanoseconds": clocks / 2}
        for size, clocks in ((4096, 33.0), (1 << 23, 260.0), (1 << 29, device))
    ]
    speeds = [
        {"level": name, "gb_per_s": value, "median_us": 1.0}
        for name, value in (
            ("shared", bandwidth[0]),
            ("L1", 15000),
            ("L2", 6000),
            ("device", bandwidth[1]),
        )
    ]
    return {
        "kind": memory_levels.KIND,
        "gpu": "Test GPU",
        "driver": "1",
        "cuda": "13.0",
        "date": "2026-01-02",
        "commit": "abc",
        "kernels": {},
        "multiprocessors": 10,
        "l2_bytes": 40 << 20,
        "latencies": chains,
        "bandwidths": speeds,
        "scores": {"timings": timings},
    }


def small_inputs(heads=1):
    rng = np.random.default_rng(4)
    q = rng.standard_normal((heads, 40, 64)).astype(np.float32)
    return q, rng.standard_normal((heads, 35, 64)).astype(np.float32)


def test_counts_of_the_layouts_are_those_of_the_definitions():
    q, k = small_inputs()
    runs = {
        pair: lesson03_memory.count(2, q, k, lesson03_memory.layout_options(*pair)) for pair in BASE
    }
    assert len({one.scores.tobytes() for one in runs.values()}) == 1
    np.testing.assert_allclose(runs[0, 0].scores, q @ k.swapaxes(1, 2), atol=1e-4)
    assert runs[1, 0].shared_passes > 3 * runs[0, 0].shared_passes
    assert runs[2, 1].lookups < runs[0, 1].lookups / 4
    one = runs[1, 1]
    assert one.passes == one.shared_passes + one.lookups
    totals = one.seen.totals
    assert one.shared_passes == totals["shared_load_wavefronts"] + totals["shared_store_wavefronts"]


def test_pairs_of_heads_have_the_same_traffic():
    """The lesson counts two heads of 196 tokens, which end on a whole line, and multiplies."""
    rng = np.random.default_rng(5)
    q, k = rng.standard_normal((2, 4, 196, 64)).astype(np.float32)
    two, four = (lesson03_memory.count(2, q[:heads].copy(), k[:heads].copy()) for heads in (2, 4))
    assert 2 * two.passes == four.passes and 2 * two.lookups == four.lookups


def test_the_model_shares_the_turns_out():
    found = record()
    assert memory_levels.clock_mhz(found) == pytest.approx(2000)
    assert lesson03_memory.predicted_us(40000, found) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1.0, "take the same time"),
        (1.02, "take the same time"),
        (0.98, "take the same time"),
        (3.7, "takes 3.70 times as long as B"),
        (0.5, "takes 0.50 of the time of B"),
    ],
)
def test_a_comparison_says_what_the_ratio_is(value, words):
    assert words in lesson03_memory.compared("A", "B", value)


def test_sentences_follow_the_record():
    said = "\n".join(lesson03_memory.layout_sentences(record()))
    assert "K_TILE 1 PAD 0 takes 3.73 times as long as K_TILE 0 PAD 0" in said
    assert "slowest: 02 TILE=32 K_TILE=1 PAD=0" in said and "K_TILE=2 PAD=1;" in said
    turned = record(BASE | {(1, 0): 10.0})
    said = "\n".join(lesson03_memory.layout_sentences(turned, tile=16))
    assert "K_TILE 1 PAD 0 takes 0.33 of the time of K_TILE 0 PAD 0" in said
    assert "fastest: 02 TILE=16 K_TILE=1 PAD=0" in said
    assert lesson03_memory.ratio(turned, (1, 0), (0, 0)) == pytest.approx(1 / 3)


@pytest.mark.parametrize(
    ("claimed", "measured", "words"),
    [
        (5, 23, "4.6 times too little"),
        (100, 35, "2.9 times too much"),
        (400, 410, "holds"),
    ],
)
def test_a_claim_is_judged(claimed, measured, words):
    assert words in lesson03_memory.judged(claimed, measured)


def test_latency_verdicts_follow_the_record():
    said = lesson03_memory.latency_verdicts(record())
    assert "measured 23.0 clocks, claimed 4.6 times too little" in said[0]
    assert "measured 34.8 times" in said[2] and "measured 7.5 times" in said[3]
    said = lesson03_memory.latency_verdicts(
        record(shared=5.0, device=380.0, bandwidth=(400000, 4000))
    )
    assert [one.endswith("holds") for one in said] == [True, True, False, True]


def test_the_table_has_a_row_for_every_level():
    rows = lesson03_memory.level_table(record())
    assert [row[0] for row in rows] == ["shared", "L1", "L2", "device"]
    assert rows[0][1:] == ("23", "1.0", "30,000", "1.0") and rows[3][2] == "34.8"


def test_figures_come_with_and_without_a_record():
    assert lesson03_memory.latency_figure(None) is None
    assert lesson03_memory.latency_figure(record()).get_axes()
    q, k = small_inputs()
    counted = {
        memory_levels.variant_name(0, 0): lesson03_memory.count(
            2, q, k, lesson03_memory.layout_options(0, 0)
        )
    }
    assert len(lesson03_memory.traffic_figure(counted, None).get_axes()) == 1
    assert len(lesson03_memory.traffic_figure(counted, record()).get_axes()) == 2
