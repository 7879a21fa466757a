"""What machine code says of its time: register banks, requests that queue."""

import itertools

import numpy as np
import pytest
from kernelscope import RawKernel, observe
from kernelscope.timing import Time
from kernelscope.timing.gpus import gpu
from kernelscope.timing.machine_code import (
    NO_SCOREBOARD,
    Code,
    Segment,
    codes,
    loops_of,
    machine_code,
    numbers_of,
    parse,
)
from kernelscope.timing.machine_code.segments import _count_bank_conflicts, _mark_fences
from kernelscope.timing.schedule import _BRANCH_FAR, _BRANCH_NEAR, Latency, steps_of, walk
from kernelscope.timing.work import is_short_product, products


def code(name, operands="", stall=1, sets=NO_SCOREBOARD, waits=0, line=1):
    return Code(name, (), operands, False, line, stall, sets, NO_SCOREBOARD, waits, "")


@pytest.mark.parametrize(
    ("operands", "again"),
    [
        ("R0, R2, R3, R5", 0),  # R3 and R5 are of one bank, which gives two a clock
        ("R0, R2, R4, R6", 1),
        ("R0, R3, R5, R7", 1),
        ("R0, R2, 0.5, R4", 0),
        ("R0, R2, UR4, R3", 0),
    ],
)
def test_operands_of_one_bank_take_longer(operands, again):
    one = code("FFMA", operands)
    _count_bank_conflicts([one])
    assert (one.again, one.issue, one.spent) == (again, 1 + again, 1 + again)


def test_a_reused_operand_is_not_read_again():
    first, second = code("FFMA", "R0, R2.reuse, R4, R6"), code("FFMA", "R1, R2, R8, R10")
    _count_bank_conflicts([first, second])
    assert (first.again, second.again) == (1, 0)
    second.operands = "R1, R12, R8, R10"
    _count_bank_conflicts([first, second])
    assert (first.again, second.again) == (1, 1)


def walked(segments, edges, latency, passes=lambda code: 0.0):
    return walk(segments, edges, steps_of(segments, latency, passes))


def clocks_of(by_line):
    return sum(by_line.values())


def test_requests_of_a_warp_queue():
    """Two loads of 32 passes each: the second begins where the first has passed."""
    loads = [code("LDG", sets=0), code("LDG", sets=1)]
    segments = (Segment([*loads, code("FADD", waits=0b11)]),)

    def clocks(passes):
        def of_loads(one):
            return passes if one.name == "LDG" else 0.0

        return clocks_of(walked(segments, {}, lambda _: Latency(100.0), of_loads)[0])

    assert clocks(1.0) == 1 + 100 + 1
    assert clocks(32.0) == 32 + 100 + 1


@pytest.mark.parametrize("loads", [1, 2, 4])
@pytest.mark.parametrize(("waiting", "longer"), [(0.25, 0.0), (0.5, 0.25), (1.0, 0.5)])
def test_a_warp_waits_for_the_last_of_its_loads(loads, waiting, longer):
    """Each takes 200 clocks more at times, at some of these 300 besides, as if by itself."""
    segments = (Segment([code("LDG", sets=0)] * loads + [code("FADD", waits=1)]),)
    found = walked(segments, {}, lambda _: Latency(30.0, waiting, 200.0, longer, 300.0))
    expected = 200 * (1 - (1 - waiting) ** loads) + 300 * (1 - (1 - longer) ** loads)
    assert clocks_of(found[0]) == pytest.approx(30 + loads + expected, rel=0.05)


def test_loads_in_step_wait_the_same_times():
    """Of two, each in half of the times; those that wait seldom keep their own times."""
    segments = (Segment([code("LDG", sets=0)] * 2 + [code("FADD", waits=1)]),)

    def clocks(*waiting):
        often = itertools.cycle(waiting)
        latency = lambda _: Latency(30.0, next(often), 200.0, in_step=True)  # noqa: E731
        return clocks_of(walked(segments, {}, latency)[0]) - 32

    assert clocks(0.5, 0.5, 0.0) == pytest.approx(200 * 0.5, rel=0.05)
    assert clocks(0.5, 0.25, 0.0) == pytest.approx(200 * (1 - 0.5 * 0.75), rel=0.05)


