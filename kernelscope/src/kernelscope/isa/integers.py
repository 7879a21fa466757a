"""Integer arithmetic of PTX on NumPy values.

Values are NumPy arrays or scalars of the operand types' own dtypes (isa.DTYPE). Results wrap; where
PTX or the hardware defines more than wrapping (saturation, division by zero), the rule stands
beside the function. Nothing writes to its inputs.
"""

import numpy as np

from .bits import unsigned, width

_WIDER = {
    np.dtype(f"{sign}{size}"): np.dtype(f"{sign}{2 * size}") for sign in "iu" for size in (2, 4)
}
_U64 = np.uint64


# --- multiplication -------------------------------------------------------------------------------
def multiply_wide(a, b):
    """The full product, of twice the operands' width."""
    wider = _WIDER[a.dtype]
    return a.astype(wider) * b.astype(wider)


def _high_u64(a, b):
    """The upper 64 bits of an unsigned 64 x 64 product, from four 32 x 32 products."""
    low, shift = _U64(0xFFFFFFFF), _U64(32)
    a0, a1, b0, b1 = a & low, a >> shift, b & low, b >> shift
    middle = a1 * b0 + (a0 * b0 >> shift)
    other = a0 * b1 + (middle & low)
    return a1 * b1 + (middle >> shift) + (other >> shift)


def multiply_high(a, b):
    """The upper half of the full product."""
    if a.dtype.itemsize < 8:
        return (multiply_wide(a, b) >> _WIDER[a.dtype].type(width(a))).astype(a.dtype)
    high = _high_u64(unsigned(a), unsigned(b))
    if a.dtype.kind == "u":
        return high
    # two's complement: each negative factor counted the other one 2^64 times too much
    high = high.view(np.int64)
    return high - np.where(a < 0, b, np.int64(0))[()] - np.where(b < 0, a, np.int64(0))[()]


def multiply_24(high):
    """mul24: the 48-bit product of the low 24 bits; its bits 31..0, or 47..16 for `high`."""

    def multiply(a, b):
        eight = a.dtype.type(8)
        a, b = (a << eight) >> eight, (b << eight) >> eight
        product = multiply_wide(a, b)
        return (product >> product.dtype.type(16) if high else product).astype(a.dtype)

    return multiply


def saturating(operation):
    """`operation` on int64 copies of int32 values, clamped to int32."""

    def clamped(*values):
        out = operation(*(value.astype(np.int64) for value in values))
        return np.clip(out, -(2**31), 2**31 - 1).astype(np.int32)

    return clamped


# --- division -------------------------------------------------------------------------------------
def _magnitude(x):
    return unsigned(np.abs(x))  # |INT_MIN| wraps to INT_MIN, which reads 2^(n-1) unsigned


def _safe(divisor):
    return np.where(divisor == 0, divisor.dtype.type(1), divisor)[()]


def divide(a, b):
    """a / b truncated toward zero; division by zero gives all ones, as the hardware does."""
    if a.dtype.kind == "u":
        return np.where(b == 0, ~a.dtype.type(0), a // _safe(b))[()]
    quotient = (_magnitude(a) // _safe(_magnitude(b))).view(a.dtype)
    signed = np.where((a < 0) != (b < 0), -quotient, quotient)
    return np.where(b == 0, a.dtype.type(-1), signed)[()]


def remainder(a, b):
    """a - (a / b) * b, with the dividend's sign; by zero the hardware gives all ones here too."""
    if a.dtype.kind == "u":
        return np.where(b == 0, ~a.dtype.type(0), a % _safe(b))[()]
    rest = (_magnitude(a) % _safe(_magnitude(b))).view(a.dtype)
    return np.where(b == 0, a.dtype.type(-1), np.where(a < 0, -rest, rest))[()]


def sum_of_differences(a, b, c):
    """sad: c + |a - b|, the difference taken without overflow."""
    difference = np.where(a > b, a - b, b - a)[()]
    return c + difference


# --- carry chains ---------------------------------------------------------------------------------

# All chains share one flag, the adder's carry. The hardware subtracts by adding: a - b is
# a + ~b + 1, so that the flag says after a subtraction that nothing was borrowed. The PTX ISA calls
# it a borrow, which is the same within a chain of subtractions; CUDA's own 128-bit division relies
# on what `addc` finds after `sub.cc`.


def add_carry(a, b, carry=None):
    """(a + b + carry, carry out)."""
    a, b = unsigned(a), unsigned(b)
    total = a + b
    out = total < a
    if carry is not None:
        total = total + carry
        out = out | (carry & (total == 0))
    return total, out


def subtract_borrow(a, b, carry=None):
    """(a - b, whether nothing is borrowed); one less where there is a `carry` and it is false."""
    a, b = unsigned(a), unsigned(b)
    difference = a - b
    out = a >= b
    if carry is not None:
        out = out & (carry | (difference != 0))
        difference = difference - ~carry
    return difference, out


def carrying(step, reads, writes, product=None):
    """The function of an add.cc-like instruction from add_carry or subtract_borrow.

    step: the chain operation; product: for mad, what makes the first addend of the two factors.
    """

    def run(*values):
        *values, carry = values if reads else (*values, None)
        dtype = values[-1].dtype
        if product:
            a, b, c = values
            values = (product(a, b), c)
        out, carry = step(*values, carry)
        return (out.view(dtype), carry) if writes else out.view(dtype)

    return run
