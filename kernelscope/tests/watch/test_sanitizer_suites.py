"""Defects that public suites hold, each in three forms or more, and clean twins of them."""

import numpy as np
import pytest
from kernelscope.errors import Hang, SimulatorError
from kernelscope.events import observe
from kernelscope.module import RawModule
from kernelscope.watch import Sanitizer
from watch_harness import kernels, launch, run

T = "const int t = threadIdx.x;\n"
CG = """#include <cooperative_groups.h>
namespace cg = cooperative_groups;
"""


def findings(body, grid=1, block=64, **options):
    zeros = (np.zeros(512, np.int32), np.zeros(1024, np.int32))
    return run(T + body, Sanitizer(), grid=grid, block=block, arrays=zeros, **options).findings


def described(body, **options):
    """'error race; warning race' and so on, the kinds in the order of their first sight."""
    found = findings(body, **options)
    return "; ".join(dict.fromkeys(f"{one.severity} {one.kind}" for one in found))


# -- structs that are passed by value --------------------------------------------------------------
STRUCTS = """
struct M { float m[33]; };
struct D { double m[200]; int n; };
__device__ float get(M a, int i) { return a.m[i]; }
__device__ double deep(D a, int i) { D c = a; c.m[i] += 1; return c.m[i] + a.m[i] + a.n; }
__device__ M change(M a, int i) { a.m[i] += 1; return a; }
__device__ float sum(M a, int i) { return i < 0 ? 0 : a.m[i] + sum(a, i - 1); }
"""
FILL = "M m; for (int i = 0; i < 33; ++i) m.m[i] = i;\n"


@pytest.mark.turns(11)
@pytest.mark.system
def test_parameters_in_memory_are_part_of_the_frame():
    body = FILL + "b[t] = get(m, t % 33) + sum(m, 3); m = change(m, t % 33); b[t] += m.m[t % 33];"
    assert findings(body, head=STRUCTS) == []
    body = "D d; d.n = 3; for (int i = 0; i < 200; ++i) d.m[i] = i; b[t] = deep(d, t);"
    assert findings(body, head=STRUCTS) == []


PART = "M m; for (int i = 0; i < 20; ++i) m.m[i] = i;\n"  # 13 members have no value
PLANES = """__shared__ int p[3][64]; for (int k = 0; k < 4; ++k) {
    p[0][t] = p[1][t]; const int x = p[2][t]; p[1][t] = x; p[2][t] = k; USE }"""
NO_VALUE = "error uninitialised-read"


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize(
    ("body", "expected", "array"),
    [
        (PART + "b[t] = get(m, t % 20);", "", ""),
        (PART + "M n = m; b[t] = get(n, t % 20) + n.m[3];", "", ""),
        (PART + "b[t] = m.m[t % 20 + 1] + 1;", NO_VALUE, "m.m"),
        (PART + "M n = m; b[t] = n.m[t % 20 + 1];", NO_VALUE, "n.m"),
        (PLANES.replace("USE", "if (k > 1) b[t] += p[0][t] + p[2][t];"), "", ""),
        (PLANES.replace("USE", "if (k > 0) b[t] += p[0][t] + p[2][t];"), NO_VALUE, "p"),
        (PLANES.replace("USE", "if (k == 3) b[t] = p[0][t];"), "", ""),
        (PLANES.replace("USE", "if (k == 1) b[t] = p[0][t];"), NO_VALUE, "p"),
        (PLANES.replace("USE", "int y[2] = {p[0][t], k}; if (k > 1) b[t] = y[t % 2];"), "", ""),
        (PLANES.replace("USE", "int y[2] = {p[0][t], k}; b[t] = y[t % 2] + 1;"), NO_VALUE, "y"),
        (PLANES.replace("USE", "if (p[0][t] > k) b[t] = 1;"), NO_VALUE, "p"),
    ],
)
def test_a_copy_of_what_has_no_value_is_judged_where_it_is_used(body, expected, array):
    assert described(body, head=STRUCTS) == expected
    assert {one.array for one in findings(body, head=STRUCTS)} == set(filter(None, [array]))


