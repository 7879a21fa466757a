"""The comparison of simulator and GPU: what it tries, and that it sees a difference."""

import pickle

import numpy as np
import pytest
from kernelscope.compile import compile_ptx
from kernelscope.differential import __main__ as differential
from kernelscope.differential import bounds as bounds
from kernelscope.differential import compare as compare
from kernelscope.differential import functions as functions
from kernelscope.differential import opcodes as opcodes
from kernelscope.differential import sections as differential_sections
from kernelscope.differential.machines import Machine
from kernelscope.differential.opcodes import Opcode
from kernelscope.differential.programs import PROGRAMS
from kernelscope.isa.table import ROWS, UnknownInstruction, lookup

pytestmark = pytest.mark.system


class Faulty(Machine):
    """A simulator whose every result has one wrong bit, in the last place of the last array."""

    def __init__(self):
        super().__init__("simulator")

    def run(self, *arguments, **keywords):
        out = super().run(*arguments, **keywords)
        out[-1].view(np.uint8).reshape(-1)[-out[-1].itemsize] ^= 1
        return out


def run(*options, machine=None, monkeypatch=None):
    """The record of a self-test in this process."""
    if machine is not None:
        monkeypatch.setattr(differential, "Machine", lambda *a, **k: machine)
    return differential.compare_machines(
        differential.parse(["--self-test", "--workers", "0", *options])
    )


SMALL = "--kernels 8 --every 40 --sections opcodes random_kernels programs functions".split()


@pytest.mark.turns(37)
def test_the_simulator_agrees_with_itself():
    """At a 40th of the items; the debug build in random warp order stands in for the GPU."""
    record = run(*SMALL)
    assert not record["differences"]
    assert record["all_agree"]
    counts = {name: section["count"] for name, section in record["sections"].items()}
    assert counts["opcodes"] > 75
    assert counts == {name: section["agree"] for name, section in record["sections"].items()}
    assert "all_agree: True" in differential.report(record)


def test_a_record_keeps_the_sections_of_an_earlier_one_that_were_not_run_again():
    def section(agrees):
        return {"all_agree": agrees, "items": []}

    apart = [{"section": "tma", "tma": "a"}, {"section": "textures", "texture": "b"}]
    earlier = {"gpu": "A", "date": "1", "commit": "c", "differences": apart}
    earlier["sections"] = {name: section(name == "opcodes") for name in ("opcodes", "tma")}
    later = {"gpu": "A", "date": "2", "commit": "d", "differences": [], "all_agree": True}
    later["sections"] = {"tma": section(True)}
    found = differential.with_earlier_sections(later, earlier)
    assert found["all_agree"] and found["commit"] == "d"
    assert found["differences"] == apart[1:]
    assert found["sections"]["opcodes"]["run"] == {"date": "1", "commit": "c"}
    assert "run" not in found["sections"]["tma"]
    earlier["sections"]["opcodes"] = section(False)
    assert not differential.with_earlier_sections(later, earlier)["all_agree"]
    with pytest.raises(ValueError, match="takes nothing"):
        differential.with_earlier_sections(later | {"gpu": "B"}, earlier)


def test_an_earlier_record_of_another_gpu_is_refused_before_anything_runs(tmp_path, monkeypatch):
    path = tmp_path / "earlier.json"
    path.write_text('{"gpu": "B"}')
    monkeypatch.setattr(differential, "compare_machines", None)
    with pytest.raises(ValueError, match="a record of none takes nothing of B"):
        differential.main(["--self-test", "--earlier", str(path)])


@pytest.mark.turns(23)
def test_one_wrong_bit_is_a_difference_everywhere(monkeypatch):
    options = ("--kernels", "2", "--every", "60", "--sections", *SMALL[5:])
    record = run(*options, machine=Faulty(), monkeypatch=monkeypatch)
    assert not record["all_agree"]
    exact = ("random_kernels", "programs")
    for name in exact:
        section = record["sections"][name]
        assert section["disagree"] == section["count"] > 0, name
    kinds = {item.get("opcode") for item in record["differences"]}
    assert len(kinds) > 30
    text = differential.report(record)
    assert "all_agree: False" in text and "differences:" in text


