"""Executions of machine code's segments, from counts of PTX."""

from collections import Counter

import numpy as np
import pytest
from kernelscope.ptx.syntax import Address, Instruction, Register
from kernelscope.timing.executions import (
    BlockPlace,
    PtxCounts,
    executions,
    loads_of,
    may_fuse,
    system,
)
from kernelscope.timing.executions.least_squares import nonnegative
from kernelscope.timing.machine_code import Code, Segment, loops_of
from kernelscope.timing.work import UNITS, clocks_of_no_lane, corrections


def code(name, line, target=""):
    return Code(name, (), "", bool(target), line, 1, 7, 7, 0, target)


def load(line, times, block):
    counts = Counter(global_load_requests=times)
    return PtxCounts(
        Instruction("ld.global.f32", ()), line, times, counts, False, BlockPlace(block)
    )


def store(line, times):
    counts = Counter(global_store_requests=times)
    return PtxCounts(Instruction("st.global.f32", ()), line, times, counts, False, BlockPlace(2))


def segment(names, follows):
    return Segment([code(name, line) for name, line in names], follows)


def unrolled():
    """A loop of 4 loads, then one of 1 load for the rest, each of which may be left out."""
    return (
        segment([("S2R", 1)], [1, 2]),
        segment([("LDG", 5)] * 4 + [("BRA", 5)], [2, 1]),
        segment([("ISETP", 5)], [3, 4]),
        segment([("LDG", 5), ("BRA", 5)], [4, 3]),
        segment([("EXIT", 9)], []),
    )


def test_nonnegative_least_squares():
    """Beside the best of all sets of positive columns."""
    random = np.random.default_rng(5)
    for _ in range(20):
        matrix, right = random.normal(size=(8, 4)), random.normal(size=8)
        best = np.inf
        for chosen in range(1, 16):
            at = [i for i in range(4) if chosen >> i & 1]
            x = np.linalg.lstsq(matrix[:, at], right, rcond=None)[0]
            if (x >= 0).all():
                best = min(best, np.linalg.norm(matrix[:, at] @ x - right))
        best = min(best, np.linalg.norm(right))
        found = nonnegative(matrix, right)
        assert (found >= 0).all()
        assert np.linalg.norm(matrix @ found - right) == pytest.approx(best, abs=1e-6)


def test_rows_of_very_different_size_do_not_pull_at_each_other():
    """An unknown of a thousandth keeps one of a million from nothing."""
    matrix = np.array([[1e-6, 0.0, 0.0], [-1e-6, 1e-6, 0.0], [0.0, 0.0, 1e3]])
    found = nonnegative(matrix, np.array([1.0, 0.0, 1.0]))
    assert found == pytest.approx([1e6, 1e6, 1e-3], rel=1e-6)


def test_loops_and_what_is_above_them():
    loops = {loop.header: loop for loop in loops_of(unrolled())}
    assert set(loops) == {1, 3} and loops[3].body == {3} and loops[3].above == (2, 0)


def test_an_unrolled_loop_and_its_remainder():
    """The PTX says of 10 steps: 8 in blocks of four, 2 in the rest."""
    counted = [load(5, 2 * 100, 1) for _ in range(4)] + [load(5, 2 * 100, 2)]
    found, edges = executions(unrolled(), counted, warps=100)
    assert found == pytest.approx([100, 200, 100, 200, 100], rel=0.02)
    assert edges[1, 1] == pytest.approx(100, rel=0.05)


def test_all_in_the_unrolled_loop():
    """Where one block of the PTX stands for all, the fewest instructions are taken."""
    found, _ = executions(unrolled(), [load(5, 800, 1)], warps=100)
    assert found == pytest.approx([100, 200, 100, 0, 100], abs=4)


def test_a_loop_does_not_feed_itself():
    """Warps come to a loop that runs by the segments before it."""
    found, edges = executions(unrolled(), [load(5, 8000, 1)], warps=100)
    assert edges[0, 1] == pytest.approx(100, rel=0.05) and found[1] == pytest.approx(2000, rel=0.02)