@pytest.mark.parametrize(
    ("call", "array", "index"),
    [
        ("b[t] = get(m, t + 1);", "a.m", 33),
        ("m = change(m, -t); b[t] = m.m[0];", "a.m", -1),
    ],
)
def test_an_index_past_a_parameter(call, array, index):
    found = findings(FILL + call, head=STRUCTS)[0]
    assert (found.kind, found.array, found.index) == ("out-of-bounds", array, index)


# -- volatile, scopes, locks -----------------------------------------------------------------------
RELEASE = 'asm volatile("st.release.gpu.global.s32 [%0], 1;" :: "l"(c) : "memory");'
ACQUIRE = """int seen; do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
    : "=r"(seen) : "l"(c) : "memory"); while (!seen);"""
GRID_BARRIER = """const int g = blockIdx.x; if (t == 0) { b[g] = g; __threadfence();
    if (atomicAdd((int*)c, 1) == 2) { __threadfence(); c[1] = 1; }
    while (c[1] == 0) { } __threadfence(); b[8 + g] = b[(g + 1) % 3]; }"""
CHAIN = """if (t == 0) { if (blockIdx.x == 0) { b[0] = 4; __threadfence(); c[0] = 1; }
    if (blockIdx.x == 1) { while (c[0] == 0) { } __threadfence(); c[1] = 1; }
    if (blockIdx.x == 2) { while (c[1] == 0) { } __threadfence(); b[1] = b[0]; } }"""
