"""Launches of tests, kept on one machine and run again on a GPU: are the bytes the same?

    python kernelscope/tools/replay_launches.py keep FILE TESTS ...    where the tests run
    python kernelscope/tools/replay_launches.py replay FILE [--out JSON]   where there is a GPU

`keep` runs pytest and writes each launch of the simulator: its PTX, its arguments as the PTX takes
them, and the memory that these lead to, before and after. `replay` needs CuPy, and this package on
PYTHONPATH; it needs neither Triton nor Numba. A kernel that adds floats with atomics, in any order,
or that takes approximate functions, may differ; the list shows where and by how much.
"""

import argparse
import ctypes
import hashlib
import json
import os
import pickle
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

MOST_BYTES = 3_000_000  # of the memory of a launch that is kept
ALIGNED = 256  # bytes; memory keeps its place in the multiples of them
# Names of inlined functions: of several texts that were joined only the first one's are kept.
INLINED = re.compile(r", function_name [^,]+, inlined_at .*")
WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Memory:
    """A stretch of memory that arguments lead to; arrays that overlap share one.

    shift: its address modulo ALIGNED; dtype: of the first array in it, skip: where that begins.
    """

    shift: int
    before: bytes
    after: bytes
    dtype: str
    skip: int


@dataclass(frozen=True)
class Launch:
    """A launch that was kept.

    text: the key of its PTX; shape: (grid, block, bytes of dynamic shared memory); values: for each
    parameter of the PTX the bytes of a number, or (place in `memory`, offset) of a pointer.
    """

    test: str
    kernel: str
    text: int
    shape: tuple
    values: tuple
    memory: tuple[Memory, ...]


# -- where the tests run ---------------------------------------------------------------------------
class Keeper:
    """A plugin of pytest that keeps the launches of the simulator."""

    def __init__(self):
        self.texts: dict[int, str] = {}
        self.launches: list[Launch] = []

    def pytest_configure(self):
        from kernelscope.module import SimulatorKernel

        plain = SimulatorKernel._launch

        def launch(kernel, grid, block, values, shared_mem, stream, observers):
            extents = extents_of(values)
            keep = kept(values, kernel.entry.parameters, extents)
            keep &= not any(one.keeps_going for one in observers)  # its kernel may do what faults
            before = [ctypes.string_at(low, high - low) for low, high in extents] if keep else []
            plain(kernel, grid, block, values, shared_mem, stream, observers)
            if keep:
                self._keep(kernel, (grid, block, shared_mem), values, extents, before)

        SimulatorKernel._launch = launch

    def _keep(self, kernel, shape, values, extents, before) -> None:
        text = kernel.module.ptx()
        key = hash(text)
        self.texts[key] = text
        sizes = [parameter.size for parameter in kernel.entry.parameters]
        passed, firsts = [], {}
        for value, size in zip(values, sizes, strict=True):
            if not isinstance(value, np.ndarray):
                passed.append(bytes(size) if value is None else value.tobytes()[:size])
                continue
            address = value.__array_interface__["data"][0]
            at = place_of(np.lib.array_utils.byte_bounds(value)[0], extents)
            passed.append((at, address - extents[at][0]))
            firsts.setdefault(at, (value.dtype.name, (address - extents[at][0]) % value.itemsize))
        memory = tuple(
            Memory(low % ALIGNED, old, ctypes.string_at(low, high - low), *firsts[at])
            for at, ((low, high), old) in enumerate(zip(extents, before, strict=True))
        )
        test = os.environ.get("PYTEST_CURRENT_TEST", "").split("::")[-1].split(" (")[0]
        self.launches.append(Launch(test, kernel.entry.name, key, shape, tuple(passed), memory))

    def write(self, path: str) -> None:
        launches = [vars(one) | {"memory": [vars(m) for m in one.memory]} for one in self.launches]
        Path(path).write_bytes(pickle.dumps((self.texts, launches)))


def extents_of(values) -> list[tuple[int, int]]:
    """(start, end) of the memory of arrays, in order; those that overlap are one."""
    arrays = [value for value in values if isinstance(value, np.ndarray)]
    found: list[tuple[int, int]] = []
    for low, high in sorted(map(np.lib.array_utils.byte_bounds, arrays)):
        if found and (low < found[-1][1] or low == found[-1][0]):
            found[-1] = found[-1][0], max(high, found[-1][1])
        else:
            found.append((low, high))
    return found


def place_of(low: int, extents: list[tuple[int, int]]) -> int:
    return next(
        at for at, (start, end) in enumerate(extents) if start <= low <= max(start, end - 1)
    )


def kept(values, parameters, extents) -> bool:
    """Whether a launch can be run elsewhere: it passes arrays and numbers, and no other address."""
    if sum(high - low for low, high in extents) > MOST_BYTES:
        return False
    pairs = [pair for pair in zip(values, parameters, strict=True) if pair[0] is not None]
    return not any(p.is_struct or p.size not in WORDS for _, p in pairs)


