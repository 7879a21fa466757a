"""The reading of a texture: addresses outside, and the filter of neighbouring texels.

Textures are N texels wide in each dimension. A point is texel floor(x). Linear filtering weighs
texel floor(x - 0.5) and the next one by the fraction of x - 0.5, rounded to 256ths, ties up; see
filtering.py for the sum. Coordinates outside clamp to the edge, have the border's colour or,
normalised ones alone, wrap around or mirror.

So says the CUDA C++ Programming Guide; these details were fitted to what one H200 gave, all of
which they explain bit for bit: a normalised coordinate is cut down to a multiple of 2**-21, and
multiplied by N without rounding. It wraps or mirrors after that. Subnormal coordinates and NaN are
zero. A border is rounded to the texels' format. Channels that a texture lacks are zero.
"""

from dataclasses import dataclass

import numpy as np

from .filtering import FRACTION_BITS, ONE, sum_of_floats, sum_of_fractions, weights

WRAP, CLAMP, MIRROR, BORDER = "wrap", "clamp", "mirror", "border"
_STEPS = float(1 << 21)  # of a normalised coordinate, from 0 to 1
_FARTHEST = float(1 << 24)  # coordinates beyond are as far outside: even whole numbers
_NORMAL = 2.0**-126  # the smallest float32 that is not subnormal


@dataclass(frozen=True)
class Texels:
    """Texels and the way to read them.

    data: (width, channels) or (height, width, channels); modes: of x and y; linear: filtered, else
    the nearest one; normalized: coordinates from 0 to 1; as_fractions: integers are read as
    fractions of their largest value; border: of the four channels; from_memory: linear memory,
    which is read by an integer and is zero outside.
    """

    data: np.ndarray
    modes: tuple[str, ...]
    linear: bool
    normalized: bool
    as_fractions: bool
    border: tuple[float, ...]
    from_memory: bool

    @property
    def dimensions(self) -> int:
        return self.data.ndim - 1

    def fetch(self, coordinates: list[np.ndarray]) -> np.ndarray:
        """Return the four channels, as 32 bits each: (4, lanes) uint32.

        coordinates: x, and y for two dimensions; (lanes,) of float32, or int32 for texel numbers.
        """
        if coordinates[0].dtype.kind in "iu":
            values = self._numbers(self._at([c.astype(np.int64) for c in coordinates]))
        elif self.linear:
            values = self._filtered([self._scaled(c, i) for i, c in enumerate(coordinates)])
        else:
            places = [self._scaled(c, i) for i, c in enumerate(coordinates)]
            values = self._numbers(self._at([np.floor(one).astype(np.int64) for one in places]))
        return self._as_words(values)

    def _size(self, axis: int) -> int:
        return self.data.shape[self.dimensions - 1 - axis]

    def _scaled(self, coordinate: np.ndarray, axis: int) -> np.ndarray:
        """(lanes,) float64, without rounding: the coordinate in texels."""
        place = coordinate.astype(np.float64)
        place = np.where(np.abs(place) < _NORMAL, 0.0, np.nan_to_num(place, posinf=_FARTHEST))
        place = np.clip(place, -_FARTHEST, _FARTHEST)
        return np.floor(place * _STEPS) / _STEPS * self._size(axis) if self.normalized else place

    def _filtered(self, places: list[np.ndarray]) -> np.ndarray:
        """(channels, lanes): texels weighed by the parts that the coordinates have of them."""
        fixed = [np.floor((place - 0.5) * ONE + 0.5).astype(np.int64) for place in places]
        first = [one >> FRACTION_BITS for one in fixed]
        fractions = [one & ONE - 1 for one in fixed]
        texels, near = [], []
        for corner in range(1 << len(places)):
            step = [corner >> axis & 1 for axis in range(len(places))]
            texels.append(self._at([i + one for i, one in zip(first, step, strict=True)]))
            reached = [a > 0 for a, one in zip(fractions, step, strict=True) if one]
            near.append(np.logical_and.reduce([np.ones(places[0].shape, bool), *reached]))
        every, weight, dtype = np.array(texels), weights(fractions), self.data.dtype
        if self.as_fractions:
            return sum_of_fractions(every, weight, dtype)
        return sum_of_floats(every.astype(np.float64), weight, np.array(near), dtype.itemsize)

    def _at(self, index: list[np.ndarray]) -> np.ndarray:
        """(channels, lanes): the texels of some numbers, which may be outside."""
        inside, places = np.ones(index[0].shape, bool), []
        for axis, wanted in enumerate(index):
            size, mode = self._size(axis), self._mode(axis)
            if mode == BORDER:
                inside &= (wanted >= 0) & (wanted < size)
            if mode == WRAP:
                wanted = wanted % size
            elif mode == MIRROR:
                wanted = wanted % (2 * size)
                wanted = np.where(wanted < size, wanted, 2 * size - 1 - wanted)
            places.append(np.clip(wanted, 0, size - 1))
        found = self.data[tuple(reversed(places))].T
        if inside.all():
            return found
        return np.where(inside, found, self._outside()[: len(found), None]).astype(found.dtype)

    def _outside(self) -> np.ndarray:
        """(4,) texels' numbers: the border as the format can hold it, zero for linear memory."""
        dtype, border = self.data.dtype, np.array(self.border, np.float32).astype(np.float64)
        if self.from_memory:
            return np.zeros(4, dtype)
        if self.as_fractions:
            limits = np.iinfo(dtype)
            inside = np.clip(border, -1.0 if limits.min else 0.0, 1.0)
            places = np.trunc(inside * _STEPS) / _STEPS * limits.max
            return np.copysign(np.ceil(np.abs(places) - 0.5), places).astype(dtype)
        if dtype == np.float16:  # cut, not rounded
            last = np.maximum(np.frexp(border)[1] - 11, -24)
            return np.ldexp(np.trunc(np.ldexp(border, -last)), last).astype(dtype)
        return border.astype(dtype)

    def _mode(self, axis: int) -> str:
        """Numbers of texels clamp, but in linear memory; only normalised coordinates come again."""
        if self.from_memory:
            return BORDER
        mode = self.modes[axis]
        return mode if self.normalized or mode == BORDER else CLAMP

    def _numbers(self, texels: np.ndarray) -> np.ndarray:
        if not self.as_fractions:
            return texels.astype(np.float32) if texels.dtype.kind == "f" else texels
        largest = np.iinfo(texels.dtype).max
        return np.maximum(texels / largest, -1.0).astype(np.float32)

    def _as_words(self, values: np.ndarray) -> np.ndarray:
        """Missing channels are 0."""
        kind = np.float32 if values.dtype.kind == "f" else values.dtype.kind + "4"
        words = np.zeros((4, values.shape[1]), kind)
        words[: len(values)] = values
        return words.view(np.uint32)
