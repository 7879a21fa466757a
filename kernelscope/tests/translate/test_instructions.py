"""Single PTX instructions on the simulator: guards that are operands, and refusals that help."""

import os
import subprocess
import sys
from types import FunctionType

import numpy as np
import pytest
from kernelscope import RawModule
from kernelscope.errors import CompileError, ParseError, UnsupportedKernel
from kernelscope.machine.launch import launch
from kernelscope.translate.function import _code_of_kind, code_of
from kernelscope.translate.program import Program

# %r1 is the lane id, %p1 holds in odd lanes, %p2 in the lanes below 8, and %p3 in none.
PTX = """.version 8.0
.target sm_90
.address_size 64
{head}
.visible .entry k(.param .u64 out)
{{
.reg .b32 %r<9>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p<9>;
ld.param.u64 %rd1, [out];
mov.u32 %r1, %laneid;
mad.wide.u32 %rd2, %r1, 4, %rd1;
and.b32 %r2, %r1, 1;
setp.eq.u32 %p1, %r2, 1;
setp.lt.u32 %p2, %r1, 8;
setp.gt.u32 %p3, %r1, 64;
mov.u32 %r3, 77;
{body}
st.global.u32 [%rd2], %r3;
ret;
}}
"""


def run(body, head="", build="optimised", target="sm_90"):
    """Run the instructions in 32 lanes; return %r3 of each lane."""
    out = np.zeros(32, np.uint32)
    text = PTX.format(body=body, head=head).replace("sm_90", target)
    program = Program(text, build=build)
    launch(program, "k", (1, 1, 1), (32, 1, 1), [out])
    return out.tolist()


ODD = 0xAAAAAAAA
# (instructions, the value of %r3 where the guard holds); elsewhere it stays 77.
GUARDED = {
    "@%p1 selp.u32 %r3, 5, 6, %p1;": ("odd", 5),
    "@!%p1 selp.u32 %r3, 5, 6, %p1;": ("even", 6),
    "@%p2 selp.u32 %r3, 5, 6, %p2;": ("low", 5),
    "@%p1 vote.sync.ballot.b32 %r3, %p1, 0xAAAAAAAA;": ("odd", ODD),
    "@%p1 vote.sync.ballot.b32 %r3, !%p1, 0xAAAAAAAA;": ("odd", 0),
    "@%p1 setp.eq.and.u32 %p4, %r2, 1, %p1; @%p1 selp.u32 %r3, 1, 0, %p4;": ("odd", 1),
    "@%p1 not.pred %p1, %p1; @!%p1 mov.u32 %r3, 9;": ("all", 9),
    "@%p3 selp.u32 %r3, 5, 6, %p3;": ("none", 0),
    "@%p1 barrier.red.popc.u32 %r3, 0, %p1; @!%p1 barrier.red.popc.u32 %r3, 0, %p1;": ("all", 16),
}


@pytest.mark.parametrize("build", ["optimised", "debug"])
@pytest.mark.parametrize("text", GUARDED)
def test_a_guard_may_be_an_operand(text, build):
    who, value = GUARDED[text]
    holds = {
        "odd": lambda lane: lane % 2 == 1,
        "even": lambda lane: lane % 2 == 0,
        "low": lambda lane: lane < 8,
        "all": lambda lane: True,
        "none": lambda lane: False,
    }[who]
    assert run(text, build=build) == [value if holds(lane) else 77 for lane in range(32)]


def test_a_shuffle_of_one_value_knows_which_sources_are_in_bounds():
    text = "shfl.sync.bfly.b32 %r4|%p4, 5, 16, 0x181f, -1; selp.u32 %r3, %r4, 0, %p4;"
    assert run(text) == [0] * 16 + [5] * 16  # segments of 8: the source may only be below