@pytest.mark.parametrize("length", [20, 200])
def test_a_branch_takes_longer_in_long_code(length):
    """Ten steps of a loop: nine branches go back, one goes on."""
    steps = [code("FADD") for _ in range(length)]
    loop = Segment([*steps, code("BRA")], [2, 1])
    segments = Segment([code("S2R")], [1]), loop, Segment([code("EXIT")])
    edges = {(0, 1): 1.0, (1, 1): 9.0, (1, 2): 1.0}
    found = walked(segments, edges, lambda one: Latency(0.0))
    on, back = _BRANCH_NEAR if length == 20 else _BRANCH_FAR
    assert clocks_of(found[1]) == pytest.approx(length + 1 + 0.9 * back + 0.1 * on, rel=0.01)


@pytest.mark.parametrize(
    ("opcode", "expected"),
    [
        ("HMMA.16816.F32", 16 * 8 * 16),
        ("HMMA.1688.F32.TF32", 16 * 8 * 8 * 2),
        ("HMMA.1688.F32", 16 * 8 * 16 * 2 / 3),  # half the work in two thirds of the time
        ("HMMA.1684.F32.TF32", 16 * 8 * 16 * 2 / 3),
        ("IMMA.16832.S8.S8", 16 * 8 * 16),
        ("HGMMA.64x64x16.F32", 16 * 64 * 16),
        ("HGMMA.64x128x16.F32.BF16", 16 * 128 * 16),
    ],
)
def test_multiply_adds_of_a_tensor_instruction(opcode, expected):
    """As f16 ones, of one warp: four warps share a wgmma."""
    name, *parts = opcode.split(".")
    code = Code(name, tuple(parts), "", False, 1, 1, NO_SCOREBOARD, NO_SCOREBOARD, 0, None)
    assert products(code) == expected
    assert is_short_product(code) == (expected < 16 * 8 * 16)


def test_products_of_doubles_are_not_short():
    code = Code("DMMA", ("8x8x4",), "", False, 1, 1, NO_SCOREBOARD, NO_SCOREBOARD, 0, "")
    assert not is_short_product(code)


@pytest.mark.parametrize(
    ("branch", "follows"),
    [
        ("BRA `(.L_x_1)", [1]),
        ("@P0 BRA `(.L_x_1)", [1, 2]),
        ("BRA P1, `(.L_x_1)", [1, 2]),
        ("BRA.DIV UR4, `(.L_x_1)", [1]),  # to a slow path, for warps whose lanes have parted
    ],
)
def test_where_a_branch_goes(branch, follows):
    """The code that is not reached is left out: behind a certain branch, or the slow path."""
    rows = [branch, "SHFL.BFLY PT, R1, R2, 0x10, 0x1f", "EXIT", "WARPSYNC R3", "EXIT"]
    text = "\n.text.f:\n"
    for at, row in enumerate(rows):
        text += ".L_x_1:\n" * (at == 3) + f"    /*{16 * at:04x}*/   {row} ; /* 0x{0:016x} */\n"
        text += f"    /* 0x{0:016x} */\n"
    segments = parse(text, "f", {})
    assert segments[0].follows == follows
    second = segments[1].code[0].name
    assert second == ("WARPSYNC" if branch.startswith("BRA `") else "SHFL")


def test_a_slow_path_stands_where_it_is_called():
    """A zero's way through it: no sum is computed there, and the other way does."""
    target = "$__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath"
    rows = ["FCHK P0, R1, R2", "@!P0 BRA `(.L_x_1)", f"CALL.REL.NOINC `({target})", "EXIT"]
    rows += ["SHF R3, R1, R2", "@P0 BRA `(.L_x_2)", "FADD R3, R1, R2", "RET R4"]
    rows += ["LOP3 R3, R1, R2", "MOV R3, R1", "MOV R3, R1", "RET R4"]
    labels = {3: ".L_x_1", 4: target, 8: ".L_x_2"}
    text = "\n.text.f:\n"
    for at, row in enumerate(rows):
        text += f"{labels[at]}:\n" if at in labels else ""
        text += f"    /*{16 * at:04x}*/   {row} ; /* 0x{0:016x} */\n    /* 0x{0:016x} */\n"
    segments = parse(text, "f", {})
    assert [one.follows for one in segments] == [[1, 2], [2], []]
    names = [one.name for one in segments[1].code]
    assert names == ["CALL", "SHF", "BRA", "LOP3", "MOV", "MOV", "RET"]
    assert [one.called for one in segments[1].code] == [False] + [True] * 6