WAIT = "while (c[0] != blockIdx.x) { }"
ORDER = {  # name: findings, blocks, body; c is volatile and starts at 0
    "update by all": ("error race", 4, "c[0] = c[0] + 1;"),
    "update by a thread of each block": ("error race", 4, "if (t == 0) c[0] = c[0] * 2 + 1;"),
    "updates in two branches": (
        "error race",
        1,
        "if (t == 0) c[0] = c[0] + 1; else if (t == 1) c[0] = c[0] + 2;",
    ),
    "update of shared memory": (
        "error race",
        1,
        "__shared__ volatile int s[2]; s[0] = 0; __syncthreads(); __threadfence_block();\n"
        "s[0] = s[0] + 1; __syncthreads(); b[t] = s[0];",
    ),
    "other values by threads": ("error race", 1, "c[0] = t;"),
    "other values by blocks": ("error race", 2, "if (t == 0) c[0] = blockIdx.x;"),
    "one value": ("", 4, "c[0] = 1;"),
    "turns": (
        "",
        4,
        f"if (t == 0) {{ {WAIT} __threadfence(); b[0] += 2; __threadfence(); c[0] = c[0] + 1; }}",
    ),
    "turns of whole blocks": (
        "",
        4,
        f"if (t == 0) {{ {WAIT} __threadfence(); }} __syncthreads(); b[t] += 2;\n"
        "__threadfence(); __syncthreads(); if (t == 33) c[0] = blockIdx.x + 1;",
    ),
    "ping-pong": (
        "",
        2,
        "for (int i = 0; i < 4; ++i) if (t == 0) {\n"
        "while (c[0] != 2 * i + (int)blockIdx.x) { } c[0] = 2 * i + blockIdx.x + 1; }",
    ),
    "block atomics of two blocks": ("error race", 2, "atomicAdd_block(b, 1);"),
    "block atomic and device atomic": (
        "error race",
        2,
        "if (blockIdx.x) atomicAdd(b, 1); else if (t == 0) atomicAdd_block(b, 1);",
    ),
    "block atomics whose result is used": (
        "error race",
        3,
        "if (t == 0) b[1 + blockIdx.x] = atomicMax_block(b, blockIdx.x);",
    ),
    "block atomics on an element a block": ("", 2, "atomicAdd_block(b + blockIdx.x, 1);"),
    "device atomics": ("", 2, "atomicAdd(b, 1); atomicAdd_system(b + 1, 1);"),
    "block atomics in shared memory": (
        "",
        2,
        "__shared__ int s; if (t == 0) s = 0; __syncthreads(); atomicAdd_block(&s, 1);\n"
        "__syncthreads(); b[64 * blockIdx.x + t] = s;",
    ),
    "lock without a fence": (
        "warning race",
        3,
        "if (t == 0) { while (atomicCAS((int*)c, 0, 1) != 0) { }\n"
        "b[0] = b[0] + 1; __threadfence(); atomicExch((int*)c, 0); }",
    ),
    "flag without a fence": (
        "warning race",
        2,
        "if (t == 0 && blockIdx.x == 0) { b[0] = 4; __threadfence(); c[0] = 1; }\n"
        "if (t == 0 && blockIdx.x == 1) { while (c[0] == 0) { } b[1] = b[0]; }",
    ),
    "ticket of one thread without a fence": (
        "warning race",
        3,
        "if (t == 0) { b[blockIdx.x] = 1; __threadfence();\n"
        "if (atomicAdd((int*)c, 1) == 2) b[9] = b[0] + b[1] + b[2]; }",
    ),
    "lock with a fence": (
        "",
        3,
        "if (t == 0) { while (atomicCAS((int*)c, 0, 1) != 0) { } __threadfence();\n"
        "b[0] = b[0] + 1; __threadfence(); atomicExch((int*)c, 0); }",
    ),
    "lock that a volatile write frees": (
        "",
        3,
        "if (t == 0) { while (atomicCAS((int*)c, 0, 1) != 0) { } __threadfence();\n"
        "b[0] = b[0] + 1; __threadfence(); c[0] = 0; }",
    ),
    "ticket and barrier": (
        "",
        3,
        "__shared__ bool last; b[blockIdx.x * 64 + t] = 1; __threadfence(); __syncthreads();\n"
        "if (t == 0) last = atomicAdd((int*)c, 1) == 2; __syncthreads();\n"
        "if (last) b[t] += b[t + 64] + b[t + 128];",
    ),
    "release and acquire": (
        "",
        2,
        f"if (t == 0 && blockIdx.x == 0) {{ b[0] = 4; {RELEASE} }}\n"
        f"if (t == 0 && blockIdx.x == 1) {{ {ACQUIRE} b[1] = b[0]; }}",
    ),
    "released too early": (
        "error race",
        2,
        f"if (t == 0 && blockIdx.x == 0) {{ {RELEASE} b[0] = 4; }}\n"
        f"if (t == 0 && blockIdx.x == 1) {{ {ACQUIRE} b[1] = b[0]; }}",
    ),
    "grid barrier by hand": ("", 3, GRID_BARRIER),
    "grid barrier without a fence before the counter": (
        "error race",
        3,
        GRID_BARRIER.replace("b[g] = g; __threadfence();", "b[g] = g;"),
    ),
    "grid barrier without a fence behind the counter": (
        "error race",
        3,
        GRID_BARRIER.replace("{ __threadfence(); c[1] = 1; }", "c[1] = 1;"),
    ),
    "a chain of two flags": ("", 3, CHAIN),
    "a chain that the second block breaks": (
        "error race",
        3,
        CHAIN.replace("while (c[0] == 0) { } __threadfence(); c[1] = 1;", "c[1] = 1;"),
    ),
    # wording: one value written by all
    "all write and read": ("warning race", 2, "b[0] = 1; b[1 + 64 * blockIdx.x + t] = b[0];"),
    "all write and read, shared": ("warning race", 1, "__shared__ int s; s = 4; b[t] = s;"),
    "some write, all read": (
        "warning race; error race",
        1,
        "__shared__ int s; if (t < 40) s = 4; b[t] = s;",
    ),
    "a lost update": ("error race", 2, "b[0] = b[0] + 1;"),
    "a lost update of shared memory": (
        "error race",
        1,
        "__shared__ int s; if (t == 0) s = 0; __syncthreads(); s += 1; __syncthreads(); b[t] = s;",
    ),
}


@pytest.mark.turns(17)
@pytest.mark.system
@pytest.mark.parametrize("name", ORDER)
def test_order(name):
    expected, blocks, body = ORDER[name]
    parameters = "volatile int* c, int* b"
    assert described(body, grid=blocks, parameters=parameters) == expected


