"""No lesson tells the answer to a prediction before the learner has run the cell that reveals it.

The answers are read from the stored outputs. The text is that of the working copy, which a learner
has on the screen: from the heading above a prediction to the first text below its reveal, folded
text apart. Alt texts and comments of the code in between count too.
"""

import ast
import json
import re
from dataclasses import dataclass

import nbformat
import pytest

from attn_course.lessons.working_copy import NOTEBOOKS, cleared

LESSONS = sorted(NOTEBOOKS.glob("[0-9]*.ipynb"))

# (lesson, question) -> why what is found there is not the answer.
EXCEPTIONS = {
    ("03", "sectors of a warp's load of K, K_TILE 0"): "32 is the size of a sector there",
    (
        "06",
        "sectors of a warp's load, kernel 04",
    ): "32 is the number of lanes and of a sector's bytes",
    ("08", "warps of kernel 08 that compute scores, of 8"): "'in kernel 08 one thread': no warp",
    (
        "12",
        "launches for four windows",
    ): "10 is what one window takes; the question is what four do",
    ("15", "four queries a block, against kernel 09"): "the report's words on another attempt",
}

_ASKED = re.compile(r"^(.+): your prediction is none yet$", re.MULTILINE)
_REVEALED = re.compile(
    r"^(.+)\n  your prediction  none yet\n  this run         (.+)$", re.MULTILINE
)
_OPTION = re.compile(r"^  (\S+: .+)$", re.MULTILINE)
_FOLD = re.compile(r"<details>.*?</details>", re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_TOKEN = re.compile(rf"{_NUMBER.pattern}|[^\W\d_]+")
_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_EVERYWHERE = {*range(21), 32, 64, 128, 256, 1024}  # numbers that stand in every lesson
_LITTLE = set(
    "a an the of in on at to by for from with and or not is are be was were it its that this which "
    "than as has have had their no any all so there".split()
)


@dataclass(frozen=True)
class Asked:
    """A prediction of a lesson: its answer, the other options, what is read before the answer."""

    question: str
    answer: str
    others: tuple[str, ...]
    page: str


def predictions(text: str) -> list[Asked]:
    """Return the predictions of a notebook's text, in the order of their answers."""
    stored, copy = json.loads(text)["cells"], json.loads(cleared(text))["cells"]
    printed = ["".join(_streams(cell)) for cell in stored]
    asked = {name: at for at, out in enumerate(printed) for name in _ASKED.findall(out)}
    revealed = [(at, *found) for at, out in enumerate(printed) for found in _REVEALED.findall(out)]
    choices = {answer for _, _, answer in revealed if ": " in answer}
    found = []
    for at, question, answer in revealed:
        options = set(_OPTION.findall(printed[asked[question]])) or choices
        page = _page(copy, asked[question], at)
        found.append(Asked(question, answer, tuple(options - {answer}), page))
    return found


def _streams(cell: dict) -> list[str]:
    return ["".join(output["text"]) for output in cell.get("outputs", []) if output.get("text")]


def _page(cells: list[dict], asked: int, revealed: int) -> str:
    """What can be read from above cell `asked` to below cell `revealed`, a paragraph a line.

    Above: the last heading and the text right over the prediction. Below: up to the first text, or
    to the next exercise, which nobody does before the reveal.
    """
    texts = ["".join(cell["source"]) for cell in cells]
    markdown = [cell["cell_type"] == "markdown" for cell in cells]
    above = "\n".join(text for at, text in enumerate(texts[:asked]) if markdown[at])
    said = re.findall(r"^##+ .*$", above, re.MULTILINE)[-1:]
    start = asked - markdown[asked - 1]
    for number, cell in enumerate(cells[start:], start):
        if number > revealed and cell["metadata"].get("exercise"):
            break
        if cell["cell_type"] == "code":
            said += _sentences_of_code(texts[number])
            continue
        said += [" ".join(part.split()) for part in _FOLD.sub("", texts[number]).split("\n\n")]
        if number > revealed:
            break
    return "\n".join(said)


def _sentences_of_code(source: str) -> list[str]:
    """The comments of a cell and its strings of four words and more: alt text, what is printed."""
    if source.startswith("%%"):
        return [line.split("//")[1] for line in source.splitlines() if "//" in line]
    source = re.sub(r"^[!%].*$", "", source, flags=re.MULTILINE)
    comments = [line.split("# ", 1)[1] for line in source.splitlines() if "# " in line]
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("predict", "reveal"):
            node.args, node.keywords = [], []  # the options hold the answer by right
    strings = [
        " ".join(node.value.split())
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return comments + [text for text in strings if len(text.split()) > 3]


def told(one: Asked) -> list[str]:
    """Return the lines of the page in which the answer stands, as a number or as a phrase.

    A line that has another option as well only lists them.
    """
    lines = [line for line in one.page.splitlines() if line and _tells(line, one, one.answer)]
    return [line for line in lines if not any(_tells(line, one, x, True) for x in one.others)]


def _tells(line: str, one: Asked, answer: str, alone: bool = False) -> bool:
    """alone: a single word tells wherever it stands."""
    key, choice, meaning = answer.partition(": ")
    if not choice:
        number = _NUMBER.match(answer)
        about = _stems(one.question + " " + answer[number.end() :])
        return _tells_number(line, number[0], about)
    if line == meaning:  # the list of options itself
        return False
    names = [key] * ("-" in key)  # such as out-of-bounds
    return any(
        _tells_phrase(line, words, one, alone) for words in names + re.split("[:;]", meaning)
    )


def _tells_number(line: str, answer: str, about: set[str]) -> bool:
    """A small whole number, which stands everywhere, tells only beside a word of the question."""
    tokens = [token.lower().replace(",", "") for token in _TOKEN.findall(line)]
    forms = _forms(answer)
    for at, token in enumerate(tokens):
        if token in forms:
            beside = tokens[max(0, at - 2) : at] + tokens[at + 1 : at + 3]
            small = token.isalpha() or (token.isdigit() and int(token) in _EVERYWHERE)
            if not small or about & _stems(" ".join(beside)):
                return True
    return False


def _forms(answer: str) -> set[str]:
    """'23.02' -> 23.02, 23.0 and 23; '4' -> 4 and four."""
    plain = answer.replace(",", "")
    value = float(plain)
    forms = {plain}
    if value.is_integer() and 0 <= value < len(_WORDS):
        forms.add(_WORDS[int(value)])
    if not value.is_integer():
        forms |= {f"{value:.{digits}f}" for digits in (1, 2)} | {f"{value:.3g}"}
        forms |= {f"{value:.0f}"} if abs(value) >= 20 else set()
    return forms


def _tells_phrase(line: str, phrase: str, one: Asked, alone: bool) -> bool:
    """Whether the words of the phrase stand in this order within one stretch of the line.

    A single word tells only in a line with two words of the question, or `alone`.
    """
    wanted, words = _content(phrase), _content(line)
    if len(wanted) == 1 and not alone and len(_stems(one.question) & set(words)) < 2:
        return False
    for start, word in enumerate(words):
        if wanted and word == wanted[0]:
            rest = iter(words[start : start + len(wanted) + 2])
            if all(word in rest for word in wanted):
                return True
    return False


def _content(text: str) -> list[str]:
    found = (token.lower().replace(",", "") for token in _TOKEN.findall(text))
    words = [word for word in found if word not in _LITTLE]
    return [word[:-1] if len(word) > 3 and word.endswith("s") else word for word in words]


def _stems(text: str) -> set[str]:
    return {word for word in _content(text) if not word[0].isdigit() and len(word) > 1}


def spoilers(text: str, lesson: str) -> list[str]:
    """Return 'question (answer): line' for each line that tells an answer."""
    return [
        f"{one.question} ({one.answer}): {line}"
        for one in predictions(text)
        if (lesson, one.question) not in EXCEPTIONS
        for line in told(one)
    ]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_no_answer_before_its_reveal(path):
    found = spoilers(path.read_text(encoding="utf-8"), path.stem[:2])
    assert not found, "\n".join(found)


def test_every_lesson_asks_something():
    assert all(predictions(path.read_text(encoding="utf-8")) for path in LESSONS)


def test_exceptions_are_needed():
    for lesson, question in EXCEPTIONS:
        [path] = NOTEBOOKS.glob(f"{lesson}_*.ipynb")
        asked = {one.question: one for one in predictions(path.read_text(encoding="utf-8"))}
        assert told(asked[question]), f"{question}: nothing is found any more"


# -- the detector, on lessons of a few cells ------------------------------------------------------
ALT = "A column of 32 numbers, one below the other, all in a single bank."


def lesson(answer="7 warps", options="", heading="Warps", before="Look.", alt=ALT, after="So."):
    """Return a notebook that asks how many warps there are, as text."""
    new = nbformat.v4
    asked = f"{options}warps of the block: your prediction is none yet\n"
    shown = f"warps of the block\n  your prediction  none yet\n  this run         {answer}\n"
    cells = [
        new.new_markdown_cell(f"## {heading}\n\n{before}\n\n**Predict:** how many?"),
        new.new_code_cell('predict("warps of the block", None)', outputs=[printed(asked)]),
        new.new_code_cell(f'described(figure, "{alt}")'),
        new.new_code_cell('reveal("warps of the block", found)', outputs=[printed(shown)]),
        new.new_markdown_cell(after),
    ]
    return nbformat.writes(new.new_notebook(cells=cells))


def printed(text):
    return nbformat.v4.new_output("stream", text=text)


OPTIONS = "  a: one after the other\n  b: side by side\n"


@pytest.mark.parametrize(
    "cells",
    [
        {"heading": "Seven warps"},
        {"before": "A block has 7 warps."},
        {"alt": "Seven warps stand in a row."},
        {"after": "The warps are seven."},
        {"answer": "23.02 clocks", "before": "It takes 23 clocks."},
        {"answer": "921,984 scores", "after": "Equal in all 921984 of them."},
        {"answer": "b: side by side", "options": OPTIONS, "heading": "Warps side by side"},
        {"answer": "b: side by side", "options": OPTIONS, "alt": "They are side by side here."},
    ],
    ids=lambda cells: "-".join(cells),
)
def test_a_told_answer_is_found(cells):
    assert spoilers(lesson(**cells), "made up")


@pytest.mark.parametrize(
    "cells",
    [
        {},
        {"before": "Lesson 7 and its 14 blocks."},
        {"after": "<details><summary>Why?</summary>\n\nThe warps are seven.\n\n</details>"},
        {"answer": "32 warps"},
        {
            "answer": "b: side by side",
            "options": OPTIONS,
            "before": "They run side by side, or one after the other.",
        },
    ],
    ids=lambda cells: "-".join(cells) or "plain",
)
def test_what_tells_no_answer_passes(cells):
    assert not spoilers(lesson(**cells), "made up")
