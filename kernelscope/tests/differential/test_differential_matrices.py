"""The matrix instructions of the comparison, and the search for a model of how they add."""

import json
import zlib
from pathlib import Path

import numpy as np
import pytest
from kernelscope.differential.machines import Machine
from kernelscope.differential.matrix import fit_accumulation as fit_accumulation
from kernelscope.differential.matrix import groups as groups
from kernelscope.differential.matrix import matrices as matrices
from kernelscope.isa.matrix import SM_80, SM_90, Accumulation, multiplication

pytestmark = pytest.mark.system

F16 = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
SOME = (F16, "wmma.load.b.sync.aligned.row.m16n16k16.shared.f16", matrices.ROWS[3])


def run(opcodes=SOME):
    return matrices.run_cases(
        Machine("simulator"), [matrices.MatrixCase(o) for o in opcodes], "sm_90"
    )


def test_every_form_of_an_instruction_is_a_case():
    roots = {case.root for case in matrices.cases()}
    expected = "mma wmma.mma wmma.load wmma.store ldmatrix stmatrix movmatrix"
    assert roots == set(expected.split())
    kinds = {multiplication(opcode).a.kind for opcode in matrices.PRODUCTS}
    assert kinds == {"f16", "bf16", "tf32", "s8", "u8", "f64", "e4m3", "e5m2"}


def test_a_wrong_bit_is_a_mismatch():
    first, second = run(), run()
    for opcode, a, b in zip(SOME, first, second, strict=True):
        case = matrices.MatrixCase(opcode)
        assert matrices.compare(case, a, b)["mismatches"] == 0
        b[-1][40] ^= 1
        record = matrices.compare(case, a, b)
        assert record["mismatches"] == 1, opcode
    assert set(matrices.compare(matrices.MatrixCase(F16), first[0], second[0])["families"]) == {
        "random"
    }


@pytest.mark.parametrize("family", list(matrices.FAMILIES))
def test_no_family_is_of_zeros_alone(family):
    """Each family has results that are not all alike, but for the sums of negative zeros."""
    number = matrices.families(F16).index(family)
    found = run((F16,))[0][-1].view(np.uint32).reshape(-1, 128)
    mine = found[number * matrices.EACH :][: matrices.EACH]
    assert np.unique(mine).size > (1 if family == "negative_zeros" else 20) - 1


@pytest.mark.parametrize("model", [SM_80, Accumulation(26, 32, "rz", True, True)])
def test_the_model_that_made_the_results_is_found(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(fit_accumulation.GRID, "fraction_bits", (24, 25, 26))
    monkeypatch.setitem(fit_accumulation.GRID, "group_bytes", (16, 32))
    monkeypatch.setitem(fit_accumulation.GRID, "overflow_to_infinity", (True,))
    bits = fit_accumulation.computed(F16, model)
    np.savez(tmp_path / "raw.npz", **{F16: bits.view(np.uint8).reshape(-1)})
    fit_accumulation.report(tmp_path / "raw.npz", "")
    lines = capsys.readouterr().out.splitlines()
    best = next(line for line in lines if " wrong: " in line)
    assert best.split(" wrong: ")[0].strip() == "0"
    assert fit_accumulation.name_of(model) in best
    assert "simulator: 0 wrong" not in lines[1]
    assert model != SM_90


def test_the_model_of_wgmma_is_found(tmp_path, capsys, monkeypatch):
    for name, values in (("fraction_bits", (13, 14)), ("group_bytes", (16, 32))):
        monkeypatch.setitem(fit_accumulation.GROUP_GRID, name, values)
    case = next(one for one in groups.value_cases() if one.product.a == "e4m3")
    model = Accumulation(14, 16, result_bits=14)
    bits = fit_accumulation.computed_by_group(case, model)
    sums = groups.in_registers(bits, case.product.held_d)
    np.savez(tmp_path / "raw.npz", **{case.name: sums.view(np.uint8).reshape(-1)})
    fit_accumulation.report(tmp_path / "raw.npz", "")
    own, best = capsys.readouterr().out.splitlines()[1:3]
    assert "simulator: 0 wrong" not in own
    assert best.split()[:2] == ["0", "wrong:"] and fit_accumulation.name_of(model) in best


def test_products_are_those_of_an_h200():
    """Checksums of the bits that the GPU has computed from the same operands.

    Where operands() gives others, take them again: differential.py --sections matrices --raw FILE.
    """
    recorded = json.loads((Path(__file__).parent / "h200_matrix_products.json").read_text())
    sums = recorded["crc32"]
    found = {
        opcode: f"{zlib.crc32(fit_accumulation.computed(opcode, SM_90).tobytes()):08x}"
        for opcode in sums
    }
    assert found == sums and len(sums) > 30
