"""What ran before changes nothing later: other launches, builds, interruptions, other threads."""

import sys
import threading

import numpy as np
import pytest
from kernelscope import RawModule
from kernelscope.address_space import device_address
from kernelscope.errors import SimulatorError, TooLarge, UnsupportedKernel
from kernelscope.events import observe
from kernelscope.machine import MemoryFault
from kernelscope.machine.launch import launch
from kernelscope.translate import function
from kernelscope.translate.module_memory import ModuleMemory
from kernelscope.translate.program import Program
from kernelscope.watch import Counters, Sanitizer, Tracer
from kernelscope.watch.counters import merging
from kernelscope.watch.warp_streams import InFlight


def kernel(code, **options):
    return RawModule(code=code, backend="simulator", **options).get_function("k")


# -- translations that ended early -----------------------------------------------------------------
CALLED = """
__device__ __noinline__ int f(int x) { for (int i = 0; i < x; ++i) x ^= i; ASM return x + 1; }
extern "C" __global__ void k(int* a) { a[threadIdx.x] = f(a[threadIdx.x]); }
"""


def test_an_interrupted_translation_of_a_function_is_begun_again(monkeypatch):
    k, a = kernel(CALLED.replace("ASM", "")), np.zeros(32, np.int32)
    real = function.Instance.check_budget

    def stop(self):
        if not self.function.is_entry:
            raise KeyboardInterrupt
        real(self)

    with monkeypatch.context() as patch:
        patch.setattr(function.Instance, "check_budget", stop)
        with pytest.raises(KeyboardInterrupt):
            k((1,), (32,), (a,))
    k((1,), (32,), (a,))
    assert a.tolist() == [1] * 32


def test_a_refused_instruction_is_refused_again_in_the_same_words():
    fence = 'asm volatile("tcgen05.fence::before_thread_sync;");'
    k = kernel(CALLED.replace("ASM", fence), options=("-arch=sm_100a",))
    for _ in range(2):
        with pytest.raises(UnsupportedKernel, match="tcgen05"):
            k((1,), (32,), (np.zeros(32, np.int32),))


def test_variables_of_a_build_that_failed_are_made_anew(monkeypatch):
    ptx = """.version 8.0
.target sm_90
.address_size 64
.visible .global .align 4 .u32 x = 5;
.visible .global .align 8 .u64 p = x;
.visible .global .align 1 .b8 big[4000000];
.visible .entry k() { ret; }
"""
    memory = ModuleMemory()
    with monkeypatch.context() as patch:
        patch.setenv("KERNELSCOPE_MEMORY", "1M")
        with pytest.raises(TooLarge):
            Program(ptx, memory=memory)
    program = Program(ptx, memory=memory)
    assert program.variables["p"].view(np.uint64)[0] == program.addresses["x"]


def test_joined_loads_are_found_after_an_interruption(monkeypatch):
    k = kernel("""extern "C" __global__ void k(float* out) {
        __shared__ float s[32][20];
        int t = threadIdx.x;
        for (int i = 0; i < 20; ++i) s[t][i] = out[t];
        __syncthreads();
        out[t] = s[t][0] * s[t][1] + s[t][2] * s[t][3] + s[t][5];
    }""")

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, observe(Counters()), pytest.raises(KeyboardInterrupt):
        patch.setattr(merging, "find_merges", stop)
        k((1,), (32,), (np.zeros(32, np.float32),))
    with observe(Counters()) as seen:
        k((1,), (32,), (np.zeros(32, np.float32),))
    assert seen.totals["shared_loads_merged"] == 3


