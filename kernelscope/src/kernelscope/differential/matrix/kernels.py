"""PTX of small kernels around one matrix instruction: registers or memory in, the same out.

A block is one warp. Registers travel as words, lane by lane: `registers` of them for each lane,
one lane's after the other's.
"""

from kernelscope.isa.matrix import multiplication, transfer

HEAD = ".version 8.4\n.target {arch}\n.address_size 64\n"
SHARED_BYTES = 4096  # of ldmatrix and stmatrix
_INDEX = """.reg .b64 %p, %q, %o, %s; .reg .b32 %t, %w, %n, %h, %x<4>; .reg .pred %g;
  mov.u32 %t, %tid.x; mov.u32 %w, %ctaid.x; mad.lo.u32 %n, %w, 32, %t;"""


def module_text(entries: list[str], arch: str = "sm_90") -> str:
    """A module of entries."""
    return HEAD.format(arch=arch) + "\n".join(entries)


def entry(name: str, parameters: str, body: list[str]) -> str:
    """One kernel; all parameters are pointers."""
    listed = ", ".join(f".param .u64 {one}" for one in parameters.split())
    lines = "\n  ".join(body)
    return f".visible .entry {name}({listed})\n{{\n  {_INDEX}\n  {lines}\n  ret;\n}}"


def _width(layout) -> int:
    return layout.register_bytes


def register_type(layout) -> str:
    """The declared type of a fragment's registers."""
    return {"f32": "f32", "f64": "f64"}.get(layout.kind, "b32")


def names(prefix: str, layout) -> str:
    """{a0, a1, ...}: the registers of a fragment."""
    return "{" + ", ".join(f"%{prefix}{i}" for i in range(layout.registers)) + "}"


def _declared(prefix: str, layout) -> str:
    return f".reg .{register_type(layout)} %{prefix}<{layout.registers}>;"


def _moved(prefix: str, layout, parameter: str, store: bool) -> list[str]:
    """Load or store a fragment's registers, at this lane's place in an array."""
    kind, width = register_type(layout), _width(layout)
    lines = [
        f"ld.param.u64 %p, [{parameter}];",
        f"mul.wide.u32 %o, %n, {layout.registers * width}; add.s64 %p, %p, %o;",
    ]
    for i in range(layout.registers):
        where, register = f"[%p+{i * width}]", f"%{prefix}{i}"
        text = f"st.global.{kind} {where}, {register};" if store else ""
        lines.append(text or f"ld.global.{kind} {register}, {where};")
    return lines


def multiply(name: str, opcode: str) -> str:
    """mma or wmma.mma: parameters a, b, c, d, arrays of registers."""
    form = multiplication(opcode)
    layouts = {"a": form.a, "b": form.b, "c": form.c, "d": form.d}
    body = [_declared(key, held) for key, held in layouts.items()]
    for key in "abc":
        body += _moved(key, layouts[key], key, False)
    operands = ", ".join(names(key, layouts[key]) for key in "dabc")
    body += [f"{opcode} {operands};", *_moved("d", form.d, "d", True)]
    return entry(name, "a b c d", body)


def fragment(name: str, opcode: str, stride: int, lines: int) -> str:
    """wmma.load or wmma.store: parameters matrix, registers.

    A warp's matrix has `lines` lines of `stride` elements. An opcode with .shared is given a copy.
    """
    form = transfer(opcode)
    held, loads = form.layout, opcode.startswith("wmma.load")
    size = stride * lines * held.bits // 8
    body = [
        _declared("f", held),
        "ld.param.u64 %q, [matrix];",
        f"mul.wide.u32 %o, %w, {size}; add.s64 %q, %q, %o;",
    ]
    place = "%q"
    if ".shared" in opcode:
        body += _copied(size, True)  # a store needs it too: not every byte is its own
        body.append("mov.u64 %s, tile;")
        place = "%s"
    if loads:
        body.append(f"{opcode} {names('f', held)}, [{place}], {stride};")
        body += _moved("f", held, "registers", True)
    else:
        body += _moved("f", held, "registers", False)
        body.append(f"{opcode} [{place}], {names('f', held)}, {stride};")
        body += _copied(size, False) if place == "%s" else []
    return entry(name, "matrix registers", body)


def _copied(size: int, into: bool) -> list[str]:
    """Copy `size` bytes from %q into shared memory, or back, word by word."""
    lines = [f".shared .align 128 .b8 tile[{size}];"] if into else []
    source, target = ("global", "shared") if into else ("shared", "global")
    lines += ["" if into else "bar.warp.sync -1;", "mul.wide.u32 %o, %t, 4;"]
    for first in range(0, size, 128):
        there = "mov.u64 %s, tile; add.s64 %s, %s, %o; add.s64 %p, %q, %o;" if not first else ""
        ends = ("%p", "%s") if into else ("%s", "%p")
        guard = f"setp.lt.u32 %g, %t, {(size - first) // 4};"
        lines.append(
            f"{there} {guard} @%g ld.{source}.b32 %h, [{ends[0]}+{first}]; "
            f"@%g st.{target}.b32 [{ends[1]}+{first}], %h;"
        )
    return [*filter(None, lines), "bar.warp.sync -1;"]


def rows(name: str, opcode: str) -> str:
    """ldmatrix or stmatrix: parameters matrix (SHARED_BYTES a warp), offsets, registers.

    offsets: (lanes,) uint32, the byte in shared memory that each lane addresses.
    """
    count = next(n for word, n in (("x1", 1), ("x2", 2), ("x4", 4)) if word in opcode.split("."))
    registers = "{" + ", ".join(f"%x{i}" for i in range(count)) + "}"
    body = [
        "ld.param.u64 %q, [matrix];",
        f"mul.wide.u32 %o, %w, {SHARED_BYTES}; add.s64 %q, %q, %o;",
        *_copied(SHARED_BYTES, True),
        "ld.param.u64 %p, [offsets]; mul.wide.u32 %o, %n, 4; add.s64 %p, %p, %o;",
        "ld.global.b32 %h, [%p]; cvt.u64.u32 %o, %h; mov.u64 %s, tile; add.s64 %s, %s, %o;",
        "ld.param.u64 %p, [registers];",
        f"mul.wide.u32 %o, %n, {4 * count}; add.s64 %p, %p, %o;",
    ]
    each = range(count)
    if opcode.startswith("ldmatrix"):
        body.append(f"{opcode} {registers}, [%s];")
        body += [f"st.global.b32 [%p+{4 * i}], %x{i};" for i in each]
    else:
        body += [f"ld.global.b32 %x{i}, [%p+{4 * i}];" for i in each]
        body += [f"{opcode} [%s], {registers};", "bar.warp.sync -1;", *_copied(SHARED_BYTES, False)]
    return entry(name, "matrix offsets registers", body)


def transpose(name: str) -> str:
    """movmatrix: parameters matrix, registers, one word a lane."""
    body = [
        "ld.param.u64 %p, [matrix]; mul.wide.u32 %o, %n, 4; add.s64 %p, %p, %o;",
        "ld.global.b32 %h, [%p]; movmatrix.sync.aligned.m8n8.trans.b16 %x0, %h;",
        "ld.param.u64 %p, [registers]; add.s64 %p, %p, %o; st.global.b32 [%p], %x0;",
    ]
    return entry(name, "matrix registers", body)
