"""wmma.load and .store, ldmatrix, stmatrix, movmatrix: which lane gets which element."""

import numpy as np
import pytest
from kernelscope.differential.matrix import kernels as matrix_kernels
from kernelscope.isa.matrix import transfer
from matrix_harness import run

SHAPES = ("m16n16k16", "m32n8k16", "m8n32k16")
ELEMENTS = {
    "f16": (SHAPES, "f16 f32"),
    "bf16": (SHAPES, ""),
    "u8": (SHAPES, "s32"),
    "tf32": (("m16n16k8",), "f32"),
    "f64": (("m8n8k4",), "f64"),
}


def opcodes():
    for kind, (shapes, sums) in ELEMENTS.items():
        for shape in shapes:
            for space in (".global", ".shared", ""):
                for order in ("row", "col"):
                    middle = f"sync.aligned.{order}.{shape}{space}"
                    yield from (f"wmma.load.{one}.{middle}.{kind}" for one in "ab")
                    for total in sums.split():
                        yield f"wmma.load.c.{middle}.{total}"
                        yield f"wmma.store.d.{middle}.{total}"


OPCODES = tuple(dict.fromkeys(opcodes()))
GAP = 16  # elements between two lines of a matrix
WARPS = 2


def memory_of(opcode):
    """(lines, elements a line) of the matrix in memory, without the gap."""
    form = transfer(opcode)
    size = form.layout.rows, form.layout.columns
    return size[::-1] if form.across else size


def entry(number, opcode):
    lines, length = memory_of(opcode)
    return matrix_kernels.fragment(f"k{number}", opcode, length + GAP, lines)


ENTRIES = tuple(entry(number, opcode) for number, opcode in enumerate(OPCODES))


@pytest.mark.turns(17)
@pytest.mark.system
@pytest.mark.parametrize("action", ["load.a", "load.b", "load.c", "store.d"])
@pytest.mark.parametrize("space", [".global.", ".shared.", "."])
def test_fragments_move_to_and_from_their_places(action, space):
    """Every element is different, and so are the strides; gaps must stay as they are."""
    rng = np.random.default_rng(3)
    for number, opcode in enumerate(OPCODES):
        spaces = [s for s in (".global.", ".shared.") if s in opcode]
        if not opcode.startswith(f"wmma.{action}.") or (spaces or ["."]) != [space]:
            continue
        form = transfer(opcode)
        held, (lines, length) = form.layout, memory_of(opcode)
        dtype = np.dtype(f"u{held.bits // 8}")
        bits = rng.integers(0, 1 << min(held.bits, 63), (WARPS, lines, length + GAP))
        memory = bits.astype(dtype)
        matrix = memory[:, :, :length]
        matrix = matrix.swapaxes(1, 2) if form.across else matrix
        fragment = matrix.reshape(WARPS, -1)[:, held.place].copy()
        if "load" in action:
            out = np.zeros_like(fragment)
            run(ENTRIES, f"k{number}", WARPS, memory, out)
            np.testing.assert_array_equal(out, fragment, opcode)
        else:
            out = np.zeros_like(memory)
            run(ENTRIES, f"k{number}", WARPS, out, fragment)
            np.testing.assert_array_equal(out[:, :, :length], memory[:, :, :length], opcode)
            assert not out[:, :, length:].any(), opcode


ROWS = tuple(
    f"{name}.sync.aligned.m8n8.x{count}{order}.shared.b16"
    for name in ("ldmatrix", "stmatrix")
    for count in (1, 2, 4)
    for order in ("", ".trans")
)
ROW_ENTRIES = (
    *(matrix_kernels.rows(f"k{i}", opcode) for i, opcode in enumerate(ROWS)),
    matrix_kernels.transpose("transpose"),
)


@pytest.mark.parametrize("number", range(len(ROWS)), ids=ROWS)
def test_rows_of_8x8_matrices(number):
    """The rows stand at places without order; lanes beyond the matrices' rows have any address."""
    opcode, rng = ROWS[number], np.random.default_rng(number)
    count = int(opcode.split(".x")[1][0])
    memory = rng.integers(0, 1 << 16, (WARPS, 256, 8)).astype(np.uint16)
    place = np.stack([rng.permutation(256)[:32] for _ in range(WARPS)])
    used = np.arange(WARPS)[:, None], place[:, : 8 * count]
    matrices = memory[used].reshape(WARPS, count, 8, 8)
    if ".trans" in opcode:
        matrices = matrices.swapaxes(2, 3)
    # lane 4 g + t holds elements 2 t and 2 t + 1 of row g of each matrix
    words = np.ascontiguousarray(matrices).view(np.uint32).reshape(WARPS, count, 32)
    registers = np.ascontiguousarray(words.swapaxes(1, 2))
    offsets = (16 * place).astype(np.uint32)
    if opcode.startswith("ldmatrix"):
        out = np.zeros_like(registers)
        run(ROW_ENTRIES, f"k{number}", WARPS, memory, offsets, out)
        np.testing.assert_array_equal(out, registers)
    else:
        out, expected = np.full_like(memory, 7), np.full_like(memory, 7)
        expected[used] = memory[used]
        run(ROW_ENTRIES, f"k{number}", WARPS, out, offsets, registers)
        np.testing.assert_array_equal(out, expected)


def test_movmatrix_transposes():
    matrix = np.arange(WARPS * 64, dtype=np.uint16).reshape(WARPS, 8, 8)
    out = np.zeros_like(matrix)
    run(ROW_ENTRIES, "transpose", WARPS, matrix, out)
    np.testing.assert_array_equal(out, matrix.swapaxes(1, 2))
