"""The sanitizer on small kernels: what it must find, and what it must leave alone."""

import numpy as np
import pytest
from kernelscope.events import observe
from kernelscope.module import RawModule
from kernelscope.watch import Sanitizer
from watch_harness import kinds, run

KINDS = ("out-of-bounds", "misaligned", "uninitialised-read", "race", "divergent-barrier")


def check(body, *, uninitialised=(), **options):
    return run(body, Sanitizer(uninitialised), **options).findings


SHARED = "__shared__ int s[256]; const int t = threadIdx.x;\n"
GLOBAL = "const int t = threadIdx.x, g = blockIdx.x * blockDim.x + t;\n"

# -- what it must leave alone ----------------------------------------------------------------------
CLEAN = {
    "barrier between": SHARED + "s[t] = a[t]; __syncthreads(); b[t] = s[63 - t];",
    "a thread's own element": SHARED + "s[t] = a[t]; s[t] += 1; b[t] = s[t];",
    "warp barrier inside a warp": SHARED
    + "s[t] = a[t]; __syncwarp(); b[t] = s[t ^ 31]; __syncwarp(); s[t] = 0;",
    "warp tree with warp barriers": SHARED
    + """
        s[t] = a[t]; __syncwarp();
        for (int o = 16; o > 0; o /= 2) {
            int v = (t & 31) + o < 32 ? s[t + o] : 0;
            __syncwarp(); s[t] += v; __syncwarp();
        }
        b[t] = s[t];""",
    "half a warp with its own mask": SHARED
    + """
        if (t < 16) { s[t] = a[t]; __syncwarp(0x0000ffff); b[t] = s[15 - t]; }""",
    "block tree": SHARED
    + """
        s[t] = a[t]; __syncthreads();
        for (int o = 32; o > 0; o /= 2) { if (t < o) s[t] += s[t + o]; __syncthreads(); }
        b[t] = s[0];""",
    "two buffers": SHARED
    + """
        int sum = 0;
        s[t] = a[t];
        for (int i = 0; i < 4; ++i) {
            __syncthreads();
            if (i < 3) s[(i + 1) % 2 * 64 + t] = a[(i + 1) * 64 + t];
            sum += s[i % 2 * 64 + 63 - t];
        }
        b[t] = sum;""",
    "shared atomics": SHARED
    + """
        if (t == 0) s[0] = 0;
        __syncthreads(); atomicAdd(&s[0], a[t]); __syncthreads(); b[t] = s[0];""",
    "global atomics": GLOBAL + "atomicAdd(&b[0], a[t]); atomicMax(&b[1], a[g % 64]);",
    "compare and swap": GLOBAL
    + """
        int old = b[0 + 2 * t], seen;
        do { seen = old; old = atomicCAS(&b[2 * t], seen, seen + 1); } while (old != seen);""",
    "global through a block barrier": GLOBAL + "b[g] = a[g]; __syncthreads(); a[g] = b[g ^ 63];",
    "global through a warp barrier": GLOBAL + "b[g] = a[g]; __syncwarp(); a[g] = b[g ^ 31];",
    "one element a thread": GLOBAL + "b[g] = a[g] + 1;",
    "all read one element": GLOBAL + "b[g] = a[0];",
    "early return": SHARED + "if (t >= 40) return; s[t] = a[t]; __syncthreads(); b[t] = s[39 - t];",
    "bytes of one word": """
        __shared__ char s[64]; const int t = threadIdx.x;
        s[t] = a[t]; b[t] = s[t]; __syncthreads(); b[t] = s[63 - t];""",
    "wide accesses": """
        __shared__ __align__(16) float4 s[64]; const int t = threadIdx.x;
        s[t] = make_float4(t, 1, 2, 3); __syncthreads();
        b[t] = reinterpret_cast<float*>(s)[255 - t];""",
    "barrier that counts": SHARED
    + """
        s[t] = a[t]; const int n = __syncthreads_count(t < 5); b[t] = s[63 - t] + n;""",
    "shuffle of a full warp": GLOBAL + "b[g] = __shfl_xor_sync(0xffffffff, a[g], 1);",
    "shuffle of half a warp": GLOBAL
    + """
        if (t % 32 < 16) b[g] = __shfl_xor_sync(0x0000ffff, a[g], 8);""",
    "vote": GLOBAL + "b[g] = __ballot_sync(0xffffffff, a[g] > 3) + __any_sync(0xffffffff, t);",
    "local array": GLOBAL
    + """
        int x[8];
        for (int i = 0; i < 8; ++i) x[i] = a[(g + i) & 255];
        b[g] = x[t & 7];""",
    "a struct with a gap, copied": GLOBAL
    + """
        struct Gap { int x; double y; char z; };
        Gap p; p.x = t; p.y = 2; p.z = 3;
        Gap q = *(a[t] < 999 ? &p : (Gap*)a);
        b[g] = q.x + (int)q.y + q.z;""",
    "barriers in a uniform branch": SHARED
    + """
        if (blockIdx.x == 0) { s[t] = 1; __syncthreads(); b[t] = s[63 - t]; }
        else { s[t] = 2; __syncthreads(); b[64 + t] = s[63 - t]; }""",
    "producers and consumers": SHARED
    + """
        if (t < 32) { s[t] = a[t]; asm volatile("bar.arrive 1, 64;" ::: "memory"); }
        else { asm volatile("bar.sync 1, 64;" ::: "memory"); b[t] = s[63 - t]; }""",
    "barriers of half blocks": SHARED
    + """
        s[t] = a[t];
        if (t < 32) asm volatile("bar.sync 1, 32;" ::: "memory");
        else asm volatile("bar.sync 2, 32;" ::: "memory");
        b[t] = s[t ^ 31];""",
}


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("warp_order", [None, 1], ids=["lockstep", "random warps"])
@pytest.mark.parametrize("name", CLEAN)
def test_race_free_code_has_no_findings(name, warp_order):
    blocks = 2 if "__shared__" not in CLEAN[name] or "blockIdx" in CLEAN[name] else 1
    assert check(CLEAN[name], grid=blocks, warp_order=warp_order) == []


