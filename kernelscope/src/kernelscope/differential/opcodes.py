"""Every row of the simulator's operation table as PTX: programs of one instruction, and inputs.

An opcode's program loads each lane's operands, executes the instruction once and stores the
results; flags travel as whole words. Many programs share a module, so that one call of the
assembler serves hundreds of opcodes.
"""

import itertools
import re
import shutil
import subprocess
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from kernelscope.isa import table as isa
from kernelscope.isa.narrow import VIDEO_ROWS

LANES = 4096
ROUNDINGS = {"rn", "rz", "rm", "rp", "rni", "rzi", "rmi", "rpi", "rna", "approx", "full"}
ORDER = "rn rz rm rp rni rzi rmi rpi rna approx full ftz satfinite relu NaN xorsign abs sat".split()
# Modifiers of video instructions in PTX's order: one of each group, or none where that may be.
VIDEO = ("po", "sat", "clamp wrap", "eq ne lt le gt ge", "shr7 shr15", "add min max", "negab negc")
DEMANDED = ("clamp wrap", "eq ne lt le gt ge")
LOGIC = (0xCA, 0x96, 0xE8, 0x1B, 0x80, 0xFE)  # truth tables of lop3, an immediate
FLOATS = {"f32": (8, 23), "f64": (11, 52), "f16": (5, 10), "bf16": (8, 7)}  # exponent, fraction


@dataclass(frozen=True)
class Opcode:
    """One instruction text; `immediate` is lop3's truth table."""

    text: str
    immediate: int | None = None

    @property
    def label(self) -> str:
        return self.text if self.immediate is None else f"{self.text} 0x{self.immediate:02x}"

    @property
    def operation(self) -> isa.Operation:
        return isa.lookup(self.text)

    @property
    def sources(self) -> tuple[str, ...]:
        """PTX types of the operands that are arrays; a carry that is read is the last."""
        operation = self.operation
        kinds = operation.sources[:3] if self.immediate is not None else operation.sources
        return kinds + ("pred",) * operation.reads_carry

    @property
    def results(self) -> tuple[str, ...]:
        """PTX types of the results; a comparison of halves that are not packed has one flag."""
        operation = self.operation
        single = self.text.startswith("setp") and self.text.endswith((".f16", ".bf16"))
        return operation.results[: 1 if single else None] + ("pred",) * operation.writes_carry


# --- which opcodes --------------------------------------------------------------------------------


def opcodes() -> list[Opcode]:
    """Every text that the table's rows, types and modifiers allow; some the ISA does not have.

    Of the thousands of `set` and `setp` that combine a comparison with a flag, and of the video
    instructions on halves and bytes beyond the plain ones, one in eight stays.
    """
    found = {}
    for name, rows in isa.ROWS.items():
        for row in rows:
            sets = video_modifiers(row) if name in VIDEO_ROWS else modifier_sets(row)
            for types, modifiers in itertools.product(row.type_choices(), sets):
                text = instruction_text(name, modifiers, types)
                parts = name in VIDEO_ROWS and name[-1] in "24" and modifiers != sets[0]
                sampled = is_combining(name) or parts
                if sampled and zlib.crc32(text.encode()) % 8:
                    continue
                for immediate in LOGIC if name == "lop3" else (None,):
                    found[text, immediate] = Opcode(text, immediate)
    return list(found.values())


def is_combining(name: str) -> bool:
    """Whether a row's name is that of set.lt.and, setp.eq.xor and the like."""
    return name.split(".")[0] in ("set", "setp") and name.count(".") == 2


def modifier_sets(row) -> list[frozenset[str]]:
    """The combinations of a row's modifiers that can stand together."""
    names = row.modifiers.split()
    roundings = [None, *(n for n in names if n in ROUNDINGS)]
    switches = [n for n in names if n not in ROUNDINGS and n != "abs"]
    out = []
    for rounding in roundings:
        for count in range(len(switches) + 1):
            for chosen in itertools.combinations(switches, count):
                modifiers = set(chosen) | ({rounding} - {None})
                modifiers |= {"abs"} if "xorsign" in modifiers else set()
                if not {"sat", "relu"} <= modifiers:
                    out.append(frozenset(modifiers))
    return out