def test_a_branch_of_half_of_the_warps():
    segments = (
        segment([("BRA", 1)], [1, 2]),
        segment([("LDG", 5)], [2]),
        segment([("EXIT", 9)], []),
    )
    found, _ = executions(segments, [load(5, 50, 1)], warps=100)
    assert found == pytest.approx([100, 50, 100], rel=0.02)


def in_loop(opcode, line, times, block, loops=(), above=0, before=0):
    """An instruction of the PTX; loads and stores are of the space in their opcode."""
    way, space, *_ = opcode.split(".")
    kind = {"ld": "load", "st": "store"}.get(way)
    counts = Counter({f"{space}_{kind}_requests": times}) if kind else Counter()
    place = BlockPlace(block, loops, above, before)
    return PtxCounts(Instruction(opcode, ()), line, times, counts, False, place)


def test_arrays_of_a_thread_join_a_loop():
    """Nothing else in it is in both: half of the warps run a part of each step."""
    segments = (
        segment([("S2R", 1)], [1]),
        segment([("LDL", 5), ("BRA", 5)], [2, 3]),
        segment([("STL", 6)], [3]),
        segment([("BRA", 7)], [4, 1]),
        segment([("EXIT", 9)], []),
    )
    counted = [in_loop("ld.local.u32", 5, 800, 1, (1,)), in_loop("st.local.u32", 6, 400, 2, (1,))]
    found, _ = executions(segments, counted, warps=100)
    assert found == pytest.approx([100, 800, 400, 800, 100], rel=0.01)


def test_a_loop_around_another_runs_as_often_as_that_of_the_ptx():
    """Nothing of its own is in both: the loop inside might be entered once, and go on."""
    segments = (
        segment([("S2R", 1)], [1]),
        segment([("IADD3", 3)], [2]),
        segment([("LDG", 5), ("BRA", 5)], [3, 2]),
        segment([("IADD3", 3), ("BRA", 3)], [4, 1]),
        segment([("EXIT", 9)], []),
    )
    counted = [in_loop("ld.global.f32", 5, 800, 3, (3, 2))]
    inside, _ = executions(segments, counted, warps=100)
    counted += [in_loop("add.s32", 3, 800, 2, (2,), above=1), in_loop("mov.u32", 1, 100, 1)]
    found, _ = executions(segments, counted, warps=100)
    assert inside[1] == pytest.approx(100, rel=0.05)
    assert found == pytest.approx([100, 800, 800, 800, 100], rel=0.02)


def test_no_more_steps_at_a_time_than_a_loop_takes():
    """Each warp takes one step of the PTX's loop: the variant of four stays out, though one run of
    it for four warps would be fewer instructions. With 40 steps it is taken.
    """
    for steps, runs in ((1, [100, 0, 100, 100, 100]), (40, [100, 1000, 100, 0, 100])):
        loop = [
            in_loop("ld.global.f32", 5, 100 * steps, 3, (3,), above=2),
            in_loop("add.s32", 5, 100 * steps, 3, (3,)),
        ]
        found, _ = executions(unrolled(), [*loop, in_loop("mov.u32", 1, 100, 2)], warps=100)
        assert found == pytest.approx(runs, abs=4)


def test_a_loop_and_code_of_its_line_beside_it_are_told_apart():
    """Four loads of the rest on the line of a loop, which takes one step each time."""
    segments = (
        segment([("S2R", 1)], [1, 2]),
        segment([("LDG", 5)] * 2 + [("BRA", 5)], [2, 1]),
        segment([("LDG", 5)] * 3, [3]),
        segment([("EXIT", 9)], []),
    )
    step = [in_loop("ld.global.f32", 5, 100, 3, (3,), above=2)] * 2
    rest = [in_loop("ld.global.f32", 5, 100, block) for block in (4, 5, 6)]
    counted = [*step, *rest, in_loop("mov.u32", 1, 100, 2)]
    found, _ = executions(segments, counted, warps=100)
    assert found == pytest.approx([100, 100, 100, 100], rel=0.02)