LAST_BLOCK = (
    GLOBAL
    + """
    __shared__ bool last;
    b[g] = a[g];
    {fence}
    __syncthreads();
    if (t == 0) last = atomicAdd(&a[255], 1) == 255 + gridDim.x - 1;
    __syncthreads();
    if (last) b[128 + t] = b[t] + b[64 + t];"""
)


@pytest.mark.parametrize(
    ("fence", "races"), [("__threadfence();", False), ("", True), ("__threadfence_block();", True)]
)
def test_the_last_block_to_finish_may_read_the_others(fence, races):
    """A fence and a ticket order blocks; a ticket alone does not."""
    found = check(LAST_BLOCK.replace("{fence}", fence), grid=2)
    assert kinds(found) == ([("race", "error")] if races else [])


def test_a_fence_orders_only_what_came_before_it():
    late = LAST_BLOCK.replace("b[g] = a[g];\n    {fence}", "__threadfence();\n    b[g] = a[g];")
    assert kinds(check(late, grid=2)) == [("race", "error")]


def test_flag_between_blocks():
    body = (
        GLOBAL
        + """
        volatile int* flag = a + 200;
        if (blockIdx.x == 0) {
            if (t == 0) { b[0] = 5; __threadfence(); *flag = 1; }
        } else if (t == 0) {
            while (*flag != 1) { }
            __threadfence();
            b[1] = b[0];
        }"""
    )
    assert check(body, grid=2) == []
    assert kinds(check(body.replace("b[0] = 5; __threadfence();", "b[0] = 5;"), grid=2)) == [
        ("race", "error")
    ]


def test_lock():
    body = (
        GLOBAL
        + """
        if (t == 0) {
            while (atomicCAS(&a[0], 0, 1) != 0) { }
            __threadfence();
            b[0] = b[0] + 1;
            __threadfence();
            atomicExch(&a[0], 0);
        }"""
    )
    assert check(body, grid=3) == []


