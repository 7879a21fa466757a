"""The vocabulary of an exercise's specification: inputs, outputs, goals and launches.

A specification is Python text with two names: `SIZES`, a list of dicts, the smallest case first,
and `setup(**sizes)`, which returns a `Setup`. It is run with the names of `VOCABULARY`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from kernelscope.watch import NAMES as COUNTERS

from attn_course import reference
from attn_course.reference.comparison import poisoned

SHARED_BYTES = "shared_bytes"  # of a block, static and dynamic: a goal beside the counters


@dataclass(frozen=True)
class Goal:
    """A bound on a counter of one launch: `counter` is at most `limit`, because of `why`."""

    counter: str
    limit: int
    why: str


def goal_names() -> tuple[str, ...]:
    """Return what a goal may bound: the counters, and SHARED_BYTES."""
    return (*COUNTERS, SHARED_BYTES)


def at_most(counter: str, limit: int, why: str) -> Goal:
    """Return a goal. Raises ValueError for a counter that does not exist."""
    if counter not in goal_names():
        raise ValueError(f"no counter {counter!r}; the counters are: {', '.join(goal_names())}")
    return Goal(counter, int(limit), why)


@dataclass(frozen=True)
class Setup:
    """One launch of the learner's kernel and what it must give.

    Attributes:
        grid, block: of the launch, ints or tuples.
        arguments: name -> NumPy array or NumPy scalar, in the order of the kernel's parameters.
            An array that is not in `expected` must be unchanged after the launch.
        expected: name -> float64 array that the output of this name must agree with. An output
            that the kernel adds to is given as zeros, any other as `output`.
        shared_bytes: dynamic shared memory of the launch.
        relative: the relative error allowed; see reference.compare. absolute: the error allowed
            where the reference is 0.
        goals: bounds on the launch's counters.
        sizes: what the specification's `setup` was called with.
    """

    grid: object
    block: object
    arguments: Mapping[str, object]
    expected: Mapping[str, np.ndarray]
    shared_bytes: int = 0
    relative: float = 1e-5
    absolute: float = 0.0
    goals: tuple[Goal, ...] = ()
    sizes: Mapping[str, object] | None = None

    def __post_init__(self):
        for name in ("grid", "block"):
            extents = getattr(self, name)
            extents = (extents,) if isinstance(extents, int) else tuple(extents)
            object.__setattr__(self, name, extents)

    @property
    def label(self) -> str:
        """ "n = 1000, rows = 3"."""
        return ", ".join(f"{name} = {value}" for name, value in (self.sizes or {}).items())

    @property
    def unwritten(self) -> tuple[str, ...]:
        """Outputs that hold nothing before the launch: those made by `output`."""
        return tuple(name for name in self.expected if _is_poisoned(self.arguments[name]))

    def fresh(self) -> dict[str, object]:
        """Return the arguments with copies of the arrays, for one launch."""
        return {
            name: value.copy() if isinstance(value, np.ndarray) else value
            for name, value in self.arguments.items()
        }


def _is_poisoned(array: np.ndarray) -> bool:
    return np.array_equal(array, poisoned(array.shape, array.dtype), equal_nan=True)


def normal(
    *shape: int, seed: int = 0, scale: float = 1.0, shift: float = 0.3, dtype=np.float32
) -> np.ndarray:
    """Return seeded Gaussian numbers of this shape: no two rows or arrays agree."""
    return (shift + scale * np.random.default_rng(seed).standard_normal(shape)).astype(dtype)


def output(*shape: int, dtype=np.float32) -> np.ndarray:
    """Return a poisoned array: an element that the kernel leaves out is found."""
    return poisoned(shape, dtype)


def ceil_div(a: int, b: int) -> int:
    """Return a / b rounded up: blocks of b threads that cover a elements."""
    return -(-a // b)


VOCABULARY = {
    "np": np,
    "reference": reference,
    "Setup": Setup,
    "at_most": at_most,
    "ceil_div": ceil_div,
    "normal": normal,
    "output": output,
    "int32": np.int32,
    "float16": np.float16,
    "float32": np.float32,
}
