"""Times every tile of kernels 10, 12 and 19 on this machine's GPU.

    python tools/record_tiles.py [FOLDER]       times them, writes FOLDER/<gpu>/tiles.json
    python tools/record_tiles.py --fit          fits the model's prices to the record there is

Timing takes about two minutes, most of it compiling. Fitting needs no GPU: a random search for the
prices of attn_course/tuning.py that lose least where the model picks a tile, then those that
forecast the times best. It prints them; nothing is written.
"""

import argparse
import math
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # also where the package is not installed

from attn_course.ladder.call import compiled
from attn_course.ladder.choose import current_device
from attn_course.ladder.steps import step
from attn_course.ladder.tiles import PRICES, Prices
from attn_course.measure import records, tile_model
from attn_course.measure.timing import TimingError

TRIES = 4000


def compile_one(variant: tuple[str, tuple[str, ...]]) -> None:
    """Puts one kernel into CuPy's cache of compiled kernels."""
    file, options = variant
    compiled(step(file).path, options, entry=step(file).entry, backend="gpu").attributes  # noqa: B018


def compile_all() -> int:
    """Compiles every tile in as many processes as there are cores; how many tiles."""
    device = current_device("gpu")
    wanted = {
        variant
        for shape, keys in tile_model.ROWS
        for variant in tile_model.variants(shape, keys, device).values()
    }
    with ProcessPoolExecutor(os.cpu_count(), mp_context=get_context("spawn")) as pool:
        list(pool.map(compile_one, sorted(wanted), chunksize=2))
    return len(wanted)


def cost(found: dict, prices: Prices) -> float:
    """Mean loss of the picks, its worst case at a tenth, and a little of the forecasts' error."""
    losses = [pick.loss - 1 for pick in tile_model.picks(found, prices)]
    device, errors = tile_model.device_of(found), []
    for row in found["rows"]:
        wanted = tile_model.problem(tuple(row["shape"]), row["keys"])
        logs = [
            math.log(tile_model.forecast(name, wanted, device, prices) / one["median_us"])
            for name, one in row["contestants"].items()
        ]
        errors.append(np.std(logs))  # of ratios between tiles: the scale does not matter
    return float(np.mean(losses) + 0.1 * max(losses) + 0.1 * np.mean(errors))


def fit(found: dict, seed: int = 0) -> Prices:
    """The cheapest prices by cost() that TRIES random steps find, from those in use on."""
    rng = np.random.default_rng(seed)
    best, least = PRICES, cost(found, PRICES)
    for _ in range(TRIES):
        factors = np.exp(rng.normal(0, 0.2, len(asdict(best))))
        changed = {
            name: float(f"{value * factor:.3g}")
            for (name, value), factor in zip(asdict(best).items(), factors, strict=True)
        }
        tried = replace(best, **changed)
        if (price := cost(found, tried)) < least:
            best, least = tried, price
    return best


def show(found: dict, prices: Prices) -> None:
    """Print what the model picks for each problem, and the fastest tile."""
    for pick in tile_model.picks(found, prices):
        print(
            f"{pick.shape!s:<20} {pick.keys:>5} keys: {pick.picked_us:9.2f} us, "
            f"{pick.loss:.3f} of the fastest: {pick.picked} | {pick.fastest}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "folder", nargs="?", type=Path, default=records.RESULTS_FOLDER, metavar="FOLDER"
    )
    parser.add_argument("--fit", action="store_true", help="fit the prices to the newest record")
    arguments = parser.parse_args()
    if arguments.fit:
        found = records.records(tile_model.KIND, arguments.folder)[0]
        prices = fit(found)
        show(found, prices)
        print(prices)
        return 0
    try:
        print(f"{compile_all()} tiles compiled")
        found = tile_model.record()
    except TimingError as error:
        print(f"record_tiles: {error}", file=sys.stderr)
        return 2
    show(found, PRICES)
    for row in found["rows"]:
        for message in (*row["wrong"].values(), *row["refused"].values()):
            print(f"{row['shape']}: {message}")
    print(f"written to {records.write_record(found, tile_model.KIND, arguments.folder)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