# -- races in shared memory ------------------------------------------------------------------------
RACES = {  # name: the hazard and the body, whose last line meets it
    "read after write": "RAW s[t] = a[t];\nb[t] = s[63 - t];",
    "write after read": "WAR s[t] = a[t]; __syncthreads();\nint x = s[63 - t];\ns[t] = x;",
    "own read comes last": "WAR s[t] = a[t]; __syncthreads();\n"
    "int x = s[(t + 1) % 64] + s[t];\ns[t] = x;",
    "several readers at once": "WAR s[t] = a[t]; __syncthreads();\n"
    "int x = s[0];\nif (t == 63) s[0] = x;",
    "volatile without a fence": "RAW __shared__ volatile int s[64]; const int t = threadIdx.x;\n"
    "s[t] = a[t];\nb[t] = s[63 - t];",
    "write after write": "WAW s[t] = a[t];\ns[63 - t] = t; b[t] = 0;",
    "one instruction": "WAW b[t] = 0;\ns[t / 2] = t;",
    "warp barrier across warps": "RAW s[t] = a[t]; __syncwarp();\nb[t] = s[t ^ 32];",
    "barrier before, not after": "RAW __syncthreads(); s[t] = a[t];\nb[t] = s[t ^ 1];",
    "atomic and plain": "RAW if (t == 0) s[0] = 0; __syncthreads(); atomicAdd(&s[0], 1);\n"
    "b[t] = s[0];",
    "neighbouring bytes do not hide it": "RAW __shared__ char s[256]; const int t = threadIdx.x;\n"
    "s[t] = a[t];\nb[t] = s[t ^ 1];",
    "one byte of a word": "RAW __shared__ int s[64]; const int t = threadIdx.x;\n"
    "s[t] = a[t];\nb[t] = reinterpret_cast<char*>(s)[(t * 4 + 5) % 256];",
    "wide read of narrow writes": "RAW __shared__ __align__(16) int s[256]; "
    "const int t = threadIdx.x;\n"
    "for (int i = 0; i < 4; ++i) s[i * 64 + t] = t;\nb[t] = reinterpret_cast<int4*>(s)[t].z;",
    "barrier of the other half": "RAW s[t] = a[t]; "
    'if (t < 32) asm volatile("bar.sync 1, 32;" ::: "memory");\n'
    "if (t < 32) b[t] = s[63 - t];",
}


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("warp_order", [None, 3], ids=["lockstep", "random warps"])
@pytest.mark.parametrize("name", RACES)
def test_races_are_found(name, warp_order):
    hazard, _, body = RACES[name].partition(" ")
    body = body if body.startswith("__shared__") else SHARED + body
    line = 2 + len(body.splitlines())
    found = [f for f in check(body, warp_order=warp_order) if f.severity == "error"]
    races = [f for f in found if f.kind == "race"]
    assert races and {f.array for f in races} == {"s"}
    assert len(races[0].threads) == 2 and races[0].threads[0] != races[0].threads[1]
    if warp_order is None:  # else a late warp may also meet it from the other side
        assert [(f.kind, f.line) for f in found] == [("race", line)], found
        assert races[0].message.startswith(hazard)


def test_a_finding_tells_the_whole_story():
    (found,) = check(SHARED + RACES["read after write"].removeprefix("RAW "))
    assert found.line_text == "b[t] = s[63 - t];" and found.other_line == 4
    assert found.count == 64 and found.valid_range == "elements 0 to 255 of s"
    writer, reader = found.threads
    assert found.index == writer[1][0] == 63 - reader[1][0]
    assert writer[1][0] // 32 != reader[1][0] // 32, "an example between two warps tells most"
    assert "__syncthreads()" in found.remedy and "line 4" in found.message


def test_same_value_is_a_warning():
    same = check(SHARED + "s[0] = 7; b[t] = t;")
    assert kinds(same) == [("race", "warning")] and "same value" in same[0].message
    two = check(SHARED + "if (t == 0) s[0] = 7; if (t == 40) s[0] = 7; b[t] = t;")
    assert kinds(two) == [("race", "warning")]
    mixed = check(SHARED + "s[0] = t / 63; b[t] = t;")
    assert kinds(mixed) == [("race", "error")]


@pytest.mark.parametrize(
    ("held", "stored", "severity"),
    [
        (0, "0", "error"),
        (7, "7", "error"),
        (7, "0", "error"),
        (0, "a[63 - t]", "warning"),
    ],
)
def test_a_store_is_compared_with_what_a_copy_brought(held, stored, severity):
    """Not with what the place held before it: the copy of another lane, 1 to 64, comes first."""
    body = (
        SHARED
        + f"""
        s[t] = {held}; __syncthreads();
        unsigned to = (unsigned)__cvta_generic_to_shared(&s[t]);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(to), "l"(&a[t]) : "memory");
        asm volatile("cp.async.wait_all;" ::: "memory");
        s[63 - t] = {stored}; b[t] = t;"""
    )
    arrays = np.arange(1, 257, dtype=np.int32), np.zeros(256, np.int32)
    found = check(body, arrays=arrays, options=("-arch=compute_80",))
    assert {kind for kind, _ in kinds(found)} == {"race"}
    assert any(f.severity == "error" for f in found) == (severity == "error")


