"""Volatile accesses as flags and as data, beside atomics, and locks that nobody fences."""

from itertools import product

import numpy as np
import pytest
from kernelscope.watch import Sanitizer
from watch_harness import kernels, launch, run

START = "volatile int* c = a; const int t = threadIdx.x, g = blockIdx.x;\n"
SHARED = "__shared__ volatile int s[64]; s[t] = t;\n"
FENCED = "__threadfence_block(); if (t == 0) b[0] = s[0];"
PARTIALS = """if (t == 0) { c[8 + g] = 4; {fence} if (atomicAdd(a, 1) == 2) { __threadfence();
    int sum = 0; for (int i = 0; i < 3; ++i) sum += c[8 + i]; b[0] = sum; } }"""
WAIT = "while (c[0] != g) { }"
ACQUIRE = 'asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(a) : "memory");'
ERROR, WARNING = "error race", "warning race"

VOLATILE = {  # name: findings, blocks, threads, body; c is a, volatile, and starts at 0
    # data
    "neighbours in global memory": (
        f"{ERROR}; {WARNING}",
        1,
        64,
        "c[t] = t; b[t] = c[(t + 1) % 64];",
    ),
    "neighbours with a barrier": ("", 1, 64, "c[t] = t; __syncthreads(); b[t] = c[(t + 1) % 64];"),
    "neighbours with a fence": (
        f"{ERROR}; {WARNING}",
        1,
        64,
        "c[t] = t; __threadfence(); b[t] = c[(t + 1) % 64];",
    ),
    "the last block without a fence": (WARNING, 3, 64, PARTIALS.replace("{fence}", "")),
    "the last block with a block's fence": (
        WARNING,
        3,
        64,
        PARTIALS.replace("{fence}", "__threadfence_block();"),
    ),
    "the last block": ("", 3, 64, PARTIALS.replace("{fence}", "__threadfence();")),
    "shared memory with a fence alone": (
        ERROR,
        1,
        64,
        SHARED + "__threadfence_block(); b[t] = s[63 - t];",
    ),
    "a missing barrier": (ERROR, 1, 64, SHARED + "if (t < 32) s[t] += s[t + 32];\n" + FENCED),
    "a missing barrier before a maximum": (
        ERROR,
        1,
        64,
        SHARED + "if (t < 32) s[t] = max(s[t], s[t + 32]);\n" + FENCED,
    ),
    "a missing barrier before a comparison": (
        ERROR,
        1,
        64,
        SHARED + "if (t < 32 && s[t + 32] > s[t]) s[t] = s[t + 32];\n" + FENCED,
    ),
    "a missing second barrier": (
        ERROR,
        1,
        64,
        "__shared__ volatile int s[64]; int x = 0; for (int i = 0; i < 3; ++i) {\n"
        "s[t] = t + i; __syncthreads(); x += s[63 - t]; __threadfence_block(); } b[t] = x;",
    ),
    "both barriers": (
        "",
        1,
        64,
        "__shared__ volatile int s[64]; int x = 0; for (int i = 0; i < 3; ++i) {\n"
        "s[t] = t + i; __syncthreads(); x += s[63 - t]; __syncthreads(); } b[t] = x;",
    ),
    "two buffers and one barrier": (
        "",
        1,
        64,
        "__shared__ volatile int s[2][64]; int x = 0; for (int i = 0; i < 4; ++i) {\n"
        "s[i % 2][t] = t + i; __syncthreads(); x += s[i % 2][63 - t]; } __threadfence(); b[t] = x;",
    ),
    "a plain write over a volatile read": (
        ERROR,
        1,
        64,
        "__shared__ int s[64]; volatile int* v = s; s[t] = t; __syncthreads(); int x = v[63 - t];\n"
        "s[t] = x; b[t] = 0;",
    ),
    # warp-synchronous code
    "a reduction by a warp": (
        WARNING,
        1,
        64,
        SHARED
        + "__syncthreads(); if (t < 32) { s[t] += s[t + 32]; s[t] += s[t + 16]; s[t] += s[t + 8];\n"
        "s[t] += s[t + 4]; s[t] += s[t + 2]; s[t] += s[t + 1]; }" + FENCED,
    ),
    "a reduction by a warp, no fence": (
        WARNING,
        1,
        64,
        SHARED
        + "__syncthreads(); if (t < 32) { s[t] += s[t + 32]; s[t] += s[t + 16]; s[t] += s[t + 8];\n"
        "s[t] += s[t + 4]; s[t] += s[t + 2]; s[t] += s[t + 1]; } if (t == 0) b[0] = s[0];",
    ),
    "a reduction by a warp, with its barriers": (
        "",
        1,
        64,
        SHARED + "__syncthreads(); if (t < 32) for (int o = 32; o; o /= 2) {\n"
        "const int v = s[t] + s[t + o]; __syncwarp(); s[t] = v; __syncwarp(); }" + FENCED,
    ),
    "a reduction over two warps": (
        f"{WARNING}; {ERROR}",
        1,
        64,
        SHARED + "for (int o = 16; o; o /= 2) { if (t % 32 < o) s[t] += s[t + o]; }\n"
        "if (t == 0) b[0] = s[0] + s[32]; __threadfence();",
    ),
    # flags
    "a flag": ("", 1, 64, "if (t == 0) c[0] = 1; if (t == 32) { while (!c[0]) { } b[0] = 1; }"),
    "a flag in shared memory": (
        "",
        1,
        64,
        "__shared__ volatile int f; if (t == 0) f = 0; __syncthreads();\n"
        "if (t == 0) f = 1; if (t == 32) { while (!f) { } b[0] = 1; }",
    ),
    "data behind a flag": (
        "",
        2,
        1,
        "if (g == 0) { c[1] = 5; __threadfence(); c[0] = 1; }\n"
        "else { while (c[0] == 0) { } __threadfence(); b[0] = c[1]; }",
    ),
    "data behind a flag, no fence before the read": (
        WARNING,
        2,
        1,
        "if (g == 0) { c[1] = 5; __threadfence(); c[0] = 1; }\n"
        "else { while (c[0] == 0) { } b[0] = c[1]; }",
    ),
    "a poll": ("", 2, 64, "if (c[0]) return; b[64 * g + t] = 1; c[0] = 1;"),
    "a stop sign": (
        "",
        2,
        64,
        "int i; for (i = 0; i < 50; ++i) { if (c[0]) { b[64 * g + t] = 1; break; }\n"
        "if (i == 20 + 10 * g && t == 0) c[0] = 1; }",
    ),
    "turns": (
        "",
        4,
        64,
        f"if (t == 0) {{ {WAIT} __threadfence(); b[0] += 2; __threadfence(); c[0] = c[0] + 1; }}",
    ),
    "a flag that a function reads": (
        "",
        2,
        1,
        "if (g == 0) c[0] = 1; else { while (peek(c) == 0) { } b[0] = 1; }",
    ),
    "states of several blocks, read by a warp": (
        "",
        3,
        32,
        "if (t == 0) c[g] = 1; int state; do { state = t < 3 ? c[t] : 1; }\n"
        "while (!__all_sync(~0u, state)); b[32 * g + t] = 1;",
    ),
    "a value for an atomic": (
        "",
        2,
        32,
        "int old = c[0], seen; do { seen = old; old = atomicCAS(a, seen, seen + 1); }\n"
        "while (old != seen);",
    ),
    # beside atomics
    "an atomic, then another value": (ERROR, 2, 1, "if (g == 0) atomicExch(a, 1); else c[0] = 2;"),
    "another value, then an atomic": (ERROR, 2, 1, "if (g) atomicExch(a, 1); else c[0] = 2;"),
    "a sum that somebody sets": (
        ERROR,
        2,
        64,
        "if (g) atomicAdd(a, 1); else if (t == 0) c[0] = 2;",
    ),
    "another warp's value": (ERROR, 1, 64, "if (t == 0) atomicExch(a, 1); if (t == 32) c[0] = 2;"),
    "the same value": ("", 2, 1, "if (g == 0) atomicExch(a, 1); else c[0] = 1;"),
    "a counter that the last block resets": (
        "",
        3,
        1,
        "b[1 + g] = 1; __threadfence(); if (atomicAdd(a, 1) == 2) { __threadfence();\n"
        "b[0] = b[1] + b[2] + b[3]; c[0] = 0; }",
    ),
    "a flag that the reader resets": (
        "",
        2,
        1,
        "if (g == 0) atomicExch(a, 1); else { while (c[0] == 0) { } c[0] = 0; }",
    ),
    "a flag that an acquiring reader resets": (
        "",
        2,
        1,
        "int now; if (g == 0) atomicExch(a, 1);\n"
        f"else {{ do {ACQUIRE} while (now == 0); c[0] = 0; }}",
    ),
    "a flag that an acquiring reader looks at once": (
        ERROR,
        2,
        1,
        "int now; if (g == 0) atomicExch(a, 1);\n"
        f"else {{ {ACQUIRE} if (now == 7) b[1] = 1; else c[0] = 2; }}",
    ),
    "a flag of which an acquiring reader knows nothing": (
        ERROR,
        2,
        1,
        f"int now; if (g == 0) atomicExch(a, 1); else {{ {ACQUIRE} b[0] = now; c[0] = 2; }}",
    ),
    "a start value": ("", 1, 64, "if (t == 0) c[0] = 7; __syncthreads(); atomicAdd(a, 1);"),
}

