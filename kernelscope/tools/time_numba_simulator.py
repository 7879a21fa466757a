"""Times Numba's CUDA simulator on tiled matrix products and records it under results/cpu/.

    python3 -m venv /tmp/numba && /tmp/numba/bin/pip install numba
    /tmp/numba/bin/python kernelscope/tools/time_numba_simulator.py

The simulator of this package is timed on the same kernel elsewhere. Numba is no dependency of it,
so this runs in an environment of its own.
"""

import json
import os
import platform
import statistics
import time
from datetime import date
from pathlib import Path

os.environ["NUMBA_ENABLE_CUDASIM"] = "1"  # read when numba is imported

import numba
import numpy as np
from numba import cuda, float32

TILE, LENGTH, WIDTH, REPEATS = 16, 128, 64, 3
RECORD = Path(__file__).resolve().parent.parent / "results" / "cpu" / "numba_simulator.json"


@cuda.jit
def scores_tiled(query, key, scores, width):
    """scores (n, n) = query (n, width) key^T, the tiles of tests/kernels/scores_tiled.cu."""
    tile_query = cuda.shared.array((TILE, TILE), dtype=float32)
    tile_key = cuda.shared.array((TILE, TILE), dtype=float32)
    tx, ty = cuda.threadIdx.x, cuda.threadIdx.y
    row, column = cuda.blockIdx.y * TILE + ty, cuda.blockIdx.x * TILE
    total = float32(0.0)
    for start in range(0, width, TILE):
        tile_query[ty, tx] = query[row, start + tx]
        tile_key[ty, tx] = key[column + ty, start + tx]
        cuda.syncthreads()
        for i in range(TILE):
            total += tile_query[ty, i] * tile_key[tx, i]
        cuda.syncthreads()
    scores[row, column + tx] = total


def seconds_of_one_launch() -> float:
    """Wall-clock seconds; raises AssertionError where the result is wrong."""
    rng = np.random.default_rng(0)
    query, key = rng.standard_normal((2, LENGTH, WIDTH)).astype(np.float32)
    scores = np.full((LENGTH, LENGTH), np.nan, np.float32)
    blocks = LENGTH // TILE
    start = time.perf_counter()
    scores_tiled[(blocks, blocks), (TILE, TILE)](query, key, scores, WIDTH)
    seconds = time.perf_counter() - start
    np.testing.assert_allclose(scores, query @ key.T, atol=1e-4)
    return seconds


def processor() -> str:
    names = [
        line.partition(":")[2].strip()
        for line in open("/proc/cpuinfo")
        if line.startswith("model name")
    ]
    return f"{names[0] if names else platform.machine()}, {len(names)} cores"


def main() -> None:
    seconds = [seconds_of_one_launch() for _ in range(REPEATS)]
    record = {
        "kernel": f"scores_tiled, TILE={TILE}, n={LENGTH}, d={WIDTH}",
        "seconds": statistics.median(seconds),
        "all_seconds": seconds,
        "machine": processor(),
        "python": platform.python_version(),
        "numba": numba.__version__,
        "date": date.today().isoformat(),
    }
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
