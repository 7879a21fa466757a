"""wgmma in the comparison: how tensor cores add, and how descriptors lay out tiles.

Values are tried on the families of inputs that mma has; layouts on tiles of random bits, for each
swizzle, each order in memory, tiles that begin within a line, and base offsets.
"""

import itertools
import zlib
from dataclasses import dataclass

import numpy as np
from kernelscope.differential.matrix import group_kernels
from kernelscope.differential.matrix.matrices import (
    ANY_BITS,
    DTYPES,
    FAMILIES,
    INTEGER_FAMILIES,
    LIMITS,
    rounded,
)
from kernelscope.isa.matrix import group_multiplication
from kernelscope.isa.matrix.descriptors import CHUNK, chunk_addresses
from kernelscope.isa.matrix.layouts import BITS
from kernelscope.isa.matrix.warpgroup import GroupMultiplication, places

EACH = 3  # warp groups of a family
LINES = {0: 16, 1: 128, 2: 64, 3: 32}  # swizzle mode -> bytes of a line
_PATTERN = 1024  # bytes: tiles begin at multiples
_ROWS = 8  # lines of a pattern
_EXAMPLES = 3
VALUES = """
m64n16k16.f32.f16.f16 m64n16k16.f16.f16.f16 m64n16k16.f32.bf16.bf16 m64n16k8.f32.tf32.tf32
m64n16k32.f32.e4m3.e4m3 m64n16k32.f32.e5m2.e4m3 m64n16k32.f16.e4m3.e5m2 m64n16k32.f32.e5m2.e5m2
m64n16k32.s32.s8.s8 m64n16k32.s32.u8.s8 m64n16k32.satfinite.s32.s8.u8
""".split()
_OTHER_TYPES = "m64n24k8.f32.tf32.tf32 m64n24k32.f32.e4m3.e4m3 m64n24k32.s32.s8.s8".split()