def test_a_shuffle_does_not_order_memory():
    body = SHARED + "s[t] = a[t]; int x = __shfl_sync(0xffffffff, t, 0); b[t] = s[t ^ 1] + x;"
    (found,) = check(body)
    assert (found.kind, found.severity) == ("race", "warning") and "shuffle" in found.message


def test_blocks_have_shared_memory_of_their_own():
    body = SHARED + "s[t] = a[t]; __syncthreads(); b[t + 64 * blockIdx.x] = s[63 - t];"
    assert check(body, grid=3) == []


# -- races in global memory ------------------------------------------------------------------------
GLOBAL_RACES = {
    "between threads": (GLOBAL + "b[g] = a[g];\na[g] = b[g ^ 63];", 1, "b"),
    "between blocks": (GLOBAL + "b[g] = a[g]; __syncthreads();\na[g] = b[(g + 64) % 128];", 2, "b"),
    "lost update": (GLOBAL + "\nif (t == 0) b[0] += g + 1;", 2, "b"),
    "atomic and plain": (GLOBAL + "atomicAdd(&b[0], 1);\nif (g == 70) b[1] = b[0];", 2, "b"),
    "blocks write one element": (GLOBAL + "\nif (t == 0) b[3] = g;", 2, "b"),
}


@pytest.mark.parametrize("name", GLOBAL_RACES)
def test_global_races_are_found(name):
    body, grid, array = GLOBAL_RACES[name]
    found = [f for f in check(body, grid=grid) if f.severity == "error"]
    assert [(f.kind, f.line) for f in found] == [("race", 5)], found
    assert found[0].array == array


def test_blocks_far_apart_race_too():
    """Also when the blocks run in different chunks, one after the other."""
    body = GLOBAL + "if (t == 0 && (blockIdx.x == 0 || blockIdx.x == 299)) b[7] = g;"
    found = check(body, grid=300, block=128)
    assert kinds(found) == [("race", "error")]
    assert found[0].threads[0][0] == (0, 0, 0) and found[0].threads[1][0] == (299, 0, 0)


# -- uninitialised reads ---------------------------------------------------------------------------
def test_uninitialised_shared():
    (found,) = check(SHARED + "if (t < 60) s[t] = a[t]; __syncthreads();\nb[t] = s[t];")
    assert (found.kind, found.line, found.array, found.index) == ("uninitialised-read", 5, "s", 60)
    assert found.count == 4 and [thread[1][0] for thread in found.threads] == [60, 61, 62, 63]


def test_uninitialised_dynamic_shared():
    body = "extern __shared__ int s[]; const int t = threadIdx.x; b[t] = s[t];"
    (found,) = check(body, shared=256)
    assert found.kind == "uninitialised-read" and found.array == "s"


def test_uninitialised_output():
    body = GLOBAL + "if (g < 3) b[g] = 1;\nif (g < 4) a[g] = b[g];"
    assert check(body) == []
    (found,) = check(body, uninitialised=("b",))
    assert (found.kind, found.line, found.array, found.index) == ("uninitialised-read", 5, "b", 3)


def test_uninitialised_array_of_odd_size():
    arrays = [np.arange(256, dtype=np.int32), np.zeros(7, np.uint8)]
    body = "if (threadIdx.x == 0) { b[0] = 1; a[0] = b[0]; }\nif (threadIdx.x == 0) a[1] = b[6];"
    (found,) = check(
        body, arrays=arrays, parameters="int* a, unsigned char* b", uninitialised=("b",)
    )
    assert (found.line, found.index) == (4, 6)


def test_uninitialised_local_array():
    body = GLOBAL + "int x[4]; x[0] = 1; x[1] = 2;\nb[g] = x[t & 3];"
    (found,) = check(body)
    assert (found.kind, found.line, found.array) == ("uninitialised-read", 5, "x")
    assert found.index == 2 and "reads x[2], which it has not written yet" in found.message


