"""Settings from environment variables, and their names of before."""

import os
import warnings

import pytest
from kernelscope import resolve_backend, settings

VARIABLE = "KERNELSCOPE_OUTPUT"
OLD = settings.ALIASES[VARIABLE]


@pytest.fixture(autouse=True)
def nothing_said_yet():
    settings._warn.cache_clear()
    yield
    settings._warn.cache_clear()


def test_an_old_name_counts_and_is_told_once(monkeypatch):
    monkeypatch.delenv("KERNELSCOPE_BACKEND", raising=False)
    monkeypatch.setenv(settings.ALIASES["KERNELSCOPE_BACKEND"], "simulator")
    with pytest.warns(FutureWarning, match="_BACKEND is now KERNELSCOPE_BACKEND") as told:
        assert resolve_backend() == resolve_backend() == "simulator"
    assert len(told) == 1


def test_the_new_name_comes_first(monkeypatch):
    monkeypatch.setenv("KERNELSCOPE_BACKEND", "simulator")
    monkeypatch.setenv(settings.ALIASES["KERNELSCOPE_BACKEND"], "gpu")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert resolve_backend() == "simulator"


@pytest.mark.parametrize("plain", [False, True])  # another mapping than the one of os
@pytest.mark.parametrize(
    ("values", "found", "told"),
    [
        ({}, "", False),
        ({VARIABLE: "9"}, "9", False),
        ({VARIABLE: ""}, "", False),
        ({VARIABLE: "", OLD: "7"}, "", False),
        ({VARIABLE: "9", OLD: "7"}, "9", False),
        ({OLD: "7"}, "7", True),
        ({OLD: ""}, "", False),
    ],
)
def test_what_is_set_now_counts(values, found, told, plain, monkeypatch):
    """Also where it was something else before, and after."""
    for name in (VARIABLE, OLD):
        monkeypatch.delenv(name, raising=False)
    if plain:
        monkeypatch.setattr(os, "environ", dict(os.environ))
    for _ in range(2):
        assert settings.setting(VARIABLE) == ""
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        settings._warn.cache_clear()
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            assert settings.setting(VARIABLE) == found
        assert [one.category for one in seen] == [FutureWarning] * told
        for name in values:
            monkeypatch.delenv(name)