def test_volatile_flags_of_chunks_far_apart():
    body = "if (t == 0) { while (c[0] != blockIdx.x) { } c[0] = c[0] + 1; }"
    assert described(body, grid=30, block=1024, parameters="volatile int* c, int* b") == ""


# -- warp masks ------------------------------------------------------------------------------------
DIVERGENT = "error divergent-barrier"
WARPS = {
    "one lane too many": (DIVERGENT, "if (t <= 16) __syncwarp(0xffff); b[t] = 1;"),
    "lanes too few": (DIVERGENT, "if (t < 16) __syncwarp(0xffffffff); b[t] = 1;"),
    "a vote from outside": (DIVERGENT, "b[t] = __ballot_sync(0xff, t);"),
    "a shuffle from outside": (DIVERGENT, "if (t <= 16) b[t] = __shfl_sync(0xffff, t, 0);"),
    "lanes that ended": (
        "warning divergent-barrier",
        "if (t < 16) b[t] = __shfl_sync(0xffffffff, t, 0);",
    ),
    "lanes that ended, last": (
        "warning divergent-barrier",
        "b[t] = 1; if (t < 16) __syncwarp(0xffffffff);",
    ),
    "a source outside": (
        "warning uninitialised-read",
        "b[t] = __shfl_sync(t < 16 ? 0xffff : 0xffff0000, t, t ^ 16);",
    ),
    "right masks": (
        "",
        "b[t] = __shfl_sync(t < 16 ? 0xffff : 0xffff0000, t, t ^ 8);\n"
        "if (t < 16) __syncwarp(0xffff); const unsigned m = __ballot_sync(~0u, t < 9);\n"
        "if (t < 9) b[t] += __shfl_sync(m, t, 3); __syncwarp();",
    ),
    "return first": ("", "if (t >= 9) return; b[t] = __shfl_sync(~0u, t, 3); __syncwarp();"),
    "a vote in a loop": ("", "int i = 0; while (__any_sync(~0u, i < t)) ++i; b[t] = i;"),
}


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("name", WARPS)
def test_warp_masks(name):
    expected, body = WARPS[name]
    assert described(body, block=32) == expected


# -- barriers in functions -------------------------------------------------------------------------
FUNCTIONS = (
    CG
    + """__device__ void own() { __syncthreads(); }
__device__ void group() {
    cg::this_thread_block().sync();
}
"""
)
BARRIERS = {  # name: findings, their line in the functions above (or, below 0, in the body), body
    "own function": ("warning divergent-barrier", 3, "if (t % 2 == 0)\nown();\nb[t] = 1;"),
    "both branches": (DIVERGENT, 3, "if (t % 2 == 0)\nown();\nelse own();\nb[t] = 1;"),
    "last": ("warning divergent-barrier", -2, "b[t] = 1; if (t < 32)\n__syncthreads();"),
    "cooperative groups": (
        "warning divergent-barrier",
        -3,
        "auto block = cg::this_thread_block(); if (t % 2 == 0)\n\nblock.sync();\nb[t] = 1;",
    ),
    "inside a function": ("warning divergent-barrier", 5, "if (t < 32)\ngroup();\nb[t] = 1;"),
    "a grid": (
        "warning divergent-barrier",
        -2,
        "auto g = cg::this_grid(); if (t % 2 == 0)\ng.sync();\nb[t] = 1;",
    ),
    "a tile": (
        DIVERGENT,
        -2,
        "auto w = cg::tiled_partition<32>(cg::this_thread_block()); if (t % 2)\nw.sync();\nb[t]=1;",
    ),
    "all come": (
        "",
        0,
        "auto g = cg::this_grid(); for (int i = 0; i < 3; ++i) group(); own(); g.sync();\n"
        "if (blockIdx.x == 0) own(); else group(); b[t] = 1;",
    ),
    "return first": ("", 0, "if (t >= 40) return; own(); group(); b[t] = 1;"),
    "threads of a tile": (
        "",
        0,
        "auto w = cg::tiled_partition<8>(cg::this_thread_block()); b[t] = w.shfl_down(t, 1);\n"
        "if (t < 40) w.sync(); if (t % 3) { auto c = cg::coalesced_threads(); c.sync(); }",
    ),
}