def test_shuffle_from_a_lane_that_is_not_there():
    body = GLOBAL + "if (t % 32 < 20)\nb[g] = __shfl_down_sync(0x000fffff, a[g], 4);"
    found = check(body)
    assert [(f.kind, f.line) for f in found] == [("uninitialised-read", 5)]
    assert "lane 16" in found[0].message and found[0].count == 8  # 4 lanes of 2 warps


def test_unknown_and_misspelt_names_are_refused():
    with pytest.raises(ValueError, match="no array named 'c'; it has: a, b"):
        check("a[0] = 1;", uninitialised=("c",))
    with pytest.raises(TypeError, match="tuple of argument names"):
        Sanitizer("out")


# -- bounds, alignment, barriers, launches ---------------------------------------------------------
@pytest.mark.parametrize(
    ("body", "array", "index"),
    [
        ("b[0] = a[256 + threadIdx.x];", "a", 256),
        ("b[(int)threadIdx.x - 1] = 3;", "b", -1),
        ("__shared__ int s[32]; s[threadIdx.x] = 1; b[threadIdx.x] = 0;", "s", 32),
        ("atomicAdd(&b[300], 1);", "b", 300),
    ],
)
def test_out_of_bounds(body, array, index):
    found = [f for f in check(body) if f.kind == "out-of-bounds"]
    assert [(f.line, f.array, f.index) for f in found] == [(3, array, index)]
    assert found[0].valid_range and found[0].threads


def test_an_array_that_a_line_names_is_not_blamed_for_another_one_nearby():
    arrays = [np.arange(1, dtype=np.int32), np.zeros(32, np.int32)]
    (found,) = check(
        "const int* row = a;\nb[threadIdx.x] = row[threadIdx.x];", arrays=arrays, block=32
    )
    assert (found.array, found.index) == ("a", 1)
    assert "reads element 1 of a, which has elements 0 to 0" in found.message


@pytest.mark.parametrize(
    "use", ["s[t] = 1;", "atomicAdd(&s[t], 1);", "b[t] = s[t];", "held[t] = 0; s[t] = 1;"]
)
def test_dynamic_shared_memory_that_the_launch_does_not_give(use):
    static = "__shared__ int held[64];\n" if "held" in use else "\n"
    body = f"extern __shared__ int s[]; const int t = threadIdx.x; {static}{use}"
    found = next(f for f in check(body) if f.kind == "out-of-bounds")
    assert "s, to which the launch gives no memory" in found.message
    assert "shared_mem=BYTES" in found.remedy and "--shared-mem BYTES" in found.remedy


def test_null_pointer():
    arrays = [np.arange(256, dtype=np.int32), None]
    found = check("if (threadIdx.x < 3)\nb[threadIdx.x] = 1;", arrays=arrays)
    assert kinds(found) == [("out-of-bounds", "error")] and found[0].line == 4
    (found,) = check("memcpy(0, &a[threadIdx.x], 4);\nb[0] = 0;", arrays=[arrays[0]] * 2, block=1)
    assert found.array == "" and "a null or wild pointer" in found.message


def test_local_array_overrun():
    body = GLOBAL + "int x[4]; for (int i = 0; i < 4; ++i) x[i] = i;\nb[t] = x[4 + a[t]];"
    found = [f for f in check(body, block=2) if f.kind == "out-of-bounds"]
    assert [(f.line, f.index) for f in found] == [(5, 4)]


def test_misaligned():
    body = "const int t = threadIdx.x;\nreinterpret_cast<long long*>(b + 1)[t] = t;"
    (found,) = check(body, block=8)
    assert (found.kind, found.line, found.array, found.index) == ("misaligned", 4, "b", 1)
    assert found.count == 8


def test_a_wrong_store_is_dropped_and_the_rest_goes_on():
    arrays = [np.arange(256, dtype=np.int32), np.zeros(64, np.int32)]
    check("b[threadIdx.x * 2] = threadIdx.x;", arrays=arrays)
    assert arrays[1][::2].tolist() == list(range(32))


