"""Markdown of the course as HTML: formulas as MathML, anchors, links between pages of the site."""

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from latex2mathml.converter import convert
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.styles import get_style_by_name
from pygments.token import STANDARD_TYPES, Token

from attn_course.folders import FOLDERS, checkout

from . import published

LIGHT, DARK = "default", "github-dark"  # styles of Pygments
_QUIET = {"#bbbbbb": "#6b7781"}  # too pale on white
# What the converter leaves as a name that browsers do not know.
_SPACES = {"negativethinmathspace": "-0.167em"}
_ENTRY = re.compile(r"^- \*\*(.+?)\*\*:", re.MULTILINE)
_LANGUAGES = {"sh": "console", "": "text"}


def slug(text: str) -> str:
    """Return an anchor for a heading or a word: 'Bank conflict' -> 'bank-conflict'."""
    return re.sub(r"[^\w]+", "-", text.lower()).strip("-")


def mathml(formula: str, display: str) -> str:
    """Return a TeX formula as MathML, which browsers draw without a script."""
    text = convert(formula.strip(), display=display)
    for name, width in _SPACES.items():
        text = text.replace(name, width)
    return text


@dataclass
class SiteMap:
    """Which file of the course is which page.

    pages: path in the course, "notebooks/glossary.md" -> path in the site, "glossary.html".
    course: the folder of the course.
    """

    course: Path
    pages: dict[str, str] = field(default_factory=dict)

    def address(self, link: str, source: str, page: str) -> str | None:
        """Return a link of a source file as the page at `page` writes it.

        None where it leads to a file that is not on the site while the course is not published:
        its text stays. A link to no file of the course stays as it is, for the link checker. An
        installed course has FOLDERS alone; its links to the rest of a checkout are no mistakes.
        """
        parts = urlsplit(link)
        if parts.scheme or not parts.path:
            return link
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), parts.path))
        anchor = f"#{parts.fragment}" if parts.fragment else ""
        if target in self.pages:
            return relative(self.pages[target], page) + anchor
        is_here = target.partition("/")[0] in FOLDERS or checkout() is not None
        if is_here and not (self.course / target).exists():
            return link
        return published.source_url(target) + anchor if published.is_published() else None


def relative(target: str, page: str) -> str:
    """Return the way from one page of the site to another."""
    return posixpath.relpath(target, posixpath.dirname(page) or ".")


class PageRenderer(IPythonRenderer):
    """Markdown of one page; `contents` holds (level, anchor, HTML) of its headings."""

    def __init__(self, site: SiteMap, source: str, page: str):
        super().__init__(escape=False, exclude_anchor_links=True)
        self.site, self.source, self.page = site, source, page
        self.contents: list[tuple[int, str, str]] = []
        self._anchors: set[str] = set()

    def html(self, markdown: str) -> str:
        """Return Markdown as HTML; anchors differ from those of earlier calls."""
        return MarkdownWithMath(renderer=self).render(markdown)

    def anchor(self, text: str) -> str:
        """Return an anchor for a text that the page does not have yet."""
        base = slug(re.sub(r"<[^>]*>", "", text)) or "section"
        name, number = base, 1
        while name in self._anchors:
            number += 1
            name = f"{base}-{number}"
        self._anchors.add(name)
        return name

    def heading(self, text: str, level: int, **attributes) -> str:
        anchor = self.anchor(text)
        self.contents.append((level, anchor, text))
        sign = f' <a class="anchor" href="#{anchor}" aria-label="Link to this section">¶</a>'
        return f'<h{level} id="{anchor}">{text}{sign}</h{level}>\n'

    def link(self, text: str, url: str, title: str | None = None) -> str:
        address = self.site.address(url, self.source, self.page)
        return text if address is None else super().link(text, address, title)

    def image(self, text: str, url: str, title: str | None = None) -> str:
        return super().image(text, self.site.address(url, self.source, self.page) or url, title)

    def block_math(self, body: str) -> str:
        return f'<div class="formula">{mathml(body, "block")}</div>'

    def inline_math(self, body: str) -> str:
        return mathml(body, "inline")

    def table(self, text: str) -> str:
        return f'<div class="wide"><table>\n{text}</table></div>\n'

    def block_code(self, code: str, info: str | None = None) -> str:
        language = (info or "").split(maxsplit=1)[0] if info else ""
        return highlighted(code, _LANGUAGES.get(language, language))


def highlighted(code: str, language: str, **options) -> str:
    """Return source text as HTML with the classes of the site's stylesheet."""
    lexer = get_lexer_by_name(language, stripnl=False)
    return highlight(code, lexer, HtmlFormatter(cssclass="highlight", **options))


def glossary_words(text: str) -> Mapping[str, str]:
    """Return the words of the glossary's Markdown -> their anchors."""
    return {word: slug(word) for word in _ENTRY.findall(text)}


def glossary_html(text: str, renderer: PageRenderer) -> str:
    """Return the glossary's Markdown as HTML: a list of definitions, each word an anchor."""
    parts = _ENTRY.split(text)
    entries = "".join(
        f'<dt id="{slug(word)}">{word}</dt><dd>{renderer.html(meaning.strip())}</dd>\n'
        for word, meaning in zip(parts[1::2], parts[2::2], strict=True)
    )
    return f'{renderer.html(parts[0])}<dl class="glossary">\n{entries}</dl>\n'


def highlight_css() -> str:
    """Return the colours of source text, light and dark, as rules for Pygments' classes."""
    light, dark = get_style_by_name(LIGHT), get_style_by_name(DARK)
    ink = "#1f2328", "#e6edf3"
    rules = []
    for token, name in STANDARD_TYPES.items():
        if not name or token is Token.Error:
            continue
        pair = [style.style_for_token(token) for style in (light, dark)]
        colours = [
            f"#{found['color']}" if found["color"] else rest
            for found, rest in zip(pair, ink, strict=True)
        ]
        declared = []
        if tuple(colours) != ink:
            first, second = (_QUIET.get(colour, colour) for colour in colours)
            declared.append(f"color: light-dark({first}, {second})")
        if pair[0]["bold"]:
            declared.append("font-weight: 600")
        if pair[0]["italic"]:
            declared.append("font-style: italic")
        if declared:
            rules.append(f".highlight .{name} {{ {'; '.join(declared)} }}")
    return "\n".join(["", *rules, ""])
