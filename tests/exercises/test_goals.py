"""Goals: bounds on both sides, atomics among the traffic, and the words of a miss."""

from dataclasses import replace

import pytest
from kernelscope.watch.counters.counters import NAMES

from attn_course.exercises import read_exercise
from attn_course.exercises.examination import compiled, examine, judge
from attn_course.exercises.setups import TRAFFIC, at_least, at_most, exactly, tile_stores

TOTALS = dict.fromkeys(NAMES, 0) | {"global_load_sectors": 10, "shared_store_requests": 4}
ATOMICS = TOTALS | {"global_atomic_sectors": 3, "shared_atomic_requests": 9}


@pytest.mark.parametrize(
    ("goal", "bound", "message"),
    [
        (at_most("global_load_sectors", 10, "so"), "<= 10", ""),
        (
            at_most("global_load_sectors", 9, "so"),
            "<= 9",
            "global_load_sectors is 10; the goal is at most 9: so",
        ),
        (at_least("shared_store_requests", 4, "so"), ">= 4", ""),
        (
            at_least("shared_store_requests", 1234, "so"),
            ">= 1,234",
            "shared_store_requests is 4; the goal is at least 1,234: so",
        ),
        (exactly("global_load_sectors", 10, "so"), "= 10", ""),
        (
            exactly("global_load_sectors", 11, "so"),
            "= 11",
            "global_load_sectors is 10; the goal is exactly 11: so",
        ),
        (
            exactly("global_load_sectors", 8, "so"),
            "= 8",
            "global_load_sectors is 10; the goal is exactly 8: so",
        ),
    ],
)
def test_a_goal_names_the_count_the_bound_and_the_reason(goal, bound, message):
    assert goal.bound == bound and goal.missed(TOTALS) == message


@pytest.mark.parametrize(
    ("goal", "message"),
    [
        (
            at_most("global_load_sectors", 12, ""),
            "is 13, 3 of them by atomics; the goal is at most",
        ),
        (at_most("global_store_sectors", 2, ""), "is 3, 3 of them by atomics; "),
        (
            at_least("shared_store_requests", 5, ""),
            "is 4 beside 9 by atomics; the ",
        ),
        (
            exactly("global_load_sectors", 10, ""),
            "is 13, 3 of them by atomics; ",
        ),
        (exactly("global_load_sectors", 13, ""), "is 10 beside 3 by atomics; the goal is exactly"),
        (at_most("barriers", 0, ""), ""),
    ],
)
def test_atomics_count_against_a_goal_and_never_for_it(goal, message):
    missed = goal.missed(ATOMICS)
    assert message in missed and bool(missed) == bool(message)


def test_every_count_of_loads_and_stores_has_its_atomics():
    others = {name for names in TRAFFIC.values() for name in names}
    assert {*TRAFFIC, *others} <= set(NAMES)
    counted = {name for name in NAMES if "_load_" in name or "_store_" in name}
    own = {"local_load_requests", "local_store_requests"}  # no atomics
    assert counted - own - others - {"bulk_load_bytes", "bulk_store_bytes"} == set(TRAFFIC)


@pytest.mark.parametrize("goal", [at_most, at_least, exactly])
def test_a_goal_of_an_unknown_counter_is_refused(goal):
    with pytest.raises(ValueError, match="no counter 'sectors'; the counters are: instructions"):
        goal("sectors", 1, "")


def test_a_kernel_that_reads_by_atomics_misses_a_goal_of_loads():
    exercise = read_exercise("add_ten")
    text = """extern "C" __global__ void add_ten(const float* x, float* out, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = 10.0f + x[i] +
                        atomicAdd((float*)&x[i], 0.0f) - x[i];
}"""
    found = judge(exercise, text)
    assert found.first.property == "counters" and found.first.counter == "global_load_sectors"
    assert "of them by atomics; the goal is at most" in found.first.message
    assert found.first.line == 4


def test_a_goal_of_loads_holds_bulk_copies_too():
    totals = dict.fromkeys(NAMES, 0) | {"global_load_sectors": 4, "bulk_load_sectors": 8}
    assert not at_most("global_load_sectors", 12, "few").too_many(totals)
    missed = at_most("global_load_sectors", 11, "few").missed(totals)
    assert missed.startswith("global_load_sectors is 12, 8 of them by atomics and bulk copies; the")
    assert not at_most("global_store_sectors", 0, "none").too_many(totals)


def test_the_method_is_judged_beside_a_wrong_result_and_goals_are_not():
    exercise = read_exercise("add_ten")
    setup = exercise.setups[-1]
    wrong = exercise.solution.replace("10", "11")
    goals = (at_most("global_load_sectors", 0, "goal"),)
    method = (at_least("shared_store_requests", 1, "method"),)
    failures, _ = examine(compiled(exercise, wrong), replace(setup, goals=goals, method=method))
    assert [one.property for one in failures] == ["agrees", "counters"]
    assert failures[1].method and failures[1].line == 0
    assert failures[1].message == ("shared_store_requests is 0; the goal is at least 1: method")
    assert all(one.label == setup.label for one in failures)


@pytest.mark.parametrize(
    ("shape", "requests", "sectors"),
    [((1, 1), 1, 1), ((16, 16), 8, 32), ((3, 17), 4, 11), ((2, 3, 16), 4, 12)],
)
def test_the_stores_of_tiles(shape, requests, sectors):
    assert tile_stores(*shape) == (requests, sectors)


@pytest.mark.turns(29)
@pytest.mark.system
def test_products_under_copies_are_those_between_a_copy_and_its_wait():
    exercise = read_exercise("copy_ahead")
    assert judge(exercise, exercise.solution).counters["products_under_copies"][:2] == (1024, 1024)
    found = judge(exercise, exercise.solution.replace("wait<1>", "wait<0>")).first
    assert (found.property, found.counter) == ("counters", "products_under_copies")
    assert "products_under_copies is 0; the goal is at least 64: a tile's" in found.message


@pytest.mark.turns(23)
@pytest.mark.system
def test_the_stores_of_tiles_are_those_that_are_counted():
    counted = judge(read_exercise("outer_sum"), read_exercise("outer_sum").solution).counters
    for name in ("global_store_requests", "global_store_sectors"):
        mine, theirs, bound = counted[name]
        assert mine == theirs == int(bound.split()[-1].replace(",", ""))
