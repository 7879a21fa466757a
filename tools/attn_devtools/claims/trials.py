"""The claims on trial: the experiment of each, and the rule that turns numbers into a verdict.

The words of the claims, by the same names, are in claims.toml.
"""

import tomllib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from attn_course.lessons.claims import FAILS, HOLDS, HOLDS_WHEN

from . import counted, recorded
from .claim import Claim

WORDS = Path(__file__).with_name("claims.toml")
Values = dict[str, float]
Condition = Callable[[Values], bool]


def _never(found: Values) -> bool:
    return False


def _rule(holds: Condition, holds_when: Condition = _never) -> Callable[[Values], str]:
    """A rule: holds on the first condition, else holds only when on the second, else fails."""
    return lambda found: HOLDS if holds(found) else HOLDS_WHEN if holds_when(found) else FAILS


def _near(what: str, printed: float, share: float) -> Callable[[Values], str]:
    """A rule: holds where a value is within a share of what was printed."""
    return _rule(lambda found: abs(found[what] / printed - 1) <= share)


def _each(held: Sequence[bool]) -> str:
    """Return the verdict on a claim about several cases: it holds in all, in some or in none."""
    return HOLDS if all(held) else HOLDS_WHEN if any(held) else FAILS


def _gains_match(found: Values) -> str:
    """A rule for gains beside printed ones: within a quarter of each other at every size."""
    pairs = [(found[name], found[f"{name}, printed"]) for name in found if "printed" not in name]
    return _each([abs(ours / theirs - 1) <= 0.25 for ours, theirs in pairs])


def _batches(found: Values) -> str:
    """Launch overhead would make the ratio grow with the batch, in their row as in ours."""
    printed = [found[f"batch {n}, printed"] for n in (1, 4, 8)]
    return HOLDS if printed == sorted(printed) else FAILS


def _gains_reach(least: float) -> Callable[[Values], str]:
    """A rule: every gain that we measured is this large."""
    return lambda found: _each([found[name] >= least for name in found if "printed" not in name])


def _handles(found: Values) -> str:
    """The handle is the cause if the MLP loses to PyTorch with it, and not without it."""
    tokens = [name.removesuffix(", PyTorch") for name in found if name.endswith(", PyTorch")]
    loses = [found[f"{n}, handle made"] / found[f"{n}, PyTorch"] > 1.1 for n in tokens]
    keeps_up = [found[f"{n}, handle kept"] / found[f"{n}, PyTorch"] <= 1.1 for n in tokens]
    return _each([one and other for one, other in zip(loses, keeps_up, strict=True)])


def _largest_of_tiles(found: Values) -> str:
    """A tile of 16 reaches the largest occupancy, and alone does so."""
    most = [name for name, share in found.items() if share == max(found.values())]
    return FAILS if "TILE 16" not in most else HOLDS if len(most) == 1 else HOLDS_WHEN


