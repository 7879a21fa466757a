"""How the clinic's clean kernels are launched, and what they compute in float64."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from attn_course import reference
from attn_course.ladder.steps import FUSED, LADDER, Geometry, Problem, Step, Tuning, ceil_div
from attn_course.ladder.verify import ORACLES

from .notes import BROKEN_FOLDER, ClinicError, clean_twin

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Family:
    """A clean kernel: its arguments in order, what it reads and writes, its launch, its oracle.

    `expected` takes the arrays read, the scale and whether a causal mask is on, and gives the
    arrays written in float64. `adds`: the arrays written are added to, and start as zeros.
    `tune`: how a step's constants follow from the problem; those of the simulator's device are
    taken everywhere, so that both sides of a comparison run the same launch. `dtype`: of q, k, v
    and out.
    """

    entry: str
    arguments: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    geometry: Callable[[str, Problem, Mapping[str, int]], Geometry] = field(repr=False)
    expected: Callable[[Arrays, float, bool], Arrays] = field(repr=False)
    adds: bool = False
    tune: Tuning | None = field(default=None, repr=False)
    dtype: str = "float32"

    @property
    def uninitialised(self) -> tuple[str, ...]:
        """Arrays that hold nothing before the launch."""
        return () if self.adds else tuple(w for w in self.writes if w not in self.reads)


# -- oracles ---------------------------------------------------------------------------------------
def _attention(b: Arrays, scale: float, causal: bool) -> Arrays:
    q, k, v = b["q"], b["k"], b["v"]  # a head of k and v serves several heads of q in a row:
    k, v = (np.repeat(array, q.shape[0] // k.shape[0], axis=0) for array in (k, v))
    how = {"causal": causal, "scale": scale, "bias": b.get("bias")}
    return {"out": reference.attention(q[None], k[None], v[None], **how)[0]}


def _weighted(b: Arrays, scale: float, causal: bool) -> Arrays:
    return {"out": b["p"].astype(np.float64) @ b["v"].astype(np.float64)}


def _normalised(b: Arrays, scale: float, causal: bool) -> Arrays:
    x = b["x"].astype(np.float64)
    centred = x - x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return {"y": centred / deviation * b["gamma"] + b["beta"]}


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


def _warps_a_row(entry: str, p: Problem, c: Mapping[str, int]) -> Geometry:
    return Geometry(entry, (p.bh * p.n, 1, 1), (32, c["WARPS"], 1))


# -- families --------------------------------------------------------------------------------------
_QKV = ("q", "k", "v")
_SCALED = (*_QKV, "out", "n", "m", "d", "scale")
_PV = ("p", "v", "out", "n", "m", "d")
_OF_PV = _PV, ("p", "v"), ("out",)
_OF_QKV = _QKV, ("out",)
_ROW_OF_V = _block_a_row(_two_tiles_of_v)
_NORM = ("x", "gamma", "beta")
_FAMILIES = {
    family.entry: family
    for family in (
        Family("rows_online", (*_SCALED, "causal"), *_OF_QKV, _block_a_row(), _attention),
        Family("rows_atomic", _SCALED, *_OF_QKV, _block_a_row(_scores_of_a_row), _attention),
        Family("rows_buffered", *_OF_PV, _ROW_OF_V, _weighted),
        Family("rows_copied", *_OF_PV, _ROW_OF_V, _weighted),
        Family("output_register_tile", *_OF_PV, _block_a_row(), _weighted),
        Family("output_register_array", *_OF_PV, _thread_a_row, _weighted),
        Family("output_split", *_OF_PV, _blocks_of_keys, _weighted, adds=True),
        Family("layernorm", (*_NORM, "y", "rows", "d"), _NORM, ("y",), _warps_a_row, _normalised),
    )
}


def family(path: Path, text: str | None = None) -> Family:
    """How a kernel file is run: a step of the ladder, a clean twin, or one with notes.

    text: the file's text, where it is not the one on disk.
    Raises:
        ClinicError: a file that is none of these.
    """
    text = path.read_text(encoding="utf-8") if text is None else text
    if clean := clean_twin(path, text):
        return family(clean)
    if path.parent == BROKEN_FOLDER / "clean" and path.stem in _FAMILIES:
        return _FAMILIES[path.stem]
    for step in LADDER:
        if step.path == path and step.computes in ORACLES:
            return _family_of_step(step)
    raise ClinicError(
        f"{path.name}: how to launch this file is not known; give a kernel of the ladder or of "
        "kernels/broken, or one with the '// Clean: ...' notes of those"
    )


def _family_of_step(step: Step) -> Family:
    oracle = ORACLES[step.computes]
    expected = (
        _attention
        if step.computes == FUSED
        else (lambda b, scale, causal: oracle.compute(b, scale))
    )
    return Family(
        step.entry,
        step.arguments,
        oracle.reads,
        step.writes,
        step.geometry,
        expected,
        tune=step.tune,
        dtype=step.dtypes[0],
    )
