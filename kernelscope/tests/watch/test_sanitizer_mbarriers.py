"""The sanitizer on mbarriers: their phases order accesses, and nothing else about them does."""

import pytest
from kernelscope.watch import Sanitizer
from watch_harness import kinds, run

HEAD = r"""typedef unsigned long long u64;
#define AT(p) "r"((unsigned)__cvta_generic_to_shared(p))
__device__ void start(u64* bar, int n) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" :: AT(bar), "r"(n) : "memory"); }
__device__ u64 arrive(u64* bar) { u64 s;
    asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(s) : AT(bar) : "memory"); return s; }
__device__ void wait(u64* bar, u64 s) { int done = 0; while (!done)
    asm volatile("{ .reg .pred p; mbarrier.test_wait.shared.b64 p, [%1], %2;"
        " selp.b32 %0, 1, 0, p; }" : "=r"(done) : AT(bar), "l"(s) : "memory"); }
__device__ void wait_parity(u64* bar, int parity) { int done = 0; while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2;"
        " selp.b32 %0, 1, 0, p; }" : "=r"(done) : AT(bar), "r"(parity) : "memory"); }
__device__ void copy(int* to, const int* from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: AT(to), "l"(from) : "memory"); }
__device__ void follow(u64* bar) {
    asm volatile("cp.async.mbarrier.arrive.shared.b64 [%0];" :: AT(bar) : "memory"); }
"""
START = """__shared__ u64 bar, back; __shared__ int s[64]; const int t = threadIdx.x, warp = t / 32;
    if (t == 0) { start(&bar, COUNT); start(&back, COUNT); } SYNC
"""
CLEAN = {
    "all": "s[t] = a[t]; u64 x = arrive(&bar); wait(&bar, x); b[t] = s[63 - t];",
    "two phases": """for (int k = 0; k < 4; ++k) {
        s[t] = a[t] + k; wait(&bar, arrive(&bar)); b[t] = s[63 - t]; wait(&bar, arrive(&bar)); }""",
    "handed over": """for (int k = 0; k < 3; ++k)
        if (warp) { s[t - 32] = a[t] + k; arrive(&bar); wait_parity(&back, k & 1); }
        else { wait_parity(&bar, k & 1); b[t] = s[31 - t]; arrive(&back); }""",
    "one for its warp": """if (warp) { s[t] = a[t]; __syncwarp(); if (t == 32) arrive(&bar); }
        else { if (t == 0) wait_parity(&bar, 0); __syncwarp(); b[t] = s[32 + t]; }""",
    "behind a barrier": """s[t] = a[t]; __syncthreads();
        if (t == 40) arrive(&bar);
        if (t == 0) { wait_parity(&bar, 0); b[0] = s[63]; }""",
    "behind a barrier with a count": """s[t] = a[t];
        asm volatile("bar.sync 1, 64;" ::: "memory");
        if (t == 40) arrive(&bar);
        if (t == 0) { wait_parity(&bar, 0); b[0] = s[63]; }""",
    "and then a barrier": """if (warp) { s[t] = a[t]; arrive(&bar); }
        else wait_parity(&bar, 0);
        __syncthreads(); b[t] = s[32 + t % 32];""",
    "copies": """copy(&s[t], a + t); follow(&bar); wait(&bar, arrive(&bar)); b[t] = s[63 - t];""",
    "global": "b[t] = a[t]; wait(&bar, arrive(&bar)); b[128 + t] = b[63 - t];",
}
COUNTS = {
    "handed over": 32,
    "one for its warp": 1,
    "behind a barrier": 1,
    "behind a barrier with a count": 1,
    "and then a barrier": 32,
}
RACES = {
    "no wait": "s[t] = a[t]; u64 x = arrive(&bar); b[t] = s[63 - t]; wait(&bar, x);",
    "written behind": "u64 x = arrive(&bar); s[t] = a[t]; wait(&bar, x); b[t] = s[63 - t];",
    "the phase before": """s[t] = 0; __syncthreads();
        if (warp) { s[t] = a[t]; arrive(&bar); }
        else { wait_parity(&bar, 1); b[t] = s[32 + t]; }""",
    "another mbarrier": """s[t] = a[t]; arrive(&bar); wait(&back, arrive(&back));
        s[t] = 1; arrive(&bar); b[t] = s[63 - t];""",
    "copies": """copy(&s[t], a + t); follow(&bar); u64 x = arrive(&bar);
        b[t] = s[63 - t]; wait(&bar, x);""",
    "only one waits": """copy(&s[t], a + t); follow(&bar); u64 x = arrive(&bar);
        if (t == 0) wait(&bar, x);
        for (volatile int i = 0; i < 99; ++i) { } if (warp) b[t] = s[63 - t];""",
    "global": "b[t] = a[t]; u64 x = arrive(&bar); b[128 + t] = b[63 - t]; wait(&bar, x);",
}


def findings(body, count=64, sync="__syncthreads();"):
    text = START.replace("COUNT", str(count)).replace("SYNC", sync) + body
    return kinds(
        run(text, Sanitizer(), head=HEAD, block=64, options=("-arch=compute_80",)).findings
    )


@pytest.mark.turns(11)
@pytest.mark.system
@pytest.mark.parametrize("name", CLEAN)
def test_phases_order(name):
    assert findings(CLEAN[name], COUNTS.get(name, 64)) == []


@pytest.mark.parametrize("name", RACES)
def test_what_a_phase_does_not_order(name):
    found = findings(RACES[name])
    assert ("race", "error") in found and {kind for kind, _ in found} == {"race"}


def test_an_mbarrier_is_used_before_all_know_that_it_is_initialised():
    found = findings("wait(&bar, arrive(&bar)); b[t] = t;", sync="")
    assert ("race", "error") in found


MISUSES = {
    "in global memory": (
        "out-of-bounds",
        """asm volatile("{ .reg .b64 s; mbarrier.arrive.b64 s, [%0]; }" :: "l"(a) : "memory");""",
    ),
    "no arrivals": ("divergent-barrier", "__shared__ u64 own; if (t == 0) start(&own, b[0]);"),
    "dropped, and then a copy arrives": (
        "divergent-barrier",
        """__shared__ u64 own;
        if (t == 0) { start(&own, 1); asm volatile("{ .reg .b64 s;"
            " mbarrier.arrive_drop.shared.b64 s, [%0]; }" :: AT(&own) : "memory"); }
        __syncthreads(); copy(&s[t], a + t);
        asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: AT(&own) : "memory");
        wait_parity(&own, 0); asm volatile("cp.async.wait_all;");""",
    ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_of_an_mbarrier_is_a_finding_with_its_line(name):
    kind, body = MISUSES[name]
    text = START.replace("COUNT", "64").replace("SYNC", "__syncthreads();") + body
    report = run(text, Sanitizer(), head=HEAD, block=64, options=("-arch=compute_80",))
    (found,) = report.findings
    assert found.kind == kind and "mbarrier" in found.message
    assert found.line_text and found.remedy
