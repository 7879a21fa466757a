"""The sanitizer where only some lanes of a warp, or some warps of a block, meet at a barrier."""

import numpy as np
import pytest
from kernelscope.watch import Sanitizer
from kernelscope.watch.sanitizer.races.meetings import (
    FULL,
    Meetings,
    NamedBarriers,
    WarpMeetings,
)
from watch_harness import kinds, run

START = """__shared__ int s[256]; const int t = threadIdx.x, lane = t % 32;
const unsigned half = lane < 16 ? 0xffffu : 0xffff0000u;
"""
BAR = 'asm volatile("bar.{} {}, {};" ::: "memory");'


def findings(body, **options):
    return run(START + body, Sanitizer(), **options).findings


def sync(number, threads):
    return BAR.format("sync", number, threads)


def arrive(number, threads):
    return BAR.format("arrive", number, threads)


ORDERS = pytest.mark.parametrize("warp_order", [None, 1], ids=["lockstep", "random warps"])

# -- __syncwarp() ----------------------------------------------------------------------------------
ORDERED = {
    "both sides of a branch": """
        if (lane < 16) { s[t] = 5; __syncwarp(); a[t] = s[t + 16]; __syncwarp(); s[t] = 6; }
        else { s[t] = 7; __syncwarp(); a[t] = s[t - 16]; __syncwarp(); s[t] = 8; }""",
    "one side waits twice": """
        if (lane < 16) { s[t] = 5; __syncwarp(); __syncwarp(); a[t] = s[t + 16]; }
        else { __syncwarp(); s[t] = s[t - 16]; __syncwarp(); a[t] = 1; }""",
    "three ways": """
        s[t] = t;
        if (lane < 10) { __syncwarp(); a[t] = s[t + 10]; }
        else if (lane < 20) { __syncwarp(); a[t] = s[t + 10]; }
        else { __syncwarp(); a[t] = s[t - 20]; }""",
    "halves that branch": """
        s[t] = t;
        if (t % 2) { __syncwarp(half); a[t] = s[t ^ 1]; __syncwarp(half); s[t] = 1; }
        else { __syncwarp(half); a[t] = s[t ^ 1]; __syncwarp(half); s[t] = 2; }""",
    "the whole warp, then halves": """
        s[t] = t; __syncwarp(); a[t] = s[t ^ 31]; __syncwarp(); s[t] = a[t]; __syncwarp(half);
        a[t] = s[t ^ 15]; __syncwarp(half); s[t] = 1; __syncwarp(); a[t] = s[t ^ 31];""",
    "over a lane that both met": """
        if (lane == 0) s[t] = 4;
        if (lane < 2) __syncwarp(3);
        if (lane == 1 || lane == 2) __syncwarp(6);
        if (lane == 2 || lane == 3) __syncwarp(12);
        if (lane == 3) s[t - 3] = 5;""",
    "lanes that have ended": """
        if (lane >= 16) { s[t] = a[t]; if (s[t] >= 0) { b[t] = 1; return; } }
        __syncwarp(); a[t] = s[t + 16];""",
    "in a loop with a branch": """
        s[t] = t;
        for (int i = 0; i < 6; ++i) {
            int v;
            if ((lane + i) % 3) { __syncwarp(); v = s[t ^ 1]; __syncwarp(); }
            else { __syncwarp(); v = s[t ^ 1] + 1; __syncwarp(); }
            s[t] = v;
        }""",
}
UNORDERED = {
    "halves do not meet": "s[t] = t; __syncwarp(half); a[t] = s[t ^ 16];",
    "the mask leaves a lane out": """
        if (lane == 31) s[t] = 4;
        if (lane < 31) { __syncwarp(0x7fffffff); a[t] = s[t | 31]; }""",
    "written behind the barrier": """
        if (lane < 16) { __syncwarp(); s[t] = 5; }
        else { __syncwarp(); a[t] = s[t - 16]; }""",
    "read behind the barrier, written again": """
        if (lane < 16) { s[t] = 5; __syncwarp(); s[t] = 6; }
        else { __syncwarp(); a[t] = s[t - 16]; }""",
    "the chain runs the other way": """
        if (lane == 0) s[t] = 4;
        if (lane == 1 || lane == 2) __syncwarp(6);
        if (lane < 2) __syncwarp(3);
        if (lane == 2) s[t - 2] = 5;""",
    "the other warp": "s[t] = t; __syncwarp(); a[t] = s[t ^ 32];",
}


