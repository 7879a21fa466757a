"""What tests of several rooms share."""

import pytest

from attn_course.engine import backend


@pytest.fixture
def no_gpu(monkeypatch):
    """Choose the simulator, whatever GPU the machine has."""
    monkeypatch.setenv(backend.ENVIRONMENT_VARIABLE, "simulator")
