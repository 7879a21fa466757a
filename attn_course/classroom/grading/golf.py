"""A class's golf: every submitted kernel of one exercise, judged again in the sandbox.

No number of a submission counts, only its text. A text that fails, in a hidden case too, has no
standing.
"""

import json
from collections.abc import Iterator
from pathlib import Path

from attn_course.exercises.exercise import Exercise

from .confined.sandbox import Sandbox, SandboxError, best_sandbox
from .submissions import CollectError, read_plain
from .verdict import JUDGE_LIMITS, MODULE, ending, last_words

MOST_CHARACTERS = 200_000  # of a kernel


def submitted_kernels(folder: Path, name: str) -> dict[str, Path]:
    """Return student -> file of FOLDER/STUDENT.cu or FOLDER/STUDENT/answers/NAME.cu.

    The second is where a working copy keeps an answer. Raises CollectError where there is none.
    """
    found = {path.stem: path for path in sorted(folder.glob("*.cu"))}
    found |= {path.parts[-3]: path for path in sorted(folder.glob(f"*/answers/{name}.cu"))}
    if not found:
        raise CollectError(f"{folder} holds neither STUDENT.cu nor STUDENT/answers/{name}.cu")
    return found


def class_golf(
    exercise: Exercise, folder: Path, sandbox: Sandbox | None = None
) -> Iterator[tuple[str, str, dict[str, int] | str]]:
    """Yield student, text and costs, or why there are none.

    The reference is judged first. Raises SandboxError where it does not pass, CollectError for an
    exercise in Triton.
    """
    if exercise.language == "triton":
        raise CollectError(f"{exercise.name} is written in Python, and no student's Python is run")
    sandbox, files = sandbox or best_sandbox(), submitted_kernels(folder, exercise.name)
    if isinstance(defect := judged_apart(sandbox, exercise.name, exercise.solution), str):
        raise SandboxError(f"the judge does not work here, the reference solution {defect}")
    for student, path in files.items():
        text = ""
        try:
            text = read_plain(path).decode(errors="replace")
            if path.resolve() != folder.resolve() / path.relative_to(folder):
                found = "is not read: a link leads to it"
            elif len(text) > MOST_CHARACTERS:
                found = f"has more than {MOST_CHARACTERS:,} characters"
            else:
                found = judged_apart(sandbox, exercise.name, text)
        except OSError as error:
            found = f"cannot be read: {error.strerror}"
        yield student, text, found


def judged_apart(sandbox: Sandbox, name: str, text: str) -> dict[str, int] | str:
    """Return the costs of a text that passes in the sandbox, or why it has none."""
    data = json.dumps({"exercise": name, "text": text}).encode()
    outcome = sandbox.run(["-m", MODULE], data, JUDGE_LIMITS)
    if outcome and outcome.reply:
        return json.loads(outcome.reply)
    return f"is not judged: it {ending(outcome, JUDGE_LIMITS)} {last_words(outcome.tail)}".rstrip()
