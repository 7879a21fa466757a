"""How the sanitizer names elements: as the source subscripts them, where it knows the extents."""

from ast import literal_eval

import numpy as np
import pytest
from kernelscope.watch import Sanitizer
from kernelscope.watch.sanitizer.elements import Array, element
from watch_harness import run

HEAD = """#define TILE 4
__device__ int table[3][5];
__device__ float sum(const float (*rows)[3], int n) {
    float total = 0;
    for (int i = 0; i < n; ++i) total += rows[i][2];
    return total;
}
"""


def findings(body, *, block=32, head=HEAD, **options):
    body = f"const int t = threadIdx.x;\n{body}"
    return run(body, Sanitizer(), head=head, block=block, **options).findings


TILE = "__shared__ float tile[TILE][TILE + 1];"


def table(text):
    """Rows by name; the cells of a row stand on one line or on several, indented ones."""
    rows = [row.split(" | ") for row in text.strip().replace("\n    ", " | ").splitlines()]
    return {name: cells for name, *cells in rows}


# name | body | array | index | words | valid elements
SHARED = table("""
a race | {TILE} tile[t / 4 % 4][t % 4] = t;
    tile | (0, 0) | overwrites tile[0][0], which | tile[0..3][0..4]
never written | {TILE} b[t] = tile[1][4];
    tile | (1, 4) | reads tile[1][4], which nothing | tile[0..3][0..4]
past the end | __shared__ int s[8][9]; s[t][3] = t;
    s | (8, 3) | writes s[8][3] (valid: s[0..7][0..8]) | s[0..7][0..8]
before the start | __shared__ int s[8][9]; if (t == 0) s[-1 - a[0]][8] = t;
    s | (-1, 8) | writes s[-1][8] (valid: s[0..7][0..8]) | s[0..7][0..8]
three dimensions | __shared__ char s[2][3][4]; b[t] = s[1][2][3];
    s | (1, 2, 3) | reads s[1][2][3], which | s[0..1][0..2][0..3]
a member | __shared__ float4 v[8]; b[t] = v[2].z;
    v | (2, 2) | reads v[2].z, which | v[0..7]
rows of vectors | __shared__ float2 v[3][5]; b[t] = v[2][4].y;
    v | (2, 4, 1) | reads v[2][4].y, which | v[0..2][0..4]
dynamic | extern __shared__ float d[]; b[t] = d[5];
    d | 5 | reads d[5], which | elements 0 to 15 of d
misaligned | __shared__ int s[4][5]; if (t == 0) *(double*)&s[1][0 * t] = 1;
    s | (1, 0) | 8 bytes at once at s[1][0], whose | s[0..3][0..4]
a variable | table[t % 3][1] = t;
    table | (0, 1) | overwrites table[0][1], which | table[0..2][0..4]
""")
# name | body | array | index | words
LOCAL = table("""
never written | float x[4][3]; x[3][1] = t; b[t] = x[a[t] & 1][2];
    x | (0, 2) | reads x[0][2], which it
past the end | float x[4][3]; x[a[t] & 3][0] = t; b[t] = x[500 + a[t]][1];
    x | (500, 1) | reads x[500][1] (valid: x[0..3][0..2])
past the stack | float x[4][3]; x[a[t] & 3][0] = t; x[500000 + a[t]][2] = 1;
    x | (500000, 2) | writes x[500000][2] (valid: x[0..3][0..2])
in a function | float x[2][3]; x[0][a[t] & 1] = 1; b[t] = sum(x, 1);
    x | (0, 2) | reads x[0][2], which it
a member | float4 w[2]; w[a[t] & 1].x = 1; b[t] = w[a[t] & 1].y;
    w | (0, 1) | reads w[0].y, which
a scalar | int z; b[t] = *(a[t] > 500 ? &a[t] : &z);
    z | None | reads z, which it has
""")
BETWEEN = """__align__(16) int x[5]; __align__(16) int y[4]; x[a[t] & 3] = y[a[t] & 3] = 1;
b[t] = x[5 + (a[t] & 1)];"""
LOCAL["between two arrays"] = (BETWEEN, "x", "5", "reads element 5 of x, which has elements 0 to 4")


