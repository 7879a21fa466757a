"""The kernels of the sets held_out*/: their calls, for the simulator and for a GPU.

Those of all sets but the first were measured before anything predicted them. The rules of the time
model were changed for what each set had shown. Eight sets between the third and the twelfth are
no longer here; docs/time.md has their first judgements.
"""

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernelscope import RawModule

PARTS = (
    "",
    "_second",
    "_third",
    "_twelfth",
    "_thirteenth",
    "_fourteenth",
    "_fifteenth",
    "_sixteenth",
    "_seventeenth",
    "_eighteenth",
    "_nineteenth",
)
NAMES = tuple("held_out" + part for part in PARTS)
FOLDERS = {name: Path(__file__).with_name(name) for name in NAMES}
PERIOD = 1 << 20  # after so many, random floats repeat
_KINDS = "u32 u64 bytes bf16 zeros ones int_zeros below sums float".split()
_DTYPES = {"f32": np.float32, "f16": np.float16, "f64": np.float64}


@dataclass(frozen=True)
class HeldOut:
    """One kernel at one shape: its call, without arrays as yet.

    changes_its_data: it does less in a second launch, and the times are of replays.
    """

    folder: str
    file: str
    name: str
    shape: dict[str, int]
    grid: tuple[int, ...]
    block: tuple[int, ...]
    arguments: tuple[str, ...]
    changes_its_data: bool = False

    @property
    def label(self) -> str:
        """'add n=262144': a key of the records."""
        return " ".join([self.name, *(f"{key}={value}" for key, value in self.shape.items())])

    def values(self, xp) -> tuple:
        """The arguments, arrays of NumPy or CuPy; random ones have a fixed seed."""
        return tuple(_value(text, self.shape, xp) for text in self.arguments)

    def kernel(self, backend: str):
        """The kernel, compiled for "gpu" or "simulator"."""
        module = RawModule(path=str(FOLDERS[self.folder] / self.file), backend=backend)
        return module.get_function(self.name)


def held_out(folder: str) -> Iterator[HeldOut]:
    """Every kernel of a folder at every shape."""
    for row in _rows(folder):
        for shape in row["shapes"]:
            yield _case(folder, row, shape)


def at_shape(folder: str, name: str, shape: dict[str, int]) -> HeldOut:
    """A kernel of a folder at a shape that the folder may not have."""
    return next(_case(folder, row, shape) for row in _rows(folder) if row["name"] == name)


def table_of_expected() -> tuple[dict, Callable]:
    """Return a table of kernels, and a decorator that enters a function at a shape into it.

    The table has for each kernel a shape, and the function of its name: of the arguments before
    the launch, it returns what some of them, by their numbers, should be after it.
    """
    table = {}

    def at(**shape):
        def enter(function):
            table[function.__name__] = shape, function
            return function

        return enter

    return table, at


def _rows(folder: str) -> list[dict]:
    return tomllib.loads((FOLDERS[folder] / "kernels.toml").read_text(encoding="utf-8"))["kernel"]


def _case(folder: str, row: dict, shape: dict[str, int]) -> HeldOut:
    grid = tuple(_number(text, shape) for text in row["grid"])
    arguments, block = tuple(row["arguments"]), tuple(row["block"])
    changes = row.get("changes_its_data", False)
    return HeldOut(folder, row["file"], row["name"], shape, grid, block, arguments, changes)


def _number(text: str, shape: dict[str, int]) -> int:
    """An expression of the sizes, such as 'ceil(n, 256)'."""
    known = shape | {"ceil": lambda size, part: -(-size // part), "__builtins__": {}}
    return int(eval(text, known))


def _value(text: str, shape: dict[str, int], xp):
    kind, *sizes = text.split(" ", 1) if " " in text else ("int", text)
    rest = sizes[0]
    if kind == "int" or kind not in (*_DTYPES, *_KINDS):
        return np.int32(_number(text, shape))
    if kind == "float":
        return np.float32(rest)
    limit, size = rest.split(" ", 1) if kind in ("below", "sums") else ("0", rest)
    count = _number(size, shape)
    if kind in ("zeros", "ones", "int_zeros"):
        return xp.full(count, kind == "ones", np.int32 if kind == "int_zeros" else np.float32)
    random = np.random.default_rng(count)
    if kind in _DTYPES:
        numbers = random.standard_normal(min(count, PERIOD), np.float32).astype(_DTYPES[kind])
        return xp.resize(xp.asarray(numbers), count)
    if kind == "bf16":
        numbers = random.standard_normal(min(count, PERIOD), np.float32)
        return xp.resize(xp.asarray((numbers.view(np.uint32) >> 16).astype(np.uint16)), count)
    if kind in ("u32", "u64"):
        dtype = np.dtype(f"u{int(kind[1:]) // 8}")
        return xp.asarray(random.integers(0, 1 << int(kind[1:]), count, dtype))
    if kind == "bytes":
        return xp.asarray(random.integers(-128, 128, count, np.int8))
    numbers = random.integers(0, _number(limit, shape), count, np.int32)
    if kind == "sums":
        numbers[0] = 0
        numbers = np.cumsum(numbers, dtype=np.int32)
    return xp.asarray(numbers)
