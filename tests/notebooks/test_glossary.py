"""Every new word of a lesson is in the glossary, which the lessons and the README link to."""

import re
from pathlib import Path

import nbformat
import pytest

from attn_course.lessons.working_copy import WorkingCopy

ROOT = Path(__file__).resolve().parents[2]
LESSONS = sorted(ROOT.glob("notebooks/[0-9]*.ipynb"))
GLOSSARY = (ROOT / "notebooks" / "glossary.md").read_text(encoding="utf-8")
LINE = re.compile(r"- \*\*(.+?)\*\*: (.+\.) \[Lesson (\d\d)\]\((\d\d_\w+\.ipynb)\)")
NEW_WORDS = re.compile(r"\*\*New words:\*\*(.+?)\(\[glossary\]\(glossary\.md\)\)", re.DOTALL)


def defined() -> dict[str, tuple[str, str]]:
    """Word -> (number of its lesson, file of its lesson), in the order of the glossary."""
    entries = [line for line in GLOSSARY.splitlines() if line.startswith("- ")]
    found = [LINE.fullmatch(entry) for entry in entries]
    wrong = [entry for entry, match in zip(entries, found, strict=True) if match is None]
    assert not wrong, "\n".join(wrong)
    return {match[1]: (match[3], match[4]) for match in found}


def new_words(text: str) -> list[str] | None:
    """The words that the first cell of a lesson lists; None where it has no such list."""
    found = NEW_WORDS.search(text)
    if found is None:
        return None
    return [word.strip(" `*") for word in " ".join(found[1].split()).split(",")]


def missing(text: str, known) -> list[str]:
    """New words of a first cell without a line in the glossary, whatever their case."""
    lower = {word.casefold() for word in known}
    return [
        word for word in new_words(text) or ["a list of new words"] if word.casefold() not in lower
    ]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_new_words_are_in_the_glossary(path):
    text = nbformat.read(path, as_version=4).cells[0].source
    assert missing(text, defined()) == []


def test_a_missing_word_and_a_missing_list_are_found():
    text = "# T\n\n**New words:** Warp,\n`lane`, bank ([glossary](glossary.md))."
    assert new_words(text) == ["Warp", "lane", "bank"]
    assert missing(text, ["warp", "lane"]) == ["bank"]
    assert missing("# T\n\n**New words:** warp.", ["warp"]) == ["a list of new words"]


def test_the_glossary_is_in_order_and_its_links_lead_somewhere():
    words = [word.casefold() for word in defined()]
    assert words == sorted(set(words))
    for number, file in defined().values():
        assert file.startswith(f"{number}_") and (ROOT / "notebooks" / file).is_file()


def test_the_readme_and_the_working_copy_have_the_glossary(tmp_path):
    assert "](notebooks/glossary.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    WorkingCopy(tmp_path).update()
    assert (tmp_path / "glossary.md").read_text(encoding="utf-8") == GLOSSARY
