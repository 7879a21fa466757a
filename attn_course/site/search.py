"""The search index: every section of every page, and every word of the glossary."""

from collections.abc import Mapping

from .pages import ReadPage

MOST_TEXT = 700  # characters of a section that are searched


def search_index(pages: Mapping[str, ReadPage]) -> list[list[str]]:
    """Return [kind, page's title, section's title, address, text] for each section.

    Steps of a kernel have no text of their own and are left out.
    """
    found = []
    for place, page in pages.items():
        if place.endswith(".steps.html"):
            continue
        title = page.sections[0].title if page.sections else place
        for section in page.sections:
            address = f"{place}#{section.anchor}" if section.anchor else place
            text = section.text[:MOST_TEXT]
            found.append([kind_of(place), title, section.title, address, text])
    return found


def kind_of(place: str) -> str:
    """'lessons/01_attention_by_hand.html' -> 'lesson'."""
    kinds = {"lessons": "lesson", "kernels": "kernel", "glossary.html": "glossary"}
    return kinds.get(place.split("/")[0], "page")
