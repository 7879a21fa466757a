"""The syntax tree of random kernels, and the sizes of what they read and write."""

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Const:
    type: str
    value: object


@dataclass(frozen=True)
class Var:
    type: str
    name: str


@dataclass(frozen=True)
class Apply:
    operation: object
    args: tuple

    @property
    def type(self):
        return self.operation.result


@dataclass(frozen=True)
class Load:
    """array: "words", "numbers", "table", "scratch" or "own"; the index is taken modulo its size.

    vector: the element is read as the first of four, by a vector load.
    """

    type: str
    array: str
    index: object
    vector: bool = False


@dataclass(frozen=True)
class Call:
    """A function of the kernel's own that is not inlined: helper{number}(u32, i32, f32) -> u32."""

    number: int
    args: tuple
    type: str = "u32"


@dataclass(frozen=True)
class Assign:
    target: Var
    value: object


@dataclass(frozen=True)
class Store:
    array: str
    index: object
    value: object


@dataclass(frozen=True)
class If:
    condition: object
    then: tuple
    otherwise: tuple = ()


@dataclass(frozen=True)
class For:
    """`trips` (u32) is evaluated once; uniform: the same for all threads, so that barriers may be
    inside."""

    counter: str
    trips: object
    body: tuple
    uniform: bool = False


@dataclass(frozen=True)
class While:
    """At most `limit` turns while the condition holds; `last`: it is tested after the body."""

    counter: str
    limit: int
    condition: object
    body: tuple
    last: bool = False


@dataclass(frozen=True)
class Switch:
    """cases: (body, falls through) for 0, 1, ...; the last is `default`."""

    value: object
    cases: tuple


@dataclass(frozen=True)
class Leave:
    word: str  # "break" or "continue"


@dataclass(frozen=True)
class Atomic:
    space: str  # "counters" (global) or "tally" (shared)
    row: str
    index: object
    value: object


# Statements that every thread of a block (or warp) reaches together.


@dataclass(frozen=True)
class BlockIf:
    """A branch on the block's number: barriers may be inside."""

    parity: int
    body: tuple


@dataclass(frozen=True)
class Exchange:
    """Threads swap values through shared memory."""

    target: Var
    value: object
    index: object


@dataclass(frozen=True)
class BlockVote:
    """mode: count, and, or."""

    mode: str
    target: Var
    condition: object


@dataclass(frozen=True)
class Shuffle:
    """mode: idx, up, down, xor; operand: u32."""

    mode: str
    target: Var
    value: object
    operand: object
    width: int


@dataclass(frozen=True)
class WarpVote:
    """mode: ballot, all, any, match; value: b1, or u32 for match."""

    mode: str
    target: Var
    value: object


@dataclass(frozen=True)
class Reduce:
    """mode: add, min, max (u32, i32), and, or, xor (u32)."""

    mode: str
    target: Var
    value: object


@dataclass(frozen=True)
class Together:
    """Lanes of each warp for which the condition holds: reductions and a broadcast among them."""

    condition: object
    body: tuple