HANG = "auto g = cg::this_grid(); if (blockIdx.x == 0)\ng.sync();\nb[t] = 1;"
WAIT = "__device__ void wait() { cg::this_grid().sync(); }\n"


@pytest.fixture(scope="module")
def barriers():
    """launch(name, grid): the findings of a body, and its first line; all are compiled at once.

    watched: under the sanitizer.
    """
    code, first, names = FUNCTIONS + WAIT, {}, {}
    others = [("hang", HANG), ("hang apart", "if (blockIdx.x == 0)\nwait();\nb[t] = 1;")]
    for name, body in [*((name, row[2]) for name, row in BARRIERS.items()), *others]:
        names[name] = f"k{len(first)}"
        code += f'extern "C" __global__ void {names[name]}(int* b) {{ const int t = threadIdx.x;\n'
        first[name] = len(code.splitlines()) + 1
        code += body + "\n}\n"
    module = RawModule(code=code, backend="simulator")

    def launch(name, grid=1, watched=True):
        seen = Sanitizer()
        with observe(*[seen] * watched):
            module.get_function(names[name])((grid,), (64,), (np.zeros(64, np.int32),))
        return seen.findings, first[name]

    return launch


@pytest.mark.turns(47)
@pytest.mark.system
@pytest.mark.parametrize("name", BARRIERS)
def test_barriers_in_functions(name, barriers):
    expected, line, _ = BARRIERS[name]
    found, first = barriers(name)
    assert "; ".join(f"{one.severity} {one.kind}" for one in found) == expected, found
    line = first - line - 1 if line < 0 else line
    assert [one.line for one in found] == ([line] if line else []), found


@pytest.mark.turns(23)
@pytest.mark.system
def test_a_grid_barrier_that_some_blocks_skip(barriers):
    """A finding where the sanitizer watches; else the launch hangs, and the line is named."""
    found, first = barriers("hang", grid=2)
    assert [(one.kind, one.line) for one in found] == [("divergent-barrier", first + 1)]
    assert "other blocks of the grid" in found[0].message and "all blocks" in found[0].remedy
    with pytest.raises(Hang, match=r"hangs at kernel\.cu:\d+ `.*\.sync\(\);"):
        barriers("hang apart", grid=2, watched=False)


@pytest.mark.turns(23)
@pytest.mark.system
def test_a_recursion_without_end_is_named_though_it_calls_others_last():
    head = "__device__ int deeper(int n, int* b) { return atomicAdd(b, 1) + deeper(n + 1, b); }"
    with pytest.raises(SimulatorError, match="does the recursion of deeper end"):
        run("b[0] = deeper(0, b);", Sanitizer(), head=head, block=1)


def test_two_barriers_of_one_line_are_told_apart():
    found = findings("if (t < 32) __syncthreads(); else __syncthreads(); b[t] = 1;")[0]
    assert "at one barrier of line 4 and 32 threads at another barrier of line 4" in found.message


TILE = """template <int N> __device__ void tile(int* b, int t) {
    __shared__ int s[4][N]; s[t / N][t % N] = t; __syncthreads(); b[t] = s[t / N + 1][t % N]; }
"""


def test_extents_by_a_template_are_known():
    found = findings("tile<16>(b, t);", head=TILE)[0]
    assert (found.array, found.index) == ("s", (4, 0))
    assert found.valid_range == "s[0..3][0..15]"


def test_a_line_directive_names_the_right_text():
    body = "\n#line 40\nb[t + 1000] = 7;\n"
    found = findings(body)[0]
    assert (found.line, found.line_text) == (40, "b[t + 1000] = 7;")
    found = findings("\n#line 2\nb[t + 1000] = 7;\n")[0]  # the kernel's head has this number too
    assert (found.line, found.line_text) == (2, "")


