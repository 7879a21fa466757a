"""What a launch has done to its arrays."""

from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from .call import FileCall
from .tables import table

FIRST = 4  # numbers shown of an array


@dataclass(frozen=True)
class Written:
    """One array after a launch.

    changed: elements that differ from those before; nans: NaNs among the elements that count as
    written; unwritten: elements of an `output` that still hold its poison, None for other arrays;
    first_unwritten: the index of the first of them; first: the first numbers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    changed: int
    nans: int
    unwritten: int | None
    first_unwritten: tuple[int, ...] | None
    first: list

    @property
    def warning(self) -> str:
        """A sentence that names unwritten elements, "" without any."""
        if not self.unwritten:
            return ""
        size, place = int(np.prod(self.shape)), "".join(f"[{i}]" for i in self.first_unwritten)
        return (
            f"{self.name}: {self.unwritten:,} of {size:,} elements were not written, the first is "
            f"{self.name}{place}"
        )


def written(call: FileCall) -> list[Written]:
    """Return what the launch has done to each array, in the order of the parameters."""
    return [_written(call, name, array) for name, array in call.arrays.items()]


def _written(call: FileCall, name: str, array: np.ndarray) -> Written:
    same = _bits(array) == _bits(call.given[name])
    nans, unwritten, first = np.isnan(array) if array.dtype.kind in "fc" else None, None, None
    if name in call.outputs:
        unwritten = int(same.sum())
        if unwritten:
            first = tuple(map(int, np.unravel_index(int(same.argmax()), array.shape)))
        nans = None if nans is None else nans.reshape(-1) & ~same
    return Written(
        name,
        array.shape,
        str(array.dtype),
        int(same.size - same.sum()),
        0 if nans is None else int(nans.sum()),
        unwritten,
        first,
        array.reshape(-1)[:FIRST].tolist(),
    )


def _bits(array: np.ndarray) -> np.ndarray:
    """(elements,) of bytes: -0.0 differs from 0.0, and a NaN from another NaN."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(f"V{flat.itemsize}")


def arrays_report(found: list[Written]) -> str:
    """The arrays for people, and what stayed unwritten."""
    rows = [
        (
            one.name,
            "x".join(map(str, one.shape)),
            one.dtype,
            f"{one.changed:,} of {int(np.prod(one.shape)):,}",
            f"{one.nans:,}" if one.nans else "",
            " ".join(map(_number, one.first)),
        )
        for one in found
    ]
    heads = ("array", "shape", "dtype", "changed", "NaN", "first numbers")
    warnings = [one.warning for one in found if one.warning]
    return "\n".join([table(heads, rows, right=(3, 4)), *warnings])


def _number(value) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def arrays_record(found: list[Written]) -> list[dict]:
    """The arrays as plain data for JSON."""
    return [asdict(one) for one in found]


def save(call: FileCall, path: Path | None) -> None:
    """Write the arrays, by the names of their parameters, to the file of --out, if there is one."""
    if path is not None:
        with path.open("wb") as file:
            np.savez(file, **call.arrays)
