"""Names as the source writes them, from the compiler's mangled ones."""

import re
from functools import lru_cache

_LENGTH = re.compile(r"\d+")
_START = re.compile(r"_ZN?[rVK]*(?:St)?")
_COMPONENT = re.compile(r"L?(\d+)")
_ARGUMENT = re.compile(r"L[a-z]n?\d+E")  # a number as a template argument: Li8E


@lru_cache(maxsize=4096)
def demangle(name: str) -> str:
    """Return the source's name of an Itanium-mangled one, without scopes and template arguments.

    `_ZZ5tiledE10tile_query` -> `tile_query`; `_ZN4math6scaledIfLi3EEvPT_` -> `scaled`.
    """
    if name.startswith("_ZZ"):
        return _local(name)
    start, last = _START.match(name), name
    place = start.end() if start else len(name)
    while match := _COMPONENT.match(name, place):
        place = match.end() + int(match[1])
        last = name[match.end() : place]
        if not start or "N" not in start[0]:
            break  # what follows is its parameters' types
    return last or name


def _local(name: str) -> str:
    """The last component, that of a variable inside a function."""
    place, last = 2, name
    while place < len(name):
        if match := _ARGUMENT.match(name, place):
            place = match.end()
            continue
        match = _LENGTH.match(name, place)
        if match is None:
            place += 1
            continue
        start, length = match.end(), int(match.group())
        place = start
        if length and start + length <= len(name):
            last, place = name[start : start + length], start + length
    return last
