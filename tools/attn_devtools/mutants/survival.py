"""The mutants of an exercise's solution, examined: which are rejected, and which pass."""

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing import get_context

from kernelscope import CompileError
from kernelscope.errors import CompilerFailedError, KernelNotFoundError, ParseError
from kernelscope.triton import TextKernel

from attn_course.exercises.examination import compiled, examine
from attn_course.exercises.exercise import Exercise, ExerciseError

from .rules import Mutant, mutants_of
from .share import chosen

_EQUIVALENT = re.compile(r"- (\d+: `.*?` -> `.*?`(?: \(\d+\))?): (.+)", re.DOTALL)


@dataclass(frozen=True)
class Survival:
    """The outcome of the mutants of an exercise's solution.

    Attributes:
        killed: mutants that are rejected. of: these, and those in `survivors`.
        survivors: mutants that pass and that the file does not list as equivalent.
        equivalent: how many pass that the file lists, or of which the compiler makes the same code.
        refuted: changes that the file lists as equivalent and that do not pass.
    """

    exercise: str
    killed: int = 0
    survivors: tuple[str, ...] = ()
    equivalent: int = 0
    refuted: tuple[str, ...] = ()
    of: int = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "of", self.killed + len(self.survivors))

    @property
    def holds(self) -> bool:
        return not self.survivors and not self.refuted


def survival(exercise: Exercise, jobs: int = 1, one_in: int = 1) -> Survival:
    """Examine the mutants of an exercise's solution, in so many processes.

    one_in: examine one of so many; which ones follows from the words of a change alone. One that
    does not compile is none.
    """
    mutants = [one for one in mutants_of(exercise.solution) if chosen(one.change, one_in)]
    fates = dict(zip((one.change for one in mutants), _fates(exercise, mutants, jobs), strict=True))
    passed = [change for change, fate in fates.items() if fate == "passes"]
    reasons = equivalent_mutants(exercise)
    listed = [change for change in passed if change in reasons]
    same = sum(fate == "same code" for fate in fates.values())
    return Survival(
        exercise.name,
        killed=sum(fate == "killed" for fate in fates.values()),
        survivors=tuple(change for change in passed if change not in reasons),
        equivalent=len(listed) + same,
        refuted=tuple(one for one in reasons if chosen(one, one_in) and one not in listed),
    )


def equivalent_mutants(exercise: Exercise) -> dict[str, str]:
    """Return change -> why its mutant computes the same, as the exercise's file lists them.

    Raises:
        ExerciseError: an item of the list is not of this form.
    """
    found = {}
    for item in filter(None, re.split(r"^(?=- )", exercise.equivalent, flags=re.MULTILINE)):
        parts = _EQUIVALENT.fullmatch(item.strip())
        if not parts:
            raise ExerciseError(
                f"{exercise.name}: an equivalent mutant is `- CHANGE: why it computes the same`, "
                "with the change as attn-course mutants prints it, not " + repr(item.strip())
            )
        found[parts[1]] = " ".join(parts[2].split())
    return found


def _fates(exercise: Exercise, mutants: list[Mutant], jobs: int) -> Iterable[str]:
    code = _code(compiled(exercise, exercise.solution))
    texts = [one.text for one in mutants]
    plain = replace(exercise)  # without what has been worked out of it, which cannot be sent
    if jobs == 1:
        return list(map(partial(_fate, plain, code), texts))
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        shares = [pool.submit(_share, plain, code, texts[at::jobs]) for at in range(jobs)]
        turns: list[Iterator[str]] = [iter(one.result()) for one in shares]
    return [next(turns[at % jobs]) for at in range(len(texts))]


def _share(exercise: Exercise, code: str | None, texts: list[str]) -> list[str]:
    return [_fate(exercise, code, text) for text in texts]


def _code(kernel) -> str | None:
    """The optimised PTX; None of a Triton kernel, which is compiled for its arguments alone."""
    return None if isinstance(kernel, TextKernel) else kernel.module.ptx()


def _fate(exercise: Exercise, code: str | None, text: str) -> str:
    """Return "no kernel", "same code", "killed" or "passes" for a mutant.

    code: the optimised PTX of the solution, where there is one. The debug build and the sanitizer
    come last: the result or a counter tells on most mutants before.
    """
    try:
        kernel = compiled(exercise, text)
    except CompilerFailedError:
        raise
    except (CompileError, KernelNotFoundError, ParseError):
        return "no kernel"
    same = (
        code is not None and _code(kernel) == code
    )  # of the debug build only the sanitizer can tell
    setups = (*exercise.setups, *exercise.hidden_setups)
    for sanitized in (True,) if same else (False, True):
        if any(examine(kernel, setup, sanitized=sanitized)[0] for setup in setups):
            return "killed"
    return "same code" if same else "passes"
