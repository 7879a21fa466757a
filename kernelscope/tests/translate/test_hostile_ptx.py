"""PTX text is data: no part of it becomes Python, wherever a string or a line end stands."""

import json
import re

import numpy as np
import pytest
from kernelscope import RawModule
from kernelscope.errors import UnsupportedInstruction, UnsupportedKernel
from kernelscope.ptx.parser import ParseError, parse
from kernelscope.ptx.registers import registers_in
from kernelscope.ptx.syntax import Address, Immediate, Instruction, Register, Symbol, Vector
from kernelscope.translate.operands import check_words, printable
from kernelscope.translate.program import Program

# Characters that end a line for Python, for its tokenizer or for str.splitlines().
LINE_ENDS = ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"]
QUOTES = ["'", "\\'", '\\"', "\\\\", "'''"]

# Line 8 is the instruction's; `{0}` is what a case puts in.
PROGRAM = """.version 8.0
.target sm_90
.address_size 64
.visible .entry k(.param .u64 out)
{{
.reg .b32 %r<4>; .reg .b64 %rd<4>; .reg .pred %p<2>;
.shared .align 4 .b8 tile[16];
{0}
ret;
}}
"""
PLACES = {
    "ignored operand": "prefetch.global.L2 {0};",
    "address": "prefetch.global.L2 [{0}];",
    "address offset": "prefetch.global.L2 [%rd1+{0}];",
    "opcode": "{0} %r1, %r2;",
    "opcode of one word": "{0};",
    "guard": "@{0} mov.u32 %r1, 0;",
    "inverted guard": "@!{0} mov.u32 %r1, 0;",
    "destination": "mov.u32 {0}, %r1;",
    "source": "mov.u32 %r1, {0};",
    "vector": "mov.b64 %rd1, {{%r1, {0}}};",
    "pair": "setp.eq.s32 %p1|{0}, %r1, 7;",
    "inverted": "mov.pred %p1, !{0};",
    "branch target": "bra {0};",
    "label": "{0}:",
    "jump table": "t: .branchtargets {0};",
    "register": ".reg .b32 {0};",
    "type": ".reg {0} a;",
    "variable": ".shared .b32 {0};",
    "variable type": ".shared {0} x;",
    "call": "call {0}, ();",
    "call argument": "call (%r1), k, ({0});",
    "copy size": "cp.async.ca.shared.global [tile], [%rd1], {0};",
    "line number": ".loc {0} 1 1",
    "directive": ".{0};",
    "inner scope": "{{ .reg .b32 {0}; mov.u32 {0}, 0; }}",
}


def attack(path, end: str) -> str:
    """Python that creates a file if it runs, between line ends."""
    return f"{end}    pass{end}__import__('pathlib').Path({str(path)!r}).touch(){end}def zz(): #"


def attempt(ptx: str) -> str:
    """Translate a program as far as it goes; return the error's text, "" for none."""
    try:
        program = Program(ptx, source="__global__ void k(float* out) {}")
        for name in [f.name for f in program.module.functions.values() if f.is_entry]:
            program.executable(name)
            program.python(name)
    except (ParseError, UnsupportedKernel) as error:
        return str(error)
    return ""


@pytest.mark.parametrize("place", PLACES)
def test_a_string_is_refused_wherever_a_word_is_expected(tmp_path, place):
    ran = tmp_path / "ran"
    for end in LINE_ENDS:
        quoted = '"' + attack(ran, end) + '"'
        message = attempt(PROGRAM.format(PLACES[place].format(quoted)))
        assert not ran.exists(), ascii(end)
        assert "PTX line 8: " in message and len(message.splitlines()) == 1, ascii(end)


@pytest.mark.parametrize("place", PLACES)
def test_bare_python_is_refused_wherever_a_word_is_expected(tmp_path, place):
    ran = tmp_path / "ran"
    for end in LINE_ENDS + QUOTES:
        message = attempt(PROGRAM.format(PLACES[place].format(attack(ran, end))))
        assert "PTX line " in message and not ran.exists(), ascii(end)


