"""Executions of machine code's segments, from counts of the PTX that they are made of."""

from collections import Counter

import numpy as np
import pytest
from kernelscope import RawKernel, observe
from kernelscope.ptx.syntax import Instruction
from kernelscope.timing import Time
from kernelscope.timing.executions import (
    BlockPlace,
    PtxCounts,
    executions,
    is_swap,
    loads_of,
    system,
    with_spaces,
)
from kernelscope.timing.executions.anchors import anchors_of
from kernelscope.timing.executions.copies import SegmentCopies
from kernelscope.timing.executions.least_squares import nonnegative
from kernelscope.timing.machine_code import Code, Segment, loops_of
from kernelscope.timing.work import clocks_of_no_lane, corrections

LOAD, STORE = "ld.global.f32", "st.global.f32"


def code(name, origin=-1, parts=(), guarded=False):
    return Code(name, parts, "", guarded, 1, 1, 7, 7, 0, "", origin=origin)


def segment(made, follows):
    """made: (machine instruction, number of the PTX instruction it is made of), ..."""
    return Segment([code(*one) for one in made], follows)


def ptx(opcode, number, times, block=1, loops=(), above=0, **counts):
    """An instruction of the PTX that warps ran `times` times."""
    way, space, *_ = opcode.split(".")
    kind = {"ld": "load", "st": "store", "atom": "atomic"}.get(way)
    found = Counter({f"{space}_{kind}_requests": times}) if kind and times else Counter()
    place = BlockPlace(block, loops, above)
    return PtxCounts(
        Instruction(opcode, ()), 1, times, found + Counter(counts), False, place, origin=number
    )


def arithmetic(numbers, times, block=1, loops=(), above=0):
    return [ptx("xor.b32", number, times, block, loops, above) for number in numbers]


def runs(segments, counted, warps=100):
    return executions(tuple(segments), counted, warps)[0]


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


def two_loops(four, one):
    """A loop that has four loads, then one that has one: their origins. Each may be left out."""
    return (
        segment([("S2R", 0)], [1, 2]),
        segment([*[("LDG", number) for number in four], ("BRA", -1)], [2, 1]),
        segment([("ISETP", -1)], [3, 4]),
        segment([("LDG", one), ("BRA", -1)], [4, 3]),
        segment([("EXIT", -1)], []),
    )


def test_loops_and_what_is_above_them():
    loops = {loop.header: loop for loop in loops_of(two_loops((1, 2, 3, 4), 5))}
    assert set(loops) == {1, 3} and loops[3].body == {3} and loops[3].above == (2, 0)


def test_loops_of_the_ptx_are_told_apart_by_their_instructions():
    """Of 10 steps 8 in blocks of four, 2 in the rest: all loads are on one line."""
    counted = [ptx(LOAD, n, 200, 2, (2,), above=1) for n in (1, 2, 3, 4)]
    counted += [ptx("mov.u32", 0, 100), ptx(LOAD, 5, 200, 3, (3,), above=1)]
    found, edges = executions(two_loops((1, 2, 3, 4), 5), counted, warps=100)
    assert found == pytest.approx([100, 200, 100, 200, 100], rel=0.02)
    assert edges[1, 1] == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize(
    ("steps", "expected"), [(1, [100, 0, 100, 100, 100]), (40, [100, 1000, 100, 0, 100])]
)
def test_a_loop_that_ptxas_has_repeated_four_times(steps, expected):
    """One load of the PTX in both: the fewest instructions are taken, but no four steps at a time
    where the loop takes one.
    """
    counted = [ptx("mov.u32", 0, 100), ptx(LOAD, 1, 100 * steps, 2, (2,), above=1)]
    assert runs(two_loops([1] * 4, 1), counted) == pytest.approx(expected, abs=4)


