"""The outcome of an examination: properties, the first failure, and how a notebook shows them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from textwrap import wrap

from kernelscope.ptx import lines_of
from kernelscope.timing import Prediction

# Property -> what it says of the learner's kernel, in the order in which a failure is told.
PROPERTIES = {
    "compiles": "it compiles, and takes the arguments that it is called with",
    "finishes": "every thread reaches the end",
    "in bounds": "no access outside an array, none misaligned",
    "barriers": "every barrier is reached by all threads that it waits for",
    "no race": "no unsynchronized conflicting accesses (at least one a write) to one element",
    "initialised": "no value is read that nothing has written",
    "agrees": "the result agrees with float64",
    "counters": "the counters reach the goal",
}
DIAGNOSIS = "A known wrong solution of this exercise fails in exactly this way: {}"
CONTEXT = 2  # lines shown before and after the line of a failure
STARTS = "launch and starts"  # a limit of the time model
WIDTH = 98  # characters of a message's lines: a notebook beside its file browser has room for them


@dataclass(frozen=True)
class Failure:
    """Why a kernel fails.

    Attributes:
        property: one of PROPERTIES.
        message: a sentence for a learner.
        label: the case, such as "n = 1000"; "" before any launch.
        line: of the learner's text, 0 where none is known.
        block: (x, y, z) of a thread block that shows it, or None.
        counter: whose goal is missed, for the property "counters".
        method: the goal holds the method that the exercise asks for.
    """

    property: str
    message: str
    label: str = ""
    line: int = 0
    block: tuple[int, int, int] | None = None
    counter: str = ""
    method: bool = False


@dataclass(frozen=True)
class Judgement:
    """The outcome of `check` for one kernel. True where every property holds.

    Attributes:
        exercise: its name. source: the learner's text, in a language: cuda or triton. solution:
            the reference's, shown after a pass; "" for a problem with points.
        waiting: the kernel is still the stub; nothing was examined.
        cases: labels of the cases that passed. of: how many cases there are.
        failures: of the smallest case that fails, in the order of PROPERTIES.
        counters: counter -> (the learner's, the reference's, the goal such as "<= 64" or ""), of
            the largest case, after a pass; atomics are counted in where the goal counts them.
        totals: all counters of the largest case, after a pass.
        diagnosis: the known mistake that the kernel fails like, or "". standings: name of a kernel
            -> its costs, to be shown after a pass; see golf. times: of the learner's kernel and of
            the reference, predicted for a GPU, in the largest case.
    """

    exercise: str
    source: str
    language: str = "cuda"
    solution: str = ""
    waiting: bool = False
    cases: tuple[str, ...] = ()
    of: int = 0
    failures: tuple[Failure, ...] = ()
    counters: Mapping[str, tuple[int, int, str]] = field(default_factory=dict)
    totals: Mapping[str, int] = field(default_factory=dict)
    diagnosis: str = ""
    standings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    times: tuple[Prediction, ...] = ()

    def __bool__(self) -> bool:
        return not self.waiting and not self.failures

    @property
    def first(self) -> Failure | None:
        """The failure to fix first."""
        return self.failures[0] if self.failures else None

    @property
    def properties(self) -> dict[str, bool | None]:
        """Property -> whether it holds; None where the examination did not come to it."""
        failed = {failure.property for failure in self.failures}
        if self.waiting:
            return dict.fromkeys(PROPERTIES)
        names = list(PROPERTIES)
        if failed & {"compiles", "finishes"}:
            unseen = names[names.index(self.failures[0].property) + 1 :]
        elif "in bounds" in failed:  # the access may have ended the run
            unseen = ["agrees", "counters"]
        else:
            unseen = ["counters"] if failed else []  # the goals come last
        judged = dict.fromkeys(names, True) | dict.fromkeys(unseen)
        return judged | dict.fromkeys(failed, False)

    # -- shown ----------------------------------------------------------------------------------
    def __repr__(self) -> str:
        if self.waiting:
            return self._waiting()
        lines = [f"{self.exercise}: {'passed' if self else 'not yet'}"]
        marks = {True: "ok", False: "FAILS", None: "-"}
        for name, holds in self.properties.items():
            lines.append(f"  {marks[holds]:<6}{name:<12} {PROPERTIES[name]}")
        if not self:
            lines += ["", *self._failure_lines()]
        else:
            lines += ["", f"  cases: {'; '.join(self.cases)}", *self._counter_lines()]
        return "\n".join(lines)

    def _waiting(self) -> str:
        return (
            f"{self.exercise}: waiting for your kernel. Write it in the cell that begins with "
            f"`%%{self.language} {self.exercise}`, run that cell, then this one."
        )

    def _failure_lines(self) -> list[str]:
        failure = self.first
        where = f"case {failure.label}" if failure.label else "before any launch"
        lines = [f"  {failure.property} ({where}, {len(self.cases)} of {self.of} cases pass)"]
        if failure.property == "compiles":  # its carets stand below the text that they mark
            lines += [f"  {line}" for line in lines_of(failure.message)]
        else:
            lines += [f"  {line}" for line in wrapped(failure.message)]
        if failure.property != "compiles":  # the compiler's message holds the line
            lines += [
                f"  {'>' if number == failure.line else ' '}{number:4}  {text}".rstrip()
                for number, text in lines_around(self.source, failure.line)
            ]
        if failure.block is not None:
            lines.append(f'  step("{self.exercise}") shows this case thread by thread.')
        if self.diagnosis:
            lines += [f"  {line}" for line in wrapped(DIAGNOSIS.format(self.diagnosis))]
        lines.append(f'  hint("{self.exercise}") gives a hint.')
        return lines

    def _counter_lines(self) -> list[str]:
        if not self.counters:
            return []
        lines = ["", f"  {'counter, largest case':<28}{'yours':>12}{'reference':>12}{'goal':>12}"]
        for name, (mine, theirs, bound) in self.counters.items():
            lines.append(f"  {name:<28}{mine:>12,}{theirs:>12,}{bound:>12}".rstrip())
        if self.times:
            mine, theirs = self.times
            us = f"{mine.us:>12.3g}{theirs.us:>12.3g}"
            lines.append(f"  {'predicted microseconds':<28}{us}  {mine.gpu}")
            between = "".join(f"{_interval(one):>12}" for one in self.times)
            lines += [f"  {'  their interval':<28}{between}", *_limits(mine, theirs)]
            lines += [f"  {note}" for note in mine.notes]
        heads = next(iter(self.standings.values()), ())
        if heads:
            titles = "".join(f"{head:>14}" for head in heads)
            lines += ["", f"  {'golf, largest case':<28}{titles}"]
        for name, costs in self.standings.items():
            cells = "".join(f"{written(costs.get(head, '')):>14}" for head in heads)
            lines.append(f"  {name.partition(':')[0]:<28}{cells}")
        lines += [f"  {name}" for name in self.standings if ":" in name]
        return lines

    def _repr_html_(self) -> str:
        if self.waiting:
            return f"<p>{_code(self._waiting())}</p>"
        marks = {True: "&#10003;", False: "&#10007;", None: "&#8211;"}
        rows = "".join(
            f"<tr><td>{marks[holds]}</td><td><b>{name}</b></td>"
            f'<td style="text-align:left">{PROPERTIES[name]}</td></tr>'
            for name, holds in self.properties.items()
        )
        title = f"<p><b>{self.exercise}: {'passed' if self else 'not yet'}</b></p>"
        return f"{title}<table>{rows}</table>" + (self._passed() if self else self._failed())

    def _failed(self) -> str:
        text = "\n".join(line.removeprefix("  ") for line in self._failure_lines())
        return f"<pre>{escape(text)}</pre>"

    def _passed(self) -> str:
        cases = f"<p>Cases: {escape('; '.join(self.cases))}.</p>"
        counts = "\n".join(line.removeprefix("  ") for line in self._counter_lines()).strip()
        table = f"<pre>{escape(counts)}</pre>" if counts else ""
        if not self.solution:
            return f"{cases}{table}"
        cell = '<td style="text-align:left;vertical-align:top"><pre>{}</pre></td>'
        texts = "".join(cell.format(escape(text)) for text in (self.source, self.solution))
        return (
            f"{cases}{table}<details><summary>Your kernel beside the reference</summary><table>"
            f"<tr><th>yours</th><th>reference</th></tr><tr>{texts}</tr></table></details>"
        )


def _interval(one: Prediction) -> str:
    """'1.4 to 2.1'."""
    ends = (f"{us:.2g}" if us < 10 else f"{us:.0f}" for us in (one.low, one.high))
    return " to ".join(ends)


def _limits(mine: Prediction, theirs: Prediction) -> list[str]:
    """What limits each kernel; where both wait for the launch, the case says nothing of it."""
    if all(_is_small(one) for one in (mine, theirs)):
        return ["  The case is small: the launch and the start of its blocks are the longest wait."]
    found = []
    for name, one in (("yours", mine), ("reference", theirs)):
        why = ", as the case is small" if _is_small(one) else ", many short blocks"
        why = why if one.limit == STARTS else ""
        unit = "" if one.busiest == one.limit else f"; busiest unit: {one.busiest}"
        found.append(f"  {name}: limited by {one.limit}{why}{unit}")
    return found


def _is_small(one: Prediction) -> bool:
    """Are the launch and one start most of the limit?"""
    return one.limit == STARTS and one.start_us > one.bounds[STARTS] / 2


def written(cost: float | str) -> str:
    """A count with separators, a time with three digits."""
    return f"{cost:.3g}" if isinstance(cost, float) else cost if cost == "" else f"{cost:,}"


def lines_around(source: str, line: int) -> list[tuple[int, str]]:
    """Return (number, text) of the lines of a kernel around one of them; none where it is 0."""
    numbered = list(enumerate(lines_of(source), 1))
    return numbered[max(0, line - 1 - CONTEXT) : line + CONTEXT] if line else []


def wrapped(message: str) -> list[str]:
    """Return the lines of a message, long ones broken between words and continued with an indent.

    A notebook would break them in the middle of a word.
    """
    kept = {"break_long_words": False, "break_on_hyphens": False, "drop_whitespace": True}
    return [
        part
        for line in lines_of(message)
        for part in wrap(line, WIDTH, subsequent_indent=_indent(line) + "    ", **kept) or [""]
    ]


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _code(text: str) -> str:
    """Text with `code` between backticks as HTML."""
    parts = escape(text).split("`")
    return "".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(parts))