# -- clusters: threads that end before the barrier -------------------------------------------------
CLUSTER = """__shared__ int s[64]; const int g = blockIdx.x * 64 + t; s[t] = 0;
    cg::cluster_group c = cg::this_cluster(); int* p = c.map_shared_rank(s, c.block_rank() ^ 1);
    c.sync();
"""
SENDERS = {  # an exit is no arrival; an arrival publishes what came before it, by other threads too
    "end": (True, "if (t < 32) { p[t] = t; return; } c.sync(); if (t > 31) b[g] = s[t - 32];"),
    "end after __syncthreads()": (
        False,
        "if (t < 32) p[t] = t; __syncthreads(); if (t < 32) return; c.sync(); b[g] = s[t - 32];",
    ),
    "end, and the others meet": (
        True,
        "if (t < 32) { p[t] = t; return; } c.sync(); __syncthreads();\n"
        "if (t > 31) b[g] = s[t - 32];",
    ),
    "meet between arrival and wait": (
        True,
        "c.barrier_arrive(); if (t < 32) p[t] = t; __syncthreads(); if (t < 32) return;\n"
        "c.barrier_wait(); b[g] = s[t - 32];",
    ),
    "end two barriers before": (
        True,
        "if (t < 32) { p[t] = t; return; } c.sync(); c.sync(); if (t > 31) b[g] = s[t - 32];",
    ),
    "end with an atomic": (
        True,
        "if (t < 32) { atomicAdd(p + t, t); return; } c.sync(); if (t > 31) b[g] = s[t - 32];",
    ),
    "arrive and end": (
        False,
        "if (t < 32) { p[t] = t; c.barrier_arrive(); return; } c.sync();\n"
        "if (t > 31) b[g] = s[t - 32];",
    ),
    "wait and end": (
        False,
        "if (t < 32) p[t] = t; c.sync(); if (t < 32) return; c.sync(); b[g] = s[t - 32];",
    ),
}


@pytest.mark.turns(59)
@pytest.mark.system
@pytest.mark.parametrize("name", SENDERS)
def test_threads_of_a_cluster_that_end_early(name):
    racing, body = SENDERS[name]
    bodies = tuple(T + CLUSTER + row[1] for row in SENDERS.values())
    made = kernels(bodies, CG, "__cluster_dims__(2, 1, 1)", ("-arch=compute_90",))
    found = launch(made[T + CLUSTER + body], Sanitizer(), grid=4).findings
    assert {one.kind for one in found} == ({"race"} if racing else set()), found
    told = not racing or "ended without arriving" in found[0].remedy
    assert told is ("between" not in name)


# -- clusters: an aligned barrier in a part of a warp ----------------------------------------------
MEET = (
    "".join(
        f'#define {name}{kind} asm volatile("barrier.cluster.{ptx}{suffix};" ::: "memory")\n'
        for name, ptx in (("ARRIVE", "arrive.release"), ("WAIT", "wait.acquire"))
        for kind, suffix in (("", ".aligned"), ("_APART", ""))
    )
    + "__device__ __noinline__ void meet() { ARRIVE; WAIT; }\n"
)
AROUND = "warning divergent-barrier"
MET = {  # PTX lets single lanes come only without .aligned, and asks nothing across warps
    "a lane, the others work": (AROUND, "if (t == 0) { ARRIVE; WAIT; } b[g] = t;"),
    "a lane, the others end": (AROUND, "b[g] = t; if (t == 0) meet();"),
    "two branches": (DIVERGENT, "if (t == 0) { ARRIVE; WAIT; } else { ARRIVE; WAIT; } b[g] = t;"),
    "two calls": (DIVERGENT, "if (t == 0) meet(); else { b[g] = t; meet(); }"),
    "two arrivals": (DIVERGENT, "if (t % 2) ARRIVE; else { b[g] = t; ARRIVE; } WAIT;"),
    "a lane, not aligned": ("", "if (t == 0) { ARRIVE_APART; WAIT_APART; } b[g] = t;"),
    "not aligned": ("", "if (t == 0) ARRIVE_APART; else { b[g] = t; ARRIVE_APART; } WAIT_APART;"),
    "whole warps": (
        "",
        "if (t < 32) { b[g] = 1; ARRIVE; WAIT; } else if (t < 64) meet();\n"
        "else { ARRIVE; WAIT; } if (t < 32) meet(); b[g] = 2;",
    ),
    "lanes that ended before": (
        "",
        "if (t % 32 > 9) return; meet(); for (int i = 0; i < t; ++i) b[g] = i; meet();",
    ),
}


