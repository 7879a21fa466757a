"""One instruction form of the operation table, and what the parts of the table share.

An operand signature such as "T T -> T" names PTX types, or stands for them: T is the instruction's
(last) type, D the first one of two (the result's), A the second one of three, W the type of twice
T's width.
"""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

INTEGERS = "s16 u16 s32 u32 s64 u64"
WORDS = "s32 u32 s64 u64"
BITS = "b16 b32 b64"
ROUNDING = "rn rz rm rp"


@dataclass(frozen=True)
class Row:
    """One instruction form of the table.

    types: alternatives, "a/b" a pair, of which either may list several: "f32,f64/s32".
    operands: their signature.
    build: build(types, modifiers) makes the function; types is the tuple of type names in the
        text, modifiers the frozenset of the remaining parts.
    modifiers: the ones it understands.
    carry: "reads", "writes" or both, of the carry flag.
    """

    types: str
    operands: str
    build: Callable
    modifiers: str = ""
    carry: str = ""

    def type_choices(self) -> list[tuple[str, ...]]:
        """Every tuple of type names this row accepts."""
        return [
            choice
            for alternative in self.types.split()
            for choice in itertools.product(*(part.split(",") for part in alternative.split("/")))
        ]


def plain(function: Callable) -> Callable:
    """What builds a function that depends on neither type nor modifiers."""
    return lambda types, modifiers: function


def rounding(modifiers: frozenset[str]) -> str:
    """The rounding that the modifiers name; "rn", to nearest, if none."""
    return next((mode for mode in ("rz", "rm", "rp") if mode in modifiers), "rn")
