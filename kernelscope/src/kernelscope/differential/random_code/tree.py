"""The syntax tree of random kernels, and the sizes of what they read and write."""

from collections import namedtuple

import numpy as np

WORDS, NUMBERS, SCRATCH, OWN, ROW = 256, 64, 8, 8, 4
# Arrays inside structures: of the kernel's parameter, and of the one that a helper may take.
PACKET, MORE = 8, 32
TABLE = tuple((i * 2654435761 + 12345) & 0xFFFFFFFF for i in range(16))  # in constant memory
VARIABLES = {"u32": 4, "i32": 3, "f32": 4, "u64": 2, "i64": 2, "f64": 2}

# The kernel's last parameter, a structure by value; PACKET_TYPE is its layout in C.
PACKET_TYPE = np.dtype(
    {
        "names": ["byte", "short_", "words", "number", "wide"],
        "formats": ["u1", "i2", (np.uint32, PACKET), "f4", "u8"],
        "offsets": [0, 2, 4, 4 + 4 * PACKET, 8 + 4 * PACKET],
    }
)
PACKET_TEXT = """\
struct Packet {
  unsigned char byte; short short_; unsigned words[8]; float number; unsigned long long wide;
};
"""
# What a helper takes and returns by value where it does not take three numbers.
BUNDLE_TEXT = """\
struct Bundle { unsigned u32_0; int i32_0; float f32_0; unsigned more[32]; };
__device__ Bundle bundle(unsigned u32_0, int i32_0, float f32_0) {
  Bundle made = {u32_0, i32_0, f32_0};
  for (unsigned i = 0; i < 32; ++i) made.more[i] = u32_0 * (i + 1) ^ i;
  return made;
}
"""

# Rows of `counters` and `tally`: one operation each, so that updates commute. (C, first value)
# {s}: a scope, "" or "_system", and for shared memory "_block".
ATOMIC_ROWS = {
    "add": ("atomicAdd{s}({p}, {x})", 0),
    "or": ("atomicOr{s}({p}, {x})", 0),
    "and": ("atomicAnd{s}({p}, {x})", 0xFFFFFFFF),
    "xor": ("atomicXor{s}({p}, {x})", 0),
    "max": ("atomicMax{s}({p}, {x})", 0),
    "min": ("atomicMin{s}({p}, {x})", 0xFFFFFFFF),
    "signed_max": ("atomicMax{s}((int*){p}, (int){x})", 0),
    "signed_min": ("atomicMin{s}((int*){p}, (int){x})", 0),
    "inc": ("atomicInc{s}({p}, 6u)", 0),
    "raise": ("raise({p}, {x})", 0),  # a maximum by compare-and-swap
    "ticket": (
        "atomicAdd{s}({p} + 4, atomicAdd{s}({p}, 1u))",
        0,
    ),  # row below: the sum of old values
    "ticket_sum": (None, 0),
    "float": ("atomicAdd{s}((float*){p}, (float)({x} & 15u))", 0),  # sums of small integers: exact
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


# array: "words", "numbers", "table", "scratch", "own", "packet" (the words in the kernel's
# structure) or "more" (those in a helper's); the index is taken modulo its size.
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
# space: "counters" (global) or "tally" (shared); row: a key of ATOMIC_ROWS; scope: of the text.
Atomic = namedtuple("Atomic", "space row index value scope", defaults=("",))

# Statements that every thread of a block (or warp) reaches together.
# A branch on the block's number: barriers may be inside.
BlockIf = namedtuple("BlockIf", "parity body")
# Threads swap values through shared memory.
Exchange = namedtuple("Exchange", "target value index")
BlockVote = namedtuple("BlockVote", "mode target condition")  # mode: count, and, or
# mode: idx, up, down, xor, or first: the value of the group's first lane; operand: u32.
Shuffle = namedtuple("Shuffle", "mode target value operand width")
# mode: ballot, all, any, match_any, match_all, or guarded: a ballot under the voters' own
# predicate; value: b1, or u32 for the matches.
WarpVote = namedtuple("WarpVote", "mode target value")
# mode: add, min, max (u32, i32), and, or, xor (u32).
Reduce = namedtuple("Reduce", "mode target value")
# Lanes of each warp for which the condition holds: reductions and a broadcast among them.
Together = namedtuple("Together", "condition body")
# All lanes in groups, each with a mask of its own at the same instruction. kind: "tile" (`width`
# neighbours), "label" (those with the same value, u32) or "side" (of a condition, b1).
Partition = namedtuple("Partition", "kind value width body")
# Each group of lanes makes as many turns as its first lane says (u32).
GroupFor = namedtuple("GroupFor", "counter trips body")
