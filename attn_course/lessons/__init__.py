"""What notebooks share (predictions, listings), and what exactly one of them needs."""

from .predictions import begin, predict, reveal, scorecard
from .show import show_diff, show_machine, show_source, show_steps

__all__ = [
    "begin",
    "predict",
    "reveal",
    "scorecard",
    "show_diff",
    "show_machine",
    "show_source",
    "show_steps",
]
