"""No lesson tells the answer to a prediction before the learner has run the cell that reveals it.

The answers are read from the stored outputs. The text is that of the working copy, which a learner
has on the screen: from the heading above a prediction to the first text below its reveal, folded
text apart.
"""

import ast
import json
import re
from dataclasses import dataclass

import pytest

from attn_course.lessons.working_copy import NOTEBOOKS, cleared

LESSONS = sorted(path.stem for path in NOTEBOOKS.glob("[0-9]*.ipynb"))

# (lesson, question) -> why what is found there is not the answer.
EXCEPTIONS: dict[tuple[str, str], str] = {}
# Predictions of later lessons whose answers still stand in the text. Each one fixed leaves the set.
STILL_TOLD: set[tuple[str, str]] = set()

_ASKED = re.compile(r"^(.+): your prediction is none yet$", re.MULTILINE)
_REVEALED = re.compile(r"^(.+)\n  your prediction  none yet\n  this run         (.+)$", re.MULTILINE)
_FOLD = re.compile(r"<details>.*?</details>", re.DOTALL)
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
_TOKEN = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?|[^\W\d_]+")
_WORDS = "zero one two three four five six seven eight nine ten eleven twelve".split()
_EVERYWHERE = {*range(21), 32, 64, 128, 256, 1024}
_LITTLE = set(
    "a an the of in on at to by for from with and or not is are be was were it its that this which "
    "than as has have had their no any all so there".split()
)


@dataclass(frozen=True)
class Asked:
    """A prediction of a lesson: its answer in words and what a learner can read before that."""

    question: str
    answer: str
    page: str


def predictions(lesson: str) -> list[Asked]:
    """Return the predictions of a lesson, in the order of their answers."""
    text = (NOTEBOOKS / f"{lesson}.ipynb").read_text(encoding="utf-8")
    stored, copy = json.loads(text)["cells"], json.loads(cleared(text))["cells"]
    printed = ["".join(_streams(cell)) for cell in stored]
    asked = {name: at for at, out in enumerate(printed) for name in _ASKED.findall(out)}
    return [
        Asked(question, answer, _page(copy, asked[question], at))
        for at, out in enumerate(printed)
        for question, answer in _REVEALED.findall(out)
    ]


def _streams(cell: dict) -> list[str]:
    return [
        "".join(output["text"]) for output in cell.get("outputs", []) if output.get("text")
    ]


def _page(cells: list[dict], asked: int, revealed: int) -> str:
    """What can be read from above cell `asked` to below cell `revealed`, a paragraph a line.

    Above: the last heading and the text right over the prediction. Below: up to the first text, or
    to the next exercise, which nobody does before the reveal.
    """
    texts = ["".join(cell["source"]) for cell in cells]
    above = "\n".join(t for c, t in zip(cells[:asked], texts) if c["cell_type"] == "markdown")
    said = re.findall(r"^##+ .*$", above, re.MULTILINE)[-1:]
    start = asked - (cells[asked - 1]["cell_type"] == "markdown")
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
    comments = [part[1] for part in (line.split("# ", 1) for line in source.splitlines()) if part[1:]]
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
    """Return the lines of the page in which the answer stands, as a number or as a phrase."""
    return [line for line in one.page.splitlines() if line and _tells(line, one)]


def _tells(line: str, one: Asked) -> bool:
    if number := _NUMBER.match(one.answer):
        about = _stems(one.question + " " + one.answer[number.end() :])
        return _tells_number(line, number[0], about)
    key, _, meaning = one.answer.partition(": ")
    clauses = [key] * (len(key) > 1 and not key.isdigit()) + re.split("[:;]", meaning)
    return any(_tells_phrase(line, clause) for clause in clauses)


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


def _tells_phrase(line: str, clause: str) -> bool:
    """Whether the words of the clause stand in this order within one stretch of the line."""
    wanted = [word for word in _content(clause)]
    words = _content(line)
    room = len(wanted) + 2
    for start, word in enumerate(words):
        if wanted and word == wanted[0]:
            rest = iter(words[start : start + room])
            if all(word in rest for word in wanted):
                return True
    return False


def _content(text: str) -> list[str]:
    found = (token.lower().replace(",", "") for token in _TOKEN.findall(text))
    return [_stem(word) for word in found if word not in _LITTLE]


def _stems(text: str) -> set[str]:
    return {word for word in _content(text) if not word[0].isdigit() and len(word) > 1}


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") else word

if __name__ == "__main__":
    for l in LESSONS:
        for a in predictions(l):
            for t in told(a):
                print(l[:2],'|',a.question,'|',a.answer,'|',t[:230])
