"""How long a lesson and an exercise take a learner, by one stated rule.

The four rates are assumptions, not measurements: reading is slow where a text is technical and in a
second language. The minutes that lessons state follow from them and from the text.
"""

import re
from collections.abc import Iterable, Mapping
from math import ceil

WORDS_A_MINUTE = 150  # of prose, read
CODE_LINES_A_MINUTE = 10  # of code, read
MINUTES_A_PREDICTION = 2  # to think of a number and to compare it with the machine's
MINUTES_A_LINE = 3  # to write a line of CUDA C, check it and correct it

_WORD = re.compile(r"[^\W_][\w'’.,-]*")
_PREDICTION = re.compile(r"^ *predict\(", re.MULTILINE)


def lesson_minutes(cells: Iterable[Mapping]) -> int:
    """Return the minutes of a notebook's cells without its exercises, rounded up to fives.

    Args:
        cells: each with "cell_type", "source" (text or lines) and "metadata", as in the file.
    """
    minutes = 0.0
    for cell in cells:
        text = "".join(cell["source"])
        if "exercise" in cell["metadata"]:
            continue
        if cell["cell_type"] == "markdown":
            minutes += _words(text) / WORDS_A_MINUTE
        else:
            minutes += _lines(text) / CODE_LINES_A_MINUTE
            minutes += MINUTES_A_PREDICTION * len(_PREDICTION.findall(text))
    return 5 * ceil(minutes / 5)


def exercise_minutes(statement: str, stub: str, lines: int) -> int:
    """Return the minutes of an exercise: to read its statement and stub, and to write its lines."""
    reading = _words(statement) / WORDS_A_MINUTE + _lines(stub) / CODE_LINES_A_MINUTE
    return ceil(reading + MINUTES_A_LINE * lines)


def _words(text: str) -> int:
    return len(_WORD.findall(text))


def _lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())
