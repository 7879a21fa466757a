"""One exercise, read from its Markdown file.

The file has a head in TOML between two lines `+++` (title, lesson, kernel, lines), then
sections: Statement, Stub, Specification, Hints, Solution, any number of `Correct: NAME`, any number
of `Wrong: NAME`, whose first line is `Rejected for: PROPERTY` and whose next may be `Earns: POINTS`
or `Kind: KIND`, and Equivalent mutants. Code stands in fences: c++ for a whole kernel file, python
for the specification, diff for a change of the solution.

A problem of a problem set, in the folder `assignments`, has points in its head, a section NumPy
with the formula that its notebook shows, hidden cases, and a solution whose marked region is what
the learner writes; its stub is the solution without that region.
"""

import random
import re
import tomllib
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from kernelscope.errors import UserError, did_you_mean

from attn_course.clinic.edits import EditError, edited, edits_of
from attn_course.folders import course_folder
from attn_course.lessons.study_minutes import exercise_minutes

from .judgement import PROPERTIES
from .setups import VOCABULARY, Setup, goal_names

FOLDER = course_folder("exercises")
ASSIGNMENTS = FOLDER / "assignments"  # problems of problem sets
GOAL = "counters: "  # before a counter's name: the points of one goal
BEGIN, END = "// BEGIN SOLUTION", "// END SOLUTION"
YOUR_CODE = "# // YOUR CODE HERE"  # a comment in Python, an empty directive in CUDA C
_HEAD = {"title": str, "lesson": str, "kernel": str, "lines": int}
# Optional in the head: for the proof, and of a problem.
_MORE = {"without": dict, "points": dict, "needed": str, "bonus": int}
KERNEL = ("c++", "python")  # fences of a kernel: CUDA C, or a Triton kernel in Python
_ONCE = ("Statement", "Specification", "Hints", "Solution")
_OPTIONAL = ("Stub", "NumPy", "Equivalent mutants")
LEVELS = ("what must hold", "the idea", "a line of code")  # of the hints
_FOLD = "<details><summary>Hint {}: {}</summary>\n\n{}\n\n</details>"
_HINT = re.compile(r"^(\d+)\. (.*?)(?=^\d+\. |\Z)", re.MULTILINE | re.DOTALL)
_LEADING = re.compile(r"Rejected for: (.+)(?:\nEarns: (\d+)$)?(?:\nKind: (.+)$)?", re.MULTILINE)
_FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class ExerciseError(UserError, ValueError):
    """An exercise that does not exist or whose file is wrong; names the file and the section."""


@dataclass(frozen=True)
class Solution:
    """A kernel file that must pass, or, with `rejected_for`, fail for this property.

    earns: of a problem with points, exactly so many; None: less than all. kind: or "".
    """

    name: str
    text: str
    rejected_for: str = ""
    earns: int | None = None
    kind: str = ""


