"""What the suites' tests share."""

import numpy as np
import pytest
from kernelscope.contest import Replay
from kernelscope.contest import turns as timing

from attn_course.measure import benchmarks, candidates


@pytest.fixture
def made_up_gpu(monkeypatch, no_gpu):
    """A GPU whose launches the simulator runs."""
    monkeypatch.setattr(benchmarks, "array_module", lambda backend: np)
    monkeypatch.setattr(benchmarks, "calls_for", lambda call_us: 1)
    monkeypatch.setattr(benchmarks, "ESTIMATES", 1)
    for module in (benchmarks, timing):
        monkeypatch.setattr(module, "require_gpu", lambda: None)
    monkeypatch.setattr(timing, "clocks", lambda: {})
    monkeypatch.setattr(candidates, "capture", lambda call, calls: Replay(call, calls))