CAS, EXCHANGE = "while (atomicCAS(a, 0, 1) != 0) { }", "while (atomicExch(a, 1) != 0) { }"
DATA = "b[0] = b[0] + 1; __threadfence();"
FREE, BY_STORE = "atomicExch(a, 0);", "c[0] = 0;"
LATE = "for (volatile int i = 0; i < 30; ++i) { }"


def locks(take, first, second, free=FREE, who="g == 0", other="true"):
    """One thread takes the lock with a fence of its own, then another one."""
    return (
        f"if ({who}) {{ {take} {first}\n{DATA} {free} }}\n"
        f"else if ({other}) {{ {LATE} {take} {second}\n{DATA} {free} }}"
    )


WARPS = {"who": "t == 0", "other": "t == 32"}
F, BLOCK_F = "__threadfence();", "__threadfence_block();"
LOCKS = {  # name: findings, blocks, threads, body
    "no fence first": (WARNING, 2, 1, locks(CAS, "", F)),
    "a block's fence first": (WARNING, 2, 1, locks(CAS, BLOCK_F, F)),
    "no fence second": (WARNING, 2, 1, locks(CAS, F, "")),
    "no fence first, by exchange": (WARNING, 2, 1, locks(EXCHANGE, "", F)),
    "no fence first, a volatile store frees": (WARNING, 2, 1, locks(CAS, "", F, BY_STORE)),
    "fences": ("", 2, 1, locks(CAS, F, F)),
    "fences, by exchange": ("", 2, 1, locks(EXCHANGE, F, F)),
    "fences, a volatile store frees": ("", 2, 1, locks(CAS, F, F, BY_STORE)),
    "barriers": (
        "",
        2,
        64,
        f"if (t == 0) {CAS} __syncthreads(); b[t] += 1; __threadfence(); __syncthreads();\n"
        f"if (t == 0) {FREE}",
    ),
    "warps, no fence first": (WARNING, 1, 64, locks(CAS, "", F, **WARPS)),
    "warps, no fence second": (WARNING, 1, 64, locks(CAS, F, "", **WARPS)),
    "warps, fences of the block": ("", 1, 64, locks(CAS, BLOCK_F, BLOCK_F, **WARPS)),
    "warps and __syncwarp()": (
        "",
        1,
        96,
        f"if (t % 32 == 0) {CAS} __syncwarp(); b[t % 32] += 1; __threadfence(); __syncwarp();\n"
        f"if (t % 32 == 0) {FREE}",
    ),
    "an exchange that publishes": (
        "",
        2,
        1,
        "if (g == 0) { b[0] = 1; __threadfence(); atomicExch(a, 1); b[1] = 2; __threadfence();\n"
        "atomicExch(a, 2); } else { while (c[0] != 2) { } __threadfence(); b[2] = b[0] + b[1]; }",
    ),
}
# -- two writes of one value: a warning; of two values: an error; volatile of one value: nothing ---
WRITERS = {  # blocks, who writes, and a number that they do not share
    "lanes": (1, ("t == 0", "t == 1"), "t"),
    "warps": (1, ("t == 0", "t == 32"), "t"),
    "blocks": (2, ("g == 0 && t == 0", "g == 1 && t == 0"), "g"),
}
ARRAYS = {"shared": "__shared__ int s[4]; int* p = s;", "global": "int* p = b;"}
PLAIN, KEPT, ATOMIC = "p[0] = {};", "*(volatile int*)p = {};", "atomicExch(p, {});"
PAIRS = (  # two writes, the verdict where both write one value, and where they do not
    (PLAIN, PLAIN, WARNING, ERROR),
    (KEPT, KEPT, "", ERROR),
    (KEPT, PLAIN, WARNING, ERROR),
    (PLAIN, KEPT, WARNING, ERROR),
    (PLAIN, ATOMIC, ERROR, ERROR),
    (ATOMIC, PLAIN, ERROR, ERROR),
    (ATOMIC, ATOMIC, "", ""),
)