# --- what is refused names the instruction and the reason --------------------------------------
REFUSED = {
    "redux.sync.min.f32 %f1, %f2, -1;": "sm_100 and newer have it",
    "redux.sync.add.f64 %f1, %f2, -1;": "redux.sync of type .f64",
    "st.bulk.weak.shared::cta [%rd1], 16, 0;": "sm_100 and newer have it",
    "max.f32 %f1, %f2, %f3, %f4;": "sm_100 and newer have it",
    "cp.async.bulk.prefetch.tensor.2d.L2.global [%rd1];": "a tensor map and 2 coordinates in brack",
    "cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r1], "
    "[%rd1, {%r1, %r1, %r1, %r1}], [%r1], {%r2, %r2};": "im2col mode .* in tile mode, copy a box",
    "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [%r1], 16, %r2;": "got 4",
    "cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes "
    "[%r1], [%rd1, {%r1, %r1}], [%r1];": "of sm_100 and newer",
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.min.f32 [%rd1], [%r1], 16;": "takes .s32",
    "cp.async.bulk.shared::cluster.global.bulk_group [%r1], [%rd1], 16, [%r1];": "completes by",
    "setmaxnreg.inc.sync.aligned.u32 20;": "a multiple of 8 from 24 to 256",
    "vote.all.pred %p4, %p1;": ".sync and a mask only",
    "vote.ballot.b32 %r3, %p1;": ".sync and a mask only",
    "shfl.idx.b32 %r3, %r1, 0, 31;": ".sync and a mask only",
    "shfl.sync.idx.b32 %r3, %r1;": "shfl.sync.idx.b32 takes 5 operands, got 2",
    "add.u32 %r3;": "add.u32 takes 3 operands, got 1",
    "add.u32 %r3, %r1, 1, 2;": "add.u32 takes 3 operands, got 4",
    "bfe.u32 %r3, %r1, 3;": "bfe.u32 takes 4 operands, got 3",
    "brx.idx %r1, nowhere;": "no table of branch targets nowhere",
    "bar.sync somewhere;": "operand somewhere is not .* the number of a barrier, 0 to 15",
    "bar.red.popc.u32 %r3, 0;": "bar.red.popc.u32 takes 3 or 4 operands, got 2",
    "ld.global.v2.u32 {%r3, %r4, %r5}, [%rd1];": "2 in braces, each a register for a value of type",
    "add.u32 %r3, %r1.b0, %r2;": "operand %r1.b0",
    "vadd.u32.u32.u32 %r3, -%r1, %r2.b1;": "vadd takes no sign",
    "mov.v4.u32 {%r3, %r4, %r5, %r6}, %tid;": "one component at a time, such as %tid.x",
    "mov.u32 %r3, %tid.q;": "no special register %tid.q",
    "@q mov.u32 %r3, 1;": "no register q",
    "call (%r3), f, (%r1);": "%r[13] is no .param variable",
    "call g;": "function g has no body in this module.* #include the file",
    "call __cudaCDP2DeviceSynchronize;": "launch them from the host",
    "and.b32 %r4, %r1, %r2; atom.global.cas.b32 %r3, [%rd1], 1;": "takes 4 operands, got 3",
}
HEAD = """.func (.param .u32 a) f(.param .u32 b) { ret; }
.func g;
.extern .func __cudaCDP2DeviceSynchronize;"""


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused_is_named_with_the_reason(text):
    with pytest.raises(UnsupportedKernel, match=REFUSED[text]) as caught:
        run(text, head=HEAD)
    assert f"the PTX instruction `{text.split('; ')[-1]}`" in str(caught.value)
    assert "compiled from PTX line 18;" in str(caught.value)


UNREADABLE = {
    ".reg .v2 .f32 v;": "declare one for each component in `.reg .v2 .f32 v;`",
    ".reg .b7 v;": "unknown register type .b7 in `.reg .b7 v;`",
    "ld.global.u32 %r3, [%rd1+%rd2];": r"add the two registers first in `ld.global.*\]",
}


@pytest.mark.parametrize("text", UNREADABLE)
def test_what_can_not_be_read_is_named_with_its_line(text):
    with pytest.raises(ParseError, match=f"PTX line 16: .*{UNREADABLE[text]}"):
        run(text)


def test_a_function_with_reg_parameters_is_refused():
    with pytest.raises(ParseError, match=r"PTX line 4: .*\.reg parameters .* declare \.param"):
        run("", head=".func (.reg .u32 a) f(.reg .u32 b) { ret; }")