@pytest.mark.parametrize("name", SHARED)
def test_elements_of_shared_arrays(name):
    body, array, index, words, valid = SHARED[name]
    found = findings(body.replace("{TILE}", TILE), shared=64 if "extern" in body else 0)[0]
    assert (found.array, found.index, found.valid_range) == (array, literal_eval(index), valid)
    assert words in found.message


@pytest.mark.parametrize("name", LOCAL)
def test_elements_of_local_arrays(name):
    body, array, index, words = LOCAL[name]
    found = next(f for f in findings(body, block=2) if f.array != "b")
    assert (found.array, found.index) == (array, literal_eval(index))
    assert words in found.message, found.message


def test_extents_that_the_compiler_is_given():
    body = "__shared__ float s[R][C]; b[t] = s[1][0];"
    (found,) = findings(body, options=("-DR=2", "-DC=7"), head="")
    assert found.index == (1, 0) and found.valid_range == "s[0..1][0..6]"


def test_extents_that_are_not_known_leave_the_flat_index():
    body = "__shared__ float s[sizeof(short)][sizeof(int)]; b[t] = s[1][1] + 1;"
    (found,) = findings(body, head="")
    assert found.index == 5 and "reads s[5]" in found.message


def test_one_extent_that_is_not_known_follows_from_the_size():
    body = "__shared__ float s[2][sizeof(int)]; b[t] = s[1][1] + 1;"
    (found,) = findings(body, head="")
    assert found.index == (1, 1) and found.valid_range == "s[0..1][0..3]"


def test_two_declarations_of_one_name_and_size_are_not_mixed_up():
    head = (
        'extern "C" __global__ void other(int* b) {\n__shared__ int s[3][2];\n'
        "s[threadIdx.x][1] = 1; __syncthreads(); b[0] = s[0][0];\n}\n"
    )
    (found,) = findings("__shared__ int s[2][3]; b[t] = s[1][1];", head=head)
    assert found.index == 4


def test_arrays_of_the_caller_have_the_caller_shape():
    out = np.zeros((2, 3, 32), np.int32)
    kernel = findings("b[t * 0 + 40] = t;", arrays=(out, out.copy()))
    assert kernel[0].index == (0, 1, 8) and kernel[0].valid_range == "b[0..1][0..2][0..31]"
    (found,) = findings("b[192 + t] = t;", arrays=(out, out.copy()))
    assert found.index == 192, "past its end the kernel's own index says more"


@pytest.mark.parametrize(
    ("byte", "index", "text"),
    [
        (0, (0, 0), "m[0][0]"),
        (4 * 11, (2, 1), "m[2][1]"),
        (4 * 15, (3, 0), "m[3][0]"),
        (-4, (-1, 4), "m[-1][4]"),
    ],
)
def test_an_element_of_a_matrix(byte, index, text):
    found = element(Array("m", 100, 60, 4, (3, 5)), 100 + byte)
    assert (found.index, found.text, found.valid) == (index, text, "m[0..2][0..4]")


def test_a_shape_that_does_not_fill_the_bytes_is_not_believed():
    found = element(Array("m", 0, 64, 4, (3, 5)), 24)
    assert (found.index, found.text, found.valid) == (6, "m[6]", "elements 0 to 15 of m")


def test_a_wide_access_that_begins_inside_says_how_wide_it_is():
    body = "const float4 v = *(const float4*)(a + 4 * t); b[t] = (int)(v.x + v.w);"
    arrays = (np.zeros(7, np.int32), np.zeros(2, np.int32))
    (found,) = findings(body, block=2, arrays=arrays)
    assert "reads 16 bytes at once at element 4 of a, which has elements 0 to 6" in found.message
