"""Variables that no statement of the source sets, found in its text.

The compiler computes with such a variable once and for all, and its debug information says no more
than that the variable has been declared.
"""

import re
from collections.abc import Iterator, Sequence

_OPERATOR_BEFORE = re.compile(r"([-+*/%<>!~^|&\[]|\b(if|while|switch)\s*\()\s*$")
_OPERATOR_AFTER = re.compile(r"\s*([-+*/%<>^|&?\[]|[!=]=)")
_COMMENT = re.compile(r"//.*|/\*.*?\*/|\"(\\.|[^\"])*\"")


def is_operand(line: str, name: str, start: int) -> bool:
    """Does an operator, a subscript or a condition take the variable at line[start:]?

    A copy, an argument or a returned value is no operand.
    """
    end = start + len(name)
    operator = _OPERATOR_BEFORE.search(line[:start]) or _OPERATOR_AFTER.match(line[end:])
    return line[start:end] == name and bool(operator)


def uses_without_value(
    lines: Sequence[str], name: str, declared: int, end: int
) -> Iterator[tuple[int, str]]:
    """Yield (line, name) of each line up to `end` where a variable is an operand.

    declared: the line of its declaration; lines count from 1. Nothing where the declaration gives
    it a value, or where anything up to `end` may set it: a new value, an address, a call.
    """
    texts = [_COMMENT.sub(" ", text) for text in lines[declared - 1 : end]]
    word = rf"(?<![\w.])(?<!->){re.escape(name)}\b"
    plain = re.search(word, texts[0]) if texts else None
    sets = rf"{word}\s*([-+*/%&|^]|<<|>>)?=(?!=)|(\+\+|--|&)\s*{word}|{word}\s*(\+\+|--)"
    passed = rf"[(,]\s*{word}\s*[,)]"
    if plain is None or not re.match(r"\s*[,;]", texts[0][plain.end() :]):
        return
    rest = [texts[0][plain.end() :], *texts[1:]]
    if any(re.search(f"{sets}|{passed}|asm", text) for text in rest):
        return
    for at, text in enumerate(rest):
        if any(is_operand(text, name, m.start()) for m in re.finditer(word, text)):
            yield declared + at, name
