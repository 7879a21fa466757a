"""A kernel file of the user's own on the command line: its options, its call, what it wrote."""

from .call import OwnCall, own_call
from .options import add_own, block_argument, is_own, joined, own_options
from .written import Written, arrays_record, arrays_report, save, written
