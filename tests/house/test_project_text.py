"""No file of the project names a machine's folders, leaves an open end, or breaks the format."""

import re
from pathlib import Path

import check_format
import pytest

ROOT = Path(__file__).resolve().parents[2]

# The words are put together here so that this file does not hold them itself. What stands before a
# word is looked at from behind its first letter: `re` skips to that, where case counts.
OPEN_ENDS = "|".join(
    rf"{word[0]}(?<=\b{word[0]}){word[1:]}\b"
    for word in ("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")
)
FOLDERS = "|".join(("wo" + "rk", "fa" + "rm", "ro" + "ot", "ho" + "me", "Us" + "ers"))
FORBIDDEN = {
    "an open end": re.compile(OPEN_ENDS),
    "a folder of one machine": re.compile(rf"/(?<![\w.>)\]}}]/)({FOLDERS})/"),
    "a folder outside the project": re.compile(r"\.\./sha" + "red"),
}
MADE = re.compile(
    r"sub" + r"agent\b|issue tra" + r"cker\b|closing no" + r"te\b|this ses" + r"sion\b"
)
TEXT = check_format.TEXT_SUFFIXES


def problems(text: str) -> list[str]:
    """Every forbidden word of a text as 'line: what: the word'."""
    lower = text.lower()
    found = [(why, match) for why, pattern in FORBIDDEN.items() for match in pattern.finditer(text)]
    found += [("how the project was made", match) for match in MADE.finditer(lower)]
    return [
        f"{match.string.count(chr(10), 0, match.start()) + 1}: {why}: {match.group(0)}"
        for why, match in found
    ]


@pytest.mark.system
def test_no_file_holds_forbidden_words():
    files = [path for path in check_format.project_files() if path.suffix in TEXT]
    assert len(files) > 20
    found = [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in files
        for problem in problems(path.read_text(errors="replace"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "# TO" + "DO: later",
        "see /wo" + "rk/main",
        "open('/ho" + "me/ann/x')",
        "a FIX" + "ME b",
        "../sha" + "red/notes",
        "In This ses" + "sion",
        "(XX" + "X)",
    ],
)
def test_forbidden_words_are_found(text):
    assert problems(text)


@pytest.mark.parametrize(
    "text", ["XX" + "XX", "MANTO" + "DO", "a/ho" + "me/b", "this ses" + "sions"]
)
def test_other_words_are_not(text):
    assert not problems(text)


def test_every_file_keeps_the_format():
    found = [
        f"{path.relative_to(ROOT)}:{problem}"
        for path in check_format.project_files()
        for problem in check_format.problems_of(path)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("name", "text", "word"),
    [
        ("a.py", "x = 1 \n", "blanks"),
        ("a.py", "x = 1", "no newline"),
        ("a.cu", "\tint a;\n", "tab"),
        ("a.cu", "/" * 101 + "\n", "101 columns"),
        ("a.md", "a\r\n", "Windows"),
        ("a.md", "a\n\n", "blank lines"),
        ("a.ipynb", "{", "JSON"),
        ("a.ipynb", '{"a": 1}', "nbformat"),
    ],
)
def test_format_problems_are_found(tmp_path, name, text, word):
    path = tmp_path / name
    path.write_bytes(text.encode())
    assert any(word in problem for problem in check_format.problems_of(path))
