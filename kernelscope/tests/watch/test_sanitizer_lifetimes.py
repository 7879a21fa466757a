"""The sanitizer on shared memory of blocks of a cluster that have not started, or have ended."""

from functools import cache

import pytest
from async_source import CLUSTER_HEAD, check, kernels_of

HEAD = (
    CLUSTER_HEAD
    + r"""
__device__ int read(unsigned from) {
    int x;
    asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(x) : "r"(from) : "memory");
    return x;
}
__device__ void write(unsigned to, int x) {
    asm volatile("st.shared::cluster.s32 [%0], %1;" :: "r"(to), "r"(x) : "memory");
}
__device__ void add(unsigned to, int x) {
    asm volatile("red.relaxed.cluster.shared::cluster.add.s32 [%0], %1;"
        :: "r"(to), "r"(x) : "memory");
}
__device__ void tell(int* flag) { __threadfence(); atomicExch(flag, 1); }
__device__ void see(int* flag) { while (atomicAdd(flag, 0) == 0) { } __threadfence(); }
"""
)
BEGIN = """    __shared__ __align__(16) int row[64], sent[64]; __shared__ u64 bar;
    const int t = threadIdx.x, me = blockIdx.x, next = me % 2 ^ 1; row[t] = t; sent[t] = t; FENCE;
    if (t == 0) { start(&bar, COUNT); started(); if (BYTES) expect(&bar, BYTES); }
"""
MEET, RELAXED = "meet(false);", "meet(true);"
READ = "out[me * 64 + t] = read(there(row + t, next));"
ARRIVE = "arrive(there(&bar, next));"
COPY = "if (t == 7) copy(there(row, next), sent, 256, there(&bar, next)); wait(&bar, 0);"
POST = "post(there(row + t, next), t, there(&bar, next)); wait(&bar, 0);"
# behind BEGIN and a barrier of the cluster
KEPT = {
    "barrier": f"{READ} {MEET}",
    "relaxed barrier": f"{READ} {RELAXED}",
    "arrival at its mbarrier": f"{READ} {ARRIVE} wait(&bar, 0);",
    "flag": f"{READ} __syncthreads(); if (t == 0) {{ tell(x + me); see(x + (me ^ 1)); }}",
    "one for its block": f"{READ} __syncthreads(); if (t >= 32) return; {RELAXED}",
    "one thread waits": f"{READ} {ARRIVE} if (t == 5) wait(&bar, 0);",
    "st.async": POST,
    "bulk copy": f"{COPY} {RELAXED}",
    "nothing of others": "out[me * 64 + t] = read(there(row + t, me % 2));",
}
GONE = {
    "read": READ,
    "write": f"write(there(row + t, next), t); {MEET} write(there(row + t, next), t);",
    "atomic": "add(there(sent + t, next), t);",
    "arrival": ARRIVE,
    "barrier of the block": f"{READ} __syncthreads();",
    "arrived before": "asm volatile(\"barrier.cluster.arrive.aligned;\"); "
    f"{READ} asm volatile(\"barrier.cluster.wait.aligned;\" ::: \"memory\");",
    "leaves without": f"{READ} if (t >= 32) return; {RELAXED}",
    "one block has left": f"if (me % 2 == 0) return; {READ} " + 4 * RELAXED,
    "arrival before the read": f"{ARRIVE} {READ} wait(&bar, 0);",
    "one way": f"{READ} if (me % 2 == 0) {ARRIVE} else wait(&bar, 0);",
    "flag of one thread": f"{READ} if (t == 0) {{ tell(x + me); see(x + (me ^ 1)); }}",
    "source of a bulk copy": COPY,
}  # fmt: skip
# behind BEGIN alone
STARTED = {
    "flag": f"__syncthreads(); if (t == 0) {{ tell(x + me); see(x + (me ^ 1)); }} __syncthreads();"
    f" {READ} {MEET}",
    "relaxed": f"{RELAXED} {ARRIVE} wait(&bar, 0);",
}
EARLY = {
    "read": f"{READ} {MEET}",
    "arrival": f"{ARRIVE} wait(&bar, 0);",
    "st.async": f"{POST}",
    "own barrier": f"__syncthreads(); {READ} {MEET}",
}


def body(text, start):
    count, size = "64", "0"
    if COPY in text or POST in text:
        count, size = "1", "256"
    return BEGIN.replace("COUNT", count).replace("BYTES", size) + start + "\n" + text


@cache
def made():
    bodies = [body(one, MEET) for one in (*KEPT.values(), *GONE.values())]
    bodies += [body(one, "") for one in (*STARTED.values(), *EARLY.values())]
    return kernels_of(bodies, HEAD, "__cluster_dims__(2) ")


def findings(text, start, order=None):
    return check(made()[body(text, start)], block=64, grid=4, order=order)


@pytest.mark.turns(7)
@pytest.mark.parametrize("order", [None, 1], ids=["lockstep", "random"])
@pytest.mark.parametrize("name", KEPT)
def test_a_block_waits_for_who_uses_its_memory(name, order):
    assert findings(KEPT[name], MEET, order) == []


@pytest.mark.turns(7)
@pytest.mark.parametrize("order", [None, 1], ids=["lockstep", "random"])
@pytest.mark.parametrize("name", GONE)
def test_a_block_ends_while_another_one_uses_its_memory(name, order):
    found = [one for one in findings(GONE[name], MEET, order) if "may have ended" in one.message]
    assert found and {(one.kind, one.severity) for one in found} == {("race", "error")}
    assert "cluster.sync()" in found[0].remedy


@pytest.mark.parametrize("name", STARTED)
def test_a_block_is_known_to_have_started(name):
    assert findings(STARTED[name], "") == []


@pytest.mark.parametrize("name", EARLY)
def test_a_block_may_not_have_started(name):
    assert any("may not have started" in one.message for one in findings(EARLY[name], ""))


def test_both_lines_are_named():
    (found,) = findings(GONE["read"], MEET)
    end = found.other_line
    said = f"may have ended: nothing lets it wait for this before its end on line {end}"
    assert found.message.endswith(said) and found.message.startswith("block (1, 0, 0), thread (0, ")
    assert "ld.shared::cluster" in found.line_text and READ in found.called
    assert end > int(found.called.split()[1]) > found.line
