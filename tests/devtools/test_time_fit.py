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


def test_a_case_runs_as_on_an_h200():
    """Kernel 03 is close to its recorded time."""
    case = next(case for case in time_fit.cases() if case.label == "03")
    row = time_fit.predicted(case)
    assert row["measured_us"] == case.measured_us
    assert row["error"] == pytest.approx(row["predicted_us"] / case.measured_us - 1, abs=1e-3)
    assert abs(row["error"]) < 0.3