def test_a_variable_of_the_module_may_be_declared_in_a_function():
    body = """.const .u32 c = 7;
    { .global .u32 g = 3; ld.global.u32 %r4, [g]; atom.global.add.u32 %r5, [g], 1; }
    { .global .u32 g = 50; ld.global.u32 %r5, [g]; }
    ld.const.u32 %r3, [c];
    add.u32 %r3, %r3, %r4; add.u32 %r3, %r3, %r5;"""
    assert run(body) == [7 + 3 + 50] * 32


def test_an_error_of_inline_assembly_names_the_line_of_the_kernel():
    asm = 'asm("ld.global.u32 %0, [%1+%1];" : "=r"(r) : "l"(out));'
    code = f'extern "C" __global__ void k(unsigned* out) {{\n unsigned r;\n {asm}\n out[0] = r; }}'
    with pytest.raises(
        ParseError, match=r"PTX line \d+: .*`ld.global.*` \(compiled from kernel.cu:3"
    ):
        RawModule(code=code, backend="simulator").get_function("k")(
            (1,), (1,), (np.zeros(1, "u4"),)
        )


def test_a_build_without_ptx_is_refused():
    module = RawModule(code="__global__ void k() {}", options=("-dlto",), backend="simulator")
    with pytest.raises(CompileError, match="kernel.cu: .* leave out -dlto"):
        module.get_function("k")


TRANSLATED_LINES = """
import sys
from kernelscope.translate.program import Program
for _, line in Program(sys.stdin.read()).executable("k").lines:
    print(line)
"""


