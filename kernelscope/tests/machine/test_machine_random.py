"""Random structured control flow: the same program as CUDA C for threads and as Python for one."""

import random
from textwrap import indent

import numpy as np
import pytest
from machine_harness import run

KERNELS, THREADS = 16, 75
NAMES = ("a", "b", "c", "d")
MASK = 2**32 - 1


class Writer:
    """Writes the same random statements in two languages. All values are unsigned 32-bit."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.counters = 0

    def value(self):
        """(C, Python) text of a small expression."""
        pick = self.random
        x, y = pick.choice(NAMES), pick.choice((*NAMES, str(pick.randrange(1, 60))))
        c, python = pick.choice(
            [
                (f"{x} + {y}", f"({x} + {y}) & M"),
                (f"{x} * {y}", f"({x} * {y}) & M"),
                (f"{x} - {y}", f"({x} - {y}) & M"),
                (f"{x} ^ ({y} >> 3)", f"{x} ^ ({y} >> 3)"),
                (f"{x} % ({y} | 1)", f"{x} % ({y} | 1)"),
                (f"{x} / ({y} | 1)", f"{x} // ({y} | 1)"),
                (f"({x} & {y}) | 5", f"({x} & {y}) | 5"),
            ]
        )
        return c, python

    def condition(self):
        pick = self.random
        x, m = pick.choice(NAMES), pick.randrange(2, 6)
        simple = f"{x} % {m} == {pick.randrange(m)}"
        if pick.random() < 0.3:
            other = f"{pick.choice(NAMES)} < {pick.randrange(100, 4 * 10**9)}"
            joint = pick.choice([("&&", "and"), ("||", "or")])
            return f"{simple} {joint[0]} {other}u", f"{simple} {joint[1]} {other}"
        return simple, simple

    def block(self, depth, in_loop):
        """1 to 4 statements as (C, Python) texts."""
        parts = [self.statement(depth, in_loop) for _ in range(self.random.randint(1, 4))]
        return "\n".join(c for c, _ in parts), "\n".join(python for _, python in parts)

    def statement(self, depth, in_loop):
        kinds = ["assign"] * 3
        if depth:
            kinds += ["if", "if", "for", "while", "switch"]
        if in_loop:
            kinds += ["leave"]
        return getattr(self, self.random.choice(kinds) + "_")(depth - 1, in_loop)

    def assign_(self, depth, in_loop):
        name, (c, python) = self.random.choice(NAMES), self.value()
        return f"{name} = {c};", f"{name} = {python}"

    def leave_(self, depth, in_loop):
        condition, word = self.condition(), self.random.choice(("break", "continue"))
        return f"if ({condition[0]}) {word};", f"if {condition[1]}: {word}"

    def if_(self, depth, in_loop):
        condition, then = self.condition(), self.block(depth, in_loop)
        c = f"if ({condition[0]}) {{\n{indent(then[0], '  ')}\n}}"
        python = f"if {condition[1]}:\n{indent(then[1], '  ')}"
        if self.random.random() < 0.6:
            other = self.block(depth, in_loop)
            c += f" else {{\n{indent(other[0], '  ')}\n}}"
            python += f"\nelse:\n{indent(other[1], '  ')}"
        if self.random.random() < 0.1:
            c, python = c + "\nif (a % 7 == 3) return;", python + "\nif a % 7 == 3: return None"
        return c, python

    def for_(self, depth, in_loop):
        self.counters += 1
        i, trips, body = f"i{self.counters}", self.random.choice(NAMES), self.block(depth, True)
        most = self.random.randint(2, 6)
        head = f"for (unsigned {i} = 0, n{i} = {trips} % {most}; {i} < n{i}; ++{i})"
        c = f"{head} {{\n  d += {i};\n{indent(body[0], '  ')}\n}}"
        python = (
            f"for {i} in range({trips} % {most}):\n  d = (d + {i}) & M\n{indent(body[1], '  ')}"
        )
        return c, python

    def while_(self, depth, in_loop):
        self.counters += 1
        i, condition, body = f"w{self.counters}", self.condition(), self.block(depth, True)
        c = f"for (int {i} = 0; {i} < 5; ++{i}) {{\n  if (!({condition[0]})) break;\n  c += 17;\n"
        python = f"for {i} in range(5):\n  if not ({condition[1]}): break\n  c = (c + 17) & M\n"
        return c + indent(body[0], "  ") + "\n}", python + indent(body[1], "  ")

    def switch_(self, depth, in_loop):
        name, cases = self.random.choice(NAMES), self.random.randint(2, 5)
        c, python = f"switch ({name} % {cases + 1}) {{\n", f"match {name} % {cases + 1}:\n"
        for case in range(cases):
            body = self.block(min(depth, 1), False)
            c += f"case {case}: {{\n{indent(body[0], '  ')}\n}} break;\n"
            python += f"  case {case}:\n{indent(body[1], '    ')}\n"
        return c + "default: b ^= 9;\n}", python + "  case _:\n    b ^= 9"


def programs():
    """(CUDA C of all kernels, the Python function of each)."""
    code, functions = 'extern "C" {\n', []
    for seed in range(KERNELS):
        c, python = Writer(seed).block(4, False)
        code += (
            f"__global__ void k{seed}(const unsigned* in, unsigned* out) {{\n"
            "  unsigned t = blockIdx.x * blockDim.x + threadIdx.x;\n"
            "  unsigned a = in[t], b = t, c = a % 19, d = 3;\n"
            f"{indent(c, '  ')}\n  out[t] = a ^ b * 3 ^ c * 5 ^ d * 7;\n}}\n"
        )
        text = (
            f"def run(a, b, c, d, M={MASK}):\n{indent(python, '  ')}\n"
            "  return (a ^ b * 3 ^ c * 5 ^ d * 7) & M"
        )
        namespace = {}
        exec(text, namespace)
        functions.append(namespace["run"])
    return code + "}\n", functions


CODE, FUNCTIONS = programs()


@pytest.mark.turns(83)
@pytest.mark.system
@pytest.mark.parametrize("seed", range(KERNELS))
def test_random_control_flow(seed, build):
    given = np.random.default_rng(seed).integers(0, 2**32, 2 * THREADS, dtype=np.uint32)
    untouched = 0xDEADBEEF
    out = np.full(2 * THREADS, untouched, np.uint32)
    order = seed if seed % 3 == 0 else None
    run(CODE, f"k{seed}", 2, THREADS, given, out, build=build, warp_order=order)
    for t, a in enumerate(given.tolist()):
        expected = FUNCTIONS[seed](a, t, a % 19, 3)
        assert out[t] == (untouched if expected is None else expected), t


def test_the_programs_are_worth_running():
    """Most threads of most programs take different ways."""
    different = 0
    for seed, function in enumerate(FUNCTIONS):
        given = np.random.default_rng(seed).integers(0, 2**32, THREADS, dtype=np.uint32)
        results = {function(a, t, a % 19, 3) for t, a in enumerate(given.tolist())}
        different += len(results) > THREADS // 2
    assert different > KERNELS // 2
