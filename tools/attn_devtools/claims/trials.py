"""The claims on trial: the experiment of each, and the rule that turns numbers into a verdict.

A rule compares the interval of a measured number with a limit. The verdict is "not decided" where
the limit is inside the interval. A counted or computed number is exact: its interval is a point.
The words of the claims, by the same names, are in claims.toml.
"""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from attn_course.lessons.claims import FAILS, HOLDS, HOLDS_WHEN, UNDECIDED, Evidence

from . import counted, recorded
from .claim import Claim

WORDS = Path(__file__).with_name("claims.toml")
Found = Mapping[str, Evidence]  # by what it is
Judge = Callable[[Found], str]
Condition = Callable[[dict[str, float]], bool]
Answer = bool | None  # None: the limit is inside the interval
# A recorded number without a spread must miss a limit by this factor to decide.
WITHOUT_SPREAD = 1.25


# -- conditions on an interval ---------------------------------------------------------------------
def interval(one: Evidence) -> tuple[float, float]:
    """Return what a rule compares with its limit; without a spread of its own a wide interval."""
    if one.low is not None and one.high is not None:
        return one.low, one.high
    factor = 1.0 if one.exact else WITHOUT_SPREAD
    return one.value / factor, one.value * factor


def at_least(one: Evidence, limit: float) -> Answer:
    """Is a number at least as large as a limit?"""
    low, high = interval(one)
    return True if low >= limit else False if high < limit else None


def below(one: Evidence, limit: float) -> Answer:
    """Is a number smaller than a limit?"""
    reached = at_least(one, limit)
    return None if reached is None else not reached


def within(one: Evidence, printed: float, share: float) -> Answer:
    """Is a number within a share of what was printed?"""
    (low, high), least, most = interval(one), printed * (1 - share), printed * (1 + share)
    return True if least <= low and high <= most else False if high < least or low > most else None


def both(one: Answer, other: Answer) -> Answer:
    """Are two conditions true?"""
    return False if False in (one, other) else None if None in (one, other) else True


# -- rules -----------------------------------------------------------------------------------------
def _never(values: dict[str, float]) -> bool:
    return False


def _exact(holds: Condition, holds_when: Condition = _never) -> Judge:
    """A rule for exact numbers: holds, else holds only when, else fails."""

    def judge(found: Found) -> str:
        values = {what: one.value for what, one in found.items()}
        return HOLDS if holds(values) else HOLDS_WHEN if holds_when(values) else FAILS

    return judge


def _measured(holds: Callable[[Found], Answer]) -> Judge:
    """A rule for a measured number: one condition decides, or nothing does."""
    return lambda found: {True: HOLDS, False: FAILS, None: UNDECIDED}[holds(found)]


def _each(held: Sequence[Answer]) -> str:
    """Return the verdict on a claim about several cases: it holds in all, in some or in none.

    Not decided: an open case would change the verdict.
    """
    if None not in held:
        return HOLDS if all(held) else HOLDS_WHEN if any(held) else FAILS
    return HOLDS_WHEN if True in held and False in held else UNDECIDED


def _ours(found: Found) -> dict[str, Evidence]:
    """Return the measured cases, without the printed ones."""
    return {what: one for what, one in found.items() if "printed" not in what}


def _gains_match(found: Found) -> str:
    """A rule for gains beside printed ones: within a quarter of each other at every size."""
    printed = {what: found[f"{what}, printed"].value for what in _ours(found)}
    return _each([within(one, printed[what], 0.25) for what, one in _ours(found).items()])


def _batches(found: Found) -> str:
    """Launch overhead would make the ratio grow with the batch, in their row as in ours."""
    printed = [found[f"batch {n}, printed"].value for n in (1, 4, 8)]
    return HOLDS if printed == sorted(printed) else FAILS


def _gains_reach(least: float) -> Judge:
    """A rule: every gain that we measured is this large."""
    return lambda found: _each([at_least(one, least) for one in _ours(found).values()])


def _handles(found: Found) -> str:
    """The handle is the cause if the MLP loses with it and not without it, at every size.

    And it is the cause of the loss that was printed if it costs at least half as much.
    """
    half = found["the loss, printed"].value / 2
    held = []
    for what, kept in found.items():
        if what.endswith(", kept over eager PyTorch"):
            tokens = what.partition(",")[0]
            keeps_up = below(kept, 1.1)
            loses = at_least(found[f"{tokens}, made over eager PyTorch"], 1.1)
            held += [both(loses, keeps_up), at_least(found[f"{tokens}, cost of a handle"], half)]
    return _each(held)


def _largest_of_tiles(found: Found) -> str:
    """A tile of 16 reaches the largest occupancy, and alone does so."""
    share = {name: one.value for name, one in found.items()}
    most = [name for name, one in share.items() if one == max(share.values())]
    return FAILS if "TILE 16" not in most else HOLDS if len(most) == 1 else HOLDS_WHEN