def video_modifiers(row) -> list[tuple[str, ...]]:
    """The combinations of a video instruction's modifiers, the part of its result last."""
    names = row.modifiers.split()
    choices = []
    for group in VIDEO:
        known = [name for name in group.split() if name in names]
        choices.append(known if known and group in DEMANDED else ["", *known])
    parts = [name for name in names if not any(name in group.split() for group in VIDEO)]
    return [tuple(filter(None, one)) for one in itertools.product(*choices, ["", *parts])]


def video_line(code: Opcode, operands: list[str]) -> str:
    """A video instruction, with the part that it writes and its signs at the operands."""
    words, target, operands = code.text.split("."), "d0", list(operands)
    last = words[-1]
    if last in ("negab", "negc"):
        place = 0 if last == "negab" else 2
        operands[place] = f"-{operands[place]}"
    elif last.startswith("to"):
        target = f"d0.{'h' if words[0][-1] == '2' else 'b'}{last[2:]}"
    elif last in "b0 b1 b2 b3 h0 h1".split():
        target = f"d0.{last}"
    else:
        words.append("")
    return f"{'.'.join(words[:-1])} {target}, {', '.join(operands)};"


def instruction_text(name: str, modifiers, types) -> str:
    """Name, modifiers and types in PTX's order."""
    if name in VIDEO_ROWS:
        return ".".join([name, *types, *modifiers])
    parts = [part for part in ORDER if part in modifiers]
    if name.startswith("prmt."):  # its mode stands last
        return ".".join(["prmt", *types, name.split(".")[1]])
    return ".".join([name, *parts, *types])


# --- PTX ------------------------------------------------------------------------------------------


def width(kind: str) -> int:
    """Bytes of a PTX type in memory; flags are words of 32 bits."""
    return 4 if kind == "pred" else isa.DTYPE[kind].itemsize


def register(kind: str) -> str:
    if kind in ("pred", "f32", "f64"):
        return f".{kind}"
    return f".b{max(16, 8 * width(kind))}"


def module_text(codes: list[Opcode], target: str) -> str:
    """A PTX module with an entry op_0, op_1, ... for each opcode."""
    entries = [entry_text(code, f"op_{i}") for i, code in enumerate(codes)]
    return "\n".join([".version 8.0", f".target {target}", ".address_size 64", *entries, ""])


def entry_text(code: Opcode, name: str) -> str:
    """The entry (in0, in1, ..., out0, ..., count); a line of its own for the tested instruction."""
    places = [f"{name}_in{i}" for i in range(len(code.sources))]
    outs = [f"{name}_out{i}" for i in range(len(code.results))]
    parameters = ", ".join(f".param .u64 {p}" for p in (*places, *outs))
    lines = [
        f".visible .entry {name}({parameters}, .param .u32 {name}_count) {{",
        ".reg .b32 %i, %n, %t; .reg .b64 %p; .reg .pred %q;",
        "mov.u32 %i, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %t, %tid.x;",
        f"mad.lo.u32 %i, %i, %n, %t; ld.param.u32 %n, [{name}_count];",
        "setp.ge.u32 %q, %i, %n; @%q bra DONE;",
    ]
    for i, (kind, place) in enumerate(zip(code.sources, places, strict=True)):
        lines += [f".reg {register(kind)} a{i};", address(kind, place), load(kind, f"a{i}")]
    lines += [f".reg {register(kind)} d{i};" for i, kind in enumerate(code.results)]
    lines += tested(code)
    for i, (kind, place) in enumerate(zip(code.results, outs, strict=True)):
        lines += [address(kind, place), store(kind, f"d{i}")]
    return "\n".join([*lines, "DONE: ret;", "}"])


def address(kind: str, parameter: str) -> str:
    return (
        f"ld.param.u64 %p, [{parameter}]; cvta.to.global.u64 %p, %p; "
        f"mad.wide.u32 %p, %i, {width(kind)}, %p;"
    )


def load(kind: str, name: str) -> str:
    if kind == "pred":
        return f"ld.global.u32 %t, [%p]; setp.ne.u32 {name}, %t, 0;"
    suffix = kind if kind in ("f32", "f64") else f"b{8 * width(kind)}"
    return f"ld.global.{suffix} {name}, [%p];"


def store(kind: str, name: str) -> str:
    if kind == "pred":
        return f"selp.u32 %t, 1, 0, {name}; st.global.u32 [%p], %t;"
    suffix = kind if kind in ("f32", "f64") else f"b{8 * width(kind)}"
    return f"st.global.{suffix} [%p], {name};"


