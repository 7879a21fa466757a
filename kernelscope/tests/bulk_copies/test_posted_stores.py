"""st.async and red.async: threads store into a block of the cluster, and an mbarrier counts it."""

import async_source
import numpy as np
import pytest
from kernelscope.errors import MemoryFault, SimulatorError
from kernelscope.module import RawModule
from kernelscope.watch import Counters, Sanitizer
from watch_harness import launch

HEAD = (
    async_source.HEAD
    + r"""
__device__ unsigned there(const void* mine, int block) {
    unsigned r;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(at(mine)), "r"(block));
    return r;
}
__device__ void meet() {
    asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;"
        ::: "memory");
}
__device__ void begin(u64* bar, int bytes) {  // of the first phase
    if (threadIdx.x == 0) { start(bar, 1); started(); expect(bar, bytes); }
    meet();
}
#define ST "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
#define RED "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes"
__device__ void post(unsigned to, int x, unsigned bar) {
    asm volatile(ST ".b32 [%0], %1, [%2];" :: "r"(to), "r"(x), "r"(bar) : "memory");
}
"""
)
BODIES = {
    # each block sends a row to the next one
    "one": """
    __shared__ int row[64]; __shared__ u64 bar; int t = threadIdx.x, rank = blockIdx.x % 4;
    begin(&bar, 256);
    post(there(row + t, (rank + 1) % 4), a[blockIdx.x * 64 + t], there(&bar, (rank + 1) % 4));
    wait(&bar, 0);
    b[blockIdx.x * 64 + t] = row[63 - t];""",
    "two longs": """
    __shared__ __align__(16) long long row[128]; __shared__ u64 bar;
    int t = threadIdx.x, next = (blockIdx.x + 1) % 4;
    begin(&bar, 1024);
    asm volatile(ST ".v2.b64 [%0], {%1, %2}, [%3];" :: "r"(there(row + 2 * t, next)),
        "l"((long long)a[blockIdx.x * 64 + t]), "l"(-1ll), "r"(there(&bar, next)) : "memory");
    wait(&bar, 0);
    b[blockIdx.x * 64 + t] = row[2 * (63 - t)] * -row[2 * t + 1];""",
    "four": """
    __shared__ __align__(16) int row[256]; __shared__ u64 bar;
    int t = threadIdx.x, next = (blockIdx.x + 1) % 4, x = a[blockIdx.x * 64 + t];
    begin(&bar, 1024);
    asm volatile(ST ".v4.b32 [%0], {%1, %2, %3, %4}, [%5];" :: "r"(there(row + 4 * t, next)),
        "r"(x), "r"(x + 1), "r"(x + 2), "r"(x + 3), "r"(there(&bar, next)) : "memory");
    wait(&bar, 0);
    b[blockIdx.x * 64 + t] = row[4 * (63 - t)] + row[4 * t + 3] - row[4 * t];""",
    # two blocks exchange rows: what comes next says that the one before has been read
    "rounds": """
    __shared__ int row[2][64]; __shared__ u64 bar[2]; int t = threadIdx.x;
    int next = blockIdx.x % 4 ^ 1, x = a[blockIdx.x * 64 + t];
    begin(bar, 256);
    begin(bar + 1, 256);
    for (int i = 0; i < 6; ++i) {
        int now = i % 2;
        post(there(row[now] + t, next), x, there(bar + now, next));
        wait(bar + now, i / 2 % 2);
        if (t == 0 && i < 4) expect(bar + now, 256);
        x = row[now][63 - t] + 1;
    }
    b[blockIdx.x * 64 + t] = x;
    meet();""",
    # sums of all blocks, twice; a block's own share is added at once
    "sums": """
    __shared__ int sum[8]; __shared__ u64 bar; int t = threadIdx.x, rank = blockIdx.x % 4;
    if (t < 8) sum[t] = 0;
    begin(&bar, 768);
    for (int round = 0; round < 2; ++round) {
        for (int to = 0; to < 4; ++to)
            if (to != rank)
                asm volatile(RED ".add.s32 [%0], %1, [%2];" :: "r"(there(sum + t % 8, to)),
                    "r"(a[blockIdx.x * 64 + t]), "r"(there(&bar, to)) : "memory");
        atomicAdd(sum + t % 8, a[blockIdx.x * 64 + t]);
        wait(&bar, round);
        if (t == 0 && round == 0) expect(&bar, 768);
        meet();
    }
    b[blockIdx.x * 64 + t] = sum[t % 8];""",
    # addresses that name no space, and lanes that store nothing
    "generic": """
    __shared__ int row[64]; __shared__ u64 bar; int t = threadIdx.x, next = (blockIdx.x + 1) % 4;
    row[t] = 0;
    begin(&bar, 128);
    if (t % 2)
        asm volatile("st.async.weak.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
            :: "l"(__cluster_map_shared_rank(row + t, next)), "r"(a[blockIdx.x * 64 + t]),
               "l"(__cluster_map_shared_rank(&bar, next)) : "memory");
    wait(&bar, 0);
    b[blockIdx.x * 64 + t] = row[63 - t];""",
    # -- wrong ones; in a ring of four, the next block may not have read what is replaced
    "a ring": """
    __shared__ int row[2][64]; __shared__ u64 bar; int t = threadIdx.x;
    int next = (blockIdx.x + 1) % 4, x = a[blockIdx.x * 64 + t];
    begin(&bar, 256);
    for (int i = 0; i < 6; ++i) {
        post(there(row[i % 2] + t, next), x, there(&bar, next));
        wait(&bar, i % 2);
        if (t == 0 && i < 5) expect(&bar, 256);
        x = row[i % 2][63 - t] + 1;
    }
    b[blockIdx.x * 64 + t] = x;
    meet();""",
    # a round may begin before the bytes of the one before are all there
    "one mbarrier": """
    __shared__ int row[2][64]; __shared__ u64 bar; int t = threadIdx.x;
    int next = blockIdx.x % 4 ^ 1, x = a[blockIdx.x * 64 + t];
    begin(&bar, 256);
    for (int i = 0; i < 2; ++i) {
        post(there(row[i] + t, next), x, there(&bar, next));
        wait(&bar, i);
        if (t == 0 && i == 0) expect(&bar, 256);
        __syncthreads();
    }
    b[blockIdx.x * 64 + t] = row[1][63 - t];
    meet();""",
    "a barrier in place of the wait": """
    __shared__ int row[64]; __shared__ u64 bar; int t = threadIdx.x, next = (blockIdx.x + 1) % 4;
    row[t] = -7;
    begin(&bar, 256);
    post(there(row + t, next), a[t], there(&bar, next));
    asm volatile("cp.async.wait_all;" ::: "memory");  // it is none of these
    meet();
    b[blockIdx.x * 64 + t] = row[t];
    wait(&bar, 0);""",
    "nobody waits": """
    __shared__ int row[64]; __shared__ u64 bar; int t = threadIdx.x, next = (blockIdx.x + 1) % 4;
    begin(&bar, 256);
    post(there(row + t, next), a[t], there(&bar, next));
    meet();""",
    "twice": """
    __shared__ int row[64]; __shared__ u64 bar; int t = threadIdx.x, next = (blockIdx.x + 1) % 4;
    begin(&bar, 512);
    post(there(row + t, next), a[t], there(&bar, next));
    post(there(row + t, next), a[t] + 1, there(&bar, next));
    wait(&bar, 0);
    b[blockIdx.x * 64 + t] = row[t];""",
    "two blocks": """
    __shared__ int row[64]; __shared__ u64 bar; int t = threadIdx.x, next = (blockIdx.x + 1) % 4;
    begin(&bar, 256);
    post(there(row + t, next), a[t], there(&bar, (next + (t == 5)) % 4));
    wait(&bar, 0);
    b[blockIdx.x * 64 + t] = row[t];""",
    "global memory": """
    __shared__ int row[64]; __shared__ u64 bar; int t = threadIdx.x;
    begin(&bar, 256);
    asm volatile("st.async.weak.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
        :: "l"(b + t), "r"(a[t]), "l"(__cluster_map_shared_rank(&bar, t % 4)) : "memory");
    b[t] = row[t];""",
    "no wait": """
    __shared__ int row[64]; __shared__ u64 bar; int t = threadIdx.x, next = (blockIdx.x + 1) % 4;
    row[t] = -7;
    begin(&bar, 256);
    post(there(row + t, next), a[t], there(&bar, next));
    b[blockIdx.x * 64 + t] = ((volatile int*)row)[t];
    wait(&bar, 0);""",
    "too many bytes": """
    __shared__ int row[64]; __shared__ u64 bar; int t = threadIdx.x, next = (blockIdx.x + 1) % 4;
    begin(&bar, 260);
    post(there(row + t, next), a[t], there(&bar, next));
    wait(&bar, 0);
    b[blockIdx.x * 64 + t] = row[t];""",
    "replaced early": """
    __shared__ int row[64]; __shared__ u64 bar; int t = threadIdx.x, next = (blockIdx.x + 1) % 4;
    begin(&bar, 512);
    post(there(row + t, next), a[t], there(&bar, next));
    post(there(row + 63 - t, next), a[t], there(&bar, next));
    wait(&bar, 0);
    b[blockIdx.x * 64 + t] = row[t];""",
    "outside": """
    __shared__ int row[64]; __shared__ u64 bar; int t = threadIdx.x;
    begin(&bar, 256);
    post(there(row + t, t % 4) + (t == 5) * 65536, a[t], there(&bar, t % 4));
    wait(&bar, 0);
    b[t] = row[t];""",
    "no mbarrier": """
    __shared__ int row[64]; __shared__ u64 bar[2]; int t = threadIdx.x;
    begin(bar, 256);
    post(there(row + t, t % 4), a[t], there(bar + 1, t % 4));
    b[t] = row[t];""",
}
ARRAY = np.random.default_rng(8).integers(-99, 99, 512).astype(np.int32)
ROWS = ARRAY.reshape(2, 4, 64)  # cluster, rank, thread


