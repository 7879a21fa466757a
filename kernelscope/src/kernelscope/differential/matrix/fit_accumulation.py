"""Which way of adding explains what tensor cores of a GPU have computed?

    python -m kernelscope.differential --sections matrices --raw matrices.npz     on a GPU
    python -m kernelscope.differential.matrix.fit_accumulation matrices.npz       anywhere, later

For each product of floats it prints the sums that each model of GRID gets wrong, the best models
first, and by family of inputs for the best and for the simulator's own.
"""

import argparse
import itertools
from dataclasses import fields
from pathlib import Path

import numpy as np
from kernelscope.differential.matrix.matrices import EACH, families, operands
from kernelscope.isa.matrix import SM_90, Accumulation, multiplication
from kernelscope.isa.matrix.tensor_core import decode, multiply

GRID = {
    "fraction_bits": (22, 23, 24, 25, 26, 27, 28),
    "group_bytes": (8, 16, 32, 64),
    "rounding": ("rz", "rn"),
    "overflow_to_infinity": (True, False),
    "zeros_align": (False, True),
}
SHOWN = 4  # models of each opcode


def models() -> list[Accumulation]:
    """Every model of the grid."""
    return [Accumulation(*values) for values in itertools.product(*GRID.values())]


def computed(opcode: str, model: Accumulation) -> np.ndarray:
    """(warps, 32 * elements) bits of D by a model."""
    form = multiplication(opcode)
    raw = [np.ascontiguousarray(x).view(f"u{x.itemsize}") for x in operands(opcode)]
    with np.errstate(all="ignore"):
        a, b = (decode(x, h.kind, model) for x, h in zip(raw[:2], (form.a, form.b), strict=True))
        return multiply(form, a, b, raw[2], model)


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
        results = {opcode: kept[opcode] for opcode in kept.files if only in opcode}
    for opcode, found in results.items():
        own = wrong_by_family(opcode, found, SM_90)
        print(f"{opcode}\n  simulator: {sum(own.values())} wrong {_some(own)}", flush=True)
        if multiplication(opcode).a.kind in ("s8", "u8", "f64") or not any(own.values()):
            continue
        tried = [(wrong_by_family(opcode, found, model), model) for model in models()]
        tried.sort(key=lambda one: sum(one[0].values()))
        for wrong, model in tried[:SHOWN]:
            print(f"  {sum(wrong.values()):7} wrong: {name_of(model)} {_some(wrong)}")


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
