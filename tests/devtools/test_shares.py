"""Shares of many cases: every entry comes up, and all of them where the proof is whole."""

from itertools import product

import pytest

from attn_devtools import shares
from attn_devtools.shares import crossed, in_turns


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