def test_what_ptxas_has_left_out_of_a_copy_is_no_anchor():
    """The fifth stands in one of two copies only, and says nothing of how often that one runs."""
    segments = [
        segment([("LOP3", number) for number in range(1, last)], [at])
        for at, last in ((1, 6), (2, 5))
    ]
    copies = SegmentCopies(segments, arithmetic(range(1, 6), 100), [0, 0])
    assert anchors_of(segments, copies).rows.tolist() == [[1, 1]]


def test_a_loop_does_not_feed_itself():
    """Warps come to a loop that runs by the segments before it."""
    counted = [ptx("mov.u32", 0, 100), ptx(LOAD, 1, 8000, 2, (2,), above=1)]
    found, edges = executions(two_loops([1] * 4, 1), counted, warps=100)
    assert edges[0, 1] == pytest.approx(100, rel=0.05) and found[1] == pytest.approx(2000, rel=0.02)


def branch(made):
    return [segment([("BRA", 0)], [1, 2]), segment(made, [2]), segment([("EXIT", -1)], [])]


@pytest.mark.parametrize(
    ("name", "opcode"),
    [
        ("LDG", LOAD), ("STG", STORE), ("LDL", "ld.local.u32"), ("STL", "st.local.u32"),
        ("POPC", "popc.b32"), ("FFMA", "fma.rn.f32"), ("LOP3", "xor.b32"), ("IMAD", "div.s32"),
    ],
)  # fmt: skip
def test_a_branch_of_some_of_the_warps(name, opcode):
    counted = [ptx("bra.uni", 0, 100), ptx(opcode, 1, 60, 2)]
    assert runs(branch([(name, 1)]), counted) == pytest.approx([100, 60, 100], rel=0.02)


def test_warps_whose_lanes_part_run_both_ways():
    """More warps run the two ways than come to the branch."""
    segments = [
        segment([("BRA", 0)], [1, 2]),
        segment([("LDG", 1)], [3]),
        segment([("LDG", 2)], [3]),
        segment([("STG", 3), ("EXIT", -1)], []),
    ]
    counted = [ptx("bra.uni", 0, 100), ptx(LOAD, 1, 90, 2), ptx(LOAD, 2, 80, 3)]
    found = runs(segments, [*counted, ptx(STORE, 3, 100, 4)])
    assert found == pytest.approx([100, 90, 80, 100], rel=0.02)


def test_a_loop_around_another_runs_as_often_as_its_arithmetic():
    segments = [
        segment([("S2R", 0)], [1]),
        segment([("LOP3", n) for n in (1, 2, 3, 4)], [2]),
        segment([("LDG", 5), ("BRA", -1)], [3, 2]),
        segment([("BRA", -1)], [4, 1]),
        segment([("EXIT", -1)], []),
    ]
    counted = [ptx("mov.u32", 0, 100), *arithmetic((1, 2, 3, 4), 800, 2, (2,), above=1)]
    counted.append(ptx(LOAD, 5, 800, 3, (3, 2), above=2))
    assert runs(segments, counted) == pytest.approx([100, 800, 800, 800, 100], rel=0.02)


def loop(before, inside):
    return [
        segment(before, [1]),
        segment([*inside, ("BRA", -1)], [2, 1]),
        segment([("EXIT", -1)], []),
    ]


OWN = [("S2R", 0), ("LOP3", 8), ("LOP3", 9)]
BODY = [("LOP3", n) for n in (1, 2, 3, 4)]
STEPS = arithmetic((1, 2, 3, 4, 5, 6, 7), 700, 2, (2,), above=1)
FIRST = [ptx("mov.u32", 0, 100), *arithmetic((8, 9), 100)]


@pytest.mark.parametrize(
    ("before", "inside"),
    [
        (OWN, BODY),
        ([*OWN, ("LOP3", 5), ("LOP3", 6), ("LOP3", 7)], BODY),  # moved out of the loop
        ([*OWN, ("LOP3", 1), ("LOP3", 2), ("LOP3", 3)], BODY),  # made ready for the first step
        (OWN, [*BODY, ("LOP3", 8)]),  # computed again in each step
    ],
)
def test_what_ptxas_moves_does_not_count(before, inside):
    assert runs(loop(before, inside), FIRST + STEPS) == pytest.approx([100, 700, 100], rel=0.02)