def test_different_barriers():
    body = SHARED + "if (t < 20) {\n__syncthreads();\n} else {\n__syncthreads();\n}"
    (found,) = check(body)
    assert (found.kind, found.line, found.other_line) == ("divergent-barrier", 5, 7)
    assert "20 threads at line 5 and 44 threads at line 7" in found.message
    (found,) = check(body.replace("20", "1"), grid=3)
    words = "of block (0, 0, 0) meet at different barriers: 1 thread at line 5 and 63 threads at"
    assert words in found.message and found.count == 3


def test_a_barrier_that_never_completes():
    body = 'if (threadIdx.x < 20)\nasm volatile("bar.sync 0, 64;" ::: "memory");'
    (found,) = check(body)
    assert (found.kind, found.line) == ("divergent-barrier", 4)


def test_bad_launch():
    found = check("b[threadIdx.x] = 1;", block=2048)
    assert kinds(found) == [("bad-launch", "error")] and "2048" in found[0].message
    found = check("extern __shared__ int s[]; s[0] = 1;", shared=1 << 20)
    assert kinds(found) == [("bad-launch", "error")] and "1048576" in found[0].message


# -- reporting -------------------------------------------------------------------------------------
def test_equal_findings_are_merged():
    body = GLOBAL + "for (int i = 0; i < 5; ++i)\nb[g] = a[300 + i];"
    (found,) = check(body)
    assert found.count == 5 * 64 and len(found.threads) == 8


def test_findings_of_several_launches_are_kept():
    code = 'extern "C" __global__ void k(int* a) {\na[threadIdx.x + 2] = 1;\n}'
    kernel = RawModule(code=code, backend="simulator").get_function("k")
    with observe(Sanitizer()) as report:
        kernel((1,), (4,), (np.zeros(4, np.int32),))
        assert report.errors and report.findings[0].count == 2
        kernel((1,), (8,), (np.zeros(4, np.int32),))
    assert [finding.count for finding in report.findings] == [2 + 6]


def test_a_shuffle_that_lanes_miss_names_its_own_call():
    """That lanes wait in vain is known when the others have gone on, to another call here."""
    code = """__device__ __noinline__ int sum(int x) {
    return __shfl_xor_sync(0xffffffff, x, 1);
}
extern "C" __global__ void k(const int* a, int* b) {
    int x = a[threadIdx.x];
    if (threadIdx.x > 0) x = sum(x);
    b[threadIdx.x] = threadIdx.x ? x : __shfl_sync(1, x, 0);
}"""
    kernel = RawModule(code=code, backend="simulator").get_function("k")
    with observe(Sanitizer()) as report:
        kernel((1,), (32,), (np.zeros(32, np.int32), np.zeros(32, np.int32)))
    (missed,) = [one for one in report.findings if one.kind == "divergent-barrier"]
    assert (missed.line, missed.called) == (2, "line 6 `if (threadIdx.x > 0) x = sum(x);`")


def test_text_of_a_finding():
    (found,) = check(SHARED + RACES["read after write"].removeprefix("RAW "))
    text = str(found)
    assert text.startswith("error: race, line 5: b[t] = s[63 - t];\n") and "remedy: " in text


CALLS = """
__device__ int from(const int* a, int i) { return a[i]; }
__device__ int deep(const int* a, int i) {
    return from(a, i);
}
extern "C" __global__ void k(const int* a, int* b) {
    b[threadIdx.x] = from(a, threadIdx.x);
    b[threadIdx.x] += CALL;
}
"""


SECOND = "line 8 `b[threadIdx.x] += CALL;`"


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize(
    ("call", "line", "called"),
    [
        ("from(a, 4 + threadIdx.x)", 2, SECOND),
        ("deep(a, 4 + threadIdx.x)", 2, "line 4 `return from(a, i);`"),
        ("deep(a, 0) + from(a, 0) + from(a, 4)", 2, SECOND),
        ("a[4 + threadIdx.x]", 8, ""),
    ],
)
def test_a_finding_in_a_function_names_the_call(call, line, called):
    module = RawModule(code=CALLS, options=(f"-DCALL={call}",), backend="simulator")
    with observe(Sanitizer()) as report:
        module.get_function("k")((1,), (4,), (np.zeros(4, np.int32), np.zeros(4, np.int32)))
    (found,) = report.findings
    assert (found.line, found.called) == (line, called)
    assert (f"  called from {called}\n" in str(found)) == bool(called)
