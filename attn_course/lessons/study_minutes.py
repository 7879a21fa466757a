"""How long an exercise takes a learner, by one stated rule.

The rates are assumptions, not measurements: reading is slow where a text is technical and in a
second language. The minutes that lessons state follow from them and from the text.
"""

import re
from math import ceil

WORDS_A_MINUTE = 150  # of prose, read
CODE_LINES_A_MINUTE = 10  # of code, read
MINUTES_A_LINE = 3  # to write a line of CUDA C, check it and correct it

_WORD = re.compile(r"[^\W_][\w'’.,-]*")


def exercise_minutes(statement: str, stub: str, lines: int) -> int:
    """Return the minutes of an exercise: to read its statement and stub, and to write its lines."""
    reading = word_count(statement) / WORDS_A_MINUTE + line_count(stub) / CODE_LINES_A_MINUTE
    return ceil(reading + MINUTES_A_LINE * lines)


def word_count(text: str) -> int:
    """Return the number of words of a text, code and numbers among them."""
    return len(_WORD.findall(text))


def line_count(text: str) -> int:
    """Return the number of lines of a text that are not blank."""
    return sum(bool(line.strip()) for line in text.splitlines())
