"""The benchmark book: what its figures show, read from the records of the suites."""

from .pages import (
    ATTENTION,
    BATCHES,
    BEST_BASELINE,
    LADDER,
    LAYERS,
    LENGTHS,
    Page,
    growth,
    newest,
    page_of,
)
from .roofs import under_the_roof