@pytest.mark.parametrize("fused", [False, True])
def test_a_product_and_a_sum_are_one_instruction_or_two(fused):
    body = [("LDS", 5)] + [("FFMA", 5)] * (1 if fused else 2)
    segments = (
        segment([("S2R", 1)], [1]),
        segment([*body, ("BRA", 5)], [2, 1]),
        segment([("EXIT", 9)], []),
    )
    step = [in_loop(f"{name}.f32", 5, 800, 3, (3,)) for name in ("mul", "sub")]
    counted = [in_loop("ld.shared.f32", 5, 800, 3, (3,)), *step]
    found, _ = executions(segments, counted, warps=100)
    assert found == pytest.approx([100, 800, 100], rel=0.01)
    assert set(may_fuse(counted).values()) == {(5, "float32")}
    rounded = [in_loop(f"{name}.rn.f32", 5, 800, 3, (3,)) for name in ("mul", "sub")]
    assert not may_fuse(rounded)


def test_lanes_that_add_floats_in_shared_memory_take_turns():
    """ptxas makes a loop of ATOMS.CAS; integers are added by one instruction."""
    counts = Counter(shared_atomic_requests=100, shared_atomic_wavefronts=700)
    segments = (
        segment([("S2R", 1)], [1]),
        segment([("LDS", 5), ("FADD", 5), ("ATOMS", 5), ("BRA", 5)], [2, 1]),
        segment([("EXIT", 9)], []),
    )
    for kind, times in (("f32", 700), ("u32", 100)):
        opcode = Instruction(f"atom.shared.add.{kind}", ())
        one = PtxCounts(opcode, 5, 100, counts, False, BlockPlace(1))
        found, _ = executions(segments, [one], warps=100)
        assert found == pytest.approx([100, times, 100], rel=0.02)


def test_a_branch_around_code_without_an_anchor():
    """Seven of ten warps run it, each of two times that ptxas has repeated the step."""
    step = [segment([("LDS", 5), ("BRA", 6)], [2, 3]), segment([("IADD3", 7)] * 9, [3])]
    again = [segment([("LDS", 5), ("BRA", 6)], [4, 5]), segment([("IADD3", 7)] * 9, [5])]
    last = [segment([("BRA", 8)], [6, 1]), segment([("EXIT", 9)], [])]
    segments = segment([("S2R", 1)], [1]), *step, *again, *last
    counted = [
        in_loop("mov.u32", 1, 100, 1),
        in_loop("ld.shared.u32", 5, 1000, 2, (2,), above=1),
        in_loop("bra.uni", 6, 1000, 2, (2,), above=1),
        in_loop("add.s32", 7, 700, 3, (2,), before=2),
        in_loop("bra.uni", 8, 1000, 4, (2,)),
    ]
    found, _ = executions(segments, counted, warps=100)
    assert found == pytest.approx([100, 500, 350, 500, 350, 500, 100], rel=0.05)


@pytest.mark.parametrize("most", [system.MOST_UNKNOWNS, 1])
def test_a_branch_that_all_warps_take_alike(monkeypatch, most):
    """Also in code with more edges than are solved for, where each line counts by itself."""
    monkeypatch.setattr(system, "MOST_UNKNOWNS", most)
    segments = (
        segment([("S2R", 1), ("BRA", 1)], [1, 2]),
        segment([("IADD3", 7)] * 9, [2]),
        segment([("LDG", 8)] * 2, [3]),
        segment([("EXIT", 9)], []),
    )
    counted = [
        in_loop("bra.uni", 1, 100, 1),
        in_loop("add.s32", 7, 100, 2, before=1),
        *[in_loop("ld.global.u32", 8, 100, 3)] * 2,
    ]
    found, _ = executions(segments, counted, warps=100)
    assert found == pytest.approx([100, 100, 100, 100], rel=0.01)


def test_loops_of_one_line_are_those_of_the_ptx_in_their_order():
    """A loop that the source repeats, with nothing that is in both: 3 and 9 steps."""
    segments = (
        segment([("S2R", 1)], [1]),
        segment([("LOP3", 5)] * 5 + [("BRA", 5)], [2, 1]),
        segment([("MOV", 6)], [3]),
        segment([("LOP3", 5)] * 5 + [("BRA", 5)], [4, 3]),
        segment([("EXIT", 9)], []),
    )
    counted = steps_of_a_loop(300, count=5) + steps_of_a_loop(900, count=5, head=4)
    found, _ = executions(segments, counted, warps=100)
    assert found == pytest.approx([100, 300, 100, 900, 100], rel=0.03)


