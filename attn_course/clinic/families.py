"""How the clinic's clean kernels are launched, and what they compute in float64."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from attn_course import reference
from attn_course.ladder.steps import FUSED, LADDER, Geometry, Problem, Step, ceil_div
from attn_course.ladder.verify import FORMULAS, Arrays, Formula

from .notes import BROKEN_FOLDER, ClinicError, clean_twin


# -- formulas --------------------------------------------------------------------------------------
def _normed(b: Arrays, *_) -> np.ndarray:
    return reference.layer_norm(b["x"], b["gamma"], b["beta"])


PRODUCT, SUMS, NORM = "out = p v", "out += p v", "y = layer_norm(x)"
CLINIC_FORMULAS = FORMULAS | {
    SUMS: replace(FORMULAS[PRODUCT], adds=True),
    NORM: Formula(("x", "gamma", "beta"), {"y": _normed}),
}


# -- launches --------------------------------------------------------------------------------------
def _block_a_row(shared: Callable[[Problem, Mapping[str, int]], int] = lambda p, c: 0):
    """A block for each query row; `shared` gives its dynamic shared memory in bytes."""

    def geometry(entry: str, p: Problem, c: Mapping[str, int]) -> Geometry:
        return Geometry(entry, (p.n, p.bh, 1), (c["THREADS"], 1, 1), shared(p, c))

    return geometry


def _thread_a_row(entry: str, p: Problem, c: Mapping[str, int]) -> Geometry:
    return Geometry(entry, (ceil_div(p.n, c["THREADS"]), p.bh, 1), (c["THREADS"], 1, 1))


def _scores_of_a_row(problem: Problem, constants: Mapping[str, int]) -> int:
    """Bytes of m scores, rounded up to 16: ptxas may read the last four of them at once."""
    return 16 * ceil_div(problem.m, 4)


def _two_tiles_of_v(problem: Problem, constants: Mapping[str, int]) -> int:
    """Bytes of two buffers of KEYS rows of v."""
    return 2 * 4 * constants["KEYS"] * problem.d


def _blocks_of_keys(entry: str, p: Problem, c: Mapping[str, int]) -> Geometry:
    return Geometry(entry, (ceil_div(p.m, c["KEYS"]), p.n, p.bh), (c["THREADS"], 1, 1))


def _block_a_tile(entry: str, p: Problem, c: Mapping[str, int]) -> Geometry:
    return Geometry(entry, (ceil_div(p.n, 64), p.bh, 1), (160, 1, 1))


def _warps_a_row(entry: str, p: Problem, c: Mapping[str, int]) -> Geometry:
    return Geometry(entry, (p.bh * p.n, 1, 1), (32, c["WARPS"], 1))


# -- kernels ---------------------------------------------------------------------------------------
def _clean(entry: str, computes: str, arguments: str, geometry, writes="out", **more) -> Step:
    """A file of kernels/broken/clean, in no place of the course; more: further fields of Step."""
    names = tuple(arguments.split())
    return Step(0, f"broken/clean/{entry}", entry, computes, names, (writes,), geometry, **more)


_HOPPER = {"flags": ("-arch=sm_90a",)}
_SCALED, _PV = "q k v out n m d scale", "p v out n m d"
_CLEAN = (
    _clean("rows_online", FUSED, f"{_SCALED} causal", _block_a_row()),
    _clean("rows_atomic", FUSED, _SCALED, _block_a_row(_scores_of_a_row)),
    _clean("rows_buffered", PRODUCT, _PV, _block_a_row(_two_tiles_of_v)),
    _clean("rows_copied", PRODUCT, _PV, _block_a_row(_two_tiles_of_v)),
    _clean("rows_bulk", PRODUCT, _PV, _block_a_row(_two_tiles_of_v), **_HOPPER),
    _clean(
        "scores_wgmma",
        "s = q k^T",
        "q k s n m d",
        _block_a_tile,
        "s",
        dtypes=("float16",),
        maps={"q": 64, "k": 64},
        **_HOPPER,
    ),
    _clean("output_register_tile", PRODUCT, _PV, _block_a_row()),
    _clean("output_register_array", PRODUCT, _PV, _thread_a_row),
    _clean("output_split", SUMS, _PV, _blocks_of_keys),
    _clean("layernorm", NORM, "x gamma beta y rows d", _warps_a_row, "y"),
)


def clean_step(path: Path, text: str | None = None) -> Step:
    """Return the step by which a kernel file is launched: of the ladder, a clean twin, or its own.

    path: one of these files, or one whose notes name it.  text: the file's text, where it is not
    the one on disk. The step's `computes` is a key of CLINIC_FORMULAS.

    Raises:
        ClinicError: a file that is none of these.
    """
    text = path.read_text(encoding="utf-8") if text is None else text
    if clean := clean_twin(path, text):
        return clean_step(clean)
    rows = (*LADDER, *(_CLEAN if path.parent == BROKEN_FOLDER / "clean" else ()))
    for step in rows:
        if step.path == path and step.computes in CLINIC_FORMULAS:
            return step
    raise ClinicError(
        f"{path.name}: how to launch this file is not known; give a kernel of the ladder or of "
        "kernels/broken, or one with the '// Clean: ...' notes of those"
    )