@pytest.mark.parametrize("end", LINE_ENDS + QUOTES, ids=ascii)
def test_strings_and_comments_that_ptx_allows_stay_out_of_python(tmp_path, end):
    ran = tmp_path / "ran"
    text = attack(ran, end)
    lines = [f'.pragma "{text}";', f'.file 1 "{text}"', f"/* {text} */"]
    ptx = PROGRAM.format(" ".join([*lines, ".loc 1 1 1 prefetch.global.L2 [%rd1];"]))
    assert attempt(f'.section "{text}" {{ "{text}" }}\n{ptx}') != ""  # a name is no string
    assert attempt(f'.section .debug_str {{ "{text}" }}\n{ptx}') == ""
    assert not ran.exists()


# Names of Python that an opcode or an operand could reach.
NAMES = """_init__ %r1; | _class__ %r1; | __class__; | pure; | np.array %r1, %r2; | add.u32;
    | prefetch.global.L2 [__import__]; | mov.u32 %r1, __import__; | mov.u32 __import__, %r1;
    | add.__class__.u32 %r1, %r2, %r3; | mov.u32 %r1, %__class__; | isspacep.__class__ %p1, %rd1;
    | vote.sync.__class__.pred %p1, %p1, -1; | bra __import__;"""


@pytest.mark.parametrize("statement", [name.strip() for name in NAMES.split("|")])
def test_a_name_of_python_means_nothing(statement):
    name = statement.rstrip(";").split(" ")[0]
    message = attempt(PROGRAM.format(statement))
    assert f"the simulator does not know the PTX instruction `{name}" in message


MATRIX = """wmma; | wmma.store; | mma; | mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 %r1;
    | wmma.load.a.sync %r1; | wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r1}, [%rd1];
    | wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd1]; | movmatrix.sync %r1, %r1;
    | ldmatrix.sync %r1; | ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1}, [%rd1];
    | ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, %r2; | stmatrix.sync.aligned [%rd1];
"""


@pytest.mark.parametrize("statement", [name.strip() for name in MATRIX.split("|")])
def test_a_malformed_matrix_instruction_is_refused_by_name(statement):
    name = statement.rstrip(";").split(" ")[0]
    message = attempt(PROGRAM.format(statement))
    assert f"the simulator does not know the PTX instruction `{name}" in message


HOSTILE = [f"a{end}b" for end in [*LINE_ENDS, "'", '"', "\\", "(", " ", "é", "０", ""]]


def check(instruction):
    words = registers_in((instruction.guard, *instruction.operands))
    check_words(instruction, set(words))


# A module that another reader made is checked again where it is translated.
@pytest.mark.parametrize("word", HOSTILE, ids=ascii)
def test_the_translator_checks_each_word(word):
    good = (Register("%r1"), Address(Symbol("tile"), 4), Vector((Immediate(3),)), (Symbol("x@1"),))
    check(Instruction("ld.global.L2::cache_hint.v2", good, Register("%p1")))
    bad = [Register(word), Symbol(word), Address(Symbol(word)), Address(Register(word))]
    bad += [Vector((Symbol(word),)), (Symbol(word),), Address(None, 0, (Register(word),))]
    for operand in bad if word != "ab" else []:
        with pytest.raises(UnsupportedInstruction):
            check(Instruction("prefetch", (operand,)))
    with pytest.raises(UnsupportedInstruction):
        check(Instruction(f"mov.{word}.", ()))
    with pytest.raises(UnsupportedInstruction):
        check(Instruction("mov.u32", (), Register(word + "\n")))
    assert len(printable(Instruction(f"mov.{word}", ())).splitlines()) == 1


