"""The record of tiles, and the loss of the model of `ladder.tiles` on it."""

import math
import re

import numpy as np
import pytest

from attn_course.ladder.problem import Device, Problem
from attn_course.ladder.tiles import (
    PRICES,
    Prices,
    flash_clocks,
    parsed_label,
    split_clocks,
    tile_config,
    tile_label,
)
from attn_course.measure import records
from attn_devtools.bench import SUITES
from attn_devtools.record import tile_model
from attn_devtools.record.tile_model import KIND, ROWS, picks, variants

HOPPER = Device("H200", (9, 0), 132, 227 * 1024)


def test_labels_are_read_back():
    found = {"CLUSTER": 2, "D": 64, "ROWS": 3}
    assert parsed_label(tile_label("flash_split", found)) == ("flash_split", found)


@pytest.mark.parametrize(("shape", "keys"), ROWS, ids=str)
def test_what_the_model_picks_is_among_the_tiles_that_are_timed(shape, keys):
    timed = variants(shape, keys, HOPPER)
    wanted = tile_model.problem(shape, keys)
    for method in ("rows_split",) if shape[3] > 256 else ("flash_async", "flash_split"):
        tile = tile_config(method, wanted, HOPPER)
        tile.pop("SPAN", None)  # of long rows: it follows from the tile and is not timed
        assert tile_label(method, tile) in timed
    assert len(timed) > 5
    for file, options in timed.values():
        assert file.startswith(("12_", "19_", "20_")) and len(options) == len(set(options))


def test_the_suites_problems_are_timed():
    timed = {shape for shape, keys in ROWS if keys == shape[2]}
    assert {row.shape for row in SUITES["seeds_fp32"].rows} <= timed


def made_up_record(times):
    row = {
        "shape": [1, 2, 64, 64],
        "keys": 64,
        "candidates": {name: {"median_us": us} for name, us in times.items()},
    }
    return {
        "device": {
            "name": "made up",
            "capability": [9, 0],
            "sm_count": 132,
            "shared_bytes": 227 * 1024,
        },
        "rows": [row],
    }


def test_the_loss_is_against_the_fastest():
    small, large = (
        tile_label(
            "flash_async", {"D": 64, "ROWS": rows, "KEYS": 8, "ROW_WARPS": warps, "KEY_WARPS": 1}
        )
        for rows, warps in ((1, 1), (8, 8))
    )
    few = Problem(2, 64, 64, 64, 2, 2)
    clocks = {name: flash_clocks(parsed_label(name)[1], few, HOPPER) for name in (small, large)}
    assert clocks[small] < clocks[large]  # 64 rows are far less than the large tile's 256
    (pick,) = picks(made_up_record({small: 30.0, large: 20.0}))
    assert (pick.picked, pick.fastest) == (small, large)
    assert pick.loss == pytest.approx(1.5)
    (pick,) = picks(made_up_record({small: 20.0, large: 30.0}))
    assert pick.loss == 1.0


@pytest.mark.turns(11)
@pytest.mark.system
def test_fitted_prices_cost_no_more_and_follow_the_times():
    names = [
        tile_label("flash_async", {"D": 64, "ROWS": r, "KEYS": 8, "ROW_WARPS": w, "KEY_WARPS": 1})
        for r, w in ((1, 1), (2, 2), (8, 8))
    ]
    found = made_up_record(dict(zip(names, (30.0, 25.0, 20.0), strict=True)))
    fitted = tile_model.fit(found)
    assert fitted != PRICES and tile_model.cost(found, fitted) < tile_model.cost(found, PRICES)
    assert names[2] in tile_model.report(found)


@pytest.mark.parametrize("name", Prices.__dataclass_fields__)
def test_every_price_raises_the_clocks(name):
    config = {"CLUSTER": 2, "D": 64, "ROWS": 2, "KEYS": 4, "ROW_WARPS": 2, "KEY_WARPS": 2}
    wanted = Problem(8, 128, 128, 64, 8, 8)
    dearer = Prices(
        **{
            field: getattr(PRICES, field) * (2 if field == name else 1)
            for field in Prices.__dataclass_fields__
        }
    )
    assert flash_clocks(config, wanted, HOPPER, dearer) > flash_clocks(config, wanted, HOPPER) > 0
    split = {"CLUSTER": 4, "COLS": 1, "WARPS": 4, "ROWS": 3, "KEYS": 4}
    dearer_split = split_clocks(split, wanted, HOPPER, dearer)
    if name in ("cluster", "part", "score"):  # 10 joins no parts; its softmax is in `tile`
        assert dearer_split == split_clocks(split, wanted, HOPPER)
    else:
        assert dearer_split > split_clocks(split, wanted, HOPPER) > 0


def test_the_model_loses_little_on_the_record():
    """Holds for a record of the kernels as they are; one of older kernels says nothing of these."""
    current = [found for found in records.records(KIND) if records.is_current(found)]
    if not current:
        pytest.skip("no record of these kernels: `attn-course record tiles` makes one on a GPU")
    found = list(picks(current[0]))
    losses = [pick.loss for pick in found]
    suite = {row.shape for row in SUITES["seeds_fp32"].rows}
    assert len(found) == len(ROWS) and all(math.isfinite(loss) for loss in losses)
    assert sum(losses) / len(losses) < 1.06 and max(losses) < 1.4
    assert max(pick.loss for pick in found if pick.shape in suite) < 1.05
    assert not any(row["wrong"] for row in current[0]["rows"])


def by_tile(row):
    """Tile -> microseconds; tiles of one shape for several head dims are one tile."""
    times = {name: one["median_us"] for name, one in row["candidates"].items()}
    return {re.sub(r" D=\d+", "", name): us for name, us in times.items()}


def test_a_table_would_lose_more_than_the_model():
    """On a problem that is left out, the fastest tile of the nearest problem with the same tiles:
    by the numbers of queries of all heads and of keys.
    """
    (record, *_) = records.records(KIND)
    rows = [(row, by_tile(row)) for row in record["rows"]]
    extents = [np.log2([math.prod(row["shape"][:3]), row["keys"]]) for row, _ in rows]
    losses = {}
    for i, (_, times) in enumerate(rows):
        others = [j for j in range(len(rows)) if j != i and rows[j][1].keys() == times.keys()]
        if others:
            nearest = min(others, key=lambda j: np.linalg.norm(extents[i] - extents[j]))
            picked = min(times, key=rows[nearest][1].get)
            losses[i] = times[picked] / min(times.values())
    model = [pick.loss for i, pick in enumerate(picks(record)) if i in losses]
    assert len(losses) >= 20
    assert np.mean(list(losses.values())) > 1.5 > 1.1 > np.mean(model)
    assert max(losses.values()) > 3 > 1.5 > max(model)
