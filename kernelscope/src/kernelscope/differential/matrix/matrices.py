"""The matrix instructions in the comparison: which are tried, with which inputs, and the verdict.

Products are tried on FAMILIES of inputs, each made to show one property of how tensor cores add.
Everything else moves random bits, which shows each element's lane and register.
"""

import functools
import zlib
from dataclasses import dataclass

import numpy as np
from kernelscope.differential.matrix import kernels as matrix_kernels
from kernelscope.isa import float16
from kernelscope.isa.matrix import multiplication, transfer
from kernelscope.isa.narrow.float8 import narrow

DTYPES = {  # bf16 and 8-bit floats as their bits
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(np.uint16),
    "tf32": np.dtype(np.float32),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "e4m3": np.dtype(np.uint8),
    "e5m2": np.dtype(np.uint8),
    "s8": np.dtype(np.int8),
    "u8": np.dtype(np.uint8),
    "s32": np.dtype(np.int32),
}
PRODUCTS = """
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32
mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 mma.sync.aligned.m16n8k8.row.col.f16.f16.f16.f16
mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32
mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32
mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32
mma.sync.aligned.m16n8k4.row.col.f32.tf32.tf32.f32
mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32
mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e4m3.f32
mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 mma.sync.aligned.m16n8k16.row.col.s32.u8.s8.s32
mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32
mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32
mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64
wmma.mma.sync.aligned.row.col.m16n16k8.f32.tf32.tf32.f32
wmma.mma.sync.aligned.row.col.m8n8k4.rn.f64.f64.f64.f64
""".split()
_SHAPES = ("m16n16k16", "m32n8k16", "m8n32k16")
_SUMS = """
f32.f32 f32.f16 f16.f32 f16.f16 f32.bf16.bf16.f32 s32.s8.s8.s32 s32.u8.u8.s32.satfinite
""".split()
PRODUCTS += [f"wmma.mma.sync.aligned.row.col.{s}.{types}" for s in _SHAPES for types in _SUMS]
_MOVED = {
    "f16": (_SHAPES, "f16 f32"),
    "bf16": (_SHAPES, ""),
    "s8": (_SHAPES, "s32"),
    "tf32": (("m16n16k8",), "f32"),
    "f64": (("m8n8k4",), "f64"),
}
ROWS = [
    f"{name}.sync.aligned.m8n8.x{count}{order}.shared.b16"
    for name in ("ldmatrix", "stmatrix")
    for count in (1, 2, 4)
    for order in ("", ".trans")
]
GAP = 16  # elements between two lines of a matrix in memory
EACH = 12  # warps of a family
_EXAMPLES = 3


def fragments() -> list[str]:
    """Every wmma.load and wmma.store."""
    found = []
    for kind, (shapes, sums) in _MOVED.items():
        for shape in shapes:
            for space in (".global", ".shared", ""):
                for order in ("row", "col"):
                    middle = f"sync.aligned.{order}.{shape}{space}"
                    found += [f"wmma.load.{one}.{middle}.{kind}" for one in "ab"]
                    for one in sums.split():
                        found += [f"wmma.load.c.{middle}.{one}", f"wmma.store.d.{middle}.{one}"]
    return list(dict.fromkeys(found))


# --- inputs of products ---------------------------------------------------------------------------


@dataclass(frozen=True)
class OperandLimits:
    """The extent of a type, in powers of two."""

    least: int  # exponent of the least normal number
    largest: int  # exponent of the largest
    digits: int  # of the fraction


LIMITS = {
    "f16": OperandLimits(-14, 15, 10),
    "bf16": OperandLimits(-126, 127, 7),
    "tf32": OperandLimits(-126, 127, 10),
    "f32": OperandLimits(-126, 127, 23),
    "e4m3": OperandLimits(-6, 8, 3),
    "e5m2": OperandLimits(-14, 15, 2),
}