def test_a_block_in_parts_is_no_copy_of_itself():
    """Two halves of a block, between them a branch; one instruction became one in each half."""
    segments = [
        segment([("LOP3", n) for n in (1, 2, 3, 4)] + [("BRA", -1)], [1, 2]),
        segment([("LDG", 9)], [2]),
        segment([("LOP3", n) for n in (4, 5, 6, 7)], []),
    ]
    counted = arithmetic(range(1, 8), 100)
    assert runs(segments, [*counted, ptx(LOAD, 9, 30, 2)]) == pytest.approx(
        [100, 30, 100], rel=0.02
    )


@pytest.mark.parametrize(("opcode", "each"), [("xor.b64", 2), ("xor.b32", 1)])
def test_halves_of_64_bits_are_no_copies(opcode, each):
    counted = [ptx("mov.u32", 0, 100), *(ptx(opcode, n, 700, 2, (2,), above=1) for n in (1, 2, 3))]
    inside = [("LOP3", n) for n in (1, 2, 3) for _ in range(each)]
    assert runs(loop([("S2R", 0)], inside), counted)[1] == pytest.approx(700, rel=0.02)


def test_code_that_never_ran_does_not_run():
    """The slow way of a division, beside the fast one: both are on one line."""
    segments = [
        segment([("BRA", 0)], [1, 2]),
        segment([("CALL", 1), ("BRA", -1)], [3]),
        segment([("MUFU", 2), *[("IMAD", 2)] * 14], [3]),
        segment([("EXIT", -1)], []),
    ]
    counted = [ptx("bra.uni", 0, 100), ptx("div.u64", 1, 0, 2), ptx("div.u32", 2, 100, 3)]
    assert runs(segments, counted) == pytest.approx([100, 0, 100, 100], abs=2)


@pytest.mark.parametrize("most", [system.MOST_UNKNOWNS, 1])
def test_code_with_very_many_segments(monkeypatch, most):
    """Also in code with more edges than are solved for, where each instruction counts by itself."""
    monkeypatch.setattr(system, "MOST_UNKNOWNS", most)
    segments = [*branch(BODY), segment([("EXIT", -1)], [])]
    segments[2] = segment([("LDG", 5), ("LDG", 6)], [3])
    counted = [ptx("bra.uni", 0, 100), *arithmetic((1, 2, 3, 4), 60, 2)]
    counted += [ptx(LOAD, n, 100, 3) for n in (5, 6)]
    assert runs(segments, counted) == pytest.approx([100, 60, 100, 100], rel=0.02)


@pytest.mark.parametrize("fused", [False, True])
def test_a_product_and_a_sum_are_one_instruction_or_two(fused):
    inside = [("LDS", 1), ("FFMA", 3)] if fused else [("LDS", 1), ("FMUL", 2), ("FADD", 3)]
    counted = [ptx("mov.u32", 0, 100), ptx("ld.shared.f32", 1, 800, 2, (2,), above=1)]
    counted += [ptx(f"{name}.f32", n, 800, 2, (2,)) for n, name in ((2, "mul"), (3, "add"))]
    found = runs(loop([("S2R", 0)], inside), counted)
    assert found == pytest.approx([100, 800, 100], rel=0.01)


@pytest.mark.parametrize(
    ("kind", "turns"),
    [("f32", True), ("f16", True), ("bf16x2", True), ("u32", False), ("u64", True), ("f64", True)],
)
def test_lanes_that_add_in_shared_memory_take_turns(kind, turns):
    """ptxas makes a loop of ATOMS.CAS for floats and for 64 bits."""
    one = ptx(f"atom.shared.add.{kind}", 1, 100, 2, swaps=700)
    assert is_swap(one.instruction) == turns
    inside = [("LDS", 1), ("FADD", 1), ("ATOMS", 1)]
    found = runs(loop([("S2R", 0)], inside), [ptx("mov.u32", 0, 100), one])
    assert found == pytest.approx([100, 700 if turns else 100, 100], rel=0.02)


