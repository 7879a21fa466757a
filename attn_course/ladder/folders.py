"""Where the course's files are: beside the package in a checkout, inside it once installed."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
IMPORT_ROOT = PACKAGE.parent  # on a child's PYTHONPATH it makes the package importable
FOLDERS = ("kernels", "results", "notebooks", "exercises")  # setup.py copies these


def course_folder(name: str) -> Path:
    """Return the folder of FOLDERS with this name, of this copy of the course."""
    if name not in FOLDERS:
        raise ValueError(f"{name!r} is no folder of the course: {', '.join(FOLDERS)}")
    return (checkout() or PACKAGE) / name


def checkout() -> Path | None:
    """Return the project's root where the package stands in a checkout, None once installed."""
    return PACKAGE.parent if (PACKAGE.parent / "pyproject.toml").is_file() else None
