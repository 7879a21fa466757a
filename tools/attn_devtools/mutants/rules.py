"""Mutants of a kernel: copies of its text with one small change each, made by rule.

The rules work on the tokens of CUDA C inside of braces: comments, directives, strings and
signatures stay as they are. A change that does not compile is the compiler's to find. For a Triton
kernel the rules are those of `python_rules`.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from . import python_rules

_SKIPPED = re.compile(
    r'\s+|//[^\n]*|/\*.*?\*/|^[ \t]*#[^\n]*|"(?:\\.|[^"\\])*"', re.DOTALL | re.MULTILINE
)
_TOKEN = re.compile(
    r"0[xX][0-9a-fA-F]+[uUlL]*|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[uUlLfF]*|\w+"
    r"|<<=|>>=|->|::|\+\+|--|&&|\|\||<<|>>|[-+*/%&|^<>=!]=|."
)
_MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)[ \t]+(\S+)", re.MULTILINE)
_COMPARISONS = {
    "<": ("<=", ">"),
    "<=": ("<", ">"),
    ">": (">=", "<"),
    ">=": (">", "<"),
    "==": ("!=",),
    "!=": ("==",),
}
_OPERATORS = {"+": "-", "-": "+", "*": "+", "/": "*", "%": "/", "^": "|", "<<": ">>", ">>": "<<"}
_OPERATORS |= {"+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "++": "--", "--": "++"}
_FUNCTIONS = {"fmaxf": "fminf", "fminf": "fmaxf", "max": "min", "min": "max"}
_BUILT_IN = {"threadIdx", "blockIdx", "blockDim", "gridDim"}
_TYPES = set(
    "auto bool char const constexpr double float float2 float4 half half2 int long short signed "
    "size_t unsigned void volatile __shared__ __half __half2 __restrict__".split()
)
_OPENING, _CLOSING = {"(": ")", "[": "]", "{": "}"}, {")": "(", "]": "[", "}": "{"}
_OUTER = set("( [ { } ; , = ? : return".split())  # what ends an operand on its left
_LEAVING = {"return", "continue", "break"}


@dataclass(frozen=True)
class Mutant:
    """One changed text. change: "12: `i < n` -> `i <= n`", with the line in the original."""

    change: str
    text: str = field(repr=False)


@dataclass(frozen=True)
class _Token:
    text: str
    start: int
    end: int
    depth: int  # of braces around it


def mutants_of(text: str) -> list[Mutant]:
    """Return the mutants of a kernel file, in the order of the text, no two alike.

    Two changes of one line that read alike are told apart by a number: "... (2)".
    """
    kernel, made, alike = _Kernel(text), {text: None}, Counter()
    found = python_rules.changes(text) if "@triton.jit" in text else kernel.changes()
    for start, end, new in sorted(found):
        changed = text[:start] + new + text[end:]
        if changed not in made:
            change = kernel.described(start, end, new)
            alike[change] += 1
            number = f" ({alike[change]})" if alike[change] > 1 else ""
            made[changed] = Mutant(change + number, changed)
    return list(filter(None, made.values()))


class _Kernel:
    """The tokens of a text, and the rules: each yields (start, end, what stands there instead)."""

    def __init__(self, text: str):
        self.text, self.tokens = text, list(_tokens(text))
        self.words = [token.text for token in self.tokens]
        self.macros = dict(_MACRO.findall(text))

    def changes(self) -> Iterator[tuple[int, int, str]]:
        rules = (
            *(self._comparison, self._bound, self._operator, self._number, self._macro),
            *(self._index, self._start, self._axis, self._guard, self._operand, self._choice),
            *(self._call, self._unset),
        )
        for at, token in enumerate(self.tokens):
            if token.depth:
                for rule in rules:
                    yield from rule(at)

    def described(self, start: int, end: int, new: str) -> str:
        """Return the line of a change, and the text there with two tokens on either side."""
        first = max(0, sum(token.end <= start for token in self.tokens) - 2)
        last = min(len(self.tokens), sum(token.start < end for token in self.tokens) + 2) - 1
        head = self.text[self.tokens[first].start : start].rpartition("\n")[2]
        tail = self.text[end : self.tokens[last].end].partition("\n")[0]
        old, new = (" ".join(f"{head}{part}{tail}".split()) for part in (self.text[start:end], new))
        return f"{self.text.count(chr(10), 0, start) + 1}: `{old}` -> `{new}`"

    # -- rules ------------------------------------------------------------------------------------
    def _comparison(self, at: int):
        for other in _COMPARISONS.get(self._binary(at), ()):
            yield self._instead(at, other)

    def _bound(self, at: int):
        """`i < n` to `i < n - 1`."""
        after = self.words[at + 2] if at + 2 < len(self.words) else ""
        if self._binary(at) in _COMPARISONS and after in (";", ")", "&&", "||", "?"):
            if self._is_name(at + 1):
                yield self._instead(at + 1, f"{self.words[at + 1]} - 1")

    def _operator(self, at: int):
        word = self.words[at]
        if word in ("++", "--") or self._binary(at) in _OPERATORS:
            yield self._instead(at, _OPERATORS[word])
        if word in _FUNCTIONS and self.words[at + 1] == "(":
            yield self._instead(at, _FUNCTIONS[word])

    def _number(self, at: int):
        word = self.words[at]
        if not word[0].isdigit():
            return
        found = re.fullmatch(r"(0[xX][0-9a-fA-F]+|\d+)([uUlL]*)", word)
        if not found:
            yield self._instead(at, "1.0f" if float(word.rstrip("fFlL")) == 0 else "0.0f")
            return
        value, suffix = int(found[1], 0), found[2]
        others = [value - 1, value + 1] if value else [1]
        if word[:2] in ("0x", "0X"):
            others = [hex(value >> 1)]
        elif self._declares(at):  # more room than needed changes nothing
            others = [value - 1]
        for other in others:
            yield self._instead(at, f"{other}{suffix}")

    def _macro(self, at: int):
        """MINUS_INFINITY to another start, a size to one more."""
        word = self.words[at]
        value = self.macros.get(word, "")
        if value.isdigit():
            yield self._instead(at, f"({word} {'-' if self._declares(at) else '+'} 1)")
        elif value:
            yield from (self._instead(at, other) for other in ("0.0f", "(-1e30f)"))

    def _index(self, at: int):
        if self.words[at] == "]" and not self._declares(at):
            first = self._matching(at) + 1
            start, end = self.tokens[first].start, self.tokens[at].start
            old = self.text[start:end]
            yield start, end, f"({old}) + 1" if "?" in old else f"{old} + 1"

    def _unset(self, at: int):
        """`float sum = 0.0f;` to `float sum;`."""
        if self.words[at] == "=" and self.words[at + 2] in (";", ",") and self._declares(at):
            if self.words[at + 1][0].isdigit() or self.words[at + 1] in self.macros:
                yield self._span(at, at + 1, "")

    def _start(self, at: int):
        """`for (int i = lane;` to `for (int i = lane + 1;`."""
        if self.words[at] == "for" and self.words[at + 1] == "(":
            end = self.words.index(";", at)
            if "=" in self.words[at:end] and not self.words[end - 1][0].isdigit():
                here = self.tokens[end].start
                yield here, here, " + 1"

    def _axis(self, at: int):
        if self.words[at] in _BUILT_IN and self.words[at + 1] == ".":
            yield self._instead(at + 2, "y" if self.words[at + 2] == "x" else "x")

    def _guard(self, at: int):
        """`if (i < n)` to `if (true)`, or to `if (false)` before a return."""
        if self.words[at] == "if" and self.words[at + 1] == "(":
            last = self._matching(at + 1)
            body = next(word for word in self.words[last + 1 :] if word != "{")
            yield self._span(at + 2, last - 1, "false" if body in _LEAVING else "true")

    def _operand(self, at: int):
        """`a && b` to `true && b` and to `a && true`."""
        word = self.words[at]
        if word in ("&&", "||"):
            neutral = "true" if word == "&&" else "false"
            yield self._span(self._left(at, {"&&", "||"}), at - 1, neutral)
            yield self._span(at + 1, self._right(at), neutral)

    def _choice(self, at: int):
        """`a ? b : c` to `true ? b : c`."""
        if self.words[at] == "?":
            yield self._span(self._left(at), at - 1, "true")

    def _call(self, at: int):
        """A call whose value nobody takes is left out: a barrier, an atomic, an asm."""
        if at and self.words[at - 1] in (";", "{", "}", ")", "else") and self._is_name(at):
            opening = at + 1 + (self.words[at + 1] == "volatile")
            if self.words[opening] == "(":
                last = self._matching(opening)
                if self.words[last + 1] == ";" and self.words[at] not in ("for", "if", "while"):
                    yield self._span(at, last, "")

    # -- what the rules ask -----------------------------------------------------------------------
    def _instead(self, at: int, new: str) -> tuple[int, int, str]:
        return self.tokens[at].start, self.tokens[at].end, new

    def _span(self, first: int, last: int, new: str) -> tuple[int, int, str]:
        return self.tokens[first].start, self.tokens[last].end, new

    def _is_name(self, at: int) -> bool:
        return bool(re.match(r"[A-Za-z_]", self.words[at])) and self.words[at] not in _TYPES

    def _binary(self, at: int) -> str:
        """Return the operator here where it stands between two values, else ""."""
        before = self.words[at - 1]
        value = before in (")", "]") or before[0].isdigit() or self._is_name(at - 1)
        cast = before.endswith("_cast") or before == "return"
        return self.words[at] if value and not cast else ""

    def _declares(self, at: int) -> bool:
        """Whether this stands in a declaration, before any value."""
        first = at
        while self.words[first - 1] not in (";", "{", "}"):
            first -= 1
        return self.words[first] in _TYPES and "=" not in self.words[first:at]

    def _matching(self, at: int) -> int:
        """Return the bracket that belongs to the one here."""
        step, depth = (1 if self.words[at] in _OPENING else -1), 0
        while True:
            depth += (self.words[at] in _OPENING) - (self.words[at] in _CLOSING)
            if depth == 0:
                return at
            at += step

    def _left(self, at: int, also=frozenset()) -> int:
        """Return the first token of the operand that ends before this one."""
        at -= 1
        while True:
            if self.words[at] in _CLOSING and self.words[at] != "}":
                at = self._matching(at)
            before = self.words[at - 1]
            if before in _OUTER or before in also:
                return at
            at -= 1

    def _right(self, at: int) -> int:
        """Return the last token of the operand that begins after this one."""
        at += 1
        while True:
            if self.words[at] in _OPENING:
                at = self._matching(at)
            if self.words[at + 1] in (")", "]", "}", ";", ",", "?", ":", "&&", "||"):
                return at
            at += 1


def _tokens(text: str) -> Iterator[_Token]:
    at = depth = 0
    while at < len(text):
        found = _SKIPPED.match(text, at)
        if not found:
            found = _TOKEN.match(text, at)
            depth -= found[0] == "}"
            yield _Token(found[0], at, found.end(), depth)
            depth += found[0] == "{"
        at = found.end()
