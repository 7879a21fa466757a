"""Random CUDA C kernels, each with what it must compute.

`random_kernel(seed)` grows a syntax tree with a seeded generator. `Kernel.source` prints it as CUDA
C; `Kernel.expected()` runs the same tree thread by thread in plain Python (random_oracle), which
shares nothing with the simulator. Kernels are free of races and of undefined behaviour, and their
result does not depend on the order of threads: integer atomics whose old value does not show,
shared memory written and read on two sides of a barrier, shuffles from lanes that take part.

Every result of a vote or a reduction counts: `kept` sums them up. Without that some are dead, and
ptxas (12.9, sm_90) removes the operation of a group of lanes but leaves WARPSYNC.EXCLUSIVE before
it; what the whole warp should do next is then done by each group apart, or is illegal.

Where a helper takes a structure by value, `scratch` is declared larger than it is used. The PTX
moves the address of such a parameter to a register, which puts a copy on the stack; ptxas (12.9 and
13.0, sm_90, -O1 and above) stores this copy, but where it keeps the caller's `scratch` in registers
the helper reads these instead.
"""

import random
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from kernelscope.differential.random_code import oracle as oracle
from kernelscope.differential.random_code import tree as tree
from kernelscope.differential.random_code.operations import BY_RESULT, wrap
from kernelscope.differential.random_code.printer import print_kernels

WARP_WIDTHS = (32, 32, 16, 8)
BLOCKS = ((37,), (64,), (33, 2), (7, 5), (96,), (1,), (130,), (32,), (31,), (3, 4, 5), (65,))
SINGLES = [0.0, -0.0, 1.0, -1.5, 0.1, 3.0e38, 1.17549435e-38, 2.0**-100, 16777217.0, 0.5, 2.5]
SINGLES += [-2147483648.0, 4294967040.0, 1 + 2.0**-23, 1e-6, float("inf"), float("nan")]
DOUBLES = [0.0, -0.0, 1.0, 0.1, -2.5, 1e300, 2.0**-1000, 4503599627370497.5, 1 + 2.0**-52]
DOUBLES += [16777217.0, 1.5e-45, float("inf")]
PACKET_FIELDS = {"u32": "byte", "i32": "short_", "f32": "number", "u64": "wide"}
OPTIONS = ("-fmad=false",)  # products and sums are rounded where the tree says so


