"""The operands of each opcode: what is malformed is refused by name and line, before it runs."""

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from kernelscope.errors import SimulatorError, UnsupportedKernel
from kernelscope.machine.launch import launch
from kernelscope.ptx.parser import ParseError
from kernelscope.translate.operand_forms import FORMS, _name, forms_of
from kernelscope.translate.program import Program

# `%s` is what a case puts in, on line 14. Each lane has 16 bytes of its own at %rd2.
PROGRAM = """.version 8.7
.target sm_90
.address_size 64
.global .align 16 .b8 data[256];
.func (.param .b32 r) f(.param .b32 a)
{ .reg .b32 %%r<3>; ld.param.b32 %%r1, [a]; st.param.b32 [r], %%r1; ret; }
.visible .entry k(.param .u64 out) {
.reg .b32 %%r<9>; .reg .b64 %%rd<9>; .reg .f32 %%f<9>; .reg .f64 %%d<9>; .reg .b16 %%h<9>;
.reg .pred %%p<9>; .reg .b128 q;
.shared .align 16 .b8 tile[256]; .local .align 16 .b8 mine[64]; .param .b32 x; .param .b32 z;
ld.param.u64 %%rd1, [out]; mov.u32 %%r1, %%laneid; mov.u32 %%r2, 1; mul.wide.u32 %%rd2, %%r1, 16;
add.u64 %%rd2, %%rd2, %%rd1; mov.u32 %%r3, tile; cvt.u64.u32 %%rd3, %%r3; setp.eq.u32 %%p1, %%r1, 3;
mbarrier.init.shared.b64 [tile], 64;
%s
L: M: T: .branchtargets L, M;
ret;
}
"""
VALID = """
mov.b32 %r4, {%h1, %h2} | mov.b64 {%r4, %r5}, %rd4 | mov.pred %p2, %p1 | mov.u64 %rd4, tile
mov.b128 q, {%rd4, %rd5} | mov.b128 {%rd4, %rd5}, q | mov.u64 %rd4, %clock64 | mov.u32 %r4, %tid.x
mov.f32 %f1, 0f3F800000 | mov.u64 %rd5, f | add.f32 %f1, %f2, %f3 | add.cc.u32 %r4, %r1, 1
fma.rn.f64 %d1, %d2, %d3, %d1 | setp.lt.and.s32 %p2|%p3, %r1, %r2, !%p1
set.eq.u32.f32 %r4, %f1, %f2 | selp.b64 %rd4, %rd1, %rd2, %p1 | lop3.b32 %r4, %r1, %r2, %r3, 0x96
cvt.rn.f32.f64 %f1, %d1 | cvt.rn.f16x2.f32 %r4, %f1, %f2 | prmt.b32 %r4, %r1, %r2, 0x5410
shf.l.wrap.b32 %r4, %r1, %r2, 3 | vadd.s32.s32.u32 %r4, %r1.b3, %r2.h1
vset.s32.u32.lt %r4.b2, %r1.b1, %r2.b1, %r3 | vmad.s32.s32.s32.sat %r4, %r1.h0, %r2.h1, -%r3
vadd2.s32.s32.s32 %r4.h1, %r1.h03, %r2.h21, %r3
vmin4.u32.u32.u32 %r4.b310, %r1.b7012, %r2.b3340, %r3 | cvta.to.global.u64 %rd4, %rd1
cvta.local.u64 %rd4, mine | isspacep.shared %p2, %rd4
createpolicy.fractional.L2::evict_last.b64 %rd4, 1.0 | @%p1 bra L | bra.uni M | brx.idx %r2, T
call (x), f, (z) | ret | exit | @!%p1 exit | trap | membar.gl | fence.acq_rel.gpu | brkpt
griddepcontrol.wait | nanosleep.u32 20 | alloca.u64 %rd4, %rd5, 16 | stacksave.u64 %rd4
stackrestore.u64 %rd4 | mapa.u64 %rd4, %rd3, 0 | getctarank.u32 %r4, %r3 | barrier.cluster.arrive
barrier.cluster.wait | bar.warp.sync -1 | bar.sync 0 | bar.sync 1, 32 | barrier.sync.aligned %r2
bar.arrive 3, 64 | bar.red.popc.u32 %r4, 0, %p1 | bar.red.and.pred %p2, 0, 32, !%p1
bar.red.or.pred %p2, 0, %p1 | shfl.sync.idx.b32 %r4|%p2, %r1, 0, 31, -1
shfl.up.b32 %r4|%p2, %r1, 1, 0 | vote.all.pred %p2, %p1 | vote.ballot.b32 %r4, !%p1
vote.sync.ballot.b32 %r4, %p1, -1 | vote.sync.any.pred %p2, !%p1, -1
match.any.sync.b32 %r4, %r1, -1 | match.all.sync.b64 %r4|%p2, %rd1, -1
redux.sync.add.u32 %r4, %r1, -1 | elect.sync _|%p2, -1 | activemask.b32 %r4
ld.global.u32 %r4, [%rd2] | ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%rd2]
ld.shared.b128 q, [tile] | ld.param.u64 %rd4, [out] | ldu.global.u32 %r4, [%rd1]
ld.local.u16 %h1, [mine+2] | ld.global.L2::cache_hint.u32 %r4, [%rd2], %rd5
mov.b128 _, {%rd4, %rd5}
st.shared.u32 [tile+16], %r1 | st.global.v2.u32 [%rd2], {%r1, 7} | st.global.b128 [%rd2], q
atom.global.add.u32 %r4, [%rd1], 1 | atom.shared.cas.b32 %r4, [tile+16], 0, 1
atom.global.add.v2.f32 {%f1, %f2}, [%rd2], {%f3, %f4} | atom.global.exch.b128 q, [%rd2], q
red.global.max.s32 [%rd1], %r1 | red.shared.inc.u32 [tile+16], 5 | prefetch.global.L2 [%rd1]
prefetchu.L1 [%rd1] | discard.global.L2 [%rd1], 128 | setmaxnreg.inc.sync.aligned.u32 64
applypriority.global.L2::evict_normal [%rd1], 128 | pmevent 3
cp.async.ca.shared.global [tile], [%rd1], 4 | cp.async.cg.shared.global [tile], [%rd1], 16, %r2
cp.async.ca.shared.global [tile], [%rd1], 8, %p1 | cp.async.commit_group | cp.async.wait_all
cp.async.bulk.prefetch.L2.global [%rd1], 64 | st.bulk.shared [%rd3], 8, 0
cp.async.wait_group 0 | cp.async.mbarrier.arrive.shared.b64 [tile]
st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r1], {%r2, 5}, [tile]
red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r1], %r2, [tile]
mbarrier.init.shared.b64 [tile], 32 | mbarrier.inval.shared.b64 [tile]
mbarrier.arrive.shared.b64 %rd4, [tile] | mbarrier.arrive.expect_tx.shared.b64 _, [tile], 16
mbarrier.arrive_drop.shared.b64 %rd4, [tile]
mbarrier.expect_tx.relaxed.cta.shared.b64 [tile], 16
mbarrier.arrive_drop.expect_tx.shared.b64 %rd4, [tile], 16
mbarrier.complete_tx.shared.b64 [tile], 16 | mbarrier.pending_count.b64 %r4, %rd4
mbarrier.test_wait.shared.b64 %p2, [tile], %rd4
mbarrier.try_wait.parity.shared.b64 %p2, [tile], 0, 9
mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16 {%r4, %r5}, {%r1, %r2}, {%r3}, {%r6, %r7}
wmma.load.a.sync.aligned.row.m8n8k4.shared.f64 {%d1}, [tile], %r2
wmma.store.d.sync.aligned.row.m8n8k4.shared.f64 [tile], {%d1,%d2}
wmma.mma.sync.aligned.row.col.m8n8k4.rn.f64.f64.f64.f64 {%d1,%d2}, {%d3}, {%d4}, {%d5,%d6}
ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r4, %r5}, [tile]
movmatrix.sync.aligned.m8n8.trans.b16 %r4, %r1
stmatrix.sync.aligned.m8n8.x1.shared.b16 [tile], {%r4}
wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r4, %r5}, %rd3, %rd4, %p1, 1, -1, 0, 1
wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.u8 {%r4,%r5,%r6,%r7}, {%r1,%r2,%r3,%r1}, %rd4, !%p1
wgmma.fence.sync.aligned | wgmma.commit_group.sync.aligned | wgmma.wait_group.sync.aligned 0
"""
BULK = """
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile+16], [%rd1], 16, [tile]
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [tile+16], [%rd1], 16, [tile]
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [tile+16], [%r3], 16, [tile]
cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%rd1], [tile+16], 16, %rd5
cp.async.bulk.commit_group | cp.async.bulk.wait_group.read 0 | prefetch.tensormap [%rd1]
cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 \
[tile+16], [tile+32], 16, [tile]
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%rd1], [tile+16], 16
fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128 | fence.mbarrier_init.release.cluster
tensormap.replace.tile.global_address.shared::cta.b1024.b64 [tile], %rd1
tensormap.replace.tile.rank.shared::cta.b1024.b32 [tile], 1
tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [tile], 4, %r1
tensormap.replace.tile.global_dim.global.b1024.b32 [%rd1], 0, %r2
tensormap.replace.tile.global_stride.b1024.b64 [%rd1], 3, 4096
tensormap.replace.tile.element_stride.shared::cta.b1024.b32 [tile], 2, 1
tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [tile], 0xA
tensormap.replace.tile.swizzle_mode.shared::cta.b1024.b32 [tile], 3
tensormap.replace.tile.fill_mode.shared::cta.b1024.b32 [tile], 1
tensormap.replace.tile.interleave_layout.shared::cta.b1024.b32 [tile], 0
tensormap.replace.tile.swizzle_atomicity.shared::cta.b1024.b32 [tile], 0
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned \
[%rd1], [tile], 128
""".replace("\\\n", "")
BOXES = """
cp.async.bulk.tensor.Nd.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster\
.L2::cache_hint [tile], [%rd1, {XYZ}], [tile], %h1, %rd5
cp.async.bulk.tensor.Nd.shared::cta.global.mbarrier::complete_tx::bytes [tile], [%rd1, {XYZ}],[tile]
cp.async.bulk.tensor.Nd.global.shared::cta.bulk_group [%rd1, {XYZ}], [tile]
cp.async.bulk.prefetch.tensor.Nd.L2.global.tile [%rd1, {XYZ}]
cp.reduce.async.bulk.tensor.Nd.global.shared::cta.add.tile.bulk_group [%rd1, {XYZ}], [tile]
""".replace("\\\n", "")
VALID += BULK
PLACES = ["%r1", "-3", "0", "%r2", "9"]
for axes in range(1, 6):
    VALID += BOXES.replace("Nd", f"{axes}d").replace("XYZ", ", ".join(PLACES[:axes]))
