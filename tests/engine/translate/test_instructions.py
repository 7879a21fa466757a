"""Single PTX instructions on the simulator: guards that are operands, and refusals that help."""

import numpy as np
import pytest

from attn_course import RawModule
from attn_course.engine.errors import SimulatorError
from attn_course.engine.machine.launch import launch
from attn_course.engine.translate.program import Program

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


def run(body, head="", build="optimised"):
    """Run the instructions in 32 lanes; return %r3 of each lane."""
    out = np.zeros(32, np.uint32)
    program = Program(PTX.format(body=body, head=head), build=build)
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
