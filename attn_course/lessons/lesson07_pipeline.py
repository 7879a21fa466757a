"""What lesson 07 computes: Amdahl's law, floors of single kernels, and counts of the simulator.

Nothing is timed here, and no time is written here: see :mod:`.pipeline_times`.
"""

from __future__ import annotations

import math

import numpy as np

from attn_course.engine.events import observe
from attn_course.engine.watch.footprints import LineLookups
from attn_course.ladder.attention import attention
from attn_course.ladder.call import run_steps
from attn_course.ladder.steps import Problem, step
from attn_course.measure.pipeline_times import KERNELS, Shape
from attn_course.measure.roofline import Work, step_work
from attn_course.reference.inputs import seeded_qkv

from .lesson06_reductions import Tally


# -- Amdahl's law ----------------------------------------------------------------------------------
def amdahl(share: float, factor: float) -> float:
    """How many times faster the whole gets when a part, `share` of its time, gets `factor` faster.

    factor may be infinite: the part then takes no time. Amdahl (1967), AFIPS 30, pages 483 to 485.

    Raises:
        ValueError: a share outside of 0 to 1, or a factor that is not positive.
    """
    if not 0 <= share <= 1 or not factor > 0:
        raise ValueError(f"share {share} must be from 0 to 1, factor {factor} positive")
    left = 1 - share + share / factor
    return math.inf if left == 0 else 1 / left


# -- floors ----------------------------------------------------------------------------------------
def kernel_work(name: str, problem: Problem) -> Work:
    """Operations and bytes of one of KERNELS."""
    return step_work(step(KERNELS[name][0]), problem)


def blocks_of(name: str, problem: Problem) -> tuple[int, int]:
    """Blocks that one of KERNELS launches, and threads of each."""
    number, options = KERNELS[name]
    launch = step(number).launch(problem, options)
    return math.prod(launch.grid), math.prod(launch.block)


# -- counted without a GPU -------------------------------------------------------------------------
def serial_lookups(keys: int, d: int = 64, rows: int = 128) -> float:
    """128-byte lines that kernel 04 looks up for each row and key, counted on the simulator.

    One block of `rows` rows; each warp's load of the scores touches a line a lane.
    """
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((1, rows, keys)).astype(np.float32)
    values = rng.standard_normal((1, keys, d)).astype(np.float32)
    with observe(LineLookups()) as lookups:
        run_steps(
            [step(4)],
            {"s": scores, "v": values},
            1.0,
            backend="simulator",
            problem=Problem(1, rows, keys, d),
        )
    return lookups.total / (rows * keys)


def longest_warp(method: str, shape: Shape) -> int:
    """Instructions of the busiest warp of each of a method's kernels, added up, on the simulator.

    A warp starts one instruction a clock at best, and the kernels run one after the other.
    """
    q, k, v = seeded_qkv(shape)
    with observe(Tally()) as tally:
        attention(q, k, v, method, backend="simulator")
    return tally.longest_warp