def test_a_failing_item_is_recorded_and_the_rest_goes_on(monkeypatch):
    class Breaking(Machine):
        def run(self, module, entry, *rest, **keywords):
            if entry == "op_3":
                raise RuntimeError("no such thing")
            return super().run(module, entry, *rest, **keywords)

    options = ("--every", "200", "--sections", "opcodes")
    record = run(*options, machine=Breaking("simulator"), monkeypatch=monkeypatch)
    section = record["sections"]["opcodes"]
    assert section["errors"] == 1 and section["agree"] == section["count"] - 1
    assert "no such thing" in record["differences"][0]["error"]


@pytest.mark.turns(23)
def test_items_after_a_lost_context_are_not_run(monkeypatch):
    """One finding, not one for each later item."""

    class Lost(Machine):
        def run(self, module, entry, *rest, **keywords):
            self._check()
            if entry == "random_kernel_2":
                self.lost = True
                raise RuntimeError("an illegal instruction")
            return super().run(module, entry, *rest, **keywords)

        def load_kernels(self, *arguments):
            self._check()
            return super().load_kernels(*arguments)

    options = ("--kernels", "4", "--every", "1", "--sections", "random_kernels")
    record = run(*options, machine=Lost("simulator"), monkeypatch=monkeypatch)
    section = record["sections"]["random_kernels"]
    assert (section["agree"], section["errors"], section["not_run"]) == (2, 1, 1)
    assert not record["all_agree"] and len(record["differences"]) == 1


def test_a_module_that_does_not_load_is_halved_to_the_guilty_opcode():
    class Choosy(Machine):
        def load_ptx(self, text):
            if "sub.u32" in text:
                raise RuntimeError("ptxas fatal")
            return super().load_ptx(text)

    codes = [Opcode(text) for text in ("add.u32", "and.b32", "sub.u32", "xor.b32", "popc.b32")]
    refused = {}
    results = differential_sections.halve_on_error(Choosy("simulator"), codes, "sm_90", refused)
    assert list(refused) == ["sub.u32"]
    assert [result is None for result in results] == [False, False, True, False, False]


# --- opcodes --------------------------------------------------------------------------------------


def test_every_row_of_the_table_is_tried():
    tried = opcodes.opcodes()
    texts = {code.text for code in tried}
    for name, rows in ROWS.items():
        for row in rows:
            for types in row.type_choices() if not opcodes.is_combining(name) else ():
                video = name in opcodes.VIDEO_ROWS
                sets = opcodes.video_modifiers(row) if video else opcodes.modifier_sets(row)
                plain = [opcodes.instruction_text(name, m, types) for m in sets]
                assert texts & set(plain), (name, types)
    for base in ("set", "setp"):
        combining = {text.split(".")[2] for text in texts if text.startswith(base + ".")}
        assert {"and", "or", "xor"} <= combining
    assert len(tried) > 2000


def test_every_text_that_is_tried_is_known_to_the_table():
    for code in opcodes.opcodes()[::7]:
        try:
            lookup(code.text)
        except UnknownInstruction as error:
            pytest.fail(f"{code.text}: {error}")


@pytest.mark.parametrize("kind", ["f32", "f64", "f16", "bf16", "s32", "u64", "u8", "f16x2", "pred"])
def test_inputs_hold_what_is_hard(kind):
    rng = np.random.default_rng(0)
    bits = opcodes.patterns(kind, 4096, rng)
    assert len(np.unique(bits)) > (1 if kind == "pred" else 200)
    if kind in opcodes.FLOATS:
        values = compare.as_double(bits, kind)
        exponent_bits, _ = opcodes.FLOATS[kind]
        least = 2.0 ** (2 - (1 << exponent_bits - 1))
        assert np.isnan(values).any() and np.isinf(values).any()
        assert ((values != 0) & (np.abs(values) < least)).sum() > 20
        assert np.signbit(values[values == 0]).any()


def test_division_by_zero_is_kept_out():
    for text in ("div.s32", "rem.u64"):
        assert opcodes.inputs(Opcode(text))[1].all()