@pytest.fixture(scope="module")
def kernels():
    start = '\nextern "C" __global__ void __cluster_dims__(4, 1, 1) '
    code = HEAD + "".join(
        f"{start} k{at}(const int* a, int* b) {{{body}\n}}"
        for at, body in enumerate(BODIES.values())
    )
    module = RawModule(code=code, options=("-arch=sm_90a",), backend="simulator")
    return {name: module.get_function(f"k{at}") for at, name in enumerate(BODIES)}


def run(kernel, observer, order=None):
    kernel.warp_order = order
    out = np.zeros(512, np.int32)
    seen = launch(kernel, observer, arrays=(ARRAY, out), grid=8, block=64)
    return out.reshape(2, 4, 64), seen


def rounds(rows, count):
    for _ in range(count):
        rows = rows.reshape(2, 2, 2, 64)[:, :, ::-1, ::-1] + 1
    return rows.reshape(2, 4, 64)


EXPECTED = {
    "one": np.roll(ROWS, 1, axis=1)[..., ::-1],
    "two longs": np.roll(ROWS, 1, axis=1)[..., ::-1],
    "four": np.roll(ROWS, 1, axis=1)[..., ::-1] + 3,
    "rounds": rounds(ROWS, 6),
    "sums": 2 * np.tile(ROWS.reshape(2, 4, 8, 8).sum((1, 2))[:, None], (1, 4, 8)),
    "generic": (np.roll(ROWS, 1, axis=1) * (np.arange(64) % 2))[..., ::-1],
}