def test_the_same_text_becomes_the_same_lines_in_every_process():
    """Strings hash differently in each process: no order may come from that."""
    body = "mad.lo.u32 %r4, %r5, %r6, %r7; fma.rn.f32 %f1, %f2, %f3, %f4;"  # all of them new
    command, text = [sys.executable, "-c", TRANSLATED_LINES], PTX.format(body=body, head="")
    first, second = (
        subprocess.run(
            command,
            input=text,
            text=True,
            capture_output=True,
            check=True,
            env=os.environ | {"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    )
    assert first == second and "R[" in first


def test_statements_of_a_kind_keep_their_own_slots_names_and_numbers():
    """Python compiles one of them; the others get its code with what is theirs."""
    names = {"k1": 10, "k2": 20, "ins3": 30, "__builtins__": {}}

    def after(statement):
        registers = {1: 1, 2: 2, 200: 5}
        FunctionType(code_of(statement, "op7"), names)(registers, None)
        return registers

    assert after("R[3] = R[1] + k1; R[1] = None") == {1: None, 2: 2, 200: 5, 3: 11}
    assert after("R[4] = R[200] + k2; R[200] = None") == {1: 1, 2: 2, 200: None, 4: 25}
    assert after("R[1] = R[2] + R[2] + 1")[1] == 5 and after("R[2] = R[2] + R[1] + 1")[2] == 4
    assert after("R[9] = (k2, k1, k2, ins3, 1, 9)")[9] == (20, 10, 20, 30, 1, 9)
    assert code_of("R[9] = k1", "op12").co_name == "op12"
    made = _code_of_kind.cache_info().misses
    assert after("R[8] = (k1, k2, k1, ins3, 1, 9)")[8] == (10, 20, 10, 30, 1, 9)
    assert _code_of_kind.cache_info().misses == made


# --- older and newer architectures ----------------------------------------------------------------
OLD = {  # of GPUs before sm_70, for the lanes that run together
    "vote.ballot.b32 %r3, %p1;": [ODD] * 32,
    "@%p1 vote.ballot.b32 %r3, %p2;": [0xAA if lane % 2 else 77 for lane in range(32)],
    "vote.all.pred %p4, %p1; selp.u32 %r3, 1, 0, %p4;": [0] * 32,
    "vote.any.pred %p4, !%p1; selp.u32 %r3, 1, 0, %p4;": [1] * 32,
    "shfl.down.b32 %r3|%p4, %r1, 16, 31; @!%p4 mov.u32 %r3, 5;": [*range(16, 32), *[5] * 16],
    "shfl.bfly.b32 %r3, %r1, 1, 31;": [lane ^ 1 for lane in range(32)],
}


@pytest.mark.parametrize("text", OLD)
def test_votes_and_shuffles_without_a_mask_run_for_old_targets(text):
    assert run(text, target="sm_60") == OLD[text]


FLOATS = "cvt.rn.f32.u32 %f1, %r1; @%p1 neg.f32 %f1, %f1; @!%p2 mov.f32 %f2, 0f7FC00000;"
FLOATS += "@%p2 mov.f32 %f2, %f1; mov.b32 %f3, 0fC0400000;"
NEW = {  # of sm_100; %f1 is the lane with its sign by turns, %f2 the same, NaN from lane 8 on
    "redux.sync.min.f32 %f4, %f1, -1;": -31,
    "redux.sync.max.f32 %f4, %f1, -1;": 30,
    "redux.sync.max.abs.f32 %f4, %f1, -1;": 31,
    "redux.sync.min.f32 %f4, %f2, -1;": -7,
    "redux.sync.max.NaN.f32 %f4, %f2, -1;": np.nan,
    "max.f32 %f4, %f3, 0f3F800000, 0f40000000;": 2,
    "min.f32 %f4, %f3, 0f3F800000, 0fC0800000;": -4,
    "max.NaN.f32 %f4, %f3, 0f3F800000, 0f7FC00000;": np.nan,
    "max.f32 %f4, %f3, 0f7FC00000, 0f3F800000;": 1,
}


@pytest.mark.parametrize("target", ["sm_100a", "sm_120"])
@pytest.mark.parametrize("text", NEW)
def test_reductions_of_floats_and_maxima_of_three_run_for_new_targets(text, target):
    found = run(f"{FLOATS} {text} mov.b32 %r3, %f4;", target=target)
    np.testing.assert_array_equal(np.array(found, np.uint32).view(np.float32), NEW[text])


def test_a_reduction_of_floats_takes_the_lanes_that_its_mask_names():
    text = "mov.b32 %r4, -1; @%p2 mov.b32 %r4, 255; @!%p2 mov.b32 %r4, 0xFFFFFF00;"
    found = run(
        f"{FLOATS} {text} redux.sync.max.f32 %f4, %f1, %r4; mov.b32 %r3, %f4;", target="sm_100a"
    )
    assert np.array(found, np.uint32).view(np.float32).tolist() == [6] * 8 + [30] * 24


def test_a_bulk_store_clears_and_a_bulk_prefetch_changes_nothing():
    text = """.shared .align 8 .b8 tile[256]; mov.u32 %r4, tile; mad.lo.u32 %r5, %r1, 8, %r4;
    cvt.u64.u32 %rd4, %r1; st.shared.u64 [%r5], -1; bar.sync 0;
    @%p3 cp.async.bulk.prefetch.L2.global [%rd1], 64;
    setp.eq.u32 %p5, %r1, 0; cvt.u64.u32 %rd5, %r4;
    @%p5 st.bulk.weak.shared::cta [%rd5], 64, 0; bar.sync 0; ld.shared.u32 %r3, [%r5];"""
    assert run(text, target="sm_100a") == [0] * 8 + [0xFFFFFFFF] * 24


def test_the_type_of_a_vector_of_atomics_may_stand_before_the_operation():
    text = """mov.f32 %f1, 0f3F800000; and.b64 %rd3, %rd1, -128; mov.u32 %r3, 0; bar.sync 0;
    @%p1 atom.global.v2.f32.add {%f3, %f4}, [%rd1], {%f1, %f1};
    bar.sync 0; ld.global.u32 %r3, [%rd1]; bar.sync 0;"""
    assert run(text) == [0x41800000] * 32  # 16.0


@pytest.mark.parametrize(
    ("directive", "other", "reason"),
    [
        (".version 8.0", ".version 99", "'99' is not a version of PTX"),
        (".target sm_90", ".target sm_999", "'sm_999' is not an architecture"),
        (".address_size 64", ".address_size 32", "'32' is not 64: addresses of 32 bits"),
    ],
)
def test_modules_for_other_machines_are_refused(directive, other, reason):
    text = PTX.format(body="", head="")
    with pytest.raises(ParseError, match=reason):
        Program(text.replace(directive, other))