def test_an_operand_of_16_bits_takes_every_value():
    (bits,) = opcodes.inputs(Opcode("cvt.f32.f16"))
    assert np.array_equal(np.sort(bits), np.arange(65536))


def test_the_assembler_s_complaints_are_laid_at_the_right_door():
    codes = [Opcode("add.u32"), Opcode("sub.u32"), Opcode("popc.b64")]
    text = opcodes.module_text(codes, "sm_90")
    line = text.splitlines().index("sub.u32 d0, a0, a1;") + 1
    complaints = (
        f"ptxas x.ptx, line {line}; error   : Illegal modifier\n"
        "ptxas fatal   : Ptx assembly aborted due to errors"
    )
    assert opcodes.blame(text, complaints) == {1: "Illegal modifier"}


# --- comparing ------------------------------------------------------------------------------------


def bits(*values, dtype=np.float32):
    array = np.array(values, dtype)
    return array.view(f"u{array.itemsize}")


def test_nans_of_different_bits_are_counted_and_open_only_in_double_precision():
    one, other = np.array([0x7FFFFFFF], np.uint32), np.array([0x7FC00000], np.uint32)
    record = compare.compare(Opcode("add.f32"), [one, one], [one], [other])
    assert record["nan_payload"] == 1 and record["mismatches"] == 1
    one, other = (np.array([x], np.uint64) for x in (0x7FF8000000000000, 0xFFF8000000000001))
    record = compare.compare(Opcode("add.f64"), [one, one], [one], [other])
    assert record["nan_payload"] == 1 and record["mismatches"] == 0
    record = compare.compare(Opcode("selp.f64"), [one, one, np.ones(1, np.uint32)], [one], [other])
    assert record["mismatches"] == 1


@pytest.mark.parametrize(
    ("text", "x", "near", "far"),
    [
        ("rcp.approx.f32", 3.0, 1 / 3, 1 / 3 + 2.0**-24),
        ("rsqrt.approx.f32", 2.0, 2**-0.5 * (1 + 2.0**-24), 2**-0.5 * (1 + 2.0**-21)),
        ("sin.approx.f32", 1.0, np.sin(1.0) + 2.0**-22, np.sin(1.0) + 2.0**-19),
        ("lg2.approx.f32", 1000.0, np.log2(1000.0), np.log2(1000.0) * (1 + 2.0**-20)),
        ("ex2.approx.f32", 3.5, 2**3.5, 2**3.5 * (1 + 2.0**-20)),
        ("sin.approx.f32", 7.0, np.sin(7.0) + 2.0**-15, np.sin(7.0) + 2.0**-14),
        (
            "lg2.approx.f32",
            1 + 2.0**-20,
            1.4427 * 2.0**-20 + 2.0**-23,
            1.4427 * 2.0**-20 + 2.0**-21,
        ),
        ("tanh.approx.f32", 0.5, np.tanh(0.5) * (1 + 2.0**-12), np.tanh(0.5) * (1 + 2.0**-10)),
    ],
)
def test_approximations_stay_inside_their_bounds(text, x, near, far):
    good, bad = bits(near), bits(far)
    assert compare.compare(Opcode(text), [bits(x)], [good], [good])["mismatches"] == 0
    for pair in ((good, bad), (bad, good)):
        record = compare.compare(Opcode(text), [bits(x)], [pair[0]], [pair[1]])
        assert record["mismatches"] == 1, record


def test_special_results_of_approximations_must_be_equal():
    infinity, nothing = bits(np.inf), bits(0.0)
    code = Opcode("rcp.approx.f32")
    assert compare.compare(code, [nothing], [infinity], [bits(-np.inf)])["mismatches"] == 1
    assert compare.compare(code, [infinity], [nothing], [bits(-0.0)])["mismatches"] == 1
    assert compare.compare(code, [nothing], [infinity], [infinity])["mismatches"] == 0


def test_both_halves_of_a_pair_are_compared():
    code, word = Opcode("add.f16x2"), np.array([0x3C003C00], np.uint32)
    for changed in (0x3C003C01, 0x3C013C00):
        record = compare.compare(code, [word, word], [word], [np.array([changed], np.uint32)])
        assert record["mismatches"] == 1