@pytest.mark.turns(7)
@pytest.mark.parametrize("order", [None, 1, 2], ids=["lockstep", "random", "another"])
@pytest.mark.parametrize("name", EXPECTED)
def test_they_arrive_and_nothing_is_found(kernels, name, order):
    found, seen = run(kernels[name], Sanitizer(), order)
    np.testing.assert_array_equal(found, EXPECTED[name])
    assert seen.findings == []


@pytest.mark.parametrize("name", ["no wait", "a barrier in place of the wait"])
def test_what_nobody_has_waited_for_is_not_there(kernels, name):
    found, seen = run(kernels[name], Sanitizer())
    assert (found == -7).all()
    (one,) = seen.findings
    assert (one.kind, one.severity) == ("race", "error")
    line = HEAD[: HEAD.index("asm volatile(ST")].count("\n") + 1
    assert "reads row[" in one.message
    assert f"while the st.async of line {line} may still" in one.message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("replaced early", "writes row["),  # by another thread
        ("twice", "writes row["),  # by the same one
        ("a ring", "overwrites row["),
        ("one mbarrier", "nothing orders that behind the end of what"),
        ("nobody waits", "may still write row[0] when the block has ended"),
    ],
)
def test_what_may_come_too_early_or_too_late_is_a_race(kernels, name, message):
    _, seen = run(kernels[name], Sanitizer())
    assert {(one.kind, one.severity) for one in seen.findings} == {("race", "error")}
    assert any(message in one.message for one in seen.findings)


def test_a_phase_that_expects_more_never_ends(kernels):
    with pytest.raises(SimulatorError, match="4 bytes"):
        run(kernels["too many bytes"], Counters())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("outside", "byte 655"),
        ("no mbarrier", "not initialised"),
        ("two blocks", "names an mbarrier of another"),
        ("global memory", "stores outside of shared memory"),
    ],
)
def test_a_wrong_place_is_named(kernels, name, message):
    with pytest.raises((MemoryFault, SimulatorError), match=message):
        run(kernels[name], Counters())


def test_counters_count_them_as_accesses_to_other_blocks(kernels):
    totals = run(kernels["four"], Counters())[1].totals
    assert totals["cluster_shared_requests"] == 8 * 2  # one of each warp
