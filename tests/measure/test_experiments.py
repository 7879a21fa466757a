"""Contestants and their launches need no GPU; times come from a record, never a simulator."""

import pytest
from record_harness import stamped

from attn_course.ladder.steps import EXPERIMENTS, Device, step
from attn_course.measure.experiments import (
    REPORT_SHAPES,
    TILE_SHAPE,
    VARIANTS,
    online_blocks,
    placement,
    row_of,
    tile_options,
    times,
)

H200 = Device("an H200", (9, 0), 132, 227 * 1024)


def test_every_experiment_and_single_kernel_takes_part():
    files = {file for file, _ in VARIANTS.values()}
    assert {row.file for row in EXPERIMENTS} <= files
    assert {step(number).file for number in range(7, 13)} <= files


def test_a_block_a_query_leaves_multiprocessors_idle_where_queries_are_few():
    full, few = (placement("rows_online", shape, H200) for shape in REPORT_SHAPES[::3])
    assert (full.blocks, full.busy_sms) == (4 * 64, 132)
    assert (few.blocks, few.busy_sms, few.sms) == (16, 16, 132)
    assert placement("multi_query", REPORT_SHAPES[0], H200).blocks * 4 == full.blocks


def test_a_shape_that_a_contestant_does_not_take_is_refused():
    with pytest.raises(ValueError, match="head dim 512"):
        placement("flash_fp32", REPORT_SHAPES[0])
    with pytest.raises(KeyError):
        placement("rows_abacus", REPORT_SHAPES[0])


@pytest.mark.parametrize(("keys", "count"), [(16, 1), (64, 1), (65, 2), (200, 4)])
def test_online_blocks_are_of_64_keys(keys, count):
    assert online_blocks(keys) == count
    assert online_blocks(keys, 1) == keys


def test_tile_options_name_every_constant_of_kernel_11():
    constants = step("flash_fp32").constants(tile_options((2, 4, 3, 5), 96))
    chosen = [constants[name] for name in ("ROWS", "KEYS", "ROW_WARPS", "KEY_WARPS", "D")]
    assert chosen == [2, 4, 3, 5, 96]


def record_of(shape, **medians):
    row = {"shape": list(shape), "contestants": {n: {"median_us": t} for n, t in medians.items()}}
    return stamped("experiments", rows=[row], tiles={"shape": TILE_SHAPE})


def test_times_come_from_one_record_or_the_other_and_are_never_mixed():
    shape = REPORT_SHAPES[1]
    found = record_of(shape, rows_warp=3.0)
    row = {"shape": list(shape), "causal": False, "timings": {"rows_online": {"median_us": 2.0}}}
    suite = record_of(shape) | {"rows": [row | {"causal": True, "timings": {}}, row]}
    assert times(shape, found, suite).median_us == {"rows_warp": 3.0}
    assert times(shape, None, suite).median_us == {"rows_online": 2.0}
    assert "2026-01-02" in times(shape, None, suite).caption
    assert times(REPORT_SHAPES[0], None, suite) is None
    assert times(shape, None, None) is None
    with pytest.raises(KeyError, match="no row"):
        row_of(found, (1, 2, 3, 4))
