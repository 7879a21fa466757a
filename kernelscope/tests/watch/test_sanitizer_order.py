"""The sanitizer on barriers that some go around, fences inside a block, and clusters of blocks."""

import pytest
from kernelscope.watch import Counters, Sanitizer, Tracer
from watch_harness import kernels, kinds, launch, run

SM_90 = ("-arch=compute_90",)
GROUPS = "#include <cooperative_groups.h>\nnamespace cg = cooperative_groups;"
START = "__shared__ int s[64], d; const int t = threadIdx.x;\n"
CLUSTER = """__shared__ int s[64]; const int t = threadIdx.x, g = blockIdx.x * 64 + t;
    cg::cluster_group c = cg::this_cluster(); int* p = c.map_shared_rank(s, c.block_rank() ^ 1);
"""
STARTED = "c.sync();\n"  # from here on every block of the cluster has its shared memory


def findings(body):
    return kinds(run(body, Sanitizer()).findings)


# Cooperative groups take over a second to compile, so all bodies of a kind share a compilation.
GROUP_BODIES = tuple(
    START + body
    for body in (
        "auto w = cg::tiled_partition<32>(cg::this_thread_block()); b[t] = w.shfl_down(a[t], 1);",
        "if (t % 2) { auto g = cg::coalesced_threads(); b[t] = g.thread_rank() + g.shfl(t, 0); }",
        "auto g = cg::this_thread_block(); s[t] = a[t]; g.sync(); b[t] = s[63 - t];",
    )
)
RELAXED = 'asm volatile("barrier.cluster.arrive.relaxed; barrier.cluster.wait;" ::: "memory");'
FENCE = 'asm volatile("fence.acq_rel.cluster;" ::: "memory");'
ORDERED = (
    "p[t] = a[t]; c.sync(); b[g] = s[t];",
    "s[t] = a[t]; c.sync(); b[g] = p[63 - t]; c.sync(); s[t] = 1;",
    "b[g] = a[t]; c.sync(); s[t] = b[g ^ 64];",
    "p[t] = a[t]; c.barrier_arrive(); b[g] = a[t]; c.barrier_wait(); b[g] = s[t];",
    "s[t] = a[t]; c.sync(); s[t] += 1; c.sync(); b[g] = p[t]; c.sync(); s[63 - t] = 2;",
    "s[t] = a[t]; c.sync(); if (t > 40) return; c.sync(); b[g] = p[63 - t]; c.sync();",
    f"p[t] = a[t]; {FENCE} {RELAXED} b[g] = s[t];",
    f"p[t] = a[t]; c.sync(); {RELAXED} b[g] = s[t];",
)
RACING = (
    f"p[t] = a[t]; {RELAXED} b[g] = s[t];",
    f"{FENCE} p[t] = a[t]; {RELAXED} b[g] = s[t];",
    "p[t] = a[t]; __syncthreads(); b[g] = s[t]; c.sync();",
    "s[t] = a[t]; c.sync(); b[g] = p[63 - t]; s[t] = 1; c.sync();",
    "b[g] = a[t]; c.sync(); s[t] = b[(g + 128) % 256];",
    "s[t] = a[t]; c.barrier_arrive(); s[t] = 2; c.barrier_wait(); b[g] = p[t]; c.sync();",
    "s[t] = a[t]; c.sync(); b[g] = p[t]; c.barrier_arrive(); s[t] = 2; c.barrier_wait();",
    "s[t] = a[t]; if (t > 40) return; c.sync(); b[g] = p[63 - t];",
    "c.barrier_arrive(); p[t] = a[t]; c.barrier_wait(); if (c.block_rank() == 0) b[g] = s[t];",
)
UNWRITTEN = "c.sync(); b[g] = p[63 - t]; c.sync();"
REMOTE = "p[t] = a[t]; c.sync(); b[g] = s[t] + p[t]; c.sync();"
BODIES = tuple(STARTED + body for body in (*ORDERED, *RACING, UNWRITTEN, REMOTE))
EARLY = ("p[t] = a[t]; c.sync(); b[g] = s[t];", "c.barrier_arrive(); p[t] = 1; c.barrier_wait();")
AFTER_RELAXED = f"{RELAXED} p[t] = a[t]; c.sync(); b[g] = s[t];"  # all blocks have started
CLUSTER_BODIES = tuple(CLUSTER + body for body in (*BODIES, *EARLY, AFTER_RELAXED))


def in_clusters(body, observer):
    """Observe a launch of two clusters of two blocks."""
    made = kernels(CLUSTER_BODIES, GROUPS, "__cluster_dims__(2, 1, 1)", options=SM_90)
    return launch(made[CLUSTER + body], observer, grid=4)


def in_started_clusters(body, observer):
    """The same, after a barrier that all blocks of a cluster have passed."""
    return in_clusters(STARTED + body, observer)


