"""A plugin of pytest: nbformat is imported without the grammar of IRIs, which no check here needs.

To compile it takes each process three seconds. With `-p` it comes before nbval, which imports
nbformat before any conftest.py is read.
"""

import sys

sys.modules["rfc3987_syntax"] = None  # where this import fails, jsonschema leaves the format out
