"""Where the course's files are: beside the package in a checkout, inside it once installed."""

import os
import sys
from pathlib import Path

import kernelscope
from kernelscope.errors import InputError

# setup.py copies these
FOLDERS = (
    *("kernels", "results", "notebooks", "exercises", "docs"),
    *("kernelscope/docs", "kernelscope/results"),
)
PACKAGE = Path(__file__).resolve().parent
IMPORT_ROOT = PACKAGE.parent
ENGINE = Path(kernelscope.__file__).resolve().parent


def checkout() -> Path | None:
    """Return the project's root where the package stands in a checkout, None once installed."""
    return IMPORT_ROOT if (IMPORT_ROOT / "pyproject.toml").is_file() else None


def home() -> Path:
    """Return the folder that holds kernels, records and lessons: the checkout or the package."""
    return checkout() or PACKAGE


def course_folder(name: str) -> Path:
    """Return the folder of FOLDERS with this name, of this copy of the course."""
    if name not in FOLDERS:
        raise InputError(f"{name!r} is no folder of the course: {', '.join(FOLDERS)}")
    return home() / name


def child_environment(*folders: Path, **more: str) -> dict[str, str]:
    """Return the environment of a child process that can import the course, installed or not.

    folders: of other packages that it imports. more: variables to set besides.
    """
    roots = dict.fromkeys((str(IMPORT_ROOT), str(ENGINE.parent), *map(str, folders)))
    paths = [*roots, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


def search_path() -> str:
    """Return PATH with the folder of this Python's programs in it, such as `attn-course`."""
    programs, path = str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)
    known = programs in path.split(os.pathsep)
    return path if known else os.pathsep.join([programs, path])
