"""Launches of tests, kept on one machine and run again on a GPU: are the bytes the same?

    python kernelscope/tools/replay_launches.py keep FILE TESTS ...    where the tests run
    python kernelscope/tools/replay_launches.py replay FILE [--out JSON]   where there is a GPU

`keep` runs pytest and writes each launch of the simulator: its PTX, its arguments before and after.
`replay` needs CuPy, and this package on PYTHONPATH. A kernel that adds floats with atomics, in any
order, or that takes approximate functions, may differ; the list shows where and by how much.
"""

import argparse
import hashlib
import json
import os
import pickle
import sys
import tempfile
from pathlib import Path

import numpy as np

MOST_BYTES = 3_000_000  # of the arrays of a launch that is kept
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


# -- where the tests run ---------------------------------------------------------------------------
class Keeper:
    """A plugin of pytest that keeps the launches of the simulator."""

    def __init__(self):
        self.texts: dict[int, str] = {}
        self.launches: list[dict] = []

    def pytest_configure(self):
        from kernelscope.module.kernel import Kernel

        plain = Kernel.__call__

        def call(kernel, grid, block, args, shared_mem=0, stream=None):
            before = [_image(value) for value in args]
            plain(kernel, grid, block, args, shared_mem, stream)
            self._keep(kernel, (grid, block, shared_mem), before, args)

        Kernel.__call__ = call

    def _keep(self, kernel, launch, before, args) -> None:
        text = kernel.module.ptx()
        size = sum(len(one[1]) for one in before if one and one[0])
        if None in before or size > MOST_BYTES:
            return
        key = hash(text)
        self.texts[key] = text
        self.launches.append(
            {
                "test": os.environ.get("PYTEST_CURRENT_TEST", "").split("::")[-1].split(" (")[0],
                "kernel": kernel.name,
                "text": key,
                "launch": launch,
                "widths": [parameter.size for parameter in kernel.entry.parameters],
                "before": before,
                "after": [_image(value) for value in args],
            }
        )


def _image(value) -> tuple[str, bytes] | None:
    """(dtype, bytes) of an array, ("", bytes) of a number; None of what cannot be kept."""
    if isinstance(value, np.ndarray):
        return (value.dtype.name, value.tobytes()) if value.flags.c_contiguous else None
    if value is None:
        return "", bytes(8)
    return ("", value.tobytes()) if isinstance(value, np.generic) else None


def keep(path: str, tests: list[str]) -> int:
    import pytest

    keeper = Keeper()
    status = pytest.main(["-q", "-p", "no:xdist", *tests], plugins=[keeper])
    Path(path).write_bytes(pickle.dumps((keeper.texts, keeper.launches)))
    print(f"{len(keeper.launches)} launches of {len(keeper.texts)} kernels: {path}")
    return int(status)


# -- where there is a GPU --------------------------------------------------------------------------
def replay(path: str, out: str | None) -> int:
    import cupy
    from kernelscope.differential.machines import describe

    texts, launches = pickle.loads(Path(path).read_bytes())
    modules = {}
    with tempfile.TemporaryDirectory() as folder:
        for key, text in texts.items():
            file = Path(folder, f"{key}.ptx")
            file.write_text(text, encoding="utf-8")
            modules[key] = cupy.RawModule(path=str(file))
        different = [found for one in launches if (found := _differences(one, modules))]
    hashes = {
        one["kernel"]: hashlib.sha256(texts[one["text"]].encode()).hexdigest() for one in launches
    }
    record = {
        "kind": "launches",
        **describe("gpu"),
        "kernels": hashes,
        "launches": len(launches),
        "same_bytes": len(launches) - len(different),
        "different": different,
    }
    text = json.dumps(record, indent=1)
    print(text)
    if out:
        Path(out).write_text(text + "\n", encoding="utf-8")
    return 0


def _differences(one: dict, modules: dict) -> dict | None:
    """The arrays that a GPU leaves with other bytes, or the error of the launch."""
    import cupy

    grid, block, shared = one["launch"]
    arrays = [cupy.asarray(np.frombuffer(data, np.uint8)) if kind else None
              for kind, data in one["before"]]  # fmt: skip
    args = [
        array if array is not None else np.frombuffer(data[:width], WORDS[width])[0]
        for array, (_, data), width in zip(arrays, one["before"], one["widths"], strict=True)
    ]
    kernel = modules[one["text"]].get_function(one["kernel"])
    if shared > 48 * 1024:
        kernel.max_dynamic_shared_size_bytes = shared
    kernel(tuple(map(int, grid)), tuple(map(int, block)), tuple(args), shared_mem=shared)
    cupy.cuda.Device().synchronize()
    told = {}
    for at, (array, (kind, data)) in enumerate(zip(arrays, one["after"], strict=True)):
        if array is not None and (bytes_found := array.get().tobytes()) != data:
            told[f"argument {at}, {kind}"] = _how_far(kind, bytes_found, data)
    return {"test": one["test"], "kernel": one["kernel"], "arrays": told} if told else None


def _how_far(kind: str, found: bytes, expected: bytes) -> str:
    try:
        found, expected = (np.frombuffer(data, kind).astype(float) for data in (found, expected))
    except TypeError:
        return "other bits"  # a dtype that NumPy has not
    other = ~((found == expected) | (np.isnan(found) & np.isnan(expected)))
    worst = np.max(np.abs(found - expected)[other] / (np.abs(expected)[other] + 1e-30))
    return f"{other.sum()} of {other.size} numbers, relative difference {worst:.1e}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    keeping = commands.add_parser("keep", help="run tests and keep their launches")
    keeping.add_argument("file")
    keeping.add_argument("tests", nargs=argparse.REMAINDER, help="what pytest is given")
    again = commands.add_parser("replay", help="run the launches on this machine's GPU")
    again.add_argument("file")
    again.add_argument("--out", metavar="JSON")
    given = parser.parse_args()
    if given.command == "keep":
        return keep(given.file, given.tests)
    return replay(given.file, given.out)


if __name__ == "__main__":
    sys.exit(main())