def test_words_of_64_bits_are_swapped_or_compared_by_one_instruction():
    assert not any(is_swap(Instruction(f"atom.shared.{way}.b64", ())) for way in ("cas", "exch"))


@pytest.mark.parametrize("calls", [0, 70])
def test_a_slow_path_runs_as_often_as_it_is_called(calls):
    divided = ptx("div.rn.f32", 1, 300, 1, (1,), slow_paths=calls)
    segments = [
        segment([("MUFU", 1), ("FCHK", 1), *[("FFMA", 1)] * 5, ("BRA", 1)], [1, 2]),
        segment([("CALL", 1), *[("LOP3", 1)] * 30], [2]),
        segment([("BRA", -1)], [3, 0]),
        segment([("EXIT", -1)], []),
    ]
    assert runs(segments, [divided]) == pytest.approx([300, calls, 300, 100], rel=0.02, abs=2)


def test_a_guarded_exit_lets_no_more_warps_on_than_come():
    """A long loop behind it does not make up warps that enter it."""
    segments = [
        segment([("S2R", 0)] * 10 + [("EXIT", -1)], [1]),
        segment([("ISETP", -1)] * 4 + [("BRA", -1)], [2, 4]),
        segment([("I2F", -1)] * 20, [3]),
        segment([("LDG", 1), ("BRA", -1)], [4, 3]),
        segment([("STG", 2), ("EXIT", -1)], []),
    ]
    counted = [ptx(LOAD, 1, 10800, 2, (2,)), ptx(STORE, 2, 100, 3)]
    assert runs(segments, counted) == pytest.approx([100, 100, 100, 10800, 100], rel=0.02)
    few = [segments[0], segment([("LDG", 1), ("EXIT", -1)], [])]
    assert runs(few, [ptx(LOAD, 1, 30)]) == pytest.approx([100, 30], rel=0.02)


def test_a_guarded_instruction_is_issued_where_the_ptx_jumps_over_it():
    """One warp of eight stores; all of them run the loop."""
    segments = loop([("S2R", 0)], [("LDG", 1), ("STG", 2, (), True)])
    before, store = ptx("mov.u32", 0, 100), ptx(STORE, 2, 100, 3, (2,))
    found = runs(segments, [before, ptx(LOAD, 1, 800, 2, (2,)), store])
    assert found == pytest.approx([100, 800, 100], rel=0.01)
    assert runs(segments, [before, store])[1] == pytest.approx(100, rel=0.02)


def test_an_execution_of_no_lane_takes_an_issue_and_a_place_in_its_pipe():
    for name, passes in (("STS", 1), ("LDG", 1), ("FADD", 0)):
        assert clocks_of_no_lane(code(name)) == {"issue": 0.25, "memory": passes}


def test_exact_executions_of_what_a_predicate_leaves_out():
    """10 runs of a segment: a store is executed in 4, a load as often as ptxas has left of it, a
    tile's load is four instructions.
    """
    made = [("STG", 1), ("LDS", 2), *[("LDG", 3)] * 4]
    counted = [ptx(STORE, 1, 4), ptx("ld.shared.f32", 2, 40)]
    counted.append(ptx("wmma.load.a.sync", 3, 10, global_load_requests=10))
    found = corrections((segment(made, []),), np.array([10.0]), counted)
    assert found == {(1, "global store"): 0.4, (2, "shared load"): 1.0, (3, "global load"): 0.25}


def test_each_load_knows_its_ptx():
    counted = [ptx(LOAD, 1, 10), ptx("ld.shared.f32", 2, 10), ptx(LOAD, 3, 10)]
    one = segment([("LDG", 3), ("LDS", 2), ("IMAD", 1), ("LDG", 1)], [])
    found = loads_of((one,), counted)
    assert found == {id(one.code[0]): counted[2], id(one.code[3]): counted[0]}