LINES = [line for line in VALID.replace(" | ", "\n").splitlines() if line]
# What may stand in the place of any operand: of each kind, and some of none.
OTHERS = """
%r1 ; %rd1 ; %rd2 ; %f1 ; %d1 ; %h1 ; %p1 ; _ ; %tid.x ; %tid ; %clock64 ; %carry ; q ; 0 ; 1 ; -1 ;
17 ; 0f3F800000 ; 1.5 ; 99999999999999999999999 ; -9223372036854775809 ; WARP_SZ ; tile ; tile+4 ;
mine ; data ; out ; x ; k ; f ; L ; T ; nowhere ; [%rd1] ; [%rd2+4] ; [%rd2+-4] ; [%r1] ; [tile] ;
[tile+99999] ; [mine] ; [out] ; [out+4096] ; [x] ; [f] ; [L] ; [16] ; [-1] ; [%p1] ; [%f1] ;
[nope] ; [%rd1, {%r1}] ; [_] ; {} ; {%r1} ; {%r1, %r2} ; {%r1, %r2, %r3, %r4} ; {%rd1, %rd2} ;
{%f1, %f2} ; {%h1, %h2} ; {_, %r1} ; {{%r1, %r2}, %r3} ; {tile, %r1} ; {%p1, %p2} ; {%r1, [tile]} ;
{1, 2} ; !%p1 ; !%r1 ; %p1|%p2 ; %r1|%p1 ; %r1|_ ; {%r1, %r2}|%p1 ; -%r1 ; -%p1 ; %r1.b0 ; %r1.h1 ;
%r1.b7777 ; (%r1) ; (x) ; () ; (z, z) ; (7)"""
OTHERS = [one.strip() for one in OTHERS.split(";")]
GUARDS = ["@%p1 ", "@!%p1 ", "@%r1 ", "@!%f1 ", "@_ ", "@%tid.x ", "@q ", "@L "]


