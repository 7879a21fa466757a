"""Every row of the operation table on a GPU: integers and IEEE arithmetic to the bit."""

import zlib

import numpy as np
import pytest
from kernelscope.isa import table as isa

from . import isa_harness as harness
from . import test_isa_approximations as approximations
from . import test_isa_comparisons as comparisons
from . import test_isa_conversions as conversions
from . import test_isa_floats as floats
from . import test_isa_integers as integers

cupy = pytest.importorskip("cupy")

# .full promises 2 ulp; the simulator's is the nearest float
INEXACT = ("div.full.f32", "div.full.ftz.f32")
EXACT = [
    opcode
    for opcode in (*integers.CASES, *floats.CASES, *conversions.CASES, *comparisons.COMPARISONS)
    if opcode not in INEXACT and not opcode.endswith("f32x2")  # which needs sm_100
]


def _has_gpu():
    try:
        return cupy.cuda.runtime.getDeviceCount() > 0
    except cupy.cuda.runtime.CUDARuntimeError:
        return False


pytestmark = pytest.mark.skipif(not _has_gpu(), reason="compares with a GPU, and there is none")


def both(opcode, count=512):
    """(operand columns, simulator's result columns, the GPU's), as Python ints."""
    from . import isa_gpu

    operation = isa.lookup(opcode)
    kinds = operation.sources + ("pred",) * operation.reads_carry
    rng = np.random.default_rng(zlib.crc32(opcode.encode()))
    columns = [harness.operand(kind, count, rng) for kind in kinds]
    columns = [[column[i] for i in rng.permutation(count)] for column in columns]
    for index, value in isa_gpu.IMMEDIATE.get(opcode, {}).items():
        columns[index] = [value] * count
    values = [harness.as_values(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    simulated = [harness.as_bits(x) for x in harness.run(operation, values)]
    measured = isa_gpu.run(opcode, columns)
    if operation.results == ("pred", "pred") and kinds[0] in ("f16", "bf16"):
        simulated, measured = simulated[:1], measured[:1]  # such a setp has one result
    return columns, simulated, measured


FAMILIES = {}
for _opcode in EXACT:
    FAMILIES.setdefault(_opcode.split(".")[0], []).append(_opcode)


@pytest.mark.parametrize("family", FAMILIES)
def test_bits(family):
    wrong = [found for opcode in FAMILIES[family] if (found := first_difference(opcode))]
    assert not wrong, "\n".join(wrong)


def first_difference(opcode):
    """The first lane on which the simulator and the GPU differ, in words, or None."""
    columns, simulated, measured = both(opcode)
    rows = zip(*(zip(*side, strict=True) for side in (columns, simulated, measured)), strict=True)
    for operands, ours, theirs in rows:
        if opcode == "fns.b32" and operands[2] == 1 << 31:
            continue  # its magnitude is no 32-bit number: unspecified
        if ours != theirs:
            operands, ours, theirs = ([hex(x) for x in side] for side in (operands, ours, theirs))
            return f"{opcode} {operands}: simulator {ours}, GPU {theirs}"
    return None


@pytest.mark.parametrize("opcode", [*approximations.APPROXIMATE, *INEXACT])
def test_approximations_agree_within_their_bounds(opcode):
    columns, (simulated,), (measured,) = both(opcode)
    name, kind, ftz = opcode.split(".")[0], opcode.split(".")[-1], "ftz" in opcode
    if opcode in INEXACT:
        assert max(abs(a - b) for a, b in zip(simulated, measured, strict=True)) <= 2
        return
    agree = approximations.close(name, kind, ftz)
    for operands, ours, theirs in zip(columns[0], simulated, measured, strict=True):
        angle = approximations.double_of(operands, kind, ftz)
        if name in ("sin", "cos") and not abs(angle) <= np.pi:
            continue  # the bound is stated for one turn
        wanted = approximations.double_of(ours, kind, False)
        assert agree((wanted,), (theirs,)), (opcode, hex(operands), hex(ours), hex(theirs))