@dataclass
class RandomKernel:
    """One random kernel and its launch. `arguments()` makes fresh arrays in the kernel's order."""

    seed: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    body: tuple
    helpers: tuple  # of (statements, result expression, does it take a structure)
    dynamic: bool
    options: tuple[str, ...] = field(default=OPTIONS, init=False)

    @property
    def name(self) -> str:
        return f"random_kernel_{self.seed}"

    @property
    def threads(self) -> int:
        return int(np.prod(self.block))

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory of a launch, in bytes."""
        return 8 * self.threads if self.dynamic else 0

    @property
    def slots(self) -> int:
        """64-bit words of output a thread: own region, variables, scratch array, and `kept`."""
        return tree.OWN + sum(tree.VARIABLES.values()) + tree.SCRATCH + 1

    @cached_property
    def source(self) -> str:
        return print_kernels([self])

    def arguments(self) -> list[np.ndarray]:
        """[words (256,) uint32, numbers (64,) float32, counters (n,) uint32, tallies (blocks, n)
        uint32, out (threads of the grid, slots) uint64, packet: a PACKET_TYPE]."""
        rng = np.random.default_rng(self.seed)
        words = rng.integers(0, 1 << 32, tree.WORDS, dtype=np.uint32)
        words[::3] = rng.integers(0, 50, words[::3].size)
        numbers = rng.standard_normal(tree.NUMBERS).astype(np.float32)
        numbers *= np.float32(2) ** rng.integers(-20, 20, tree.NUMBERS).astype(np.float32)
        numbers[::5] = np.round(numbers[::5])
        first = np.repeat([value for _, value in tree.ATOMIC_ROWS.values()], tree.ROW).astype(
            np.uint32
        )
        blocks = int(np.prod(self.grid))
        tallies = np.zeros((blocks, tree.COUNTERS), np.uint32)
        out = np.zeros((blocks * self.threads, self.slots), np.uint64)
        packet = np.frombuffer(rng.bytes(tree.PACKET_TYPE.itemsize), tree.PACKET_TYPE).copy()
        packet["number"] = numbers[1]
        return [words, numbers, first, tallies, out, packet[0]]

    def expected(self) -> list[np.ndarray]:
        """Return the arrays of `arguments` as a run must leave them."""
        return oracle.run(self)


# --- growing a tree -------------------------------------------------------------------------------


class Grower:
    """Grows statements and expressions; `depth` bounds nesting, `fuel` the number of statements."""

    in_helper = False  # functions that are called see their parameters and nothing else
    in_bundle = False  # and these have an array among them

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.fuel = self.rng.randint(14, 30)
        self.counters = 0
        self.loops: list[str] = []  # counters of the loops around this place
        self.calls = 0  # helpers that may be called here

    def chance(self, share: float) -> bool:
        return self.rng.random() < share

    # -- expressions --

    def variable(self, kind: str) -> tree.Var:
        return tree.Var(kind, f"{kind}_{self.rng.randrange(tree.VARIABLES[kind])}")

    def leaf(self, kind: str):
        if kind == "b1":
            return self.expression("b1", 1)
        choice = self.rng.random()
        if choice < 0.15:
            return tree.Const(kind, self.constant(kind))
        if kind in PACKET_FIELDS and choice < 0.19 and not self.in_helper:
            return tree.Var(kind, f"packet.{PACKET_FIELDS[kind]}")
        if kind == "u32" and choice < 0.3:
            return tree.Var(
                "u32", self.rng.choice(["thread", "block", "lane", "warp", *self.loops])
            )
        if kind == "u32" and choice < 0.5 and self.in_bundle:
            return tree.Load("u32", "more", self.variable("u32"))
        if kind == "u32" and choice < 0.5 and not self.in_helper:
            array = self.rng.choice(["words", "table", "scratch", "packet"])
            return tree.Load(
                "u32", array, self.variable("u32"), array == "words" and self.chance(0.3)
            )
        if kind == "f32" and choice < 0.3 and not self.in_helper:
            return tree.Load("f32", "numbers", self.variable("u32"))
        if kind == "u64" and choice < 0.3 and not self.in_helper:
            return tree.Load("u64", "own", self.variable("u32"))
        return self.variable(kind)

    def constant(self, kind: str):
        if kind == "f32":
            return np.float32(self.rng.choice(SINGLES))
        if kind == "f64":
            return self.rng.choice(DOUBLES)
        width = int(kind[1:])
        limits = [(1 << width - 1) - 1, 1 << width - 1, (1 << width) - 1]
        value = self.rng.choice([0, 1, 2, 3, 7, 31, 100, *limits, self.rng.getrandbits(width)])
        return wrap(kind, value)

    def expression(self, kind: str, depth: int):
        if depth == 0 or (kind != "b1" and self.chance(0.15)):
            return self.leaf(kind)
        if kind == "u32" and self.calls and self.chance(0.08):
            args = tuple(self.expression(k, depth - 1) for k in ("u32", "i32", "f32"))
            return tree.Call(self.rng.randrange(self.calls), args)
        operation = self.rng.choice(BY_RESULT[kind])
        return tree.Apply(
            operation, tuple(self.expression(k, depth - 1) for k in operation.sources)
        )

    def any_type(self) -> str:
        return self.rng.choice("u32 u32 i32 i32 f32 f32 f32 u64 i64 f64".split())

    # -- statements a thread runs on its own --

    def statements(self, depth: int, count: int) -> tuple:
        return tuple(self.statement(depth) for _ in range(count))

    def statement(self, depth: int):
        self.fuel -= 1
        choice = self.rng.random()
        if depth and self.fuel > 0 and choice < 0.4:
            return self.rng.choice(
                [self.branch, self.branch, self.loop, self.loop, self.turns, self.switch]
            )(depth - 1)
        if choice < 0.5:
            array, kind = self.rng.choice([("scratch", "u32"), ("own", "u64")])
            return tree.Store(array, self.expression("u32", 1), self.expression(kind, 2))
        if choice < 0.6:
            row = self.rng.choice([name for name, (text, _) in tree.ATOMIC_ROWS.items() if text])
            index, value = self.expression("u32", 1), self.expression("u32", 2)
            space = self.rng.choice(["counters", "tally"])
            scope = self.rng.choice(["", "_system"] + ["_block"] * (space == "tally"))
            return tree.Atomic(space, row, index, value, scope)
        kind = self.any_type()
        return tree.Assign(self.variable(kind), self.expression(kind, 3))

    def size(self) -> int:
        return self.rng.randint(1, 3)

    def branch(self, depth: int):
        then = self.statements(depth, self.size())
        otherwise = self.statements(depth, self.size()) if self.chance(0.6) else ()
        return tree.If(self.expression("b1", 2), then, otherwise)

    def new_counter(self) -> str:
        self.counters += 1
        return f"k{self.counters}"

    def loop_body(self, depth: int, counter: str) -> tuple:
        self.loops.append(counter)
        body = list(self.statements(depth, self.size()))
        if self.chance(0.5):
            leave = tree.If(
                self.expression("b1", 2), (tree.Leave(self.rng.choice(["break", "continue"])),)
            )
            body.insert(self.rng.randrange(len(body) + 1), leave)
        self.loops.remove(counter)
        return tuple(body)

    def loop(self, depth: int):
        trips, counter = self.expression("u32", 2), self.new_counter()
        return tree.For(counter, trips, self.loop_body(depth, counter))

    def turns(self, depth: int):
        counter, condition = self.new_counter(), self.expression("b1", 2)
        body = self.loop_body(depth, counter)
        return tree.While(counter, self.rng.randint(2, 9), condition, body, self.chance(0.5))

    def switch(self, depth: int):
        cases = tuple(
            (self.statements(depth, self.rng.randint(1, 2)), self.chance(0.3)) for _ in range(4)
        )
        return tree.Switch(self.expression("u32", 2), cases)

    # -- statements that threads run together --

    def together(self, depth: int) -> tuple:
        """Statements of a place that all threads of a block reach."""
        out = []
        while self.fuel > 0 and len(out) < 12:
            if self.chance(0.5):
                out.append(self.statement(3))
            else:
                out.append(self.meeting(depth))
        return tuple(out)

    def meeting(self, depth: int):
        self.fuel -= 1
        choice = self.rng.random()
        if depth and choice < 0.12:
            counter, trips = self.new_counter(), tree.Const("u32", self.rng.randint(1, 3))
            self.loops.append(counter)
            body = tuple(self.meeting(depth - 1) for _ in range(2)) + self.statements(2, 1)
            self.loops.remove(counter)
            return tree.For(counter, trips, body, uniform=True)
        if depth and choice < 0.2:
            body = (self.meeting(depth - 1), *self.statements(2, 1))
            return tree.BlockIf(self.rng.randint(0, 1), body)
        swaps, votes = [self.exchange] * 2, [self.block_vote]
        warps = [self.shuffle, self.shuffle, self.vote, self.reduce, self.gathering]
        return self.rng.choice(swaps + votes + warps + [self.partition] * 3)()

    def exchange(self):
        kind = self.rng.choice(["u32", "f32", "u64"])
        return tree.Exchange(
            self.variable(kind), self.expression(kind, 2), self.expression("u32", 2)
        )

    def block_vote(self):
        mode = self.rng.choice(["count", "and", "or"])
        return tree.BlockVote(mode, self.variable("i32"), self.expression("b1", 2))

    def shuffle(self, width=None):
        kind, mode = self.any_type(), self.rng.choice(["idx", "up", "down", "xor"])
        value, operand = self.expression(kind, 1), self.expression("u32", 1)
        width = width or self.rng.choice(WARP_WIDTHS)
        return tree.Shuffle(mode, self.variable(kind), value, operand, width)

    def broadcast(self):
        kind = self.any_type()
        return tree.Shuffle("first", self.variable(kind), self.expression(kind, 1), None, 32)

    def vote(self):
        mode = self.rng.choice(["ballot", "all", "any", "match_any", "match_all", "guarded"])
        matches = mode.startswith("match")
        value = self.few() if matches and self.chance(0.7) else None
        value = value or self.expression("u32" if matches else "b1", 2)
        return tree.WarpVote(mode, self.variable("u32"), value)

    def few(self):
        """An expression with few distinct values."""
        operation = next(o for o in BY_RESULT["u32"] if o.name == "rem_by_16_bits.u32")
        most = tree.Const("u32", self.rng.randint(1, 5))
        return tree.Apply(operation, (self.expression("u32", 2), most))

    def partition(self, depth: int = 1):
        """Groups of lanes with masks of their own, perhaps divided once more."""
        kind, width = self.rng.choice(["tile", "tile", "label", "side"]), 32
        if kind == "tile":
            width = self.rng.choice([2, 4, 8, 16])
        value = {"tile": lambda: None, "label": self.few, "side": lambda: self.expression("b1", 2)}
        value = value[kind]()
        body = [self.in_group(kind, width, depth) for _ in range(self.rng.randint(1, 3))]
        return tree.Partition(kind, value, width, (*body, *self.statements(1, 1)))

    def in_group(self, kind: str, width: int, depth: int):
        choice = self.rng.random()
        if depth and choice < 0.15:
            return self.partition(0)
        if depth and choice < 0.35:
            counter, trips = self.new_counter(), self.expression("u32", 1)
            self.loops.append(counter)
            body = (self.in_group(kind, width, 0), *self.statements(1, 1))
            self.loops.remove(counter)
            return tree.GroupFor(counter, trips, body)
        if kind == "tile" and choice < 0.6:
            return self.shuffle(width)
        return self.rng.choice([self.reduce, self.reduce, self.vote, self.broadcast])()

    def reduce(self):
        kind = self.rng.choice(("i32", "u32"))
        modes = ["add", "min", "max"] + ["and", "or", "xor"] * (kind == "u32")
        return tree.Reduce(self.rng.choice(modes), self.variable(kind), self.expression(kind, 2))

    def gathering(self):
        body = [self.reduce() for _ in range(self.rng.randint(1, 2))]
        body.append(self.partition(0) if self.chance(0.3) else self.broadcast())
        return tree.Together(self.expression("b1", 2), (*body, *self.statements(1, 1)))

    def helper(self):
        """A function's statements and result, and whether it takes a structure.

        It sees its parameters u32_0, i32_0 and f32_0, and the array of the structure.
        """
        self.in_helper, self.in_bundle = True, self.chance(0.5)
        structure = self.in_bundle
        body = tuple(
            tree.If(
                self.expression("b1", 2),
                (tree.Assign(self.variable("u32"), self.expression("u32", 2)),),
            )
            for _ in range(self.rng.randint(1, 2))
        )
        result = self.expression("u32", 3)
        self.in_helper = self.in_bundle = False
        return body, result, structure


def random_kernel(seed: int, block=None, grid=None) -> RandomKernel:
    """The kernel of a seed, with its launch shape unless given; the tree does not depend on it."""
    grower = Grower(seed)
    chosen = grower.rng.choice(BLOCKS), grower.rng.choice([(1,), (2,), (3,), (2, 2)])
    helpers = []
    for _ in range(grower.rng.randint(0, 2)):
        helpers.append(grower.helper())
    grower.calls = len(helpers)
    body = grower.together(2)
    return RandomKernel(
        seed, grid or chosen[1], block or chosen[0], body, tuple(helpers), grower.chance(0.5)
    )
