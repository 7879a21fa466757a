"""The sum that a linear filter makes of neighbouring texels, as an H200 makes it.

The CUDA C++ Programming Guide says of the weights only that they are "stored in 9-bit fixed point
format with 8 bits of fractional value". What follows was fitted to what one H200 gave, all of which
it explains bit for bit. The weights of a sum are whole 256ths and sum to 256:

- in one dimension 256 - a and a; in two, where the fractions are a and b, that of the farthest
  corner is a * b / 256 rounded, and the others are what is left of a, of b and of 256.
- Floats: texels that are subnormal are zero. Each is cut to the bits of its format and 4 more,
  counted from the first bit of the largest one that has a weight. Their exact sum is rounded to
  the format, ties away from zero, and for float32 a subnormal sum is zero.
- Integers read as fractions: the sum of the integers is widened from 8 bits to 16 by repeating its
  bits, and rounded to a whole number, ties up. That number is divided by 65535 or 32767.
"""

import numpy as np

FRACTION_BITS = 8
ONE = 1 << FRACTION_BITS
_GUARD = 4  # bits that a smaller texel keeps below the last one of the largest
_NORMAL = 2.0**-126  # the smallest float32 that is not subnormal
_FLOATS = {2: (11, -24, 0x7FFFE000), 4: (24, -150, 0x7FFFFFFF)}  # bits, lowest, NaN by itemsize


def weights(fractions: list[np.ndarray]) -> np.ndarray:
    """(corners, lanes) int64 of 256ths: of texel 0, 1 along x; in two dimensions of the next row.

    fractions: x, and y for two dimensions; (lanes,) from 0 to 255.
    """
    if len(fractions) == 1:
        (a,) = fractions
        return np.array([ONE - a, a])
    a, b = fractions
    last = (a * b + ONE // 2) >> FRACTION_BITS
    return np.array([ONE - a - b + last, a - last, b - last, last])


def sum_of_floats(
    texels: np.ndarray, weight: np.ndarray, near: np.ndarray, size: int
) -> np.ndarray:
    """(channels, lanes) float32: the weighed texels.

    texels: (corners, channels, lanes) float64; weight, near: (corners, lanes), the weights and
    whether a corner is within reach, which one of weight 0 may be; size: bytes of a texel's number.
    """
    bits, lowest, nan = _FLOATS[size]
    weight, near, finite = weight[:, None], near[:, None], np.isfinite(texels)
    flushed = np.where(np.abs(texels) < _NORMAL, np.copysign(0.0, texels), texels)
    counted = np.where((weight > 0) & finite, flushed, 0.0)
    shift = bits + _GUARD - np.frexp(np.abs(counted).max(axis=0))[1]
    exact = np.ldexp((np.trunc(np.ldexp(counted, shift)) * weight).sum(axis=0), -shift)
    exact = np.ldexp(exact, -FRACTION_BITS)
    negative = np.signbit(flushed) & (flushed == 0)
    zero = np.where((negative | ~near).all(axis=0), -0.0, 0.0)
    found = np.where(exact == 0, zero, _rounded(exact, bits, lowest))
    found = np.where(np.abs(found) < _NORMAL, np.copysign(0.0, found), found)
    if not finite.all():
        with np.errstate(invalid="ignore"):  # infinities of both signs
            other = np.where(near & ~finite, texels, 0.0).sum(axis=0)
        found = np.where(other == 0, found, other)
    with_nan = np.where(np.isnan(found), np.uint32(nan).view(np.float32), found)
    return with_nan.astype(np.float32)


def _rounded(values: np.ndarray, bits: int, lowest: int) -> np.ndarray:
    """Values of so many bits, none below 2**lowest; ties away from zero."""
    last = np.maximum(np.frexp(values)[1] - bits, lowest)
    return np.ldexp(np.copysign(np.floor(np.abs(np.ldexp(values, -last)) + 0.5), values), last)


def sum_of_fractions(texels: np.ndarray, weight: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """(channels, lanes) float32: the weighed texels as fractions of the largest integer.

    texels: (corners, channels, lanes) of numbers of the dtype; weight: (corners, lanes).
    """
    total = (texels.astype(np.int64) * weight[:, None]).sum(axis=0)
    if dtype.itemsize == 2:
        whole = (total + 128) >> 8
    elif dtype.kind == "u":
        whole = (total * 257 + 128) >> 8
    else:
        whole = (8 * total + (total >> 4) + (total >> 12) + 4) >> 3
    largest = 65535 if dtype.kind == "u" else 32767
    return (np.maximum(whole, -largest) / largest).astype(np.float32)
