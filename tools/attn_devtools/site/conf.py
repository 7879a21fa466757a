"""Sphinx's configuration for the site, and the few things that the course adds to Sphinx.

Those are formulas as MathML, colours for cells of CUDA C, links to files of the course that are not
pages, and a check that a page loads nothing from another host.
"""

import json
import posixpath
import re
from itertools import takewhile

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from ipython_pygments_lexers import IPython3Lexer
from pygments.lexers import CudaLexer
from sphinx import addnodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util import logging

from attn_course.folders import FOLDERS, checkout, home
from attn_devtools.site import published

LOG = logging.getLogger(__name__)

project = html_title = "attn-course"
extensions = ["myst_nb"]
root_doc = "index"

nb_execution_mode = "off"  # pages show the stored outputs
nb_ipywidgets_js = {}  # else loaded from another host
myst_enable_extensions = ["dollarmath", "fieldlist"]
myst_heading_anchors = 4
myst_url_schemes = ("http", "https", "mailto")

suppress_warnings = ["misc.highlighting_failure"]  # listings with line numbers

html_theme = "pydata_sphinx_theme"
html_theme_options = {
    "footer_end": [],
    "footer_start": [],
    "header_links_before_dropdown": 6,
    "logo": {"text": project},
    "navigation_depth": 2,
    "navigation_with_keys": False,  # the arrow keys move the stepper
    "pygments_dark_style": "github-dark",
    "pygments_light_style": "a11y-high-contrast-light",
    "secondary_sidebar_items": ["page-toc"],
    "show_toc_level": 2,
}
html_context = {"default_mode": "auto"}
html_sidebars = {"notebooks/glossary": []}
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["course.css"]
html_js_files = ["course.js"]
html_copy_source = False
html_use_index = False

_FRONT = {"README.md": root_doc}
_SECTIONS = (nodes.section, nodes.definition_list_item)  # the latter: a word of the glossary
_LOADS = re.compile(r'<(?:img|script|link|iframe|a)\b[^>]*\b(?:src|href)="(?!#|data:)([^"]*)"')


def _formula(translator, node):
    """Write a formula as MathML, which browsers draw without a script."""
    block = isinstance(node, nodes.math_block)
    try:
        text = latex2mathml.tex2mathml(node.astext(), as_block=block)
    except MathError as error:
        LOG.warning("%s", error, location=node)
        text = ""
    translator.body.append(f'<div class="formula">{text}</div>\n' if block else text)
    raise nodes.SkipNode


class CellLexer(IPython3Lexer):
    """Python of a notebook; CUDA C in a cell that begins with %%cuda."""

    def get_tokens_unprocessed(self, text):
        language = CudaLexer() if text.startswith("%%cuda") else super()
        return language.get_tokens_unprocessed(text)


class CourseLinks(SphinxPostTransform):
    """Resolve links to files of the course that Sphinx has not read.

    A kernel's file leads to its page, a folder to its list. Any other file leads to the repository
    where the course is published; else the link becomes text. A link to no file stays, for Sphinx
    to report.
    """

    default_priority = 8  # before MyST's own

    def run(self, **options) -> None:
        for node in list(self.document.findall(addnodes.pending_xref)):
            if node["reftype"] != "myst" or node["refdomain"]:
                continue
            link = node["reftarget"].partition("#")[0]
            path = posixpath.join("/", posixpath.dirname(node["refdoc"]), link)  # or from the root
            path = posixpath.normpath(path).lstrip("/")
            pages = {path.rpartition(".")[0], f"{path}/index", _FRONT.get(path)}
            if found := pages & self.env.found_docs:
                node.attributes |= {"refdomain": "doc", "reftarget": min(found), "reftargetid": ""}
            elif link and _is_of_the_course(path):
                url, text = published.source_url(path), node[0]
                shown = nodes.reference("", "", text, refuri=url)
                node.replace_self(shown if published.is_published() else text)


def _is_of_the_course(path: str) -> bool:
    """Whether a file is of the course. An installed one has FOLDERS alone, and not the rest."""
    is_here = checkout() or path.startswith(tuple(f"{name}/" for name in FOLDERS))
    return (home() / path).exists() if is_here else True


def _report_loads(app, doctree) -> None:
    """Report what a page loads from another host, and HTML links, which Sphinx does not check."""
    found = [
        (node, link)
        for node in doctree.findall(nodes.raw)
        for link in _LOADS.findall(node.astext())
    ]
    found += [(node, node["uri"]) for node in doctree.findall(nodes.image) if "://" in node["uri"]]
    for node, link in found:
        message = "%s: is loaded from another host, or is an HTML link: write it in Markdown"
        LOG.warning(message, link, location=node)


def _keep_sections(app, doctree) -> None:
    """Keep what the search shows of a page: each heading or word, its anchor and its text.

    What is folded is no part of it.
    """
    for node in doctree.findall(nodes.container):
        if node.get("hide_mode") == "output":
            node[-1]["classes"].append("no-search")
    for node in doctree.findall(nodes.raw):
        if "<details" in node.astext():
            after = node.parent[node.parent.index(node) + 1 :]
            for folded in takewhile(lambda one: "</details>" not in one.astext(), after):
                folded["classes"].append("no-search")
    sections = [node for kind in _SECTIONS for node in doctree.findall(kind)]
    app.env.metadata[app.env.docname]["sections"] = [
        [(node["ids"] or node[0]["ids"])[0], _text(node[0]), " ".join(map(_text, node[1:]))]
        for node in sections
    ]


def _text(node) -> str:
    if isinstance(node, nodes.Text):
        return " ".join(node.split())
    if isinstance(node, (nodes.raw, *_SECTIONS)) or "no-search" in node["classes"]:
        return ""
    return " ".join(filter(None, map(_text, node.children)))


def _write_sections(app, env) -> None:
    """Write what the search shows of pages; from disk a browser reads no other page."""
    sections = {name: facts["sections"] for name, facts in env.metadata.items()}
    text = f"const SECTIONS = {json.dumps(sections, ensure_ascii=False)};\n"
    (app.outdir / "_static").mkdir(exist_ok=True)
    (app.outdir / "_static" / "sections.js").write_text(text, encoding="utf-8")


def _add_search(app, page, *context) -> None:
    if page == "search":
        app.add_js_file("sections.js")
        app.add_js_file("search.js")


def setup(app) -> dict:
    app.add_html_math_renderer("mathml", (_formula, None), (_formula, None))
    app.add_lexer("ipython3", CellLexer)
    app.add_post_transform(CourseLinks)
    app.connect("doctree-read", _report_loads)
    app.connect("doctree-read", _keep_sections)
    app.connect("env-updated", _write_sections)
    app.connect("html-page-context", _add_search)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