def parts_of(line):
    """(guard with a blank, opcode, operands) of an instruction."""
    guard, line = (f"{line.split()[0]} ", line.split(" ", 1)[1]) if line[0] == "@" else ("", line)
    opcode, _, rest = line.partition(" ")
    operands, depth = [""] if rest else [], 0
    for letter in rest:
        depth += (letter in "({[") - (letter in ")}]")
        if letter == "," and not depth:
            operands.append("")
        else:
            operands[-1] += letter
    return guard, opcode, [one.strip() for one in operands]


def target_of(line):
    """An architecture that has the instruction."""
    old = any(word in line for word in ("shfl.up", "vote.all", "vote.ballot"))
    newer = {"st.bulk": "sm_100a", "wgmma": "sm_90a"}
    return "sm_60" if old else next((newer[word] for word in newer if word in line), "sm_90")


def run(line):
    """Translate and run the program with an instruction in it, in two warps."""
    text = PROGRAM.replace("%%", "%").replace("\n%s\n", f"\n{line};\n")
    program = Program(text.replace("sm_90", target_of(line)))
    launch(program, "k", (1, 1, 1), (64, 1, 1), [np.zeros(1024, np.uint32)])


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.parametrize("line", LINES)
def test_each_form_is_taken(line):
    try:
        run(line)
    except SimulatorError as error:  # what the machine does with it is for other tests
        assert not isinstance(error, UnsupportedKernel), error


