"""A lesson as a page: its notebook as myst-nb reads it, with answers to predictions folded."""

import json
import re

from kernelscope.watch import packed_fragment

from attn_course.lessons.working_copy import TEST_MARK

ANSWER = re.compile(r"^(.+)\n  your prediction  .*\n  this run ", re.MULTILINE)
QUESTION = re.compile(r"^(.+): your prediction is ", re.MULTILINE)
SCORECARD = re.compile(r"^question +(your prediction +)this run", re.MULTILINE)
_ASKS = re.compile(r"^(.+): your prediction is none yet$", re.MULTILINE)
_NONE = re.compile(r"^  your prediction  none yet\n", re.MULTILINE)
_WORDS = re.compile(r"(\*\*New words:\*\* )(.*?)( \(\[glossary\])", re.DOTALL)
_ENTRY = re.compile(r"^- \*\*(.+?)\*\*:", re.MULTILINE)
_WIDGET = "application/vnd.jupyter.widget-view+json"
_WIDGETS = "application/vnd.jupyter.widget-state+json"


def page_notebook(text: str) -> str:
    """Return a stored notebook as the site shows it."""
    notebook = json.loads(text)
    for cell in notebook["cells"]:
        cell["source"] = "".join(cell["source"]).removeprefix(TEST_MARK)
        if "exercise" in cell["metadata"]:
            cell["metadata"]["tags"] = ["exercise"]  # becomes a class
    head = notebook["cells"][0]
    head["source"] = _WORDS.sub(_linked, head["source"])
    fold_answers(notebook)
    ask(notebook)
    show_steppers(notebook)
    return json.dumps(notebook)


def _linked(found: re.Match) -> str:
    words = ", ".join(f"{{term}}`{word.strip()}`" for word in found[2].split(","))
    return found[1] + words + found[3]


def page_glossary(text: str) -> str:
    """Return the glossary with a directive in place of its list: each word becomes an anchor."""
    head, *parts = _ENTRY.split(text)
    meanings = (" ".join(part.split()) for part in parts[1::2])
    entries = [f"{word}\n  {what}\n" for word, what in zip(parts[::2], meanings, strict=True)]
    return "\n".join([f"{head}```{{glossary}}", *entries, "```\n"])


def fold_answers(notebook: dict) -> None:
    """Fold the outputs that give a prediction's answer away.

    Those are outputs that reveal an answer, all between a prediction and its answer, and the
    scorecard.
    """
    waiting: set[str] = set()
    for cell in notebook["cells"]:
        if not cell.get("outputs"):
            continue
        text = "".join("".join(output.get("text", "")) for output in cell["outputs"])
        asked, answered = QUESTION.findall(text), ANSWER.findall(text)
        hides = bool(answered or SCORECARD.search(text) or (waiting and not asked))
        waiting = (waiting | set(asked)) - set(answered)
        if hides and "exercise" not in cell["metadata"]:
            what = "answer" if answered else "result"
            prompts = {"code_prompt_show": f"Show the {what}", "code_prompt_hide": f"The {what}"}
            cell["metadata"] |= {"tags": ["hide-output"], "mystnb": prompts}


def ask(notebook: dict) -> None:
    """Ask for a prediction where the stored run had none: a page takes none and compares none."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            if "text" in output:
                text = _ASKS.sub(r"\1: what do you predict?", "".join(output["text"]))
                output["text"] = _without_column(_NONE.sub("", text))


def _without_column(text: str) -> str:
    """Remove the empty column of a scorecard."""
    if not (found := SCORECARD.search(text)):
        return text
    start, end = (place - found.start() for place in found.span(1))
    lines = text[found.start() :].split("\n")
    return text[: found.start()] + "\n".join(line[:start] + line[end:] for line in lines)


def show_steppers(notebook: dict) -> None:
    """Put the stepper itself, as HTML with its script, in place of each stepper's widget."""
    saved = notebook["metadata"].pop("widgets", {}).get(_WIDGETS, {}).get("state", {})
    for cell in notebook["cells"]:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            state = saved.get(data.pop(_WIDGET, {}).get("model_id"), {}).get("state", {})
            if "trace" in state:
                opens = {"step": state["step"], "recording": state.get("recording", 0)}
                table = "".join(data.get("text/html", ""))
                data["text/html"] = packed_fragment(
                    state["trace"], table, opens, script=state["_esm"], style=state["_css"]
                )
