"""What a notebook's kernel runs first when its outputs are compared (PYTHONSTARTUP)."""

import gc

# As in conftest.py: searches for cycles take time, and a kernel ends with its notebook.
gc.set_threshold(200_000, 10, 10)
del gc  # no name of a cell's
