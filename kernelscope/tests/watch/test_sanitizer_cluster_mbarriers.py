"""The sanitizer on mbarriers that other blocks of the cluster use: what orders their init."""

from functools import cache

import pytest
from async_source import CLUSTER_HEAD, check, kernels_of

BEGIN = """    __shared__ __align__(16) int row[64], sent[64]; __shared__ u64 bar;
    const int t = threadIdx.x, next = blockIdx.x % 2 ^ 1;
    sent[t] = t; FENCE; __syncthreads();
"""
# what the other block does with the mbarrier, and how many bytes it sends
USES = {
    "remote arrive": ("if (t == 7) arrive(there(&bar, next)); wait(&bar, 0);", 0),
    "bulk copy": (
        "if (t == 7) copy(there(row, next), sent, 256, there(&bar, next)); wait(&bar, 0);", 256,
    ),
    "st.async": ("post(there(row + t, next), t, there(&bar, next)); wait(&bar, 0);", 256),
}  # fmt: skip
INIT = "start(&bar, COUNT);"
EXPECT = "if (BYTES) expect(&bar, BYTES);"
RELAXED, RELEASE = "meet(true);", "meet(false);"
CLEAN = {
    "fence, relaxed": f"if (t == 0) {{ {INIT} started(); {EXPECT} }} {RELAXED}",
    "fence of all threads": f"if (t == 0) {{ {INIT} }} started(); {RELAXED} if (t == 0) {EXPECT}",
    "release": f"if (t == 0) {{ {INIT} started(); {EXPECT} }} {RELEASE}",
    "fences for all": f"if (t == 0) {{ {INIT} started(); {EXPECT} __threadfence(); }} {RELAXED}",
    "a barrier more": f"if (t == 0) {{ {INIT} started(); {EXPECT} }} {RELAXED} {RELAXED} {RELAXED}"
    f" {RELAXED} {RELAXED}",
}
BROKEN = {
    "no fence": f"if (t == 0) {{ {INIT} {EXPECT} }} {RELAXED}",
    "fence before the init": f"if (t == 0) {{ started(); {INIT} {EXPECT} }} {RELAXED}",
    "another thread's fence": f"if (t == 0) {{ {INIT} {EXPECT} }} __syncthreads();"
    f" if (t == 1) started(); {RELAXED}",
    "fence behind the barrier": f"if (t == 0) {{ {INIT} {EXPECT} }} {RELAXED} started();",
    "fence of the block": f"if (t == 0) {{ {INIT} {EXPECT} FENCE_BLOCK; }} {RELAXED}",
    "in one block": f"if (t == 0) {{ {INIT} if (next) started(); {EXPECT} }} {RELAXED}",
}
# What else was written before the fence is not ordered by it.
PLAIN = "if (t == 0) { row[9] = WORD; started(); }"
SEEN = """int got; asm volatile("ld.shared::cluster.s32 %0, [%1];"
    : "=r"(got) : "r"(there(row + 9, next)));"""
STORES = {
    RELAXED: [("race", "error")],
    RELEASE: [],
    f"if (t == 0) __threadfence(); {RELAXED}": [],
}
# A cluster may have one block.
ALONE = {
    f"if (t == 0) {{ start(&bar, 64); started(); }} {RELAXED} arrive(&bar); wait(&bar, 0);": True,
    f"if (t == 0) {{ start(&bar, 64); }} {RELAXED} arrive(&bar); wait(&bar, 0);": False,
    f"row[t] = t; __threadfence(); {RELAXED} out[t] = row[63 - t];": True,
    f"row[t] = t; {RELAXED} out[t] = row[63 - t];": False,
}
# The source of a copy is free when a thread knows that the copy is in place, at the other end.
SENT = (
    "if (t == 0) { start(&bar, 1); started(); expect(&bar, 256); } meet(true);"
    + USES["bulk copy"][0]
)
SOURCES = {
    f"{SENT} meet(false); sent[t] = 0;": [],
    f"{SENT} sent[t] = 0; meet(false);": [("race", "error")],
    f"{SENT} meet(true); sent[t] = 0;": [("race", "error")],
}
# Relaxed arrivals publish what a fence has released.
HAND_OVER = """    if (t == 0) { start(&bar, 64); started(); } meet(true);
    BEFORE asm volatile("st.shared::cluster.s32 [%0], %1;" :: "r"(there(row + t, next)), "r"(t)
        : "memory"); BEHIND
    asm volatile("mbarrier.arrive.SEM.cluster.shared::cluster.b64 _, [%0];"
        :: "r"(there(&bar, next)) : "memory");
    wait(&bar, 0); out[blockIdx.x * 64 + t] = row[63 - t]; meet(true);"""