@dataclass(frozen=True)
class Exercise:
    """An exercise.

    Attributes:
        name: of the file, without its suffix; what the cell magic and `check` take.
        title, lesson, kernel: the heading, the notebook's name, the entry point to write.
        lines: the budget that the learner is told; `minutes` follows from it and the texts.
        statement, hints: Markdown; the hints in the order of LEVELS.
        stub: what the learner starts from. solution: the reference.
        specification: Python text; see setups.
        correct, wrong: other solutions, for the proof.
        without: kind of wrong solutions -> why no kernel can be wrong in this way.
        equivalent: the section Equivalent mutants, for the authors' `mutants`.
        numpy: Python text that computes the expected result; run before the specification.
        points: property, or GOAL and a counter -> points. Empty where nothing is graded.
        needed: a property without which nothing is earned, or "".
        bonus: points for a fast kernel on a GPU.
    """

    name: str
    title: str
    lesson: str
    kernel: str
    lines: int
    statement: str
    stub: str
    specification: str
    hints: tuple[str, ...]
    solution: str
    correct: tuple[Solution, ...]
    wrong: tuple[Solution, ...]
    without: Mapping[str, str] = field(default_factory=dict)
    equivalent: str = ""
    numpy: str = ""
    points: Mapping[str, int] = field(default_factory=dict)
    needed: str = ""
    bonus: int = 0

    @cached_property
    def _names(self) -> dict[str, object]:
        names = dict(VOCABULARY)
        with self._explaining():
            exec(compile(self._program, f"<specification of {self.name}>", "exec"), names)
        return names

    @property
    def _program(self) -> str:
        return f"{self.numpy}\n{self.specification}"

    def _setups(self, sizes: list[dict]) -> tuple[Setup, ...]:
        with self._explaining():
            return tuple(replace(self._names["setup"](**one), sizes=dict(one)) for one in sizes)

    @contextmanager
    def _explaining(self):
        """Make an error of the specification one that names it and its line."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            steps = traceback.extract_tb(error.__traceback__)
            lines = [one.lineno for one in steps if one.filename.startswith("<specification of ")]
            text = self._program.splitlines()[lines[-1] - 1].strip() if lines else "setup"
            what = f"{type(error).__name__}: {error}"
            raise ExerciseError(f"{self.name}: its specification: {what}, at `{text}`") from error

    @property
    def language(self) -> str:
        """ "triton" or "cuda", the cell magic of its kernels."""
        return "triton" if "@triton.jit" in self.solution else "cuda"

    @property
    def minutes(self) -> int:
        """The time that a learner needs, by the rule of `lessons.study_minutes`."""
        return exercise_minutes(self.statement, self.stub, self.lines)

    @property
    def folded_hints(self) -> str:
        """The hints as Markdown for a notebook, each in a fold of its own."""
        levels = enumerate(zip(LEVELS, self.hints, strict=True), 1)
        return "\n\n".join(_FOLD.format(number, *level) for number, level in levels)

    @cached_property
    def setups(self) -> tuple[Setup, ...]:
        """The launches of the specification, smallest first; a range is its least size.

        Raises:
            ExerciseError: a range in the last case, by which golf compares kernels.
        """
        if any(isinstance(one, range) for one in self._names["SIZES"][-1].values()):
            raise ExerciseError(f"{self.name}: a range in the last case, which golf compares")
        return self._setups([_chosen(one, min) for one in self._names["SIZES"]])

    def setups_for(self, source: str) -> Iterator[Setup]:
        """Yield the launches that judge a kernel's text, which decides of the ranges."""
        choose = random.Random(source).choice
        for sizes, setup in zip(self._names["SIZES"], self.setups, strict=True):
            drawn = _chosen(sizes, choose)
            yield setup if drawn == setup.sizes else self._setups([drawn])[0]

    @cached_property
    def hidden_setups(self) -> tuple[Setup, ...]:
        """Further launches, which count for points and which `check` does not run."""
        return self._setups(self._names.get("HIDDEN", []))

    @cached_property
    def bonus_setup(self) -> Setup | None:
        """The launch that the bonus times on a GPU."""
        sizes = self._names.get("BONUS")
        return self._setups([sizes])[0] if sizes else None

    def is_stub(self, source: str) -> bool:
        """Whether a kernel's text is still the stub; comments and blanks do not count."""
        return _code_of(source) == _code_of(self.stub)


def _chosen(sizes: Mapping[str, object], choose: Callable[[range], int]) -> dict[str, object]:
    return {name: choose(one) if isinstance(one, range) else one for name, one in sizes.items()}


def exercise_names() -> list[str]:
    """Return the names of all exercises, in the order of the lessons and of the file names."""
    return [name for _, name in sorted((read_exercise(name).lesson, name) for name in _names())]


def read_exercise(name: str) -> Exercise:
    """Read an exercise. Raises ExerciseError where there is none or its file is wrong."""
    if not isinstance(name, str):
        raise ExerciseError('write the name in quotes, as in check("add_ten")')
    for folder in (FOLDER, ASSIGNMENTS) if re.fullmatch(r"\w+", name) else ():
        path = folder / f"{name}.md"
        if path.is_file():
            return parse_exercise(name, path.read_text(encoding="utf-8"))
    known = [*sorted(_names()), *problem_names()]
    near = did_you_mean(name, known)
    raise ExerciseError(f"there is no exercise {name!r}{near}; they are: {', '.join(known)}")


def problem_names() -> list[str]:
    """Return the names of the problems of all problem sets, in the order of the sets."""
    return sorted(path.stem for path in ASSIGNMENTS.glob("*.md"))


def _names() -> list[str]:
    return [path.stem for path in FOLDER.glob("*.md")]


@lru_cache(maxsize=128)
def parse_exercise(name: str, text: str) -> Exercise:
    """Return the exercise that a Markdown text describes. Raises ExerciseError."""
    parts = re.split(r"^\+\+\+$\n?", text, maxsplit=2, flags=re.MULTILINE)
    if len(parts) != 3 or parts[0].strip():
        raise ExerciseError(f"{name}: the file begins with a head in TOML between two lines +++")
    head = _head(name, parts[1])
    sections = dict(_sections(name, parts[2]))
    if missing := [title for title in _ONCE if title not in sections]:
        raise ExerciseError(f"{name}: no section {' or '.join(missing)}")
    solution = _fenced(name, "Solution", sections["Solution"], *KERNEL)
    if BEGIN not in solution and "Stub" not in sections:
        raise ExerciseError(f"{name}: no section Stub, and no {BEGIN} in the solution")
    others: dict[str, list[Solution]] = {"Correct": [], "Wrong": []}
    for title, body in sections.items():
        kind, _, called = title.partition(": ")
        if kind in others:
            others[kind].append(_other(name, kind, called, body, solution))
        elif title not in (*_ONCE, *_OPTIONAL):
            raise ExerciseError(f"{name}: unknown section {title!r}")
    return Exercise(
        name=name,
        **head,
        statement=sections["Statement"],
        stub=_fenced(name, "Stub", sections["Stub"], *KERNEL)
        if "Stub" in sections
        else without_solution(solution),
        specification=_fenced(name, "Specification", sections["Specification"], "python"),
        hints=_hints(name, sections["Hints"]),
        solution=solution,
        correct=tuple(others["Correct"]),
        wrong=tuple(others["Wrong"]),
        equivalent=sections.get("Equivalent mutants", ""),
        numpy=_fenced(name, "NumPy", sections["NumPy"], "python") if "NumPy" in sections else "",
    )


