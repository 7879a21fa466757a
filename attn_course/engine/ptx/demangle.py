"""Names as the source writes them, from the compiler's mangled ones."""

from __future__ import annotations

import re
from functools import lru_cache

_LENGTH = re.compile(r"\d+")


@lru_cache(maxsize=4096)
def demangle(name: str) -> str:
    """`_ZZ5tiledE10tile_query` -> `tile_query`: the last component of an Itanium-mangled name."""
    if not name.startswith("_Z"):
        return name
    place, last = 2, name
    while place < len(name):
        match = _LENGTH.match(name, place)
        if match is None:
            place += 1
            continue
        start, length = match.end(), int(match.group())
        place = start
        if length and start + length <= len(name):
            last, place = name[start : start + length], start + length
    return last