# -- barriers that some threads go around ----------------------------------------------------------
AROUND = {
    "code behind": "if (t < 40) __syncthreads(); a[t] = 1;",
    "every other lane": "if (t % 2) __syncthreads();",
    "reduction": """s[t] = a[t]; __syncthreads();
        for (int k = 32; k > 0; k /= 2) if (t < k) { s[t] += s[t + k]; __syncthreads(); }
        if (t == 0) b[0] = s[0];""",
}
LEFT_BEFORE = {
    "in a warp": "if (t >= 40) return; s[t] = a[t]; __syncthreads(); b[t] = s[39 - t];",
    "a warp": "if (t >= 32) return; s[t] = a[t]; __syncthreads(); b[t] = s[31 - t];",
    "in a loop": """for (int i = 0; i < 3; ++i) {
        if (i == 1 && t >= 40) return;
        s[t] = i; __syncthreads(); b[t] = i; }""",
    "between barriers": "s[t] = 1; __syncthreads(); if (t > 40) return; __syncthreads(); b[t] = 1;",
}


@pytest.mark.parametrize("name", AROUND)
def test_a_barrier_that_others_went_around(name):
    assert findings(START + AROUND[name]) == [("divergent-barrier", "warning")]


@pytest.mark.parametrize("name", LEFT_BEFORE)
def test_threads_that_left_before_the_barrier(name):
    assert findings(START + LEFT_BEFORE[name]) == []


# -- cooperative groups ----------------------------------------------------------------------------
@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("body", GROUP_BODIES)
def test_groups_are_copied_in_part(body):
    assert launch(kernels(GROUP_BODIES, GROUPS)[body], Sanitizer()).findings == []


# -- fences inside a block -------------------------------------------------------------------------
LOCK = """__shared__ int lock; if (t == 0) lock = d = 0;
    __syncthreads();
    bool done = {passive};
    while (!done) if (atomicCAS(&lock, 0, 1) == 0) {
        FENCE d = d + 1; FENCE atomicExch(&lock, 0); done = true; }"""
FLAG = """__shared__ volatile int flag; if (t == 0) flag = 0;
    __syncthreads();
    if (t == 0) { d = 5; FENCE flag = 1; }
    if (t == 32) { while (!flag) { } __threadfence_block(); b[0] = d; }"""


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize(
    "body",
    [LOCK.replace("{passive}", "false"), LOCK.replace("{passive}", "t % 32 != 0"), FLAG],
    ids=["lock of all", "lock of warps", "flag"],
)
def test_fences_order_inside_a_block(body):
    assert findings(START + body.replace("FENCE", "__threadfence_block();")) == []
    assert ("race", "error") in findings(START + body.replace("FENCE", ""))


# -- clusters --------------------------------------------------------------------------------------
@pytest.mark.turns(41)
@pytest.mark.system
@pytest.mark.parametrize("body", ORDERED)
def test_a_cluster_barrier_orders_its_blocks(body):
    assert in_started_clusters(body, Sanitizer()).findings == []


@pytest.mark.turns(7)
@pytest.mark.parametrize(
    ("body", "kind"), [*((body, "race") for body in RACING), (UNWRITTEN, "uninitialised-read")]
)
def test_blocks_of_a_cluster_race(body, kind):
    assert {finding.kind for finding in in_started_clusters(body, Sanitizer()).findings} == {kind}


def test_a_remedy_fits_who_meets():
    """Only the barrier of the cluster reaches another block; two writers need an order too."""
    (between, *_) = in_started_clusters(RACING[0], Sanitizer()).findings
    assert "cluster" in between.remedy
    for body, word in (
        ("s[t] = a[t]; b[t] = s[63 - t];", "put __syncthreads()"),
        ("s[0] = a[t]; b[t] = t;", "element of its own"),
        ("b[t] = t; a[t] = b[63 - t];", "put __syncthreads()"),
        ("b[t % 2] = t;", "give each element to one thread, or use atomic"),
    ):
        found = run(START + body, Sanitizer()).findings[0]
        assert word in found.remedy and "blocks run" not in found.remedy, found
    apart = run("b[threadIdx.x] = blockIdx.x;", Sanitizer(), grid=2).findings[0]
    assert "blocks run in any order" in apart.remedy


@pytest.mark.parametrize("body", EARLY)
def test_a_block_that_may_not_have_started_has_no_shared_memory(body):
    first = in_clusters(body, Sanitizer()).findings[0]
    assert (first.kind, first.severity) == ("race", "error")
    assert "may not have started" in first.message and "s[0] of block (1, 0, 0)" in first.message


def test_after_a_relaxed_arrival_all_blocks_have_started():
    assert in_clusters(AFTER_RELAXED, Sanitizer()).findings == []


@pytest.mark.turns(23)
@pytest.mark.system
def test_remote_accesses_are_counted():
    seen = in_started_clusters(REMOTE, Counters()).totals
    assert (seen["shared_store_requests"], seen["shared_load_requests"]) == (8, 16)


def test_remote_accesses_are_not_traced_as_the_blocks_own():
    traced = in_started_clusters(ORDERED[0], Tracer())
    kinds = {record["kind"] for frame in traced.frames for record in frame["shared"]}
    assert kinds == {"read"}


# -- texts -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", [Sanitizer, Tracer])
def test_text_without_a_launch(kind):
    assert repr(kind()) == "no kernel ran"


def test_texts():
    report = run(START + "b[t] = a[t];", Sanitizer())
    assert repr(report) == "no findings in 1 launch"
    run("b[threadIdx.x] = a[0];", report)
    assert str(report) == "no findings in 2 launches"
    run(START + "b[t] = s[t];", report)
    assert repr(report).startswith("error: uninitialised-read, line 4: b[t] = s[t];")
    assert repr(run(START + "b[t] = a[t];", Tracer())).startswith("k, block (0, 0, 0): ")
