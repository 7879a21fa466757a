"""The bug clinic: broken kernels, the clean kernels they were made from, and how both are run.

`notes` reads what a broken kernel says of itself, `families` knows how a clean one is launched and
what it computes, `trials` runs either.
"""

from .families import clean_step
from .notes import BROKEN_FOLDER, Broken, Case, ClinicError, notes_of, read_broken, read_case
from .trials import Examination, Trial, examine, prepare