@pytest.mark.parametrize("lines", [(2, 3), (12, 13)])
def test_lines_and_blocks_of_the_same_numbers_are_not_confused(lines):
    """A loop of lines 2 and 3 beside one with the block 2 of the PTX and the header 3."""
    segments = (
        segment([("S2R", 50)], [1]),
        segment([("S2R", 50)], [2]),
        segment([("S2R", 50)], [3]),
        segment([("LOP3", 60)] * 5 + [("BRA", 60)], [4, 3]),
        segment([("LOP3", line) for line in lines] * 3 + [("BRA", lines[0])], [5, 4]),
        segment([("EXIT", 99)], []),
    )
    counted = steps_of_a_loop(900, count=5, line=60, head=2)
    counted += [arithmetic("xor.b32", line, 1000) for line in lines]
    found, _ = executions(segments, counted, warps=100)
    assert found[3:5] == pytest.approx([900, 2000 / 6], rel=0.02)


def test_a_sum_that_ptxas_repeats_in_a_loop_is_not_the_ptx_one():
    """Computed once before the loop by the PTX, in each of its steps by machine code."""
    segments = (
        segment([("FADD", 3)], [1]),
        segment([("LDS", 5), ("FADD", 3), ("BRA", 5)], [2, 1]),
        segment([("EXIT", 9)], []),
    )
    counted = [in_loop("ld.shared.f32", 5, 800, 2, (2,)), in_loop("add.f32", 3, 100, 1)]
    found, _ = executions(segments, counted, warps=100)
    assert found == pytest.approx([100, 800, 100], rel=0.01)


def arithmetic(opcode, line, times):
    return PtxCounts(Instruction(opcode, ()), line, times, Counter(), False, BlockPlace(1))


def integer_loop(extra=()):
    return (
        segment([("S2R", 1)], [1]),
        segment([("LOP3", 5), ("SHF", 5), ("IMAD", 6), *extra, ("BRA", 4)], [2, 1]),
        segment([("EXIT", 9)], []),
    )


def test_a_loop_of_integers_is_joined_by_its_products():
    """No load, store, float or barrier: two PTX instructions of line 5 may be one."""
    counted = [arithmetic("mul.lo.s32", 6, 700), arithmetic("xor.b32", 5, 700)]
    found, _ = executions(integer_loop(), counted, warps=100)
    assert found == pytest.approx([100, 700, 100], rel=0.02)
    alone, _ = executions(integer_loop(), counted[:1], warps=100)
    assert alone == pytest.approx([100, 700, 100], rel=0.02)


def test_arithmetic_joins_a_loop_without_products():
    counted = [arithmetic(name, 5, 700) for name in ("xor.b32", "shl.b32", "add.s32")]
    found, _ = executions(integer_loop(), counted, warps=100)
    assert found == pytest.approx([100, 700, 100], rel=0.02)


def steps_of_a_loop(times, count=8, line=5, head=3):
    """A loop of the PTX whose block `head` runs `times` times, with `count` instructions."""
    return [
        PtxCounts(
            Instruction("xor.b32", ()), line, times, Counter(), False, BlockPlace(head, (head,))
        )
        for _ in range(count)
    ]


def test_a_loop_runs_as_often_as_the_ptx_loop_of_its_lines():
    """ptxas made 5 instructions of 8; a step is a step."""
    body = [("LOP3", 5)] * 5 + [("BRA", 5)]
    segments = segment([("S2R", 1)], [1]), segment(body, [2, 1]), segment([("EXIT", 9)], [])
    found, _ = executions(segments, steps_of_a_loop(700), warps=100)
    assert found == pytest.approx([100, 700, 100], rel=0.02)
    other_lines, _ = executions(segments, steps_of_a_loop(700, line=6), warps=100)
    assert other_lines == pytest.approx([100, 100, 100], abs=4)


