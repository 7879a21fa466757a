"""Fences with flags and tickets between blocks, warp by warp, and what the remedies name."""

import numpy as np
import pytest
from kernelscope.watch import Sanitizer
from watch_harness import kernels, launch, run

HEAD = """
#define TICKETS ((unsigned*)a + 200)
#define FLAG (a + 201)
#define GO (*(volatile int*)(a + 202))
#define FLAGS (a + 208)
__device__ int first(volatile int* s, int v) { s[threadIdx.x] = v; __syncthreads(); return s[0]; }
__device__ int waits(volatile int* s) { return s[0]; }
"""
START = "const int t = threadIdx.x, g = blockIdx.x * blockDim.x + t;\n"
ERROR, WARNING = "error race", "warning race"

TICKET = """__shared__ bool last; a[g] = g; BEFORE
    if (t == 0) { FENCE last = atomicAdd(TICKETS, 1) == gridDim.x - 1; } __syncthreads();
    if (last) { __threadfence(); b[t] = a[t] + a[t + 64]; }"""
GRID = """a[g] = g; BEFORE if (t == 0) { __threadfence();
    if (atomicAdd(TICKETS, 1) == gridDim.x - 1) { __threadfence(); GO = 1; }
    while (!GO); __threadfence(); } AFTER b[g] = a[(g + 64) % 128];"""
FLAGS = """const int w = t / 32; if (blockIdx.x == 0) { a[t] = t; __threadfence(); __syncwarp();
    if (t % 32 == 0) atomicExch(&FLAGS[w], 1); }
    else { if (t % 32 == 0) while (atomicAdd(&FLAGS[w], 0) == 0); __syncwarp(); __threadfence();
    b[t] = a[PLACE]; }"""
ONE = """if (blockIdx.x == 0) { a[t] = t; BEFORE
    if (t == 0) { __threadfence(); atomicExch(FLAG, 1); } }
    else { if (t == 0) { while (atomicAdd(FLAG, 0) == 0); __threadfence(); } AFTER
    b[t] = a[63 - t]; }"""
RELEASE = """if (blockIdx.x == 0) { a[t] = t; BEFORE
    if (t == 0) asm volatile("st.release.gpu.u32 [%0], 1;" :: "l"(FLAG) : "memory"); }
    else { int v = 0; if (t == 0) do asm volatile("ld.acquire.gpu.u32 %0, [%1];" : "=r"(v)
    : "l"(FLAG) : "memory"); while (!v); AFTER b[t] = a[63 - t]; }"""
INSIDE = """__shared__ int s; if (t == 0) s = 0; __syncthreads();
    if (blockIdx.x == 0) { if (t == 0) { a[0] = 5; __threadfence_block(); atomicExch(&s, 1); }
    if (t == 32) { WAIT __threadfence(); atomicExch(FLAG, 1); } }
    else if (t == 0) { while (atomicAdd(FLAG, 0) == 0); __threadfence(); b[0] = a[0]; }"""
EACH = """__shared__ bool last[2]; a[g] = g; FENCE __syncwarp();
    if (t % 32 == 0) last[t / 32] = atomicAdd(TICKETS, 1) == 2 * gridDim.x - 1; __syncwarp();
    if (last[t / 32]) { __threadfence(); for (int i = t % 32; i < 128; i += 32) b[i] = a[i]; }"""
LOCK = """volatile int* c = a; while (atomicCAS(FLAG, 0, 1) != 0); FENCE c[0] = 1 + blockIdx.x;
    __threadfence(); atomicExch(FLAG, 0);"""
COUNT = LOCK.replace("c[0] = 1 + blockIdx.x;", "c[0] += 1 + blockIdx.x;")
SYNC = "__syncthreads();"
SHARED = "__shared__ volatile int s[64]; s[t] = a[t]; __syncthreads();\n"


def fill(text, **words):
    for word, what in {"BEFORE": "", "FENCE": "", "AFTER": "", "WAIT": "", **words}.items():
        text = text.replace(word, what)
    return text


