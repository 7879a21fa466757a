"""PTX of kernels around one wgmma: tiles in shared memory and registers in, sums out.

A block is one warp group. Its tiles travel as an image of its shared memory, its descriptors with
start addresses within that image, its registers as in `kernels`: words, lane by lane.
"""

from kernelscope.differential.matrix.kernels import names, register_type

HEAD = ".version 8.4\n.target sm_90a\n.address_size 64\n"
THREADS = 128
PARAMETERS = ("image", "descriptors", "a", "d")
_INDEX = """.reg .b64 %p, %q, %o, %s, %da, %db; .reg .b32 %t, %w, %n, %h, %i; .reg .pred %g, %keeps;
  mov.u32 %t, %tid.x; mov.u32 %w, %ctaid.x; mad.lo.u32 %n, %w, 128, %t;"""
# Copies the block's image, word by word, and adds where it is to both descriptors.
_TILES = """.shared .align 1024 .b8 tile[{size}];
  ld.param.u64 %q, [image]; mul.wide.u32 %o, %w, {size}; add.s64 %q, %q, %o;
  mul.wide.u32 %o, %t, 4; add.s64 %q, %q, %o; mov.u64 %s, tile; add.s64 %s, %s, %o;
  mov.u32 %i, %t;
COPY:
  ld.global.b32 %h, [%q]; st.shared.b32 [%s], %h;
  add.s64 %q, %q, 512; add.s64 %s, %s, 512; add.u32 %i, %i, 128;
  setp.lt.u32 %g, %i, {words}; @%g bra COPY;
  fence.proxy.async; bar.sync 0;
  ld.param.u64 %p, [descriptors]; mul.wide.u32 %o, %w, 16; add.s64 %p, %p, %o;
  ld.global.u64 %da, [%p]; ld.global.u64 %db, [%p+8];
  mov.u64 %s, tile; shr.u64 %s, %s, 4; add.u64 %da, %da, %s; add.u64 %db, %db, %s;"""


def _moved(prefix: str, layout, parameter: str, store: bool) -> list[str]:
    """Load or store the registers of a matrix, at this lane's place in an array."""
    kind = register_type(layout)
    lines = [
        f"ld.param.u64 %p, [{parameter}];",
        f"mul.wide.u32 %o, %n, {4 * layout.registers}; add.s64 %p, %p, %o;",
    ]
    for i in range(layout.registers):
        where, register = f"[%p+{4 * i}]", f"%{prefix}{i}"
        stored = f"st.global.{kind} {where}, {register};"
        lines.append(stored if store else f"ld.global.{kind} {register}, {where};")
    return lines


def multiply(name: str, form, size: int, held: bool, keeps: bool, literals: list[int]) -> str:
    """One wgmma.mma_async: parameters image (`size` bytes a block), descriptors, a, d.

    held: does A come from registers? keeps: scale-d; literals: the operands behind it.
    """
    listed = ", ".join(f".param .u64 {one}" for one in PARAMETERS)
    left = names("a", form.held_a) if held else "%da"
    operands = [names("d", form.held_d), left, "%db", "%keeps", *map(str, literals)]
    lines = [
        *(f".reg .{register_type(x)} %{k}<{x.registers}>;" for k, x in _held(form)),
        _TILES.format(size=size, words=size // 4),
        *(_moved("a", form.held_a, "a", False) if held else ()),
        *_moved("d", form.held_d, "d", False),
        f"setp.eq.u32 %keeps, {int(keeps)}, 1;",
        "wgmma.fence.sync.aligned;",
        f"{form.opcode} {', '.join(operands)};",
        "wgmma.commit_group.sync.aligned;",
        "wgmma.wait_group.sync.aligned 0;",
        *_moved("d", form.held_d, "d", True),
    ]
    body = "\n  ".join([_INDEX, *lines])
    return f".visible .entry {name}({listed})\n{{\n  {body}\n  ret;\n}}"


def _held(form) -> list[tuple]:
    return [("a", form.held_a), ("d", form.held_d)]
