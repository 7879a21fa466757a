"""Execute the code cells of a submission, inside the sandbox, and say what they did.

    python -m attn_course.classroom.grading.confined.executing < CELLS

All cells run in this one process, in IPython's shell without a server or ports, so that the limits
of the sandbox are those of the notebook. What is said here is the word of a process that runs the
student's code: it is reported, and decides about no points.
"""

import json
import os
import sys

REPLY = 3
MOST_ERRORS = 20
MOST_CHARACTERS = 300  # of an error's message


def main() -> None:
    cells = json.load(sys.stdin)
    from IPython.core.interactiveshell import InteractiveShell

    class Shell(InteractiveShell):
        def enable_gui(self, gui=None):
            """Accept `%matplotlib`: there is no window here, and nothing to do."""

    shell = Shell.instance(colors="NoColor")
    shell.history_manager.enabled = False
    errors = 0
    for number, (_, text) in enumerate(cells):
        say(cell=number)
        result = shell.run_cell(text, store_history=True)
        error = result.error_before_exec or result.error_in_exec
        if error is not None and errors < MOST_ERRORS:
            errors += 1
            say(cell=number, error=type(error).__name__, text=_message(error))
    sys.stdout.flush()
    say(end=True)


def say(**fields) -> None:
    """Write one line of the report."""
    os.write(REPLY, json.dumps(fields).encode() + b"\n")


def _message(error: BaseException) -> str:
    try:
        return str(error)[:MOST_CHARACTERS]
    except Exception:
        return ""


if __name__ == "__main__":
    main()
