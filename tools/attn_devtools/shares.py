"""A share of many cases, for tests that must be quick; `make proof` takes them all."""

import os
import subprocess
from collections import Counter
from collections.abc import Sequence
from itertools import product
from zlib import crc32

from attn_course.folders import IMPORT_ROOT

WHOLE = os.environ.get("PROOF") == "whole"  # as `make proof` sets it


def crossed(first: Sequence, second: Sequence, each: int = 1) -> list[tuple]:
    """Return pairs of two lists in which every entry of both comes up.

    each: with how many of `second` each of `first` is paired, in turns. All pairs where the proof
    is whole, or where there are no more.

    >>> crossed("abc", [1, 2])
    [('a', 1), ('b', 2), ('c', 1)]
    """
    each = max(each, -(-len(second) // len(first)))
    if WHOLE or each >= len(second):
        return list(product(first, second))
    return [
        (one, second[(at * each + turn) % len(second)])
        for at, one in enumerate(first)
        for turn in range(each)
    ]


def in_turns(cases: Sequence, turns: int) -> list:
    """Return every `turns`-th case; the first of them follows from the last commit's hash.

    So a commit always takes the same, and several commits take all. All where the proof is whole.
    """
    return list(cases if WHOLE else cases[_commit() % turns :: turns])


def waiting(items: Sequence) -> list:
    """Return the tests with a mark `turns(n)` whose turn it is not: each comes every n-th commit.

    The cases of a test follow each other. A file that has the mark comes as a whole, and so do the
    tests with a mark `turns(n, name)` of one name, for those that share what is slow. Others seldom
    begin with the same commit. None where the proof is whole.

    items: pytest's, as collected.
    """
    found, places, commit = [], Counter(), _commit()
    for item in () if WHOLE else items:
        node, mark = next(item.iter_markers_with_node("turns"), (None, None))
        if node is not None:
            turns, *together = mark.args
            name = together[0] if together else node.nodeid.partition("[")[0]
            if (crc32(name.encode()) + places[name] + commit) % turns:
                found.append(item)
            places[name] += node is item and not together
    return found


def _commit() -> int:
    """The start of the hash of the last commit, as a number; 0 outside of git."""
    command = ["git", "-C", str(IMPORT_ROOT), "rev-parse", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError:
        return 0
    return int(done.stdout[:12], 16) if done.returncode == 0 else 0