# name -> (experiment, rule), in the order of claims.toml
TRIALS = {
    "shared_100_times": (
        recorded.shared_over_global,
        _rule(lambda found: found["latency ratio"] >= 50),
    ),
    "five_clocks": (recorded.shared_latency, _near("latency, shared", 5, 0.5)),
    "strided_is_efficient": (
        counted.strided_loads,
        _rule(lambda found: found["strided"] <= 2 * found["along the row"]),
    ),
    "no_bank_conflicts": (
        counted.conflicts,
        _rule(
            lambda found: not found["the guide's layout"] and not found["the essay's layout"],
            lambda found: not found["the guide's layout"],
        ),
    ),
    "try_tile_64": (counted.tile_64, _rule(lambda found: not found["refused"])),
    "operations_58_million": (
        counted.operations,
        _rule(_never, lambda found: found["multiply-adds"] / 58e6 < 1.05),
    ),
    "attention_bound_by_memory": (
        counted.bound_by_memory,
        _rule(
            lambda found: found["in one kernel"] < found["where the roofs meet"],
            lambda found: found["in three kernels"] < found["where the roofs meet"],
        ),
    ),
    "restrict_reorders": (
        counted.restrict,
        _rule(
            lambda found: (
                found["instructions, plain pointers"] != found["instructions, __restrict__"]
            )
        ),
    ),
    "unroll_removes_the_loop": (
        counted.unrolling,
        _rule(lambda found: not found["the same code with it"]),
    ),
    "six_percent": (recorded.six_percent, _near("the whole faster", 1.06, 0.02)),
    "quarter_operation_a_byte": (counted.intensity, _near("the whole", 0.25, 0.5)),
    "half_operation_a_byte": (
        counted.intensity_of_queries,
        _rule(
            lambda found: found["64 queries, 64 keys"] < 0.75,
            lambda found: abs(found["1 query, 64 keys"] / 0.48 - 1) < 0.25,
        ),
    ),
    "infinite_compute": (
        recorded.wider_gain_8192,
        _rule(lambda found: found["over the floor"] < 2),
    ),
    "online_softmax_gain": (
        recorded.online_gains,
        _rule(lambda found: found["blocks of keys, at most"] != 1),
    ),
    "warp_reduction_gain": (
        partial(recorded.gains, "rows_atomic", "rows_warp", recorded.LOG_GAINS),
        _gains_match,
    ),
    "atomics_32_times": (recorded.both_reductions, _gains_reach(32)),
    "tensor_cores_slower": (
        recorded.tensor_gain,
        _rule(lambda found: found["tensor-core instructions"] > 0),
    ),
    "shared_48_kb": (counted.shared_limit, _rule(lambda found: found["sm_80"] <= 48)),
    "double_buffer_overflows": (
        recorded.double_buffers,
        _rule(_never, lambda found: found["whole rows refused"] and found["slices run"]),
    ),
    "atomic_max_on_bits": (
        counted.atomic_max,
        _rule(
            _never,
            lambda found: (
                found["2.0 above 1.0 as bits"] and not found["right with negative scores"]
            ),
        ),
    ),
    "speedup_7_76": (
        recorded.speedup_776,
        _near("tiled against the best of PyTorch", 7.76, 0.25),
    ),
    "launch_overhead_below_4": (recorded.small_batches, _batches),
    "bound_by_memory_at_0_4_percent": (
        recorded.bandwidth_share,
        _rule(lambda found: found["tiled, share of the bandwidth"] > 60),
    ),
    "profile_percentages": (recorded.profile_numbers, _rule(lambda found: found["DRAM"] > 60)),
    "operations_a_head": (
        counted.operations_a_head,
        _near("Q K^T, one head of 64", 402e6, 0.05),
    ),
    "linear_traffic": (
        counted.traffic,
        _rule(
            lambda found: found["sectors read, 2 L over L"] < 2.5,
            lambda found: found["different bytes read, 2 L over L"] < 2.5,
        ),
    ),
    "tile_16_occupancy": (counted.tile_occupancy, _largest_of_tiles),
    "gelu_error": (
        counted.gelu_error,
        _rule(
            _never,
            lambda found: (
                abs(found["weights of variance 1: error"] / 2.32e-2 - 1) < 0.25
                and found["weights as torch.nn.Linear draws them: error"] < 1e-3
            ),
        ),
    ),
    "first_warp_found": (
        counted.first_warp,
        _rule(
            lambda found: (
                not found["right against float64"] and not found["findings of the sanitizer"]
            )
        ),
    ),
    "mlp_handle": (recorded.handle_cost, _handles),
    "layer_norm_2_to_7": (recorded.layer_norm, _gains_reach(2)),
}


CLAIMS = tuple(
    Claim(name, **words, experiment=TRIALS[name][0], judge=TRIALS[name][1])
    for name, words in tomllib.loads(WORDS.read_text(encoding="utf-8")).items()
)
