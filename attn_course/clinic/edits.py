"""Exact replacements in a kernel's text, for ablations and for the solutions of exercises."""

import re
from collections.abc import Sequence
from pathlib import Path

from kernelscope.compile import with_headers
from kernelscope.errors import UserError

Edit = tuple[str, str]  # (text to replace, its replacement)


class EditError(UserError, ValueError):
    """An edit that does not fit the text; names the kernel and the edit."""


def kernel_text(path: Path) -> str:
    """Return the text of a kernel file, its headers in their places: it compiles in memory."""
    return with_headers(path.read_text(encoding="utf-8"), path.parent)


def edited(text: str, edits: Edit | Sequence[Edit], name: str) -> str:
    """Return the text after one edit or several, in order.

    name: of the kernel, for messages.

    Raises:
        EditError: an edit that is no pair of texts, or whose old text is not in the source exactly
            once.
    """
    for edit in [edits] if edits and isinstance(edits[0], str) else edits:
        if not isinstance(edit, (tuple, list)) or list(map(type, edit)) != [str, str]:
            raise EditError(f"{name}: an edit is a pair of texts, (old, new), not {edit!r}")
        old, new = edit
        count = text.count(old) if old else 0
        if count != 1:
            first = next(iter(old.strip().splitlines()), old)
            raise EditError(f"{name}: {first!r} is {count} times in the source, not once")
        text = text.replace(old, new)
    return text


def edits_of(diff: str) -> list[Edit]:
    """Return the edits of a diff: hunks apart by lines `@@`; lines begin with "-", "+" or " "."""
    edits = []
    for hunk in re.split(r"^@@.*\n", diff, flags=re.MULTILINE):
        lines = hunk.splitlines()
        old = "".join(line[1:] + "\n" for line in lines if line[:1] != "+")
        new = "".join(line[1:] + "\n" for line in lines if line[:1] != "-")
        if lines:
            edits.append((old, new))
    return edits
