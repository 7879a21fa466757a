"""The reading of a texture: addresses outside, and the filter of neighbouring texels.

From the appendix "Texture Fetching" of the CUDA C++ Programming Guide, N texels wide, in each
dimension: a point is texel floor(x). Linear filtering weighs texel floor(x - 0.5) by 1 - a and the
next one by a, the fraction of x - 0.5, "stored in 9-bit fixed point format with 8 bits of
fractional value (so 1.0 is exactly represented)". A normalised coordinate is multiplied by N
before. Coordinates outside clamp to the edge, have the border's colour or, normalised ones alone,
wrap around or mirror.
"""

from dataclasses import dataclass

import numpy as np

WRAP, CLAMP, MIRROR, BORDER = "wrap", "clamp", "mirror", "border"
FRACTION_BITS = 8
_ONE = 1 << FRACTION_BITS
_FARTHEST = float(1 << 40)  # coordinates beyond are as far outside


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
            values = self._at([c.astype(np.int64) for c in coordinates])
        elif self.linear:
            values = self._filtered([self._scaled(c, i) for i, c in enumerate(coordinates)])
        else:
            places = [self._scaled(c, i) for i, c in enumerate(coordinates)]
            values = self._at([np.floor(place).astype(np.int64) for place in places])
        return self._as_words(values)

    def _size(self, axis: int) -> int:
        return self.data.shape[self.dimensions - 1 - axis]

    def _scaled(self, coordinate: np.ndarray, axis: int) -> np.ndarray:
        place = coordinate.astype(np.float64) * (self._size(axis) if self.normalized else 1)
        return np.clip(np.nan_to_num(place, posinf=_FARTHEST), -_FARTHEST, _FARTHEST)

    def _filtered(self, places: list[np.ndarray]) -> np.ndarray:
        """(channels, lanes): texels weighed by the parts that the coordinates have of them."""
        fixed = [np.floor((place - 0.5) * _ONE + 0.5).astype(np.int64) for place in places]
        first = [one >> FRACTION_BITS for one in fixed]
        weight = [(one & _ONE - 1) / _ONE for one in fixed]
        total = 0.0
        for corner in range(1 << len(places)):
            step = [corner >> axis & 1 for axis in range(len(places))]
            share = 1.0
            for axis, one in enumerate(step):
                share = share * (weight[axis] if one else 1 - weight[axis])
            texel = self._at([i + one for i, one in zip(first, step, strict=True)])
            total = total + np.where(share == 0, 0.0, share * texel)
        return total.astype(np.float32)

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
        found = self._numbers(self.data[tuple(reversed(places))].T)
        outside = 0.0 if self.from_memory else np.array(self.border[: len(found)])[:, None]
        return found if inside.all() else np.where(inside, found, outside).astype(found.dtype)

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
        """Missing channels are 0, the fourth is 1."""
        kind = np.float32 if values.dtype.kind == "f" else values.dtype.kind + "4"
        words = np.zeros((4, values.shape[1]), kind)
        words[3] = 1
        words[: len(values)] = values
        return words.view(np.uint32)
