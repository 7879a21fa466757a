"""How fast each tile of tuning.py is, on problems that differ in what a tile is good for.

The record is what the tiles' lists and the model's prices rest on, and what tells how much is
lost where the model picks a tile that is not the fastest.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from attn_course.ladder.choose import current_device
from attn_course.ladder.problem import LARGEST_D, Device, Problem
from attn_course.ladder.steps import step
from attn_course.ladder.tiles import (
    PRICES,
    Prices,
    flash_candidates,
    flash_clocks,
    split_candidates,
    split_clocks,
)

from .experiments import measure_shape
from .records import new_record
from .suites import Shape
from .timing import ClockWatch, require_gpu

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


@dataclass(frozen=True)
class Pick:
    """What the model picks for a problem, beside the fastest tile there is a time of."""

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
    if wanted.d > LARGEST_D:
        found = [("rows_split", c) for c in split_candidates(wanted, device)]
    else:
        found = [("flash_async", c) for c in flash_candidates(wanted, device)]
        found += [("flash_split", c) for c in flash_candidates(wanted, device, clusters=True)]
    return {
        label(method, c): (step(method).file, tuple(f"-D{k}={v}" for k, v in c.items()))
        for method, c in found
    }


def label(method: str, constants: Mapping[str, int]) -> str:
    """ "flash_async D=64 ROWS=8": what a record calls a tile."""
    return " ".join([method, *(f"{name}={value}" for name, value in constants.items())])


def constants(text: str) -> tuple[str, dict[str, int]]:
    """Method and constants of a label."""
    method, *pairs = text.split(" ")
    return method, {name: int(value) for name, _, value in (pair.partition("=") for pair in pairs)}


def record() -> dict:
    """Every tile on every problem, as a results record. Raises TimingError without a GPU."""
    require_gpu()
    device = current_device("gpu")
    with ClockWatch() as watch:
        rows = [
            {"keys": keys}
            | measure_shape(shape, variants(shape, keys, device), keys=keys, iterations=ITERATIONS)
            for shape, keys in ROWS
        ]
    files = [step(method).file for method in ("rows_split", "flash_async", "flash_split")]
    return new_record(KIND, files, device=asdict(device), rows=rows, clocks=watch.record())


def device_of(found: dict) -> Device:
    """The device of a record."""
    return Device(**found["device"] | {"capability": tuple(found["device"]["capability"])})


def picks(found: dict, prices: Prices = PRICES) -> Iterable[Pick]:
    """For each problem of a record, what the model picks among the tiles timed."""
    device = device_of(found)
    for row in found["rows"]:
        shape, times = tuple(row["shape"]), row["contestants"]
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
    method, found = constants(name)
    model = split_clocks if method == "rows_split" else flash_clocks
    return model(found, wanted, device, prices)
