"""The operation table as a whole: decoding, its errors, and that the tests reach every row."""

import numpy as np
import pytest
from kernelscope.isa import table as isa

from . import test_isa_approximations as approximations
from . import test_isa_comparisons as comparisons
from . import test_isa_conversions as conversions
from . import test_isa_floats as floats
from . import test_isa_integers as integers
from . import test_isa_video as video

EXTRA = [
    *approximations.APPROXIMATE,
    *"div.approx.f32 div.approx.ftz.f32 ex2.approx.f16x2 ex2.approx.ftz.bf16x2".split(),
    *"tanh.approx.f16x2 tanh.approx.bf16x2".split(),
    *(
        f"slct.{ftz}{kind}.f32"
        for ftz in ("", "ftz.")
        for kind in "b16 b32 b64 u16 u32 u64 s16 s32 s64 f32 f64".split()
    ),
]
TESTED = [
    *integers.CASES,
    *floats.CASES,
    *comparisons.COMPARISONS,
    *conversions.CASES,
    *video.CASES,
    *EXTRA,
]


def test_every_row_type_and_modifier_is_tested():
    types, modifiers = {}, {}
    for opcode in TESTED:
        name, row, kinds, words = isa.find_row(opcode)
        types.setdefault((name, row), set()).add(kinds)
        modifiers.setdefault((name, row), set()).update(words)
    for name, forms in isa.ROWS.items():
        for row in forms:
            assert set(row.type_choices()) == types.get((name, row)), (name, row.types)
            missing = set(row.modifiers.split()) - modifiers[name, row] - {"approx"}
            assert not missing, (name, row.types, missing)


def test_every_row_is_well_formed():
    for opcode in TESTED:
        operation = isa.lookup(opcode)
        assert operation.name == opcode
        assert operation.results
        for kind in operation.sources + operation.results:
            assert kind in isa.DTYPE, opcode


def test_lookup_decodes_once():
    assert isa.lookup("fma.rn.ftz.f32") is isa.lookup("fma.rn.ftz.f32")


def test_operand_types():
    assert isa.lookup("mad.wide.s32").sources == ("s32", "s32", "s64")
    assert isa.lookup("mul.wide.u16").results == ("u32",)
    assert isa.lookup("setp.lt.and.u32").sources == ("u32", "u32", "pred")
    assert isa.lookup("setp.lt.u32").results == ("pred", "pred")
    assert isa.lookup("cvt.rn.f16x2.f32").sources == ("f32", "f32")
    assert isa.lookup("slct.f64.s32").sources == ("f64", "f64", "s32")
    carry = isa.lookup("addc.cc.u32")
    assert carry.reads_carry and carry.writes_carry
    assert not isa.lookup("add.u32").writes_carry


@pytest.mark.parametrize(
    ("opcode", "part"),
    [
        ("frobnicate.u32", "no operation 'frobnicate'"),
        ("add.f128", "does not take type 'f128'"),
        ("mul.u32", "does not take type 'u32'"),
        ("popc.f32", "does not take type 'f32'"),
        ("fma", "does not take type 'none'"),
        ("add.rx.f32", "no modifier '.rx'"),
        ("add.sat.u32", "no modifier '.sat'"),
        ("setp.lo.s32", "does not take type 's32'"),
        ("fma.rn.ftz.f64", "no modifier '.ftz'"),
        ("cvt.rna.f16.f32", "no modifier '.rna'"),
    ],
)
def test_unknown_instructions_name_the_part(opcode, part):
    with pytest.raises(isa.UnknownInstruction) as caught:
        isa.lookup(opcode)
    assert str(caught.value).startswith(opcode)
    assert part in str(caught.value)


def test_empty_arrays():
    """A chunk without active lanes runs like any other."""
    opcodes = """add.u32 fma.rn.ftz.f32 fma.rn.f32 max.f32 div.rn.f32 fma.rn.f64 cvt.rzi.s32.f32
        setp.lt.f32 add.rz.f64 add.cc.u32"""
    for opcode in opcodes.split():
        operation = isa.lookup(opcode)
        columns = [np.empty(0, isa.DTYPE[kind]) for kind in operation.sources]
        with np.errstate(all="ignore"):
            out = operation.fn(*columns)
        assert all(len(x) == 0 for x in (out if isinstance(out, tuple) else (out,)))