def tested(code: Opcode) -> list[str]:
    """The instruction, its carry set before from the last operand and read after it."""
    operation, subtract = code.operation, code.text.startswith("sub")
    operands = [f"a{i}" for i in range(len(operation.sources))]
    if code.immediate is not None:
        operands[3] = str(code.immediate)
    target = "d0|d1" if code.results == ("pred", "pred") else "d0"
    lines = [f"{code.text} {target}, {', '.join(operands)};"]
    if code.text.split(".")[0] in VIDEO_ROWS:
        lines = [video_line(code, operands)]
    if operation.reads_carry:
        step = "sub.cc.u32 %t, 0, %t;" if subtract else "add.cc.u32 %t, %t, -1;"
        lines.insert(0, f"selp.u32 %t, 1, 0, a{len(operands)}; {step}")
    if operation.writes_carry:
        step = "subc.u32 %t, 0, 0;" if subtract else "addc.u32 %t, 0, 0;"
        lines.append(f"{step} setp.ne.u32 d1, %t, 0;")
    return lines


# --- what the assembler takes ---------------------------------------------------------------------


def find_ptxas() -> str | None:
    """CUDA's assembler: on the path, in the toolkit, or in the pip wheel; None without one."""
    found = shutil.which("ptxas") or shutil.which("/usr/local/cuda/bin/ptxas")
    if found is None:
        try:
            import nvidia.cuda_nvcc as wheel
        except ImportError:
            return None
        found = shutil.which(str(Path(list(wheel.__path__)[0]) / "bin" / "ptxas"))
    return found


def split_by_assembler(codes: list[Opcode], target: str) -> tuple[list[Opcode], dict[str, str]]:
    """(opcodes that ptxas assembles, {label: its complaint} of the others)."""
    ptxas, refused = find_ptxas(), {}
    if ptxas is None:
        return codes, refused
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "opcodes.ptx"
        while codes:
            text = module_text(codes, target)
            path.write_text(text)
            command = [ptxas, f"-arch={target}", "-O0", "-o", f"{folder}/out.cubin", str(path)]
            done = subprocess.run(command, capture_output=True, text=True)
            complaints = blame(text, done.stderr)
            if not complaints:
                break
            refused.update({codes[i].label: why for i, why in complaints.items()})
            codes = [code for i, code in enumerate(codes) if i not in complaints]
    return codes, refused


def blame(text: str, complaints: str) -> dict[int, str]:
    """{number of the entry: message} from ptxas's lines."""
    entry_of_line, current = {}, -1
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"\.visible \.entry op_(\d+)\(", line)
        current = int(match.group(1)) if match else current
        entry_of_line[number] = current
    out = {}
    for match in re.finditer(r"line (\d+); (?:error|fatal)\s*: (.*)", complaints):
        out.setdefault(entry_of_line.get(int(match.group(1)), -1), match.group(2).strip())
    out.pop(-1, None)
    return out


# --- inputs ---------------------------------------------------------------------------------------


def inputs(code: Opcode) -> list[np.ndarray]:
    """(lanes,) unsigned arrays of operand bits, one a source; a 16-bit operand takes all values."""
    rng = np.random.default_rng(zlib.crc32(code.label.encode()))
    kinds = code.sources
    if len(kinds) == 1 and width(kinds[0]) <= 2:
        return [np.arange(1 << 8 * width(kinds[0])).astype(f"u{width(kinds[0])}")]
    columns = [patterns(kind, LANES, rng) for kind in kinds]
    relate(code, columns, rng)
    restrict(code, columns)
    return columns


def patterns(kind: str, count: int, rng) -> np.ndarray:
    """Specials, any bits, few digits (sums and products that end in a tie) and many, at random."""
    if kind == "pred":
        return rng.integers(0, 2, count).astype(np.uint32)
    if kind in ("f16x2", "bf16x2", "f32x2"):
        half, both = kind[:-2], np.dtype(f"u{width(kind)}")
        low, high = (patterns(half, count, rng).astype(both) for _ in range(2))
        return high << both.type(8 * width(half)) | low
    unsigned = np.dtype(f"u{width(kind)}")
    anything = rng.integers(0, 1 << 64, count, dtype=np.uint64).astype(unsigned)
    few, many = (float_patterns if kind in FLOATS else integer_patterns)(kind, count, rng)
    specials = np.array(special_values(kind), np.uint64).astype(unsigned)
    choice = rng.integers(0, 4, count)
    return np.choose(choice, [rng.choice(specials, count), anything, few, many])


