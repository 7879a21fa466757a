"""`python -m attn_devtools record NAME`: the commands of the authors where nothing is installed."""

import sys

from attn_course.cli.main import main

from .bench import command as bench
from .book import command as book
from .claims import command as claims
from .mutants import command as mutants
from .record import command as record
from .site import command as site

if __name__ == "__main__":
    sys.exit(main(commands=(bench, record, book, claims, mutants, site)))
