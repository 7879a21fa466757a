"""The folders of this copy of the project: a checkout, or an installed package."""

import os
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
IMPORT_ROOT = PACKAGE.parent


def checkout() -> Path | None:
    """Return the project's root where the package stands in a checkout, None once installed."""
    return IMPORT_ROOT if (IMPORT_ROOT / "pyproject.toml").is_file() else None


def child_environment(**more: str) -> dict[str, str]:
    """Return the environment of a child process that can import this package, installed or not.

    more: variables to set besides.
    """
    paths = [str(IMPORT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}


def home() -> Path:
    """Return the folder that holds kernels, records and lessons: the checkout or the package."""
    return checkout() or PACKAGE