@pytest.mark.parametrize("end", ["\n", "\r", "\x0b", "\x0c", "\x85", "\u2028"], ids=ascii)
def test_inline_assembly_can_not_run_python(tmp_path, end):
    ran = tmp_path / "ran"
    asm = json.dumps(f'prefetch "{attack(ran, end)}";', ensure_ascii=False)
    asm = asm.replace("\x85", "\\x85")
    code = (
        f'extern "C" __global__ void k(float* out) {{\n    asm volatile({asm});\n    *out = 1;\n}}'
    )
    out = np.zeros(1, np.float32)
    with pytest.raises(ParseError, match=r"PTX line \d+: a string .*kernel.cu:2\)"):
        RawModule(code=code, backend="simulator").get_function("k")((1,), (1,), (out,))
    assert not ran.exists() and out[0] == 0


def test_program_text_shows_each_instruction_on_one_line():
    program = Program(PROGRAM.format("mov.u32 %r1, 3;"))
    assert "def op0(R, c):  # mov.u32 %r1, 3;\n    R[" in program.python("k")
    assert parse(PROGRAM.format("")).functions["k"].defined


CALLED_TWICE = """.version 8.0
.target sm_80
.address_size 64
.func (.param .b32 r) f() {
.reg .b32 %r<3>;
add.u32 %r2, %r1, 7;
st.param.b32 [r], %r2;
ret;
}
.visible .entry k(.param .u64 out) {
.reg .b32 %r<3>; .reg .b64 %rd<2>; .reg .pred %p<2>;
ld.param.u64 %rd1, [out];
mov.u32 %r1, 0;
loop:
{ .param .b32 v; call.uni (v), f, (); ld.param.b32 %r2, [v]; }
add.u32 %r1, %r1, %r2;
setp.lt.u32 %p1, %r1, 20;
@%p1 bra loop;
st.global.u32 [%rd1], %r1;
ret;
}
"""


def test_a_register_that_is_never_written_is_zero_at_each_call(tmp_path):
    (tmp_path / "k.ptx").write_text(CALLED_TWICE)
    out = np.zeros(1, np.int32)
    kernel = RawModule(path=tmp_path / "k.ptx", backend="simulator").get_function("k")
    kernel((1,), (1,), (out,))
    assert out[0] == 21


# Opening and closing braces in inline assembly reach the sections of the debug information.
DEBUG = """.section .debug_abbrev {{ .b8 1,17,1,0,0, 2,46,0,3,8,17,1,49,19,0,0, 0 }}
.section .debug_info {{
.b32 {size}
.b8 2
.b8 0
.b32 .debug_abbrev
.b8 8
.b8 1
.b8 2
.b8 107
.b8 0
.b64 0
.b32 {origin}
.b8 0
}}
"""


@pytest.mark.parametrize(("size", "origin"), [(23, 12), (23, 9999), (99999, 12), (3, 12)])
def test_malformed_debug_information_is_named_or_left_aside(size, origin, tmp_path):
    ptx = CALLED_TWICE + DEBUG.format(size=size, origin=origin)
    (tmp_path / "k.ptx").write_text(ptx)
    out = np.zeros(1, np.int32)
    try:
        kernel = RawModule(path=tmp_path / "k.ptx", backend="simulator").get_function("k")
        kernel((1,), (1,), (out,))
        assert out[0] == 21
    except ParseError as error:
        assert "debug information of the PTX is malformed" in str(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (".visible .entry k(.param x) {ret;}", "a parameter without a type"),
        (".visible .entry k() {.reg .b32 %r1; @%q bra x; x: ret;}", "no special register %q"),
        (".global .b64 p = q; .visible .entry k() {ret;}", "initial value of p names q, which"),
        (".global .b32 p[2] = {p}; .visible .entry k() {ret;}", "an address in 4 bytes"),
        (".func f() {ret;} .visible .entry k() {call f, (7); ret;}", "does not know .* `call f"),
        (".func f() {ret;} .visible .entry k() {call f, (a); ret;}", "does not know .* `call f"),
    ],
)
def test_malformed_statements_are_refused_by_name(text, words):
    head = ".version 8.0\n.target sm_80\n.address_size 64\n"
    assert re.search(words, attempt(head + text))
