"""Prints random kernels' trees as CUDA C."""

import numpy as np
from kernelscope.differential.random_code import tree as tree
from kernelscope.differential.random_code.operations import C_TYPE, PRELUDE, bits_of_double
from kernelscope.differential.random_code.tree import TABLE

SIZES = {
    "words": tree.WORDS,
    "numbers": tree.NUMBERS,
    "scratch": tree.SCRATCH,
    "own": tree.OWN,
    "table": len(TABLE),
    "packet": tree.PACKET,
    "more": tree.MORE,
}
_EXCHANGE = {
    "u32": "exchange",
    "f32": "((float*)exchange)",
    "u64": "((unsigned long long*)exchange)",
}
_ARRAYS = {"packet": "packet.words", "more": "taken.more"}
_BITS = {
    "u32": "{0}",
    "i32": "(unsigned){0}",
    "f32": "bits_of_float({0})",
    "u64": "{0}",
    "i64": "(unsigned long long){0}",
    "f64": "bits_of_double({0})",
}


def literal(kind: str, value) -> str:
    """A constant with exactly these bits."""
    if kind == "f32":
        return f"__uint_as_float(0x{int(np.float32(value).view(np.uint32)):08x}u)"
    if kind == "f64":
        return f"__longlong_as_double(0x{bits_of_double(value):016x}ll)"
    suffix = {"u32": "u", "i32": "", "u64": "ull", "i64": "ll"}[kind]
    width = int(kind[1:])
    return (
        f"(({C_TYPE[kind]})0x{value & (1 << width) - 1:x}{'u' if width == 32 else 'ull'})"
        if (value < 0)
        else f"{value}{suffix}"
    )


def expression(node) -> str:
    if isinstance(node, tree.Const):
        return literal(node.type, node.value)
    if isinstance(node, tree.Var):  # a field of a structure may be narrower
        return f"(({C_TYPE[node.type]}){node.name})" if "." in node.name else node.name
    if isinstance(node, tree.Apply):
        return node.operation.template.format(*map(expression, node.args))
    if isinstance(node, tree.Load):
        return load(node)
    if isinstance(node, tree.Call):
        return f"helper{node.number}({', '.join(map(expression, node.args))})"
    raise TypeError(node)


def load(node) -> str:
    """A load; some of the read-only arrays' are of vectors, of which one element is used."""
    at = f"({expression(node.index)} & {SIZES[node.array] - 1})"
    if node.vector:
        return f"((const uint4*){node.array})[{at} / 4].x"
    if node.array in _ARRAYS:
        return f"{_ARRAYS[node.array]}[{at}]"
    return f"__ldg(&words[{at}])" if node.array == "words" else f"{node.array}[{at}]"