@pytest.mark.parametrize(("rest", "runs"), [(7, 0), (2, 0)])
def test_a_repeated_body_takes_several_steps(rest, runs):
    """Four at a time, by a loop of one step or of less work beside it for the rest."""
    segments = (
        segment([("S2R", 1)], [1]),
        segment([("LOP3", 5)] * 26 + [("BRA", 5)], [2, 1]),
        segment([("ISETP", 9)], [3, 4]),
        segment([("LOP3", 5)] * rest + [("BRA", 5)], [4, 3]),
        segment([("EXIT", 9)], []),
    )
    found, _ = executions(segments, steps_of_a_loop(2000), warps=100)
    assert found == pytest.approx([100, 500, 100, runs, 100], abs=4)


def test_counts_of_bits_join_code():
    segments = (
        segment([("BRA", 1)], [1, 2]),
        segment([("POPC", 5), *[("IADD3", 5)] * 9], [2]),
        segment([("EXIT", 9)], []),
    )
    found, _ = executions(segments, [arithmetic("popc.b32", 5, 60)], warps=100)
    assert found == pytest.approx([100, 60, 100], rel=0.02)


@pytest.mark.parametrize("calls", [0, 70])
def test_a_slow_path_runs_as_often_as_it_is_called(calls):
    counts = Counter(slow_paths=calls)
    divided = PtxCounts(Instruction("div.rn.f32", ()), 5, 300, counts, False, BlockPlace(1))
    segments = (
        segment([("MUFU", 5), ("FCHK", 5), *[("FFMA", 5)] * 5, ("BRA", 5)], [1, 2]),
        segment([("CALL", 5), *[("LOP3", 5)] * 30], [2]),
        segment([("BRA", 5)], [3, 0]),
        segment([("EXIT", 9)], []),
    )
    found, _ = executions(segments, [divided], warps=100)
    assert found == pytest.approx([300, calls, 300, 100], rel=0.02, abs=2)


def test_a_division_does_not_count_as_its_products():
    """ptxas makes five multiply-adds of it: the code around runs as often as the warps pass it."""
    segments = (
        segment([("FADD", 5), ("MUFU", 5), *[("FFMA", 5)] * 5, ("BRA", 5)], [1]),
        segment([("FADD", 5), ("MUFU", 5), *[("FFMA", 5)] * 5], [2]),
        segment([("EXIT", 9)], []),
    )
    divided = [arithmetic("add.f32", 5, 100), arithmetic("div.rn.f32", 5, 100)]
    found, _ = executions(segments, divided * 2, warps=100)
    assert found == pytest.approx([100, 100, 100], rel=0.01)


def test_a_guarded_exit_lets_no_more_warps_on_than_come():
    """A long loop behind it does not make up warps that enter it."""
    segments = (
        segment([("S2R", 1)] * 10 + [("EXIT", 2)], [1]),
        segment([("ISETP", 3)] * 4 + [("BRA", 3)], [2, 4]),
        segment([("I2F", 4)] * 20, [3]),
        segment([("FADD", 5), ("BRA", 5)], [4, 3]),
        segment([("STG", 9), ("EXIT", 9)], []),
    )
    counted = [arithmetic("add.f32", 5, 10800), store(9, 100)]
    found, _ = executions(segments, counted, warps=100)
    assert found == pytest.approx([100, 100, 100, 10800, 100], rel=0.02)
    few = segments[0], segment([("LDG", 5), ("EXIT", 5)], [])
    found, _ = executions(few, [load(5, 30, 1)], warps=100)
    assert found == pytest.approx([100, 30], rel=0.02)


def test_a_guarded_instruction_is_issued_where_the_ptx_jumps_over_it():
    """One warp of eight stores; all of them run the loop."""
    guarded = Code("STG", (), "", True, 6, 1, 7, 7, 0, "")
    loop = segment([("LDG", 5), ("BRA", 4)], [2, 1])
    loop.code.insert(1, guarded)
    segments = segment([("S2R", 1)], [1]), loop, segment([("EXIT", 9)], [])
    found, _ = executions(segments, [load(5, 800, 1), store(6, 100)], warps=100)
    assert found == pytest.approx([100, 800, 100], rel=0.01)
    alone, _ = executions(segments, [store(6, 100)], warps=100)
    assert alone[1] == pytest.approx(100, rel=0.02)