def _scaled(rng, shape, low, high):
    """Numbers with a random sign and fraction, and exponents from low to high."""
    return rng.choice([-1, 1], shape) * np.ldexp(
        rng.uniform(1, 2, shape), rng.integers(low, high + 1, shape)
    )


def _random(rng, sizes, limits):
    return [rng.normal(size=size) for size in sizes]


def _wide(rng, sizes, limits):
    """Exponents so far apart that most products lose bits."""
    reach = min(12, limits.largest - 1)
    return [_scaled(rng, size, -min(reach, -limits.least), reach // 2) for size in sizes]


def _cancelling(rng, sizes, limits):
    """Each product meets its opposite; the little that c adds is what is left."""
    a, b, c = _random(rng, sizes, limits)
    a[..., 1::2], b[..., 1::2] = a[..., ::2], -b[..., ::2]
    return a, b, c * 2.0**-12


def _one_big(rng, sizes, limits):
    """One product near 1, the others 2^-14 to 2^-28 of it: which of their bits count?"""
    a, b, c = (np.zeros(size) for size in sizes)
    low = max(limits.least // 2, -14)
    a[...] = _scaled(rng, a.shape, low, max(low, -7))
    b[...] = _scaled(rng, b.shape, low, max(low, -7))
    place = rng.integers(0, a.shape[-1], a.shape[0])
    for warp, i in enumerate(place):
        a[warp, :, i], b[warp, :, i] = rng.uniform(1, 2), rng.choice([-1, 1]) * rng.uniform(1, 2)
    return a, b, c


def _big_sum(rng, sizes, limits):
    """The sum so far is 2^14 to 2^26 times the products."""
    a, b, _ = (_scaled(rng, size, -2, 0) for size in sizes)
    top = 15 if limits.largest == 15 else 26
    return a, b, _scaled(rng, sizes[2], top - 12, top - 1)


def _subnormal(rng, sizes, limits):
    """Operands and sums below the least normal number."""
    a = _scaled(rng, sizes[0], limits.least - limits.digits, limits.least)
    b = _scaled(rng, sizes[1], -1, 1)
    b[::2] = _scaled(rng, b[::2].shape, limits.least - limits.digits, limits.least)
    return a, b, _scaled(rng, sizes[2], -149, -126) * rng.integers(0, 2, sizes[2])


def _zeros(rng, sizes, limits):
    """Zeros beside very large numbers, and small products: does a product of zero align them?"""
    low = max(limits.least, -12)
    a, b = (_scaled(rng, size, low, low + 2) for size in sizes[:2])
    large = 2.0 ** (limits.largest - 1)
    k = sizes[0][-1]
    for warp in range(sizes[0][0]):
        i = warp % k
        a[warp, :, i], b[warp, :, i] = (0.0, large) if warp % 2 else (-0.0, -large)
    return a, b, np.zeros(sizes[2])


def _negative_zeros(rng, sizes, limits):
    a, b = -np.zeros(sizes[0]), np.abs(rng.normal(size=sizes[1]))
    return a, b, np.where(rng.integers(0, 2, sizes[2]) > 0, -0.0, 0.0)


def _overflowing(rng, sizes, limits):
    """Sums at and beyond the largest number."""
    half = limits.largest - 1 if limits.largest < 100 else 63
    a, b = (_scaled(rng, size, half - 1, half) for size in sizes[:2])
    b[::2] = np.abs(b[::2]) * np.sign(a[::2, :1, :])  # half of the warps: one sign a row
    return a, b, _scaled(rng, sizes[2], 126, 127)


def _special(rng, sizes, limits):
    """Infinities and NaN among ordinary numbers."""
    found = _random(rng, sizes, limits)
    for one in found:
        chosen = rng.random(one.shape) < 0.01
        one[chosen] = rng.choice([np.inf, -np.inf, np.nan], int(chosen.sum()))
    return found


def _integers(rng, sizes, limits):
    """Small integers: sums are exact, and ties where they are rounded to .f16."""
    top = 2 ** min(limits.digits + 1, 7)
    return [rng.integers(-top, top + 1, size).astype(float) for size in sizes]


FAMILIES = {
    function.__name__.strip("_"): function
    for function in (
        _random,
        _wide,
        _cancelling,
        _one_big,
        _big_sum,
        _subnormal,
        _zeros,
        _negative_zeros,
        _overflowing,
        _special,
        _integers,
    )
}
ANY_BITS = "any_bits"
INTEGER_FAMILIES = ("any_bits", "near_the_limits")


def families(opcode: str) -> tuple[str, ...]:
    """The names of the families of an opcode's inputs; EACH warps of the first, then the next."""
    kind = multiplication(opcode).a.kind
    if kind in ("s8", "u8"):
        return INTEGER_FAMILIES
    return ("random",) if kind == "f64" else (*FAMILIES, ANY_BITS)


@functools.lru_cache(maxsize=64)
def operands(opcode: str) -> tuple[np.ndarray, ...]:
    """Registers of A, B and C as bytes: (warps, 32 * elements) of each one's type."""
    form = multiplication(opcode)
    rng = np.random.default_rng(zlib.crc32(opcode.encode()))
    m, n, k = form.shape
    sizes = [(EACH, m, k), (EACH, n, k), (EACH, m, n)]
    parts = [_family(rng, name, form, sizes) for name in families(opcode)]
    matrices = [np.concatenate(group) for group in zip(*parts, strict=True)]
    layouts = form.a, form.b, form.c
    found = []
    for matrix, held in zip(matrices, layouts, strict=True):
        matrix = matrix.swapaxes(1, 2) if held.transposed else matrix
        found.append(np.ascontiguousarray(matrix.reshape(len(matrix), -1)[:, held.place]))
    return tuple(found)


def _family(rng, name: str, form, sizes) -> list[np.ndarray]:
    kinds = form.a.kind, form.b.kind, form.c.kind
    types = [DTYPES[kind] for kind in kinds]
    if name == "near_the_limits":
        both = zip(sizes, types, strict=True)
        a, b = (rng.integers(0, 3, size).astype(t) for size, t in [*both][:2])
        return [a, b, rng.choice([-(2**31), 2**31 - 1], sizes[2]).astype(np.int32)]
    if name == ANY_BITS:
        return [
            rng.integers(0, 256, (*size[:-1], size[-1] * t.itemsize), dtype=np.uint8).view(t)
            for size, t in zip(sizes, types, strict=True)
        ]
    if form.a.kind == "f64":
        return [_scaled(rng, size, -20, 20) for size in sizes]
    values = FAMILIES[name](rng, sizes, LIMITS[form.a.kind])
    with np.errstate(over="ignore", invalid="ignore"):
        return [rounded(value, kind) for value, kind in zip(values, kinds, strict=True)]


def rounded(values: np.ndarray, kind: str) -> np.ndarray:
    """float64 values in the type that DTYPES names; .tf32 keeps bits that it does not use."""
    if kind == "bf16":
        return float16.narrow(values, kind)
    if kind in ("e4m3", "e5m2"):
        return narrow(values, kind, False).astype(np.uint8)
    return values.astype(DTYPES[kind])


# --- running --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MatrixCase:
    """One matrix instruction: its opcode and how its kernel is called."""

    opcode: str

    @property
    def root(self) -> str:
        return ".".join(self.opcode.split(".")[: 2 if self.opcode.startswith("wmma") else 1])

    @property
    def multiplies(self) -> bool:
        return self.root in ("mma", "wmma.mma")

    def entry(self, name: str) -> str:
        """The PTX of its kernel."""
        if self.multiplies:
            return matrix_kernels.multiply(name, self.opcode)
        if self.root.startswith("wmma"):
            lines, length = self.extent()
            return matrix_kernels.fragment(name, self.opcode, length + GAP, lines)
        if self.root == "movmatrix":
            return matrix_kernels.transpose(name)
        return matrix_kernels.rows(name, self.opcode)

    def extent(self) -> tuple[int, int]:
        """(lines, elements of a line) of a fragment's matrix in memory."""
        form = transfer(self.opcode)
        size = form.layout.rows, form.layout.columns
        return size[::-1] if form.across else size

    def arguments(self) -> list[np.ndarray]:
        """Arrays of bytes; all of them may be written."""
        if self.multiplies:
            form, given = multiplication(self.opcode), operands(self.opcode)
            out = np.zeros((len(given[0]), form.d.place.size), DTYPES[form.d.kind])
            return [_bytes(one) for one in (*given, out)]
        rng = np.random.default_rng(zlib.crc32(self.opcode.encode()))
        if self.root.startswith("wmma"):
            held, (lines, length) = transfer(self.opcode).layout, self.extent()
            size = held.bits // 8
            matrix = EACH * lines * (length + GAP) * size
            return [_random_bytes(rng, one) for one in (matrix, EACH * held.place.size * size)]
        words = 4 * 32 * EACH
        if self.root == "movmatrix":
            return [_random_bytes(rng, words), _random_bytes(rng, words)]
        rows = matrix_kernels.SHARED_BYTES // 16
        offsets = np.stack([rng.permutation(rows)[:32] for _ in range(EACH)]) * 16
        return [
            _random_bytes(rng, EACH * matrix_kernels.SHARED_BYTES),
            _bytes(offsets.astype(np.uint32)),
            _random_bytes(rng, 4 * words),
        ]

    @property
    def warps(self) -> int:
        return EACH * (len(families(self.opcode)) if self.multiplies else 1)


def _bytes(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint8).reshape(-1)


def _random_bytes(rng, count: int) -> np.ndarray:
    return rng.integers(0, 256, count, dtype=np.uint8)


def cases() -> list[MatrixCase]:
    """Every matrix instruction that is compared."""
    opcodes = [*PRODUCTS, *fragments(), *ROWS, "movmatrix.sync.aligned.m8n8.trans.b16"]
    return [MatrixCase(opcode) for opcode in opcodes]


def run_cases(machine, chosen: list[MatrixCase], arch: str) -> list:
    """The arrays of bytes of each case after its launch, or its exception."""
    entries = [case.entry(f"k{i}") for i, case in enumerate(chosen)]
    try:
        module = machine.load_ptx(matrix_kernels.module_text(entries, arch))
    except Exception as error:
        return [error] * len(chosen)
    found = []
    for i, case in enumerate(chosen):
        try:
            out = machine.run(module, f"k{i}", (case.warps,), (32,), case.arguments())
            found.append(out)
        except Exception as error:
            found.append(error)
    return found


def compare(case: MatrixCase, first: list[np.ndarray], second: list[np.ndarray]) -> dict:
    """One instruction's record: `mismatches` counts elements that differ, `families` by family."""
    if not case.multiplies:
        apart = sum(int((a != b).sum()) for a, b in zip(first, second, strict=True))
        return {"bytes": sum(a.size for a in first), "mismatches": apart}
    held = multiplication(case.opcode).d
    a, b = (x[-1].view(f"u{held.bits // 8}").reshape(case.warps, -1) for x in (first, second))
    apart = a != b
    names = families(case.opcode)
    counts = apart.reshape(len(names), -1).sum(axis=1)
    record = {"sums": int(a.size), "mismatches": int(apart.sum())}
    if apart.any():
        record["families"] = {n: int(c) for n, c in zip(names, counts, strict=True) if c}
        places = np.argwhere(apart)[:: max(1, int(apart.sum()) // _EXAMPLES)][:_EXAMPLES]
        record["examples"] = [
            {
                "family": names[warp // EACH],
                "warp": int(warp),
                "element": int(at),
                "first": hex(int(a[warp, at])),
                "second": hex(int(b[warp, at])),
            }
            for warp, at in places
        ]
    return record
