"""How an element of an array is written: `tile[1][4]` and `tile[0..31][0..32]`."""

from dataclasses import dataclass
from math import prod

_MEMBERS = "xyzw"


@dataclass(frozen=True)
class Array:
    """An array as its declaration has it.

    start, size: its first byte in its memory, and how many bytes; item: bytes of one element;
    shape: its extents, () where only the bytes are known; members: the last axis are the members
    x, y, ... of a vector type such as float4; scalar: a variable that is no array;
    strided: (extent, stride in bytes) by axis, of an array that is not in C's order.
    """

    name: str
    start: int
    size: int
    item: int
    shape: tuple[int, ...] = ()
    members: bool = False
    scalar: bool = False
    strided: tuple[tuple[int, int], ...] = ()

    @property
    def count(self) -> int:
        return max(self.size // self.item, 1)

    @property
    def dimensions(self) -> tuple[int, ...]:
        """Its extents where the source gives more than one, and they fill it; else ()."""
        whole = len(self.shape) > 1 and prod(self.shape) == self.count
        return tuple(map(int, self.shape)) if whole else ()


@dataclass(frozen=True)
class Element:
    """One element: the array's name; its index, as Finding has it; the element and the array's
    valid range in the source's notation.
    """

    array: str
    index: object
    text: str
    valid: str


NOWHERE = Element("", None, "", "")  # of a finding that is about no array


def element(array: Array, address: int) -> Element:
    """The element at a byte address, which may be before or behind the array."""
    flat = (address - array.start) // array.item
    if array.scalar and flat == 0:
        return Element(array.name, None, array.name, "")
    if (index := strided_index(array, address)) is not None:
        ranges = [f"0..{extent - 1}" for extent, _ in array.strided]
        name = index if len(index) > 1 else index[0]
        return Element(
            array.name, name, _subscripts(array, map(str, index)), _subscripts(array, ranges)
        )
    dimensions = array.dimensions
    if not dimensions:
        text = f"{array.name}[{flat}]"
        return Element(array.name, flat, text, f"elements 0 to {array.count - 1} of {array.name}")
    index = []
    for extent in dimensions[:0:-1]:
        flat, place = divmod(flat, extent)
        index.append(place)
    index = (flat, *index[::-1])
    ranges = [f"0..{extent - 1}" for extent in dimensions]
    return Element(
        array.name, index, _subscripts(array, map(str, index)), _subscripts(array, ranges)
    )


def strided_index(array: Array, address: int) -> tuple[int, ...] | None:
    """The index of the element at an address in an array with strides of its own.

    The axis with the longest stride takes what lies outside. None where no element begins.
    """
    place, index = address - array.start, {}
    if not array.strided or not all(stride for _, stride in array.strided):
        return None
    order = sorted(range(len(array.strided)), key=lambda axis: -abs(array.strided[axis][1]))
    for axis in order:
        extent, stride = array.strided[axis]
        number, place = divmod(place, abs(stride))
        if axis != order[0] and number >= extent:
            return None
        index[axis] = extent - 1 - number if stride < 0 else number
    return tuple(index[axis] for axis in range(len(index))) if not place else None


def _subscripts(array: Array, parts) -> str:
    *parts, last = parts
    text = array.name + "".join(f"[{part}]" for part in parts)
    if not array.members:
        return f"{text}[{last}]"
    return f"{text}.{_MEMBERS[int(last)]}" if last.isdigit() else text
