"""What every lesson does around its kernels: predictions, source listings, the machine's facts.

A learner commits to an answer with :func:`predict` before a cell runs and sees it beside the
machine's with :func:`reveal`. An answer of None means "not yet": a lesson runs from top to bottom
without any.
"""

from __future__ import annotations

import difflib
import math
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral, Real

import numpy as np

from attn_course.engine.backend import gpu_count, resolve_backend
from attn_course.ladder.headers import kernel_path

Answer = float | int | str
NO_ANSWER = "none yet"


@dataclass
class Question:
    """One prediction and, once it is revealed, the machine's answer."""

    name: str
    guess: Answer | None
    options: Mapping[str, str] | None = None
    answer: Answer | None = None
    unit: str = ""

    def describe(self, value: Answer | None) -> str:
        """A guess or an answer in words: '1,024 threads', 'b: 4 times'."""
        if value is None:
            return NO_ANSWER
        if self.options is not None:
            return f"{value}: {self.options[value]}"
        return f"{_number(value)} {self.unit}".rstrip()

    def verdict(self) -> str:
        """How the guess stands to the answer, in a few words; '' without a guess."""
        if self.guess is None or self.answer is None:
            return ""
        if self.options is not None:
            return "as predicted" if self.guess == self.answer else "not as predicted"
        return _distance(float(self.guess), float(self.answer))


_questions: dict[str, Question] = {}


def predict(question: str, guess: Answer | None,
            options: Mapping[str, str] | None = None, *, listed: bool = True) -> None:
    """Commit to an answer before the cell that finds it out.

    Args:
        question: what is asked, in a few words; `reveal` names it again.
        guess: a number, a key of ``options`` (0 for "0"), or None for no prediction yet.
        options: key -> its meaning, where there is a choice.
        listed: print the options; off where an earlier question has listed them.

    Raises:
        ValueError: a guess that is none of the options, or is not a finite number.
        TypeError: a guess that is no number where there are no options.
    """
    if options is not None and isinstance(guess, (str, Integral)):
        guess = str(guess).strip().lower()
    found = Question(question, guess, dict(options) if options is not None else None)
    _check(found, "the prediction", guess)
    _questions[question] = found
    for key, meaning in (found.options or {} if listed else {}).items():
        print(f"  {key}: {meaning}")
    print(f"{question}: your prediction is {found.describe(guess)}")


def reveal(question: str, answer: Answer, unit: str = "") -> None:
    """Print the machine's answer beside the prediction.

    Args:
        question: as it was given to `predict`.
        answer: what the run gave: a number, or a key of the options.
        unit: of a number, such as "threads".

    Raises:
        KeyError: nothing was asked under this name; the message lists what was.
        ValueError, TypeError: an answer that does not fit the question.
    """
    if question not in _questions:
        known = ", ".join(_questions) or "none yet"
        raise KeyError(f"no prediction named {question!r}; there are: {known}. "
                       "Run the cell that predicts it first")
    found = _questions[question]
    _check(found, "the answer", answer)
    found.answer, found.unit = answer, unit
    print(question)
    print(f"  your prediction  {found.describe(found.guess)}")
    judged = found.verdict()
    print(f"  this run         {found.describe(answer)}" + (f"   ({judged})" if judged else ""))


