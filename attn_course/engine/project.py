"""The folders of this copy of the project: a checkout, or an installed package."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1]
IMPORT_ROOT = PACKAGE.parent  # on a child's PYTHONPATH it makes the package importable


def checkout() -> Path | None:
    """Return the project's root where the package stands in a checkout, None once installed."""
    return IMPORT_ROOT if (IMPORT_ROOT / "pyproject.toml").is_file() else None


def home() -> Path:
    """Return the folder that holds kernels, records and lessons: the checkout or the package."""
    return checkout() or PACKAGE