@pytest.mark.turns(29)
@pytest.mark.system
@pytest.mark.parametrize("name", MET)
def test_an_aligned_barrier_of_the_cluster_takes_whole_warps(name):
    expected, body = MET[name]
    grid = "const int g = blockIdx.x * blockDim.x + t;\n"
    bodies = tuple(T + grid + row[1] for row in MET.values())
    made = kernels(bodies, MEET, "__cluster_dims__(2, 1, 1)", ("-arch=compute_90",))
    found = launch(made[T + grid + body], Sanitizer(), grid=2, block=96).findings
    assert [f"{one.severity} {one.kind}" for one in found] == [expected] * bool(expected), found


# -- neighbours in shared and local memory ---------------------------------------------------------
HEAD = "__device__ int at(const int* p, int i) { return p[i]; }\n__constant__ int c[4][2];\n"
X = "__shared__ int x[64], y[64]; x[t] = 1; y[t] = 2; __syncthreads();\n"
L = "int x[8], y[8]; for (int i = 0; i < 8; ++i) { x[i] = y[i] = i + a[i]; }\n"
NEIGHBOURS = {  # name: array and index of an access out of bounds, body
    "shared": ("x", 64, X + "x[t + 64] = 3; __syncthreads(); b[t] = x[t] + y[t];"),
    "shared, constant index": ("x", 65, X + "if (t == 0) x[65] = 3; __syncthreads(); b[t] = y[t];"),
    "shared, below": ("y", -1, X + "b[t] = x[0] + y[t - 1];"),
    "shared, pointer": ("x", 64, X + "const int* p = x + 1; b[t] = p[t];"),
    "shared, function": ("x", 64, X + "b[t] = at(x, t + 1) + y[0];"),
    "dynamic, below": (
        "d",
        -1,
        "extern __shared__ int d[];\n" + X + "d[t] = 1; __syncthreads(); b[t] = d[t - 1];",
    ),
    "local": ("x", 8, L + "x[t % 16] = 4; b[t] = x[t % 8] + y[t % 8];"),
    "local, loop": ("x", 8, L + "int s = 0; for (int i = 0; i <= 8; ++i) s += x[i]; b[t] = s;"),
    "local, pointer": ("x", 8, L + "const int* p = x; p += t % 16; b[t] = *p + y[t % 8];"),
}
TIDY = {
    "shared": X + "const int* p = t % 2 ? x : y; const int* e = x + 64; b[t] = p[t] + *--e\n"
    "+ at(t % 2 ? x : y, t) + at(x, 63 - t) + (t ? *(x + t) : 0);",
    "dynamic, two parts": "extern __shared__ int d[]; int* e = d + 64; d[t] = 1; e[t] = 2;\n"
    "__syncthreads(); b[t] = d[127 - t] + e[t - 64];",
    "local": L + "int s = 0; for (const int* e = x + 8; e != x; ) s += *--e;\n"
    "for (const int* p = y; p != y + 8; ++p) s += *p; b[t] = s + at(y, 7) + at(x, t % 8);",
    "rows": "__shared__ int m[2][64]; m[0][t] = m[1][t] = t; __syncthreads(); b[t] = m[0][t + 64];",
}


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_an_index_into_the_next_array(name):
    array, index, body = NEIGHBOURS[name]
    found = [f for f in findings(body, head=HEAD, shared=512 * ("extern" in body))]
    assert [(f.kind, f.array, f.index) for f in found] == [("out-of-bounds", array, index)]


