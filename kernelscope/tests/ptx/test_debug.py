"""What the debug build's DWARF says: names, types, scopes, places, and shapes of shared arrays."""

from pathlib import Path

import numpy as np
import pytest
from kernelscope import RawModule
from kernelscope.ptx import debug_names
from kernelscope.ptx.demangle import demangle
from kernelscope.ptx.dwarf import Reader
from kernelscope.ptx.parser import parse
from kernelscope.ptx.shared_shapes import declared_arrays, evaluate
from kernelscope.ptx.tokens import words_of

SOURCE = r"""
#define COLUMNS 3
#ifndef ROWS
#define ROWS 2
#endif
struct Pair { float first; int second; };
extern __shared__ float dynamic[];
__device__ __noinline__ float total_of(const float* row, int n) {
    float total = 0.0f;
    for (int j = 0; j < n; ++j) {
        float x = row[j];
        total += x * x;
    }
    return total;
}
__device__ __forceinline__ float twice(float value) {
    float result = value + value;
    return result;
}
extern "C" __global__ void names(const float* q, float* out, int n, double weight) {
    constexpr int WIDE = COLUMNS + 1;
    __shared__ float table[ROWS][WIDE], other[ROWS * 2];
    __shared__ float2 pairs[COLUMNS];
    float scores[4][2] = {};
    float4 quads[2];
    quads[threadIdx.x & 1] = make_float4(q[0], q[1], q[2], q[3]);
    Pair pair;
    pair.first = q[threadIdx.x];
    pair.second = threadIdx.x;
    unsigned char small = (unsigned char)threadIdx.x;
    table[0][threadIdx.x % WIDE] = q[0];
    other[threadIdx.x % 4] = q[1];
    pairs[threadIdx.x % 3] = make_float2(q[0], q[1]);
    dynamic[threadIdx.x] = total_of(q, n);
    for (int i = 0; i < 4; ++i) {
        const float step = q[i];
        scores[i][threadIdx.x & 1] += step;
    }
    __syncthreads();
    for (int i = 3; i >= 0; --i) {
        out[threadIdx.x] += twice(scores[i][0]) + small + table[0][0] + other[0] + pairs[0].x;
        out[threadIdx.x] += quads[i & 1].x;
    }
    out[threadIdx.x] += pair.first + pair.second + weight + dynamic[0];
}
"""


@pytest.fixture(scope="module")
def program():
    return RawModule(code=SOURCE, backend="simulator").program("debug")


@pytest.fixture(scope="module")
def found(program):
    return debug_names.variables(program, "names")


def shared_arrays(program, kernel):
    places = program.executable(kernel).shared_places.items()
    sizes = {demangle(name): variable.size for name, (_, variable) in places}
    return debug_names.shared_arrays(program, sizes)


def only(found, name, function=""):
    chosen = [v for v in found if v.name == name and v.function == function]
    assert len(chosen) == 1, f"{name}: {chosen}"
    return chosen[0]


def line_of(text):
    return next(i for i, line in enumerate(SOURCE.splitlines(), 1) if text in line)


@pytest.mark.parametrize(
    ("name", "type_", "dtype", "shape"),
    [
        ("q", "const float*", "u8", ()),
        ("out", "float*", "u8", ()),
        ("n", "int", "i4", ()),
        ("weight", "double", "f8", ()),
        ("small", "unsigned char", "u1", ()),
        ("scores", "float[4][2]", "f4", (4, 2)),
        ("quads", "float4[2]", "f4", (2, 4)),
        ("pair.first", "float", "f4", ()),
        ("pair.second", "int", "i4", ()),
        ("step", "const float", "f4", ()),
    ],
)
def test_types_are_as_the_source_declares_them(found, name, type_, dtype, shape):
    variable = only(found, name)
    assert (variable.type, variable.dtype, variable.shape) == (type_, dtype, shape)
    assert variable.is_pointer == (name in ("q", "out"))


def test_lines_are_those_of_the_declarations(found):
    assert only(found, "small").line == line_of("unsigned char small")
    assert only(found, "scores").line == line_of("float scores[4][2]")
    assert only(found, "step").line == line_of("const float step")


def test_registers_carry_the_name_that_the_ptx_uses(program, found):
    registers = program.module.functions["names"].registers
    places = [r.place for v in found for r in v.ranges if r.place.kind == "register"]
    assert places and all(place.name in registers for place in places)
    kinds = {registers[r.place.name] for r in only(found, "step").ranges}
    assert kinds == {"f32"}


def test_members_of_a_struct_lie_where_c_puts_them(found):
    first, second = (only(found, f"pair.{name}").ranges[0].place for name in ("first", "second"))
    assert first.kind == second.kind == "local"
    assert second.name == first.name and second.offset == first.offset + 4


def test_a_variable_is_absent_before_its_declaration_and_outside_its_scope(program, found):
    body = program.module.functions["names"].body
    step = only(found, "step")
    inside = {program.own_line(body[i]) for i in range(len(body)) if step.place_at(i)}
    assert inside == {line_of("+= step")}  # what comes next there, once it has its value
    assert not step.place_at(0) and not step.place_at(len(body) - 1)


def test_two_loops_have_a_variable_each(found):
    lines = sorted(v.line for v in found if v.name == "i" and not v.function)
    assert lines == [line_of("int i = 0"), line_of("int i = 3")]


