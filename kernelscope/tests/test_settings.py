"""Settings from environment variables, and their names of before."""

import warnings

import pytest
from kernelscope import resolve_backend, settings


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
