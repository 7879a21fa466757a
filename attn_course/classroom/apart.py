"""The process that `score_apart` starts: answers in JSON on standard input, points on the output.

    python -P -m attn_course.classroom.apart < TASK

What a kernel prints goes to standard error, so that it cannot be taken for points.
"""

import contextlib
import json
import os
import sys

from .scoring import score


def main() -> None:
    os.environ["KERNELSCOPE_BACKEND"] = "simulator"
    task = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr):
        found = {
            name: score(name, text, hidden=task["hidden"]).as_data()
            for name, text in task["answers"].items()
        }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
