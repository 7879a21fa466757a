"""The 128 bytes of a tensor map: the driver's on a GPU, and an own encoding on the simulator.

A kernel takes them by value, as `const __grid_constant__ T map` where T is a struct of 128 bytes
that is aligned to 64, and names their address in `cp.async.bulk.tensor`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from ..errors import BackendError
from .fields import ELEMENTS, FILLS, KINDS, MAGIC, MAP_BYTES, MAP_FIELDS, SWIZZLES

PROMOTIONS = (0, 64, 128, 256)  # bytes; the place of each is CUtensorMapL2promotion


@dataclass(frozen=True)
class Encoding:
    """The arguments of cuTensorMapEncodeTiled, all axes from the innermost one on.

    address: of the first element; kind: a key of ELEMENTS; extents: elements of the array; strides:
    bytes, without the innermost axis; box, steps: elements.
    """

    address: int
    kind: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: int
    fill: str
    promotion: int

    def packed(self) -> np.ndarray:
        """The simulator's encoding, (128,) uint8."""
        image = np.zeros(1, MAP_FIELDS)
        count = len(self.extents)
        image["magic"], image["address"], image["rank"] = MAGIC, self.address, count - 1
        image["strides"][0, : count - 1] = self.strides
        image["sizes"][0, :count] = self.extents
        image["box"][0, :count], image["step"][0, :count] = self.box, self.steps
        image["kind"] = KINDS.index(self.kind)
        image["swizzle"], image["fill"] = self.swizzle, FILLS.index(self.fill)
        return image.view(np.uint8)

    def encoded(self) -> np.ndarray:
        """The driver's encoding, (128,) uint8. Raises BackendError where it refuses."""
        image = _aligned_bytes(MAP_BYTES, 64)
        count = len(self.extents)
        status = _driver().cuTensorMapEncodeTiled(
            ctypes.c_void_p(image.ctypes.data),
            ELEMENTS[self.kind][0],
            count,
            ctypes.c_void_p(self.address),
            (ctypes.c_uint64 * count)(*self.extents),
            (ctypes.c_uint64 * max(count - 1, 1))(*self.strides),
            (ctypes.c_uint32 * count)(*self.box),
            (ctypes.c_uint32 * count)(*self.steps),
            0,  # no interleaving
            SWIZZLES.index(self.swizzle),
            PROMOTIONS.index(self.promotion),
            FILLS.index(self.fill),
        )
        if status:
            raise BackendError(
                f"the driver refuses this tensor map (CUresult {status}): {self}. Tensor maps need "
                "a GPU of compute capability 9.0 or newer"
            )
        return image


def arrays_of_maps(data: bytes) -> np.ndarray:
    """(n,) uint64: the addresses of the arrays whose maps, as `packed` makes them, are in data."""
    words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64)
    return words[np.flatnonzero(words[:-1] == MAGIC) + 1]


def _aligned_bytes(size: int, to: int) -> np.ndarray:
    """(size,) uint8 at a multiple of `to` bytes."""
    data = np.zeros(size + to, np.uint8)
    start = -data.ctypes.data % to
    return data[start : start + size]


def _driver():
    """The driver's library. Raises BackendError where it has no tensor maps."""
    try:
        library = ctypes.CDLL("libcuda.so.1")
        library.cuTensorMapEncodeTiled.restype = ctypes.c_int
    except (OSError, AttributeError) as error:
        raise BackendError(f"the GPU's driver has no tensor maps: {error}") from None
    return library