OF_CLUSTER = 'asm volatile("fence.acq_rel.cluster;" ::: "memory");'
ACQUIRES, OF_BLOCK = OF_CLUSTER.replace("acq_rel", "acquire"), "FENCE_BLOCK;"
# The same to an mbarrier of the thread's own block: a fence of the block will do.
INSIDE = """    if (t == 0) {{ start(&bar, 64); started(); }} __syncthreads(); row[t] = t; {}
    asm volatile("mbarrier.arrive.relaxed.cta.shared::cta.b64 _, [%0];"
        :: "r"(at(&bar)) : "memory");
    wait(&bar, 0); out[blockIdx.x * 64 + t] = row[63 - t];"""


def handed_over(sem, before="", behind=""):
    text = HAND_OVER.replace("SEM", sem).replace("BEFORE", before)
    return text.replace("BEHIND", behind)


ARRIVALS = {
    handed_over("release"): [],
    handed_over("relaxed"): [("race", "error")],
    handed_over("relaxed", behind=OF_CLUSTER): [],
    handed_over("relaxed", before=OF_CLUSTER): [("race", "error")],
    handed_over("relaxed", behind=ACQUIRES): [("race", "warning")],
    handed_over("relaxed", behind=OF_BLOCK): [("race", "warning")],
    INSIDE.format(OF_BLOCK): [],
    INSIDE.format(ACQUIRES): [("race", "warning")],
    INSIDE.format(""): [("race", "error")],
}
ONE_WAY = {
    f'row[t] = t; asm volatile("fence.{sem}.cluster;" ::: "memory"); meet(true);'
    " out[blockIdx.x * 64 + t] = row[63 - t];": found
    for sem, found in (("release", []), ("acquire", [("race", "error")]))
}
# st.async stores when it likes, so there is no value to compare with what it overwrites.
LATE = """    if (t == 0) { row[5] = 77; start(&bar, 1); started(); expect(&bar, 256); } meet(true);
    post(there(row + t, next), t, there(&bar, next)); wait(&bar, 0); meet(true);"""
OTHERS = ARRIVALS | ONE_WAY | SOURCES | {LATE: [("race", "error")]}


def body(use, start):
    code, size = USES[use]
    text = start.replace("COUNT", "1").replace("BYTES", str(size))
    return BEGIN + text + code + RELEASE


def stored(barrier):
    return (
        BEGIN
        + PLAIN.replace("WORD", "t + 5")
        + barrier
        + SEEN
        + " out[blockIdx.x * 64 + t] = got;"
        + RELEASE
    )


@cache
def clustered():
    bodies = [body(use, one) for use in USES for one in (*CLEAN.values(), *BROKEN.values())]
    return kernels_of(
        (*bodies, *map(stored, STORES), *(BEGIN + one for one in OTHERS)),
        CLUSTER_HEAD,
        "__cluster_dims__(2) ",
    )


def findings(text, order=None):
    found = check(clustered()[text], block=64, grid=2, order=order)
    return sorted({(one.kind, one.severity) for one in found})


@pytest.mark.turns(7)
@pytest.mark.parametrize("order", [None, 1], ids=["lockstep", "random"])
@pytest.mark.parametrize("name", CLEAN)
@pytest.mark.parametrize("use", USES)
def test_an_init_is_known_to_the_other_block(use, name, order):
    assert findings(body(use, CLEAN[name]), order) == []


@pytest.mark.turns(7)
@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("use", USES)
def test_an_init_is_not_known_to_the_other_block(use, name):
    found = findings(body(use, BROKEN[name]))
    assert ("race", "error") in found and {kind for kind, _ in found} == {"race"}


@pytest.mark.parametrize("barrier", STORES)
def test_the_fence_of_an_init_orders_no_store(barrier):
    assert findings(stored(barrier)) == STORES[barrier]


@cache
def alone():
    return kernels_of([BEGIN + one for one in ALONE], CLUSTER_HEAD)


@pytest.mark.parametrize("text", ALONE)
def test_the_same_in_a_cluster_of_one_block(text):
    assert (check(alone()[BEGIN + text], block=64) == []) == ALONE[text]


@pytest.mark.parametrize("text", SOURCES)
def test_a_source_is_overwritten_when_its_copy_is_in_place(text):
    assert findings(BEGIN + text) == SOURCES[text]


@pytest.mark.parametrize("text", ARRIVALS)
def test_an_arrival_hands_over_what_it_releases(text):
    assert findings(BEGIN + text) == ARRIVALS[text]


@pytest.mark.parametrize("text", ONE_WAY)
def test_an_acquiring_fence_releases_nothing(text):
    assert findings(BEGIN + text) == ONE_WAY[text]


def test_a_store_that_comes_later_is_not_compared_with_what_is_there():
    assert findings(BEGIN + LATE) == [("race", "error")]