# name -> (experiment, rule), in the order of claims.toml
TRIALS = {
    "shared_100_times": (
        recorded.shared_over_global,
        _measured(lambda found: at_least(found["latency ratio"], 50)),
    ),
    "five_clocks": (
        recorded.shared_latency,
        _measured(lambda found: within(found["latency, shared"], 5, 0.5)),
    ),
    "strided_is_efficient": (
        counted.strided_loads,
        _exact(lambda found: found["strided"] <= 2 * found["along the row"]),
    ),
    "no_bank_conflicts": (
        counted.conflicts,
        _exact(
            lambda found: not found["the guide's layout"] and not found["the essay's layout"],
            lambda found: not found["the guide's layout"],
        ),
    ),
    "try_tile_64": (counted.tile_64, _exact(lambda found: not found["refused"])),
    "operations_58_million": (
        counted.operations,
        _exact(_never, lambda found: found["multiply-adds"] / 58e6 < 1.05),
    ),
    "attention_bound_by_memory": (
        counted.bound_by_memory,
        _exact(
            lambda found: found["in one kernel"] < found["where the roofs meet"],
            lambda found: found["in three kernels"] < found["where the roofs meet"],
        ),
    ),
    "restrict_reorders": (
        counted.restrict,
        _exact(
            lambda found: (
                found["instructions, plain pointers"] != found["instructions, __restrict__"]
            )
        ),
    ),
    "unroll_removes_the_loop": (
        counted.unrolling,
        _exact(
            lambda found: found["multiply-adds, pragma"] > found["multiply-adds, no pragma"],
            lambda found: found["multiply-adds, pragma"] > found["multiply-adds, unroll 1"],
        ),
    ),
    "six_percent": (
        recorded.six_percent,
        _measured(lambda found: within(found["the whole faster"], 1.06, 0.02)),
    ),
    "quarter_operation_a_byte": (
        counted.intensity,
        _measured(lambda found: within(found["the whole"], 0.25, 0.5)),
    ),
    "half_operation_a_byte": (
        counted.intensity_of_queries,
        _exact(
            lambda found: found["64 queries, 64 keys"] < 0.75,
            lambda found: abs(found["1 query, 64 keys"] / 0.48 - 1) < 0.25,
        ),
    ),
    "infinite_compute": (
        recorded.wider_gain_8192,
        _measured(lambda found: below(found["over the floor"], 2)),
    ),
    "online_softmax_gain": (
        recorded.online_gains,
        _exact(lambda found: found["blocks of keys, at most"] != 1),
    ),
    "warp_reduction_gain": (
        partial(recorded.gains, "rows_atomic", "rows_warp", recorded.LOG_GAINS),
        _gains_match,
    ),
    "atomics_32_times": (recorded.both_reductions, _gains_reach(32)),
    "tensor_cores_slower": (
        recorded.tensor_gain,
        _exact(lambda found: found["tensor-core instructions"] > 0),
    ),
    "shared_48_kb": (counted.shared_limit, _exact(lambda found: found["sm_80"] <= 48)),
    "double_buffer_overflows": (
        recorded.double_buffers,
        _exact(_never, lambda found: found["whole rows refused"] and found["slices run"]),
    ),
    "atomic_max_on_bits": (
        counted.atomic_max,
        _exact(
            _never,
            lambda found: (
                found["2.0 above 1.0 as bits"] and not found["right with negative scores"]
            ),
        ),
    ),
    "speedup_7_76": (
        recorded.speedup_776,
        _measured(lambda found: within(found["eager PyTorch over tiled"], 7.76, 0.25)),
    ),
    "launch_overhead_below_4": (recorded.small_batches, _batches),
    "bound_by_memory_at_0_4_percent": (
        recorded.bandwidth_share,
        _measured(lambda found: at_least(found["tiled, share of the bandwidth"], 60)),
    ),
    "profile_percentages": (
        recorded.profile_numbers,
        _measured(lambda found: at_least(found["DRAM"], 60)),
    ),
    "operations_a_head": (
        counted.operations_a_head,
        _measured(lambda found: within(found["Q K^T, one head of 64"], 402e6, 0.05)),
    ),
    "linear_traffic": (
        counted.traffic,
        _exact(
            lambda found: found["sectors read, 2 L over L"] < 2.5,
            lambda found: found["different bytes read, 2 L over L"] < 2.5,
        ),
    ),
    "tile_16_occupancy": (counted.tile_occupancy, _largest_of_tiles),
    "gelu_error": (
        counted.gelu_error,
        _exact(
            _never,
            lambda found: (
                abs(found["weights of variance 1: error"] / 2.32e-2 - 1) < 0.25
                and found["weights as torch.nn.Linear draws them: error"] < 1e-3
            ),
        ),
    ),
    "first_warp_found": (
        counted.first_warp,
        _exact(
            lambda found: not found["right, rows of 77"] and not found["right, rows of 32"],
            lambda found: not found["right, rows of 77"] or not found["right, rows of 32"],
        ),
    ),
    "mlp_handle": (recorded.handle_cost, _handles),
    "layer_norm_2_to_7": (recorded.layer_norm, _gains_reach(2)),
}


CLAIMS = tuple(
    Claim(name, **words, experiment=TRIALS[name][0], judge=TRIALS[name][1])
    for name, words in tomllib.loads(WORDS.read_text(encoding="utf-8")).items()
)