def without_solution(text: str) -> str:
    """Return a text with YOUR_CODE in place of each region between BEGIN and END."""
    region = rf"^([ ]*){re.escape(BEGIN)}.*?{re.escape(END)}[^\n]*$"
    return re.sub(region, rf"\1{YOUR_CODE}", text, flags=re.MULTILINE | re.DOTALL)


def _head(name: str, text: str) -> dict:
    try:
        head = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ExerciseError(f"{name}: the head is not TOML: {error}") from None
    known = _HEAD | {key: kind for key, kind in _MORE.items() if key in head}
    wrong = [key for key, kind in known.items() if not isinstance(head.get(key), kind)]
    if wrong or set(head) - set(known):
        fields = ", ".join(f"{key} ({kind.__name__})" for key, kind in _HEAD.items())
        found = ", ".join(wrong or sorted(set(head) - set(known)))
        raise ExerciseError(f"{name}: the head has {fields}; wrong or missing: {found}")
    for key, points in head.get("points", {}).items():
        goal = key.startswith(GOAL) and key.removeprefix(GOAL) in goal_names()
        if not (goal or key in PROPERTIES) or not isinstance(points, int) or points < 1:
            raise ExerciseError(
                f"{name}: points are whole numbers for a property or for `{GOAL}COUNTER`, "
                f"not {key!r} = {points!r}"
            )
    if head.get("needed", "") not in ("", *head.get("points", {})):
        raise ExerciseError(f"{name}: needed is {head['needed']!r}, which has no points")
    return head


def _sections(name: str, text: str) -> Iterator[tuple[str, str]]:
    """Yield title and body of each section; a line of a fence starts none."""
    title, body, fenced, seen = "", [], False, set()
    for line in [*text.splitlines(), "## "]:
        fenced ^= line.startswith("```")
        if line.startswith("## ") and not fenced:
            if title in seen:
                raise ExerciseError(f"{name}: two sections {title!r}")
            if title:
                yield title, "\n".join(body).strip()
            elif "".join(body).strip():
                raise ExerciseError(f"{name}: text before the first section")
            seen.add(title)
            title, body = line[3:].strip(), []
        else:
            body.append(line)
    if fenced:
        raise ExerciseError(f"{name}: section {title!r}: a fence without an end")


def _fenced(name: str, title: str, body: str, *languages: str) -> str:
    fences = [text for kind, text in _FENCE.findall(body) if kind in languages]
    if len(fences) != 1:
        raise ExerciseError(
            f"{name}: section {title!r} holds {len(fences)} fences ```{languages[0]}, not one"
        )
    return fences[0]


def _hints(name: str, body: str) -> tuple[str, ...]:
    found = _HINT.findall(body)
    if [int(number) for number, _ in found] != [1, 2, 3] or not body.startswith("1. "):
        levels = ", ".join(LEVELS)
        raise ExerciseError(f"{name}: section 'Hints' is a list from 1. to 3.: {levels}")
    return tuple(re.sub(r"\n {3}", "\n", text.strip()) for _, text in found)


def _other(name: str, section: str, called: str, body: str, solution: str) -> Solution:
    title = f"{section}: {called}"
    about = _about(name, title, body) if section == "Wrong" else {}
    if "```diff" not in body:
        return Solution(called, _fenced(name, title, body, *KERNEL), **about)
    try:
        text = edited(solution, edits_of(_fenced(name, title, body, "diff")), f"{name}: {title}")
    except EditError as error:
        raise ExerciseError(str(error)) from None
    return Solution(called, text, **about)


def _about(name: str, title: str, body: str) -> dict:
    """Return what the first lines say of a wrong solution."""
    found = _LEADING.match(body)
    if not found or found[1].strip() not in PROPERTIES:
        known = ", ".join(PROPERTIES)
        raise ExerciseError(
            f"{name}: section {title!r} begins with `Rejected for: PROPERTY`, one of: {known}"
        )
    earns = int(found[2]) if found[2] else None
    return {"rejected_for": found[1].strip(), "earns": earns, "kind": (found[3] or "").strip()}


def _code_of(source: str) -> str:
    """CUDA C without comments, blanks and empty directives."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source, flags=re.DOTALL)
    text = re.sub(r"^[ \t]*#[ \t]*$", "", text, flags=re.MULTILINE)
    return "".join(text.split())
