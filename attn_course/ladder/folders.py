"""Where the course's files are: beside the package in a checkout, inside it once installed."""

from pathlib import Path

from attn_course.engine.project import home

FOLDERS = ("kernels", "results", "notebooks", "exercises", "docs")  # setup.py copies these


def course_folder(name: str) -> Path:
    """Return the folder of FOLDERS with this name, of this copy of the course."""
    if name not in FOLDERS:
        raise ValueError(f"{name!r} is no folder of the course: {', '.join(FOLDERS)}")
    return home() / name
