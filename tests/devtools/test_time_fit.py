"""Which recorded times the time model's constants were fitted to."""

from pathlib import Path

import pytest

from attn_devtools import time_fit


def test_every_case_is_a_recorded_time():
    """Kernels alone and in methods, layers, and several tiles of each shape; none is held out."""
    cases = list(time_fit.cases())
    assert len(cases) > 150 and all(case.measured_us > 0 for case in cases)
    assert len({case.label for case in cases}) > 150
    assert "held_out" not in Path(time_fit.__file__).read_text()


@pytest.mark.turns(29)
@pytest.mark.system
def test_a_case_runs_as_on_an_h200():
    """Kernel 03 is close to its recorded time."""
    case = next(case for case in time_fit.cases() if case.label == "03")
    row = time_fit.predicted(case)
    assert row["measured_us"] == case.measured_us
    assert row["error"] == pytest.approx(row["predicted_us"] / case.measured_us - 1, abs=1e-3)
    assert abs(row["error"]) < 0.3


def test_the_choice_of_a_tile_is_by_predicted_times():
    """Its loss is by recorded ones."""
    times = {"a [1] 2": (10.0, 7.0), "b [1] 2": (8.0, 9.0), "a [1] 3": (5.0, 6.0)}
    rows = [
        {"label": label, "measured_us": us, "predicted_us": predicted}
        for label, (us, predicted) in times.items()
    ]
    first, second = time_fit.choices(rows)
    assert (first["choice"], first["fastest"], first["loss"]) == ("a [1] 2", "b [1] 2", 0.25)
    assert (second["tiles"], second["loss"]) == (1, 0.0)


def test_tiles_of_short_shapes_are_all_there():
    labels = {case.label for case in time_fit.tiles(4.0)}
    rows = [
        row
        for row in time_fit.stored("tiles")["rows"]
        if min(time["median_us"] for time in row["candidates"].values()) <= 4.0
    ]
    tiles = [tile for row in rows for tile in row["candidates"]]
    assert tiles and sorted(label.split(" [")[0] for label in labels) == sorted(tiles)
