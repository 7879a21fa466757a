"""Runs one row of the operation table on bit patterns and checks every lane against an oracle."""

import zlib

import numpy as np
from kernelscope.isa import table as isa

from .isa_oracle import bits_of

SPECIAL = {  # bit patterns in hexadecimal
    "f32": """
        0 1 7FFFFF 800000 800001 3F800000 3F800001 3F7FFFFF 7F7FFFFF 7F800000 7FC00000
        7F800001 33800000 33000000 4B000001 C00000 3F000000 40200000 4F000000 4EFFFFFF
        4F800000 5F000000 20000000""",
    "f64": """
        0 1 FFFFFFFFFFFFF 10000000000000 3FF0000000000000 3FF0000000000001 3FEFFFFFFFFFFFFF
        7FEFFFFFFFFFFFFF 7FF0000000000000 7FF8000000000000 3CA0000000000000 3810000000000000
        47EFFFFFF0000000 36A0000000000000 3FE0000000000000 4004000000000000 41E0000000000000
        43E0000000000000 3FF0000010000000 3FF0000030000000 1F00000000000000""",
    "f16": "0 1 3FF 400 3C00 3C01 7BFF 7C00 7E00 3800 4100 401",
    "bf16": "0 1 7F 80 3F80 3F81 7F7F 7F80 7FC0 3F00 4020 4F00",
}
SPECIAL = {kind: [int(bits, 16) for bits in text.split()] for kind, text in SPECIAL.items()}


def operand(kind, count, rng):
    """`count` bit patterns of a PTX type as Python ints: specials, random bits, and tame values."""
    if kind == "pred":
        return [int(x) for x in rng.integers(0, 2, count)]
    if kind.endswith("x2") and kind[0] != "e":
        halves, up = (operand(kind[:-2], count, rng) for _ in range(2)), bits_of(kind) // 2
        return [high << up | low for high, low in zip(*halves, strict=True)]
    width = bits_of(kind)
    if kind in SPECIAL:
        specials = [x | s for x in SPECIAL[kind] for s in (0, 1 << width - 1)]
    else:
        end, half = 1 << width, 1 << width - 1
        specials = [0, 1, 2, 7, 31, 32, 33, 64, 255, end - 1, end - 2, half, half - 1, half + 1]
        specials = [x & (1 << width) - 1 for x in specials]
    third = count // 3
    picked = [specials[i] for i in rng.integers(0, len(specials), count - 2 * third)]
    random = [
        int(x) & (1 << width) - 1 for x in rng.integers(0, 1 << 63, third, dtype=np.uint64) * 2 + 1
    ]
    return picked + random + _tame(kind, width, count - len(picked) - third, rng)


def _tame(kind, width, count, rng):
    """Small integers, or floats near one with few or many digits."""
    if kind not in SPECIAL:
        return [
            int(x) & (1 << width) - 1 for x in rng.integers(-40 if kind[0] == "s" else 0, 70, count)
        ]
    values = rng.standard_normal(count) * 2.0 ** rng.integers(-3, 4, count)
    values[::3] = np.round(values[::3] * 8) / 8
    if kind == "f64":
        return values.view(np.uint64).tolist()
    if kind == "f16":
        return values.astype(np.float16).view(np.uint16).tolist()
    bits = values.astype(np.float32).view(np.uint32)
    return (bits >> 16 if kind == "bf16" else bits).tolist()


def as_values(bits, kind):
    """Python ints as the read-only NumPy array that an operation takes."""
    dtype = isa.DTYPE[kind]
    if kind == "pred":
        values = np.array(bits, bool)
    else:
        values = np.array(bits, np.dtype(f"u{dtype.itemsize}")).view(dtype)
    values.flags.writeable = False
    return values


def as_bits(value):
    """A result array or scalar as a list of Python ints."""
    value = np.atleast_1d(value)
    return (
        (value if value.dtype == bool else value.view(f"u{value.dtype.itemsize}"))
        .astype(object)
        .tolist()
    )


def run(operation, columns):
    """The operation's results as a tuple of arrays or scalars (value(s), then the carry)."""
    with np.errstate(all="ignore"):
        out = operation.fn(*columns)
    several = len(operation.results) > 1 or operation.writes_carry
    out = out if several else (out,)
    kinds = operation.results + ("pred",) * operation.writes_carry
    for value, kind in zip(out, kinds, strict=True):
        assert value.dtype == isa.DTYPE[kind], (operation.name, kind, value.dtype)
    return out


def check(opcode, oracle, count=90, agree=None, lanes=None):
    """Check `opcode` against `oracle`, which maps operand bits to result bits (or a tuple of them).

    A None from the oracle is any NaN of .f64; `agree(expected, got)` replaces equality.
    `lanes` gives operand bits of its own, a list of rows.
    """
    operation = isa.lookup(opcode)
    kinds = operation.sources + ("pred",) * operation.reads_carry
    rng = np.random.default_rng(zlib.crc32(opcode.encode()))
    if lanes is None:
        columns = [operand(kind, count, rng) for kind in kinds]
        columns = [[column[i] for i in rng.permutation(count)] for column in columns]
    else:
        columns = [list(column) for column in zip(*lanes, strict=True)]
    values = [as_values(column, kind) for column, kind in zip(columns, kinds, strict=True)]
    results = run(operation, values)
    got = list(zip(*map(as_bits, results), strict=True))
    for row, found in zip(zip(*columns, strict=True), got, strict=True):
        wanted = oracle(*row)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        same = agree(wanted, found) if agree else all(map(_equal, wanted, found))
        assert same, f"{opcode} {[hex(x) for x in row]}: got {found}, expected {wanted}"
    _check_mixed(operation, values, got)


def by_name(opcode):
    """The word that names an operation: "add" of "add.rn.f32"."""
    return opcode.partition(".")[0]


def by_type(opcode):
    """The type that an operation reads: "f32" of "cvt.rn.f16.f32"."""
    return opcode.rpartition(".")[2]


def groups(key, cases):
    """The groups that `key` makes of the opcodes, in their order."""
    return list(dict.fromkeys(map(key, cases)))


def check_all(group, key, cases, count=90):
    """Check every opcode of a group; a failure names each one that is wrong."""
    wrong = []
    for opcode, oracle in cases.items():
        if key(opcode) == group:
            try:
                check(opcode, oracle, count)
            except AssertionError as error:
                wrong.append(str(error).partition("\n")[0])
    assert not wrong, "\n".join(wrong)


def _equal(wanted, found):
    if wanted is None:
        return found & 0x7FFFFFFFFFFFFFFF > 0x7FF0000000000000
    return wanted == found


def _check_mixed(operation, values, got):
    """Scalars in place of arrays give the same lanes: each operand alone, then all of them."""
    everything = set(range(len(values)))
    for turn, fixed in enumerate([*({i} for i in everything), everything]):
        lane = turn * 7 % len(got)
        mixed = [x[lane] if i in fixed else x[lane : lane + 2] for i, x in enumerate(values)]
        results = run(operation, mixed)
        assert tuple(as_bits(x)[0] for x in results) == got[lane], (operation.name, fixed)
        for result in results:
            assert isinstance(result, np.ndarray) == (fixed != everything), (operation.name, fixed)
