"""Tensor maps of arrays, and the checks of what the copy engine can take."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ..address_space import device_address
from ..backend import is_device_array
from ..errors import InputError, InputTypeError
from .encoding import PROMOTIONS, Encoding
from .fields import (
    ALIGNED,
    ELEMENTS,
    FILLS,
    MAP_BYTES,
    MOST_AXES,
    MOST_BOX,
    MOST_EXTENT,
    MOST_STEP,
    MOST_STRIDE,
    SWIZZLES,
)

# Names of dtypes that a tensor map has no type for: their bits are copied as they are.
_AS_BITS = {"bool": "uint8", "int8": "uint8", "int16": "uint16"}


class TensorMap:
    """How the copy engine of sm_90 (TMA) finds boxes of an array in global memory.

    with a kernel (const __grid_constant__ Map map, ...) where
        struct alignas(64) Map { char bytes[128]; };
    map = TensorMap(x, box=(64, 128))
    kernel(grid, block, (map, ...))      # as often as wanted: the map is encoded once

    Args:
        array: NumPy for the simulator, CuPy for a GPU; 1 to 5 axes, of which the last one is
            contiguous and the strides of the others are multiples of 16 bytes. The first element is
            at a multiple of 16 bytes.
        box: elements of a box along each axis of the array, 1 to 256 each; a row of the box, along
            the last axis, is a multiple of 16 bytes.
        swizzle: 0, 32, 64 or 128 bytes: the 16-byte chunks of shared memory are exchanged within
            stretches so long, by the number of the 128-byte line. A row of the box is
            no longer; where it is shorter, rows are still so far apart, with gaps.
        element_strides: of every so many elements of the box along an axis one is copied, 1 to 8;
            that of the last axis is 1. None: of all.
        dtype: the element's type where it is not the array's own: "bfloat16" for the raw bits in
            uint16, "float32_ftz", "tfloat32" and "tfloat32_ftz" for float32, any of the same size.
        fill: "zero" or, for floats, "nan": the value of elements outside of the array.
        promotion: 0, 64, 128 or 256 bytes that the L2 cache fetches at a time; changes no result.

    Axes stand in the array's order, the contiguous one last. The coordinates in
    `cp.async.bulk.tensor` stand in PTX's order: the contiguous one first, a multiple of 16 bytes.

    Raises ValueError or TypeError for an array or a box that the copy engine cannot take, the same
    on both machines, and BackendError where the driver has no tensor maps.
    """

    def __init__(
        self,
        array,
        box: Sequence[int],
        *,
        swizzle: int = 0,
        element_strides: Sequence[int] | None = None,
        dtype: str | None = None,
        fill: str = "zero",
        promotion: int = 0,
    ):
        on_gpu = is_device_array(array) and hasattr(array.data, "ptr")
        if not on_gpu and not isinstance(array, np.ndarray):
            remedy = ": pass cupy.asarray(...)" if is_device_array(array) else ""
            raise InputTypeError(
                f"a tensor map is of an array of NumPy or CuPy, not of {type(array).__name__!r}"
                + remedy
            )
        self.backend = "gpu" if on_gpu else "simulator"
        self.array = array  # lives as long as the map
        kind = _kind_of(array, dtype)
        size = ELEMENTS[kind][1]
        axes = len(array.shape)
        if not 1 <= axes <= MOST_AXES:
            raise InputError(f"the array has {axes} axes; a tensor map takes 1 to {MOST_AXES}")
        box = _whole("box", box, axes, MOST_BOX)
        steps = (1,) * axes
        if element_strides is not None:
            steps = _whole("element_strides", element_strides, axes, MOST_STEP)
        _check_choice("swizzle", swizzle, SWIZZLES)
        _check_choice("promotion", promotion, PROMOTIONS)
        _check_choice("fill", fill, FILLS)
        if fill == "nan" and "float" not in kind:
            raise InputError(f"fill is 'nan', and the elements are {kind}; only floats have NaN")
        if steps[-1] != 1:
            raise InputError("element_strides: that of the last axis, which is contiguous, is 1")
        strides = _strides_of(array, size)
        _check_box(box, size, swizzle)
        address = device_address(array)
        if address % ALIGNED:
            raise InputError(
                f"the array's first element is at address {address:#x}; it must be a multiple of "
                f"{ALIGNED} bytes: start at another element, or copy the part"
            )
        self.encoding = Encoding(
            address,
            kind,
            tuple(map(int, array.shape[::-1])),
            strides[-2::-1],
            box[::-1],
            steps[::-1],
            swizzle,
            fill,
            promotion,
        )

    @cached_property
    def image(self) -> np.ndarray:
        """The 128 bytes as an argument of a kernel: an array of one item of dtype V128."""
        data = self.encoding.encoded() if self.backend == "gpu" else self.encoding.packed()
        return data.view(f"V{MAP_BYTES}")

    @property
    def box_bytes(self) -> int:
        """Bytes of a box in shared memory: what a load completes of its mbarrier's bytes."""
        size = ELEMENTS[self.encoding.kind][1]
        pairs = zip(self.encoding.box, self.encoding.steps, strict=True)
        return size * int(np.prod([-(-box // step) for box, step in pairs]))

    def __repr__(self) -> str:
        box = self.encoding.box[::-1]
        return f"<TensorMap of {self.array.shape} {self.encoding.kind}, box {box}>"


def _kind_of(array, dtype: str | None) -> str:
    """The element's type: a key of ELEMENTS."""
    name = str(array.dtype.name)
    kind = name if dtype is None else dtype
    kind = _AS_BITS.get(kind, kind)
    if kind.startswith("float8") and array.dtype.itemsize == 1:
        kind = "uint8"
    if kind not in ELEMENTS:
        known = ", ".join(ELEMENTS)
        raise InputTypeError(f"a tensor map has no elements of {kind}; it has {known}")
    if ELEMENTS[kind][1] != array.dtype.itemsize:
        size = ELEMENTS[kind][1]
        raise InputTypeError(f"dtype is {kind!r}, of {size} bytes; the array holds {name}")
    return kind


def _whole(what: str, values, axes: int, most: int) -> tuple[int, ...]:
    """Numbers from 1 on, one for each axis."""
    try:
        found = tuple(int(value) for value in values)
    except TypeError:
        raise InputTypeError(f"{what} is {values!r}; it must be a tuple of integers") from None
    if len(found) != axes:
        raise InputError(f"{what} is {found}; the array has {axes} axes, and each needs a number")
    if not all(1 <= value <= most for value in found):
        raise InputError(f"{what} is {found}; each number must be 1 to {most}")
    return found


def _check_choice(what: str, value, known: tuple) -> None:
    if value not in known:
        listed = ", ".join(map(repr, known))
        raise InputError(f"{what} is {value!r}; it must be one of {listed}")


def _strides_of(array, size: int) -> tuple[int, ...]:
    """The bytes between neighbours along each axis; an axis of one element has any."""
    if 0 in array.shape:
        raise InputError(f"the array has no elements (shape {array.shape})")
    if max(array.shape) > MOST_EXTENT:
        raise InputError(f"the array has shape {array.shape}; an axis has at most 2^32 elements")
    strides = list(array.strides)
    if array.shape[-1] > 1 and strides[-1] != size:
        raise InputError(
            f"the last axis of the array is not contiguous (strides {array.strides} bytes, "
            f"elements of {size}): copy the array, or bring the contiguous axis to the end"
        )
    dense = size
    for axis in range(len(strides) - 1, -1, -1):
        if array.shape[axis] == 1 and axis < len(strides) - 1:
            strides[axis] = -(-dense // ALIGNED) * ALIGNED
        dense = strides[axis] * array.shape[axis]
    for stride in strides[:-1]:
        if stride % ALIGNED or not 0 < stride < MOST_STRIDE:
            raise InputError(
                f"the array's strides are {array.strides} bytes; all but the last must be positive "
                f"multiples of {ALIGNED}: pad the rows to a multiple of {ALIGNED} bytes"
            )
    return tuple(strides)


def _check_box(box: tuple[int, ...], size: int, swizzle: int) -> None:
    row = box[-1] * size
    if row % ALIGNED:
        raise InputError(
            f"a row of the box {box} has {row} bytes; it must be a multiple of {ALIGNED}"
        )
    if swizzle and row > swizzle:
        raise InputError(
            f"a row of the box {box} has {row} bytes; with a swizzle of {swizzle} bytes it has at "
            f"most {swizzle // size} elements: copy the tile as several boxes side by side"
        )
