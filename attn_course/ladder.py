"""The ladder: one row a step, from a thread a score upwards.

A row says which file and entry point a step is, how it is launched and which buffers it reads
and writes. What a step is about stands in its file's header and is read from there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from .source import Header, kernel_path, read_constants, read_header

MAX_GRID_X = 2**31 - 1
MAX_GRID_YZ = 65535
LONG_ROW = 1024  # from this many keys on, a block shares a row of the softmax, not a warp


@dataclass(frozen=True)
class Problem:
    """Extents of one attention call: bh heads over the batch, n queries, m keys, head dim d."""

    bh: int
    n: int
    m: int
    d: int

    def shape(self, buffer: str) -> tuple[int, int, int]:
        """Shape of a buffer by its name in the kernels: q, k, v, s, p or out."""
        extents = {"q": (self.n, self.d), "k": (self.m, self.d), "v": (self.m, self.d)}
        extents |= {"s": (self.n, self.m), "p": (self.n, self.m), "out": (self.n, self.d)}
        return (self.bh, *extents[buffer])


@dataclass(frozen=True)
class Launch:
    """Geometry of one launch; dynamic shared memory in bytes."""

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int = 0

    def __post_init__(self):
        limits = (MAX_GRID_X, MAX_GRID_YZ, MAX_GRID_YZ)
        for axis, extent, limit in zip("xyz", self.grid, limits, strict=True):
            if not 1 <= extent <= limit:
                raise ValueError(
                    f"{self.entry}: grid {axis} would be {extent}, a GPU takes 1 to {limit}; "
                    "use a larger TILE or split the batch"
                )


Geometry = Callable[[str, Problem, Mapping[str, int]], Launch]


@dataclass(frozen=True)
class Step:
    """One step of the ladder.

    Attributes:
        number: place in the course.
        file: kernel file without folder and ending, ``"02_scores_tiled"``.
        entry: name of the kernel inside the file.
        computes: the formula, for tables.
        arguments: buffers and scalars in the kernel's order; see :class:`Problem`.
        writes: the buffers among them that the kernel writes.
        geometry: (entry, problem, constants) -> Launch.
    """

    number: int
    file: str
    entry: str
    computes: str
    arguments: tuple[str, ...]
    writes: tuple[str, ...]
    geometry: Geometry = field(repr=False)

    @property
    def path(self) -> Path:
        return kernel_path(self.file)

    @cached_property
    def header(self) -> Header:
        return read_header(self.path)

    @property
    def idea(self) -> str:
        return self.header.idea

    @property
    def needs(self) -> str:
        return self.header.needs

    def constants(self, options: Sequence[str] = ()) -> dict[str, int]:
        """The file's ``#ifndef`` constants, as ``-DNAME=value`` compiler options change them."""
        values = read_constants(self.path)
        for option in options:
            name, _, value = option.removeprefix("-D").partition("=")
            if option.startswith("-D") and name in values:
                values[name] = int(value)
        return values

    def launch(self, problem: Problem, options: Sequence[str] = ()) -> Launch:
        """Geometry for a problem. ValueError names an extent that no grid can hold."""
        return self.geometry(self.entry, problem, self.constants(options))


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _tiles_of_scores(entry, problem, constants):
    tile = constants["TILE"]
    grid = (ceil_div(problem.m, tile), ceil_div(problem.n, tile), problem.bh)
    return Launch(entry, grid, (tile, tile, 1))


def _blocks_of_scores(entry, problem, constants):
    tile, side = constants["TILE"], 4 * constants["TILE"]
    grid = (ceil_div(problem.m, side), ceil_div(problem.n, side), problem.bh)
    return Launch(entry, grid, (tile, tile, 1))


def _tiles_of_output(entry, problem, constants):
    tile = constants["TILE"]
    grid = (ceil_div(problem.d, tile), ceil_div(problem.n, tile), problem.bh)
    return Launch(entry, grid, (tile, tile, 1))


def _thread_a_row(entry, problem, constants):
    threads = constants["THREADS"]
    return Launch(entry, (ceil_div(problem.bh * problem.n, threads), 1, 1), (threads, 1, 1))


def _warp_or_block_a_row(entry, problem, constants):
    rows, warps = problem.bh * problem.n, constants["WARPS"]
    if problem.m >= LONG_ROW:
        return Launch("softmax_block", (rows, 1, 1), (32, warps, 1))
    return Launch(entry, (ceil_div(rows, warps), 1, 1), (32, warps, 1))


_SCORES = ("q", "k", "s", "n", "m", "d")

LADDER = (
    Step(1, "01_scores_naive", "scores_naive", "s = q k^T", _SCORES, ("s",), _tiles_of_scores),
    Step(2, "02_scores_tiled", "scores_tiled", "s = q k^T", _SCORES, ("s",), _tiles_of_scores),
    Step(
        3, "03_scores_register_blocked", "scores_register_blocked", "s = q k^T",
        _SCORES, ("s",), _blocks_of_scores,
    ),
    Step(
        4, "04_softmax_output_serial", "softmax_output_serial", "s = softmax(scale s), out = s v",
        ("s", "v", "out", "rows", "n", "m", "d", "scale"), ("s", "out"), _thread_a_row,
    ),
    Step(
        5, "05_softmax_warp", "softmax_warp", "p = softmax(scale s)",
        ("s", "p", "rows", "m", "scale"), ("p",), _warp_or_block_a_row,
    ),
    Step(
        6, "06_output_tiled", "output_tiled", "out = p v",
        ("p", "v", "out", "n", "m", "d"), ("out",), _tiles_of_output,
    ),
)  # fmt: skip


def step(which: int | str) -> Step:
    """A step by number, file name or entry point; KeyError lists the ladder."""
    for row in LADDER:
        if which in (row.number, row.file, row.entry):
            return row
    raise KeyError(f"no step {which!r}; the ladder has {[row.file for row in LADDER]}")