def test_a_division_of_integers_joins_code_without_a_loop():
    segments = (
        segment([("BRA", 1)], [1, 2]),
        segment([("I2F", 5), ("MUFU", 5), *[("IMAD", 5)] * 14], [2]),
        segment([("EXIT", 9)], []),
    )
    found, _ = executions(segments, [arithmetic("div.s32", 5, 60)], warps=100)
    assert found == pytest.approx([100, 60, 100], rel=0.02)


def test_an_execution_of_no_lane_takes_an_issue_and_a_place_in_its_pipe():
    for name, passes in (("STS", 1), ("LDG", 1), ("FADD", 0)):
        clocks = dict(zip(UNITS, clocks_of_no_lane(code(name, 1)), strict=True))
        assert clocks.pop("issue") == 0.25 and clocks.pop("memory") == passes
        assert not any(clocks.values())


@pytest.mark.parametrize(("parts", "share"), [((), 1.0), (("64",), 2.0)])
def test_fewer_loads_than_the_ptx_are_wider_or_left_out(parts, share):
    """Of two loads of 4 bytes ptxas keeps one, or makes one of 8."""
    counts = Counter(shared_load_requests=10, shared_load_wavefronts=10)
    word = Instruction("ld.shared.f32", ())
    counted = [PtxCounts(word, 5, 10, counts, False, BlockPlace(1)) for _ in range(2)]
    kept = Code("LDS", parts, "", False, 5, 1, 7, 7, 0, "")
    found = corrections((Segment([kept], []),), np.array([10.0]), counted)
    assert found == {(5, "shared load"): share}


@pytest.mark.parametrize("names", [["LDG"] * 3, ["LDG"] * 6])
def test_each_load_is_the_one_of_the_ptx_that_is_alike(names):
    """Three loads of a line: of a byte, at an offset of 8, and at one of 0, in another order."""
    loop = BlockPlace(2, (2,))
    opcodes = (("ld.global.f32", 0), ("ld.global.f32", 8), ("ld.global.u8", 0))
    counted = [
        PtxCounts(
            Instruction(opcode, (Register("%r1"), Address(Register("%rd1"), offset))),
            5, 10, Counter(global_load_requests=10), False, loop,
        )
        for opcode, offset in opcodes
    ]  # fmt: skip
    kinds = [(("E", "U8"), "[R2]"), (("E",), "[R2.64+0x8]"), (("E",), "[R2.64]")]
    some = [Code("LDG", *kinds[at % 3], False, 5, 1, 0, 7, 0, "") for at, _ in enumerate(names)]
    found = loads_of((Segment(some, []),), counted)
    assert [found[id(one)] for one in some] == [counted[2], counted[1], counted[0]] * (
        len(names) // 3
    )


def test_loads_of_blocks_without_a_loop_follow_each_other():
    """Each block has one load of the line, and machine code has them in two segments."""
    counted = [load(5, 10, block) for block in (2, 3, 4)]
    first, second = segment([("LDG", 5)] * 2, [1]), segment([("LDG", 5)], [])
    found = loads_of((first, second), counted)
    assert [found[id(one)] for one in (*first.code, *second.code)] == counted


def test_code_that_never_ran_takes_no_steps_of_another_loop():
    """Loads of a loop of four steps, of which none is left for the loop of the rest."""
    four = [load(5, 100, 2) for _ in range(4)]
    rest = PtxCounts(Instruction("ld.global.f32", ()), 5, 0, Counter(), False, BlockPlace(3, (3,)))
    counts, _ = executions(unrolled(), [*four, rest], warps=100)
    assert counts[1] == pytest.approx(100, rel=0.02) and counts[3] < 1


def test_a_load_that_ptxas_has_made_of_four_counts_as_four():
    """Four loads of a loop's step: one of 16 bytes in machine code."""
    counted = [load(5, 100, 2) for _ in range(4)]
    wide = Code("LDG", ("E", "128"), "", False, 5, 1, 7, 7, 0, "")
    segments = (
        segment([("S2R", 1)], [1]),
        Segment([wide, code("BRA", 5)], [2, 1]),
        segment([("EXIT", 9)], []),
    )
    counts, _ = executions(segments, counted, warps=10)
    assert counts[1] == pytest.approx(100, rel=0.02)
