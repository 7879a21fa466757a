"""The question of each lesson, as its first cell states it."""

import json
import re

from attn_course.lessons.working_copy import NOTEBOOKS, Lesson

_QUESTION = re.compile(r"\*\*The question[^:]*:\s*(.+?)\*\*\s*\n\n", re.DOTALL)


def question_of(lesson: Lesson) -> str:
    """Return the question of a lesson's first cell; "" without one."""
    path = NOTEBOOKS / f"{lesson.name}.ipynb"
    head = "".join(json.loads(path.read_text(encoding="utf-8"))["cells"][0]["source"])
    found = _QUESTION.search(head)
    asked = " ".join(found[1].split()) if found else ""
    return asked[:1].upper() + asked[1:]
