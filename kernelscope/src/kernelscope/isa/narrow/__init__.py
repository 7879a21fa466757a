"""Instructions on parts of words: video instructions, and pairs of 8-bit floats."""

from .float8 import FLOAT8_ROWS, TO_FLOAT8_ROWS
from .video import VIDEO_ROWS, select_part, select_parts