@pytest.mark.parametrize("store", ["STG", "ST", "REDG"])
def test_a_fence_is_alone_unless_a_store_may_be_under_way(store):
    """The first fence is before any store; the second is in a loop that stores behind it."""
    segments = [
        Segment([code("MEMBAR"), code("LDG")], [1]),
        Segment([code("MEMBAR"), code(store)], [1, 2]),
        Segment([code("MEMBAR"), code("MEMBAR"), code("EXIT")], []),
    ]
    _mark_fences(segments)
    assert segments[0].code[0].alone
    assert not segments[1].code[0].alone
    assert [one.alone for one in segments[2].code] == [False, True, False]


def test_an_array_of_a_thread_goes_through_to_l2():
    """An array that is indexed by what the compiler does not know stands in local memory."""
    text = """extern "C" __global__ void kept(int* out, int n) {
        int kept[32];
        for (int i = 0; i < 32; ++i) kept[(i + n) % 32] = i;
        out[threadIdx.x] = kept[n * 7 % 32];
    }"""
    kernel = RawKernel(text, "kept", backend="simulator")
    with observe(Time("h200")) as seen:
        kernel((1,), (32,), (np.zeros(32, np.int32), 3))
    loads_and_stores = 33
    shortest = 128 * loads_and_stores / gpu("h200").l2_gbps / 1e3
    assert shortest < seen.launches[0].bounds["L2"] < 1.2 * shortest


class Caught(Time):
    """Keeps the launch, and runs none of it."""

    def launch_started(self, launch):
        self.launch = launch
        raise StopIteration


def launch_of(text: str, *arguments):
    with observe(Caught()) as seen, pytest.raises(StopIteration):
        RawKernel(text, "f", backend="simulator")((1,), (32,), arguments)
    return seen.launch


@pytest.mark.turns(3)
@pytest.mark.parametrize("more", ["", "x += in[i + 32];", "x = x * 3.0f + in[i + 64];"])
def test_machine_code_knows_its_ptx(more):
    """Loads and stores are those of the PTX, also where the GPU's has more than the simulator's."""
    text = """extern "C" __global__ void f(float* out, const float* in, long long n) {
        const long long i = threadIdx.x / n;
        float x = in[i];
    #ifdef __CUDA_ARCH_FEAT_SM90_ALL
        MORE
    #endif
        out[i] = x; }"""
    launch = launch_of(text.replace("MORE", more), np.zeros(99, "f"), np.ones(99, "f"), 3)
    made = list(codes(machine_code(launch, "sm_90a").segments))
    numbers = numbers_of(launch.source)
    by_number = {numbers[id(one)]: one for one in launch.source.module.functions["f"].body}
    own = [(code.name, by_number[code.origin]) for _, code in made if code.origin >= 0]
    accesses = [(name, one.opcode) for name, one in own if name in ("LDG", "STG")]
    assert accesses == [("LDG", "ld.global.f32"), ("STG", "st.global.f32")]
    ways = {one.opcode for name, one in own if name in ("CALL", "MUFU")}
    assert ways == {"div.s64", "div.u32"}  # which are on one line, and of one source statement
    stored = next(code for _, code in made if code.name == "STG")
    assert stored.line == 1 + text.splitlines().index("        out[i] = x; }")
    first = next(code for _, code in made if code.origin >= 0 and code.name == "LDG")
    assert first.line == 1 + text.splitlines().index("        float x = in[i];")


def test_instructions_on_one_line_of_ptx_are_told_apart():
    """Two loads and a store of one statement of assembly, again in each of two copies."""
    rows = ["LDG R1, [R2]", "LDG R3, [R2+0x100]", "IADD3 R2, R2, 0x1, RZ", "STG [R4], R1"]
    text = '\n.text.f:\n//## File ".nv_debug_ptx_txt", line 7\n'
    for at, row in enumerate(2 * rows + ["EXIT"]):
        text += f"    /*{16 * at:04x}*/   {row} ; /* 0x{0:016x} */\n    /* 0x{0:016x} */\n"
    origins = {7: [(3, 5, "ld.global.f32"), (4, 5, "ld.global.f32"), (5, 5, "st.global.f32")]}
    ((code, *_),) = ([one.code] for one in parse(text, "f", origins))
    assert [one.origin for one in code[:8]] == 2 * [3, 4, -1, 5]
    assert {one.line for one in code} == {5}


def segments_of_rows(rows, labels, functions):
    text = "\n.text.f:\n"
    for at, row in enumerate(rows):
        text += f"{labels[at]}:\n" if at in labels else ""
        text += f"    /*{16 * at:04x}*/   {row} ; /* 0x{0:016x} */\n    /* 0x{0:016x} */\n"
    return parse(text, "f", {}, frozenset(functions))


