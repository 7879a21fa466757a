"""Which way of adding explains what tensor cores of a GPU have computed?

    python -m kernelscope.differential --sections matrices --raw matrices.npz     on a GPU
    python -m kernelscope.differential.matrix.fit_accumulation matrices.npz       anywhere, later

For each product of floats it prints the sums that each model of GRID gets wrong, the best models
first, and by family of inputs for the best and for the simulator's own. The section group_products
writes beside it a file of wgmma, matrices_groups.npz, which is read the same way, with GROUP_GRID.
"""

import argparse
import itertools
from dataclasses import fields
from functools import partial
from pathlib import Path

import numpy as np
from kernelscope.differential.matrix.groups import GroupCase, from_registers, value_cases
from kernelscope.differential.matrix.matrices import EACH, families, operands
from kernelscope.isa.matrix import SM_90, Accumulation, multiplication
from kernelscope.isa.matrix.blocks import Tile, add_integers, add_products, tile
from kernelscope.isa.matrix.tensor_core import decode, multiply
from kernelscope.isa.matrix.warpgroup import K_BYTES

GRID = {
    "fraction_bits": (22, 23, 24, 25, 26, 27, 28),
    "group_bytes": (8, 16, 32, 64),
    "rounding": ("rz", "rn"),
    "overflow_to_infinity": (True, False),
    "zeros_align": (False, True),
}
GROUP_GRID = {
    "fraction_bits": (11, 12, 13, 14, 15, 23, 24, 25, 26),
    "group_bytes": (8, 16, 32),
    "result_bits": (12, 13, 14, 23),
}
SHOWN = 4  # models of each opcode


def models(grid: dict) -> list[Accumulation]:
    """Every model of a grid."""
    every = itertools.product(*grid.values())
    return [Accumulation(**dict(zip(grid, values, strict=True))) for values in every]


def computed(opcode: str, model: Accumulation) -> np.ndarray:
    """(warps, 32 * elements) bits of D by a model."""
    form = multiplication(opcode)
    raw = [np.ascontiguousarray(x).view(f"u{x.itemsize}") for x in operands(opcode)]
    with np.errstate(all="ignore"):
        a, b = (decode(x, h.kind, model) for x, h in zip(raw[:2], (form.a, form.b), strict=True))
        return multiply(form, a, b, raw[2], model)


def computed_by_group(case: GroupCase, model: Accumulation) -> np.ndarray:
    """(groups, 64, n) bits of D by a model."""
    form = case.product
    if form.d == "s32":
        a, b, c = case.matrices()
        return add_integers(a, b.swapaxes(1, 2), c.view(np.uint32), form.saturate)
    a, b, total = (np.ascontiguousarray(x).view(f"u{x.itemsize}") for x in case.matrices())
    left, right = tile(a.swapaxes(1, 2), form.a), tile(b.swapaxes(1, 2), form.b)
    step = form.shape[2] * model.group_bytes // K_BYTES
    for first in range(0, form.shape[2], step):
        some = slice(None), slice(first, first + step)
        parts = (Tile(x.value[some], x.exponent[some], x.special) for x in (left, right))
        with np.errstate(all="ignore"):
            total = add_products(*parts, total, form.d, model)
    return total


def wrong_groups(case: GroupCase, found: np.ndarray, model: Accumulation) -> dict[str, int]:
    """Sums of each family of a wgmma that a model does not get, bit for bit."""
    apart = computed_by_group(case, model) != from_registers(
        found, case.product.held_d, case.groups
    )
    counts = apart.reshape(len(case.families), -1).sum(axis=1)
    return dict(zip(case.families, map(int, counts), strict=True))


def wrong_by_family(opcode: str, found: np.ndarray, model: Accumulation) -> dict[str, int]:
    """Sums of each family that a model does not get, bit for bit."""
    mine = computed(opcode, model)
    apart = (mine != found.view(mine.dtype).reshape(mine.shape)).sum(axis=1)
    return {
        name: int(apart[i * EACH : (i + 1) * EACH].sum()) for i, name in enumerate(families(opcode))
    }


def name_of(model: Accumulation) -> str:
    return " ".join(f"{f.name}={getattr(model, f.name)}" for f in fields(model))


def report(path: Path, only: str) -> None:
    """Print the models that explain a file of results best, for opcodes that contain `only`."""
    with np.load(path) as kept:
        results = {name: kept[name] for name in kept.files if only in name}
    groups = {case.name: case for case in value_cases()}
    for name, found in results.items():
        if name in groups:
            case = groups[name]
            wrong, own, grid = partial(wrong_groups, case, found), case.product.model, GROUP_GRID
            kind = case.product.a
        elif not name.startswith("wgmma"):
            wrong, own, grid = partial(wrong_by_family, name, found), SM_90, GRID
            kind = multiplication(name).a.kind
        if name in groups or not name.startswith("wgmma"):
            report_one(name, wrong, own, grid if kind not in ("s8", "u8", "f64") else {})


def report_one(name: str, wrong, own: Accumulation, grid: dict) -> None:
    """The same of one product: wrong(model) counts sums by family; a grid of {} has no models."""
    counts = wrong(own)
    print(f"{name}\n  simulator: {sum(counts.values())} wrong {_some(counts)}", flush=True)
    if not grid or not any(counts.values()):
        return
    tried = [(wrong(model), model) for model in models(grid)]
    tried.sort(key=lambda one: sum(one[0].values()))
    for counts, model in tried[:SHOWN]:
        print(f"  {sum(counts.values()):7} wrong: {name_of(model)} {_some(counts)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("results", type=Path, help="file .npz that --raw has written")
    parser.add_argument("--only", default="", help="opcodes that contain this text")
    arguments = parser.parse_args()
    report(arguments.results, arguments.only)


def _some(wrong: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in wrong.items() if count}


if __name__ == "__main__":
    main()