def test_a_header_in_angle_brackets_is_not_looked_for_beside_the_one_that_asks(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.cuh").write_text("#include <b.cuh>\n")
    (tmp_path / "sub" / "b.cuh").write_text("#define VALUE 7\n")
    code = '#include <sub/a.cuh>\nextern "C" __global__ void k(int* o) { o[0] = VALUE; }'
    for value in (1, 22):
        (tmp_path / "b.cuh").write_text(f"#define VALUE {value}\n")
        out = np.zeros(1, np.int32)
        kernel(code, options=(f"-I{tmp_path}",))((1,), (1,), (out,))
        assert out[0] == value


@pytest.mark.parametrize("beside", [False, True], ids=["by -I", "beside the file"])
@pytest.mark.parametrize("name", ["<mine.cuh>", '"mine.cuh"'])
def test_an_edited_header_is_compiled_again(tmp_path, name, beside):
    code = f'#include {name}\nextern "C" __global__ void k(int* o) {{ o[0] = VALUE; }}'
    (tmp_path / "k.cu").write_text(code)
    for value in (1, 22):
        (tmp_path / "mine.cuh").write_text(f"#define VALUE {value}\n")
        out = np.zeros(1, np.int32)
        how = (
            {"path": tmp_path / "k.cu"} if beside else {"code": code, "options": (f"-I{tmp_path}",)}
        )
        RawModule(**how, backend="simulator").get_function("k")((1,), (1,), (out,))
        assert out[0] == value


# -- stacks ----------------------------------------------------------------------------------------
DEEP = """
__device__ __noinline__ int deep(int x) {
    volatile int big[3000];
    for (int i = 0; i < 3000; ++i) big[i] = x + i;
    return big[x & 1023];
}
__device__ __noinline__ int again(int x, int turns) {
    volatile int big[100];
    for (int i = 0; i < 100; ++i) big[i] = x + i;
    if (turns) x += again(big[turns & 63], turns - 1);
    return x * big[turns & 31];
}
extern "C" __global__ void k(int* out, int n, int turns) {
    int* p;
    long long size = n * sizeof(int);
    asm volatile("{ .reg .b64 x; alloca.u64 x, %1, 16; cvta.local.u64 %0, x; }"
        : "=l"(p) : "l"(size) : "memory");
    for (int i = 0; i < n; ++i) ((volatile int*)p)[i] = i + threadIdx.x;
    int s = deep(threadIdx.x) + (turns ? again(turns, turns) : 0);
    for (int i = 0; i < n; ++i) s += ((volatile int*)p)[i];
    out[threadIdx.x] = s;
}
"""


def test_frames_of_functions_that_are_met_later_leave_alloca_alone():
    k = kernel(DEEP)
    for _ in range(2):
        out = np.zeros(32, np.int32)
        k((1,), (32,), (out, np.int32(100), np.int32(0)))
        assert out.tolist() == [4950 + 102 * t for t in range(32)]


@pytest.mark.turns(23)
@pytest.mark.system
def test_a_recursion_that_comes_to_what_alloca_gave_is_refused_every_time():
    k = kernel(DEEP)
    for _ in range(2):
        with pytest.raises(SimulatorError, match="too deeply behind an alloca, at kernel.cu:.*end"):
            k((1,), (4,), (np.zeros(4, np.int32), np.int32(100), np.int32(60)))


IN_A_LEAF = """
__device__ __noinline__ int helper(int n) {
    volatile int own[50];
#pragma unroll 1
    for (int i = 0; i < 50; ++i) own[i] = n;
    return own[n & 31] - n;
}
__device__ __noinline__ int taken(int n) {
    int* p;
    long long size = n * sizeof(int), before;
    asm volatile("stacksave.u64 %0;" : "=l"(before) :: "memory");
    asm volatile("{ .reg .b64 x; alloca.u64 x, %1, 16; cvta.local.u64 %0, x; }"
        : "=l"(p) : "l"(size) : "memory");
    for (int i = 0; i < n; ++i) ((volatile int*)p)[i] = i;
    int sum = helper(n);
    for (int i = 0; i < n; ++i) sum += ((volatile int*)p)[i];
    asm volatile("stackrestore.u64 %0;" :: "l"(before) : "memory");
    return sum;
}
__device__ __noinline__ int deeper(int x, int turns, int n) {
    volatile int big[100];
#pragma unroll 1  // an array whose indices are constants would be in registers
    for (int i = 0; i < 100; ++i) big[i] = x + i;
    int below = turns ? deeper(x + 1, turns - 1, n) : taken(n);
    int wrong = 0;
#pragma unroll 1
    for (int i = 0; i < 100; ++i) wrong += big[i] != x + i;
    return below + 100000 * wrong;
}
extern "C" __global__ void k(int* out, int turns, int n, int first) {
    int s = first ? taken(first) : 0;
    out[threadIdx.x] = deeper(threadIdx.x, turns * (threadIdx.x % 2), n) + s;
}
"""


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("first", [0, 50], ids=["", "after one that was given back"])
@pytest.mark.parametrize("turns", [3, 11, 25])
def test_alloca_below_deep_calls_leaves_their_frames_alone(turns, first):
    k = kernel(IN_A_LEAF)
    for _ in range(2):
        out = np.zeros(32, np.int32)
        k((1,), (32,), (out, np.int32(turns), np.int32(600), np.int32(first)))
        assert out.tolist() == [600 * 599 // 2 + first * (first - 1) // 2] * 32


def test_an_index_far_outside_of_a_local_array_faults_in_every_launch():
    k = kernel(
        DEEP.split("extern")[0]
        + """extern "C" __global__ void k(int* out, int n) {
        volatile int mine[8];
        for (int i = 0; i < 8; ++i) mine[i] = i;
        int s = mine[n];
        out[threadIdx.x] = s + deep(threadIdx.x);
    }"""
    )
    k((1,), (4,), (np.zeros(4, np.int32), np.int32(1)))  # now the frame of deep() is known
    for _ in range(2):
        with pytest.raises(MemoryFault, match="element 1000 of the thread's local memory"):
            k((1,), (4,), (np.zeros(4, np.int32), np.int32(1000)))


def test_a_tracer_keeps_what_was_written_before_the_stack_grew():
    k = kernel("""__device__ __noinline__ int deep(int x) {
        int big[600];
        for (int i = 0; i < 600; i += 100) big[i] = x + i;
        return big[x % 6 * 100];
    }
    extern "C" __global__ void k(int* out) {
        int mine[4];
        mine[0] = 7; mine[1] = 8; mine[2] = 9; mine[3] = 10;
        int s = deep(threadIdx.x);
        out[threadIdx.x] = s + mine[threadIdx.x & 3];
    }""")
    frames = []
    for _ in range(2):
        with observe(Tracer()) as tracer:
            k((1,), (4,), (np.zeros(4, np.int32),))
        frames.append(tracer.recording.frames)
    assert frames[0] == frames[1]


def test_the_sanitizer_takes_alloca_in_a_kernel_without_local_variables():
    k = kernel("""extern "C" __global__ void k(int* out) {
        int* p;
        asm volatile("{ .reg .b64 x; alloca.u64 x, %1, 16; cvta.local.u64 %0, x; }"
            : "=l"(p) : "l"(64ll) : "memory");
        p[threadIdx.x] = 5;
        out[threadIdx.x] = ((volatile int*)p)[threadIdx.x];
    }""")
    out = np.zeros(4, np.int32)
    with observe(Sanitizer()) as report:
        k((1,), (4,), (out,))
    assert out.tolist() == [5] * 4 and not report.findings


def test_the_sanitizer_follows_a_stack_that_grows_in_every_launch():
    k = kernel(
        DEEP.split("extern")[0]
        + """extern "C" __global__ void k(int* out) {
        volatile int mine[8];
        for (int i = 0; i < 8; ++i) mine[(i + threadIdx.x) & 7] = i;
        out[threadIdx.x] = deep(mine[threadIdx.x & 7]);
    }"""
    )
    for _ in range(2):
        out = np.zeros(4, np.int32)
        with observe(Sanitizer()) as report:
            k((1,), (4,), (out,))
        assert out.tolist() == [0] * 4 and not report.findings


# -- call sites ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "body",
    [
        "int a[4], b[4]; volatile int *p = a, *q = b; a[gridDim.x] = 5; b[0] = p[0]; q[1] = 3;",
        "flag = gridDim.x;",
    ],
    ids=["out of bounds", "same value"],
)
def test_findings_do_not_depend_on_calls_of_earlier_launches(body):
    k = kernel(f"""__device__ int flag;
__device__ __noinline__ void f() {{ {body} }}
extern "C" __global__ void k(int* out, int way) {{
    if (way == 1) f();
    if (way == 2) {{ out[blockIdx.x * blockDim.x + threadIdx.x] = 1; f(); }}
}}""")
    found = []
    for way in (1, 2, 1):
        with observe(Sanitizer()) as report:
            k((4,), (4,), (np.zeros(16, np.int32), np.int32(way)))
        found.append([(f.kind, f.line, f.array, f.severity, f.count) for f in report.findings])
    assert found[0] and found[0] == found[1] == found[2]


HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
FUNCTION = """.visible .func (.param .b32 r) {name}(.param .b32 a)
{{ .reg .b32 %r<9>; .reg .pred %p<3>; {body} }}
"""
CALL = """{{ .param .b32 q; .param .b32 w; st.param.b32 [q], {argument};
call.uni (w), {name}, (q); ld.param.b32 {result}, [w]; }}"""
RECURSIVE = """ld.param.u32 %r1, [a]; setp.eq.u32 %p1, %r1, 0; @%p1 bra END; sub.u32 %r2, %r1, 1;
CALL add.u32 %r4, %r3, 2; st.param.b32 [r], %r4; ret;
END: mov.u32 %r5, 100; st.param.b32 [r], %r5; ret;"""
CALLING = """ld.param.u32 %r1, [a]; add.u32 %r6, %r1, 0;
CALL add.u32 %r4, %r3, 1000; st.param.b32 [r], %r4; ret;"""
PLAIN = "ld.param.u32 %r1, [a]; mul.lo.u32 %r2, %r1, 7; st.param.b32 [r], %r2; ret;"
BY_POINTER = """.visible .entry k(.param .u64 out) {
.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .pred %p<9>;
ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mad.wide.u32 %rd2, %r1, 4, %rd1;
and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 1;
mov.u64 %rd3, recursive; mov.u64 %rd4, calling; selp.b64 %rd5, %rd3, %rd4, %p1;
and.b32 %r3, %r1, 3;
{ .param .b32 q; .param .b32 w; st.param.b32 [q], %r3;
call (w), %rd5, (q), proto; ld.param.b32 %r4, [w]; }
st.global.u32 [%rd2], %r4; ret; proto: .callprototype (.param .b32 _) _ (.param .b32 _); }
"""


@pytest.mark.parametrize("number", [15, 31])
def test_a_recursion_and_calls_by_pointer_at_one_place_keep_apart(number):
    """Their keys hold a frame's size and a function's number, which must not be taken for each
    other: `calling` is the function of that number."""
    bodies = {f"f{i}": PLAIN for i in range(40)}
    names = list(bodies)
    named = {
        names[3]: ("recursive", RECURSIVE.replace("CALL", call("recursive", "%r2"))),
        names[number]: ("calling", CALLING.replace("CALL", call("f39", "%r6"))),
    }
    pairs = [named.get(name, (name, body)) for name, body in bodies.items()]
    text = HEAD + "".join(FUNCTION.format(name=n, body=b) for n, b in pairs) + BY_POINTER
    out = np.zeros(32, np.uint32)
    launch(Program(text), "k", (1, 1, 1), (32, 1, 1), [out])
    assert out.tolist() == [(i & 3) * 2 + 100 if i & 1 else (i & 3) * 7 + 1000 for i in range(32)]


def call(name: str, argument: str) -> str:
    return CALL.format(name=name, argument=argument, result="%r3")


# -- arrays and threads ----------------------------------------------------------------------------
def test_an_owner_at_the_address_of_another_keeps_its_array():
    buffer = bytearray(1 << 16)
    one, two = np.frombuffer(buffer, np.int32), np.frombuffer(buffer, np.int32)
    device_address(one)
    first = device_address(two)
    for _ in range(1000):
        before = id(one)
        del one
        one = np.frombuffer(buffer, np.int32)
        if id(one) == before:
            break
        device_address(one)
    else:
        pytest.skip("no address was used again")
    assert device_address(one) == first
    del two
    assert device_address(one) == first


def test_loads_under_way_end_with_their_launch():
    k = kernel("""extern "C" __global__ void k(const int* in, int* out, long long far) {
        int t = threadIdx.x, v, w;
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(in + t));
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(w) : "l"(in + t + far));
        out[t] = v * 3 + w;
    }""")
    a, b = np.arange(32, dtype=np.int32), np.zeros(32, np.int32)
    with observe(InFlight()) as flights:
        with pytest.raises(MemoryFault):
            k((1,), (32,), (a, b, np.int64(1 << 20)))
        cut = len(flights.flights)
        k((1,), (32,), (a, b, np.int64(0)))
    assert len(flights.flights) - cut == 2


@pytest.mark.parametrize(
    ("options", "flights", "products"),
    [
        ({}, 2, 1),
        ({"copies_only": True}, 1, 1),
        ({"copies_only": True, "product_opcodes": ("fma", "mul")}, 1, 2),
    ],
)
def test_flights_of_copies_alone_and_what_counts_as_a_product(options, flights, products):
    k = kernel("""extern "C" __global__ void k(const float* in, float* out) {
        __shared__ float tile[32];
        const int t = threadIdx.x;
        const unsigned to = (unsigned)__cvta_generic_to_shared(tile + t);
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(in + t) : "memory");
        asm volatile("cp.async.commit_group;" ::: "memory");
        float x = in[t], y;
        asm volatile("mul.f32 %0, %1, %1;" : "=f"(y) : "f"(x));
        asm volatile("fma.rn.f32 %0, %0, %0, %1;" : "+f"(y) : "f"(x));
        asm volatile("cp.async.wait_group 0;" ::: "memory");
        asm volatile("mul.f32 %0, %0, %1;" : "+f"(y) : "f"(x));
        out[t] = y + tile[t];
    }""")
    a, b = np.arange(32, dtype=np.float32), np.zeros(32, np.float32)
    with observe(InFlight(**options)) as followed:
        k((1,), (32,), (a, b))
    assert np.array_equal(b, (a**4 + a) * a + a)
    assert len(followed.flights) == flights and followed.products_under_way == products


def test_threads_take_turns():
    """Four threads launch one kernel that none has launched before."""
    code = """
template <int N> __device__ __noinline__ int g(int x) {
    for (int i = 0; i < (x & 7); ++i) x = x * (3 + N) + i;
    return x;
}
__device__ int total[64];
extern "C" __global__ void k(int* a) {
    int t = threadIdx.x, x = a[t];
    x = t & 1 ? g<0>(x) : g<1>(x);
    x = t & 2 ? g<2>(x) : g<3>(x);
    a[t] = x;
    atomicAdd(&total[t], x);
}"""
    alone = np.arange(64, dtype=np.int32)
    kernel(code)((1,), (64,), (alone,))
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(5):
            module = RawModule(code=code, backend="simulator")
            k, arrays = module.get_function("k"), [np.arange(64, dtype=np.int32) for _ in range(4)]
            threads = [threading.Thread(target=k, args=((1,), (64,), (a,))) for a in arrays]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert all((a == alone).all() for a in arrays)
            assert (module.get_global("total").view(np.int32) == 4 * alone).all()
    finally:
        sys.setswitchinterval(interval)
