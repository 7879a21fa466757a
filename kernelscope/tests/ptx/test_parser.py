"""The PTX parser: text to data, one construct at a time."""

import pytest
from kernelscope.ptx.parser import ParseError, parse
from kernelscope.ptx.syntax import (
    Address,
    Immediate,
    Inverted,
    Pair,
    Position,
    Register,
    Symbol,
    Vector,
)

HEAD = ".version 8.8\n.target sm_80, debug\n.address_size 64\n"


def function(body, parameters="", head=""):
    text = f"{HEAD}{head}.visible .entry k({parameters})\n{{\n{body}\nret;\n}}\n"
    return parse(text).functions["k"]


def first(statement, registers=".reg .b32 %r<9>; .reg .pred %p<3>; .reg .b64 %rd<4>;"):
    return function(registers + "\n" + statement).body[0]


def test_module_head_and_files():
    module = parse(HEAD + '.file 1 "/a/b.cu", 123, 456\n.file\t2 "c.h"\n// a comment\n/* more\n */')
    assert (module.version, module.target) == ("8.8", "sm_80")
    assert module.files == {1: "/a/b.cu", 2: "c.h"}


@pytest.mark.parametrize(
    ("text", "name", "size", "align", "initial"),
    [
        (".global .u32 x;", "x", 4, 4, None),
        (".visible .global .align 8 .b8 y[24];", "y", 24, 8, None),
        (
            ".const .align 4 .f32 z[3] = {0f3F800000, 0fC0000000, 0f00000000};",
            "z",
            12,
            4,
            bytes.fromhex("0000803f000000c000000000"),
        ),
        (".global .s16 w[4] = {1, -2};", "w", 8, 2, bytes.fromhex("0100feff")),
        (".global .f64 d = 0dBFF0000000000000;", "d", 8, 8, bytes.fromhex("000000000000f0bf")),
        (".global .b8 m[2][3] = {{1, 2, 3}, {4, 5, 255}};", "m", 6, 1, bytes([1, 2, 3, 4, 5, 255])),
        (".global .align 1 .b8 open[] = {72, 105, 0};", "open", 3, 1, b"Hi\0"),
        (".extern .shared .align 16 .b8 dynamic[];", "dynamic", 0, 16, None),
    ],
)
def test_variables(text, name, size, align, initial):
    variable = parse(HEAD + text).variables[name]
    assert (variable.size, variable.align, variable.initial) == (size, align, initial)


def test_variables_that_hold_addresses():
    text = ".global .u32 a[4];\n.global .u64 p[3] = {generic(a)+8, 5, a};"
    variable = parse(HEAD + text).variables["p"]
    assert variable.relocations == ((0, "a"), (16, "a"))
    assert variable.initial == (8).to_bytes(8, "little") + (5).to_bytes(8, "little") + bytes(8)


def test_entry_with_parameters_and_limits():
    text = (
        HEAD + ".weak .entry k(.param .u64 .ptr .global .align 4 k_param_0,\n.param .align 8 .b8 "
        "k_param_1[20],\n.param .f32 k_param_2\n)\n.maxntid 32, 4, 1\n.minnctapersm 2\n{ ret; }"
    )
    made = parse(text).functions["k"]
    assert [(p.name, p.type, p.size, p.align) for p in made.parameters] == [
        ("k_param_0", "u64", 8, 4),
        ("k_param_1", "b8", 20, 8),
        ("k_param_2", "f32", 4, 4),
    ]
    assert made.is_entry and made.limits == {"maxntid": (32, 4, 1), "minnctapersm": (2,)}


def test_device_functions():
    text = (
        HEAD + ".func (.param .b32 out) f(.param .b32 a, .param .b64 b);\n"
        ".func (.param .b32 out) f(.param .b32 a, .param .b64 b)\n{ .reg .b32 %r<2>; ret; }\n"
        ".extern .func (.param .b32 r) vprintf(.param .b64 x, .param .b64 y);"
    )
    functions = parse(text).functions
    assert [v.name for v in functions["f"].returns] == ["out"] and functions["f"].defined
    assert not functions["vprintf"].defined and not functions["f"].is_entry