SEARCH = """extern "C" __global__ void search(const int* x, int* y, int n, int wanted)
{
    int found = -1;
    for (int i = 0; i < n; ++i) {
        if (x[i * 32 + threadIdx.x] == wanted) {
            found = i;
            for (int k = 0; k < 5; ++k) found = found * found % 10007 + y[k];
            BEHIND
        }
        y[32 + i] = i;
    }
    y[threadIdx.x] = found;
}"""


@pytest.mark.turns(2)
@pytest.mark.parametrize(
    ("steps", "behind", "times"),
    [
        (range(32), "break;", 32),
        (range(32), "y[64 + threadIdx.x] = found; return;", 32),
        ([7] * 32, "break;", 1),
    ],
)
def test_lanes_that_leave_a_loop_apart_run_what_is_behind_the_exit_apart(steps, behind, times):
    x, y = np.zeros((40, 32), np.int32), np.zeros(128, np.int32)
    x[list(steps), range(32)] = 1
    kernel = RawKernel(SEARCH.replace("BEHIND", behind), "search", backend="simulator")
    with observe(Time("h200")) as seen:
        kernel((1,), (32,), (x, y, 40, 1))
    counted = seen._counted(seen._launch, 1.0)
    loads = [one for one in counted if one.line == 7 and one.kind == "global load"]
    assert sum(one.executions for one in loads) == 5 * times
    (first,) = (one for one in counted if one.line == 5 and one.kind == "global load")
    assert first.executions == max(steps) + 1


def test_what_all_exits_of_a_loop_lead_to_runs_once():
    x, y = np.zeros((40, 32), np.int32), np.zeros(128, np.int32)
    x[range(32), range(32)] = 1
    source = SEARCH.replace("BEHIND", "break;").replace("found * found % 10007 + y[k]", "k")
    kernel = RawKernel(source, "search", backend="simulator")
    with observe(Time("h200")) as seen:
        kernel((1,), (32,), (x, y, 40, 1))
    stores = [one for one in seen._counted(seen._launch, 1.0) if one.line == 12 and one.kind]
    assert [one.executions for one in stores] == [1]


def test_generic_loads_are_of_the_memory_that_they_reached():
    """As wmma.load has them: of shared memory, and of global memory."""
    segments = (segment([("LD", 0), ("LD", 1), ("ST", 2), ("LDG", 3)], []),)
    counted = [
        ptx("wmma.load.a.sync", 0, 10, shared_load_requests=40),
        ptx("wmma.load.b.sync", 1, 10, global_load_requests=40),
        ptx("st.u32", 2, 10, shared_store_requests=10),
        ptx(LOAD, 3, 10),
    ]
    (found,) = with_spaces(segments, counted)
    assert [one.name for one in found.code] == ["LDS", "LD", "STS", "LDG"]
    assert [one.name for one in segments[0].code] == ["LD", "LD", "ST", "LDG"]
    assert with_spaces(segments[:0], counted) == ()


NESTED = """extern "C" __global__ void nested(const int* x, int* y, int n, int wanted)
{
    int sum = 0;
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
            if (x[j * 32 + threadIdx.x] == wanted) break;
            if (x[j * 32 + threadIdx.x] == -wanted) return;
            y[32 + j] = j;
        }
        sum = sum * y[i] + i;
        y[64 + i] = sum;
    }
    y[threadIdx.x] = sum;
}"""


@pytest.mark.turns(5)
def test_what_follows_a_loop_with_a_return_in_it_runs_once():
    """Lanes leave the inner loop apart, but meet behind it: those that return are gone."""
    x, y = np.zeros((40, 32), np.int32), np.zeros(128, np.int32)
    x[range(32), range(32)] = 1
    kernel = RawKernel(NESTED, "nested", backend="simulator")
    with observe(Time("h200")) as seen:
        kernel((1,), (32,), (x, y, 40, 1))
    counted = seen._counted(seen._launch, 1.0)
    for line in (10, 11, 13):
        runs = max(one.executions for one in counted if one.line == line and one.kind)
        assert runs == (1 if line == 13 else 40)