@dataclass(frozen=True)
class GroupCase:
    """One wgmma: what follows its name, and how it is called.

    swizzle: the mode of both tiles; held: does A come from registers? transposed: are A and B
    MN-major? negated: A, B; keeps: scale-d; step: k-steps between the beginning of a line and the
    tile; base: lines between the beginning of a pattern and the tile; families: of inputs.
    """

    form: str
    swizzle: int = 0
    held: bool = False
    transposed: tuple[bool, bool] = (False, False)
    negated: tuple[bool, bool] = (False, False)
    keeps: bool = True
    step: int = 0
    base: int = 0
    families: tuple[str, ...] = (ANY_BITS,)

    @property
    def opcode(self) -> str:
        return f"wgmma.mma_async.sync.aligned.{self.form}"

    @property
    def product(self) -> GroupMultiplication:
        return group_multiplication(self.opcode)

    @property
    def name(self) -> str:
        """The name of an item in the record."""
        words = [self.opcode, f"{LINES[self.swizzle]}-byte lines"]
        words += ["A in registers"] * self.held
        words += [f"{x} MN-major" for x, is_so in zip("AB", self.transposed, strict=True) if is_so]
        words += [f"-{x}" for x, is_so in zip("AB", self.negated, strict=True) if is_so]
        words += ["scale-d 0"] * (not self.keeps)
        words += [f"step {self.step}"] * bool(self.step) + [f"base {self.base}"] * bool(self.base)
        return ", ".join(words)

    @property
    def groups(self) -> int:
        return EACH * len(self.families)

    def literals(self) -> list[int]:
        """The operands behind scale-d."""
        form = self.product
        found = [-1 if one else 1 for one in self.negated] if form.scales else []
        if form.transposes:
            found += [int(one) for one in self.transposed[self.held :]]
        return found

    def tile(self, name: str) -> tuple[int, int, int, bool]:
        """(rows, k, bytes that are set aside, is it K-major) of operand "A" or "B"."""
        m, n, k = self.product.shape
        rows, k_major = m if name == "A" else n, not self.transposed[name == "B"]
        line = LINES[self.swizzle]
        if k_major:
            size = -(-rows // _ROWS) * _ROWS * max(line, 2 * CHUNK)
        else:
            size = -(-2 * rows // line) * line * k
        size += line * _ROWS * bool(self.base)
        return rows, k, -(-size // _PATTERN) * _PATTERN, k_major

    def descriptor(self, name: str, start: int) -> int:
        """The descriptor of an operand whose memory begins at `start`, patterns one after another.

        Without a swizzle, the two offsets lead to chunks in an order of their own.
        """
        rows, k, _, k_major = self.tile(name)
        line = LINES[self.swizzle]
        pattern = _ROWS * line
        leading, stride = CHUNK, pattern
        if k_major and line == CHUNK:
            leading, stride = rows // _ROWS * pattern, pattern
        elif not k_major:
            across = -(-2 * rows // line)  # patterns, of 2-byte elements
            leading, stride = pattern, across * pattern
            if line == CHUNK:
                leading, stride = stride, leading
        start += self.step * 2 * CHUNK + self.base * 128
        fields = start, leading, stride
        bits = sum(value // CHUNK << 16 * i for i, value in enumerate(fields))
        return bits | self.base << 49 | self.swizzle << 62

    # -- inputs ---------------------------------------------------------------------------------
    def matrices(self) -> list[np.ndarray]:
        """A, B transposed and C, (groups, rows, columns) each."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        parts = [self._family(rng, name) for name in self.families]
        return [np.concatenate(group) for group in zip(*parts, strict=True)]

    def _family(self, rng, name: str) -> list[np.ndarray]:
        form = self.product
        m, n, k = form.shape
        sizes, kinds = [(EACH, m, k), (EACH, n, k), (EACH, m, n)], (form.a, form.b, form.d)
        types = [DTYPES[kind] for kind in kinds]
        if name == "near_the_limits":
            a, b = (rng.integers(0, 3, s).astype(t) for s, t in zip(sizes[:2], types, strict=False))
            return [a, b, rng.choice([-(2**31), 2**31 - 1], sizes[2]).astype(np.int32)]
        if name == ANY_BITS:
            return [
                rng.integers(0, 256, (*s[:-1], s[-1] * t.itemsize), dtype=np.uint8).view(t)
                for s, t in zip(sizes, types, strict=True)
            ]
        values = FAMILIES[name](rng, sizes, LIMITS[form.a])
        with np.errstate(over="ignore", invalid="ignore"):
            return [rounded(value, kind) for value, kind in zip(values, kinds, strict=True)]

    def image(self, matrix: np.ndarray, bits: int, name: str, image: np.ndarray) -> None:
        """Put an operand, (groups, rows, k), where its descriptor says, in (groups, bytes)."""
        rows, k, _, k_major = self.tile(name)
        raw = matrix.view(f"u{matrix.itemsize}")
        lines = np.ascontiguousarray(raw if k_major else raw.swapaxes(1, 2))
        chunks = lines.view(np.uint8).reshape(len(raw), -1, CHUNK)
        at = chunk_addresses(bits, rows, k, k_major).reshape(-1)
        image[:, at[:, None] + np.arange(CHUNK)] = chunks

    def arguments(self) -> list[np.ndarray]:
        """Arrays of bytes: image, descriptors, A's registers, D's registers."""
        form, (a, b, c) = self.product, self.matrices()
        starts = {"A": 0, "B": self.tile("A")[2]}
        image = np.zeros((self.groups, self.image_bytes), np.uint8)
        words = {name: self.descriptor(name, start) for name, start in starts.items()}
        self.image(b, words["B"], "B", image)
        registers = np.zeros(4, np.uint8)
        if self.held:
            registers = in_registers(a, form.held_a)
        else:
            self.image(a, words["A"], "A", image)
        descriptors = np.array([[words["A"], words["B"]]] * self.groups, np.uint64)
        found = image, descriptors, registers, in_registers(c, form.held_d)
        return [np.ascontiguousarray(one).view(np.uint8).reshape(-1) for one in found]

    @property
    def image_bytes(self) -> int:
        return self.tile("A")[2] + self.tile("B")[2]

    def entry(self, name: str) -> str:
        """The PTX of its kernel."""
        keeps, literals = self.keeps, self.literals()
        size, form = self.image_bytes, self.product
        return group_kernels.multiply(name, form, size, self.held, keeps, literals)


def in_registers(matrix: np.ndarray, held) -> np.ndarray:
    """(groups, 64, columns) elements as registers: those of lane 0, of lane 1, to lane 127."""
    raw = matrix.view(f"u{matrix.itemsize}").reshape(len(matrix), -1)
    words = np.empty_like(raw)
    words[:, places(held)] = raw
    words = words.view(np.uint32).reshape(len(raw), held.registers, -1)
    return np.ascontiguousarray(words.swapaxes(1, 2))


def from_registers(words: np.ndarray, held, groups: int) -> np.ndarray:
    """(groups, 64, columns) bits of elements; the opposite of in_registers."""
    found = words.view(np.uint32).reshape(groups, -1, held.registers).swapaxes(1, 2)
    raw = np.ascontiguousarray(found).reshape(groups, -1).view(f"u{BITS[held.kind] // 8}")
    return raw[:, places(held)].reshape(groups, -1, held.columns)


# -- cases ----------------------------------------------------------------------------------------
def cases() -> list[GroupCase]:
    """Every wgmma that is compared."""
    return list(dict.fromkeys([*value_cases(), *layout_cases(), *literal_cases()]))


def value_cases() -> list[GroupCase]:
    """Each combination of types on each family of inputs."""
    found = []
    for form in VALUES:
        integers = "s32" in form
        families = INTEGER_FAMILIES if integers else (*FAMILIES, ANY_BITS)
        found.append(GroupCase(form, families=families))
    return found


def layout_cases() -> list[GroupCase]:
    """Each swizzle and order of A and B, sizes that no pattern divides, and offsets."""
    orders = list(itertools.product((False, True), repeat=2))
    found = []
    for swizzle, order in itertools.product(LINES, orders):
        for n in (8, 40, 136):
            found.append(GroupCase(f"m64n{n}k16.f32.f16.f16", swizzle, transposed=order))
        if not order[0]:
            found.append(GroupCase("m64n40k16.f32.bf16.bf16", swizzle, True, order))
    for swizzle, form in itertools.product(LINES, _OTHER_TYPES):
        found += [GroupCase(form, swizzle), GroupCase(form, swizzle, held=True)]
    for swizzle, steps in ((1, 4), (2, 2)):
        found += [GroupCase("m64n32k16.f32.f16.f16", swizzle, step=i) for i in range(1, steps)]
        found += [GroupCase("m64n32k16.f32.f16.f16", swizzle, base=i) for i in range(1, steps)]
    return found


def literal_cases() -> list[GroupCase]:
    """Negated operands, sums that are left out, the largest size."""
    found = [GroupCase("m64n256k16.f32.bf16.bf16", 1)]
    for form in ("m64n16k16.f16.f16.f16", "m64n16k8.f32.tf32.tf32", "m64n16k32.f32.e4m3.e4m3"):
        for negated in itertools.product((False, True), repeat=2):
            for keeps, held in itertools.product((False, True), repeat=2):
                if any(negated) or held or not keeps:
                    chosen = {"negated": negated, "keeps": keeps, "held": held}
                    found.append(GroupCase(form, families=("random",), **chosen))
    return found


# -- running --------------------------------------------------------------------------------------
def run_cases(machine, chosen: list[GroupCase]) -> list:
    """The registers of D of each case after its launch, as bytes, or its exception."""
    entries = [case.entry(f"k{i}") for i, case in enumerate(chosen)]
    try:
        module = machine.load_ptx(group_kernels.HEAD + "\n".join(entries))
    except Exception as error:
        return [error] * len(chosen)
    found = []
    for i, case in enumerate(chosen):
        try:
            grid, block = (case.groups,), (group_kernels.THREADS,)
            found.append(machine.run(module, f"k{i}", grid, block, case.arguments())[-1])
        except Exception as error:
            found.append(error)
    return found


def compare(case: GroupCase, first: np.ndarray, second: np.ndarray) -> dict:
    """One case's record: `mismatches` counts sums that differ, `families` by family."""
    held = case.product.held_d
    a, b = (from_registers(x, held, case.groups) for x in (first, second))
    apart = a != b
    counts = apart.reshape(len(case.families), -1).sum(axis=1)
    record = {"sums": int(a.size), "mismatches": int(apart.sum())}
    if apart.any():
        named = zip(case.families, counts, strict=True)
        record["families"] = {name: int(count) for name, count in named if count}
        wrong = np.argwhere(apart)[:: max(1, int(apart.sum()) // _EXAMPLES)][:_EXAMPLES]
        record["examples"] = [
            {
                "family": case.families[group // EACH],
                "place": [int(group), int(row), int(column)],
                "first": hex(int(a[group, row, column])),
                "second": hex(int(b[group, row, column])),
            }
            for group, row, column in wrong
        ]
    return record
