"""Shares of many cases: every entry comes up, and all of them where the proof is whole."""

import ast
import math
from itertools import combinations, product
from pathlib import Path
from types import SimpleNamespace

import pytest

from attn_devtools import shares
from attn_devtools.shares import crossed, in_turns, waiting


@pytest.fixture(params=[False, True], ids=["a share", "whole"])
def whole(request, monkeypatch):
    monkeypatch.setattr(shares, "WHOLE", request.param)
    return request.param


@pytest.mark.parametrize("each", [1, 2, 9])
def test_every_entry_of_both_lists_comes_up(each, whole):
    for rows, columns in product(range(1, 8), repeat=2):
        pairs = crossed(range(rows), range(columns), each)
        assert len(set(pairs)) == len(pairs)
        assert {one for one, _ in pairs} == set(range(rows))
        assert {other for _, other in pairs} == set(range(columns))
        if whole:
            assert len(pairs) == rows * columns
        elif columns <= rows:
            assert len(pairs) == rows * min(each, columns)


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_as_many_commits_as_turns_take_every_case(turns, whole, monkeypatch):
    cases, taken = list(range(10)), []
    for commit in range(turns):
        monkeypatch.setattr(shares, "_commit", lambda number=commit: number)
        taken.append(in_turns(cases, turns))
    if whole:
        assert taken == [cases] * turns
    else:
        assert sorted(sum(taken, [])) == cases


ROOT = Path(__file__).resolve().parents[2]


def turns_of(node) -> list[int]:
    """The numbers that the calls of `turns` and `in_turns` in a piece of code are given."""
    calls = [one for one in ast.walk(node) if isinstance(one, ast.Call)]
    names = [(getattr(one.func, "attr", getattr(one.func, "id", "")), one.args) for one in calls]
    place = {"turns": 0, "in_turns": 1}
    return [args[place[name]].value for name, args in names if name in place]


def never_together(text: str) -> list[str]:
    """The tests of a file whose numbers of turns have a common divisor: some cases never come."""
    if text.count("turns(") < 2:
        return []
    body, found = ast.parse(text).body, []
    assigned = [one for one in body if isinstance(one, ast.Assign)]
    marks = [one.value for one in assigned if ast.unparse(one.targets[0]) == "pytestmark"]
    for one in body:
        if isinstance(one, ast.FunctionDef):
            numbers = [n for part in (*marks, *one.decorator_list) for n in turns_of(part)]
            if any(math.gcd(*pair) > 1 for pair in combinations(numbers, 2)):
                found.append(one.name)
    return found


def test_turns_of_a_test_and_of_its_cases_have_no_common_divisor():
    files = [
        path for room in ("tests", "kernelscope/tests") for path in (ROOT / room).rglob("*.py")
    ]
    wrong = {path.name: never_together(path.read_text(encoding="utf-8")) for path in files}
    assert len(files) > 200 and not any(wrong.values()), {k: v for k, v in wrong.items() if v}
    two = "@pytest.mark.turns({})\n@parametrize(in_turns(CASES, 4))\ndef test(): pass"
    assert never_together(two.format(6)) == ["test"] and not never_together(two.format(3))


def marked(name, *turns, whole_file=False):
    """A test as pytest collects it, with the mark `turns` on itself or on its file."""
    test, mark = SimpleNamespace(nodeid=name), SimpleNamespace(args=turns)
    node = SimpleNamespace(nodeid="file") if whole_file else test
    test.iter_markers_with_node = lambda _: iter([(node, mark)] if turns else [])
    return test


@pytest.mark.parametrize("turns", [2, 3])
def test_every_test_with_turns_comes_once_and_families_come_together(turns, whole, monkeypatch):
    cases = [marked(f"cases[{number}]", turns) for number in range(7)]
    slow = [marked(f"slow_{number}", turns) for number in range(12)]
    of_a_file = [marked(f"file::{number}", turns, whole_file=True) for number in range(3)]
    sharing = [marked(f"sharing_{number}", turns, "a folder") for number in range(3)]
    items = [marked("quick"), *cases, *slow, *of_a_file, *sharing]
    taken = []
    for commit in range(turns):
        monkeypatch.setattr(shares, "_commit", lambda number=commit: number)
        left = [one.nodeid for one in waiting(items)]
        taken.append([one.nodeid for one in items if one.nodeid not in left])
        for family in (of_a_file, sharing):
            assert sum(one.nodeid in left for one in family) in (0, 3)
        if not whole:
            assert sum(one.nodeid in left for one in cases) >= 7 - -(-7 // turns)
            assert 0 < sum(one.nodeid in left for one in slow) < len(slow)
    times = [sum(one.nodeid in names for names in taken) for one in items]
    assert times == ([turns] * len(items) if whole else [turns] + [1] * (len(items) - 1))


def test_the_turn_is_the_last_commits_and_the_first_without_git(monkeypatch, tmp_path):
    monkeypatch.setattr(shares, "WHOLE", False)
    monkeypatch.setattr(shares, "IMPORT_ROOT", tmp_path)
    assert in_turns("abcd", 2) == ["a", "c"]  # no repository
    monkeypatch.setenv("PATH", str(tmp_path))
    assert in_turns("abcd", 2) == ["a", "c"]  # no git
    git = tmp_path / "git"
    git.write_text("#!/bin/sh\necho 0123456789abcdef0123456789abcdef01234567\n")
    git.chmod(0o755)
    assert in_turns("abcd", 2) == ["b", "d"]  # 0x0123456789ab is odd
