"""Triton's own cache goes to a folder of the session."""

import os

import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install kernelscope[triton]")


@pytest.fixture(scope="session", autouse=True)
def _triton_cache(tmp_path_factory):
    before = os.environ.get("TRITON_CACHE_DIR")
    os.environ["TRITON_CACHE_DIR"] = str(tmp_path_factory.mktemp("triton"))
    yield
    os.environ.pop("TRITON_CACHE_DIR")
    if before is not None:
        os.environ["TRITON_CACHE_DIR"] = before
