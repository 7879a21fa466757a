"""A learner's answers and progress, kept in a working copy of the lessons.

A working copy is a folder with the file `progress.json`; the answers are the files
`answers/NAME.cu`. Where there is none, as in a run of the course's own notebooks, nothing is kept.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

PROGRESS = "progress.json"


@dataclass(frozen=True)
class Answers:
    """The answers of one working copy."""

    folder: Path

    @classmethod
    def here(cls) -> Answers | None:
        """Return the answers of the working copy that holds the current folder, if any."""
        start = Path.cwd()
        for folder in (start, *start.parents):
            if (folder / PROGRESS).is_file():
                return cls(folder)
        return None

    def text(self, name: str) -> str:
        """Return the kept answer to an exercise, or ""."""
        path = self.folder / "answers" / f"{name}.cu"
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    def keep(self, name: str, source: str) -> None:
        """Keep an answer; the one before it stays beside it as NAME.cu.before."""
        path = self.folder / "answers" / f"{name}.cu"
        path.parent.mkdir(exist_ok=True)
        if path.is_file() and path.read_text(encoding="utf-8") != source:
            path.replace(path.with_suffix(".cu.before"))
        path.write_text(source, encoding="utf-8")

    def progress(self) -> dict[str, dict]:
        """Return exercise -> {"passed": bool, "tries": int, "when": ISO time}.

        A file that can not be read counts as no progress.
        """
        try:
            found = json.loads((self.folder / PROGRESS).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def note(self, name: str, passed: bool) -> None:
        """Note the outcome of a check; an exercise once passed stays passed."""
        progress = self.progress()
        before = progress.get(name) if isinstance(progress.get(name), dict) else {}
        progress[name] = {
            "passed": passed or bool(before.get("passed")),
            "tries": int(before.get("tries", 0)) + 1,
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        path = self.folder / PROGRESS
        temporary = path.with_suffix(".json.new")
        temporary.write_text(json.dumps(progress, indent=1), encoding="utf-8")
        os.replace(temporary, path)
