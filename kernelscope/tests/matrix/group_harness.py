"""Runs single wgmma instructions on the simulator, with tiles laid out by the manual's formulas."""

import functools

import numpy as np
from kernelscope.differential.matrix import group_kernels
from kernelscope.differential.matrix.groups import from_registers, in_registers
from kernelscope.isa.matrix import group_multiplication
from kernelscope.machine import Program
from kernelscope.machine.launch import launch
from matrix_harness import DTYPES

SWIZZLE_BITS = {0: 0, 1: 3, 2: 2, 3: 1}  # mode -> B of CuTe's Swizzle<B, 4, 3>
IMAGE = 1 << 15
B_START = 1 << 14


def swizzled(address: int, mode: int) -> int:
    """Swizzle<B, 4, 3> of a byte address."""
    mask = (1 << SWIZZLE_BITS[mode]) - 1
    return address ^ ((address >> 7 & mask) << 4)


def place(row: int, k: int, size: int, mode: int, major: str, leading: int, stride: int) -> int:
    """Byte of element (row, k) before the swizzle, as CUTLASS writes the canonical layouts.

    size: bytes of an element. T elements are 16 bytes; W chunks of them make a line.
    """
    t, w = 16 // size, 1 << SWIZZLE_BITS[mode]
    if major == "K":  # ((8, m), (T, 2)) : ((W T, SBO), (1, T or LBO))
        along = leading if mode == 0 else 16
        return row % 8 * w * 16 + row // 8 * stride + k % t * size + k // t * along
    far, near = (stride, leading) if mode == 0 else (leading, stride)
    # ((T, W, m), (8, k)) : ((1, T, LBO), (W T, SBO)); without a swizzle the two change places
    chunk = row // t
    return row % t * size + chunk % w * 16 + chunk // w * far + k % 8 * w * 16 + k // 8 * near


def descriptor(start: int, leading: int, stride: int, mode: int, base: int = 0) -> int:
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | base << 49 | mode << 62


def put(image, matrix, start, mode, major, leading, stride) -> None:
    """Write (rows, k) elements into (bytes,) of shared memory."""
    size = matrix.itemsize
    raw = matrix.view(f"V{size}")
    cells = image[: image.size // size * size].view(f"V{size}")
    for (row, k), value in np.ndenumerate(raw):
        at = swizzled(start + place(row, k, size, mode, major, leading, stride), mode)
        cells[at // size] = value


@functools.cache
def program(form: str, held: bool, keeps: bool, literals: tuple[int, ...], target="sm_90a"):
    opcode = f"wgmma.mma_async.sync.aligned.{form}"
    entry = group_kernels.multiply(
        "k", group_multiplication(opcode), IMAGE, held, keeps, list(literals)
    )
    return Program(group_kernels.HEAD.replace("sm_90a", target) + entry)


def run(form, image, words, a, c, *, held=False, keeps=True, literals=(1, 1, 0, 0), threads=128):
    """(64, n) sums of one warp group; words: the descriptors; a: (64, k) elements if held."""
    product = group_multiplication(f"wgmma.mma_async.sync.aligned.{form}")
    registers = in_registers(a[None], product.held_a) if held else np.zeros(1, np.uint32)
    sums = in_registers(c[None], product.held_d).copy()
    arrays = [image, np.array(words, np.uint64), registers, sums]
    flat = [np.ascontiguousarray(one).view(np.uint8).reshape(-1) for one in arrays]
    launch(program(form, held, keeps, tuple(literals)), "k", (1, 1, 1), (threads, 1, 1), flat)
    return from_registers(flat[-1], product.held_d, 1)[0].view(DTYPES[product.d])


def image():
    return np.zeros(IMAGE, np.uint8)


def plain_tiles(a, b):
    """(image, descriptors) of K-major tiles without a swizzle: (64, k), (n, k) elements."""
    found, words = image(), []
    for matrix, start in ((a, 0), (b, B_START)):
        leading, stride = len(matrix) // 8 * 128, 128
        put(found, matrix, start, 0, "K", leading, stride)
        words.append(descriptor(start, leading, stride, 0))
    return found, words
