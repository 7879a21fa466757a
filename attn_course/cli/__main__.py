"""`python -m attn_course.cli` is the command `attn-course`."""

import sys

from .main import main

sys.exit(main())
