"""The vocabulary of an exercise's specification: inputs, outputs, goals and launches.

A specification is Python text with two names: `SIZES`, a list of dicts, the smallest case first,
and `setup(**sizes)`, which returns a `Setup`. It is run with the names of `VOCABULARY`. A size
may be a range, of which a kernel's text decides: none can be made for the sizes that it has seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from kernelscope.errors import InputError
from kernelscope.watch import NAMES as COUNTERS

from attn_course import reference
from attn_course.ladder.problem import ceil_div
from attn_course.reference.comparison import poisoned

SHARED_BYTES = "shared_bytes"  # of a block, static and dynamic: a goal beside the counters
# Float32 products of the first warp while an asynchronous copy is under way: a goal too.
PRODUCTS_UNDER_COPIES = "products_under_copies"
# Counter of a goal -> those of the atomics, which read and write, and bulk copies that do the same.
TRAFFIC = {
    f"{space}_{kind}_{what}": (f"{space}_atomic_{what}",)
    for space, counted in (
        ("global", ("requests", "sectors")),
        ("shared", ("requests", "wavefronts", "conflicts")),
    )
    for kind in ("load", "store")
    for what in counted
}
for _name, _bulk in (
    ("load_requests", "copy_requests"),
    ("load_sectors", "load_sectors"),
    ("store_sectors", "store_sectors"),
):
    TRAFFIC[f"global_{_name}"] += (f"bulk_{_bulk}",)


@dataclass(frozen=True)
class Goal:
    """Bounds on a counter of one launch, because of `why`: `least` and `most`; None is no bound.

    Atomics and bulk copies count against a goal and never for it: those of TRAFFIC are added for
    `most`, and are left out for `least`.
    """

    counter: str
    why: str
    least: int | None = None
    most: int | None = None

    def __post_init__(self):
        if self.counter not in goal_names():
            known = ", ".join(goal_names())
            raise InputError(f"no counter {self.counter!r}; the counters are: {known}")

    @property
    def bound(self) -> str:
        """ "<= 1,024", ">= 8" or "= 64"."""
        if self.least == self.most:
            return f"= {self.most:,}"
        parts = [f">= {self.least:,}"] if self.least is not None else []
        return ", ".join(parts + ([f"<= {self.most:,}"] if self.most is not None else []))

    @property
    def counters(self) -> tuple[str, ...]:
        """The counter and those of other traffic of its kind, where there are some."""
        return (self.counter, *TRAFFIC.get(self.counter, ()))

    def counted(self, totals: Mapping[str, int]) -> int:
        """Return the count that `most` bounds, other traffic included."""
        return sum(totals[name] for name in self.counters)

    def too_few(self, totals: Mapping[str, int]) -> bool:
        return self.least is not None and totals[self.counter] < self.least

    def too_many(self, totals: Mapping[str, int]) -> bool:
        return self.most is not None and self.counted(totals) > self.most

    def missed(self, totals: Mapping[str, int]) -> str:
        """Return how the goal is missed, a sentence for a learner, or "" where it is reached."""
        own, found = totals[self.counter], self.counted(totals)
        others = f"{found - own:,}" if found > own else ""
        bulk = any(totals[name] for name in self.counters[2:])
        way = "atomics and bulk copies" if bulk else "atomics"
        if self.too_few(totals):
            count = f"{own:,} beside {others} by {way}" if others else f"{own:,}"
            bound = f"at least {self.least:,}"
        elif self.too_many(totals):
            count = f"{found:,}, {others} of them by {way}" if others else f"{found:,}"
            bound = f"at most {self.most:,}"
        else:
            return ""
        if self.least == self.most:
            bound = f"exactly {self.most:,}"
        return f"{self.counter} is {count}; the goal is {bound}: {self.why}"


def goal_names() -> tuple[str, ...]:
    """Return what a goal may bound: the counters, SHARED_BYTES and PRODUCTS_UNDER_COPIES."""
    return (*COUNTERS, SHARED_BYTES, PRODUCTS_UNDER_COPIES)


def at_most(counter: str, limit: int, why: str) -> Goal:
    """Return a goal. Raises ValueError for a counter that does not exist."""
    return Goal(counter, why, most=int(limit))


def at_least(counter: str, limit: int, why: str) -> Goal:
    """Return a goal. Raises ValueError for a counter that does not exist."""
    return Goal(counter, why, least=int(limit))


def exactly(counter: str, count: int, why: str) -> Goal:
    """Return a goal. Raises ValueError for a counter that does not exist."""
    return Goal(counter, why, least=int(count), most=int(count))


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
        goals: bounds on the launch's counters. method: goals that only the method reaches that is
            asked for; see classroom.points.
        sanitized: False leaves the sanitizer to the smaller cases. sizes: of the specification.
    """

    grid: object
    block: object
    arguments: Mapping[str, object]
    expected: Mapping[str, np.ndarray]
    shared_bytes: int = 0
    relative: float = 1e-5
    absolute: float = 0.0
    goals: tuple[Goal, ...] = ()
    method: tuple[Goal, ...] = ()
    sanitized: bool = True
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
    *shape: int, seed=0, scale=1.0, shift=0.3, zeros: bool = True, dtype=np.float32
) -> np.ndarray:
    """Return seeded Gaussian numbers of this shape: no two rows or arrays agree.

    zeros: one in eight is exactly 0, where there are 16 numbers or more.
    """
    draw = np.random.default_rng(seed)
    x = shift + scale * draw.standard_normal(shape)
    x[draw.random(shape) < (1 / 8 if zeros and x.size >= 16 else 0)] = 0
    return x.astype(dtype)


def output(*shape: int, dtype=np.float32) -> np.ndarray:
    """Return a poisoned array: an element that the kernel leaves out is found."""
    return poisoned(shape, dtype)


def tile_stores(*shape: int) -> tuple[int, int]:
    """Return the requests and sectors that store float32 numbers of shape (..., rows, columns).

    Each thread of 16 x 16 blocks stores one number, x along the columns: a warp stores two rows of
    16 columns.
    """
    *planes, row, col = np.indices(shape).reshape(len(shape), -1)
    warps = np.stack([*planes, row // 2, col // 16])
    sectors = np.vstack([warps, np.arange(row.size) // 8])
    return np.unique(warps, axis=1).shape[1], np.unique(sectors, axis=1).shape[1]


VOCABULARY = {
    "np": np,
    "reference": reference,
    "Setup": Setup,
    "at_least": at_least,
    "at_most": at_most,
    "ceil_div": ceil_div,
    "exactly": exactly,
    "normal": normal,
    "output": output,
    "tile_stores": tile_stores,
    "int32": np.int32,
    "float16": np.float16,
    "float32": np.float32,
}