class Printer:
    """Statements as lines of C, indented."""

    def __init__(self):
        self.lines: list[str] = []
        self.depth = 1
        self.mask, self.masks = "members", 0  # of the lanes that run this, in C

    def add(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def body(self, statements, opening: str, closing: str = "}") -> None:
        self.add(opening)
        self.depth += 1
        for statement in statements:
            getattr(self, type(statement).__name__)(statement)
        self.depth -= 1
        self.add(closing)

    def assign(self, target, text: str) -> None:
        self.add(f"{target.name} = {text};")

    def keep(self, target) -> None:
        """Make a result count in what the kernel writes, even if its variable is set again."""
        self.add(f"kept = kept * 3u + (unsigned){target.name};")

    def Assign(self, s):
        self.assign(s.target, expression(s.value))

    def Store(self, s):
        at = f"{expression(s.index)} & {SIZES[s.array] - 1}"
        self.add(f"{s.array}[{at}] = {expression(s.value)};")

    def If(self, s):
        self.body(s.then, f"if ({expression(s.condition)}) {{")
        if s.otherwise:
            self.body(s.otherwise, "else {")

    def For(self, s):
        mask = "" if s.uniform else " & 7u"
        self.add(f"const unsigned trips_{s.counter} = {expression(s.trips)}{mask};")
        self.body(
            s.body,
            f"for (unsigned {s.counter} = 0; {s.counter} < trips_{s.counter}; ++{s.counter}) {{",
        )

    def While(self, s):
        self.add(f"unsigned {s.counter} = 0;")
        test = f"{s.counter}++ < {s.limit}u && {expression(s.condition)}"
        if s.last:
            self.body(s.body, "do {", f"}} while ({test});")
        else:
            self.body(s.body, f"while ({test}) {{")

    def Switch(self, s):
        self.add(f"switch ({expression(s.value)} & 3u) {{")
        self.depth += 1
        for number, (body, falls) in enumerate(s.cases):
            label = f"case {number}:" if number < 3 else "default:"
            self.body(body, f"{label} {{", "}" if falls else "} break;")
        self.depth -= 1
        self.add("}")

    def Leave(self, s):
        self.add(f"{s.word};")

    def Atomic(self, s):
        row = list(tree.ATOMIC_ROWS).index(s.row) * tree.ROW
        place = f"({s.space} + {row} + ({expression(s.index)} & 3u))"
        value = f"({expression(s.value)})"
        self.add(tree.ATOMIC_ROWS[s.row][0].format(p=place, x=value, s=s.scope) + ";")

    # -- together --

    def BlockIf(self, s):
        self.body(s.body, f"if ((block & 1u) == {s.parity}u) {{")

    def Exchange(self, s):
        array = _EXCHANGE[s.value.type]
        self.add(f"{array}[thread] = {expression(s.value)};")
        self.add("__syncthreads();  // every value is there before any is read")
        self.assign(s.target, f"{array}[({expression(s.index)}) % THREADS]")
        self.add("__syncthreads();  // every value is read before the next are written")

    def BlockVote(self, s):
        self.assign(s.target, f"__syncthreads_{s.mode}({expression(s.condition)})")
        if s.mode != "count":  # C promises only zero or not zero
            self.assign(s.target, f"{s.target.name} != 0")

    def Shuffle(self, s):
        kind = C_TYPE[s.value.type]
        if s.mode == "first":
            value = f"({kind}){expression(s.value)}"
            self.assign(s.target, f"__shfl_sync({self.mask}, {value}, __ffs({self.mask}) - 1)")
            return
        name, by = {"idx": ("__shfl_sync", s.width - 1)}.get(s.mode, (f"__shfl_{s.mode}_sync", 15))
        source = {
            "idx": f"(lane & {32 - s.width}u) + by",
            "up": "lane - by",
            "down": "lane + by",
            "xor": "lane ^ by",
        }[s.mode]
        self.add("{")
        self.add(f"  const {kind} mine = {expression(s.value)};")
        self.add(f"  const unsigned by = {expression(s.operand)} & {by}u, source = {source};")
        self.add(f"  const {kind} theirs = {name}({self.mask}, mine, by, {s.width});")
        self.add(f"  {s.target.name} = {self.mask} >> (source & 31u) & 1u ? theirs : mine;")
        self.add("}")

    def WarpVote(self, s):
        value = expression(s.value)
        if s.mode == "match_all":
            self.add("{")
            self.add("  int agree;")
            self.add(f"  const unsigned all = __match_all_sync({self.mask}, {value}, &agree);")
            self.add(f"  {s.target.name} = all + agree;")
            self.add("}")
        elif s.mode == "guarded":
            self.assign(s.target, f"guarded_ballot({self.mask}, {value})")
        else:
            text = f"__{s.mode}_sync({self.mask}, {value})"
            self.assign(s.target, f"{text} != 0" if s.mode in ("all", "any") else text)
        self.keep(s.target)

    def Reduce(self, s):
        self.assign(s.target, f"__reduce_{s.mode}_sync({self.mask}, {expression(s.value)})")
        self.keep(s.target)

    def with_mask(self, lines, body, opening: str) -> None:
        """A scope in which `{mask}` of the lines is the mask of the lanes that run the body."""
        outer, self.masks = self.mask, self.masks + 1
        mask = f"mask{self.masks}"
        self.add("{")
        for line in lines:
            self.add("  " + line.format(mask=mask, outer=outer))
        self.mask = mask
        self.body(body, f"  {opening}".format(mask=mask), "  }")
        self.mask = outer
        self.add("}")

    def Together(self, s):
        line = f"const unsigned {{mask}} = __ballot_sync({{outer}}, {expression(s.condition)});"
        self.with_mask([line], s.body, "if ({mask} >> lane & 1u) {{")

    def Partition(self, s):
        line = "const unsigned {mask} = "
        if s.kind == "tile":
            lines = [f"{line}{{outer}} & ({(1 << s.width) - 1:#x}u << (lane & {32 - s.width}u));"]
        elif s.kind == "label":
            lines = [f"{line}__match_any_sync({{outer}}, {expression(s.value)});"]
        else:
            lines = [
                f"const unsigned yes = __ballot_sync({{outer}}, {expression(s.value)});",
                line + "yes >> lane & 1u ? yes : {outer} & ~yes;",
            ]
        self.with_mask(lines, s.body, "{{")

    def GroupFor(self, s):
        value = f"__shfl_sync({self.mask}, {expression(s.trips)}, __ffs({self.mask}) - 1)"
        self.add(f"const unsigned trips_{s.counter} = {value} & 3u;")
        self.body(
            s.body,
            f"for (unsigned {s.counter} = 0; {s.counter} < trips_{s.counter}; ++{s.counter}) {{",
        )


def helper_text(number: int, helper) -> list[str]:
    """A function that stays a call; its other variables are made from its three parameters."""
    body, result, structure = helper
    printer = Printer()
    for kind, count in tree.VARIABLES.items():
        for i in range(count):
            name = f"{kind}_{i}"
            if name in ("u32_0", "i32_0", "f32_0"):
                if structure:
                    printer.add(f"{C_TYPE[kind]} {name} = taken.{name};")
                continue
            source = {"u32": "u32_0", "i32": "i32_0", "f32": "f32_0", "f64": "f32_0"}
            printer.add(f"{C_TYPE[kind]} {name} = {source.get(kind, 'u32_0')};")
    printer.add("const unsigned thread = u32_0, block = u32_0, lane = u32_0, warp = u32_0;")
    for statement in body:
        printer.If(statement)
    three = "(unsigned u32_0, int i32_0, float f32_0) {"
    head = "__device__ __noinline__"
    if not structure:
        printer.add(f"return {expression(result)};")
        return [f"{head} unsigned helper{number}{three}", *printer.lines, "}"]
    printer.add(f"taken.u32_0 = {expression(result)};")
    printer.add("return taken;")
    return [
        f"{head} Bundle whole{number}(Bundle taken) {{",
        *printer.lines,
        "}",
        f"__device__ unsigned helper{number}{three}",
        f"  return whole{number}(bundle(u32_0, i32_0, f32_0)).u32_0;",
        "}",
    ]


_START = """\
  const unsigned thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const unsigned block = blockIdx.x + gridDim.x * blockIdx.y;
  const unsigned lane = thread & 31u, warp = thread >> 5;
  const unsigned lanes = min(32u, THREADS - 32u * warp);  // of this warp: the last may be short
  const unsigned members = lanes == 32u ? 0xffffffffu : (1u << lanes) - 1u;
  const unsigned place = block * THREADS + thread;
  unsigned long long* own = out + (size_t)place * SLOTS;
  unsigned scratch[SCRATCH];
  for (unsigned i = 0; i < 8; ++i) scratch[i] = words[(place + i) & 255u];
  for (unsigned i = 0; i < OWN; ++i) own[i] = i;
  for (unsigned i = thread; i < COUNTERS; i += THREADS) tally[i] = first_tally[i];"""


_GUARDED_BALLOT = """\
__device__ unsigned guarded_ballot(unsigned members, bool p) {
  const unsigned voters = __ballot_sync(members, p);
  unsigned r = 7u;
  asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; @p vote.sync.ballot.b32 %0, p, %2;}"
               : "+r"(r) : "r"((unsigned)p), "r"(voters));
  return r;
}
"""


def print_kernels(kernels) -> str:
    """Return the CUDA C of kernels with different seeds: each has a namespace of its own."""
    first = [str(value) + "u" for _, value in tree.ATOMIC_ROWS.values() for _ in range(tree.ROW)]
    lines = [PRELUDE + tree.HELPERS + tree.PACKET_TEXT + tree.BUNDLE_TEXT + _GUARDED_BALLOT]
    lines.append(f"constexpr unsigned COUNTERS = {tree.COUNTERS}, OWN = {tree.OWN};")
    for name, values in (("table", [f"{x}u" for x in TABLE]), ("first_tally", first)):
        lines.append(f"__constant__ unsigned {name}[{len(values)}] = {{{', '.join(values)}}};")
    for kernel in kernels:
        lines += kernel_text(kernel)
    return "\n".join([*lines, ""])


def kernel_text(kernel) -> list[str]:
    """The lines of one kernel and its helpers."""
    lines = [f"namespace of_{kernel.name} {{"]
    lines.append(f"constexpr unsigned THREADS = {kernel.threads}, SLOTS = {kernel.slots};")
    # Beside a structure by value the array is too large for ptxas to keep in registers.
    structure = any(structure for _, _, structure in kernel.helpers)
    lines.append(f"constexpr unsigned SCRATCH = {256 if structure else tree.SCRATCH};")
    for number, helper in enumerate(kernel.helpers):
        lines += helper_text(number, helper)
    lines.append(
        f'extern "C" __global__ void {kernel.name}(const unsigned* words, '
        "const float* numbers, unsigned* counters, unsigned* tallies, "
        "unsigned long long* out, const Packet packet) {"
    )
    declaration = (
        "extern __shared__ __align__(8) unsigned exchange[];"
        if kernel.dynamic
        else ("__shared__ __align__(8) unsigned exchange[2 * THREADS];")
    )
    lines += ["  " + declaration, "  __shared__ unsigned tally[COUNTERS];", _START]
    printer = Printer()
    printer.lines = lines
    for kind, count in tree.VARIABLES.items():
        for i in range(count):
            printer.add(f"{C_TYPE[kind]} {kind}_{i} = {initial(kind, i)};")
    printer.add("unsigned kept = 0u;")
    printer.add("__syncthreads();  // the tally holds its first values")
    for statement in kernel.body:
        getattr(printer, type(statement).__name__)(statement)
    finish(printer)
    return [*lines, "}", "}"]


def initial(kind: str, i: int) -> str:
    """A variable's first value, which random_oracle.first_values computes too."""
    if kind in ("f32", "f64"):
        return f"numbers[(place * 3 + {i * 7}) & {tree.NUMBERS - 1}]"
    word = f"words[(place * 5 + {i * 17}) & {tree.WORDS - 1}]"
    return f"({C_TYPE[kind]}){word}" + (" * 0x100000001ull" if kind.endswith("64") else "")


def finish(printer: Printer) -> None:
    """Write all variables, the scratch array, `kept` and, once per block, the tally."""
    at = tree.OWN
    for kind, count in tree.VARIABLES.items():
        for i in range(count):
            printer.add(f"own[{at}] = {_BITS[kind].format(f'{kind}_{i}')};")
            at += 1
    printer.add(f"for (unsigned i = 0; i < 8; ++i) own[{at} + i] = scratch[i];")
    printer.add(f"own[{at + tree.SCRATCH}] = kept;")
    printer.add("__syncthreads();  // the tally is complete")
    printer.add(
        "for (unsigned i = thread; i < COUNTERS; i += THREADS) "
        "tallies[block * COUNTERS + i] = tally[i];"
    )
