"""Plumbing of the notebooks: predictions and listings for all, and modules of single lessons."""

from .predictions import begin, predict, reveal, scorecard
from .show import show_diff, show_machine, show_source, show_steps