def test_units_in_the_last_place():
    x = np.array([1.0, 2.0, 0.0, 1e30])
    y = np.array([1 + 2.0**-23, 2.0, 2.0**-127, 1e30 * (1 + 2.0**-20)])
    assert bounds.ulps(x, y, "f32")[:3].tolist() == [1, 0, 1]
    assert bounds.max_ulp(x, y, "f32") > 4


def test_functions_that_differ_too_far_are_found():
    function = next(f for f in functions.functions() if f.name == "expf")
    a = np.linspace(0.5, 2, functions.COUNT, dtype=np.float32)
    b = a.copy()
    b[7] *= np.float32(1 + 2.0**-22)
    b[9] = np.nan
    b[11] *= np.float32(1.001)
    record = functions.compare(function, a, b)
    assert (record["mismatches"], record["differing_lanes"]) == (2, 3)


def results_of(name):
    """(the function, its operands as doubles, its exact results in float32)."""
    function = next(f for f in functions.functions() if f.name == name)
    operands = [x.astype(float) for x in function.arguments()[: function.operands]]
    with np.errstate(all="ignore"):
        return function, operands, function.bound.exact(*operands).astype(np.float32)


@pytest.mark.parametrize("name", bounds.INTRINSICS)
def test_intrinsics_stay_inside_their_documented_bounds(name):
    function, operands, exact = results_of(name)
    record = functions.compare(function, exact, exact)
    assert record["mismatches"] == 0 and record["documented"]
    assert max(record["error_over_bound"]) < 1
    with np.errstate(all="ignore"):
        inside = function.bound.domain(*operands) if function.bound.domain else True
    i = int(np.flatnonzero(inside & np.isfinite(exact) & (exact != 0))[20])
    wrong = exact.copy()
    wrong[i] *= np.float32(1.01)
    for pair in ((exact, wrong), (wrong, exact)):
        record = functions.compare(function, *pair)
        assert record["mismatches"] == 1
        assert record["examples"][0]["operands"] == [float(x[i]) for x in operands]


def test_nothing_is_compared_where_nothing_is_promised():
    function, (x,), exact = results_of("__sinf")
    outside = np.isfinite(x) & (np.abs(x) > np.pi)
    other = np.where(outside, np.float32(0.5), exact)
    record = functions.compare(function, exact, other)
    assert record["mismatches"] == 0
    assert record["no_bound"]["lanes"] == outside.sum() > 500
    assert record["no_bound"]["largest_difference"] > 1
    other[np.isinf(x)] = 0  # but that the sine of infinity is NaN is documented
    assert functions.compare(function, exact, other)["mismatches"] == np.isinf(x).sum()


def test_units_in_the_last_place_do_not_count_under_an_absolute_bound():
    function, (x,), exact = results_of("__log2f")
    near = int(np.flatnonzero(np.abs(x - 1) == 2.0**-20)[0])
    other = exact.copy()
    other[near] += np.float32(2.0**-24)
    record = functions.compare(function, exact, other)
    assert record["mismatches"] == 0 and record["max_ulp"] == 0
    assert record["absolute_bound"]["largest_difference"] == 2.0**-24
    other[near] += np.float32(2.0**-21)
    assert functions.compare(function, exact, other)["mismatches"] == 1


def test_functions_with_exact_results_must_agree():
    function = next(f for f in functions.functions() if f.name == "fmodf")
    a = np.linspace(0.5, 2, functions.COUNT, dtype=np.float32)
    b = a.copy()
    b[3] = np.nextafter(b[3], np.float32(9))
    assert functions.compare(function, a, b)["mismatches"] == 1


@pytest.mark.turns(23)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda p: p.name)
def test_programs_compile_and_fill_their_output(program):
    compile_ptx(program.source, options=program.options)
    words, out = Machine("simulator").run(
        Machine("simulator").load(program.source, program.options),
        "run",
        (program.blocks,),
        (program.threads,),
        program.arguments(),
    )
    assert len(np.unique(out)) >= 20


def test_what_other_processes_get_can_be_sent_to_them():
    for item in (*functions.functions(), *PROGRAMS, *opcodes.opcodes()[::50]):
        assert pickle.loads(pickle.dumps(item)) == item