def test_inlined_and_called_functions_have_their_own_variables(program, found):
    assert only(found, "value", "twice").type == "float"
    name = next(n for n in program.module.functions if "total_of" in n)
    called = debug_names.variables(program, name)
    assert [v.name for v in called] == ["row", "n", "total", "j", "x"]
    assert debug_names.source_name(program, name) == "total_of"
    assert debug_names.source_name(program, "names") == "names"


def test_written_registers_lists_only_registers_of_variables(program, found):
    written = debug_names.written_registers(program, "names")
    assert len(written) == len(program.module.functions["names"].body)
    names = {r.place.name for v in found for r in v.ranges if r.place.kind == "register"}
    assert {name for row in written for name in row} == names


def test_shared_arrays_have_their_declared_shapes(program):
    arrays = shared_arrays(program, "names")
    shapes = {name: (array.dtype, array.shape) for name, array in arrays.items()}
    assert shapes == {
        "table": ("f4", (2, 4)),
        "other": ("f4", (4,)),
        "pairs": ("f4", (3, 2)),
        "dynamic": ("f4", (-1,)),
    }


def test_compiler_options_change_the_shapes():
    program = RawModule(code=SOURCE, options=("-DROWS=5",), backend="simulator").program("debug")
    assert shared_arrays(program, "names")["table"].shape == (5, 4)


def test_a_shape_that_does_not_fit_the_bytes_is_not_believed():
    source = """
    #define N 4
    extern "C" __global__ void k(float* out) {
    #undef N
    #define N 8
        __shared__ float a[N];
    #undef N
    #define N 3
        a[threadIdx.x] = 1.0f;
        out[threadIdx.x] = a[threadIdx.x];
    }"""
    program = RawModule(code=source, backend="simulator").program("debug")
    assert program.resources("k").shared_bytes == 32
    assert "a" not in shared_arrays(program, "k")


def test_sections_of_bytes_are_read_at_once_and_mixed_ones_word_by_word():
    """Both ways give the bytes that a debug section of NVRTC's or of any other compiler has."""
    module = parse(RawModule(code=SOURCE, backend="simulator").ptx("debug"))
    reader, text = Reader(module), module.sections[".debug_info"]
    odd = ".b8 7\n.b8 008, 256 ,-1\n.b32 $L__a+3, 70000\n.b8 255,0,1\n.b64 2\n1 .b8 9 .b8 4;"
    for section in (text, odd, f"{text} {odd} {text}"):
        assert reader.section(section) == reader.mixed(words_of(section))


def test_the_optimised_build_has_no_variables():
    program = RawModule(code=SOURCE, backend="simulator").program()
    assert debug_names.variables(program, "names") == ()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("32", 32),
        ("2 * (3 + 4)", 14),
        ("A + 1", 8),
        ("A << 2", 28),
        ("7 / 2", 3),
        ("B", None),
        ("sizeof(int)", None),
        ("A ? 1 : 2", None),
        ("LOOP", None),
        ("1 << (0 - 1)", None),
        ("1 << (1 << 40)", None),
        ("(" * 500 + "1" + ")" * 500, None),
    ],
)
def test_constant_expressions(text, value):
    constants = {"A": "C - 3", "C": "10", "LOOP": "LOOP + 1"}
    assert evaluate(text, constants) == value


def test_declarations_that_no_compiler_takes_are_left_out():
    text = """#if 0
    __shared__ float a[1 << (0-1)], b[1 << 60], c[0-2][0-2];
    #endif
    __shared__ float d[2][3];"""
    assert [array.name for array in declared_arrays(text, ())] == ["d"]


def test_tiles_of_a_kernel_are_found():
    path = Path(__file__).resolve().parents[1] / "kernels" / "scores_tiled.cu"
    module = RawModule(path=path, options=("-DTILE=8", "-DPAD=1"), backend="simulator")
    arrays = shared_arrays(module.program("debug"), "scores_tiled")
    assert arrays["tile_query"].shape == (8, 8)
    assert arrays["tile_key"].shape == (8, 9)
    assert np.dtype(arrays["tile_key"].dtype) == np.float32


@pytest.mark.parametrize(
    ("mangled", "name"),
    [
        ("_ZZ5tiledE10tile_query", "tile_query"),
        ("_ZZ6scaledI4PairEvPT_E4tile", "tile"),
        ("_ZZ4tileILi8EEvPiiE1s", "s"),
        ("_Z6scaledIfLi3EEvPT_iS1_", "scaled"),
        ("_Z4drawP4Pair", "draw"),
        ("_ZN4math6scaledIfEEvPf", "scaled"),
        ("_ZL5table", "table"),
        ("plain", "plain"),
        ("_Z0", "_Z0"),
    ],
)
def test_names_of_the_source(mangled, name):
    assert demangle(mangled) == name


def test_names_that_a_source_gives_to_types():
    text = """typedef unsigned long long u64; using word = u64; using other = struct X;
    __shared__ u64 full[2]; __shared__ word one, both[3][2]; __shared__ other none;"""
    found = {array.name: array for array in declared_arrays(text, ())}
    assert {name: one.shape for name, one in found.items()} == {
        "full": (2,), "one": (), "both": (3, 2),
    }  # fmt: skip
    assert {one.dtype for one in found.values()} == {"u8"}
    assert [found["both"].element(8 * k) for k in (0, 3, 4)] == [
        "both[0][0]",
        "both[1][1]",
        "both[2][0]",
    ]
    assert found["full"].element(8) == "full[1]" and found["one"].element(0) == "one[0]"
