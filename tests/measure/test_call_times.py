"""Times of calls from Python: batches of calls on the host's clock, the GPU idle before each."""

import types

from attn_course.measure import first_calls


def test_host_times_are_those_of_a_call(monkeypatch):
    log, now = [], types.SimpleNamespace(seconds=0.0)
    lengths = iter([9.0, *[1.0] * 4, *[2.0] * 4, *[6.0] * 4])  # the first call is not timed

    def call():
        log.append("call")
        now.seconds += next(lengths)

    monkeypatch.setattr(first_calls.time, "perf_counter", lambda: now.seconds)
    found = first_calls.host_times(call, lambda: log.append("wait"), calls=4, batches=3)
    assert found == {"median_us": 2e6, "fastest_us": 1e6}
    assert log == ["call", *["wait", *["call"] * 4] * 3, "wait"]