def keep(path: str, tests: list[str]) -> int:
    import pytest

    keeper = Keeper()
    status = pytest.main(["-q", "-p", "no:xdist", *tests], plugins=[keeper])
    keeper.write(path)
    print(f"{len(keeper.launches)} launches of {len(keeper.texts)} kernels: {path}")
    return int(status)


def read(path: str) -> tuple[dict[int, str], list[Launch]]:
    """The PTX texts by their keys, and the launches of a file."""
    texts, launches = pickle.loads(Path(path).read_bytes())
    found = [
        Launch(**one | {"memory": tuple(Memory(**m) for m in one["memory"])}) for one in launches
    ]
    return texts, found


# -- where there is a GPU --------------------------------------------------------------------------
class Gpu:
    """Runs PTX through CuPy."""

    def __init__(self, texts: dict[int, str], folder: str):
        import cupy

        self.cupy, self.texts, self.folder = cupy, texts, folder
        self.modules: dict[int, object] = {}

    def module(self, key: int):
        if key not in self.modules:
            file = Path(self.folder, f"{key}.ptx")
            text = INLINED.sub("", self.texts[key])
            file.write_text(text, encoding="utf-8")
            together = "%envreg" in text  # a barrier of the grid
            self.modules[key] = self.cupy.RawModule(
                path=str(file), enable_cooperative_groups=together
            )
        return self.modules[key]

    def run(self, one: Launch) -> list[bytes]:
        """Run a launch; returns the memory after it."""
        places = [self.cupy.zeros(len(m.before) + 2 * ALIGNED, np.uint8) for m in one.memory]
        starts = []
        for place, memory in zip(places, one.memory, strict=True):
            start = (memory.shift - place.data.ptr) % ALIGNED
            place[start : start + len(memory.before)] = self.cupy.asarray(
                np.frombuffer(memory.before, np.uint8)
            )
            starts.append(start)
        values = [
            np.frombuffer(value, WORDS[len(value)])[0]
            if isinstance(value, bytes)
            else np.uint64(places[value[0]].data.ptr + starts[value[0]] + value[1])
            for value in one.values
        ]
        grid, block, shared = one.shape
        kernel = self.module(one.text).get_function(one.kernel)
        if shared > 48 * 1024:
            kernel.max_dynamic_shared_size_bytes = shared
        kernel(tuple(map(int, grid)), tuple(map(int, block)), tuple(values), shared_mem=shared)
        self.cupy.cuda.Device().synchronize()
        ends = [start + len(m.before) for start, m in zip(starts, one.memory, strict=True)]
        every = zip(places, starts, ends, strict=True)
        return [place.get()[start:end].tobytes() for place, start, end in every]


def replay(path: str, out: str | None) -> int:
    from kernelscope.differential.machines import describe

    texts, launches = read(path)
    with tempfile.TemporaryDirectory() as folder:
        gpu = Gpu(texts, folder)
        different = [found for one in launches if (found := differences(one, gpu))]
    record = {
        "kind": "launches",
        **describe("gpu"),
        "kernels": {
            one.kernel: hashlib.sha256(texts[one.text].encode()).hexdigest() for one in launches
        },
        "launches": len(launches),
        "same_bytes": len(launches) - len(different),
        "different": different,
    }
    text = json.dumps(record, indent=1)
    print(text)
    if out:
        Path(out).write_text(text + "\n", encoding="utf-8")
    return 0


def differences(one: Launch, machine) -> dict | None:
    """The arrays that a machine leaves with other bytes, or why it cannot run the launch."""
    told = {}
    try:
        found = machine.run(one)
    except Exception as error:  # of the driver, of any type: the others still run
        lines = str(error).splitlines() or [""]
        return {
            "test": one.test,
            "kernel": one.kernel,
            "error": f"{type(error).__name__}: {lines[0]}",
        }
    for at, (after, memory) in enumerate(zip(found, one.memory, strict=True)):
        if after != memory.after:
            told[f"array {at}, {memory.dtype}"] = how_far(memory, after)
    return {"test": one.test, "kernel": one.kernel, "arrays": told} if told else None


def how_far(memory: Memory, after: bytes) -> str:
    try:
        dtype = np.dtype(memory.dtype)
        count = (len(after) - memory.skip) // dtype.itemsize
        found, expected = (
            np.frombuffer(data, dtype, count, memory.skip).astype(float)
            for data in (after, memory.after)
        )
    except (TypeError, ValueError):
        return "other bits"  # of records, or of a dtype that NumPy has not
    other = ~((found == expected) | (np.isnan(found) & np.isnan(expected)))
    worst = np.max(np.abs(found - expected)[other] / (np.abs(expected)[other] + 1e-30), initial=0)
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