@ORDERS
@pytest.mark.parametrize("name", ORDERED)
def test_lanes_that_met_are_in_no_race(name, warp_order):
    assert kinds(findings(ORDERED[name], warp_order=warp_order)) == []


@ORDERS
@pytest.mark.parametrize("name", UNORDERED)
def test_lanes_that_did_not_meet_race(name, warp_order):
    found = kinds(findings(UNORDERED[name], warp_order=warp_order))
    assert ("race", "error") in found
    assert {kind for kind, _ in found} <= {"race", "uninitialised-read"}


def test_lanes_that_never_come():
    """Those that wait are told of, and are ordered among themselves."""
    body = "s[t] = t; if (lane < 16) { __syncwarp(); a[t] = s[t ^ 1]; } b[t] = 1;"
    assert kinds(findings(body)) == [("divergent-barrier", "error")]


# -- shuffles and votes ----------------------------------------------------------------------------
MEETS = (
    "x = __shfl_sync(half, t, 0, 16)",
    "x = __ballot_sync(half, t)",
    "x = __any_sync(half, t)",
    "x = __match_any_sync(half, t)",
    "x = __reduce_add_sync(half, t)",
)


@pytest.mark.parametrize("meet", MEETS)
def test_instructions_that_make_lanes_meet_order_no_memory(meet):
    body = f"int x; s[t] = t; {meet}; a[t] = s[t ^ PARTNER] + x;"
    (near,) = findings(body.replace("PARTNER", "1"))
    assert (near.kind, near.severity) == ("race", "warning") and "shuffle or vote" in near.message
    assert kinds(findings(body.replace("PARTNER", "16"))) == [("race", "error")]


def test_activemask_makes_nobody_meet():
    body = "s[t] = t; int x = __activemask(); a[t] = s[t ^ 1] + x;"
    assert kinds(findings(body)) == [("race", "error")]


# -- barriers with a thread count ------------------------------------------------------------------
PIPE = f"""
    for (int k = 0; k < 4; ++k)
        if (t < 32) {{ {sync(1, 64)} s[lane] = k * t; {arrive(2, 64)} }}
        else {{ {arrive(1, 64)} {sync(2, 64)} b[k * 32 + lane] = s[31 - lane]; }}"""
# name: threads of the block, and the body
NAMED = {
    "both warps": f"64 s[t] = t; {sync(1, 64)} a[t] = s[t ^ 32];",
    "over a warp that both met": f"96 if (t < 32) s[t] = t; if (t < 64) {{ {sync(1, 64)} }}\n"
    f"if (t >= 32) {{ {sync(2, 64)} }} if (t >= 64) a[t] = s[t - 64];",
    "the whole block afterwards": f"128 s[t] = t; if (t < 64) {{ {sync(1, 64)} }} __syncthreads(); "
    "a[t] = s[127 - t];",
    "the whole block before": "128 s[t] = t; __syncthreads(); a[t] = s[127 - t]; "
    f"if (t < 64) {{ {sync(1, 64)} }}",
    "the whole block, but for a warp that has ended": f"128 s[t] = t; if (t < 64) {{ {sync(1, 64)} "
    "} if (t >= 96) return; __syncthreads();\na[t] = s[127 - t];",
    "two that arrive": f"96 if (t >= 32) {{ s[t] = t; }} if (t >= 64) {{ {arrive(1, 96)} }}\n"
    f"else if (t >= 32) {{ {arrive(1, 96)} }}\n"
    f"else {{ {sync(1, 96)} a[t] = s[t + 32] + s[t + 64]; }}",
    "a pipe": "64 " + PIPE,
}
NAMED_IN_VAIN = {
    "another pair of warps": f"128 s[t] = t; if (t < 64) {{ {sync(1, 64)} }} else {{ {sync(2, 64)} "
    "} a[t] = s[t ^ 64];",
    "the chain runs the other way": f"96 if (t < 32) s[t] = t; if (t >= 32) {{ {sync(2, 64)} }}\n"
    f"if (t < 64) {{ {sync(1, 64)} }} if (t >= 64) a[t] = s[t - 64];",
    "a pipe told too early that it is empty": "64 "
    + PIPE.replace(sync(2, 64), f"{sync(2, 64)} if (k < 3) {{ {arrive(1, 64)} }}").replace(
        f"{{ {arrive(1, 64)} {sync(2, 64)}", f"{{ if (!k) {arrive(1, 64)} {sync(2, 64)}"
    ),
    "who arrives comes after nobody": f"64 if (t < 32) {{ {arrive(1, 64)} a[t] = s[t + 32]; "
    f"}}\nelse {{ s[t] = t; {sync(1, 64)} }}",
    "lanes that did not take part": f"64 s[t] = t; if (t % 2) {{ {sync(1, 64)} "
    "a[t] = s[(t ^ 32) - 1]; }",
    "written after the arrival": f"64 if (t < 32) {{ {arrive(1, 64)} s[t] = t; }} "
    f"else {{ {sync(1, 64)} a[t] = s[t - 32]; }}",
    "an arrival at another barrier": f"128 if (t < 32) {{ s[t] = t; {arrive(2, 64)} }}\n"
    f"else if (t < 64) {{ {sync(1, 64)} a[t] = s[t - 32]; }}\n"
    f"else if (t < 96) {{ {sync(1, 64)} }} else {{ {sync(2, 64)} }}",
}