def test_each_form_has_an_instruction_here():
    refused = {"cp", "tex"}
    assert {_name(parts_of(line)[1]) for line in LINES} == {"", *FORMS} - refused


@pytest.mark.turns(11)
@pytest.mark.system
@pytest.mark.parametrize("line", [line for line in LINES if parts_of(line)[2]])
def test_too_few_and_too_many_operands_are_counted(line):
    guard, opcode, operands = parts_of(line)
    if opcode.startswith(("call", "createpolicy")):
        return
    least = min(sum(word[-1] != "?" for word in form) for form in forms_of(opcode))
    fewer = [operands[: least - 1]] * (least > 0)
    for some in (*fewer, [*operands, *operands, "0"]):
        words = rf"{opcode} takes .* operands?, got {len(some)}\), compiled from PTX line 14;"
        with pytest.raises(UnsupportedKernel, match=words):
            run(f"{guard}{opcode} {', '.join(some)}")


def test_what_is_never_reached_is_refused_too():
    with pytest.raises(UnsupportedKernel, match=r"\(add.f32 takes 3 operands, got 2\)"):
        run("ret; add.f32 %f1, %f2")


MALFORMED = {
    "add.f32 %f1, [%rd1], %f2": r"operand \[%rd1\] is not what add.f32 takes there: a val",
    "add.f32 3, %f1, %f2": "operand 3 is not .*: a register for a value of type .f32",
    "add.u32 %tid.x, %r1, %r2": "operand %tid.x is not .*: a register for a value of type .u32",
    "selp.b32 %r4, %r1, %r2, %r3": "operand %r3 is not .*: a predicate",
    "ld.global.u32 %r4, %rd1": "operand %rd1 is not .*: an address in brackets",
    "ld.global.u32 %r4, [%p1]": r"operand \[%p1\] is not .*: an address in brackets",
    "st.global.v4.f32 [%rd1], {%f1, %f2}": "4 in braces, each a value of type .f32",
    "cp.async.wait_group %r1": "a number written out",
    "cp.async.ca.shared.global [tile], [%rd1], 5": "5 bytes: it copies 4, 8 or 16",
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b64 [%r1], "
    "{%rd1, %rd1, %rd1, %rd1}, [tile]": "at most 16 bytes of a thread",
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b16 [%r1], %r2, [tile]": "of 32 or "
    "64 bits, not .b16",
    "st.async.weak.shared::cta.mbarrier::complete_tx::bytes.b32 [%r1], %r2, [tile]": "stores to "
    ".shared::cluster",
    "st.async.release.gpu.global.b32 [%rd1], %r2, [tile]": "mbarrier::complete_tx::bytes only",
    "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.f32 [%r1], %f2, "
    "[tile]": ".add takes .u32, .s32, .u64, not .f32",
    "brx.idx 0, T": "a register of 32 bits",
    "bra %r1": "the name of a label",
    "shfl.sync.idx.b32 %r4|%r5, %r1, 0, 31, -1": "perhaps |, and one of type .pred",
    "@%r1 mov.u32 %r4, 0": "the guard %r1 is no predicate",
    "add.u64 %rd4, %clock64, 1": "operand %clock64 is not",
    "ld.param.u32 %r4, [out+8]": "reads past the kernel's parameters",
    "ld.param.u32 %r4, [data]": "data is no .param variable",
    "st.param.u64 [out], %rd1": "a kernel cannot write to its parameters",
    "alloca.u64 %rd4, %rd5, 3": "an alignment of 3",
    "vset.s32.u32 %r4, %r1, %r2": "vset takes one of",
    "mma.sync.aligned.m16n8k8.col.row.f32.f16.f16.f32 %r1": "only .row.col",
    "atom.global.inc.f32 %f1, [%rd1], %f2": "no operation 'inc'",
    "call (x), 3, (z)": "call takes the name of a function",
    "call (x), f, (z), L, L": "at most a prototype",
}


