"""The syntax tree of random kernels, and the sizes of what they read and write."""

from collections import namedtuple

WORDS, NUMBERS, SCRATCH, OWN, ROW = 256, 64, 8, 8, 4
TABLE = tuple((i * 2654435761 + 12345) & 0xFFFFFFFF for i in range(16))  # in constant memory
VARIABLES = {"u32": 4, "i32": 3, "f32": 4, "u64": 2, "i64": 2, "f64": 2}

# Rows of `counters` and `tally`: one operation each, so that updates commute. (C, first value)
ATOMIC_ROWS = {
    "add": ("atomicAdd({p}, {x})", 0),
    "or": ("atomicOr({p}, {x})", 0),
    "and": ("atomicAnd({p}, {x})", 0xFFFFFFFF),
    "xor": ("atomicXor({p}, {x})", 0),
    "max": ("atomicMax({p}, {x})", 0),
    "min": ("atomicMin({p}, {x})", 0xFFFFFFFF),
    "signed_max": ("atomicMax((int*){p}, (int){x})", 0),
    "signed_min": ("atomicMin((int*){p}, (int){x})", 0),
    "inc": ("atomicInc({p}, 6u)", 0),
    "raise": ("raise({p}, {x})", 0),  # a maximum by compare-and-swap
    "ticket": ("atomicAdd({p} + 4, atomicAdd({p}, 1u))", 0),  # row below: the sum of old values
    "ticket_sum": (None, 0),
    "float": ("atomicAdd((float*){p}, (float)({x} & 15u))", 0),  # sums of small integers: exact
}
COUNTERS = ROW * len(ATOMIC_ROWS)
HELPERS = """\
__device__ void raise(unsigned* place, unsigned value) {
  unsigned old = atomicOr(place, 0u);
  while (old < value) {
    const unsigned seen = atomicCAS(place, old, value);
    if (seen == old) break;
    old = seen;
  }
}
"""


# --- the tree -------------------------------------------------------------------------------------

Const = namedtuple("Const", "type value")
Var = namedtuple("Var", "type name")


class Apply(namedtuple("Apply", "operation args")):
    @property
    def type(self):
        return self.operation.result


# array: "words", "numbers", "table", "scratch" or "own"; the index is taken modulo its size.
# vector: the element is read as the first of four, by a vector load.
Load = namedtuple("Load", "type array index vector", defaults=(False,))
# A function of the kernel's own that is not inlined: helper{number}(u32, i32, f32) -> u32.
Call = namedtuple("Call", "number args type", defaults=("u32",))

Assign = namedtuple("Assign", "target value")
Store = namedtuple("Store", "array index value")
If = namedtuple("If", "condition then otherwise", defaults=((),))
# `trips` (u32) is evaluated once; uniform: the same for all threads, so barriers may be inside.
For = namedtuple("For", "counter trips body uniform", defaults=(False,))
# At most `limit` turns while the condition holds; `last`: it is tested after the body.
While = namedtuple("While", "counter limit condition body last", defaults=(False,))
# cases: (body, falls through) for 0, 1, ...; the last is `default`.
Switch = namedtuple("Switch", "value cases")
Leave = namedtuple("Leave", "word")  # "break" or "continue"
# space: "counters" (global) or "tally" (shared); row: a key of ATOMIC_ROWS.
Atomic = namedtuple("Atomic", "space row index value")

# Statements that every thread of a block (or warp) reaches together.
# A branch on the block's number: barriers may be inside.
BlockIf = namedtuple("BlockIf", "parity body")
# Threads swap values through shared memory.
Exchange = namedtuple("Exchange", "target value index")
BlockVote = namedtuple("BlockVote", "mode target condition")  # mode: count, and, or
# mode: idx, up, down, xor; operand: u32.
Shuffle = namedtuple("Shuffle", "mode target value operand width")
# mode: ballot, all, any, match; value: b1, or u32 for match.
WarpVote = namedtuple("WarpVote", "mode target value")
# mode: add, min, max (u32, i32), and, or, xor (u32).
Reduce = namedtuple("Reduce", "mode target value")
# Lanes of each warp for which the condition holds: reductions and a broadcast among them.
Together = namedtuple("Together", "condition body")