def integer_patterns(kind: str, count: int, rng):
    unsigned = np.dtype(f"u{width(kind)}")
    small = rng.integers(-70, 70, count).astype(unsigned)
    bits = rng.integers(1, 8 * width(kind) + 1, count)
    any_length = rng.integers(0, 1 << 64, count, dtype=np.uint64) >> (64 - bits).astype(np.uint64)
    return small, any_length.astype(unsigned)


def float_patterns(kind: str, count: int, rng):
    """Numbers with 1 to 4 digits, and with all, over a range of exponents around one."""
    exponent_bits, fraction_bits = FLOATS[kind]
    spread = min(2 * fraction_bits, (1 << exponent_bits - 1) - 2)
    bias = (1 << exponent_bits - 1) - 1
    exponent = (bias + rng.integers(-spread // 2, spread // 2 + 1, count)).astype(np.uint64)
    sign = rng.integers(0, 2, count, dtype=np.uint64) << np.uint64(exponent_bits + fraction_bits)
    head = sign | exponent << np.uint64(fraction_bits)
    fraction = rng.integers(0, 1 << fraction_bits, count, dtype=np.uint64)
    short = fraction & ~np.uint64((1 << fraction_bits - 4) - 1)
    unsigned = np.dtype(f"u{width(kind)}")
    return (head | short).astype(unsigned), (head | fraction).astype(unsigned)


def special_values(kind: str) -> list[int]:
    if kind not in FLOATS:
        top = 1 << 8 * width(kind)
        values = [0, 1, 2, 3, 7, 15, 16, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256]
        return values + [top - 1, top - 2, top // 2, top // 2 - 1, top // 2 + 1]
    exponent_bits, fraction_bits = FLOATS[kind]
    one = ((1 << exponent_bits - 1) - 1) << fraction_bits
    infinity = (1 << exponent_bits) - 1 << fraction_bits
    least, step = 1 << fraction_bits, 1 << fraction_bits  # least normal; from one power to the next
    halves = [one - step, one + step // 2, one + step + step // 4]  # 0.5, 1.5, 2.5
    limits = [one + n * step for n in (7, 8, 15, 16, 31, 32, 63, 64) if one + n * step < infinity]
    tiny = one - fraction_bits * step if fraction_bits < one // step else 1
    values = [0, 1, 2, least - 1, least, least + 1, one - 1, one, one + 1, infinity - 1, infinity]
    values += [infinity + 1, infinity | 1 << fraction_bits - 1, infinity + step - 1, tiny]
    values += [*halves, *limits, *(x - 1 for x in limits)]
    negative = 1 << exponent_bits + fraction_bits
    return values + [value | negative for value in values]


def relate(code: Opcode, columns: list[np.ndarray], rng) -> None:
    """In a quarter of the lanes operands of float arithmetic nearly meet: ties, cancellation."""
    kind = code.sources[-1]
    if kind not in ("f32", "f64") or len(columns) < 2 or "pred" in code.sources:
        return
    dtype, count = isa.DTYPE[kind], LANES // 4
    values = [column.view(dtype) for column in columns]
    digits = FLOATS[kind][1] + 1
    with np.errstate(all="ignore"):
        base = values[0][:count] * values[1][:count] if len(columns) == 3 else values[0][:count]
        factor = np.ldexp(rng.choice([0.5, 1.0, 1.5, -0.5, -1.0]).astype(dtype), -digits)
        near = base * factor * rng.choice(np.array([0.5, 1, 2], dtype), count)
        cancel = -base * (1 + rng.choice(np.array([0, 1, -1, 2], dtype), count) * factor)
        values[-1][:count] = np.where(rng.integers(0, 2, count) == 0, near, cancel)


def restrict(code: Opcode, columns: list[np.ndarray]) -> None:
    """Keep out what the ISA leaves undefined: division by zero, a start bit outside fns's word."""
    name = code.text.split(".")[0]
    if name in ("div", "rem") and code.sources[0] not in FLOATS:
        columns[1][columns[1] == 0] = 3
    if name == "fns":
        columns[1] &= np.uint32(31)
