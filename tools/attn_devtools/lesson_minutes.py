"""How long the text of a lesson takes a learner, by the rates of `lessons.study_minutes`."""

import re
from collections.abc import Iterable, Mapping
from math import ceil

from attn_course.lessons.study_minutes import (
    CODE_LINES_A_MINUTE,
    WORDS_A_MINUTE,
    line_count,
    word_count,
)

MINUTES_A_PREDICTION = 2  # to think of a number and to compare it with the machine's
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
            minutes += word_count(text) / WORDS_A_MINUTE
        else:
            minutes += line_count(text) / CODE_LINES_A_MINUTE
            minutes += MINUTES_A_PREDICTION * len(_PREDICTION.findall(text))
    return 5 * ceil(minutes / 5)