@pytest.mark.parametrize("line", MALFORMED)
def test_what_is_malformed_is_named_with_the_reason(line):
    with pytest.raises(UnsupportedKernel, match=MALFORMED[line]) as caught:
        run(line)
    assert f"`{line};`" in str(caught.value) and "PTX line 14" in str(caught.value)


def test_a_jump_past_the_end_of_its_table_is_named():
    with pytest.raises(SimulatorError, match="k jumps to entry 7 of a table of 2, at PTX line 14"):
        run("mov.u32 %r2, 7; brx.idx %r2, T")


@st.composite
def changed(draw):
    """A valid instruction with its operands or its guard changed, once or twice."""
    guard, opcode, operands = parts_of(draw(st.sampled_from(LINES)))
    for _ in range(draw(st.integers(1, 2))):
        what = draw(st.sampled_from(["replace", "replace", "drop", "insert", "move", "guard"]))
        place = draw(st.integers(0, max(len(operands) - 1, 0)))
        if what == "guard":
            guard = draw(st.sampled_from(GUARDS))
        elif what == "insert" or not operands:
            operands.insert(place, draw(st.sampled_from(OTHERS)))
        elif what == "replace":
            operands[place] = draw(st.sampled_from(OTHERS))
        else:
            taken = operands.pop(place)
            if what == "move":
                operands.insert(draw(st.integers(0, len(operands))), taken)
    return f"{guard}{opcode} {', '.join(operands)}"


@pytest.mark.turns(23)
@pytest.mark.system
@pytest.mark.filterwarnings("ignore::kernelscope.errors.ShuffleWarning")
@settings(max_examples=800, deadline=None, suppress_health_check=list(HealthCheck))
@given(line=changed())
@example("st.bulk.shared [%rd3], %r1, 0")  # another size in each thread
def test_changed_operands_are_refused_or_run(line):
    """Nothing but an error for the user: in the text, in an instruction, or of the machine."""
    try:
        run(line)
    except (ParseError, SimulatorError) as error:
        assert "PTX line" in str(error)