@pytest.mark.parametrize(
    ("statement", "opcode", "operands"),
    [
        ("add.s32 %r1, %r2, -5;", "add.s32", (Register("%r1"), Register("%r2"), Immediate(-5))),
        ("mov.u32 %r1, 0xFF;", "mov.u32", (Register("%r1"), Immediate(255))),
        ("mov.u32 %r1, 4294967295U;", "mov.u32", (Register("%r1"), Immediate(4294967295))),
        ("mov.f32 %r1, 0f40490FDB;", "mov.f32", (Register("%r1"), Immediate(0x40490FDB, 32))),
        (
            "ld.global.v2.u32 {%r1, %r2}, [%rd1+-8];",
            "ld.global.v2.u32",
            (Vector((Register("%r1"), Register("%r2"))), Address(Register("%rd1"), -8)),
        ),
        ("ld.b32 {%r1}, [%rd1];", "ld.b32", (Register("%r1"), Address(Register("%rd1"), 0))),
        ("st.b32 [%rd1], {%r1};", "st.b32", (Address(Register("%rd1"), 0), Register("%r1"))),
        ("mma.x {%r1}, %r2;", "mma.x", (Vector((Register("%r1"),)), Register("%r2"))),
        (
            "st.shared.u32 [tile+12], %r1;",
            "st.shared.u32",
            (Address(Symbol("tile"), 12), Register("%r1")),
        ),
        ("ld.global.u32 %r1, [64];", "ld.global.u32", (Register("%r1"), Address(None, 64))),
        (
            "setp.lt.and.s32 %p1|%p2, %r1, 7, !%p0;",
            "setp.lt.and.s32",
            (
                Pair(Register("%p1"), Register("%p2")),
                Register("%r1"),
                Immediate(7),
                Inverted(Register("%p0")),
            ),
        ),
        ("mov.u64 %rd1, tile;", "mov.u64", (Register("%rd1"), Symbol("tile"))),
        ("mov.u32 %r1, %tid.x;", "mov.u32", (Register("%r1"), Register("%tid.x"))),
        ("mov.u32 %r1, WARP_SZ;", "mov.u32", (Register("%r1"), Immediate(32))),
        ("bar.sync 0;", "bar.sync", (Immediate(0),)),
        (
            "call.uni (retval0), f, (param0, param1);",
            "call.uni",
            ((Symbol("retval0"),), Symbol("f"), (Symbol("param0"), Symbol("param1"))),
        ),
        (
            "ld.shared::cluster.u32 %r1, [%r2];",
            "ld.shared::cluster.u32",
            (Register("%r1"), Address(Register("%r2"))),
        ),
    ],
)
def test_instructions(statement, opcode, operands):
    instruction = first(statement)
    assert (instruction.opcode, instruction.operands) == (opcode, operands)


def test_guards_labels_and_tables():
    made = function(
        ".reg .pred %p1; .reg .b32 %r1;\n@!%p1 bra $L1;\nts: .branchtargets $L1, $L2;\n"
        "brx.idx %r1, ts;\n$L1:\n$L2: mov.u32 %r1, 3;"
    )
    assert made.body[0].guard == Register("%p1") and made.body[0].guard_negated
    assert made.labels == {"$L1": 2, "$L2": 2} and made.tables == {"ts": ("$L1", "$L2")}
    assert [instruction.index for instruction in made.body] == [0, 1, 2, 3]


def test_scopes_of_inline_asm_keep_their_names_apart():
    made = function(
        ".reg .b32 t; mov.u32 t, 1;\n"
        "{ .reg.b32 t; .reg.pred p; L: mov.u32 t, 2; @p bra L; @p bra END; END: }\n"
        "{ .reg .f32 t; L: mov.f32 t, 0f00000000; bra L; }\nmov.u32 t, 3;"
    )
    names = [instruction.operands[0].name for instruction in made.body[:-1]]
    outer, inner, back, forward, other, again, last = names
    assert outer == last == "t" and len({outer, inner, other}) == 3
    assert made.registers[inner] == "b32" and made.registers[other] == "f32"
    assert made.labels[back] == 1 and made.labels[forward] == 4 and made.labels[again] == 4
    assert back != again


def test_a_name_of_an_outer_scope_is_not_that_of_one_inside_it():
    made = function("{ { .reg .b32 t; mov.u32 t, 1; } .reg .f32 t; mov.f32 t, 0f00000000; }")
    inner, outer = (instruction.operands[0].name for instruction in made.body[:2])
    assert (made.registers[inner], made.registers[outer]) == ("b32", "f32")


