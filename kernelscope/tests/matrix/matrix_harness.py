"""Runs single matrix instructions on the simulator, for the tests of matrices."""

import functools

import ml_dtypes
import numpy as np
from kernelscope.differential.matrix.kernels import module_text
from kernelscope.machine import Program
from kernelscope.machine.launch import launch

DTYPES = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "f32": np.float32,
    "f64": np.float64,
    "s8": np.int8,
    "u8": np.uint8,
    "s32": np.int32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
}


@functools.cache
def program(entries: tuple[str, ...]) -> Program:
    """The entries as one module, decoded once however many tests use it."""
    return Program(module_text(list(entries)))


def run(entries, name, warps, *arrays):
    """Launch one entry with a block for each warp; arrays are changed in place."""
    flat = [array.view(np.uint8).reshape(-1) for array in arrays]
    launch(program(entries), name, (warps, 1, 1), (32, 1, 1), flat)


def spread_over(matrix: np.ndarray, layout) -> np.ndarray:
    """(warps, rows, columns) as fragments: (warps, 32 * elements), lane by lane."""
    held = matrix.swapaxes(1, 2) if layout.transposed else matrix
    return np.ascontiguousarray(held.reshape(matrix.shape[0], -1)[:, layout.place])


def small_integers(rng, kind: str, shape) -> np.ndarray:
    """Integers whose sums of products are exact in every type."""
    return rng.integers(0 if kind == "u8" else -8, 9, shape).astype(DTYPES[kind])