@pytest.mark.turns(23)
@pytest.mark.system
@ORDERS
@pytest.mark.parametrize("name", [*NAMED, *NAMED_IN_VAIN])
def test_barriers_with_a_count_order_those_who_take_part(name, warp_order):
    threads, _, body = (NAMED | NAMED_IN_VAIN)[name].partition(" ")
    found = {kind for kind, _ in kinds(findings(body, block=int(threads), warp_order=warp_order))}
    assert found - {"uninitialised-read"} == (set() if name in NAMED else {"race"})


# -- against plain sets ----------------------------------------------------------------------------
class History:
    """Who comes after what, written out: (member, time) pairs that each member comes after."""

    def __init__(self, members):
        self.seen = [set() for _ in range(members)]

    def act(self, member, time):
        self.seen[member].add((member, time))

    def meet(self, team):
        together = set().union(*(self.seen[m] for m in team))
        for member in team:
            self.seen[member] = set(together)


@pytest.mark.parametrize("seed", range(6))
def test_random_meetings(seed):
    rng = np.random.default_rng(seed)
    groups, count = 2, 5  # members 0 to 4 of each group take part
    members = [32 * g + m for g in range(groups) for m in range(count)]
    known, plain, acts = Meetings(32 * groups), History(32 * groups), []
    for time in range(2, 90):
        for m in rng.choice(members, 3):
            acts.append((time, m))
            plain.act(int(m), time)
        if rng.random() < 0.2:
            known.meet_all(time + 1)
            for g in range(groups):
                plain.meet(range(32 * g, 32 * g + 32))
        elif rng.random() < 0.6:
            teams = [32 * g + rng.choice(count, rng.integers(1, 4), False) for g in range(groups)]
            teams = [np.sort(team) for team in teams]
            masks = [np.full(t.size, sum(1 << int(m) % 32 for m in t), np.uint32) for t in teams]
            known.meet(np.concatenate(teams), np.concatenate(masks), time + 1)
            for team in teams:
                plain.meet(team.tolist())
        when, earlier = (np.array(part, np.int64) for part in zip(*acts, strict=True))
        for later in members:
            got = known.orders(when, earlier, np.full(when.size, later))
            same = earlier == later  # nobody asks about a member and itself
            want = np.array([(int(m), int(w)) in plain.seen[later] for w, m in acts])
            assert (got | same).tolist() == (want | same).tolist()


def test_a_mask_for_all_of_a_ragged_warp():
    """Lanes past the end of the block count as ended, whatever the mask says of them."""
    alive = np.arange(64) < 40
    lanes = np.flatnonzero(alive)
    for members in (FULL, np.full(40, FULL)):
        order = WarpMeetings(64)
        order.meet(lanes, members, alive, 9)
        time, later = np.array([5, 5, 9, 5]), np.array([33, 7, 33, 7])
        assert order.orders(time, np.array([39, 30, 39, 39]), later).tolist() == [
            True,
            True,
            False,
            False,
        ]


def test_an_arrival_whose_barrier_is_not_known():
    """Then it may have been at any barrier."""
    order = NamedBarriers(np.full(128, 1), 64)
    order.arrive(np.arange(32), None, 5)
    order.meet(np.arange(32, 64), 3, False, 8)
    asked = np.array([4, 5]), np.array([0, 0]), np.array([40, 40])
    assert order.orders(*asked).tolist() == [True, False]


def test_a_barrier_of_the_whole_block_orders_warps_that_have_ended():
    order = NamedBarriers(np.full(256, 1), 128)
    order.meet(np.arange(96), 0, True, 8)  # the last warp of the first block has ended
    time, earlier = np.array([7, 7, 8]), np.array([100, 130, 100])
    assert order.orders(time, earlier, np.full(3, 5)).tolist() == [True, False, False]
