"""Times of the course's records beside the time model's: the launches that its constants fit.

    python -m attn_devtools.time_fit ROWS.json [--tiles MICROSECONDS]

With --tiles it takes every tile of the record `tiles` instead, at the shapes whose fastest tile
needs at most so many microseconds, and says how far off the fastest the model's choice is.

The held-out kernels of kernelscope/tests/timing are not among them: this module reads the records
of results/h200 alone.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy as np
from kernelscope import observe
from kernelscope.timing import Time, gpu

from attn_course.cli.predict import device_of
from attn_course.ladder import call
from attn_course.ladder.choose import simulating
from attn_course.ladder.methods import METHODS
from attn_course.ladder.problem import Problem
from attn_course.ladder.steps import step
from attn_course.layers import bias_gelu, layer_norm
from attn_course.lessons.lesson07_pipelines import KERNELS
from attn_course.measure.records import RESULTS_FOLDER

H200 = device_of(gpu("h200"))
BLOCKS = 16  # of a launch that are run
PERIOD = 1 << 20  # after so many, random numbers repeat
MOST_US = 150.0  # longer ones take long on the simulator too
TILES_OF_A_SHAPE = 3
CLOSE = 0.05  # a tile that loses at most so much is as good as the fastest


@dataclass(frozen=True)
class RecordedLaunch:
    """A recorded time. steps: of the ladder, or empty for a layer; shape: (B, H, L, d)."""

    label: str
    measured_us: float
    steps: tuple = ()
    shape: tuple[int, ...] = ()
    options: tuple[str, ...] = ()
    keys: int = 0

    def run(self) -> None:
        """Launch the kernels on the simulator, as for an H200."""
        with simulating(H200):
            run_steps(self) if self.steps else run_layer(self)


def random(shape) -> np.ndarray:
    """(shape) float32."""
    numbers = np.random.default_rng(0).standard_normal(PERIOD, np.float32)
    return np.resize(numbers, shape)


def run_steps(case: RecordedLaunch) -> None:
    batch, heads, length, d = case.shape
    steps = [step(one) for one in case.steps]
    problem = steps[0].taken(Problem(batch * heads, length, case.keys or length, d))
    names = {n for one in steps for n in one.arguments if n in ("q", "k", "v", "s", "p", "out")}
    arrays = {n: random(problem.shape(n)).astype(problem.dtype_of(n)) for n in names}
    given = {"problem": problem, "backend": "simulator", "options": case.options}
    call.call_steps(steps, arrays, d**-0.5, **given).run()


def run_layer(case: RecordedLaunch) -> None:
    x, ones = random(case.shape), np.ones(case.shape[-1], np.float32)
    if case.label.startswith("layernorm"):
        layer_norm(x, ones, ones, backend="simulator")
    else:
        how = "tanh" if "tanh" in case.label else "none"
        bias_gelu(x, ones, backend="simulator", approximate=how)


def stored(name: str) -> dict:
    return json.loads((RESULTS_FOLDER / f"h200/{name}.json").read_text(encoding="utf-8"))


def cases() -> Iterator[RecordedLaunch]:
    """Every recorded time of launches of the course's kernels alone, of the tiles some."""
    for time in stored("memory_lesson")["scores"]["timings"]:
        name, *constants = time["name"].split()
        options = tuple(f"-D{one}" for one in constants)
        yield RecordedLaunch(
            time["name"], time["median_us"], (int(name),), (2, 12, 196, 64), options
        )
    for row in stored("pipeline")["rows"]:
        for name, time in row["kernels"].items():
            number, options = KERNELS[name]
            yield RecordedLaunch(
                f"{name} {row['shape']}", time["median_us"], (number,), row["shape"], options
            )
    for layer in ("layernorm", "gelu"):
        for row in stored(f"bench_{layer}")["rows"]:
            shape = tuple(row["shape"])
            name = "layer_norm" if layer == "layernorm" else "bias_gelu"
            yield RecordedLaunch(
                f"{layer} {row['label']}", row["timings"][name]["median_us"], shape=shape
            )
    for row in stored("bench_ladder")["rows"]:
        yield from methods(row, row["timings"])
    for row in stored("tiles")["rows"]:
        every = max(1, len(row["candidates"]) // TILES_OF_A_SHAPE)
        yield from methods(row, dict(list(row["candidates"].items())[1::every]))


def methods(row: dict, timings: dict) -> Iterator[RecordedLaunch]:
    """The methods of one row of a record that are kernels of the ladder."""
    for name, time in timings.items():
        method = name.split()[0]
        steps = METHODS.get(method, ())
        options = tuple(o for o in time.get("options", ()) if "SPAN" not in o)
        if steps:
            keys = row.get("keys", 0)
            label = f"{name} {row['shape']} {keys or ''}".strip()
            yield RecordedLaunch(
                label, time["median_us"], tuple(steps), row["shape"], options, keys
            )


def predicted(case: RecordedLaunch) -> dict:
    """Return the row of a case."""
    with observe(Time("h200", blocks=BLOCKS)) as seen:
        case.run()
    us = seen.total_us
    error = us / case.measured_us - 1
    return {
        "label": case.label,
        "measured_us": case.measured_us,
        "predicted_us": round(us, 3),
        "error": round(error, 4),
        "limits": [one.limit for one in seen.launches],
    }


def tiles(most_us: float) -> Iterator[RecordedLaunch]:
    """Every recorded tile of the shapes whose fastest takes at most so long."""
    for row in stored("tiles")["rows"]:
        if min(time["median_us"] for time in row["candidates"].values()) <= most_us:
            yield from methods(row, row["candidates"])


def choices(found: list[dict]) -> list[dict]:
    """Return the model's choice of a tile for each shape. found: rows of `tiles`.

    loss: of its recorded time, over the fastest tile's.
    """
    of_shape: defaultdict[str, list[dict]] = defaultdict(list)
    for row in found:
        of_shape[row["label"][row["label"].index("[") :]].append(row)
    picked = []
    for shape, candidates in of_shape.items():
        choice = min(candidates, key=lambda row: row["predicted_us"])
        fastest = min(candidates, key=lambda row: row["measured_us"])
        loss = round(choice["measured_us"] / fastest["measured_us"] - 1, 4)
        labels = {"choice": choice["label"], "fastest": fastest["label"]}
        picked.append({"shape": shape, "tiles": len(candidates), "loss": loss} | labels)
    return picked


def rows(launches: Iterable[RecordedLaunch], workers: int = 2) -> list[dict]:
    """Return a row for every launch."""
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(predicted, launches))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("rows")
    parser.add_argument("--tiles", type=float, metavar="MICROSECONDS")
    arguments = parser.parse_args()
    if arguments.tiles:
        found = rows(tiles(arguments.tiles))
        losses = choices(found)
        close = sum(one["loss"] <= CLOSE for one in losses)
        print(*losses, f"within {CLOSE:.0%}: {close} of {len(losses)}", sep="\n")
    else:
        found = rows(case for case in cases() if case.measured_us < MOST_US)
    with open(arguments.rows, "w", encoding="utf-8") as file:
        json.dump(found, file, indent=1)
    print(len(found), "median error", np.median([abs(row["error"]) for row in found]))


if __name__ == "__main__":
    main()
