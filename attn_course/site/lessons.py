"""A lesson as a page: the executed notebook, with answers to predictions folded."""

import re
from pathlib import Path

import nbformat
from kernelscope.watch import packed_fragment
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.highlight import Highlight2HTML

from attn_course.lessons.working_copy import TEST_MARK

from .markdown import PageRenderer, SiteMap, relative

TEMPLATES = Path(__file__).parent / "templates"
ANSWER = re.compile(r"^(.+)\n  your prediction  .*\n  this run ", re.MULTILINE)
QUESTION = re.compile(r"^(.+): your prediction is ", re.MULTILINE)
SCORECARD = re.compile(r"^question +your prediction +this run", re.MULTILINE)
_WORDS = re.compile(r"(\*\*New words:\*\* )(.*?)( \(\[glossary\])", re.DOTALL)
_WIDGET = "application/vnd.jupyter.widget-view+json"


def lesson_body(
    path: Path, source: str, page: str, site: SiteMap, words: dict[str, str]
) -> tuple[str, PageRenderer]:
    """Return a notebook as HTML, and the renderer with its contents.

    source, page: the notebook's path in the course and the page's in the site; words: of the
    glossary, with their anchors.
    """
    notebook = nbformat.read(path, as_version=4)
    renderer = PageRenderer(site, source, page)
    link_words(notebook.cells[0], words, relative("glossary.html", page) if words else "")
    fold_answers(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.source = cell.source.removeprefix(TEST_MARK)
            if cell.source.startswith("%%cuda"):
                cell.metadata["magics_language"] = "cpp"
    exporter = HTMLExporter(
        template_name="lesson", extra_template_basedirs=[str(TEMPLATES)], enable_async=False
    )
    exporter.register_filter("markdown2html", renderer.html)
    exporter.register_filter("code2html", Highlight2HTML(pygments_lexer="ipython3"))
    body, _ = exporter.from_notebook_node(notebook, {"steppers": steppers(notebook)})
    return body, renderer


def fold_answers(notebook) -> int:
    """Mark the cells whose outputs give a prediction's answer away; return how many.

    Those are cells that reveal an answer, the outputs between a prediction and its answer, and
    the scorecard.
    """
    waiting: set[str] = set()
    folded = 0
    for cell in notebook.cells:
        if cell.cell_type != "code" or not cell.outputs:
            continue
        text = "".join(output.get("text", "") for output in cell.outputs)
        asked, answered = QUESTION.findall(text), ANSWER.findall(text)
        hides = bool(answered or SCORECARD.search(text) or (waiting and not asked))
        waiting = (waiting | set(asked)) - set(answered)
        if hides and "exercise" not in cell.metadata:
            cell.metadata["folded"] = "Show the answer" if answered else "Show the result"
            folded += 1
    return folded


def steppers(notebook) -> dict[str, str]:
    """Return the notebook's steppers, by the number of their widget, as HTML with its script."""
    state = notebook.metadata.get("widgets", {}).get(
        "application/vnd.jupyter.widget-state+json", {}
    )
    tables = {
        output.data[_WIDGET]["model_id"]: output.data.get("text/html", "")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if _WIDGET in output.get("data", {})
    }
    found = {model: one["state"] for model, one in state.get("state", {}).items()}
    return {
        model: packed_fragment(
            one["trace"],
            tables[model],
            {"step": one["step"], "recording": one.get("recording", 0)},
            script=one["_esm"],
            style=one["_css"],
        )
        for model, one in found.items()
        if model in tables and "trace" in one
    }


def link_words(cell, words: dict[str, str], glossary: str) -> None:
    """Link each new word of a lesson's head to its line in the glossary."""

    def linked(found: re.Match) -> str:
        listed = [word.strip() for word in found[2].split(",")]
        shown = [
            f'<a href="{glossary}#{words[word]}">{word}</a>' if word in words else word
            for word in listed
        ]
        return found[1] + ", ".join(shown) + found[3]

    cell.source = _WORDS.sub(linked, cell.source)