def scorecard() -> None:
    """Every prediction of the lesson beside its answer, in the order in which they were made."""
    heads = ("question", "your prediction", "this run", "")
    rows = [
        (q.name, q.describe(q.guess), q.describe(q.answer) if q.answer is not None else "not run",
         q.verdict())
        for q in _questions.values()
    ]
    widths = [max(len(row[i]) for row in (heads, *rows)) for i in range(len(heads))]
    rule = tuple("-" * width for width in widths)
    for row in (heads, rule, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def begin() -> None:
    """Forget all predictions: a lesson's first cell calls this, so that it can be run again."""
    _questions.clear()


def _check(question: Question, what: str, value: Answer | None) -> None:
    if value is None and what == "the prediction":
        return
    if question.options is not None:
        if not isinstance(value, str) or value not in question.options:
            known = ", ".join(map(repr, question.options))
            raise ValueError(f"{question.name}: {what} is {value!r}; choose one of: {known}, "
                             "with its quotes")
        return
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise TypeError(f"{question.name}: {what} is {value!r}; it must be a number, "
                        "without quotes")
    if not math.isfinite(value):
        raise ValueError(f"{question.name}: {what} is {value!r}; it must be finite")


def _number(value: Real) -> str:
    """12345 -> '12,345'; 0.70711 -> '0.7071'."""
    if isinstance(value, Integral) or (float(value).is_integer() and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{float(value):,.4g}"


def _distance(guess: float, answer: float) -> str:
    if guess == answer:
        return "exactly"
    if math.isclose(guess, answer, rel_tol=0.05):
        return "within 5 %"
    if guess * answer <= 0:
        return f"off by {_number(guess - answer)}"
    ratio = max(guess / answer, answer / guess)
    side = "high" if abs(guess) > abs(answer) else "low"
    return f"{ratio:,.3g} times too {side}"


class Listing:
    """Text that a notebook shows as a highlighted code block, and a terminal as it is."""

    def __init__(self, text: str, language: str):
        self.text = text
        self.language = language

    def __repr__(self) -> str:
        return self.text

    def _repr_markdown_(self) -> str:
        return f"```{self.language}\n{self.text}\n```"


def show_source(kernel: str, start: str, end: str | None = None) -> Listing:
    """Lines of a kernel file with their numbers.

    Args:
        kernel: as in ``"01_scores_naive"``.
        start: text of the first line to show; the first line that holds it counts.
        end: text of the last line, looked for from there on; default: one line only.

    Raises:
        ValueError: no line holds the text.
    """
    lines = kernel_path(kernel).read_text(encoding="utf-8").splitlines()
    first = _line_with(lines, start, 0, kernel)
    last = first if end is None else _line_with(lines, end, first, kernel)
    chosen = (f"{n + 1:3}  {lines[n]}".rstrip() for n in range(first, last + 1))
    return Listing("\n".join(chosen), "cpp")


def _line_with(lines: list[str], text: str, after: int, kernel: str) -> int:
    for number in range(after, len(lines)):
        if text in lines[number]:
            return number
    raise ValueError(f"{kernel}: no line from {after + 1} on holds {text!r}")


def show_diff(before: str, after: str, *, context: int = 1) -> Listing:
    """What changes from one kernel to another, as a unified diff of their code.

    Header comments are left out: they say the same in words.
    """
    texts = [_without_header(kernel_path(name).read_text(encoding="utf-8"))
             for name in (before, after)]
    lines = difflib.unified_diff(*texts, f"{before}.cu", f"{after}.cu", n=context, lineterm="")
    # A hunk's line numbers would be those of the files without their headers.
    shown = ("@@" if line.startswith("@@") else line.rstrip() for line in lines)
    return Listing("\n".join(shown), "diff")


def _without_header(text: str) -> list[str]:
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if line.strip() and line[:2] != "//"), 0)
    return lines[first:]


def show_steps(trace, first: int = 0, last: int | None = None, *, width: int = 64) -> Listing:
    """The steps of a trace as a table: line, its source text, and what the first thread saw.

    Args:
        trace: a Tracer after a run, or one of its recordings.
        first, last: steps to show, both included; default: to the end.
        width: characters of source text; longer lines are cut.
    """
    heads = ("step", "line", "source", "what happened")
    chosen = trace.rows()[first : None if last is None else last + 1]
    cut = [(step, line, _shortened(text.split("  //")[0], width), seen)
           for step, line, text, seen in chosen]
    widths = [max(len(row[i]) for row in (heads, *cut)) for i in range(3)]
    lines = []
    for step, line, text, seen in (heads, *cut):
        numbers = f"{step:>{widths[0]}}  {line:>{widths[1]}}"
        lines.append(f"{numbers}  {text:<{widths[2]}}  {seen}".rstrip())
    return Listing("\n".join(lines), "text")


def _shortened(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def machine_facts(backend: str | None = None) -> dict[str, str]:
    """What the course runs on here: backend, device, and the versions that matter."""
    import cupy
    from cupy.cuda import nvrtc

    chosen = resolve_backend(backend)
    device = "this CPU, through the simulator"
    if chosen == "gpu":
        name = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.Device().id)["name"]
        device = name.decode() if isinstance(name, bytes) else str(name)
    return {
        "backend": chosen,
        "kernels run on": device,
        "GPUs that CuPy sees": str(gpu_count()),
        "CUDA compiler": "NVRTC " + ".".join(map(str, nvrtc.getVersion())),
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "CuPy": cupy.__version__,
    }


def show_machine(backend: str | None = None) -> None:
    """Print :func:`machine_facts`, one a line."""
    for name, value in machine_facts(backend).items():
        print(f"{name:<20} {value}")
