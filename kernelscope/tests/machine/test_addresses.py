"""Addresses of global memory: stable over launches, far from each other, and what faults there."""

import gc

import numpy as np
import pytest
from kernelscope import CompileError, Sanitizer, device_address, observe
from kernelscope.address_space import SPACE, AddressSpace
from kernelscope.addresses import Packed
from kernelscope.machine import MemoryFault
from kernelscope.machine.launch import launch
from kernelscope.module import RawModule
from kernelscope.translate.program import Program
from machine_harness import listen, module, run, zeros

CODE = r"""
struct Job { const float* from; float* to; int n; };
struct Node { int value; Node* next; };
__device__ int data[4] = {1, 2, 3, 4}, *pd;
__device__ Node* list;
__device__ float* kept;
__constant__ int c[4] = {5, 6, 7, 8};
__managed__ int shared_count = 3;
extern "C" {
__global__ void points() { pd = data + 2; }
__global__ void follows(int* out) { *out = *pd; }
__global__ void keeps(float* x) { kept = x; }
__global__ void changes(float add) { kept[threadIdx.x] += add; }
__global__ void gather(const float* const* rows, float* out, int n) {
    int row = blockIdx.x;
    out[row * n + threadIdx.x] = 2 * rows[row][threadIdx.x];
}
__global__ void works(Job job) {
    int i = threadIdx.x;
    if (i < job.n) job.to[i] = job.from[i] + 1;
}
__global__ void many(const Job* jobs) {
    Job job = jobs[blockIdx.x];
    for (int i = threadIdx.x; i < job.n; i += blockDim.x) job.to[i] = job.from[i] * 3;
}
__global__ void where(const float* x, unsigned long long* out) { *out = (unsigned long long)x; }
__global__ void reads(const float* x, float* out, int shift) {
    int i = threadIdx.x;
    out[i] = x[i + shift];
}
__global__ void casts(const float* x) { ((float*)x)[threadIdx.x] = 1; }
__global__ void casts_atomic(const int* x) { atomicAdd((int*)x + threadIdx.x, 1); }
__global__ void constant(int* out, int i) { out[0] = c[i]; }
__global__ void local(int* out, int i) {
    int s[8];
    for (int k = 0; k < 8; ++k) s[k] = out[k];
    out[0] = s[i];
}
__global__ void two_arrays(int* out, int shift) {
    __shared__ int first[40];
    __shared__ int second[40];
    extern __shared__ int third[];
    int t = threadIdx.x;
    first[t] = t; second[t] = -t; third[t] = 3;
    if (t < 8) first[32 + t] = 0;
    __syncthreads();
    out[t] = first[t + shift] + second[t] + third[t];
}
__global__ void push(int value) { list = new Node{value, list}; }
__global__ void pop(int* out) { Node* n = list; *out = n->value; list = n->next; delete n; }
__global__ void greedy(int* out, long long bytes) {
    int* p = (int*)malloc(bytes);
    p[threadIdx.x] = 1;
    out[threadIdx.x] = p[threadIdx.x];
}
__global__ void spaces(const int* g, int* out, const Job job) {
    __shared__ int s[1];
    int l[2] = {out[0], out[1]};
    const void* p[5] = {g, c, s, l + out[0], &job};
    const void* q = p[threadIdx.x];
    asm volatile("{ .reg .pred g, c, s, l, p; .reg .b32 t;\n"
        "isspacep.global g, %1; isspacep.const c, %1; isspacep.shared s, %1;\n"
        "isspacep.local l, %1; isspacep.param p, %1;\n"
        "selp.b32 %0, 1, 0, g; selp.b32 t, 2, 0, c; or.b32 %0, %0, t;\n"
        "selp.b32 t, 4, 0, s; or.b32 %0, %0, t; selp.b32 t, 8, 0, l; or.b32 %0, %0, t;\n"
        "selp.b32 t, 16, 0, p; or.b32 %0, %0, t; }"
        : "=r"(out[threadIdx.x]) : "l"(q));
}
__global__ void counts() { shared_count += 4; }
}
"""
JOB = np.dtype([("from", "u8"), ("to", "u8"), ("n", "i4")], align=True)


