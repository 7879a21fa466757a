"""Predictions: :func:`predict` takes the learner's answer, :func:`reveal` shows the machine's.

A guess of None means "not yet": a lesson runs from top to bottom without any. Once the answer has
been shown, the guess made before it stays, and the scorecard counts that one.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral, Real

import numpy as np
from kernelscope.errors import UserError

from attn_course.figures import table
from attn_course.folders import search_path

Answer = float | int | str
NO_ANSWER = "none yet"


class PredictionError(UserError, ValueError):
    """A guess or an answer that does not fit its question, or a question that does not exist."""


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


def predict(
    question: str,
    guess: Answer | None,
    options: Mapping[str, str] | None = None,
    *,
    listed: bool = True,
) -> None:
    """Commit to an answer before the cell that finds it out.

    A new guess replaces an earlier one until `reveal` has shown the answer. From then on the
    earlier one stays, none included; `begin` forgets it.

    Args:
        question: what is asked, in a few words; `reveal` names it again.
        guess: a number, a key of ``options`` (0 for "0"), or None for no prediction yet.
        options: key -> its meaning, where there is a choice.
        listed: print the options; off where an earlier question has listed them.

    Raises:
        PredictionError: a guess that is none of the options, or is not a finite number.
    """
    if options is not None and isinstance(guess, (str, Integral)):
        guess = str(guess).strip().lower()
    found = Question(question, guess, dict(options) if options is not None else None)
    _check(found, "the prediction", guess)
    shown = question in _questions and _questions[question].answer is not None
    if not shown:
        _questions[question] = found
    for key, meaning in (found.options or {} if listed else {}).items():
        print(f"  {key}: {meaning}")
    if shown:
        kept = _questions[question]
        first = kept.describe(kept.guess)
        counts = "no prediction" if kept.guess is None else f"your first prediction, {first},"
        print(f"{question}: the answer has been shown, so {counts} counts")
        return
    print(f"{question}: your prediction is {found.describe(guess)}")


def reveal(question: str, answer: Answer, unit: str = "") -> None:
    """Print the machine's answer beside the prediction; the scorecard keeps the first answer.

    Args:
        question: as it was given to `predict`.
        answer: what the run gave: a number, or a key of the options.
        unit: of a number, such as "threads".

    Raises:
        PredictionError: nothing was asked under this name (the message lists what was), or the
            answer does not fit the question.
    """
    if question not in _questions:
        known = "".join(f"\n  {name}" for name in _questions) or " none yet"
        raise PredictionError(
            f"no prediction named {question!r}. Run the cell that predicts it first. "
            f"There are:{known}"
        )
    found = _questions[question]
    _check(found, "the answer", answer)
    now = replace(found, answer=answer, unit=unit)
    if found.answer is None:
        _questions[question] = now
    print(question)
    print(f"  your prediction  {now.describe(now.guess)}")
    judged = now.verdict()
    print(f"  this run         {now.describe(answer)}" + (f"   ({judged})" if judged else ""))


def scorecard() -> None:
    """Print every question's first prediction and first answer, in the order of the lesson."""
    heads = ("question", "your prediction", "this run", "")
    rows = [
        (
            q.name,
            q.describe(q.guess),
            q.describe(q.answer) if q.answer is not None else "not run",
            q.verdict(),
        )
        for q in _questions.values()
    ]
    print(table(heads, rows))


def begin() -> None:
    """Forget all predictions: a lesson's first cell calls this, so that it can be run again.

    `!attn-course` in a cell is then the command of the kernel's own environment.
    """
    _questions.clear()
    os.environ["PATH"] = search_path()


def _check(question: Question, what: str, value: Answer | None) -> None:
    if value is None and what == "the prediction":
        return
    said = f"{question.name}: {what} is {value!r}"
    if question.options is not None:
        if not isinstance(value, str) or value not in question.options:
            known = ", ".join(map(repr, question.options))
            raise PredictionError(f"{said}; choose one of: {known}, with its quotes")
        return
    if isinstance(value, tuple) and value and all(isinstance(part, int) for part in value):
        raise PredictionError(f"{said}; write the number without commas")
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, Real):
        raise PredictionError(f"{said}; it must be a number, without quotes")
    if not math.isfinite(value):
        raise PredictionError(f"{said}; it must be finite")


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
    return f"{_number(float(f'{ratio:.3g}'))} times too {side}"
