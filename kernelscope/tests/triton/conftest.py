"""Triton's own cache goes to a folder of the session."""

import os

import pytest
from kernelscope import Sanitizer, observe

pytest.importorskip("triton", reason="Triton is not installed: pip install kernelscope[triton]")


@pytest.fixture(scope="session", autouse=True)
def _triton_cache(tmp_path_factory):
    before = os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    yield
    os.environ.pop("TRITON_CACHE_DIR")
    if before is not None:
        os.environ["TRITON_CACHE_DIR"] = before


@pytest.fixture
def clean():
    """Watch all launches of a test: kernels without a defect have no finding."""
    with observe(Sanitizer()) as found:
        yield
    assert not found.findings, found
