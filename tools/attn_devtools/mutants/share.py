"""A share of the solutions and mutants that prove an exercise, for tests that must be quick."""

import os
from dataclasses import replace
from zlib import crc32

from attn_course.exercises.exercise import Exercise

WHOLE = os.environ.get("PROOF") == "whole"  # as `make proof` sets it
SOLUTIONS_ONE_IN = 1 if WHOLE else 16
MUTANTS_ONE_IN = 1 if WHOLE else 48


def chosen(name: str, one_in: int) -> bool:
    """Whether a solution or a mutant is of the share; this follows from its name alone."""
    return crc32(name.encode()) % one_in == 0


def part_of(exercise: Exercise) -> Exercise:
    """Return an exercise with its share of solutions, one wrong at least beside the reference."""
    wrong, correct = (
        tuple(one for one in kind if chosen(one.name, SOLUTIONS_ONE_IN))
        for kind in (exercise.wrong, exercise.correct)
    )
    return replace(exercise, wrong=wrong or exercise.wrong[:1], correct=correct)
