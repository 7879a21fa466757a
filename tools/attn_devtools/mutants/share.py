"""A share of the solutions and mutants that prove an exercise, for tests that must be quick."""

from dataclasses import replace
from zlib import crc32

from attn_course.exercises.exercise import Exercise

from ..shares import WHOLE

MUTANTS_ONE_IN = 1 if WHOLE else 48


def _place(name: str) -> int:
    return crc32(name.encode())


def chosen(name: str, one_in: int) -> bool:
    """Whether a mutant is of the share; this follows from its name alone."""
    return _place(name) % one_in == 0


def part_of(exercise: Exercise) -> Exercise:
    """Return an exercise with one wrong solution, always the same, beside the reference."""
    if WHOLE:
        return exercise
    return replace(
        exercise, wrong=(min(exercise.wrong, key=lambda one: _place(one.name)),), correct=()
    )