def floats(count, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


# -- addresses that stay --------------------------------------------------------------------------
def test_a_variable_keeps_its_address_from_launch_to_launch_and_in_both_builds(build):
    out = zeros(1)
    run(CODE, "points", 1, 1, build=build)
    run(CODE, "follows", 1, 1, out)
    assert out[0] == 3
    module(CODE).get_global("data").view(np.int32)[2] = 33
    run(CODE, "follows", 1, 1, out, build="debug")
    assert out[0] == 33
    module(CODE).get_global("data").view(np.int32)[2] = 3


def test_a_pointer_that_a_kernel_keeps_reaches_the_array_of_an_earlier_launch(build):
    x = floats(8)
    before = x.copy()
    run(CODE, "keeps", 1, 1, x, build=build)
    x *= 2  # the host goes on using its array
    run(CODE, "changes", 1, 8, np.float32(1), build=build)
    assert x.tolist() == (before * 2 + 1).tolist()


def test_the_memory_of_an_array_that_has_ended_faults_and_is_named(build):
    x = zeros(8, np.float32)
    run(CODE, "keeps", 1, 1, x)
    del x
    gc.collect()
    with pytest.raises(MemoryFault, match="of x, an array that has ended since then"):
        run(CODE, "changes", 1, 8, np.float32(1), build=build)


def test_an_array_of_pointers(build):
    rows = [floats(16, i) for i in range(40)]
    table, out = np.array([device_address(row) for row in rows], np.uint64), floats((40, 16))
    run(CODE, "gather", 40, 16, table, out, np.int32(16), build=build)
    assert out.tolist() == [(2 * row).tolist() for row in rows]


def test_an_address_in_place_of_an_array():
    x, out = floats(16), zeros(8, np.float32)
    run(CODE, "reads", 1, 8, device_address(x) + 16, out, np.int32(2))
    assert out.tolist() == x[6:14].tolist()
    with pytest.raises(MemoryFault, match="element 16 of an array"):
        run(CODE, "reads", 1, 8, device_address(x), out, np.int32(9))


def test_structs_with_pointers_by_value_and_in_memory(build):
    x, y = floats(16), zeros(16, np.float32)
    job = np.array((device_address(x), device_address(y), 10), JOB)
    run(CODE, "works", 1, 16, job, build=build)
    assert y.tolist() == [*(x[:10] + 1).tolist(), *[0] * 6]
    parts = [(floats(20, i), zeros(20, np.float32)) for i in range(5)]
    jobs = np.array([(device_address(a), device_address(b), 20) for a, b in parts], JOB)
    run(CODE, "many", 5, 8, jobs.view(np.uint8), build=build)
    assert all(b.tolist() == (a * 3).tolist() for a, b in parts)


def test_an_address_is_the_same_in_all_modules_and_views_are_inside_their_array():
    x, out = floats(64), zeros(2, np.uint64)
    run(CODE, "where", 1, 1, x[16:], out)
    other = RawModule(code=CODE + "\n// another module", backend="simulator")
    other.get_function("where")((1,), (1,), (x, out[1:]))
    assert out.tolist() == [device_address(x) + 64, device_address(x)]
    assert device_address(x) % 512 == 0 and device_address(x[::-1]) == device_address(x) + 252


def test_variables_of_another_module_can_be_reached():
    made = RawModule(code="__device__ float far_away[4] = {1, 2, 3, 4};", backend="simulator")
    out = zeros(4, np.float32)
    table = np.array([device_address(made.get_global("far_away"))], np.uint64)
    run(CODE, "gather", 1, 4, table, out, np.int32(4))
    assert out.tolist() == [2, 4, 6, 8]


def test_observers_see_what_pointers_lead_to(build):
    x, y = floats(16), zeros(16, np.float32)
    job = np.array((device_address(x), device_address(y), 16), JOB)
    listener = listen(CODE, "works", 1, 32, job, build=build)
    assert not listener.faults and y.tolist() == (x + 1).tolist()
    with observe(Sanitizer()) as found:
        job["n"] = 17
        module(CODE).get_function("works")((1,), (32,), (job,))
    assert {(one.kind, one.index) for one in found.findings} == {("out-of-bounds", 16)}


def test_only_the_part_of_an_array_that_a_launch_is_given_can_be_used():
    whole, out = floats(64), zeros(4, np.float32)
    run(CODE, "reads", 1, 4, whole, out, np.int32(0))
    with pytest.raises(MemoryFault, match="element -1 of x"):
        run(CODE, "reads", 1, 4, whole[8:16], out, np.int32(-1))


# -- the heap -------------------------------------------------------------------------------------
def test_the_heap_outlives_launches(build):
    for value in (3, 4, 5):
        run(CODE, "push", 1, 1, np.int32(value), build=build)
    out = zeros(1)
    for value in (5, 4, 3):
        run(CODE, "pop", 1, 1, out, build=build)
        assert out[0] == value


def test_a_null_malloc_is_explained():
    with pytest.raises(MemoryFault) as caught:
        run(CODE, "greedy", 1, 4, zeros(4), np.int64(1 << 30))
    assert "null pointer" in str(caught.value)
    assert "no room for 1073741824 bytes and returned null: the device heap has 8388608" in str(
        caught.value
    )


def test_what_a_kernel_leaves_on_the_heap_fills_it_and_freed_memory_is_joined():
    heap = AddressSpace().heap
    blocks = [heap.allocate(heap.span.size // 4) for _ in range(5)]
    assert blocks[4] == 0 and len(set(blocks[:4])) == 4
    for block in blocks[:3]:
        heap.release(block)
    assert heap.allocate(heap.span.size // 2) == 0  # a launch still runs
    heap.put_together()
    assert heap.allocate(heap.span.size // 2) == blocks[0]
    assert heap.bytes_in_use == heap.span.size // 4 * 3


# -- many arrays ----------------------------------------------------------------------------------
class Holder:
    """Holds an array in a cycle, as modules hold theirs: only a search for garbage frees it."""

    def __init__(self):
        self.array, self.own = zeros(4), self


@pytest.mark.system
def test_garbage_is_collected_before_the_gaps_become_narrow():
    space = AddressSpace()
    gc.disable()
    try:
        for _ in range(3000):
            space.give(Holder().array)
        assert len(space._starts) < 1100
    finally:
        gc.enable()


@pytest.mark.system
def test_what_printf_reads_is_found_at_once_among_many_arrays():
    """Where each look had to list them all, 40,000 looks took seconds."""
    space, kept = AddressSpace(), [zeros(4) for _ in range(3000)]
    addresses = [space.give(array)[0] for array in kept]
    visited = []
    space._live = Watched(space._live, visited)
    (found,) = space.at_any(np.array([addresses[70] + 5], np.uint64))
    assert found.start == addresses[70] and len(visited) < 20
    assert space.at_any(np.array([addresses[70] + 500], np.uint64)) == []
    both = space.at_any(np.array([addresses[9], addresses[70]], np.uint64))
    assert [one.start for one in both] == [addresses[9], addresses[70]]


def test_constants_of_the_library_that_nothing_names_share_their_addresses():
    """In debug builds there are hundreds of them."""
    text = """.version 8.0
.target sm_90
.address_size 64
.visible .global .align 4 .u32 used = 7;
.visible .global .align 8 .u64 p = {NAME}3E;
.visible .global .align 4 .u32 own = 8;
VARIABLES
.visible .entry k(.param .u64 out) {
.reg .b64 %rd<3>; .reg .b32 %r<3>;
ld.param.u64 %rd1, [out]; ld.global.u32 %r1, [used]; st.global.u32 [%rd1], %r1; ret; }
"""
    name = "_ZN9_INTERNAL_k4cuda3std1c"
    constants = "\n".join(f".visible .global .align 4 .u32 {name}{i}E = {i};" for i in range(200))
    before, out = len(SPACE._starts), np.zeros(1, np.uint32)
    program = Program(text.replace("VARIABLES", constants).replace("{NAME}", name))
    launch(program, "k", (1, 1, 1), (1, 1, 1), [out])
    assert len(SPACE._starts) < before + 10 and out[0] == 7
    values = [program.variables[f"{name}{i}E"].view(np.uint32)[0] for i in range(200)]
    assert values == list(range(200))
    assert program.variables["p"].view(np.uint64)[0] == program.addresses[f"{name}3E"]
    assert device_address(program.variables[f"{name}9E"]) == program.addresses[f"{name}9E"]
    sizes = {
        key: SPACE.at(program.addresses[key]).size for key in ("own", f"{name}3E", f"{name}9E")
    }
    assert list(sizes.values()) == [4, 4, 199 * 512]  # one's own, or a named one, has its gap


class Watched(dict):
    """Notes which of its items are read."""

    def __init__(self, items, visited):
        super().__init__(items)
        self.visited = visited

    def __getitem__(self, key):
        self.visited.append(key)
        return super().__getitem__(key)


# -- faults ---------------------------------------------------------------------------------------
@pytest.mark.parametrize("shift", [200, 700_000, -300_000, 5_000_000, 2**30])
def test_no_other_array_is_near(shift, build):
    x, *others = [floats(1 << 18, i) for i in range(4)]
    for other in others:
        run(CODE, "reads", 1, 4, other, x, np.int32(0))
    out = zeros(4, np.float32)
    size = 0 if shift < 0 else x.size
    with pytest.raises(MemoryFault, match="of x|far from every array"):
        run(CODE, "reads", 1, 4, x, out, np.int32(size + shift), build=build)
    with pytest.raises(MemoryFault, match="null pointer|far from every array"):
        run(CODE, "reads", 1, 4, None, out, np.int32(size + shift), build=build)


def test_a_write_through_a_cast_away_const_faults(build):
    x = floats(8)
    run(CODE, "casts", 1, 4, x, build=build)  # legal: the array itself can be written
    assert x[:4].tolist() == [1] * 4
    x.flags.writeable = False
    with pytest.raises(MemoryFault, match="element 0 of x .*read-only.*Pass an array that can be"):
        run(CODE, "casts", 1, 4, x, build=build)
    counts = zeros(4)
    counts.flags.writeable = False
    with pytest.raises(MemoryFault, match="updates element 0 of x .*read-only"):
        run(CODE, "casts_atomic", 1, 4, counts, build=build)
    constant = device_address(module(CODE).get_global("c"))
    source = floats(8)
    job = np.array((device_address(source), constant, 8), JOB)
    with pytest.raises(MemoryFault, match="writes element 0 of c.*constant memory"):
        run(CODE, "works", 1, 4, job, build=build)
    assert counts.tolist() == [0] * 4


def test_constants_and_local_memory_are_counted_in_elements(build):
    out = zeros(8)
    run(CODE, "constant", 1, 1, out, np.int32(3), build=build)
    assert out[0] == 8
    with pytest.raises(MemoryFault, match="element 4 of c; valid elements are 0 to 3"):
        run(CODE, "constant", 1, 1, out, np.int32(4), build=build)
    with pytest.raises(MemoryFault, match=r"element -\d+ of the thread's local memory"):
        run(CODE, "local", 1, 1, out, np.int32(-100), build=build)


def test_which_space_an_address_is_in(build):
    out, job = zeros(8), np.zeros((), JOB)
    run(CODE, "spaces", 1, 5, zeros(1), out, job, build=build)
    assert out[:4].tolist() == [1, 2, 4, 8]
    assert out[4] in (8, 1 | 16)  # a copy of the parameter, or the parameter itself


def test_a_managed_variable_is_a_global_one(build):
    made = module(CODE)
    count = made.get_global("shared_count").view(np.int32)
    before = int(count[0])
    run(CODE, "counts", 1, 1, build=build)
    assert count[0] == before + 4


def test_a_variable_without_a_definition_is_refused():
    """NVRTC itself defines it unless the code is to be linked, which no module here is."""
    code = 'extern __device__ float foo; extern "C" __global__ void k(float* o) { o[0] = foo; }'
    made = RawModule(code=code, options=("-rdc=true",), backend="simulator")
    with pytest.raises(CompileError, match="foo is declared extern and has no definition"):
        made.get_function("k")


@pytest.mark.parametrize("shift", [9, 40])
def test_the_debug_build_finds_an_overflow_into_the_next_shared_array(shift):
    out = zeros(32)
    run(CODE, "two_arrays", 1, 32, out, np.int32(8), build="debug", shared=128)
    with pytest.raises(MemoryFault, match="of the shared array (first|second)"):
        run(CODE, "two_arrays", 1, 32, out, np.int32(shift), build="debug", shared=128)
    with observe(Sanitizer()) as found:
        run(CODE, "two_arrays", 1, 32, out, np.int32(8), shared=128)
        assert not found.findings
        run(CODE, "two_arrays", 1, 32, out, np.int32(shift), shared=128)
    assert [(one.kind, one.array, one.index) for one in found.findings] == [
        ("out-of-bounds", "first", 40)
    ]


# -- the space itself -----------------------------------------------------------------------------
def test_addresses_are_given_again_only_when_all_have_been_used():
    space, size = AddressSpace(), 1 << 30
    kept = np.zeros(16, np.uint8)
    first = space.give(kept)[0]
    starts = [space._allocate(size).start for _ in range(8)]
    assert starts == sorted(starts) and min(np.diff(starts)) > size
    space._end(space.at(starts[0]))
    space._next[""] = space.windows[""][1]  # all have been used
    assert space._allocate(size // 2).start == starts[0]
    assert space.give(kept)[0] == first


def test_small_integers_side_by_side_are_no_address():
    space = AddressSpace()
    numbers = np.array([0, 1, 255, 1 << 23, -1, -(1 << 23)], np.int32)
    pairs = np.array([[low, high] for low in numbers for high in range(256)], np.int32)
    words = pairs.view(np.uint64).ravel()
    for size in (1 << 30, 100, 1 << 20) * 30:
        space._allocate(size)
    assert not space.at_any(words)


def test_host_memory_that_overlaps_has_one_place():
    raw = bytearray(256)
    a, b = np.frombuffer(raw, np.uint8, 64), np.frombuffer(raw, np.uint8, 64, 32)
    assert device_address(b) - device_address(a) == 32
    del a
    gc.collect()
    assert SPACE.at(device_address(b)) is not None
    c = np.asfortranarray(floats((4, 6)))
    d = np.arange(40, dtype=np.int32)[::-3]
    low, span = SPACE.give(d)[0], SPACE.give(d)[2]
    assert (span.start, span.start + span.size) == (low - 39 * 4, low + 4)
    assert SPACE.give(c)[2].size == c.nbytes


def test_packed_positions():
    packed = Packed([(1000, 1100), (5000, 5010), (1050, 1200)])
    address = np.array([1000, 1199, 5000, 5009])
    place = packed.positions(address)
    assert (packed.address(place) == address).all() and (place % 16 == address % 16).all()
    assert np.unique(place).size == 4 and place.max() < packed.size < 300
    more = np.array([5012, 5100, 70_000, 999])
    place = packed.positions(np.append(address, more))
    assert np.unique(place).size == 8 and packed.address(place).tolist() == [*address, *more]