def pairs_of_writes():
    """Cases of two writers of one element: one after the other, and by one instruction."""
    found = {}
    for (space, array), (name, who) in product(ARRAYS.items(), WRITERS.items()):
        blocks, (one, other), own = who
        if (space, name) == ("shared", "blocks"):
            continue
        for first, second, *verdicts in PAIRS:
            for value, verdict in zip((1, 2), verdicts, strict=True):
                body = f"{array} if ({one}) {first.format(1)}\nif ({other}) {second.format(value)}"
                found[f"{space}, {name}: {first} {second} {value}"] = verdict, blocks, 64, body
        for write, same in ((PLAIN, WARNING), (KEPT, "")):
            for value, verdict in (("1", same), (own, ERROR)):
                body = f"{array} if ({one} || {other}) {write.format(value)}"
                found[f"{space}, {name}: at once {write} {value}"] = verdict, blocks, 64, body
    return found


CASES = VOLATILE | LOCKS | pairs_of_writes()
HEAD = "__device__ int peek(volatile int* p) { return *p; }\n"
BODIES = tuple(START + row[-1] for row in CASES.values())


def found(name, warp_order):
    expected, blocks, threads, body = CASES[name]
    kernel = kernels(BODIES, HEAD)[START + body]
    kernel.warp_order = warp_order
    zeros = (np.zeros(512, np.int32), np.zeros(1024, np.int32))
    seen = launch(kernel, Sanitizer(), arrays=zeros, grid=blocks, block=threads).findings
    return seen, expected


@pytest.mark.turns(59)
@pytest.mark.system
@pytest.mark.parametrize("warp_order", [None, 3], ids=["lockstep", "random warps"])
@pytest.mark.parametrize("name", CASES)
def test_verdict(name, warp_order):
    seen, expected = found(name, warp_order)
    verdicts = {f"{one.severity} {one.kind}" for one in seen if one.kind == "race"}
    assert verdicts == set(filter(None, expected.split("; "))), seen


def test_remedies():
    """They fit who meets: lanes of a warp, warps of a block, blocks."""
    for name, word in (
        ("a reduction by a warp", "__syncwarp()"),
        ("a missing barrier", "put __syncthreads()"),
        ("the last block without a fence", "__threadfence() and then a flag or ticket"),
        ("no fence first", "__threadfence() after the lock is taken"),
    ):
        seen, _ = found(name, None)
        assert word in seen[0].remedy, seen
    report = run(START + "if (g) c[0] = 2; else atomicExch(a, 1);", Sanitizer(), grid=2)
    assert "one is an atomic and the other a volatile store" in report.findings[0].message
