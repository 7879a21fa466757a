"""A finished page read back: its anchors, its links, and its sections for the search.

The link checker and the search index read pages with this one parser.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

MOST_TEXT = 700  # characters of a section that are searched
_HEADINGS = ("h1", "h2", "h3", "h4", "dt")
_UNSEARCHED = ("script", "style", "svg", "math", "nav", "header", "details", "table")
_VOID = frozenset("area base br col embed hr img input link meta source track wbr".split())


@dataclass
class Section:
    """A heading of a page, its anchor, and the text below it."""

    title: str
    anchor: str
    text: str = ""


@dataclass
class ReadPage:
    """What a page has: anchors, links in its order, sections; loaded: from other hosts."""

    anchors: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)


@dataclass(frozen=True)
class BrokenLink:
    """A link of a page that leads nowhere."""

    page: str
    link: str
    why: str

    def __str__(self) -> str:
        return f"{self.page}: {self.link}: {self.why}"


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.page = ReadPage()
        self._open: list[str] = []
        self._hidden = 0  # elements around the present place whose text is not searched
        self._heading: Section | None = None
        self._in_main = False

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if anchor := given.get("id"):
            self.page.anchors.add(anchor)
        for name in ("href", "src"):
            link = given.get(name)
            if link is None:
                continue
            self.page.links.append(link)
            loads = name == "src" or tag == "link"
            if loads and link.startswith(("http:", "https:", "//")):
                self.page.loaded.append(link)
        if tag == "main":
            self._in_main = True
        if tag in _VOID:
            return
        if tag in _UNSEARCHED:
            self._hidden += 1
        if tag in _HEADINGS and self._in_main and not self._hidden:
            self._heading = Section("", given.get("id", ""))
            self.page.sections.append(self._heading)
        self._open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self._open:
            return
        while self._open:
            last = self._open.pop()
            if last in _UNSEARCHED:
                self._hidden -= 1
            if last == "main":
                self._in_main = False
            if last in _HEADINGS:
                self._heading = None
            if last == tag:
                return

    def handle_data(self, data):
        if not self._in_main or self._hidden:
            return
        if self._heading is not None:
            self._heading.title += data
        elif self.page.sections:
            self.page.sections[-1].text += data


def read_page(text: str) -> ReadPage:
    """Return the anchors, links and sections of a page. Folded text is in no section."""
    reader = _Reader()
    reader.feed(text)
    reader.close()
    for section in reader.page.sections:
        section.title = " ".join(section.title.replace("¶", "").split())
        section.text = " ".join(section.text.split())
    return reader.page


def check_links(folder: Path, pages: Mapping[str, ReadPage]) -> list[BrokenLink]:
    """Return the links of pages that lead to no file or no anchor of the folder.

    pages: by their place in the folder. Addresses of other hosts are not visited; what a page
    loads from them is broken, since the site must work without a network.
    """
    found = []
    for name, page in pages.items():
        for link in dict.fromkeys(page.links):
            why = _broken(folder, pages, name, link)
            if link in page.loaded:
                why = "loaded from another host"
            if why:
                found.append(BrokenLink(name, link, why))
    return found


def _broken(folder: Path, pages: Mapping[str, ReadPage], name: str, link: str) -> str:
    parts = urlsplit(link)
    if parts.scheme in ("http", "https", "mailto", "data"):
        return ""
    if parts.scheme or parts.netloc:
        return f"an address of the kind {parts.scheme or 'host'}"
    path = unquote(parts.path)
    target = (folder / name).parent / path if path else folder / name
    if not target.is_file():
        return "no such file"
    place = target.resolve().relative_to(folder.resolve()).as_posix()
    if parts.fragment and place in pages:
        anchor = unquote(parts.fragment)
        if anchor not in pages[place].anchors:
            return "no such anchor"
    return ""


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