CASES = {  # name: findings, threads, body, launched in two blocks
    "ticket": ("", 64, fill(TICKET, BEFORE=SYNC, FENCE="__threadfence();")),
    "ticket, all fence": ("", 64, fill(TICKET, BEFORE="__threadfence(); __syncthreads();")),
    "ticket, no barrier": (ERROR, 64, fill(TICKET, FENCE="__threadfence();")),
    "ticket, all fence, no barrier": (ERROR, 64, fill(TICKET, BEFORE="__threadfence();")),
    "ticket, one warp": ("", 32, fill(TICKET, FENCE="__threadfence();").replace("64", "32")),
    "grid barrier": ("", 64, fill(GRID, BEFORE=SYNC, AFTER=SYNC)),
    "grid barrier, none before": (ERROR, 64, fill(GRID, AFTER=SYNC)),
    "grid barrier, none after": (ERROR, 64, fill(GRID, BEFORE=SYNC)),
    "a flag a warp": ("", 64, FLAGS.replace("PLACE", "t")),
    "a flag of another warp": (ERROR, 64, FLAGS.replace("PLACE", "63 - t")),
    "one flag": ("", 64, fill(ONE, BEFORE=SYNC, AFTER=SYNC)),
    "one flag, none before": (ERROR, 64, fill(ONE, AFTER=SYNC)),
    "one flag, none after": (ERROR, 64, fill(ONE, BEFORE=SYNC)),
    "release": ("", 64, fill(RELEASE, BEFORE=SYNC, AFTER=SYNC)),
    "release, none before": (ERROR, 64, fill(RELEASE, AFTER=SYNC)),
    "release, none after": (ERROR, 64, fill(RELEASE, BEFORE=SYNC)),
    "a flag inside, then one outside": (
        "",
        64,
        fill(INSIDE, WAIT="while (atomicAdd(&s, 0) == 0);"),
    ),
    "a flag inside that nobody waits for": (ERROR, 64, fill(INSIDE)),
    "a ticket a warp": ("", 64, fill(EACH, FENCE="__threadfence();")),
    "a ticket a warp, no fence": (ERROR, 64, fill(EACH)),
    "volatile data, lock": ("", 1, fill(LOCK, FENCE="__threadfence();")),
    "volatile data, unfenced lock": (WARNING, 1, fill(LOCK)),
    "volatile sum, lock": ("", 1, fill(COUNT, FENCE="__threadfence();")),
    "volatile sum, unfenced lock": (WARNING, 1, fill(COUNT)),
    "volatile data through a call": (
        ERROR,
        64,
        "__shared__ volatile int s[64]; int v = first(s, a[t]); b[g] = first(s, v + t);",
    ),
    "volatile data through a call, barrier": (
        "",
        64,
        "__shared__ volatile int s[64]; int v = first(s, a[t]); __syncthreads();"
        "b[g] = first(s, v + t);",
    ),
    "a volatile flag through a call": (
        "",
        64,
        SHARED + "if (t == 40) s[0] = -1; if (t < 32) { while (waits(s) != -1); }",
    ),
}


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("warp_order", [None, 3], ids=["lockstep", "random warps"])
@pytest.mark.parametrize("name", CASES)
def test_verdict(name, warp_order):
    expected, threads, body = CASES[name]
    kernel = kernels(tuple(START + one for _, _, one in CASES.values()), HEAD)[START + body]
    kernel.warp_order = warp_order
    arrays = np.zeros(256, np.int32), np.zeros(256, np.int32)
    found = launch(kernel, Sanitizer(), grid=2, block=threads, arrays=arrays).findings
    said = {f"{one.severity} {one.kind}" for one in found}
    assert expected in said if expected else not said


def remedy(body, grid=2):
    arrays = np.zeros(256, np.int32), np.zeros(256, np.int32)
    body = f"{START} int* const flag = a + 200; {body}"
    return run(body, Sanitizer(), grid=grid, arrays=arrays).findings[0].remedy


def test_a_remedy_names_the_fence_where_a_flag_lies_between():
    pair = """if (blockIdx.x == 0) { a[t] = t; BEFORE if (t == 0) atomicExch(flag, 1); }
        else { if (t == 0) while (atomicAdd(flag, 0) == 0); __syncthreads(); b[t] = a[t]; }"""
    told = remedy(pair.replace("BEFORE", "__syncthreads();"))
    assert told.startswith("put __threadfence() after the first access")
    told = remedy(pair.replace("BEFORE", "__threadfence();"))
    assert told.startswith("put __syncthreads() before the thread that runs __threadfence()")
    inside = """if (t == 0) { a[0] = 1; atomicExch(flag, 1); }
        if (t == 32) { while (atomicAdd(flag, 0) == 0); b[0] = a[0]; }"""
    assert "or __threadfence_block() after the first" in remedy(inside, grid=1)
    assert "fence" not in remedy("b[t] = g;")  # no flag
    assert "fence" not in remedy("atomicAdd(&flag[g], 1); b[t] = g;")  # no common one
    own = "__shared__ int s; if (t == 0) s = 0; __syncthreads(); atomicAdd(&s, 1); b[t] = g;"
    assert "fence" not in remedy(own)  # every block its own


def test_a_wide_access_counts_once_and_is_judged_as_a_whole():
    (found,) = run(START + "((long long*)b)[0] = g;", Sanitizer(), grid=2).findings
    assert (found.severity, found.count) == ("error", 127)  # all but the thread that wins
    body = "__shared__ double s[64]; s[t] = t; ((double*)b)[t] = s[t ^ 32];"
    (found,) = run(START + body, Sanitizer()).findings
    assert (found.kind, found.count) == ("race", 64)
    body = "__shared__ double s[64]; ((double*)b)[t] = s[t] + 1;"
    (found,) = run(START + body, Sanitizer()).findings
    assert (found.kind, found.count) == ("uninitialised-read", 64)


def test_local_memory_is_known_to_the_byte():
    body = "unsigned char c[16]; for (int i = 0; i < 15; ++i) c[i] = i; b[t] = c[t % COUNT];"
    found = run(START + body.replace("COUNT", "16"), Sanitizer()).findings
    assert [(one.kind, one.array, one.index) for one in found] == [("uninitialised-read", "c", 15)]
    assert run(START + body.replace("COUNT", "15"), Sanitizer()).findings == []
    body = "unsigned c[4]; memset(c, 0, 15); b[t] = c[t % COUNT];"
    found = run(START + body.replace("COUNT", "4"), Sanitizer()).findings
    assert [(one.kind, one.array, one.index) for one in found] == [("uninitialised-read", "c", 3)]
    assert run(START + body.replace("COUNT", "3"), Sanitizer()).findings == []