def test_source_positions():
    made = function(
        ".reg .b32 %r<3>;\n.loc 1 10 5\nmov.u32 %r1, 1;\n.loc 2 7 3, function_name info0+4, "
        "inlined_at 1 12 9\nmov.u32 %r2, 2;\n.loc 1 0 0\nmov.u32 %r1, 4;"
    )
    outer = Position(1, 12, 9)
    assert [instruction.position for instruction in made.body[:3]] == [
        Position(1, 10, 5),
        Position(2, 7, 3, outer),
        Position(2, 7, 3, outer),
    ]


def test_debug_sections_are_kept():
    text = ".section .debug_str\n{\ninfo0:\n.b8 95,90\n.b8 0\n}\n.section .debug_loc { }"
    module = parse(HEAD + text)
    assert module.sections == {
        ".debug_str": "\ninfo0:\n.b8 95,90\n.b8 0\n",
        ".debug_loc": "",
    }


@pytest.mark.parametrize(
    "statement",
    [
        "add.s32 %r1, %r2, -5;",
        "@!%p1 ld.global.v2.u32 {%r1, %r2}, [%rd1+8];",
        "setp.eq.s32 %p1|%p2, %r1, 7;",
        "mov.f32 %r1, 0f40490FDB;",
        "st.shared.u32 [tile+12], %r1;",
    ],
)
def test_instructions_print_as_they_were_written(statement):
    assert str(first(statement)) == statement


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEAD + ".what x;", "PTX line 4: unknown directive '.what'"),
        (HEAD + ".global .align 4;", "PTX line 4: a variable without a type"),
        (HEAD + ".entry k()\n{\nmov.u32 %r1, 3\n}", "PTX line 7: expected ';'"),
        (HEAD + ".entry k()\n{\nret;\n", "k does not end"),
        (HEAD + ".pragma 5", "PTX line 4: the text ends"),
        (HEAD + ".entry k() {\nret; \x01 }", "PTX line 5: cannot read"),
        (HEAD + ".entry k() { ret; }\n.entry k() { ret; }", "k is defined twice"),
        (HEAD + ".global .v4 .f32 x;", "vector-typed variables"),
    ],
)
def test_what_can_not_be_read_is_named_with_its_line(text, message):
    with pytest.raises(ParseError, match=message):
        parse(text)


# A kernel as NVRTC writes debug builds, and what else may stand in one.
WITH_BODY = (
    HEAD
    + """.global .align 4 .u32
    kept[2];
.visible .entry k(
\t.param .u64 k_param_0
)
{
\t.reg .b32 \t%r<4>;
\t.shared .align 4 .b8 first[64];
\t.loc\t1 3 0
$L__func_begin0:
\t.loc\t1 3 0

\tmov.u32 \t%r1, %tid.x;
\t@%p1 bra \t$L__BB0_1;
\t{ // call sequence
\t.param .b32 param0;
\tst.param.b32 \t[param0+0], %r1;
\tcall.uni
\tf,
\t(
\tparam0
\t);
\t}
\t.loc\t1 4 1, function_name $L__info_string0, inlined_at 1 3 0
\tadd.s32 \t%r2, %r1, 1; .shared .align 8 .b8 second[8];
\t.shared .u32
\tthird;
$L__BB0_1:
\tret;
}
\t.section\t.debug_str
\t{
$L__info_string0:
.b8 95,90,0
\t}
"""
)


def test_without_bodies_all_else_is_the_same():
    whole, short = parse(WITH_BODY), parse(WITH_BODY, bodies=False)
    one, other = whole.functions["k"], short.functions["k"]
    assert one.body and not other.body and one.parameters == other.parameters
    assert list(other.variables) == ["k_param_0", "first", "second", "third"]
    assert all(one.variables[name] == variable for name, variable in other.variables.items())
    assert short.sections == whole.sections and "info_string0" in short.sections[".debug_str"]
    line = WITH_BODY[: WITH_BODY.index("$L__info_string0:")].count("\n")
    with pytest.raises(ParseError, match=f"PTX line {line}: expected"):
        parse(WITH_BODY.replace("\t{\n$L__info", "$L__info"), bodies=False)
