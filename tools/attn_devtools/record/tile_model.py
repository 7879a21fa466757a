"""How fast each tile of `ladder.tiles` is, on problems that suit different tiles.

The lists of tiles and the prices of the model come from this record; it also tells how much is lost
where the model picks a tile that is not the fastest. The record as a table would be simpler: on a
problem that is not in it, the nearest one's fastest tile. A test shows that this loses far more.
"""

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

import numpy as np
from kernelscope.contest import ClockWatch, require_gpu

from attn_course.ladder.choose import current_device
from attn_course.ladder.problem import LARGEST_D, Device, Problem
from attn_course.ladder.steps import step
from attn_course.ladder.tiles import (
    PRICES,
    Prices,
    parsed_label,
    tile_candidates,
    tile_clocks,
    tile_label,
)
from attn_course.lessons.fused import measure_shape
from attn_course.measure.benchmarks import Shape
from attn_course.measure.candidates import Part
from attn_course.measure.records import new_record

from .compiling import compile_parts

KIND = "tiles"
# (B, H, n, d) and keys: the seven of the suite seeds_fp32, a Swin window, few queries, odd extents,
# long rows; then head dims that are split.
ROWS: tuple[tuple[Shape, int], ...] = (
    ((1, 1, 128, 64), 128),
    ((4, 1, 128, 64), 128),
    ((8, 1, 128, 64), 128),
    ((4, 1, 256, 64), 256),
    ((4, 1, 512, 64), 512),
    ((4, 1, 128, 128), 128),
    ((8, 1, 256, 64), 256),
    ((2, 12, 196, 64), 196),
    ((1, 1, 2048, 64), 2048),
    ((1, 8, 1, 64), 8192),
    ((1, 32, 1, 128), 4096),
    ((1, 8, 1, 256), 4096),
    ((1, 8, 16, 64), 1000),
    ((2, 4, 300, 32), 300),
    ((1, 4, 64, 256), 64),
    ((2, 8, 500, 200), 500),
    ((8, 12, 196, 64), 196),
    ((1, 16, 1000, 96), 1000),
    ((4, 16, 2048, 64), 2048),
    ((2, 16, 2048, 128), 2048),
    ((1, 4, 64, 512), 64),
    ((1, 4, 64, 2048), 64),
    ((1, 4, 64, 4096), 64),
    ((1, 1, 16, 8192), 16),
    ((1, 8, 1, 1024), 1000),
    ((4, 8, 200, 320), 200),
    ((2, 2, 100, 640), 300),
)
ITERATIONS = 20
CHANGES = (0.7, 0.85, 0.95, 1.05, 1.2, 1.4)  # of a price, in a step of fit()


@dataclass(frozen=True)
class Pick:
    """The model's choice for a problem, beside the fastest of the timed tiles."""

    shape: Shape
    keys: int
    picked: str
    fastest: str
    picked_us: float
    fastest_us: float

    @property
    def loss(self) -> float:
        """Time of the picked tile over that of the fastest; 1 where they are one."""
        return self.picked_us / self.fastest_us


def problem(shape: Shape, keys: int) -> Problem:
    """The problem of a shape (B, H, n, d), not causal, with a head of K and V for each of Q."""
    b, h, n, d = shape
    return Problem(b * h, n, keys, d, h, h)


def variants(shape: Shape, keys: int, device: Device) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Every tile that a problem may be given: label -> (kernel file, compiler options)."""
    wanted = problem(shape, keys)
    methods = ("rows_split",) if wanted.d > LARGEST_D else ("flash_async", "flash_split")
    return {
        tile_label(method, c): (step(method).file, tuple(f"-D{k}={v}" for k, v in c.items()))
        for method in methods
        for c in tile_candidates(method, wanted, device)
    }


def record(quick: bool = False) -> dict:
    """Return a record of every tile on every problem; quick: on the first, in few turns.

    Raises:
        TimingError: no GPU.
    """
    require_gpu()
    device = current_device("gpu")
    rows, iterations = (ROWS[:1], 5) if quick else (ROWS, ITERATIONS)
    wanted = {(shape, keys): variants(shape, keys, device) for shape, keys in rows}
    compile_parts(Part(*part) for found in wanted.values() for part in found.values())
    with ClockWatch() as watch:
        measured = [
            {"keys": keys} | measure_shape(shape, found, keys=keys, iterations=iterations)
            for (shape, keys), found in wanted.items()
        ]
    files = [step(method).file for method in ("rows_split", "flash_async", "flash_split")]
    return new_record(KIND, files, device=asdict(device), rows=measured, clocks=watch.record())


def device_of(found: dict) -> Device:
    """The device of a record."""
    return Device(**found["device"] | {"capability": tuple(found["device"]["capability"])})


def picks(found: dict, prices: Prices = PRICES) -> Iterable[Pick]:
    """For each problem of a record, what the model picks among the tiles timed."""
    device = device_of(found)
    for row in found["rows"]:
        shape, times = tuple(row["shape"]), row["candidates"]
        clocks = {
            name: forecast(name, problem(shape, row["keys"]), device, prices) for name in times
        }
        picked = min(clocks, key=clocks.get)
        fastest = min(times, key=lambda name: times[name]["median_us"])
        yield Pick(
            shape,
            row["keys"],
            picked,
            fastest,
            times[picked]["median_us"],
            times[fastest]["median_us"],
        )


def forecast(name: str, wanted: Problem, device: Device, prices: Prices = PRICES) -> float:
    """Clocks that the model gives a labelled tile."""
    method, found = parsed_label(name)
    return tile_clocks(method, found, wanted, device, prices)


def report(found: dict, prices: Prices = PRICES) -> str:
    """Return the model's pick for each problem, and the fastest tile."""
    return "\n".join(
        f"{pick.shape!s:<20} {pick.keys:>5} keys: {pick.picked_us:9.2f} us, "
        f"{pick.loss:.3f} of the fastest: {pick.picked} | {pick.fastest}"
        for pick in picks(found, prices)
    )


# -- fitting the prices ----------------------------------------------------------------------------
def cost(found: dict, prices: Prices) -> float:
    """Return the mean loss of the picks, a tenth of the worst, and a tenth of the forecasts' error.

    A forecast's error is the standard deviation of log ratios between tiles of one problem: the
    scale does not matter.
    """
    losses = [pick.loss - 1 for pick in picks(found, prices)]
    device, errors = device_of(found), []
    for row in found["rows"]:
        wanted = problem(tuple(row["shape"]), row["keys"])
        logs = [
            math.log(forecast(name, wanted, device, prices) / one["median_us"])
            for name, one in row["candidates"].items()
        ]
        errors.append(np.std(logs))
    return float(np.mean(losses) + 0.1 * max(losses) + 0.1 * np.mean(errors))


def fit(found: dict) -> Prices:
    """Return prices of least cost(): from PRICES on, change one price at a time while it pays."""
    best, least = PRICES, cost(found, PRICES)
    while True:
        changed = [
            replace(best, **{name: float(f"{value * factor:.3g}")})
            for name, value in asdict(best).items()
            for factor in CHANGES
        ]
        costs = [cost(found, prices) for prices in changed]
        if min(costs) >= least:
            return best
        least = min(costs)
        best = changed[costs.index(least)]
