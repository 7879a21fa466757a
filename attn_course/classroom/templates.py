"""Templates of the classroom: the words of its notebooks, the pages of feedback."""

from collections.abc import Callable
from functools import lru_cache
from pathlib import Path


@lru_cache(maxsize=8)
def template(file: str, *, of_html: bool, finalize: Callable | None = None):
    """Return a template of this folder, `PATH.j2`; a name that it is not given is an error.

    of_html: values are escaped. finalize: of every value before it is written.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader(Path(__file__).parent)
    how = {"undefined": StrictUndefined, "trim_blocks": not of_html, "finalize": finalize}
    return Environment(loader=loader, autoescape=of_html, **how).get_template(file)