def test_a_function_stands_in_the_place_of_each_call():
    """Of two calls, the second in a loop; far calls near. No path leads from one call to another's
    end, so that no loop is there but the kernel's own.
    """
    rows = ["CALL.REL.NOINC `($f$far)", "CALL.REL.NOINC `($f$far)", "@P0 BRA `(.L_x_1)", "EXIT"]
    rows += ["FADD R1, R2, R3", "@P0 BRA `(.L_x_2)", "CALL.REL.NOINC `($f$near)", "MOV R1, R2"]
    rows += ["RET R4", "FMUL R1, R2, R3", "RET R6"]
    labels = {1: ".L_x_1", 4: "$f$far", 7: ".L_x_2", 9: "$f$near"}
    segments = segments_of_rows(rows, labels, ("far", "near"))
    names = [[one.name for one in segment.code] for segment in segments]
    far = [["FADD", "BRA"], ["CALL"], ["FMUL", "RET"], ["MOV", "RET"]]
    assert names == [["CALL"], *far, ["CALL"], *far, ["BRA"], ["EXIT"]]
    begin = [[1], [2, 4], [3], [4], [5], [6]]
    assert [one.follows for one in segments] == [*begin, [7, 9], [8], [9], [10], [11, 5], []]
    assert [one.header for one in loops_of(tuple(segments))] == [5]
    assert len({id(one) for _, one in codes(segments)}) == 18


def test_a_slow_path_in_a_called_function_does_not_return_for_it():
    """The function goes on behind its division; a guarded call may be passed by."""
    slow = "$__internal_0_$__cuda_sm3x_div_rn_noftz_f32_slowpath"
    rows = ["@P1 CALL.REL.NOINC `($f$far)", "EXIT", "@P0 BRA `(.L_x_1)"]
    rows += [f"CALL.REL.NOINC `({slow})", "FADD R1, R2, R3", "RET R4", "MOV R1, R2", "RET R6"]
    segments = segments_of_rows(rows, {2: "$f$far", 4: ".L_x_1", 6: slow}, ("far",))
    names = [[one.name for one in segment.code] for segment in segments]
    behind = [["CALL", "MOV", "RET"], ["FADD", "RET"]]
    assert names == [["CALL"], ["BRA"], *behind, ["EXIT"]]
    assert [one.follows for one in segments] == [[1, 4], [2, 3], [3], [4], []]


def test_a_function_that_calls_itself_is_there_once():
    rows = ["CALL.REL.NOINC `($f$far)", "EXIT", "@P0 RET R4", "CALL.REL.NOINC `($f$far)", "RET R4"]
    segments = segments_of_rows(rows, {2: "$f$far"}, ("far",))
    assert [one.follows for one in segments] == [[1], [2, 4], [3], [4], []]
    assert [one.target for _, one in codes(segments) if one.name == "CALL"] == ["", "$f$far"]


@pytest.mark.turns(5)
def test_what_is_called_counts_as_what_is_inlined():
    text = """__device__ INLINED float far(const float* in, int n) {
        float sum = 0.0f;
        for (int i = 0; i < n; ++i) sum += in[i * n];
        return sum; }
    extern "C" __global__ void f(float* out, const float* in, int n) {
        out[threadIdx.x] = far(in, n) + far(in + 1, 2 * n); }"""

    def predicted(how):
        kernel = RawKernel(text.replace("INLINED", how), "f", backend="simulator")
        with observe(Time("h200")) as seen:
            kernel((1,), (32,), (np.zeros(9999, "f"), np.ones(9999, "f"), 40))
        assert seen.launches[0].notes == ()
        return seen.launches[0].machine_instructions

    assert predicted("__noinline__") == pytest.approx(predicted("__forceinline__"), rel=0.3)


def test_a_function_that_calls_itself_is_named_in_a_note():
    text = """__device__ __noinline__ int far(int n) { return n < 2 ? n : far(n - 1) + far(n - 2); }
    extern "C" __global__ void f(int* out, int n) { out[threadIdx.x] = far(n); }"""
    kernel = RawKernel(text, "f", backend="simulator")
    with observe(Time("h200")) as seen:
        kernel((1,), (32,), (np.zeros(32, "i"), 5))
    found = seen.launches[0].notes
    assert found == ("not every call of far counts: it is not inlined",)