@pytest.mark.parametrize("name", TIDY)
def test_pointers_that_stay_in_their_array(name):
    assert findings(TIDY[name], head=HEAD, shared=512 * ("extern" in TIDY[name])) == []


# -- constants, function pointers ------------------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "index"),
    [
        ("const_cast<int*>(c[0])[t % 8] = 1; b[t] = 0;", (0, 0)),
        ("atomicAdd(t < 3 ? (int*)c + 5 + t : b + t, 1);", (2, 1)),
        ("if (t == 9) *(long long*)(c + 1) = 4;", (1, 0)),
    ],
)
def test_constant_memory_is_not_written(body, index):
    (found,) = findings(body, head=HEAD)
    assert (found.kind, found.severity, found.array, found.index) == (
        "read-only",
        "error",
        "c",
        index,
    )


def test_constant_memory_is_read():
    body = "const int* p = t < 3 ? c[0] : a; d[t] = p[t] + c[t % 4][t % 2]; b[t] = d[t];"
    assert findings(body, head=HEAD + "__device__ int d[64];") == []


def test_a_call_of_no_function_is_a_finding():
    body = "typedef void (*F)(int*); F f = (F)(long long)a[0];\nif (t < 7) f(b);\nb[t] = a[520];"
    first, second = findings(body)
    assert (first.kind, first.line) == ("out-of-bounds", 5) and "is no function" in first.message
    assert (second.index, second.count) == (520, 64 - 7), "the threads that called it have ended"


# -- members ---------------------------------------------------------------------------------------
PART = "float4 w; w.x = 1; w.y = 2; const float4* p = a[t] > 500 ? (float4*)a : &w;\n"
BITS = "struct B { int x : 5; int y : 7; unsigned z : 20; }; B v;\n"
USE = "const B* p = a[t] < 999 ? &v : (B*)a; b[t] = p->x + p->y;"
MEMBERS = {
    "a copy is used": ("error", PART + "float4 q = *p; b[t] = q.z;"),
    "a copy of a copy": ("error", PART + "float4 q = *p, r = q; b[t] = r.w + r.x;"),
    "an element is used": ("error", PART + "b[t] = p->z + p->x;"),
    "written whole": ("warning", PART + "((float4*)b)[t] = *p;"),
    "no bit-field was set": ("error", BITS + USE),
    "bits of a number": ("error", "int z; int* q = a[t] < 9 ? &z : a; *q &= 3; b[t] = z;"),
    "only what is there": ("", PART + "float4 q = *p; b[t] = q.x + q.y;"),
    "set later": ("", PART + "float4 q = *p; q.z = q.w = 3; b[t] = q.z + q.w; "),
    "part of a struct": (
        "",
        "struct S { int n; float d[3]; }; S w; w.n = 1; w.d[0] = 2;\n"
        "S* p = a[t] > 500 ? (S*)a : &w; S q = *p; b[t] = q.n + q.d[0];",
    ),
    "bit-fields": ("", BITS + "v.x = t; v.y = 3; v.z = 0;" + USE),
    "bits all off and on": ("", BITS + "v.x = 0; v.y = -1;" + USE),
    "bit-fields of bytes": (
        "",
        "struct C { unsigned char u : 3, v : 5; short h : 9; }; C v; v.u = t; v.v = 2; v.h = t;\n"
        "const C* p = a[t] < 999 ? &v : (C*)a; b[t] = p->u + p->v + p->h;",
    ),
}


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("name", MEMBERS)
def test_members(name):
    expected, body = MEMBERS[name]
    kinds = described(body).split("; ")
    assert kinds == ([f"{expected} uninitialised-read"] if expected else [""])


def test_a_misaligned_local_array_is_told_of_the_optimised_build():
    body = (
        "half h[9]; for (int i = 0; i < 9; ++i) h[i] = __int2half_rn(i + a[i]);\n"
        "float2 q = *(float2*)(h + 1 + a[t]); b[t] = q.x;"
    )
    found = findings(body, block=1, head="#include <cuda_fp16.h>")[0]
    assert found.kind == "misaligned" and "optimised build" in found.message
